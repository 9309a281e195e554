"""The scenarios of *Kernels*, by number, on the emulated kernels."""

import numpy as np
import pytest

from octavo.attention import KVSpec, PagedKV, reference
from octavo.attention.dtypes import FP8
from octavo.errors import RequestError
from sparse import Sparse, round_trip
from support.plain_attention import plain_attention
from world import DTYPES, KernelBackend, check_decode, check_prefill, filled, starts_of

BOTH = pytest.mark.parametrize("group", [2, 8])  # CUDA cores, and tensor cores


def _int32(values):
    return np.array(values, np.int32)


@BOTH
def test_s130_elements_beyond_2_31_are_other_elements(backend, group):
    """Ids (2^31 / stride) - 1, exactly that, and + 1."""
    kv = Sparse(KVSpec(1, 2**18 + 2, 16, 4, 128, dtype="float16")).kv
    round_trip(backend, kv, [2**18, 2**18 - 1, 2**18 + 1], 41, group)
    assert not kv.k(0)[:4].any()


def test_s131_stride_of_276480_passes_block_7767(backend):
    kv = Sparse(KVSpec(1, 7_769, 135, 16, 128, dtype="float16")).kv
    round_trip(backend, kv, [7_766, 7_767, 7_768], 3 * 135 - 2, 1)


@BOTH
def test_s133_a_pool_behind_gigabytes_of_padding_is_like_any_other(backend, group):
    for before in (0, 2**32 - 4096, 2**34):
        kv = Sparse(KVSpec(1, 8, 16, 2, 64, dtype="float16"), before).kv
        round_trip(backend, kv, [7, 0, 3], 40, group)


