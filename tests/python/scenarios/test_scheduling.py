"""Scenarios about admission, budgets and chunks: who runs, how much of it, and in what order."""

from __future__ import annotations

import pytest

from octavo import ConfigError, Reason, RequestError, Scheduler
from support.drive import Engine, older_prompt_beside_two_decodes
from support.toy_model import plain_output
from support.views import as_list


def test_s056_the_queue_is_first_come_first_served_even_past_small_requests() -> None:
    """Pool 8 x 4 with 5 free: H needs 6, L1 and L2 need 1 each. Strict order: H goes first.

    L11: H starts as soon as it fits, and nobody behind it is forgotten. Passing a head that does
    not fit is a setting that is refused by name so far.
    """
    engine = Engine(8, 4)
    runner = engine.add(range(10), max_tokens=3)
    engine.step()
    head = engine.add(range(100, 124), max_tokens=1)
    small = [engine.add([first], max_tokens=1) for first in (200, 300)]
    admissions = []
    engine.run(each=lambda plan: admissions.extend(plan["admitted"]))
    assert admissions == [head, *small]
    first_with_head = next(plan for plan in engine.plans if head in plan["admitted"])
    assert runner in first_with_head["ended"]
    assert set(small) <= set(first_with_head["admitted"]), "what fits beside the head comes along"
    with pytest.raises(ConfigError) as caught:
        Scheduler(8, bypass_limit=1)
    assert caught.value.field == "bypass_limit"


def test_s056_a_runner_that_gives_way_itself_does_not_end_the_pass() -> None:
    """The last decode finds no block and preempts itself; the prompt behind the decodes still runs.

    The failing request was taken out, and the phases that follow are visited all the same.
    """
    engine = Engine(4, 4, max_num_batched_tokens=4, prefix_caching=False)
    decodes = [engine.add(range(first, first + 2), 9, arrival=1.0) for first in (100, 200)]
    engine.step()
    prompt = engine.add(range(6), max_tokens=1, arrival=0.0)
    assert [engine.step()["num_tokens"] for _ in range(2)] == [[1, 1, 2], [1, 1, 2]]
    plan = engine.step()
    assert plan["preempted"] == decodes[1:]
    assert plan["seqs"] == [decodes[0], prompt]
    assert plan["num_tokens"] == [1, 2]
    engine.run()
    assert engine.outputs[prompt] == plain_output(range(6), 1)
    for first, decode in zip((100, 200), decodes, strict=True):
        assert engine.outputs[decode] == plain_output(range(first, first + 2), 9)


def test_s057_admission_is_tried_anew_in_every_step() -> None:
    """A head that did not fit in one step is admitted in the very step that frees its blocks.

    No flag outlives the pass: there is not one idle step in between.
    """
    engine = Engine(8, 4)
    engine.add(range(10), max_tokens=4)
    engine.step()
    head = engine.add(range(100, 124), max_tokens=1)
    plans = [engine.step() for _ in range(4)]
    assert [bool(plan["ended"]) for plan in plans] == [False, False, False, True]
    assert [head in plan["admitted"] for plan in plans] == [False, False, False, True]
    engine.run()
    assert engine.reasons[head] == Reason.LENGTH


@pytest.mark.parametrize("num_rows", [1, 2])
def test_s057_a_row_that_comes_free_is_given_in_the_same_step(num_rows: int) -> None:
    """The same fault with rows in place of blocks: as many admissions as ends, step by step."""
    engine = Engine(16, 4, max_num_seqs=num_rows)
    for index in range(8):
        engine.add([index], max_tokens=1 + index % 3)
    ended_before = 0
    for plan in engine.steps():
        assert len(plan["seqs"]) == min(num_rows, 8 - ended_before)
        ended_before = len(engine.reasons)
    engine.assert_idle()


