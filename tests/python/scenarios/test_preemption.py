"""Scenarios about preemption: who goes, what is withdrawn, and what comes back."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from octavo import Reason
from support.drive import Engine, older_prompt_beside_two_decodes
from support.toy_model import plain_output
from support.views import as_list


def test_s084_a_crowded_pool_completes_everything_with_few_preemptions() -> None:
    """198 requests of the shape that locked a simulator, at a hundredth of its size.

    L11: all complete, no request is preempted more than a few times, and a step looks at the
    blocked head of the queue once, so attempts are bounded by steps.
    """
    engine = Engine(40, 4, max_num_seqs=16, max_num_batched_tokens=64)
    requests = {}
    for index in range(198):
        prompt = [index % 7, index % 11, index, *range(index % 23)]
        length = 1 + index % 19
        requests[engine.add(prompt, max_tokens=length, arrival=index / 8)] = (prompt, length)
    preemptions: Counter[int] = Counter()
    engine.run(limit=2_000, each=lambda plan: preemptions.update(plan["preempted"]))
    assert all(engine.reasons[seq] == Reason.LENGTH for seq in requests)
    assert max(preemptions.values(), default=0) <= 4
    for seq, (prompt, length) in requests.items():
        assert engine.outputs[seq] == plain_output(prompt, length)
    engine.assert_idle()


def test_s085_a_resumed_request_takes_its_hit_first_and_computes_the_rest() -> None:
    """A request with 10 tokens is preempted while its blocks stay cached, and comes back.

    New tokens are all known ones less the hit, at least one; no position runs past the list.
    """
    engine = Engine(5, 4)
    first = engine.add(range(100, 107), max_tokens=3)
    second = engine.add(range(10), max_tokens=4)
    known_at_preemption = None
    for plan in engine.steps():
        if second in plan["preempted"]:
            known_at_preemption = len(engine.scheduler.tokens(second))
        if second in plan["resumed"]:
            (entry,) = (i for i, seq in enumerate(plan["seqs"]) if seq == second)
            resumed_tokens = plan["num_tokens"][entry]
    assert known_at_preemption is not None
    stats = engine.scheduler.stats()
    assert stats.resumed_queries == known_at_preemption
    assert stats.resumed_hits + resumed_tokens == known_at_preemption
    assert resumed_tokens >= 1
    assert stats.resumed_hits > 0
    assert engine.outputs[first] == plain_output(range(100, 107), 3)
    assert engine.outputs[second] == plain_output(range(10), 4)


def test_s087_what_was_already_placed_in_this_step_is_withdrawn_completely() -> None:
    """A decode has its token in the plan, then an older prompt in progress takes its blocks.

    Its tokens, blocks, row and plan entry are gone, and the counters say so.
    """
    engine, decodes, prompt = older_prompt_beside_two_decodes()
    plan = engine.begin()
    assert as_list(plan.preempted) == decodes[1:]
    assert as_list(plan.seqs) == [decodes[0], prompt]
    assert as_list(plan.sample_seqs) == decodes[:1]
    assert plan.num_decodes == 1
    assert as_list(plan.query_start) == [0, 1, 8]
    assert len(plan.token_ids) == len(plan.slot_mapping) == 8
    rows = {change[1] for change in as_list(plan.table_changes)}
    assert rows <= set(as_list(plan.rows))
    stats = engine.scheduler.stats()
    assert (stats.running, stats.waiting, stats.preemptions) == (2, 1, 1)
    assert stats.held == 6, "two of the decode, four of the prompt"
    engine.end(plan)
    assert engine.scheduler.stats().scheduled_tokens == 6 + 8 + 4 + 8
    engine.run()
    for first, decode in zip((100, 200), decodes, strict=True):
        assert engine.outputs[decode] == plain_output(range(first, first + 3), 8)


def test_s088_nobody_is_skipped_when_an_earlier_row_is_taken_out() -> None:
    """Among several prompts in progress and decodes one is preempted in the middle of the pass.

    Everyone who still runs and has budget is in the plan; every sum is that of the final plan.
    """
    engine = Engine(9, 2, max_num_batched_tokens=16, prefix_caching=False)
    seqs = [engine.add(range(10 * index, 10 * index + 4), max_tokens=6) for index in range(4)]
    saw_preemption = False
    for plan in engine.steps():
        running = as_list(engine.scheduler.stats().running)
        if plan["preempted"]:
            saw_preemption = True
            assert not set(plan["preempted"]) & set(plan["seqs"])
        assert plan["num_decodes"] <= len(plan["seqs"])
        assert len(set(plan["rows"])) == len(plan["rows"]) == len(plan["seqs"])
        assert running <= len(plan["seqs"]), "with budget to spare everybody who runs is planned"
    assert saw_preemption
    for index, seq in enumerate(seqs):
        assert engine.outputs[seq] == plain_output(range(10 * index, 10 * index + 4), 6)


def test_s088_the_decode_between_the_requester_and_the_victim_still_runs() -> None:
    """Running [a, b, c] at block ends: a takes c's block, and b behind it is visited all the same.

    Its own need is met from what c left.
    """
    engine = Engine(8, 2, prefix_caching=False)
    seqs = [engine.add([10 * index] * 4, max_tokens=4) for index in range(3)]
    engine.step()
    plan = engine.step()
    assert plan["seqs"] == seqs[:2], "two blocks are left for three that need one"
    assert plan["preempted"] == seqs[2:]
    engine.run()
    assert [engine.reasons[seq] for seq in seqs] == [Reason.LENGTH] * 3


def test_s088_victims_go_one_at_a_time_and_only_as_many_as_needed() -> None:
    """Four rows need a block each, none is left: the last one's two serve the first two.

    The third finds nothing and nobody behind it, and gives way itself; nobody else goes.
    """
    engine = Engine(8, 2, prefix_caching=False)
    seqs = [engine.add([10 * index] * 3, max_tokens=4) for index in range(4)]
    engine.step()
    engine.step()
    plan = engine.step()
    assert plan["preempted"] == [seqs[3], seqs[2]], "a and b share d's two; c gives way itself"
    assert plan["seqs"] == seqs[:2]
    engine.run()
    engine.assert_idle()


@pytest.mark.parametrize("length", [9, 10, 11, 12])
def test_s091_a_lone_request_that_cannot_grow_ends_by_capacity(length: int) -> None:
    """Pool 3 x 4, one request on its way to 13 tokens: it ends, and the engine lives.

    The tokens that it could compute are all given out.
    """
    engine = Engine(3, 4)
    seq = engine.add(range(length), max_tokens=50)
    engine.run()
    assert engine.reasons[seq] == Reason.CAPACITY
    assert engine.scheduler.stats().preemptions == 0
    assert engine.outputs[seq] == plain_output(range(length), 13 - length)
    after = engine.add([1, 2, 3], max_tokens=2)
    engine.run()
    assert engine.reasons[after] == Reason.LENGTH
    engine.assert_idle()


def test_s091_the_last_of_several_is_preempted_and_only_the_survivor_ends_by_capacity() -> None:
    """Two grow in a pool for one: the younger waits, the older reaches the end of the pool.

    Afterwards the younger has the pool for itself, up to the same end.
    """
    engine = Engine(3, 4)
    first, second = (engine.add([seed], max_tokens=50) for seed in (1, 2))
    engine.run()
    assert engine.reasons == {first: Reason.CAPACITY, second: Reason.CAPACITY}
    assert engine.outputs[first] == plain_output([1], 12)
    assert engine.outputs[second] == plain_output([2], 12)
    assert engine.scheduler.stats().preemptions >= 1


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 8, 40])
@pytest.mark.parametrize("num_different", [2, 7])
def test_s094_every_block_a_row_has_was_told_before_it_is_used(
    budget: int, num_different: int
) -> None:
    """Prompts that are multiples of the block size, decodes that gain a block and are dropped.

    L8: replaying all changes from nothing gives the tables of the rows that run, whether a block
    was added, lost with its row or merged into an equal one. The model reads through that replay
    only.
    """
    engine = Engine(9, 4, max_num_seqs=4, max_num_batched_tokens=budget)
    prompts = [
        range(100 * (index % num_different), 100 * (index % num_different) + 4 * (1 + index % 3))
        for index in range(9)
    ]
    seqs = [engine.add(prompt, max_tokens=6) for prompt in prompts]
    engine.run(each=lambda plan: _check_mirror(engine, plan))
    for seq, prompt in zip(seqs, prompts, strict=True):
        assert engine.outputs[seq] == plain_output(prompt, 6)


def _check_mirror(engine: Engine, plan: dict[str, Any]) -> None:
    tables = as_list(engine.scheduler.block_tables[0])
    for row, length in zip(plan["rows"], plan["seq_lens"], strict=True):
        num_blocks = -(-length // 4)
        assert engine.model.mirror.row(row, num_blocks) == tables[row][:num_blocks]
        assert not any(tables[row][num_blocks:])


def test_s094_a_merge_is_told_with_the_next_plan() -> None:
    """Two equal prompts of one block are computed at once; the second row's block is replaced."""
    engine = Engine(8, 4)
    for _ in range(2):
        engine.add([1, 2, 3, 4, 5], max_tokens=3)
    first = engine.step()
    merged = next(change for change in first["table_changes"] if change[1:3] == [1, 0])
    kept = next(change for change in first["table_changes"] if change[1:3] == [0, 0])
    assert kept[3] != merged[3]
    assert engine.scheduler.stats().merged_blocks == 1
    second = engine.step()
    assert second["table_changes"] == [[0, 1, 0, kept[3]]]


