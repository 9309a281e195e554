"""Every call of `octavo.Scheduler` through Python: what it returns, and what it refuses."""

import math

import numpy as np
import pytest

import octavo


def build(num_blocks=64, **options) -> octavo.Scheduler:
    return octavo.Scheduler(num_blocks, **{"block_size": 4, "max_model_len": 64, **options})


def run(scheduler: octavo.Scheduler, token=1) -> dict[int, list[int]]:
    """Steps until nothing is left, every sample being `token`; the outputs by sequence."""
    outputs: dict[int, list[int]] = {}
    now = 0.0
    while scheduler.has_work:
        now += 1.0
        plan = scheduler.step(now)
        assert plan is not None
        samples = np.full(len(plan.sample), token, np.int32)
        for seq, tokens in scheduler.commit(plan, samples):
            outputs.setdefault(seq, []).extend(tokens)
        scheduler.audit()
    return outputs


def test_a_request_runs_to_its_length():
    scheduler = build()
    request = scheduler.add(range(10), max_tokens=3)
    (seq,) = scheduler.sequences(request)
    assert run(scheduler, token=7) == {seq: [7, 7, 7]}
    assert scheduler.tokens(seq).tolist() == [*range(10), 7, 7, 7]


def test_outcome_reports_tokens_and_ends_as_arrays():
    scheduler = build()
    (seq,) = scheduler.sequences(scheduler.add([1, 2, 3], max_tokens=5, stop_token_ids=[9]))
    outcome = scheduler.commit(scheduler.step(0.0), [9])
    assert list(outcome) == [(seq, [9])]
    assert len(outcome) == 1
    for name, dtype, values in [
        ("seqs", np.int64, [seq]),
        ("indptr", np.int32, [0, 1]),
        ("tokens", np.int32, [9]),
        ("finished", np.int64, [seq]),
        ("reasons", np.uint8, [octavo.Reason.STOP]),
    ]:
        array = getattr(outcome, name)
        assert (array.dtype, array.tolist()) == (dtype, values)


def test_outcome_can_be_iterated_again():
    scheduler = build()
    scheduler.add([1], max_tokens=1)
    outcome = scheduler.commit(scheduler.step(0.0), [5])
    assert list(outcome) == list(outcome)


def test_tokens_are_readable_until_the_step_after_their_end():
    scheduler = build()
    (seq,) = scheduler.sequences(request := scheduler.add([1, 2], max_tokens=1))
    scheduler.commit(scheduler.step(0.0), [5])
    assert scheduler.tokens(seq).tolist() == [1, 2, 5]
    scheduler.add([3], max_tokens=1)
    scheduler.step(1.0)
    for call in (lambda: scheduler.tokens(seq), lambda: scheduler.sequences(request)):
        with pytest.raises(octavo.StaleHandleError):
            call()


def test_abort_and_finish_take_a_request_or_a_sequence():
    scheduler = build()
    first = scheduler.add([1], max_tokens=9)
    (second,) = scheduler.sequences(scheduler.add([2], max_tokens=9))
    scheduler.abort(first)
    scheduler.finish(second)
    scheduler.finish(first)
    plan = scheduler.step(0.0)
    assert len(plan.seqs) == 0
    outcome = scheduler.commit(plan, [])
    assert outcome.reasons.tolist() == [octavo.Reason.ABORTED, octavo.Reason.FINISHED]
    assert plan.number == 0


def test_nothing_to_do_is_none():
    scheduler = build()
    assert scheduler.step(0.0) is None
    assert not scheduler.has_work
    scheduler.add([1], max_tokens=2)
    assert scheduler.step(0.0) is not None
    assert scheduler.step(0.0) is None


def test_prefix_is_found_again():
    scheduler = build()
    scheduler.add(range(12), max_tokens=1)
    run(scheduler)
    assert scheduler.match(range(12)) == 8
    assert scheduler.match(range(13)) == 12
    assert scheduler.match(range(13), salt=b"other") == 0
    scheduler.add(range(12), max_tokens=1)
    run_from = scheduler.step(99.0)
    assert run_from.positions.tolist() == [8, 9, 10, 11]


def test_adapter_and_salt_isolate():
    scheduler = build()
    scheduler.add(range(8), max_tokens=1, salt=b"a", adapter=3)
    run(scheduler)
    key = (0, None, "adapter", (3).to_bytes(8, "little"))
    assert scheduler.match(range(9), salt=b"a", extra_keys=(key,)) == 8
    assert scheduler.match(range(9), salt=b"a") == 0


def test_stats_are_values():
    scheduler = build()
    scheduler.add(range(8), max_tokens=2)
    stats = scheduler.stats()
    assert (stats.waiting, stats.running, stats.num_blocks) == (1, 0, 64)
    assert stats == scheduler.stats()
    assert set(stats.as_dict()) == {name for name in dir(stats) if name[0] != "_"} - {"as_dict"}
    run(scheduler)
    assert scheduler.stats().finished == 1