def test_s060_a_preempted_request_returns_to_its_own_place_in_the_order() -> None:
    """The stated order is by arrival alone: an older request that never started goes first.

    What is computed twice for it is counted.
    """
    engine = Engine(6, 4, prefix_caching=False)
    oldest = engine.add(range(8), max_tokens=9, arrival=0.0)
    late = engine.add(range(100, 111), max_tokens=3, arrival=5.0)
    older = None
    order = []
    for plan in engine.steps():
        order += plan["admitted"] + plan["resumed"]
        if plan["preempted"]:
            assert plan["preempted"] == [late]
            older = engine.add(range(200, 214), max_tokens=1, arrival=1.0)
    assert order == [oldest, late, older, late]
    assert engine.scheduler.stats().recomputed_tokens > 0
    assert engine.outputs[late] == plain_output(range(100, 111), 3)


def test_s060_among_equals_the_preempted_one_goes_before_those_added_later() -> None:
    """With equal arrivals the order of `add` decides, so a resume comes before newer requests."""
    engine = Engine(4, 4, prefix_caching=False)
    first = engine.add(range(7), max_tokens=6)
    second = engine.add(range(100, 107), max_tokens=6)
    third = engine.add(range(200, 203), max_tokens=1)
    order = []
    for plan in engine.steps():
        given = plan["admitted"] + plan["resumed"]
        order += [seq for seq in plan["seqs"] if seq in given]
    assert order == [first, second, second, third]


def test_s063_a_prompt_that_can_never_fit_is_refused_and_blocks_nobody() -> None:
    """Pool 4 x 4: a prompt of 17 is within the length limit, but needs a fifth block.

    L11: refused by `add` with the limit and the excess; the next request runs.
    """
    engine = Engine(4, 4, max_model_len=64)
    with pytest.raises(RequestError) as caught:
        engine.scheduler.add(list(range(17)), max_tokens=1)
    assert caught.value.argument == "prompt"
    assert engine.scheduler.stats().waiting == 0
    barely = engine.add(range(16), max_tokens=1)
    small = engine.add([1, 2], max_tokens=1)
    engine.run()
    assert engine.reasons == {barely: Reason.LENGTH, small: Reason.LENGTH}


@pytest.mark.parametrize("watermark", [0.0, 0.25, 0.99])
def test_s063_the_watermark_never_makes_a_request_impossible(watermark: float) -> None:
    """Blocks kept back count for nothing while nothing runs, so the largest prompt still starts."""
    engine = Engine(4, 4, watermark=watermark)
    seqs = [engine.add(range(16), max_tokens=1), engine.add(range(50, 66), max_tokens=1)]
    engine.run()
    assert [engine.reasons[seq] for seq in seqs] == [Reason.LENGTH] * 2


def test_s065_two_half_cached_requests_cannot_lock_each_other_out() -> None:
    """Pool 10 x 4, A and B need 8 blocks each, 3 and 4 of them cached.

    L11: what an admitted prompt still lacks is kept for it, so only one is let in at a time.
    """
    engine = Engine(10, 4, max_num_batched_tokens=16, long_prefill_threshold=4)
    engine.add(range(12), max_tokens=0)
    engine.add(range(100, 116), max_tokens=0)
    engine.run()
    one = engine.add([*range(12), *range(50, 69)], max_tokens=1)
    two = engine.add([*range(100, 116), *range(150, 165)], max_tokens=1)
    for plan in engine.steps():
        assert not plan["preempted"]
        assert not {one, two} <= set(plan["seqs"])
    assert engine.outputs[one] == plain_output([*range(12), *range(50, 69)], 1)
    assert engine.outputs[two] == plain_output([*range(100, 116), *range(150, 165)], 1)


def test_s065_the_lack_of_prompts_in_progress_is_kept_from_later_admissions() -> None:
    """Two long prompts fit, a third fits now but not beside what the first two still lack."""
    engine = Engine(9, 4, max_num_batched_tokens=16, long_prefill_threshold=4)
    longs = [engine.add(range(first, first + 16), max_tokens=1) for first in (0, 100)]
    late = engine.add(range(200, 206), max_tokens=1)
    first = engine.step()
    assert first["admitted"] == longs
    assert engine.scheduler.stats().available == 7, "2 blocks would do, but 6 are promised"
    engine.run()
    assert all(not plan["preempted"] for plan in engine.plans)
    assert engine.outputs[late] == plain_output(range(200, 206), 1)


