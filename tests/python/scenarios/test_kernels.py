"""Scenarios about attention over blocks, shown on the reference back end.

What a kernel can do wrong besides (32-bit addresses on a device, plans in a workspace, graphs) is
shown again where the kernels are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import octavo
from octavo.attention import KVSpec, PagedKV, reference
from support.plain_attention import UNREAD, Filled, plain_attention


def _int32(values: Any) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


def _sparse(tmp_path: Any, num_blocks: int, **shape: Any) -> PagedKV:
    """A memory of which only the touched pages exist."""
    spec = KVSpec(1, num_blocks, dtype="float16", **shape)
    planes = []
    for name in "kv":
        with (tmp_path / name).open("wb") as file:
            file.truncate(spec.nbytes // 2)
        planes.append(np.memmap(tmp_path / name, np.float16, "r+", shape=spec.k_shape))
    return PagedKV(spec, arrays=[(planes[0], planes[1])])


def _round_trip(kv: PagedKV, table: npt.NDArray[np.int32], length: int) -> None:
    """Appends random tokens, and compares what a query gets with the plain answer."""
    spec, lens, random = kv.spec, _int32([length]), np.random.default_rng(0)
    shape = (length, spec.num_kv_heads, spec.head_dim)
    k, v = (random.standard_normal(shape).astype(np.float16) for _ in range(2))
    slots = reference.slots_from_tables(table, lens, spec.block_size)
    reference.append(kv, 0, k, v, slots)
    q = random.standard_normal((1, *shape[1:])).astype(np.float32)
    out = reference.decode(kv, 0, q, table, lens)
    np.testing.assert_allclose(out, plain_attention(q, k, v)[0], atol=3e-6)


def test_s130_elements_beyond_2_31_are_other_elements(tmp_path) -> None:
    """Blocks of 2^14 elements, ids 2^17 - 1, 2^17 and 2^17 + 1: keys and values are apart."""
    kv = _sparse(tmp_path, 2**17 + 2, block_size=16, num_kv_heads=8, head_dim=128)
    _round_trip(kv, _int32([[2**17, 2**17 - 1, 2**17 + 1]]), 41)
    assert not kv.k(0)[:4].any()


def test_s131_stride_of_276480_passes_block_7767(tmp_path) -> None:
    """A stride of 276,480 elements, ids 7,766 … 7,768."""
    kv = _sparse(tmp_path, 7_769, block_size=135, num_kv_heads=16, head_dim=128)
    assert np.prod(kv.spec.k_shape[1:]) == 276_480
    _round_trip(kv, _int32([[7_767, 7_766, 7_768]]), 3 * 135 - 1)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_s134_ids_of_the_whole_pool_give_what_low_ids_give(layout: str) -> None:
    """The same tokens in blocks 0 … n, and in blocks drawn from all of a larger pool."""
    random = np.random.default_rng(1)
    k, v = (random.standard_normal((30, 2, 8)).astype(np.float32) for _ in range(2))
    q = random.standard_normal((1, 4, 8)).astype(np.float32)
    kv = PagedKV(KVSpec(1, 5_000, 4, 2, 8, layout=layout))
    outs = []
    for ids in (np.arange(8), random.permutation(5_000)[:8], np.arange(4_999, 4_991, -1)):
        table, lens = _int32([ids]), _int32([30])
        reference.append(kv, 0, k, v, reference.slots_from_tables(table, lens, 4))
        outs.append(reference.decode(kv, 0, q, table, lens))
    assert np.array_equal(outs[0], outs[1])
    assert np.array_equal(outs[0], outs[2])


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3"])
def test_s136_nan_in_unused_slots_poisons_nothing(layout: str, dtype: str) -> None:
    """The reserved block and every slot without a token are NaN, in the tail block too."""
    filled = Filled([1, 3, 4, 5, 0, 23], block_size=4, layout=layout, dtype=dtype)
    kv, tables, lens = filled.kv, filled.block_tables, filled.seq_lens
    reference.poison(kv, tables, lens)
    q = filled.queries(6, 4, np.float32)
    out = reference.decode(kv, 0, q, tables, lens)
    starts = _int32([0, 1, 2, 3, 4, 5, 6])
    again = reference.prefill(kv, 0, q, starts, tables, lens)
    assert np.array_equal(out, again)
    for row in filled.rows:
        expected, _ = plain_attention(q[row : row + 1], filled.keys[row], filled.values[row])
        np.testing.assert_allclose(out[row], expected[0], atol=3e-6)


def test_s137_padding_rows_write_into_nobodys_blocks() -> None:
    """Four rows, then two and a third request in blocks of those that left, padded to four."""
    scheduler = octavo.Scheduler(5, block_size=4, max_num_seqs=4, prefix_caching=False)
    kv = PagedKV(KVSpec(1, 5, 4, 1, 2))

    def run(value: float) -> npt.NDArray[np.int32]:
        plan = scheduler.step(value)
        assert plan is not None
        padded = octavo.pad(plan, 5)
        assert padded.seq_lens[-1] == 0
        k = np.full((len(padded.slot_mapping), 1, 2), value, np.float32)
        reference.append(kv, 0, k, k, padded.slot_mapping)
        tables = scheduler.block_tables[0].copy()
        rows = [int(plan.rows[at]) for at in np.argsort(plan.seqs)]
        scheduler.commit(plan, [1] * len(plan.sample))
        return tables[rows]

    scheduler.add_many([[1, 2, 3]] * 4, max_tokens=[9, 9, 1, 1])
    before = run(1.0)
    scheduler.add([7, 7, 7], max_tokens=9)
    newest = run(2.0)[-1:]
    assert newest[0, 0] in before[2:, 0]
    for step in (3.0, 4.0):
        run(step)
    kept, _ = reference.gather(kv, 0, newest, _int32([3]))
    assert (kept == 2).all()


@pytest.mark.parametrize("length", [1, 255, 256, 257])
def test_s139_uniform_attention_is_the_mean_of_the_valid_values(length: int) -> None:
    """q = 0 at lengths around a tile of 256."""
    filled = Filled([length], block_size=16)
    q = np.zeros((1, 2, 8), np.float32)
    out = reference.decode(filled.kv, 0, q, filled.block_tables, filled.seq_lens)
    np.testing.assert_allclose(out[0], filled.values[0].mean(axis=0), atol=3e-6)


@pytest.mark.parametrize("shift", [-6e4, -1e30, 6e4])
def test_s140_softmax_does_not_see_a_shift_of_all_logits(shift: float) -> None:
    """All logits are -6e4 (and lower), below what stands for minus infinity elsewhere."""
    kv = PagedKV(KVSpec(1, 4, 4, 1, 2))
    kv.k(0)[...] = [shift, 0.0]
    kv.v(0)[...] = np.random.default_rng(2).standard_normal(kv.spec.v_shape)
    args = (_int32([[2, 0]]), _int32([6]))
    q = np.array([[[1.0, 0.0]]], np.float32)
    out, lse = reference.decode(kv, 0, q, *args, scale=1.0, return_lse=True)
    _, values = reference.gather(kv, 0, *args)
    np.testing.assert_allclose(out[0], values.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(lse, shift + np.log(6), rtol=1e-6)


@pytest.mark.parametrize("last", [0, 5, -1])
def test_s142_last_page_is_neither_empty_nor_over_full(last: int) -> None:
    """Blocks of 4, a last page of 5, or of 0."""
    with pytest.raises(octavo.RequestError, match="last_page_len"):
        reference.csr_to_tables(_int32([0, 2]), _int32([1, 2]), _int32([last]), 4)
    with pytest.raises(octavo.RequestError, match="seq_lens"):
        reference.tables_to_csr(_int32([[1, 2]]), _int32([9]), 4)


def test_s143_a_smaller_batch_is_not_touched_by_a_larger_one_before() -> None:
    """Sixteen rows, then three in the same table array, whose other rows are left as they were."""
    filled = Filled([9, 17, 4] + [30] * 13, block_size=4)
    q = filled.queries(16, 4, np.float32)
    all_rows = reference.decode(filled.kv, 0, q, filled.block_tables, filled.seq_lens)
    lens = filled.seq_lens.copy()
    lens[3:] = 0
    stale = reference.decode(filled.kv, 0, q, filled.block_tables, lens)
    fresh = filled.block_tables[:3].copy()
    alone = reference.decode(filled.kv, 0, q[:3], fresh, filled.seq_lens[:3])
    assert np.array_equal(stale[:3], alone)
    assert np.array_equal(alone, all_rows[:3])
    assert not stale[3:].any()


def test_s145_three_slots_for_eight_padded_tokens_write_three() -> None:
    """3 slots, 8 rows of keys, those of the padding NaN."""
    kv = PagedKV(KVSpec(1, 4, 4, 1, 2))
    k = np.full((8, 1, 2), np.nan, np.float32)
    k[:3] = 1
    reference.append(kv, 0, k, k, np.array([4, 9, 15]))
    written = [slot for slot in range(16) if kv.k(0)[slot // 4, slot % 4].any()]
    assert written == [4, 9, 15]
    assert kv.v(0).sum() == 6
    assert UNREAD not in written