def test_draw_shows_the_running():
    scheduler = build()
    scheduler.add(range(6), max_tokens=2)
    scheduler.step(0.0)
    assert "A: " in scheduler.draw()


def test_config_object_says_the_same():
    config = octavo.SchedulerConfig(num_blocks=64, block_size=4, max_model_len=64)
    scheduler = octavo.Scheduler(config)
    assert scheduler.block_tables[0].shape == build().block_tables[0].shape == (256, 16)
    with pytest.raises(TypeError):
        octavo.Scheduler(config, max_num_seqs=3)
    with pytest.raises(octavo.ConfigError) as caught:
        octavo.Scheduler(octavo.SchedulerConfig(num_blocks=0))
    assert (caught.value.field, caught.value.value) == ("num_blocks", 0)


def test_defaults_agree_with_the_core():
    config = octavo.SchedulerConfig(num_blocks=10_000)
    by_name = octavo.Scheduler(10_000)
    assert octavo.Scheduler(config).block_tables[0].shape == by_name.block_tables[0].shape
    octavo.Scheduler(**vars(config))


@pytest.mark.parametrize(
    ("field", "values"),
    {
        "num_blocks": (0, -1, 2**31, 2**70, True, 8.0, "8", None),
        "block_size": (0, 257, 16.0),
        "max_num_seqs": (0, 65_537, -(2**70)),
        "max_num_batched_tokens": (0, 2**70),
        "max_model_len": (1, 2**31),
        "batching": ("other", 3, None),
        "policy": ("lpm", "fair", "other", None),
        "aging": (-1.0, math.nan, math.inf, True, "1"),
        "bypass_limit": (1,),
        "max_partial_prefills": (0,),
        "long_prefill_threshold": (-1,),
        "watermark": (-0.1, 1.0, math.nan, math.inf, "0"),
        "reserve": ("other", None),
        "preemption": ("swap", "auto", "other"),
        "victim": ("other", None),
        "inflight_steps": (0, 5),
        "num_lookahead": (1,),
        "prefix_caching": (1, None),
        "dedupe": (0, None),
        "reserve_null_block": (1, "yes"),
        "partial_hits": (True,),
        "eviction": ("fifo",),
        "hash_seed": (-1, 2**64, 0.0),
        "host_blocks": (1,),
        "disk_blocks": (1,),
        "events": (True,),
        "tenant_weights": ({1: 2.0}, None, 3, ()),
        "max_adapters_per_step": (1,),
    }.items(),
)
def test_settings_are_refused_by_field_value_and_range(field, values):
    for value in values:
        with pytest.raises(octavo.ConfigError) as caught:
            octavo.Scheduler(**{"num_blocks": 8, field: value})
        assert caught.value.field == field
        assert caught.value.value is value
        assert caught.value.range


@pytest.mark.parametrize("batching", ["static", "continuous", "mixed"])
def test_whole_prompts_need_a_budget_for_the_longest(batching):
    with pytest.raises(octavo.ConfigError) as caught:
        build(batching=batching, max_num_batched_tokens=63)
    assert (caught.value.field, caught.value.value) == ("max_num_batched_tokens", 63)
    scheduler = build(batching=batching, max_num_batched_tokens=64)
    scheduler.add(range(63), max_tokens=9)
    assert scheduler.step(0.0).num_tokens.tolist() == [63]


def test_every_setting_is_tried():
    tried = test_settings_are_refused_by_field_value_and_range.pytestmark[0].args[1]
    assert {field for field, _ in tried} == set(octavo.SchedulerConfig.__dataclass_fields__)


@pytest.mark.parametrize(
    ("argument", "values"),
    {
        "prompt": ([], [-1], [1.0], np.zeros((2, 2), np.int32), None, range(64), "12"),
        "max_tokens": (-1, 2**70),
        "min_tokens": (-1, 4, 2**70),
        "stop_token_ids": ([-1], [1.5], 3),
        "n": (0, 300, -1),
        "deadline": (math.nan, math.inf),
        "arrival": (math.nan, -math.inf),
        "tenant": (-1, 2**63),
        "adapter": (-1, 2**63),
        "priority": (2**63, 2**53 + 1, -(2**53) - 1),
        "salt": (None, "a"),
        "extra_keys": (None, 3),
        "key": (
            math.nan,
            -math.inf,
            "a",
            True,
            2**2000,
            [1.0],
            lambda _: math.nan,
            lambda _: None,
        ),
    }.items(),
)
def test_requests_are_refused_by_argument(argument, values):
    scheduler = build()
    for value in values:
        with pytest.raises(octavo.RequestError) as caught:
            scheduler.add(**{"prompt": [1, 2], "max_tokens": 3, argument: value})
        assert caught.value.argument == argument
        assert scheduler.stats().requests == 0
        assert not scheduler.has_work


