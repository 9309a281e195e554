"""Several sequences of one prompt, and conversations that go on."""

import pytest

import octavo


def build(**options):
    settings = {"block_size": 4, "max_num_seqs": 4, "max_model_len": 64}
    return octavo.Scheduler(32, **{**settings, **options})


def test_sequences_fork_when_the_prompt_is_computed_and_copy_the_tail():
    scheduler = build()
    seqs = list(scheduler.sequences(scheduler.add([1, 2, 3, 4, 5, 6], max_tokens=3, n=3)))
    plan = scheduler.step(0.0)
    assert (plan.seqs.tolist(), plan.admitted.tolist()) == ([seqs[0]], [seqs[0]])
    assert (plan.sample.tolist(), plan.sample_seqs.tolist()) == ([5, 5, 5], seqs)
    assert plan.sample_indptr.tolist() == [0, 1, 2, 3]
    outcome = scheduler.commit(plan, [10, 20, 30])
    assert {seq: list(tokens) for seq, tokens in outcome} == dict(
        zip(seqs, ([10], [20], [30]), strict=True)
    )
    scheduler.audit()
    plan = scheduler.step(1.0)
    assert (plan.seqs.tolist(), plan.admitted.tolist()) == (seqs, seqs[1:])
    # The first block is shared; of the second, two copy the two tokens and one writes in place.
    tables = scheduler.block_tables[0][plan.rows, :2].tolist()
    assert [table[0] for table in tables] == [0, 0, 0]
    assert plan.copies.tolist() == [[1, tables[0][1], 2], [1, tables[1][1], 2]]
    assert tables[2][1] == 1
    assert plan.slot_mapping.tolist() == [table[1] * 4 + 2 for table in tables]
    assert plan.token_ids.tolist() == [10, 20, 30]
    scheduler.audit()
    scheduler.commit(plan, [11, 21, 31])
    plan = scheduler.step(2.0)
    assert plan.copies.tolist() == []
    outcome = scheduler.commit(plan, [12, 22, 32])
    assert outcome.finished.tolist() == seqs
    assert scheduler.tokens(seqs[1]).tolist() == [1, 2, 3, 4, 5, 6, 20, 21, 22]
    scheduler.step(3.0)
    assert scheduler.stats().available == 32


def test_the_next_sequence_takes_over_from_an_aborted_first_one():
    scheduler = build(max_num_batched_tokens=4)
    request = scheduler.add([1, 2, 3, 4, 5, 6], max_tokens=1, n=2)
    first, second = scheduler.sequences(request)
    plan = scheduler.step(0.0)
    scheduler.abort(first)
    outcome = scheduler.commit(plan, [])
    assert outcome.finished.tolist() == [first]
    plan = scheduler.step(1.0)
    assert (plan.seqs.tolist(), plan.admitted.tolist()) == ([second], [second])
    assert (plan.ended.tolist(), plan.table_changes.tolist()) == ([first], [[0, 0, 1, 1]])
    assert plan.positions.tolist() == [4, 5]
    outcome = scheduler.commit(plan, [9])
    assert outcome.finished.tolist() == [second]
    scheduler.audit()


def test_admission_takes_a_row_for_each_sequence():
    scheduler = build(max_num_seqs=3)
    scheduler.add([1, 2], max_tokens=4)
    scheduler.add([3, 4], max_tokens=4, n=3)
    scheduler.add([5, 6], max_tokens=4)
    plan = scheduler.step(0.0)
    assert len(plan.seqs) == 1, "three rows are not free, and who is behind waits as well"


def test_all_sequences_of_a_prompt_that_samples_nothing_end():
    scheduler = build()
    seqs = list(scheduler.sequences(scheduler.add([1, 2, 3], max_tokens=0, n=2)))
    plan = scheduler.step(0.0)
    assert plan.sample.tolist() == []
    outcome = scheduler.commit(plan, [])
    assert (outcome.finished.tolist(), set(outcome.reasons.tolist())) == (seqs, {1})
    scheduler.step(1.0)
    with pytest.raises(octavo.StaleHandleError):
        scheduler.tokens(seqs[1])


