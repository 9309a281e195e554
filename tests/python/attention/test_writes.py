"""What changes the memory: append, copies, swaps, poison; and gather, which reads it back."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.attention import float8, reference
from octavo.errors import RequestError
from support.plain_attention import UNREAD, Filled, elements, memory_of

# "bytes": fp8 as uint8.
STORED = ["float64", "float32", "float16", "bfloat16", "float8_e4m3", "bytes"]
FP8 = ("float8_e4m3", "bytes")
LAYOUTS = ["NHD", "HND"]


def memory(dtype="float32", layout="NHD", num_blocks=8, block_size=4, num_layers=2, **more):
    if dtype in FP8:
        more = {"k_scale": 0.5, "v_scale": [0.25, 2.0], **more}
    shape = {"num_layers": num_layers, "num_blocks": num_blocks, "block_size": block_size}
    dims = {"num_kv_heads": 2, "head_dim": 4, "v_head_dim": 6}
    return memory_of(dtype, **shape, **dims, layout=layout, **more)


def planes_of(kv):
    """Keys and values of all layers, as elements that NumPy knows."""
    layers = range(kv.spec.num_layers)
    return [elements(plane) for layer in layers for plane in (kv.k(layer), kv.v(layer))]


def token(plane, layout, block, slot):
    return plane[block, slot] if layout == "NHD" else plane[block, :, slot]


# --- append ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("model", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_append_writes_each_token_to_its_slot_and_nothing_else(layout, dtype, model):
    kv = memory(dtype, layout)
    reference.poison_all(kv)
    random = np.random.default_rng(0)
    k = random.standard_normal((5, 2, 4)).astype(model)
    v = random.standard_normal((5, 2, 6)).astype(model)
    slots = np.array([31, -1, 0, 13, -(2**40)])
    reference.append(kv, 1, k, v, slots)
    written = {31: 0, 0: 2, 13: 3}
    for plane, given_, scale in (
        (elements(kv.k(1)), k, kv.spec.k_scale),
        (elements(kv.v(1)), v, kv.spec.v_scale),
    ):
        each = np.ones((2, 1)) if scale is None else np.broadcast_to(scale, (2,))[:, None]
        for slot in range(32):
            found = token(plane, layout, *divmod(slot, 4))
            if slot in written:
                exact = given_[written[slot]].astype(np.float32 if dtype != "float64" else float)
                assert np.array_equal(found, (exact / each).astype(plane.dtype))
            else:
                assert np.isnan(found.astype(float)).all()
    assert np.isnan(elements(kv.k(0)).astype(float)).all()


@pytest.mark.parametrize("dtype", FP8)
def test_fp8_saturates_and_keeps_nan(dtype):
    kv = memory(dtype)
    k = np.array([1e30, -1e30, np.inf, 460 * 0.5], np.float32)
    reference.append(
        kv, 0, np.stack([k, k])[None], np.full((1, 2, 6), np.nan, np.float32), np.array([0])
    )
    assert elements(kv.k(0))[0, 0, 0].astype(float).tolist() == [448, -448, 448, 448]
    assert np.isnan(elements(kv.v(0))[0, 0].astype(float)).all()


def test_fp8_bytes_are_those_of_ml_dtypes():
    every = np.arange(256, dtype=np.uint8)
    known = every.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(float8.VALUES, known, equal_nan=True)
    # Both sides of each value and of the middle between two: where rounding changes its mind.
    finite = known[np.isfinite(known)].astype(np.float64)
    middles = (np.sort(finite)[1:] + np.sort(finite)[:-1]) / 2
    exact = np.concatenate([finite, middles]).astype(np.float32)
    steps = np.concatenate([exact, np.nextafter(exact, np.inf), np.nextafter(exact, -np.inf)])
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    values = np.concatenate([steps, bits.view(np.float32)])
    saturated = np.where(np.isnan(values), np.float32(np.nan), np.clip(values, -448, 448))
    expected = saturated.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert np.array_equal(float8.encode(np, values), expected)
    # What encodes is read back as itself.
    codes = every[np.isfinite(known)]
    assert np.array_equal(float8.encode(np, known[np.isfinite(known)]), codes)


def test_values_too_large_for_half_precision_become_infinite_without_a_warning():
    kv = memory("float16")
    k, v = np.full((1, 2, 4), 1e6, np.float32), np.full((1, 2, 6), -1e6, np.float32)
    reference.append(kv, 0, k, v, np.array([3]))
    assert (kv.k(0)[0, 3] == np.inf).all()
    assert (kv.v(0)[0, 3] == -np.inf).all()


def test_append_of_nothing_writes_nothing():
    kv = memory()
    empty = np.zeros((0, 2, 4), np.float32), np.zeros((0, 2, 6), np.float32)
    reference.append(kv, 0, *empty, np.zeros(0, np.int64))
    assert not kv.buffer.any()


# --- gather ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("size", [1, 4, 256])
def test_gather_gives_the_rows_one_after_the_other(layout, dtype, size):
    lens = [0, 1, size, size + 1, 3 * size - 1]
    filled = Filled(lens, block_size=size, dtype=dtype, layout=layout, v_head_dim=6)
    k, v = reference.gather(filled.kv, 0, filled.block_tables, filled.seq_lens)
    assert k.dtype == (np.float32 if dtype in FP8 else filled.kv.dtype)
    np.testing.assert_allclose(k.astype(float), np.concatenate(filled.keys), rtol=1e-6)
    np.testing.assert_allclose(v.astype(float), np.concatenate(filled.values), rtol=1e-6)


def test_gather_gives_copies_and_takes_no_rows():
    filled = Filled([3], block_size=4)
    k, _ = reference.gather(filled.kv, 0, filled.block_tables, filled.seq_lens)
    k[...] = 0
    assert (filled.kv.k(0)[filled.place(0, 0)] != 0).all()
    none = np.zeros((0, 0), np.int32), np.zeros(0, np.int32)
    assert [part.shape for part in reference.gather(filled.kv, 0, *none)] == [(0, 2, 8), (0, 2, 8)]


# --- copies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", STORED)
def test_copies_take_the_first_tokens_in_all_layers(layout, dtype):
    kv = memory(dtype, layout)
    random = np.random.default_rng(1)
    for plane in planes_of(kv):
        plane[...] = random.standard_normal(plane.shape).astype(plane.dtype)
    before = [(kv.k(layer).copy(), kv.v(layer).copy()) for layer in range(2)]
    copies = [(5, 2, 3), (5, 0, 4), (7, 1, 0), (6, 3, 1)]
    reference.copy_blocks(kv, np.array(copies, np.int32))
    for layer in range(2):
        for plane, old in zip((kv.k(layer), kv.v(layer)), before[layer], strict=True):
            for source, target, tokens in copies:
                for slot in range(4):
                    found = token(plane, layout, target, slot)
                    origin = source if slot < tokens else target
                    assert np.array_equal(found, token(old, layout, origin, slot))
            assert np.array_equal(plane[4:], old[4:])


def test_no_copies_are_fine():
    reference.copy_blocks(memory(), np.zeros((0, 3), np.int32))


@given(st.data())
def test_any_copies_equal_a_loop(data):
    targets = data.draw(st.lists(st.integers(0, 7), unique=True, max_size=7))
    rest = sorted(set(range(8)) - set(targets))
    copies = [(data.draw(st.sampled_from(rest)), t, data.draw(st.integers(0, 4))) for t in targets]
    kv = memory(layout=data.draw(st.sampled_from(LAYOUTS)))
    kv.buffer[:] = np.random.default_rng(2).integers(0, 100, kv.nbytes)
    expected = [[plane.copy() for plane in kv.pages(layer)] for layer in range(2)]
    for source, target, tokens in copies:
        for plane in (plane for layer in expected for plane in layer):
            plane[target, :tokens] = plane[source, :tokens]
    reference.copy_blocks(kv, np.array(copies, np.int32).reshape(-1, 3))
    for layer in range(2):
        for plane, wanted in zip(kv.pages(layer), expected[layer], strict=True):
            assert plane.tobytes() == wanted.tobytes()


# --- poison ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", STORED)
def test_poison_leaves_the_slots_of_the_rows(layout, dtype):
    kv = memory(dtype, layout)
    tables = np.array([[6, 2, UNREAD], [5, UNREAD, UNREAD]], np.int32)
    reference.poison(kv, tables, np.array([7, 1], np.int32))
    owned = {(6, 0), (6, 1), (6, 2), (6, 3), (2, 0), (2, 1), (2, 2), (5, 0)}
    for plane in planes_of(kv):
        for block in range(8):
            for slot in range(4):
                found = token(plane, layout, block, slot).astype(float)
                assert np.isnan(found).all() == ((block, slot) not in owned)
    reference.poison_all(kv)
    assert np.isnan(elements(kv.v(1)).astype(float)).all()


# --- swaps ----------------------------------------------------------------------------------------


def filled_memory(dtype="float32", layout="NHD", seed=3):
    kv, random = memory(dtype, layout), np.random.default_rng(seed)
    for plane in planes_of(kv):
        plane.view(np.uint8)[...] = random.integers(0, 256, plane.view(np.uint8).shape)
    return kv


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("kind", ["array", "path", "text"])
def test_blocks_swapped_out_come_back_elsewhere(layout, dtype, kind, tmp_path):
    kv = filled_memory(dtype, layout)
    blocks = np.array([6, 1, 3], np.int32)
    host = np.zeros((3, kv.spec.bytes_per_block), np.uint8)
    place = {"array": host, "path": tmp_path / "kv", "text": str(tmp_path / "kv")}[kind]
    reference.swap_out(kv, blocks, place)
    other = filled_memory(dtype, layout, seed=4)
    before = [(other.k(layer).copy(), other.v(layer).copy()) for layer in range(2)]
    new = np.array([0, 7, 2], np.int32)
    reference.swap_in(other, new, place)
    for layer in range(2):
        for name, at in (("k", 0), ("v", 1)):
            found, source = getattr(other, name)(layer), getattr(kv, name)(layer)
            assert found[new].tobytes() == source[blocks].tobytes()
            untouched = [block for block in range(8) if block not in new]
            assert found[untouched].tobytes() == before[layer][at][untouched].tobytes()


def test_host_rows_hold_the_layers_in_order():
    kv = filled_memory()
    host = np.zeros((1, kv.spec.bytes_per_block), np.uint8)
    reference.swap_out(kv, np.array([5], np.int32), host)
    planes = [kv.k(0), kv.v(0), kv.k(1), kv.v(1)]
    assert host.tobytes() == b"".join(plane[5].tobytes() for plane in planes)


def test_no_blocks_make_a_file_of_none(tmp_path):
    kv, none = filled_memory(), np.zeros(0, np.int32)
    reference.swap_out(kv, none, tmp_path / "kv")
    reference.swap_in(kv, none, tmp_path / "kv")


def test_every_corrupted_byte_is_found_before_anything_is_written(tmp_path):
    kv = filled_memory()
    blocks, path = np.array([6, 1], np.int32), tmp_path / "kv"
    reference.swap_out(kv, blocks, path)
    whole = path.read_bytes()
    before = kv.buffer.tobytes()
    places = [*range(60), *range(60, len(whole), 41), len(whole) - 1]
    for at in places:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        with pytest.raises(RequestError) as caught:
            reference.swap_in(kv, blocks, path)
        assert caught.value.argument == "source"
        assert str(path) in caught.value.message
        assert kv.buffer.tobytes() == before
    for content in (b"", whole[:10], whole[:-1], whole + b"x", whole[:30]):
        path.write_bytes(content)
        with pytest.raises(RequestError, match="source"):
            reference.swap_in(kv, blocks, path)
    path.write_bytes(whole)
    reference.swap_in(kv, blocks, path)
    assert kv.buffer.tobytes() == before


def test_the_corrupted_block_is_named(tmp_path):
    kv = filled_memory()
    path = tmp_path / "kv"
    reference.swap_out(kv, np.array([6, 1, 2], np.int32), path)
    content = bytearray(path.read_bytes())
    content[-2 * kv.spec.bytes_per_block] ^= 1
    path.write_bytes(content)
    with pytest.raises(RequestError, match=r"block 1 of .* does not match its checksum"):
        reference.swap_in(kv, np.array([6, 1, 2], np.int32), path)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_layers": 1}, "num_layers"),
        ({"block_size": 8}, "block_size"),
        ({"dtype": "float64"}, "dtype"),
        ({"layout": "HND"}, "layout"),
    ],
)
def test_blocks_of_another_memory_are_refused(change, field, tmp_path):
    reference.swap_out(filled_memory(), np.array([1], np.int32), tmp_path / "kv")
    with pytest.raises(RequestError, match=field):
        reference.swap_in(memory(**change), np.array([1], np.int32), tmp_path / "kv")


def test_blocks_with_other_scales_are_refused(tmp_path):
    reference.swap_out(filled_memory("float8_e4m3"), np.array([1], np.int32), tmp_path / "kv")
    other = memory("float8_e4m3", v_scale=[0.25, 1.0])
    with pytest.raises(RequestError, match="v_scale"):
        reference.swap_in(other, np.array([1], np.int32), tmp_path / "kv")
    with pytest.raises(RequestError, match="has 1 blocks, 2 are named"):
        reference.swap_in(filled_memory("float8_e4m3"), np.array([1, 2], np.int32), tmp_path / "kv")


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    kv, path = filled_memory(), tmp_path / "kv"
    reference.swap_out(kv, np.array([1], np.int32), path)
    old = path.read_bytes()

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(type(path), "replace", full)
    with pytest.raises(OSError, match="no space left"):
        reference.swap_out(kv, np.array([2], np.int32), path)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]