def test_s082_the_tokens_computed_twice_are_a_reported_number() -> None:
    """Without a cache a preempted request computes all it had again: exactly that is counted."""
    engine = Engine(4, 4, prefix_caching=False)
    engine.add(range(7), max_tokens=6)
    late = engine.add(range(50, 57), max_tokens=3)
    lost = 0
    for plan in engine.steps():
        if late in plan["preempted"]:
            lost = len(engine.scheduler.tokens(late)) - 1
    assert lost > 0
    assert engine.scheduler.stats().preemptions == 1
    assert engine.scheduler.stats().recomputed_tokens == lost


@pytest.mark.parametrize(
    ("victim", "goes", "lost"),
    [("latest", 3, 10), ("least_computed", 1, 2), ("lowest_class", 2, 26)],
)
def test_s082_the_victim_policy_decides_how_much_is_lost(victim: str, goes: int, lost: int) -> None:
    """Beside the requester run 1, 7 and 3 blocks; it needs one more: who goes is a setting.

    The last in order loses 3 blocks, who has computed least loses 1, the lowest class loses 7.
    """
    engine = Engine(12, 4, prefix_caching=False, victim=victim, aging=1.0)
    # Aging makes the order that of arrival, whatever the classes.
    seqs = [
        engine.add(range(length), max_tokens=2, arrival=10.0 * place, key=key)
        for place, (length, key) in enumerate([(4, 0), (2, 1), (26, 2), (10, 0)])
    ]
    assert engine.step()["seqs"] == seqs
    plan = engine.step()
    assert plan["preempted"] == [seqs[goes]]
    assert plan["seqs"] == [seq for seq in seqs if seq != seqs[goes]]
    engine.run()
    assert engine.scheduler.stats().recomputed_tokens == lost