def test_a_conversation_goes_on_with_its_blocks():
    scheduler = build()
    request = scheduler.add([1, 2, 3, 4, 5], max_tokens=2)
    (seq,) = scheduler.sequences(request)
    scheduler.commit(scheduler.step(0.0), [6])
    outcome = scheduler.commit(scheduler.step(1.0), [7])
    assert outcome.finished.tolist() == [seq]
    scheduler.extend(request, [8, 9], max_tokens=1)
    plan = scheduler.step(2.0)
    # The last token of the turn before is computed with the new ones; the tail is written on.
    assert (plan.token_ids.tolist(), plan.positions.tolist()) == ([7, 8, 9], [6, 7, 8])
    assert (plan.rows.tolist(), plan.num_decodes, plan.admitted.tolist()) == ([0], 0, [])
    assert plan.slot_mapping.tolist() == [6, 7, 8]
    outcome = scheduler.commit(plan, [10])
    assert outcome.finished.tolist() == [seq]
    assert scheduler.tokens(seq).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    scheduler.step(3.0)
    with pytest.raises(octavo.StaleHandleError):
        scheduler.extend(request, [1], max_tokens=1)


def test_what_cannot_be_extended_is_named():
    scheduler = build()
    request = scheduler.add([1, 2, 3, 4, 5], max_tokens=1)
    with pytest.raises(octavo.StateError, match="ended"):
        scheduler.extend(request, [6], max_tokens=1)
    scheduler.commit(scheduler.step(0.0), [6])
    for tokens, argument in (([], "tokens"), ([-1], "tokens"), (range(60), "tokens")):
        with pytest.raises(octavo.RequestError) as caught:
            scheduler.extend(request, tokens, max_tokens=1)
        assert caught.value.argument == argument
    several = scheduler.add([1], max_tokens=1, n=2)
    with pytest.raises(octavo.RequestError) as caught:
        scheduler.extend(several, [1], max_tokens=1)
    assert caught.value.argument == "request"
    with pytest.raises(octavo.UnknownHandleError):
        scheduler.extend(scheduler.sequences(request)[0], [1], max_tokens=1)


def test_a_turn_that_the_engine_finished_goes_on_and_its_end_is_told():
    scheduler = build()
    request = scheduler.add([1, 2, 3], max_tokens=9)
    (seq,) = scheduler.sequences(request)
    scheduler.commit(scheduler.step(0.0), [4])
    scheduler.finish(request)
    scheduler.extend(request, [5], max_tokens=1)
    outcome = scheduler.commit(scheduler.step(1.0), [6])
    assert outcome.finished.tolist() == [seq, seq]
    assert outcome.reasons.tolist() == [octavo.Reason.FINISHED, octavo.Reason.LENGTH]
    assert scheduler.tokens(seq).tolist() == [1, 2, 3, 4, 5, 6]
    scheduler.step(2.0)
    assert not scheduler.has_work


def test_worst_case_takes_one_sequence_a_request():
    with pytest.raises(octavo.RequestError) as caught:
        build(reserve="worst_case").add([1], max_tokens=1, n=2)
    assert caught.value.argument == "n"


def test_twins_are_kept_and_the_canonical_block_is_held():
    scheduler = build(dedupe=False)
    prompt = [1, 2, 3, 4, 5]
    for _ in range(2):
        scheduler.add(prompt, max_tokens=2)
    scheduler.commit(scheduler.step(0.0), [6, 6])
    plan = scheduler.step(1.0)
    tables = scheduler.block_tables[0][:2, 0].tolist()
    assert tables == [0, 2], "each keeps its own block"
    assert plan.table_changes.tolist() == []
    stats = scheduler.stats()
    assert (stats.published_blocks, stats.merged_blocks) == (1, 0)
    scheduler.audit()
    scheduler.commit(plan, [7, 7])
    scheduler.step(2.0)
    assert (scheduler.stats().cached, scheduler.stats().available) == (1, 32)


def test_the_null_block_is_never_given_out():
    scheduler = build(reserve_null_block=True)
    scheduler.add(range(1, 9), max_tokens=2)
    assert scheduler.step(0.0).kv_indices.tolist() == [1, 2]
    assert scheduler.stats().usable == 31
    with pytest.raises(octavo.RequestError) as caught:
        octavo.Scheduler(2, block_size=2, reserve_null_block=True).add([1, 2, 3], max_tokens=1)
    assert caught.value.argument == "prompt"