@BOTH
def test_s134_ids_of_the_whole_pool_give_what_low_ids_give(backend, group):
    random = np.random.default_rng(1)
    k, v = (random.standard_normal((30, 2, 64)).astype(np.float16) for _ in range(2))
    q = random.standard_normal((1, 2 * group, 64)).astype(np.float16)
    kv = PagedKV(KVSpec(1, 5_000, 4, 2, 64, dtype="float16"))
    outs = []
    for ids in (np.arange(8), random.permutation(5_000)[:8], np.arange(4_999, 4_991, -1)):
        tables, lens = _int32([ids]), _int32([30])
        backend.append(kv, 0, k, v, backend.slots_from_tables(tables, lens, 4))
        outs.append(backend.decode(kv, 0, q, tables, lens))
    assert np.array_equal(outs[0], outs[1])
    assert np.array_equal(outs[0], outs[2])


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(
    "pair", [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", FP8)]
)
@BOTH
def test_s136_nan_in_unused_slots_poisons_nothing(backend, layout, pair, group):
    memory = filled([1, 3, 4, 5, 0, 23, 150], pair, 64, 4, layout)
    backend.poison(memory.kv, memory.block_tables, memory.seq_lens)
    tensor = pair[0] != "float32" and (group > 4 or pair[1] == FP8)
    check_decode(backend, memory, pair[0], group, tensor=tensor)
    counts = [1, 3, 2, 5, 0, 7, 70]
    check_prefill(backend, memory, pair[0], group, counts, tensor=pair[0] != "float32")


@BOTH
def test_s137_rows_of_padding_write_nothing_and_get_nothing(backend, group):
    """Four rows, then two in arrays of four: old block ids, no tokens, negative slots."""
    memory = filled([9, 6, 5, 7], ("float16", "float16"), 64, 4, "NHD")
    kv, tables = memory.kv, memory.block_tables
    k = memory.queries(4, 2, np.float16)
    before = memory.bytes()
    backend.append(kv, 1, k, k, np.array([-1, -1, -1, -1]))
    assert memory.bytes() == before
    lens = _int32([9, 6, 0, 0])
    q = memory.queries(4, 2 * group, np.float16)
    out = backend.decode(kv, 1, q, tables, lens)
    assert np.array_equal(out[:2], backend.decode(kv, 1, q[:2], tables[:2], lens[:2]))
    assert not out[2:].any()


@BOTH
@pytest.mark.parametrize("length", [1, 255, 256, 257])
def test_s139_uniform_attention_is_the_mean_of_the_valid_values(backend, group, length):
    memory = filled([length], ("float16", "float16"), 64, 16, "NHD")
    q = np.zeros((1, 2 * group, 64), np.float16)
    args = (memory.kv, 1, q, memory.block_tables, memory.seq_lens)
    mean = np.repeat(memory.values[0].mean(axis=0), group, axis=0)
    np.testing.assert_allclose(backend.decode(*args)[0], mean, atol=1e-3)
    out = backend.prefill(*args[:3], starts_of([1]), *args[3:])
    np.testing.assert_allclose(out[0], mean, atol=1e-3)


@BOTH
@pytest.mark.parametrize("shift", [-6e4, 6e4])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_s140_softmax_does_not_see_a_shift_of_all_logits(backend, group, shift, dtype):
    kv = PagedKV(KVSpec(1, 40, 4, 1, 64, dtype=dtype))
    kv.k(0)[..., 0] = shift
    kv.v(0)[...] = np.random.default_rng(2).standard_normal(kv.spec.v_shape)
    tables, lens = _int32([np.arange(39, 2, -1)]), _int32([146])
    q = np.zeros((1, group, 64), DTYPES[dtype])
    q[..., 0] = 1
    out, lse = backend.decode(kv, 0, q, tables, lens, scale=1.0, return_lse=True)
    mean = reference.gather(kv, 0, tables, lens)[1].astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(out[0], np.repeat(mean, group, axis=0), atol=1e-3)
    np.testing.assert_allclose(lse, kv.k(0)[0, 0, 0, 0].astype(float) + np.log(146), rtol=1e-6)
    out = backend.prefill(kv, 0, q, starts_of([1]), tables, lens, scale=1.0)
    np.testing.assert_allclose(out[0], np.repeat(mean, group, axis=0), atol=1e-3)


@pytest.mark.parametrize("last", [0, 5, -1])
def test_s142_last_page_is_neither_empty_nor_over_full(backend, last):
    with pytest.raises(RequestError, match="last_page_len"):
        backend.csr_to_tables(_int32([0, 2]), _int32([1, 2]), _int32([last]), 4)
    with pytest.raises(RequestError, match="seq_lens"):
        backend.tables_to_csr(_int32([[1, 2]]), _int32([9]), 4)


@BOTH
def test_s143_a_smaller_batch_is_not_touched_by_a_larger_one_before(launcher, group):
    """Sixteen split rows, then three, in one workspace."""
    memory = filled([300, 517, 4] + [600] * 13, ("float16", "float16"), 64, 16, "NHD")
    used = KernelBackend(launcher, split_tokens=64)
    q = memory.queries(16, 2 * group, np.float16)
    used.decode(memory.kv, 1, q, memory.block_tables, memory.seq_lens)
    few = (q[:3], memory.block_tables[:3], memory.seq_lens[:3])
    fresh = KernelBackend(launcher, split_tokens=64)
    assert np.array_equal(used.decode(memory.kv, 1, *few), fresh.decode(memory.kv, 1, *few))
    lens = memory.seq_lens.copy()
    lens[3:] = 0
    padded = used.decode(memory.kv, 1, q, memory.block_tables, lens)
    assert np.array_equal(padded[:3], fresh.decode(memory.kv, 1, *few))
    assert not padded[3:].any()


def test_s143_queries_behind_the_last_row_read_no_row_of_a_call_before(launcher):
    """A graph has room for sixteen queries, and is replayed for three: float32 lists their rows."""
    memory = filled([9] * 16, ("float32", "float32"), 64, 4, "NHD")
    backend = KernelBackend(launcher)
    q = memory.queries(16, 4, np.float32)
    args = (memory.kv, 1, q)
    backend.prefill(*args, starts_of([1] * 16), memory.block_tables, memory.seq_lens)
    out = backend.prefill(*args, starts_of([3]), memory.block_tables[:1], memory.seq_lens[:1])
    wanted = backend.prefill(
        memory.kv, 1, q[:3], starts_of([3]), memory.block_tables[:1], memory.seq_lens[:1]
    )
    assert np.array_equal(out[:3], wanted)
    assert not out[3:].any()


def test_s145_three_slots_for_eight_padded_tokens_write_three(backend):
    kv = PagedKV(KVSpec(1, 4, 4, 1, 64))
    k = np.full((8, 1, 64), np.nan, np.float32)
    k[:3] = 1
    backend.append(kv, 0, k, k, np.array([4, 9, 15]))
    written = [slot for slot in range(16) if kv.k(0)[slot // 4, slot % 4].any()]
    assert written == [4, 9, 15]
    assert kv.v(0).sum() == 3 * 64


def test_the_answers_of_these_scenarios_are_not_the_kernels_own():
    """The plain answer to one of them, by hand: two equal scores, the mean of two values."""
    k = np.zeros((2, 1, 2))
    v = np.array([[[1.0, 3.0]], [[3.0, 5.0]]])
    out, lse = plain_attention(np.ones((1, 1, 2)), k, v)
    assert out.tolist() == [[[2.0, 4.0]]]
    assert lse[0, 0] == np.log(2)
