"""Several plans out: tokens not yet known, late stops, cancelled plans."""

import numpy as np
import pytest

import octavo


def build(**options):
    settings = {"block_size": 4, "max_num_seqs": 4, "max_model_len": 64, "inflight_steps": 2}
    return octavo.Scheduler(32, **{**settings, **options})


def test_a_second_step_goes_on_from_what_the_first_will_have_computed():
    scheduler = build()
    (seq,) = scheduler.sequences(scheduler.add([5, 6, 7], max_tokens=3))
    first = scheduler.step(0.0)
    second = scheduler.step(0.0)
    assert scheduler.step(0.0) is None
    assert (first.token_ids.tolist(), first.sample.tolist()) == ([5, 6, 7], [2])
    assert (second.token_ids.tolist(), second.positions.tolist()) == ([0], [3])
    assert second.token_source.tolist() == [[0, first.number, 0]]
    assert (second.num_decodes, second.seq_lens.tolist()) == (1, [4])
    scheduler.commit(first, [8])
    third = scheduler.step(1.0)
    assert third.token_source.tolist() == [[0, second.number, 0]]
    scheduler.commit(second, [9])
    # Its third token is the last: nothing is planned behind it.
    assert scheduler.step(2.0) is None
    outcome = scheduler.commit(third, [10])
    assert (outcome.finished.tolist(), outcome.reasons.tolist()) == ([seq], [octavo.Reason.LENGTH])
    assert scheduler.tokens(seq).tolist() == [5, 6, 7, 8, 9, 10]
    scheduler.audit()


def test_tokens_behind_a_late_stop_are_ignored_and_their_blocks_wait():
    scheduler = build(prefix_caching=False)
    (seq,) = scheduler.sequences(scheduler.add([5, 6, 7], max_tokens=9, stop_token_ids=[1]))
    first, second = scheduler.step(0.0), scheduler.step(0.0)
    outcome = scheduler.commit(first, [1])
    assert outcome.finished.tolist() == [seq]
    assert scheduler.step(1.0) is None
    # Released, but the second plan still writes there.
    assert (scheduler.stats().fenced, scheduler.stats().blank) == (1, 31)
    outcome = scheduler.commit(second, [7])
    assert (len(outcome), outcome.finished.tolist()) == (0, [])
    assert scheduler.stats().blank == 32
    assert not scheduler.has_work
    scheduler.audit()


def test_a_row_is_given_again_only_when_no_plan_names_it():
    scheduler = build(max_num_seqs=1)
    first_request = scheduler.add([5], max_tokens=9)
    plan = scheduler.step(0.0)
    scheduler.abort(first_request)
    scheduler.add([6], max_tokens=1)
    assert scheduler.step(1.0) is None, "the row is named by a plan that is out"
    scheduler.commit(plan, [1])
    assert scheduler.step(2.0).rows.tolist() == [0]


def test_cancel_voids_a_plan_and_all_newer_ones():
    scheduler = build(inflight_steps=3)
    (one,) = scheduler.sequences(scheduler.add([5, 6, 7, 8], max_tokens=5))
    plans = [scheduler.step(0.0) for _ in range(3)]
    (two,) = scheduler.sequences(scheduler.add([1, 2], max_tokens=2))
    scheduler.commit(plans[0], [9])
    plans.append(scheduler.step(1.0))
    assert plans[3].seqs.tolist() == [one, two]
    scheduler.cancel(plans[2])
    for void in plans[2:]:
        with pytest.raises(octavo.StateError, match="cancelled"):
            scheduler.commit(void, [1] * 2)
        with pytest.raises(octavo.StateError, match="cancelled"):
            scheduler.cancel(void)
        with pytest.raises(octavo.StateError, match="cancelled"):
            _ = void.seqs
    # Its last good plan is still out, so only the other one can run.
    plan = scheduler.step(2.0)
    assert plan.preempted.tolist() == [one, two]
    assert plan.seqs.tolist() == []
    scheduler.commit(plans[1], [10])
    scheduler.commit(plan, [])
    assert scheduler.tokens(one).tolist() == [5, 6, 7, 8, 9, 10]
    plan = scheduler.step(3.0)
    assert plan.resumed.tolist() == [one, two]
    assert scheduler.match([5, 6, 7, 8, 9]) == 4, "what was committed stays published"
    scheduler.audit()


def test_a_committed_plan_cannot_be_cancelled():
    scheduler = build()
    scheduler.add([5], max_tokens=2)
    plan = scheduler.step(0.0)
    scheduler.commit(plan, [1])
    with pytest.raises(octavo.StateError, match="committed"):
        scheduler.cancel(plan)
    other = build()
    with pytest.raises(octavo.StateError, match="another scheduler"):
        other.cancel(plan)


def test_plans_are_committed_oldest_first():
    scheduler = build()
    scheduler.add([5], max_tokens=4)
    first, second = scheduler.step(0.0), scheduler.step(0.0)
    with pytest.raises(octavo.StateError, match="oldest"):
        scheduler.commit(second, [1])
    scheduler.commit(first, [1])
    scheduler.commit(second, [2])


def test_compressed_tables_are_those_of_the_newest_step():
    scheduler = build()
    scheduler.add([5, 6, 7], max_tokens=4)
    first = scheduler.step(0.0)
    assert first.kv_indices.tolist() == [0]
    second = scheduler.step(0.0)
    with pytest.raises(octavo.StateError, match="next step"):
        _ = first.kv_indices
    assert (second.kv_indptr.tolist(), second.kv_last_page_len.tolist()) == ([0, 1], [4])