def test_s087_a_decode_already_in_the_plan_gives_way_to_a_better_class() -> None:
    """Two decodes are placed, then a more urgent request takes the row of the later one.

    Its token, row and plan entry are gone; its budget is the newcomer's.
    """
    engine = Engine(8, 4, max_num_seqs=2, max_num_batched_tokens=6, policy="priority")
    first, second = (engine.add([number] * 3, max_tokens=4, priority=5) for number in (1, 2))
    engine.step()
    urgent = engine.add(range(5), max_tokens=1, priority=0)
    plan = engine.begin()
    assert as_list(plan.seqs) == as_list(plan.sample_seqs) == [first, urgent]
    assert as_list(plan.preempted) == [second]
    assert as_list(plan.num_tokens) == [1, 5]
    assert plan.num_decodes == 1
    assert as_list(plan.rows) == [0, 1]
    assert len(plan.token_ids) == 6
    engine.end(plan)
    engine.run()
    assert engine.outputs[second] == plain_output([2] * 3, 4)
    assert engine.scheduler.stats().scheduled_tokens == 6 + 6 + 4 + 1 + 1 + 1 + 1


def test_s088_a_requester_that_goes_itself_does_not_end_the_pass() -> None:
    """Running [a, b, c], none is free; b needs a block and has least to lose: c still runs."""
    engine = Engine(6, 4, victim="least_computed", prefix_caching=False)
    lengths = (6, 4, 10)
    a, b, c = (engine.add(range(length), max_tokens=2) for length in lengths)
    assert engine.step()["seqs"] == [a, b, c]
    plan = engine.step()
    assert plan["preempted"] == [b]
    assert plan["seqs"] == [a, c]
    engine.run()
    assert list(engine.reasons) == [a, c, b]


