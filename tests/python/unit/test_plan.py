"""The plan's arrays: shapes, ownership, life, and what a committed plan still gives."""

import gc

import numpy as np
import pytest

import octavo

INT64 = ("seqs", "slot_mapping", "sample_seqs", "admitted", "resumed", "preempted", "ended")
INT32 = (
    "rows",
    "num_tokens",
    "query_start",
    "token_ids",
    "positions",
    "token_source",
    "seq_lens",
    "sample",
    "sample_indptr",
    "table_changes",
    "copies",
    "zero",
)
ARRAYS = INT64 + INT32
CSR = ("kv_indptr", "kv_indices", "kv_last_page_len")


def build(**options) -> octavo.Scheduler:
    return octavo.Scheduler(64, **{"block_size": 4, "max_model_len": 64, **options})


@pytest.fixture
def scheduler() -> octavo.Scheduler:
    scheduler = build()
    scheduler.add(range(6), max_tokens=8)
    scheduler.add([7, 8], max_tokens=8)
    return scheduler


def test_arrays_describe_the_step(scheduler):
    plan = scheduler.step(0.0)
    seqs = [scheduler.sequences(request)[0] for request in plan_requests(scheduler, plan)]
    assert plan.number == 0
    assert plan.num_decodes == 0
    assert plan.seqs.tolist() == plan.admitted.tolist() == plan.sample_seqs.tolist() == seqs
    assert plan.rows.tolist() == [0, 1]
    assert plan.num_tokens.tolist() == plan.seq_lens.tolist() == [6, 2]
    assert plan.query_start.tolist() == [0, 6, 8]
    assert plan.token_ids.tolist() == [*range(6), 7, 8]
    assert plan.positions.tolist() == [*range(6), 0, 1]
    assert plan.slot_mapping.tolist() == [*range(6), 8, 9]
    assert plan.sample.tolist() == [5, 7]
    assert plan.sample_indptr.tolist() == [0, 1, 2]
    assert plan.table_changes.tolist() == [[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 2]]
    assert plan.token_source.shape == (0, 3)
    assert plan.copies.shape == (0, 3)
    assert plan.zero.shape == (0,)
    assert scheduler.block_tables[0][:2, :3].tolist() == [[0, 1, 0], [2, 0, 0]]


def plan_requests(scheduler, plan):
    """The request handles of the fixture: sequences carry kind 2 where requests carry kind 1."""
    return [int(seq) - (1 << 60) for seq in plan.seqs]


def test_arrays_are_read_only_views_of_one_buffer(scheduler):
    plan = scheduler.step(0.0)
    buffer = plan.buffer
    assert buffer.dtype == np.uint8
    for name in ARRAYS:
        array = getattr(plan, name)
        assert array.dtype == (np.int64 if name in INT64 else np.int32)
        assert not array.flags.writeable
        assert array.flags.c_contiguous
        assert array.flags.aligned
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
        if array.size:
            assert np.shares_memory(array, buffer)


def test_layout_finds_every_array_in_the_buffer(scheduler):
    plan = scheduler.step(0.0)
    assert set(ARRAYS) <= set(plan.layout)
    raw = plan.buffer.tobytes()
    for name, (dtype, offset, shape) in plan.layout.items():
        if name in ARRAYS:
            count = int(np.prod(shape))
            read = np.frombuffer(raw, dtype, count, offset).reshape(shape)
            assert np.array_equal(read, getattr(plan, name))
            assert offset % read.itemsize == 0


def test_csr_is_built_when_asked_for(scheduler):
    scheduler.commit(scheduler.step(0.0), [1, 1])
    plan = scheduler.step(1.0)
    assert plan.seq_lens.tolist() == [7, 3]
    assert {getattr(plan, name).dtype for name in CSR} == {np.dtype(np.int32)}
    assert [getattr(plan, name).tolist() for name in CSR] == [[0, 2, 3], [0, 1, 2], [3, 3]]


def test_committed_plan_gives_no_array(scheduler):
    plan = scheduler.step(0.0)
    scheduler.commit(plan, [1, 1])
    for name in (*ARRAYS, *CSR, "buffer", "layout"):
        with pytest.raises(octavo.StateError):
            getattr(plan, name)
    assert (plan.number, plan.num_decodes) == (0, 0)
    assert "committed" in repr(plan)


def test_kept_views_never_change(scheduler):
    kept = []
    for now in range(7):
        plan = scheduler.step(float(now))
        views = {name: getattr(plan, name) for name in ARRAYS}
        kept.append((views, {name: view.copy() for name, view in views.items()}))
        scheduler.commit(plan, np.full(len(plan.sample), now, np.int32))
    del plan, scheduler
    gc.collect()
    for views, copies in kept:
        for name in ARRAYS:
            assert np.array_equal(views[name], copies[name])


def test_buffers_are_used_again_when_nobody_looks(scheduler):
    addresses = set()
    for now in range(8):
        plan = scheduler.step(float(now))
        addresses.add(plan.buffer.ctypes.data)
        scheduler.commit(plan, np.ones(len(plan.sample), np.int32))
    assert len(addresses) <= 3  # two of the ring, and one that grew


def test_block_tables_are_live_and_outlive_their_scheduler(scheduler):
    (tables,) = scheduler.block_tables
    assert (tables.dtype, tables.shape) == (np.int32, (256, 16))
    assert not tables.flags.writeable
    assert not tables.any()
    scheduler.step(0.0)
    assert tables[0, 1] == 1
    del scheduler
    gc.collect()
    assert tables[0, 1] == 1


def test_replayed_changes_give_the_tables():
    scheduler = build(max_num_seqs=3, max_num_batched_tokens=7)
    for length in (3, 9, 5, 12, 1):
        scheduler.add(range(length), max_tokens=6)
    mirror: dict[tuple[int, int], int] = {}
    now = 0.0
    while scheduler.has_work:
        now += 1
        plan = scheduler.step(now)
        for _, row, index, block in plan.table_changes.tolist():
            mirror[row, index] = block
        tables = scheduler.block_tables[0]
        for row, length in zip(plan.rows.tolist(), plan.seq_lens.tolist(), strict=True):
            blocks = -(-length // 4)
            assert [mirror[row, i] for i in range(blocks)] == tables[row, :blocks].tolist()
            assert not tables[row, blocks:].any()
        scheduler.commit(plan, np.ones(len(plan.sample), np.int32))


def test_decodes_come_first():
    scheduler = build()
    scheduler.add(range(6), max_tokens=4)
    scheduler.commit(scheduler.step(0.0), [3])
    scheduler.add(range(20, 25), max_tokens=4)
    plan = scheduler.step(1.0)
    assert plan.num_decodes == 1
    assert plan.num_tokens.tolist() == [1, 5]
    assert plan.token_ids.tolist()[0] == 3