def test_a_plan_crosses_to_another_process_by_its_buffer():
    scheduler = build()
    scheduler.add([5, 6, 7], max_tokens=4)
    plans = [scheduler.step(0.0), scheduler.step(0.0)]
    for plan in plans:
        for buffer in (plan.buffer, bytes(plan.buffer), bytearray(plan.buffer)):
            read = octavo.StepPlan.from_buffer(buffer)
            assert read.layout == plan.layout
            assert (read.number, read.num_decodes) == (plan.number, plan.num_decodes)
            for name in plan.layout:
                assert np.array_equal(getattr(read, name), getattr(plan, name)), name
        with pytest.raises(octavo.StateError, match="buffer"):
            scheduler.commit(read, [1])
        with pytest.raises(octavo.StateError, match="buffer"):
            _ = read.kv_indices
    for bad in (b"", bytes(8), bytes(plans[0].buffer)[:-8], np.zeros((2, 2), np.uint8), "x", 3):
        with pytest.raises(octavo.RequestError) as caught:
            octavo.StepPlan.from_buffer(bad)
        assert caught.value.argument == "buffer"


def test_out_takes_the_buffer_where_it_fits():
    scheduler = build()
    scheduler.add([5, 6, 7], max_tokens=4)
    out = np.zeros(4096, np.uint8)
    plan = scheduler.step(0.0, out=out)
    assert plan.in_out
    assert np.shares_memory(plan.buffer, out)
    assert np.shares_memory(plan.token_ids, out)
    assert plan.token_ids.tolist() == [5, 6, 7]
    assert octavo.StepPlan.from_buffer(out[: plan.buffer.size]).seqs.tolist() == plan.seqs.tolist()
    small = np.zeros(64, np.uint8)
    second = scheduler.step(0.0, out=small)
    assert not second.in_out
    assert not small.any()
    assert second.positions.tolist() == [3]


@pytest.mark.parametrize(
    "out",
    [
        np.zeros(64, np.int32),
        np.zeros((8, 8), np.uint8),
        np.zeros(128, np.uint8)[::2],
        np.zeros(65, np.uint8)[1:],
        bytearray(64),
        3,
    ],
)
def test_out_of_another_kind_is_refused_and_nothing_changes(out):
    scheduler = build()
    scheduler.add([5], max_tokens=4)
    with pytest.raises(octavo.RequestError) as caught:
        scheduler.step(0.0, out=out)
    assert caught.value.argument == "out"
    assert scheduler.stats().steps == 0
    frozen = np.zeros(64, np.uint8)
    frozen.flags.writeable = False
    with pytest.raises(octavo.RequestError):
        scheduler.step(0.0, out=frozen)


def test_padding_fills_up_to_a_captured_size():
    scheduler = build(inflight_steps=1)
    for prompt in ([5, 6], [7]):
        scheduler.add(prompt, max_tokens=4)
    scheduler.commit(scheduler.step(0.0), [1, 2])
    plan = scheduler.step(1.0)
    padded = octavo.pad(plan, 4)
    assert padded.query_start.tolist() == [0, 1, 2, 3, 4]
    assert padded.slot_mapping.tolist() == [*plan.slot_mapping.tolist(), -1, -1]
    assert padded.seq_lens.tolist() == [3, 2, 0, 0]
    assert padded.num_tokens.tolist() == [1, 1, 1, 1]
    assert [array.dtype for array in padded] == [
        getattr(plan, name).dtype for name in padded._fields
    ]
    assert octavo.pad(plan, 2).token_ids.tolist() == plan.token_ids.tolist()
    with pytest.raises(octavo.RequestError) as caught:
        octavo.pad(plan, 1)
    assert (caught.value.argument, caught.value.excess) == ("size", 1)
    with pytest.raises(octavo.RequestError):
        octavo.pad(plan, 2**31)
    with pytest.raises(TypeError):
        octavo.pad(plan, 2.5)


def test_out_is_measured_and_not_asked_for_its_length():
    class Boaster(np.ndarray):
        def __len__(self):
            raise AssertionError

    scheduler = build()
    scheduler.add(range(20), max_tokens=4)
    plan = scheduler.step(0.0, out=np.zeros(8, np.uint8).view(Boaster))
    assert not plan.in_out
    assert plan.token_ids.tolist() == list(range(20))


def test_a_plan_with_more_padding_than_bytes_is_read_back():
    count = 300
    scheduler = octavo.Scheduler(
        2_000, block_size=4, batching="static", max_num_seqs=count, max_model_len=64
    )
    for index in range(count):
        scheduler.add([index + 1], max_tokens=1 if index else 9)
    scheduler.commit(scheduler.step(0.0), [1] * count)
    # The first plan behind it tells who ended.
    scheduler.commit(scheduler.step(1.0), [1])
    plan = scheduler.step(2.0)
    read = octavo.StepPlan.from_buffer(plan.buffer)
    assert read.num_padded == plan.num_padded == count - 1
    assert plan.num_padded > len(plan.buffer), "what is checked here needs a small plan"


def test_out_belongs_to_its_plan_until_the_commit():
    scheduler = build(inflight_steps=3)
    scheduler.add([5, 6, 7], max_tokens=9)
    memory = np.zeros(8192, np.uint8)
    first = scheduler.step(0.0, out=memory[:4096])
    for overlapping in (memory, memory[2048:6144]):
        with pytest.raises(octavo.RequestError) as caught:
            scheduler.step(0.0, out=overlapping)
        assert caught.value.argument == "out"
    second = scheduler.step(0.0, out=memory[4096:])
    assert (first.header[1], second.header[1]) == (0, 1)
    scheduler.commit(first, [1])
    assert scheduler.step(0.0, out=memory[:4096]).in_out
