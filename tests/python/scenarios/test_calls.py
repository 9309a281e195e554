"""Scenarios about calls that must be refused, or answered truthfully."""

from __future__ import annotations

import math
from typing import Any

import pytest

import octavo
from octavo import Reason, RequestError, StaleHandleError, UnknownHandleError
from support.drive import Engine
from support.toy_model import plain_output
from support.views import SCHEDULER_STATS, as_list, stats_view


def test_s013_equal_requests_are_told_apart_by_handles_that_the_core_gives() -> None:
    """No caller chooses an id, so two requests cannot share one; equal ones live side by side.

    Adding the same again right after an abort gives yet another handle.
    """
    engine = Engine(8, 4)
    scheduler = engine.scheduler
    seqs, requests = [], []
    for _ in range(3):
        requests.append(scheduler.add(list(range(8)), max_tokens=3))
        seqs += as_list(scheduler.sequences(requests[-1]))
        engine.outputs[seqs[-1]] = []
        if len(requests) == 1:
            engine.step()
        if len(requests) == 2:
            scheduler.abort(requests[-1])
    assert len({*seqs, *requests}) == 6
    engine.run()
    assert [engine.reasons[seq] for seq in seqs] == [
        Reason.LENGTH,
        Reason.ABORTED,
        Reason.LENGTH,
    ]
    assert engine.outputs[seqs[0]] == engine.outputs[seqs[2]] == plain_output(range(8), 3)
    engine.assert_idle()


def test_s014_a_late_abort_never_hits_the_request_that_came_after() -> None:
    """A request is aborted, ends, and its place is used again; the old handle names nobody.

    Handles carry a generation: the old one is stale, the new request runs to its end.
    """
    engine = Engine(4, 4, max_num_seqs=1)
    old = engine.scheduler.add([1, 2], max_tokens=5)
    engine.scheduler.abort(old)
    engine.scheduler.abort(old)
    new = engine.add([1, 2], max_tokens=2)
    engine.step()
    with_plan_out = engine.begin()
    for call in (engine.scheduler.abort, engine.scheduler.finish):
        with pytest.raises(StaleHandleError) as caught:
            call(old)
        assert caught.value.handle == old
    engine.end(with_plan_out)
    engine.run()
    assert engine.reasons[new] == Reason.LENGTH
    assert engine.outputs[new] == plain_output([1, 2], 2)


def test_s014_handles_of_sequences_are_never_given_twice() -> None:
    """The same for the allocator: after many rounds through one slot every old handle is stale."""
    cache = octavo.KVCache(2, 4)
    seen = []
    for _ in range(200):
        seq = cache.open()
        assert seq not in seen
        seen.append(seq)
        cache.close(seq)
    survivor = cache.open()
    for dead in seen:
        with pytest.raises(StaleHandleError):
            cache.close(dead)
    assert cache.num_computed(survivor) == 0


def test_s014_a_request_and_a_sequence_are_not_taken_for_each_other() -> None:
    """A handle of the wrong kind is unknown, whatever lies in the slot that it would name."""
    scheduler = octavo.Scheduler(4, block_size=4)
    request = scheduler.add([1], max_tokens=1)
    (seq,) = as_list(scheduler.sequences(request))
    with pytest.raises(UnknownHandleError):
        scheduler.tokens(request)
    with pytest.raises(UnknownHandleError):
        scheduler.sequences(seq)
    cache = octavo.KVCache(4)
    with pytest.raises(UnknownHandleError):
        cache.close(request)


def test_s075_an_empty_prompt_is_refused_and_the_engine_goes_on() -> None:
    """A tokenizer without a start token gives nothing; that is a typed error of `add`.

    L12: nothing changed, and the next request is served.
    """
    engine = Engine(4, 4)
    before = stats_view(engine.scheduler.stats(), SCHEDULER_STATS)
    with pytest.raises(RequestError) as caught:
        engine.scheduler.add([], max_tokens=1)
    assert caught.value.argument == "prompt"
    assert stats_view(engine.scheduler.stats(), SCHEDULER_STATS) == before
    assert not engine.scheduler.has_work
    seq = engine.add([1], max_tokens=1)
    engine.run()
    assert engine.reasons[seq] == Reason.LENGTH


