"""Offsets beyond 2^31 elements: a sparse mapping, of which only what is touched exists."""

import numpy as np
import pytest

from octavo.attention import KVSpec, PagedKV, reference
from support.plain_attention import plain_attention

SHAPE = {"block_size": 16, "num_kv_heads": 8, "head_dim": 128, "dtype": "float16"}
# Elements of a block of keys, and the block that starts at element 2^31.
ELEMENTS = 16 * 8 * 128
BORDER = 2**31 // ELEMENTS


@pytest.fixture(params=["NHD", "HND"])
def kv(request, tmp_path):
    spec = KVSpec(1, 2 * BORDER + 2, **SHAPE, layout=request.param)
    planes = []
    for name, shape in (("k", spec.k_shape), ("v", spec.v_shape)):
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate(spec.nbytes // 2)
        planes.append(np.memmap(path, np.float16, "r+", shape=shape))
    return PagedKV(spec, arrays=[tuple(planes)])


def test_blocks_around_and_beyond_2_31_elements_are_read_and_written(kv):
    table = np.array([[BORDER, 2 * BORDER + 1, BORDER - 1, 0, 2 * BORDER]], np.int32)
    lens = np.array([75], np.int32)
    slots = reference.slots_from_tables(table, lens, 16)
    assert slots[0] == BORDER * 16
    random = np.random.default_rng(0)
    k, v = (random.standard_normal((75, 8, 128)).astype(np.float16) for _ in range(2))
    reference.append(kv, 0, k, v, slots)
    for position, slot in ((0, slots[0]), (16, slots[16]), (74, slots[74])):
        assert np.array_equal(kv.pages(0)[0][slot // 16, slot % 16], k[position])
    found = reference.gather(kv, 0, table, lens)
    assert np.array_equal(found[0], k)
    assert np.array_equal(found[1], v)
    q = random.standard_normal((1, 8, 128)).astype(np.float16)
    expected, _ = plain_attention(q, k, v)
    out = reference.decode(kv, 0, q, table, lens)
    np.testing.assert_allclose(out.astype(float), expected, atol=1e-3)
    # What 32 bits would have wrapped to was not touched.
    assert not kv.k(0)[1].any()
    reference.copy_blocks(kv, np.array([[2 * BORDER + 1, 2, 16]], np.int32))
    assert np.array_equal(kv.pages(0)[0][2], k[16:32])


def test_slots_of_the_highest_block_ids_need_64_bits():
    table, lens = np.array([[2**31 - 1]], np.int32), np.array([256], np.int32)
    slots = reference.slots_from_tables(table, lens, 256)
    assert slots[-1] == (2**31 - 1) * 256 + 255