def test_s068_a_chunk_shrinks_to_the_room_that_is_left() -> None:
    """Pool 8 x 4: 7 blocks are held when a prompt in progress wants a chunk of 8.

    L10: the chunk is cut to the 4 slots of the last block; nothing is thrown.
    """
    engine = Engine(8, 4, max_num_batched_tokens=11, prefix_caching=False)
    prompts = [range(100, 103), range(200, 203), range(300, 301)]
    decodes = [engine.add(prompt, max_tokens=6) for prompt in prompts]
    engine.step()
    long = engine.add(range(20), max_tokens=1)
    assert engine.step()["num_tokens"] == [1, 1, 1, 8]
    assert engine.scheduler.stats().held == 5
    plan = engine.step()
    assert plan["num_tokens"] == [1, 1, 1, 4], "two decodes took a block each, one was left"
    assert plan["preempted"] == []
    engine.run()
    assert engine.outputs[long] == plain_output(range(20), 1)
    for prompt, decode in zip(prompts, decodes, strict=True):
        assert engine.outputs[decode] == plain_output(prompt, 6)


@pytest.mark.parametrize(("budget", "cap", "num_partial"), [(8, 2, 4), (8, 0, 4), (5, 2, 2)])
def test_s069_every_prompt_in_progress_is_remembered(
    budget: int, cap: int, num_partial: int
) -> None:
    """Budget 8, cap 2, three prompts of 12: all in progress together, none forgotten.

    After every step the tokens computed are the tokens scheduled; all end (L10, L11).
    """
    options = {"max_num_batched_tokens": budget, "long_prefill_threshold": cap}
    engine = Engine(16, 4, max_partial_prefills=num_partial, prefix_caching=False, **options)
    prompts = [range(first, first + 12) for first in (0, 100, 200)]
    seqs = [engine.add(prompt, max_tokens=1) for prompt in prompts]
    computed = dict.fromkeys(seqs, 0)
    most_in_progress = 0
    for plan in engine.steps():
        assert sum(plan["num_tokens"]) <= budget
        for seq, num_tokens in zip(plan["seqs"], plan["num_tokens"], strict=True):
            computed[seq] += num_tokens
        assert engine.scheduler.stats().scheduled_tokens == sum(computed.values())
        in_progress = sum(0 < length < 12 for length in computed.values())
        assert in_progress <= num_partial
        most_in_progress = max(most_in_progress, in_progress)
        if cap:
            assert max(plan["num_tokens"]) <= cap or in_progress <= 1
    assert computed == dict.fromkeys(seqs, 12)
    assert most_in_progress == (min(3, num_partial) if cap else 1)
    assert [engine.outputs[seq] for seq in seqs] == [plain_output(p, 1) for p in prompts]


def test_s069_a_lone_prompt_is_not_capped() -> None:
    """The cap is for the sake of others: with nobody else waiting the budget alone counts."""
    engine = Engine(16, 4, max_num_batched_tokens=8, long_prefill_threshold=2)
    engine.add(range(12), max_tokens=1)
    assert [engine.step()["num_tokens"] for _ in range(2)] == [[8], [4]]


def test_s071_a_chunk_is_cut_with_the_budget_that_is_left_at_last() -> None:
    """Budget 8: two decodes have their tokens, then one loses its place to an older prompt.

    The prompt's chunk is cut with that token back in the budget: 7 and not 6.
    """
    engine, decodes, prompt = older_prompt_beside_two_decodes()
    plan = engine.step()
    assert plan["preempted"] == decodes[1:]
    assert plan["seqs"] == [decodes[0], prompt]
    assert plan["num_tokens"] == [1, 7]
    engine.run()
    assert engine.outputs[prompt] == plain_output(range(16), 1)