@pytest.mark.parametrize(("max_tokens", "emitted"), [(0, 0), (1, 1), (2, 2), (11, 11), (12, 11)])
def test_s078_max_tokens_of_any_size_ends_by_length(max_tokens: int, emitted: int) -> None:
    """Zero computes and publishes the prompt; beyond the model's limit it means up to the limit."""
    engine = Engine(8, 4, max_model_len=16)
    seq = engine.add(range(5), max_tokens=max_tokens)
    engine.run()
    assert engine.reasons[seq] == Reason.LENGTH
    assert engine.outputs[seq] == plain_output(range(5), emitted)
    assert engine.scheduler.match([*range(5), 0]) == 4
    engine.assert_idle()


@pytest.mark.parametrize("min_tokens", [0, 1, 2, 4])
def test_s078_a_stop_token_counts_from_min_tokens_on(min_tokens: int) -> None:
    """Every token is a stop; the output has `min_tokens` of them, but at least the first."""
    engine = Engine(8, 4)
    seq = engine.add(range(3), 6, min_tokens=min_tokens, stop_token_ids=plain_output(range(3), 6))
    engine.run()
    assert engine.reasons[seq] == Reason.STOP
    assert engine.outputs[seq] == plain_output(range(3), max(1, min_tokens))


def test_s078_huge_max_tokens_is_no_arithmetic_accident() -> None:
    """A caller who means "no limit" passes the largest number at hand."""
    engine = Engine(8, 4, max_model_len=16)
    for huge in (2**31 - 1, 2**31, 2**62):
        seq = engine.add(range(14), max_tokens=huge)
        engine.run()
        assert len(engine.outputs[seq]) == 2
    engine.assert_idle()


@pytest.mark.parametrize(
    ("argument", "prompt", "options"),
    [
        ("prompt", range(16), {}),
        ("prompt", range(9), {"num_blocks": 2}),
        ("prompt", [-1], {}),
        ("prompt", [2**31], {}),
        ("max_tokens", [1], {"max_tokens": -1}),
        ("min_tokens", [1], {"min_tokens": 2}),
        ("stop_token_ids", [1], {"stop_token_ids": [-5]}),
        ("n", [1], {"n": 1_000}),
        ("arrival", [1], {"arrival": math.nan}),
        ("deadline", [1], {"deadline": math.inf}),
    ],
)
def test_s075_every_bad_request_is_refused_by_the_name_of_its_argument(
    argument: str, prompt: list[int], options: dict[str, Any]
) -> None:
    """Other inputs of the same kind: each is a `RequestError` that changed nothing (L12)."""
    options = {"num_blocks": 8, "max_tokens": 1} | options
    scheduler = octavo.Scheduler(options.pop("num_blocks"), block_size=4, max_model_len=16)
    before = stats_view(scheduler.stats(), SCHEDULER_STATS)
    with pytest.raises(RequestError) as caught:
        scheduler.add(list(prompt), **options)
    assert caught.value.argument == argument
    assert stats_view(scheduler.stats(), SCHEDULER_STATS) == before


def test_s103_an_argument_that_is_not_supported_is_never_ignored() -> None:
    """Lookahead was accepted and ignored elsewhere; here it is refused, and so is a misspelling."""
    with pytest.raises(octavo.ConfigError) as caught:
        octavo.Scheduler(4, num_lookahead=3)
    assert caught.value.field == "num_lookahead"
    assert "later" in caught.value.range
    misspelt: dict[str, Any] = {"lookahead": 3}
    scheduler = octavo.Scheduler(4)
    with pytest.raises(TypeError):
        scheduler.add([1], max_tokens=1, **misspelt)
    with pytest.raises(TypeError):
        octavo.Scheduler(4, **misspelt)