def test_a_pin_keeps_a_prefix_and_expires_by_steps():
    scheduler = build()
    scheduler.add(range(9), max_tokens=1)
    scheduler.commit(scheduler.step(0.0), [1])
    pin = scheduler.pin(range(9), expires=2)
    scheduler.step(1.0)
    assert (scheduler.stats().held, scheduler.stats().cached) == (2, 0)
    scheduler.step(2.0)
    assert (scheduler.stats().held, scheduler.stats().cached) == (0, 2)
    with pytest.raises(octavo.StaleHandleError):
        scheduler.unpin(pin)
    scheduler.new_epoch()
    assert scheduler.match(range(9)) == 0
    assert scheduler.stats().blank == 32


@pytest.mark.parametrize("batching", ["mixed", "static", "continuous"])
def test_what_is_cached_below_an_abandoned_twin_is_found_no_more(batching):
    scheduler = octavo.Scheduler(
        10,
        block_size=1,
        dedupe=False,
        batching=batching,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=64,
    )

    def run(count):
        for _ in range(count):
            plan = scheduler.step(0.0)
            if plan is not None:
                scheduler.commit(plan, [1 + plan.number] * len(plan.sample_seqs))
            scheduler.audit()

    scheduler.add([0], max_tokens=1)
    run(2)
    request = scheduler.add([0], max_tokens=9)
    (seq,) = scheduler.sequences(request)
    run(3)
    # Its own block of token 0 has a twin, and its next one is published below that twin.
    known = scheduler.tokens(seq).tolist()
    below = scheduler.add([*known[:2], 77, 78], max_tokens=0)
    if batching == "static":
        scheduler.abort(below)
    else:
        run(2)
        assert scheduler.match([*known[:2], 77, 78, 79]) >= 2
    scheduler.finish(request)
    scheduler.extend(request, [7] * (10 - len(scheduler.tokens(seq))), max_tokens=0)
    run(8)
    assert not scheduler.has_work


def test_followers_have_the_prompt_before_they_fork():
    scheduler = build()
    request = scheduler.add(range(30), max_tokens=2, n=4)
    first, second, *others = scheduler.sequences(request)
    scheduler.abort(first)
    for seq in (first, second, *others):
        assert scheduler.tokens(seq).tolist() == list(range(30))
    plan = scheduler.step(0.0)
    assert plan.seqs.tolist() == [second]
    scheduler.commit(plan, [1, 2, 3])
    assert scheduler.tokens(others[1]).tolist() == [*range(30), 3]


def test_a_turn_that_finds_too_little_budget_keeps_others_from_joining():
    scheduler = octavo.Scheduler(
        256,
        block_size=4,
        batching="mixed",
        max_num_seqs=8,
        max_num_batched_tokens=32,
        max_model_len=32,
    )
    request = scheduler.add([1], max_tokens=1)
    (seq,) = scheduler.sequences(request)
    for index in range(6):
        scheduler.add([5], max_tokens=4 + index)
    scheduler.commit(scheduler.step(0.0), [2] * 7)
    # 30 tokens to compute, and 6 decodes before them in every step.
    scheduler.extend(request, [3] * 29, max_tokens=1)
    for _ in range(8):
        scheduler.add([5], max_tokens=8)
        plan = scheduler.step(0.0)
        seqs = plan.seqs.tolist()
        scheduler.commit(plan, [2] * len(plan.sample_seqs))
        if seq in seqs:
            break
    else:
        pytest.fail("the turn never ran")
    scheduler.audit()


def test_a_family_that_can_never_be_computed_ends_as_a_whole():
    scheduler = octavo.Scheduler(
        4, block_size=2, max_num_batched_tokens=2, max_num_seqs=3, max_model_len=32, watermark=0.0
    )
    scheduler.add([1, 2, 3, 4], max_tokens=0)
    for _ in range(2):
        scheduler.commit(scheduler.step(0.0), [])
    seqs = list(scheduler.sequences(scheduler.add(range(10, 16), max_tokens=3, n=2)))
    scheduler.commit(scheduler.step(0.0), [])
    # What was available when it was admitted is pinned now, all but one block.
    pin = scheduler.pin([1, 2, 3, 4])
    scheduler.commit(scheduler.step(0.0), [])
    plan = scheduler.step(0.0)
    assert (plan.seqs.tolist(), plan.ended.tolist()) == ([], seqs)
    outcome = scheduler.commit(plan, [])
    assert outcome.finished.tolist() == seqs
    assert set(outcome.reasons.tolist()) == {octavo.Reason.CAPACITY}
    scheduler.unpin(pin)
    scheduler.audit()
    scheduler.add([7], max_tokens=1, n=3)
    assert scheduler.step(1.0).sample.tolist() == [0, 0, 0], "all rows are free again"