def test_a_prompt_that_never_fits_says_by_how_much():
    scheduler = build(num_blocks=2)
    with pytest.raises(octavo.RequestError) as caught:
        scheduler.add(range(9), max_tokens=1)
    assert (caught.value.argument, caught.value.limit, caught.value.excess) == ("prompt", 2, 1)


def test_wrong_types_are_type_errors():
    scheduler = build()
    for wrong in ({"max_tokens": 1.5}, {"priority": "a"}, {"deadline": "b"}, {"ready": 3}):
        with pytest.raises(TypeError):
            scheduler.add(**{"prompt": [1], "max_tokens": 1, **wrong})
    with pytest.raises(TypeError):
        scheduler.add([1])
    with pytest.raises(TypeError):
        scheduler.step("now")
    with pytest.raises(TypeError):
        scheduler.commit(None, [])


def test_time_goes_on_and_is_finite():
    scheduler = build()
    scheduler.step(5.0)
    for wrong in (4.0, math.nan, math.inf, -math.inf):
        with pytest.raises(octavo.RequestError) as caught:
            scheduler.step(wrong)
        assert caught.value.argument == "now"
    assert scheduler.step(5) is None


@pytest.mark.parametrize("call", ["sequences", "tokens", "abort", "finish"])
def test_foreign_handles_are_unknown(call):
    scheduler = build()
    request = scheduler.add([1], max_tokens=1)
    wrong_kind = {"sequences": scheduler.sequences(request)[0], "tokens": request}
    for foreign in (0, -1, 42, 2**63 - 1, 2**70, wrong_kind.get(call, 3 << 60)):
        with pytest.raises(octavo.UnknownHandleError) as caught:
            getattr(scheduler, call)(foreign)
        assert caught.value.handle == foreign
    with pytest.raises(TypeError):
        getattr(scheduler, call)(1.5)


@pytest.mark.parametrize(
    "tokens",
    [[], [1, 2], [1.0], [True], [-1], [2**31], np.array([1.0]), np.zeros((1, 1), np.int32), None],
    ids=repr,
)
def test_commit_refuses_wrong_tokens_and_changes_nothing(tokens):
    scheduler = build()
    scheduler.add([1, 2], max_tokens=3)
    plan = scheduler.step(0.0)
    before = scheduler.stats()
    with pytest.raises(octavo.RequestError) as caught:
        scheduler.commit(plan, tokens)
    assert caught.value.argument == "tokens"
    assert scheduler.stats() == before
    assert len(scheduler.commit(plan, np.array([1], np.int64))) == 1


@pytest.mark.parametrize("counts", [[0], [2], [1, 1], [], [1.0], np.array([-1])], ids=repr)
def test_commit_refuses_wrong_counts(counts):
    scheduler = build()
    scheduler.add([1, 2], max_tokens=3)
    plan = scheduler.step(0.0)
    with pytest.raises(octavo.RequestError) as caught:
        scheduler.commit(plan, [1], counts)
    assert caught.value.argument == "counts"
    scheduler.commit(plan, [1], counts=[1])


def test_a_plan_is_committed_once_and_by_its_scheduler():
    scheduler, other = build(), build()
    for each in (scheduler, other):
        each.add([1, 2], max_tokens=3)
    plan, foreign = scheduler.step(0.0), other.step(0.0)
    with pytest.raises(octavo.StateError, match="another"):
        scheduler.commit(foreign, [1])
    scheduler.commit(plan, [1])
    for tokens in ([1], [1.5], [], None):
        with pytest.raises(octavo.StateError, match="committed"):
            scheduler.commit(plan, tokens)


def test_ten_lines_of_the_contract():
    now = iter(range(1_000))
    streamed = []
    sched = octavo.Scheduler(num_blocks=50_000)
    request = sched.add(list(range(100)), max_tokens=256)
    while sched.has_work:
        plan = sched.step(float(next(now)))
        if plan is None:
            pytest.fail("nothing to wait for")
        for seq, tokens in sched.commit(plan, np.zeros(len(plan.sample), np.int32)):
            streamed.append((seq, tokens))
    assert len(streamed) == 256
    assert {seq for seq, _ in streamed} == set(sched.sequences(request))


def test_times_that_no_float_holds_are_request_errors():
    sched = octavo.Scheduler(8)
    for name in ("deadline", "arrival"):
        with pytest.raises(octavo.RequestError) as caught:
            sched.add([1], max_tokens=1, **{name: 10**400})
        assert caught.value.argument == name
    with pytest.raises(octavo.RequestError) as caught:
        sched.step(10**400)
    assert caught.value.argument == "now"
