"""Offsets beyond 2^31 elements, and memory at any address."""

import numpy as np
import pytest

from octavo.attention import KVSpec, reference
from sparse import Sparse, round_trip


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("group", [2, 8])
def test_blocks_around_2_31_and_2_32_elements_are_read_and_written(backend, layout, group):
    elements = 16 * 2 * 128
    border = 2**31 // elements
    kv = Sparse(KVSpec(1, 3 * border, 16, 2, 128, dtype="float16", layout=layout)).kv
    table = [2 * border, border - 1, 0, border, 3 * border - 1, border + 1, 2 * border - 1]
    round_trip(backend, kv, table, 7 * 16 - 5, group)


def test_copies_and_poison_reach_beyond_2_31_elements(backend):
    border = 2**31 // (16 * 2 * 128)
    kv = Sparse(KVSpec(1, 2 * border + 2, 16, 2, 128, dtype="float16")).kv
    kv.k(0)[2 * border + 1] = 3
    backend.copy_blocks(kv, np.array([[2 * border + 1, border, 9]], np.int32))
    assert (kv.k(0)[border, :9] == 3).all()
    assert not kv.k(0)[border, 9:].any()
    assert not kv.k(0)[[0, border - 1, border + 1]].any()


def test_a_stride_of_276480_passes_block_7767(backend):
    """16 heads x 128 x 135 slots: a 32-bit product of id and stride is negative from 7,768 on."""
    kv = Sparse(KVSpec(1, 7_769, 135, 16, 128, dtype="float16")).kv
    assert kv.k(0).strides[0] // 2 == 276_480
    round_trip(backend, kv, [7_767, 7_766, 7_768], 3 * 135 - 1, 1)


@pytest.mark.parametrize("before", [0, 2**33 + 4096])
def test_memory_may_lie_at_any_address(backend, before):
    kv = Sparse(KVSpec(1, 40, 16, 2, 64, dtype="float16"), before).kv
    round_trip(backend, kv, [39, 0, 17], 41, 4)


def test_a_reference_over_the_same_memory_agrees(backend):
    """The oracle and the kernels read one memory."""
    kv = Sparse(KVSpec(1, 2**17 + 2, 16, 8, 128, dtype="float16")).kv
    tables, lens = np.array([[2**17 + 1, 3]], np.int32), np.array([20], np.int32)
    random = np.random.default_rng(1)
    k = random.standard_normal((20, 8, 128)).astype(np.float16)
    reference.append(kv, 0, k, -k, reference.slots_from_tables(tables, lens, 16))
    q = random.standard_normal((1, 8, 128)).astype(np.float16)
    wanted = reference.decode(kv, 0, q, tables, lens).astype(np.float32)
    np.testing.assert_allclose(backend.decode(kv, 0, q, tables, lens), wanted, atol=2e-3)
