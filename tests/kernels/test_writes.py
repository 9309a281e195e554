"""Kernels that move elements against the reference: equal to the last bit."""

import itertools

import numpy as np
import pytest

from octavo.attention import KVSpec, PagedKV, kernels, reference
from octavo.attention.dtypes import FP8
from octavo.errors import RequestError
from world import DTYPES, filled, ragged, starts_of

SIZES = itertools.cycle([16, 1, 3, 256])
LAYOUTS = itertools.cycle(["NHD", "HND"])
SHAPES = [
    pytest.param(pair, dim, next(SIZES), next(LAYOUTS), id=f"{pair[0]}-{pair[1]}-{dim}")
    for pair, dim in itertools.product(kernels.PAIRS, kernels.HEAD_DIMS)
]


def twins(pair, dim, size, layout, *, blocks=37, layers=2):
    """Two memories full of NaN."""
    scales = {"k_scale": (0.5, 0.02), "v_scale": 0.25} if pair[1] == FP8 else {}
    spec = KVSpec(layers, blocks, size, 2, dim, 64, pair[1], layout, **scales)
    found = PagedKV(spec), PagedKV(spec)
    for kv in found:
        reference.poison_all(kv)
    return found


def same(one, other):
    return all(
        one.k(layer).tobytes() == other.k(layer).tobytes()
        and one.v(layer).tobytes() == other.v(layer).tobytes()
        for layer in range(one.spec.num_layers)
    )


@pytest.mark.parametrize(("pair", "dim", "size", "layout"), SHAPES)
def test_append_writes_what_the_reference_writes(backend, pair, dim, size, layout):
    """Slots of the whole pool, some negative, fewer slots than tokens; fp8 saturates."""
    one, other = twins(pair, dim, size, layout)
    random = np.random.default_rng(3)
    slots = random.permutation(one.spec.num_slots)[:19].astype(np.int64)
    slots[[2, 7]] = -1, -5
    k = random.standard_normal((21, 2, dim)) * 40
    k[0, 0, :4] = [np.nan, np.inf, -np.inf, -0.0]
    v = random.standard_normal((21, 2, 64)) * 200
    k, v = k.astype(DTYPES[pair[0]]), v.astype(DTYPES[pair[0]])
    backend.append(one, 1, k, v, slots)
    reference.append(other, 1, k, v, slots)
    assert same(one, other)


@pytest.mark.parametrize("pair", kernels.PAIRS)
def test_append_takes_keys_out_of_a_wider_projection(backend, pair):
    """Queries, keys and values of a token side by side, as one product gives them."""
    one, other = twins(pair, 64, 16, "NHD")
    joint = np.random.default_rng(4).standard_normal((9, 10, 64)).astype(DTYPES[pair[0]])
    k, v, slots = joint[:, 6:8], joint[:, 8:], np.arange(3, 12)
    backend.append(one, 0, k, v, slots)
    reference.append(other, 0, k, v, slots)
    assert same(one, other)


@pytest.mark.parametrize(("pair", "dim", "size", "layout"), SHAPES[::3])
def test_gather_gives_what_the_reference_gives(backend, pair, dim, size, layout):
    memory = filled(ragged(size), pair, dim, size, layout, v_head_dim=128)
    args = (memory.kv, 1, memory.block_tables, memory.seq_lens)
    for found, wanted in zip(backend.gather(*args), reference.gather(*args), strict=True):
        assert found.dtype == wanted.dtype
        assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(("pair", "dim", "size", "layout"), SHAPES[1::4])
