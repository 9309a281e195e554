"""Whatever is passed, a call returns, raises one of our errors or a TypeError: it never panics."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import octavo

INTEGERS = st.sampled_from([0, 1, 2, 3, -1, 255, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**70])
ARRAYS = st.one_of(
    st.lists(st.integers(-1, 5), max_size=6),
    st.lists(st.integers(0, 3), max_size=6).map(lambda items: np.array(items, np.int32)),
    st.lists(st.integers(0, 3), max_size=6).map(lambda items: np.array(items, np.uint8)[::-1]),
    st.sampled_from(
        [
            np.zeros((0, 3), np.int32),
            np.zeros((), np.int64),
            np.array([2**63], np.uint64),
            np.array(["a"]),
            np.array([None, 1], object),
            np.array([1 + 2j]),
            np.array(["2020-01-01"], "datetime64[D]"),
            np.zeros(2, [("a", "i4")]),
            np.ma.masked_array([1, 2], [True, False]),
            range(3),
            range(2**65),
            memoryview(b"abc"),
        ]
    ),
)
JUNK = st.one_of(
    INTEGERS,
    INTEGERS.map(lambda value: -value),
    ARRAYS,
    st.sampled_from([None, True, 1.5, math.nan, math.inf, "chunked", "", "\ud800", b"", b"x"]),
    st.sampled_from([(), {}, {1: 2.0}, object(), int, ((0, None, "k", b"v"),), [(0, 1, "", b"")]]),
)
# NumPy up to 2.3 warns where an array of one element is taken for a number; later: TypeError.
ACCEPTED = (octavo.OctavoError, TypeError, DeprecationWarning)

CACHE_CALLS = {
    "open": 1,
    "num_computed": 1,
    "reserve": 2,
    "can_reserve": 2,
    "advance": 2,
    "truncate": 2,
    "fork": 1,
    "close": 1,
    "match": 1,
    "open_many": 1,
    "reserve_many": 2,
    "advance_many": 3,
    "close_many": 1,
    "match_many": 1,
    "pin": 1,
    "unpin": 1,
    "new_epoch": 0,
    "table": 1,
    "tables": 1,
    "csr": 2,
    "slots": 3,
    "take_ops": 0,
    "begin_step": 0,
    "end_step": 1,
    "clear": 0,
    "stats": 0,
    "audit": 0,
    "draw": 0,
}
SCHEDULER_CALLS = {
    "sequences": 1,
    "extend": 2,
    "set_ready": 1,
    "pin": 1,
    "unpin": 1,
    "new_epoch": 0,
    "clear": 0,
    "tokens": 1,
    "abort": 1,
    "finish": 1,
    "step": 1,
    "commit": 2,
    "cancel": 1,
    "match": 1,
    "stats": 0,
    "audit": 0,
    "draw": 0,
}
ADD_OPTIONS = (
    "min_tokens",
    "stop_token_ids",
    "n",
    "priority",
    "deadline",
    "arrival",
    "tenant",
    "adapter",
    "salt",
    "extra_keys",
    "key",
    "ready",
    "use_cache",
)
ADD_MANY = st.fixed_dictionaries(
    {
        "prompts": st.one_of(st.lists(ARRAYS, max_size=3), JUNK),
        "max_tokens": st.one_of(ARRAYS, JUNK),
    },
    optional=dict.fromkeys(ADD_OPTIONS, JUNK),
)
ADD = st.fixed_dictionaries(
    {"prompt": st.one_of(ARRAYS, JUNK), "max_tokens": JUNK},
    optional=dict.fromkeys(ADD_OPTIONS, JUNK),
)


def public_calls(kind: type) -> set[str]:
    return {name for name in dir(kind) if name[0] != "_" and callable(getattr(kind, name))}


def test_every_call_is_tried():
    assert public_calls(octavo.KVCache) == set(CACHE_CALLS)
    assert public_calls(octavo.Scheduler) == set(SCHEDULER_CALLS) | {"add", "add_many"}


def attempt(call, *arguments, **keywords):
    try:
        return call(*arguments, **keywords)
    except ACCEPTED:
        return None


@given(st.data())
def test_cache_survives_junk(data):
    cache = octavo.KVCache(4, 2)
    handles = [cache.open([1, 2, 3])]
    for _ in range(12):
        name = data.draw(st.sampled_from(sorted(CACHE_CALLS)))
        arguments = [
            data.draw(st.one_of(st.sampled_from(handles), st.just(handles), JUNK))
            for _ in range(CACHE_CALLS[name])
        ]
        result = attempt(getattr(cache, name), *arguments)
        if name in ("open", "fork", "pin") and result is not None:
            handles.append(result)
        cache.audit()


@given(st.data())
def test_scheduler_survives_junk(data):
    inflight_steps = data.draw(st.integers(1, 3))
    scheduler = octavo.Scheduler(
        6, block_size=2, max_model_len=16, max_num_seqs=3, inflight_steps=inflight_steps
    )
    handles = [scheduler.add([1, 2, 3], max_tokens=2)]
    handles.extend(scheduler.sequences(handles[0]))
    plans = [scheduler.step(0.0)]
    for _ in range(12):
        name = data.draw(st.sampled_from([*sorted(SCHEDULER_CALLS), "add", "add_many"]))
        if name == "add":
            attempt(scheduler.add, **data.draw(ADD))
        elif name == "add_many":
            attempt(scheduler.add_many, **data.draw(ADD_MANY))
        else:
            arguments = [
                data.draw(st.one_of(st.sampled_from(handles), st.sampled_from(plans), JUNK))
                for _ in range(SCHEDULER_CALLS[name])
            ]
            keywords = {}
            if name == "extend":
                keywords["max_tokens"] = data.draw(JUNK)
            elif name == "step":
                keywords["out"] = data.draw(st.one_of(st.none(), JUNK))
            result = attempt(getattr(scheduler, name), *arguments, **keywords)
            if name == "step" and result is not None:
                plans.append(result)
            elif name == "pin" and result is not None:
                handles.append(result)
        scheduler.audit()


@pytest.mark.parametrize("kind", [octavo.KVCache, octavo.Scheduler])
@given(st.data())
def test_constructors_survive_junk(kind, data):
    names = [*octavo.SchedulerConfig.__dataclass_fields__, "groups", "_hash_bits"]
    # Sizes that a machine could allocate, and did, would only slow the test down.
    big = {"num_blocks", "max_num_seqs", "max_model_len"}
    chosen = data.draw(st.lists(st.sampled_from(names), max_size=4, unique=True))
    options = {
        name: data.draw(JUNK if name not in big else st.sampled_from([0, 1, 2, -1, 2**70, None]))
        for name in chosen
    }
    attempt(kind, **{"num_blocks": 3, **options})


@pytest.mark.parametrize(
    "name", ["num_computed", "reserve", "can_reserve", "truncate", "table", "fork", "close"]
)
def test_reading_an_argument_may_call_the_cache_itself(name):
    cache = octavo.KVCache(4, 2)
    seq = cache.open()

    class Handle:
        def __index__(self) -> int:
            return seq + cache.stats().held

    arguments = [Handle()] + [0] * (CACHE_CALLS[name] - 1)
    getattr(cache, name)(*arguments)


@pytest.mark.parametrize("length", [0, 2**40, 2**62])
@pytest.mark.parametrize("base", [list, tuple])
def test_length_that_a_subclass_claims_is_not_believed(base, length):
    class Liar(base):
        def __len__(self) -> int:
            return length

    cache = octavo.KVCache(4, 2)
    assert cache.num_computed(cache.open(Liar([1, 2, 3]))) == 0


def test_output_that_no_memory_holds_is_refused():
    cache = octavo.KVCache(10**5, 256)
    seq = cache.open()
    cache.reserve(seq, 256 * 10**5)
    many = np.full(10**6, seq)
    whole = np.full(10**6, 256 * 10**5)
    for call in (
        lambda: cache.tables(many),
        lambda: cache.csr(many, whole),
        lambda: cache.slots(many, np.zeros_like(many), whole),
    ):
        with pytest.raises(octavo.RequestError, match="more output than fits"):
            call()
    cache.audit()