@pytest.mark.parametrize("length", [1, 4, 5, 8])
def test_s072_a_prompt_that_is_cached_whole_has_one_token_forced(length: int) -> None:
    """However much of it is cached, a prompt computes at least its last token, which samples.

    L10: and the budget is never burst, whatever the order of prompts.
    """
    engine = Engine(16, 4, max_num_batched_tokens=8)
    engine.add(range(length), max_tokens=1)
    engine.run()
    seq = engine.add(range(length), max_tokens=1)
    step = engine.step()
    assert step["num_tokens"] == [length - (length - 1) // 4 * 4]
    engine.run()
    assert engine.outputs[seq] == plain_output(range(length), 1)


def test_s072_two_prompts_of_six_share_a_budget_of_eight() -> None:
    """With chunks the second prompt fills what the first one leaves."""
    engine = Engine(16, 4, max_num_batched_tokens=8)
    engine.add(range(6), max_tokens=1)
    engine.add(range(10, 16), max_tokens=1)
    assert engine.step()["num_tokens"] == [6, 2]


@pytest.mark.parametrize(
    ("batching", "steps"),
    [
        ("mixed", [[6], [1, 6], [1]]),
        ("continuous", [[6], [6], [1, 1]]),
        ("static", [[6], [1], [6], [1]]),
    ],
)
def test_s072_whole_prompts_never_burst_the_budget(batching: str, steps: list[list[int]]) -> None:
    """Budget 8, prompts of 6 and 6 in one piece: the second waits for a step that takes all of it.

    L10. A lone prompt of 9 is refused by name.
    """
    engine = Engine(16, 4, max_num_batched_tokens=8, max_model_len=8, batching=batching)
    first = engine.add(range(6), max_tokens=2)
    second = engine.add(range(10, 16), max_tokens=2)
    with pytest.raises(RequestError) as caught:
        engine.add(range(9), max_tokens=1)
    assert caught.value.argument == "prompt"
    assert [plan["num_tokens"] for plan in engine.steps()] == steps
    assert engine.outputs[first] == plain_output(range(6), 2)
    assert engine.outputs[second] == plain_output(range(10, 16), 2)


def test_s074_a_prompt_in_chunks_beside_a_growing_decode_has_bounded_restarts() -> None:
    """Pool 8 x 4: a prompt of 20 in chunks of 4 beside a decode that grows block by block.

    L11: the prompt starts again a bounded number of times, and both end with the right tokens.
    """
    engine = Engine(8, 4, max_num_batched_tokens=5, prefix_caching=False)
    decode = engine.add(range(8), max_tokens=20)
    engine.step()
    engine.step()
    prompt = engine.add(range(100, 120), max_tokens=2)
    restarts = 0
    for plan in engine.steps(limit=60):
        restarts += plan["preempted"].count(prompt)
    assert restarts <= 2
    assert engine.outputs[decode] == plain_output(range(8), 20)
    assert engine.outputs[prompt] == plain_output(range(100, 120), 2)


@pytest.mark.parametrize("length", [13, 14, 15])
@pytest.mark.parametrize("num_blocks", [6, 12])
def test_s079_near_the_length_limit_nothing_is_negative_and_nothing_is_beyond(
    length: int, num_blocks: int
) -> None:
    """Limit 16, prompts of 13, 14 and 15, straight and after a preemption.

    L10: at most 16 tokens in all, at least one per plan entry, and the end is by length.
    """
    engine = Engine(num_blocks, 4, max_model_len=16, prefix_caching=False)
    first = engine.add(range(100, 108), max_tokens=8)
    seq = engine.add(range(length), max_tokens=100)
    for plan in engine.steps():
        assert all(num_tokens >= 1 for num_tokens in plan["num_tokens"])
    assert engine.reasons[seq] == Reason.LENGTH
    assert engine.outputs[seq] == plain_output(range(length), 16 - length)
    assert engine.outputs[first] == plain_output(range(100, 108), 8)
    is_crowded = num_blocks == 6 and length < 15
    assert engine.scheduler.stats().preemptions == int(is_crowded)


def test_s079_a_prompt_at_the_limit_is_refused() -> None:
    """A prompt of 16 under a limit of 16 leaves no room for a token."""
    scheduler = Scheduler(16, block_size=4, max_model_len=16)
    with pytest.raises(RequestError) as caught:
        scheduler.add(list(range(16)), max_tokens=1)
    assert caught.value.argument == "prompt"


def test_s080_what_is_left_of_the_budget_is_used() -> None:
    """Budget 8, prompts of 4 and 8, B = 4: the first step computes 8 tokens, not half of that."""
    engine = Engine(16, 4, max_num_batched_tokens=8)
    engine.add(range(4), max_tokens=1)
    engine.add(range(100, 108), max_tokens=1)
    assert engine.step()["num_tokens"] == [4, 4]
    assert engine.step()["num_tokens"] == [4]


def test_s059_priorities_are_recorded_and_change_nothing_under_fcfs() -> None:
    """Under first come, first served no request preempts another for its class, ever."""
    engine = Engine(16, 4, max_num_seqs=1)
    first = engine.add([1], max_tokens=5, priority=5, deadline=99.0)
    second = engine.add([2], max_tokens=5, priority=-5, deadline=0.0)
    order = []
    engine.run(each=lambda plan: order.extend(plan["admitted"]))
    assert order == [first, second]
    assert engine.scheduler.stats().preemptions == 0


@pytest.mark.parametrize("policy", ["priority", "edf"])
def test_s059_equals_never_preempt_each_other(policy: str) -> None:
    """A runs, B of the same class waits for the only row: B has it when A is done, not before."""
    engine = Engine(16, 4, max_num_seqs=1, policy=policy)
    first = engine.add([1], max_tokens=20, priority=3, deadline=9.0)
    engine.step()
    second = engine.add([2], max_tokens=20, priority=3, deadline=9.0)
    engine.run()
    assert list(engine.reasons) == [first, second]
    assert engine.scheduler.stats().preemptions == 0


@pytest.mark.parametrize("policy", ["priority", "edf"])
def test_s059_a_strictly_better_class_preempts_once(policy: str) -> None:
    """B is more urgent than A, which runs in the only row: A gives way once, and ends after B."""
    engine = Engine(16, 4, max_num_seqs=1, policy=policy)
    first = engine.add([1], max_tokens=20, priority=3)
    engine.step()
    second = engine.add([2], max_tokens=20, priority=2, deadline=9.0)
    plan = engine.step()
    assert (plan["preempted"], plan["admitted"]) == ([first], [second])
    engine.run()
    assert list(engine.reasons) == [second, first]
    assert engine.scheduler.stats().preemptions == 1
    assert engine.outputs[first] == plain_output([1], 20)


@pytest.mark.parametrize("policy", ["fcfs", "sjf"])
def test_s059_without_strict_classes_a_row_is_never_taken(policy: str) -> None:
    """Under fcfs and sjf whoever has a row keeps it while blocks suffice, whoever waits."""
    engine = Engine(16, 4, max_num_seqs=1, policy=policy)
    engine.add([1] * 9, max_tokens=20, arrival=5.0)
    engine.step()
    engine.add([2], max_tokens=2, arrival=0.0)
    engine.run()
    assert engine.scheduler.stats().preemptions == 0


def test_s060_arrivals_that_the_caller_gives_decide_before_the_order_of_add() -> None:
    """Requests added in any order are served by arrival; the default is the newest time given."""
    engine = Engine(16, 4, max_num_seqs=1)
    late = engine.add([1], max_tokens=1, arrival=0.75)
    early = engine.add([2], max_tokens=1, arrival=0.25)
    default = engine.add([3], max_tokens=1)
    equal = engine.add([4], max_tokens=1, arrival=1.0)
    order = []
    engine.run(each=lambda plan: order.extend(plan["admitted"]))
    assert order == [early, late, default, equal]
    assert as_list(engine.scheduler.block_tables[0]) == [[0] * 64]


def test_s060_an_older_request_goes_before_a_preempted_one_and_the_lost_work_is_counted() -> None:
    """Pool 6 x 4: A (arrival 5, 4 blocks) is preempted; B (arrival 0) waits and needs 4.

    The order is that of arrival, for the preempted too: B, then A. What A computes again is
    counted.
    """
    engine = Engine(6, 4, prefix_caching=False)
    grower = engine.add(range(7), max_tokens=4, arrival=1.0)
    preempted = engine.add(range(100, 113), max_tokens=3, arrival=5.0)
    engine.step()
    older = engine.add(range(200, 216), max_tokens=1, arrival=0.0)
    assert engine.step()["preempted"] == []
    assert engine.step()["preempted"] == [preempted], "the grower needs its third block"
    order = []
    engine.run(each=lambda plan: order.extend(plan["admitted"] + plan["resumed"]))
    assert order == [older, preempted]
    assert list(engine.reasons) == [grower, older, preempted]
    assert engine.scheduler.stats().recomputed_tokens == 14


def test_s062_requests_that_are_not_ready_take_no_rows() -> None:
    """Two rows, two requests that wait for something outside: a third one runs all the same."""
    engine = Engine(8, 4, max_num_seqs=2)
    waiting = [engine.scheduler.add([first], max_tokens=2, ready=False) for first in (1, 2)]
    local = [engine.add([first], max_tokens=3) for first in (3, 4)]
    for _ in range(3):
        assert engine.step()["seqs"] == local
    assert engine.begin() is None
    assert engine.scheduler.has_work
    for request in waiting:
        engine.outputs[engine.scheduler.sequences(request)[0]] = []
        engine.scheduler.set_ready(request)
    engine.run()
    assert len(engine.reasons) == 4
    engine.assert_idle()


def test_s063_a_reserved_null_block_counts_where_prompts_are_refused() -> None:
    """Pool 4 x 4 with block 0 reserved: a prompt of 13 needs four blocks, and three are usable.

    L11: refused by `add`, by the number of blocks that can be given out; a prompt of 2 runs.
    """
    engine = Engine(4, 4, reserve_null_block=True)
    with pytest.raises(RequestError) as caught:
        engine.scheduler.add(list(range(13)), max_tokens=1)
    assert (caught.value.argument, caught.value.limit, caught.value.excess) == ("prompt", 3, 1)
    small = engine.add([1, 2], max_tokens=1)
    engine.run()
    assert engine.reasons == {small: Reason.LENGTH}


def test_s076_a_turn_of_no_tokens_ends_and_the_next_one_goes_on() -> None:
    """Turn 1 of a conversation ends by a stop as its first token; turn 2 is appended.

    The sequence keeps row and blocks, runs the new tokens, and is never in two places.
    """
    engine = Engine(8, 4)
    request = engine.scheduler.add([1, 2, 3], max_tokens=5, stop_token_ids=[7])
    (seq,) = as_list(engine.scheduler.sequences(request))
    engine.outputs[seq] = []
    engine.step([7])
    assert engine.reasons.pop(seq) == Reason.STOP
    engine.scheduler.extend(request, [4, 5], max_tokens=2)
    plan = engine.step([8])
    assert (plan["seqs"], plan["num_tokens"], plan["admitted"]) == ([seq], [3], [])
    engine.step([9])
    assert engine.reasons == {seq: Reason.LENGTH}
    assert as_list(engine.scheduler.tokens(seq)) == [1, 2, 3, 7, 4, 5, 8, 9]
    assert engine.begin() is None
    engine.assert_idle()


def test_s076_a_turn_that_was_aborted_while_it_waited_goes_on_in_the_queue() -> None:
    """A session whose turn never ran has no row; the next turn puts it into the queue again."""
    engine = Engine(8, 4, max_num_seqs=1)
    engine.add([9, 9], max_tokens=4)
    engine.step()
    request = engine.scheduler.add([1, 2, 3], max_tokens=1)
    (seq,) = as_list(engine.scheduler.sequences(request))
    engine.outputs[seq] = []
    engine.scheduler.abort(request)
    engine.scheduler.extend(request, [4], max_tokens=1)
    assert engine.scheduler.stats().waiting == 1
    engine.step()
    assert engine.reasons.pop(seq) == Reason.ABORTED
    engine.run()
    assert engine.reasons[seq] == Reason.LENGTH
    assert engine.outputs[seq] == plain_output([1, 2, 3, 4], 1)