def test_copies_are_those_of_the_reference(backend, pair, dim, size, layout):
    """All layers, whole blocks, parts of them, and nothing of one."""
    one, other = twins(pair, dim, size, layout)
    random = np.random.default_rng(5)
    slots = np.arange(one.spec.num_slots)
    for layer in range(2):
        k = random.standard_normal((len(slots), 2, dim)).astype(DTYPES[pair[0]])
        v = random.standard_normal((len(slots), 2, 64)).astype(DTYPES[pair[0]])
        for kv in (one, other):
            reference.append(kv, layer, k, v, slots)
    copies = np.array([[3, 36, size], [3, 0, max(1, size // 2)], [9, 1, 0]], np.int32)
    backend.copy_blocks(one, copies)
    assert not same(one, other)
    reference.copy_blocks(other, copies)
    assert same(one, other)


@pytest.mark.parametrize(("pair", "dim", "size", "layout"), SHAPES[2::4])
def test_poison_spares_what_rows_own_and_nothing_else(backend, pair, dim, size, layout):
    one, other = twins(pair, dim, size, layout)
    for kv in (one, other):
        for layer in range(2):
            kv.k(layer)[...] = kv.v(layer)[...] = 1
    tables = np.array([[36, 0, 5], [7, 2**31 - 1, -1]], np.int32)
    lens = np.array([2 * size + 1, max(1, size - 1)], np.int32)
    backend.poison(one, tables, lens)
    reference.poison(other, tables, lens)
    assert same(one, other)
    assert np.isnan(one.k(0).astype(np.float32)).any()
    backend.poison_all(one)
    assert np.isnan(one.k(1).astype(np.float32)).all()
    assert np.isnan(one.v(0).astype(np.float32)).all()


@pytest.mark.parametrize("size", [1, 3, 16, 256])
def test_tables_are_converted_as_by_the_reference(backend, size):
    random = np.random.default_rng(size)
    lens = np.array([0, 1, size, size + 1, 5 * size, 7 * size], np.int32)
    tables = np.full((6, 9), 2**31 - 1, np.int32)
    for row, length in enumerate(lens):
        count = -(-length // size)
        tables[row, :count] = random.integers(0, 2**31 - 2, count)
    csr = backend.tables_to_csr(tables, lens, size)
    for found, wanted in zip(csr, reference.tables_to_csr(tables, lens, size), strict=True):
        assert found.dtype == wanted.dtype
        assert np.array_equal(found, wanted)
    for width in (None, 11):
        back = backend.csr_to_tables(*csr, size, width=width)
        wanted = reference.csr_to_tables(*csr, size, width=width)
        assert all(np.array_equal(one, other) for one, other in zip(back, wanted, strict=True))
    assert np.array_equal(
        backend.slots_from_tables(tables, lens, size),
        reference.slots_from_tables(tables, lens, size),
    )
    starts = starts_of([3, 0, 1, 1, 2, 0])
    assert np.array_equal(
        backend.slots_from_tables(tables, lens, size, starts),
        reference.slots_from_tables(tables, lens, size, starts),
    )


def test_a_table_that_is_a_part_of_a_wider_one_is_read_where_it_lies(backend):
    """The scheduler's mirror is as wide as the longest sequence may be."""
    memory = filled([9, 30], ("float32", "float32"), 64, 4, "NHD")
    wide = np.full((4, 60), -1, np.int32)
    wide[1:3, 5 : 5 + memory.block_tables.shape[1]] = memory.block_tables
    part = wide[1:3, 5 : 5 + memory.block_tables.shape[1]]
    q = memory.queries(2, 4, np.float32)
    args = (memory.kv, 1, q, memory.block_tables, memory.seq_lens)
    wanted = backend.decode(*args)
    assert np.array_equal(backend.decode(*args[:3], part, memory.seq_lens), wanted)


def test_nothing_to_do_is_no_launch(backend):
    kv, _ = twins(("float32", "float32"), 64, 4, "NHD")
    none = np.empty(0, np.int32)
    tables = np.empty((0, 3), np.int32)
    q = np.empty((0, 4, 64), np.float32)
    before = kv.k(0).tobytes()
    backend.append(kv, 0, q[:, :2], q[:, :2], np.empty(0, np.int64))
    backend.copy_blocks(kv, np.empty((0, 3), np.int32))
    assert backend.decode(kv, 0, q, tables, none).shape == (0, 4, 64)
    assert backend.prefill(kv, 0, q, np.zeros(1, np.int32), tables, none).shape == (0, 4, 64)
    assert backend.gather(kv, 0, tables, none)[0].shape == (0, 2, 64)
    assert len(backend.slots_from_tables(tables, none, 4)) == 0
    assert len(backend.tables_to_csr(tables, none, 4)[1]) == 0
    assert kv.k(0).tobytes() == before


@pytest.mark.parametrize("swap", ["swap_out", "swap_in"])
def test_swaps_are_those_of_the_reference(backend, swap, tmp_path):
    memory = filled([30], ("float16", "float16"), 64, 4, "HND")
    blocks = memory.block_tables[0, :7].copy()
    backend.swap_out(memory.kv, blocks, tmp_path / "kv")
    host = np.empty((7, memory.spec.bytes_per_block), np.uint8)
    reference.swap_out(memory.kv, blocks, host)
    again = np.empty_like(host)
    other = PagedKV(memory.spec)
    backend.swap_in(other, blocks, tmp_path / "kv")
    backend.swap_out(other, blocks, again)
    assert np.array_equal(host, again)


def test_debug_looks_at_values_before_anything_is_written(backend):
    kv, _ = twins(("float32", "float32"), 64, 4, "NHD")
    before = kv.k(0).tobytes()
    k = np.ones((2, 2, 64), np.float32)
    bad = [
        ("slot_mapping", lambda: backend.append(kv, 0, k, k, np.array([3, 3]))),
        ("slot_mapping", lambda: backend.append(kv, 0, k, k, np.array([3, 37 * 4]))),
        ("copies", lambda: backend.copy_blocks(kv, np.array([[1, 2, 5]], np.int32))),
        (
            "block_tables",
            lambda: backend.poison(kv, np.array([[37]], np.int32), np.array([1], np.int32)),
        ),
        (
            "seq_lens",
            lambda: backend.poison(kv, np.array([[3]], np.int32), np.array([5], np.int32)),
        ),
    ]
    for argument, call in bad:
        with pytest.raises(RequestError) as error:
            call()
        assert error.value.argument == argument
    assert kv.k(0).tobytes() == before
