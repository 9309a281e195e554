"""Requests in all their forms: keys, requests that are not ready, many at once."""

import math

import numpy as np
import pytest

import octavo


def build(num_blocks=64, **options) -> octavo.Scheduler:
    return octavo.Scheduler(num_blocks, **{"block_size": 4, "max_model_len": 64, **options})


def prompts_of(scheduler: octavo.Scheduler, plan: octavo.StepPlan) -> list[int]:
    """The first token of each sequence in the plan, in its order."""
    return [int(scheduler.tokens(seq)[0]) for seq in plan.seqs]


# --- keys ------------------------------------------------------------------------------------


def test_key_goes_before_the_policy():
    scheduler = build(policy="priority")
    scheduler.add([1], max_tokens=1, priority=-5)
    scheduler.add([2], max_tokens=1, priority=9, key=-7)
    assert prompts_of(scheduler, scheduler.step(0.0)) == [2, 1]


def test_callable_key_is_called_once_with_the_length_of_the_prompt():
    scheduler = build()
    lengths = []

    def shortest_first(length: int) -> float:
        lengths.append(length)
        return float(length)

    scheduler.add([1, 1, 1], max_tokens=1, key=shortest_first)
    scheduler.add([2], max_tokens=1, key=shortest_first)
    assert prompts_of(scheduler, scheduler.step(0.0)) == [2, 1]
    assert lengths == [3, 1]


def test_callable_key_may_use_the_scheduler_itself():
    scheduler = build()

    def first_come(_: int) -> float:
        scheduler.add([2], max_tokens=1)
        return float(scheduler.stats().waiting)

    scheduler.add([1], max_tokens=1, key=first_come)
    assert prompts_of(scheduler, scheduler.step(0.0)) == [2, 1]


def test_callable_key_that_raises_adds_nothing():
    scheduler = build()

    def wrong(length: int) -> float:
        message = f"no key for {length}"
        raise KeyError(message)

    with pytest.raises(KeyError, match="no key for 2"):
        scheduler.add([1, 2], max_tokens=1, key=wrong)
    with pytest.raises(KeyError, match="no key for 1"):
        scheduler.add_many([[1], [1, 2]], max_tokens=1, key=wrong)
    assert scheduler.stats().requests == 0


def test_two_zeros_are_one_key():
    scheduler = build(aging=0.0)
    scheduler.add([1], max_tokens=1, arrival=-1.0, key=0.0)
    scheduler.add([2], max_tokens=1, arrival=-1.0, key=-0.0)
    assert prompts_of(scheduler, scheduler.step(0.0)) == [1, 2]


# --- ready -----------------------------------------------------------------------------------


def test_a_request_that_is_not_ready_costs_a_step_nothing():
    scheduler = build()
    request = scheduler.add([1], max_tokens=1, ready=False)
    assert scheduler.step(0.0) is None
    assert scheduler.has_work
    assert scheduler.stats().waiting == 1
    scheduler.set_ready(request)
    plan = scheduler.step(1.0)
    assert prompts_of(scheduler, plan) == [1]
    scheduler.set_ready(request)
    scheduler.commit(plan, [5])
    scheduler.set_ready(request)
    assert not scheduler.has_work


def test_a_request_keeps_the_place_of_its_arrival_until_it_is_ready():
    scheduler = build()
    first = scheduler.add([1], max_tokens=1, ready=False)
    scheduler.add([2], max_tokens=1)
    scheduler.set_ready(first)
    assert prompts_of(scheduler, scheduler.step(0.0)) == [1, 2]


def test_a_request_that_never_was_ready_can_be_aborted():
    scheduler = build()
    request = scheduler.add([1], max_tokens=1, ready=False)
    scheduler.abort(request)
    scheduler.set_ready(request)
    outcome = scheduler.commit(scheduler.step(0.0), [])
    assert outcome.reasons.tolist() == [octavo.Reason.ABORTED]
    assert scheduler.step(1.0) is None
    with pytest.raises(octavo.StaleHandleError):
        scheduler.set_ready(request)


# --- many ------------------------------------------------------------------------------------


def test_add_many_is_add_one_by_one():
    prompts = [[1, 2, 3], np.array([4], np.int64), range(5, 9)]
    columns = {
        "max_tokens": [3, 1, 2],
        "min_tokens": np.array([1, 0, 2]),
        "priority": (4, -1, 0),
        "deadline": [None, 2.0, np.float32(1.5)],
        "arrival": np.array([0.0, 0.5, 0.25]),
    }
    shared = {"stop_token_ids": [7], "salt": b"s", "adapter": 3, "use_cache": False}
    many, single = build(policy="priority"), build(policy="priority")
    requests = many.add_many(prompts, **columns, **shared)
    assert requests.dtype == np.int64
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    expected = [single.add(p, **row, **shared) for p, row in zip(prompts, rows, strict=True)]
    assert requests.tolist() == expected
    for now in range(4):
        plans = [many.step(now), single.step(now)]
        assert plans[0].buffer.tobytes() == plans[1].buffer.tobytes()
        tokens = [7] * len(plans[0].sample)
        outcomes = [s.commit(p, tokens) for s, p in zip((many, single), plans, strict=True)]
        assert list(outcomes[0]) == list(outcomes[1])
        if not many.has_work:
            break
    assert not single.has_work