def test_s088_prompts_in_progress_run_behind_a_decode_that_goes_itself() -> None:
    """A decode at a block's end has least to lose; the prompt behind it owns its blocks."""
    engine = Engine(5, 4, victim="least_computed", prefix_caching=False, max_num_batched_tokens=17)
    decode = engine.add(range(4), max_tokens=2)
    prompt = engine.add(range(15), max_tokens=1)
    assert engine.step()["num_tokens"] == [4, 13]
    plan = engine.step()
    assert plan["preempted"] == [decode]
    assert (plan["seqs"], plan["num_tokens"]) == ([prompt], [2])
    engine.run()
    assert list(engine.reasons) == [prompt, decode]


def test_s088_nobody_is_preempted_who_would_come_back_before_the_candidate() -> None:
    """By aging the one that runs, of a worse class, has the better place in the order.

    Preempted, it would be the queue's head again at once, and the two would take turns for ever.
    """
    engine = Engine(8, 4, max_num_seqs=1, policy="priority", aging=10.0)
    victim = engine.add([1], max_tokens=4, priority=1, arrival=0.0)
    engine.step()
    urgent = engine.add([2], max_tokens=2, priority=0, arrival=1.0)
    plan = engine.step()
    assert (plan["preempted"], plan["seqs"]) == ([], [victim])
    engine.run()
    assert list(engine.reasons) == [victim, urgent]
    assert engine.scheduler.stats().preemptions == 0


def test_s081_blocks_that_a_step_in_flight_keeps_are_coming_and_choose_no_second_victim() -> None:
    """Pool 8 x 4, four runners with two blocks each, two plans out; all need a third at once.

    The first asks: the last is preempted, and its two blocks are parked until the plans that name
    it are committed. They count as coming, for the first and the second; only the third, for whom
    none is left, gives up its own. Nobody is preempted again while they come.
    """
    engine = Engine(8, 4, inflight_steps=2, prefix_caching=False)
    seqs = [engine.add(range(10 * n, 10 * n + 7), max_tokens=8) for n in range(4)]
    first = engine.scheduler.step(1.0)
    second = engine.scheduler.step(1.0)
    assert as_list(second.seq_lens) == [8] * 4
    engine.scheduler.commit(first, [1] * 4)
    third = engine.scheduler.step(2.0)
    assert (as_list(third.preempted), as_list(third.seqs)) == ([seqs[3], seqs[2]], [])
    assert engine.scheduler.stats().fenced == 4
    engine.scheduler.commit(second, [2] * 4)
    engine.scheduler.commit(third, [])
    fourth = engine.scheduler.step(3.0)
    assert (as_list(fourth.preempted), as_list(fourth.seqs)) == ([], seqs[:2])
    assert engine.scheduler.stats().preemptions == 2
    engine.scheduler.audit()


def test_s081_a_step_that_only_waits_for_parked_blocks_preempts_nobody() -> None:
    """As above with enough blocks coming for both that ask: no further victim, step after step."""
    engine = Engine(7, 4, inflight_steps=3, prefix_caching=False)
    asks = engine.add(range(7), max_tokens=8)
    late = engine.add(range(50, 66), max_tokens=8)
    plans = [engine.scheduler.step(1.0) for _ in range(2)]
    engine.scheduler.commit(plans.pop(0), [1, 1])
    plans.append(engine.scheduler.step(2.0))
    assert (as_list(plans[-1].preempted), as_list(plans[-1].seqs)) == ([late], [])
    assert engine.scheduler.step(3.0) is None
    assert engine.scheduler.stats().preemptions == 1
    engine.scheduler.commit(plans.pop(0), [1, 1])
    assert as_list(engine.scheduler.step(4.0).seqs) == [asks]