def test_add_many_takes_one_value_for_all():
    scheduler = build()
    requests = scheduler.add_many(np.arange(6).reshape(3, 2), max_tokens=1, deadline=3, arrival=-1)
    assert len(requests) == scheduler.stats().waiting == 3
    assert prompts_of(scheduler, scheduler.step(0.0)) == [0, 2, 4]


def test_add_many_of_none_is_none():
    scheduler = build()
    requests = scheduler.add_many([], max_tokens=[])
    assert (requests.dtype, requests.shape) == (np.int64, (0,))
    assert not scheduler.has_work


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("prompts[1]", {"prompts": [[1], []]}),
        ("prompts[1]", {"prompts": [[1], [-1]]}),
        ("prompts[1]", {"prompts": [[1], [1.5], [-1]]}),
        ("prompts[0]", {"prompts": [range(64), [-1]]}),
        ("prompts[0]", {"prompts": [1, 2]}),
        ("prompts[0]", {"prompts": [None]}),
        ("prompts", {"prompts": "ab"}),
        ("prompts", {"prompts": None}),
        ("prompts", {"prompts": iter([[1]])}),
        ("max_tokens", {"max_tokens": -1}),
        ("max_tokens", {"max_tokens": [1]}),
        ("max_tokens[1]", {"max_tokens": [1, -1]}),
        ("max_tokens", {"max_tokens": np.zeros((2, 1), np.int64)}),
        ("min_tokens[1]", {"min_tokens": [1, 9]}),
        ("min_tokens", {"min_tokens": [1, 1.5]}),
        ("priority[0]", {"priority": [2**53 + 1, 0]}),
        ("priority", {"priority": [0, 2**63]}),
        ("priority", {"priority": [0, 0, 0]}),
        ("deadline[1]", {"deadline": [None, math.nan]}),
        ("deadline[1]", {"deadline": [None, "a"]}),
        ("deadline", {"deadline": [1.0]}),
        ("arrival[0]", {"arrival": np.array([math.inf, 1.0])}),
        ("arrival[0]", {"arrival": [True, 1.0]}),
        ("key[0]", {"key": math.nan}),
        ("key[1]", {"key": lambda length: math.inf if length == 2 else 0.0}),
        ("n", {"n": 0}),
        ("stop_token_ids", {"stop_token_ids": [-1]}),
        ("tenant", {"tenant": -1}),
        ("salt", {"salt": "a"}),
        ("extra_keys", {"extra_keys": 3}),
    ],
)
def test_add_many_refuses_all_of_them_by_argument(argument, options):
    scheduler = build()
    with pytest.raises(octavo.RequestError) as caught:
        scheduler.add_many(**{"prompts": [[1], [1, 2]], "max_tokens": 3, **options})
    assert caught.value.argument == argument
    assert scheduler.stats().requests == 0


def test_add_many_of_wrong_types_is_a_type_error():
    scheduler = build()
    for wrong in ({"max_tokens": 1.5}, {"priority": "a"}, {"deadline": "b"}, {"ready": 3}):
        with pytest.raises(TypeError):
            scheduler.add_many(**{"prompts": [[1]], "max_tokens": 1, **wrong})
    with pytest.raises(TypeError):
        scheduler.add_many([[1]])


def test_worst_case_that_never_fits_says_by_how_much():
    scheduler = build(num_blocks=2, reserve="worst_case")
    with pytest.raises(octavo.RequestError) as caught:
        scheduler.add(range(4), max_tokens=6)
    error = caught.value
    assert (error.argument, error.limit, error.excess) == ("max_tokens", 2, 1)
    scheduler.add(range(4), max_tokens=4)


# --- the cache -------------------------------------------------------------------------------


def test_clear_forgets_the_cache_when_nothing_is_held():
    scheduler = build()
    scheduler.add(range(8), max_tokens=1)
    plan = scheduler.step(0.0)
    assert not scheduler.clear()
    scheduler.commit(plan, [1])
    assert not scheduler.clear(), "the blocks of what ended are held until the next step"
    scheduler.step(1.0)
    assert scheduler.match(range(9)) == 8
    assert scheduler.clear()
    assert scheduler.match(range(9)) == 0
    assert scheduler.stats().blank == 64
