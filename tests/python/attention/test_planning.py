"""What the back end of kernels would run: kernels, grids, splits, arguments; what it refuses."""

import gc
import itertools
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.attention import KVSpec, PagedKV, kernels
from octavo.attention.arrays import address_of
from octavo.attention.kernel_backend import KernelBackend
from octavo.attention.launch import Kernel, arguments
from octavo.attention.splits import plan_splits
from octavo.errors import ConfigError, RequestError, StateError
from support.fake_cupy import install
from support.recording import Recorder

BF16 = ml_dtypes.bfloat16
FP8 = "float8_e4m3"
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": BF16}


def memory(dtype="float16", **changes):
    shape = {"num_layers": 2, "num_blocks": 8, "block_size": 16, "num_kv_heads": 2}
    scales = {"k_scale": [0.5, 0.25], "v_scale": 0.125} if dtype == FP8 else {}
    return PagedKV(KVSpec(**{**shape, "head_dim": 64, "dtype": dtype, **scales, **changes}))


def tables_of(rows, width, lens=0):
    return np.zeros((rows, width), np.int32), np.full(rows, lens, np.int32)


def decoded(attention, kv, *, queries=3, group=1, width=4, dtype=np.float16, **options):
    """The launches of a decode."""
    q = np.zeros((queries, group * kv.spec.num_kv_heads, kv.spec.head_dim), dtype)
    launcher = attention.launcher
    launcher.launches.clear()
    attention.decode(kv, 0, q, *tables_of(queries, width), **options)
    return launcher.launches


# --- which kernel, and how many blocks of it ------------------------------------------------------


@pytest.mark.parametrize(
    ("pair", "group", "decode_on", "kernel", "tiles"),
    [
        (("float16", "float16"), 1, "auto", "decode_cores<__half,__half,64,64,1,4>", 1),
        (("float16", "float16"), 2, "auto", "decode_cores<__half,__half,64,64,2,4>", 1),
        (("float16", "float16"), 3, "auto", "decode_cores<__half,__half,64,64,4,4>", 1),
        (("float16", "float16"), 4, "auto", "decode_cores<__half,__half,64,64,4,4>", 1),
        (("bfloat16", "bfloat16"), 5, "auto", "decode_mma<__nv_bfloat16,__nv_bfloat16,64,64,", 1),
        (("float16", "float16"), 16, "auto", "decode_mma<__half,__half,64,64,", 1),
        (("float16", "float16"), 17, "auto", "decode_mma<__half,__half,64,64,", 2),
        (("float16", "float16"), 1, "tensor", "decode_mma<__half,__half,64,64,", 1),
        (("float16", "float16"), 9, "cores", "decode_cores<__half,__half,64,64,4,4>", 3),
        # fp8 is widened on its way to tensor cores, float32 would lose bits there.
        (("float16", FP8), 1, "cores", "decode_mma<__half,__nv_fp8_e4m3,64,64,", 1),
        (("float32", "float32"), 8, "tensor", "decode_cores<float,float,64,64,4,4>", 2),
        (("float32", FP8), 2, "auto", "decode_cores<float,__nv_fp8_e4m3,64,64,2,4>", 1),
    ],
)
def test_decode_takes_the_kernel_of_its_group(pair, group, decode_on, kernel, tiles):
    attention = KernelBackend(Recorder(), decode_on=decode_on)
    launch = decoded(attention, memory(pair[1]), group=group, dtype=DTYPES[pair[0]])[0]
    assert launch.kernel.name.startswith(kernel)
    assert launch.grid[:2] == (3, 2 * tiles)
    assert launch.args.group == group


def test_splits_fill_the_device_and_are_merged():
    attention = KernelBackend(Recorder(resident=264))
    kv = memory(num_blocks=300, v_head_dim=80)
    decode, merge = decoded(attention, kv, queries=2, group=4, width=256)
    splits = plan_splits(blocks=2 * 2, longest=256 * 16, resident=264)
    assert splits > 8
    assert decode.grid == (2, 2, splits)
    assert decode.args.split_tokens == 0
    assert merge.kernel == kernels.merge_states("float16", "float32")
    assert merge.grid == (2 * 8, 1, 1)
    assert merge.args.out is decode.args.out
    assert merge.args.parts is decode.args.part_out
    assert merge.args.part_lse is decode.args.part_lse
    assert merge.args.parts.size == 2 * 8 * splits * 80
    assert merge.args.part_lse.size == 2 * 8 * splits
    assert (merge.args.to_log2, merge.args.num_parts, merge.args.dim) == (1, splits, 80)
    assert (merge.args.row_stride, merge.args.part_stride) == (splits * 80, 80)
    assert (merge.args.lse_row_stride, merge.args.lse_part_stride) == (splits, 1)


def test_a_full_device_is_not_split():
    attention = KernelBackend(Recorder(resident=4))
    [decode] = decoded(attention, memory(), queries=2, width=256)
    assert decode.grid[2] == 1
    assert decode.args.part_out is None
    assert decode.args.part_lse is None


def test_a_window_splits_what_it_shows():
    attention = KernelBackend(Recorder(resident=264))
    whole = decoded(attention, memory(), queries=1, width=256)[0]
    shown = decoded(attention, memory(), queries=1, width=256, window=256)[0]
    assert (whole.args.window, shown.args.window) == (0, 256)
    assert shown.grid[2] == plan_splits(blocks=2, longest=256, resident=264)
    assert shown.grid[2] < whole.grid[2]


@pytest.mark.parametrize("window", [2**31 - 1, 2**31, 2**32 + 5, np.int64(2**32 + 5), 2**63])
def test_a_window_of_more_than_any_row_has_shows_all_of_it(window):
    """Engines that have no window pass the largest number they know."""
    attention = KernelBackend(Recorder(resident=264))
    found = decoded(attention, memory(), queries=1, width=256, window=window)[0]
    assert found.args.window == 2**31 - 1
    assert found.grid == decoded(attention, memory(), queries=1, width=256)[0].grid
    q, starts = np.zeros((3, 2, 64), np.float16), np.array([0, 3], np.int32)
    attention.prefill(memory(), 0, q, starts, *tables_of(1, 4), window=window)
    assert attention.launcher.launches[-1].args.window == 2**31 - 1


@pytest.mark.parametrize("queries", [1, 7, 400])
def test_a_fixed_split_does_not_see_the_batch(queries):
    attention = KernelBackend(Recorder(), split_tokens=512)
    decode, _ = decoded(attention, memory(), queries=queries, width=100)
    assert decode.grid[2] == 4
    assert decode.args.split_tokens == 512


@pytest.mark.parametrize(("group", "rows"), [(1, 3), (4, 3), (16, 1)])
def test_prefill_has_a_tile_for_each_part_of_a_row(group, rows):
    attention = KernelBackend(Recorder())
    kv, total = memory(), 100
    starts = np.linspace(0, total, rows + 1).astype(np.int32)
    q = np.zeros((total, 2 * group, 64), np.float16)
    out = np.zeros((total, 2 * group, 64), np.float16)
    attention.prefill(kv, 1, q, starts, *tables_of(rows, 9, total), window=7, scale=2.0, out=out)
    [launch] = attention.launcher.launches
    assert launch.kernel == kernels.prefill_mma("float16", "float16", 64, 64)
    # Rows of a tile: 4 warps of 16. No row begins in another's tile.
    assert launch.grid == (-(-total * group // 64) + rows, 2, 1)
    counts = np.diff(starts)
    assert launch.grid[0] >= sum(-(-count * group // 64) for count in counts)
    found = launch.args
    assert (found.num_rows, found.group, found.window, found.scale) == (rows, group, 7, 2)
    assert found.out is out
    assert found.keys is kv.pages(1)[0]
    assert found.query_start is starts


def test_prefill_in_float32_is_a_decode_of_every_query():
    attention = KernelBackend(Recorder(resident=1))
    q, starts = np.zeros((5, 2, 64), np.float32), np.array([0, 2, 5], np.int32)
    attention.prefill(memory("float32"), 0, q, starts, *tables_of(2, 3, 4))
    expand, decode = attention.launcher.launches
    assert (expand.kernel, expand.grid) == (kernels.expand_queries(), (2, 1, 1))
    assert expand.args.num_queries == 5
    assert decode.kernel.source == "decode_cores.cu"
    assert decode.grid == (5, 2, 1)
    assert decode.args.rows is expand.args.rows
    assert decode.args.lens is expand.args.lens
    assert decode.args.rows.size == decode.args.lens.size == 5


def test_other_grids():
    attention = KernelBackend(Recorder())
    kv, (tables, lens) = memory(), tables_of(3, 5, 4)
    k = np.zeros((7, 2, 64), np.float16)
    attention.append(kv, 0, k, k, np.array([0, -1, 2], np.int64))
    attention.gather(kv, 0, tables, lens)
    attention.copy_blocks(kv, np.zeros((6, 3), np.int32))
    attention.poison(kv, tables, lens)
    attention.merge_states(np.zeros((2, 7, 4, 64), np.float16), np.zeros((2, 7, 4), np.float32))
    attention.slots_from_tables(tables, lens, 16)
    attention.tables_to_csr(tables, lens, 16)
    grids = {
        launch.kernel.name.partition("<")[0]: launch.grid for launch in attention.launcher.launches
    }
    assert grids == {
        "append": (3, 1, 1),
        "gather": (3 * 5, 1, 1),
        "copy_blocks": (6, 4, 1),
        "mark_used": (3 * 5, 1, 1),
        "poison": (8, 4, 1),
        "merge_states": (7 * 4, 1, 1),
        "slots_from_tables": (3, 1, 1),
        "tables_to_csr": (3, 1, 1),
    }


def test_batches_of_nothing_launch_nothing():
    attention = KernelBackend(Recorder())
    kv, (tables, lens) = memory(), tables_of(0, 0)
    none = np.zeros((0, 2, 64), np.float16)
    attention.append(kv, 0, none, none, np.zeros(0, np.int64))
    assert [part.shape for part in attention.gather(kv, 0, tables, lens)] == [(0, 2, 64)] * 2
    out, lse = attention.decode(kv, 0, none, tables, lens, return_lse=True)
    assert (out.shape, lse.shape, lse.dtype) == ((0, 2, 64), (0, 2), np.float32)
    assert attention.prefill(kv, 0, none, np.zeros(1, np.int32), tables, lens).shape == (0, 2, 64)
    attention.copy_blocks(kv, np.zeros((0, 3), np.int32))
    assert attention.slots_from_tables(tables, lens, 16).shape == (0,)
    assert [part.shape for part in attention.tables_to_csr(tables, lens, 16)] == [(1,), (0,), (0,)]
    merged, _ = attention.merge_states(
        np.zeros((2, 0, 4, 8), np.float32), np.zeros((2, 0, 4), np.float32)
    )
    assert merged.shape == (0, 4, 8)
    # Rows without queries, beside tables that are there.
    attention.prefill(kv, 0, none, np.zeros(4, np.int32), *tables_of(3, 2, 4))
    assert not attention.launcher.launches


# --- arguments ------------------------------------------------------------------------------------


def test_arguments_are_packed_by_name():
    kernel = Kernel("a.cu", "a", (("x", "*float32"), ("n", "int64"), ("by", "float32")), 32)
    x = np.zeros(1, np.float32)
    packed = arguments(kernel, {"by": 0.5, "x": x, "n": 2**40})
    assert packed[0] is x
    assert packed[1:] == [2**40, 0.5]
    assert [value.dtype for value in packed[1:]] == [np.int64, np.float32]
    for values in ({"x": x, "n": 1}, {"x": x, "n": 1, "by": 1, "more": 1}):
        with pytest.raises(RequestError, match="kernel a takes x, n, by"):
            arguments(kernel, values)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_one_kernel_serves_both_layouts_by_its_strides(layout):
    attention = KernelBackend(Recorder())
    kv = memory(layout=layout, v_head_dim=80, num_kv_heads=3)
    found = decoded(attention, kv, width=1)[0].args
    if layout == "NHD":
        expected = (16 * 3 * 64, 3 * 64, 64), (16 * 3 * 80, 3 * 80, 80)
    else:
        expected = (16 * 3 * 64, 64, 16 * 64), (16 * 3 * 80, 80, 16 * 80)
    assert (found.k_block, found.k_slot, found.k_head) == expected[0]
    assert (found.v_block, found.v_slot, found.v_head) == expected[1]
    assert address_of(found.keys) == address_of(kv.k(0))
    assert found.block_size == 16
    assert found.scale == np.float32(1 / 8)


def test_scales_go_one_to_a_head():
    attention = KernelBackend(Recorder())
    found = decoded(attention, memory(FP8))[0].args
    assert found.k_scale.tolist() == [0.5, 0.25]
    assert found.v_scale.tolist() == [0.125, 0.125]
    found = decoded(attention, memory())[0].args
    assert found.k_scale is None
    assert found.v_scale is None


def test_bytes_for_fp8_are_passed_as_they_are():
    kv = memory(FP8)
    pairs = [(kv.k(i).view(np.uint8), kv.v(i).view(np.uint8)) for i in range(2)]
    bytes_kv = PagedKV(kv.spec, arrays=pairs)
    found = decoded(KernelBackend(Recorder()), bytes_kv)[0].args
    assert found.keys is pairs[0][0]


def test_planes_say_where_all_layers_lie():
    attention = KernelBackend(Recorder())
    kv = memory(layout="HND", v_head_dim=80)
    attention.copy_blocks(kv, np.zeros((1, 3), np.int32))
    planes = attention.launcher.launches[0].args.planes
    arrays = [kv.k(0), kv.v(0), kv.k(1), kv.v(1)]
    assert planes[:, 0].tolist() == [address_of(array) for array in arrays]
    for plane, array in zip(planes, arrays, strict=True):
        block, head, slot, element = array.strides
        assert plane[1:].tolist() == [block, slot, head, element * array.shape[3]]


@pytest.mark.parametrize("dtype", ["float16", FP8])
def test_a_memory_that_nobody_has_any_more_is_freed(dtype):
    """A back end outlives memories of many gigabytes: that it knows one is no reason to stay."""
    attention, kv = KernelBackend(Recorder()), memory(dtype)
    attention.prepare(kv, dtype="float16", num_q_heads=2, max_queries=1, max_blocks=1)
    decoded(attention, kv)
    attention.launcher.launches.clear()
    gone, buffer = weakref.ref(kv), weakref.ref(kv.buffer)
    del kv
    gc.collect()
    assert gone() is None
    assert buffer() is None


def test_an_axis_of_one_has_no_stride():
    """NumPy gives such an axis any stride: it must not be what alignment fails on."""
    whole = np.zeros((8, 2, 16, 1, 64), np.float16)
    odd = np.lib.stride_tricks.as_strided(whole[:, 0], strides=(*whole[:, 0].strides[:2], 7, 2))
    spec = KVSpec(1, 8, 16, 1, 64, dtype="float16")
    kv = PagedKV(spec, arrays=[(odd, whole[:, 1])])
    found = decoded(KernelBackend(Recorder()), kv)[0].args
    assert (found.k_block, found.k_slot, found.k_head) == (2 * 16 * 64, 64, 0)


def heads_in_a_row(count, heads, dim, dtype=np.float16):
    """Queries of a fused projection: queries, keys and values of a token side by side."""
    fused = np.arange(count * (heads + 4) * dim, dtype=np.float32).astype(dtype)
    return fused.reshape(count, heads + 4, dim)[:, :heads]


def test_queries_of_a_fused_projection_are_not_copied():
    attention = KernelBackend(Recorder())
    q = heads_in_a_row(3, 4, 64)
    attention.decode(memory(), 0, q, *tables_of(3, 2))
    found = attention.launcher.launches[0].args
    assert found.q is q
    assert found.q_token == 8 * 64


@pytest.mark.parametrize(
    "misplaced",
    [
        np.asfortranarray,
        lambda q: q.transpose(1, 0, 2).copy().transpose(1, 0, 2),
        lambda q: np.concatenate([q, q], axis=-1)[..., ::2],
        lambda q: np.frombuffer(b"\0" * 2 + q.tobytes(), q.dtype, offset=2).reshape(q.shape),
    ],
    ids=["fortran", "heads first", "every other element", "misaligned"],
)
def test_queries_in_other_pieces_are_copied(misplaced):
    attention = KernelBackend(Recorder())
    q = misplaced(np.ascontiguousarray(heads_in_a_row(3, 4, 64)))
    kv, slots = memory(), np.arange(3)
    starts = np.array([0, 1, 3], np.int32)
    attention.decode(kv, 0, q, *tables_of(3, 2))
    attention.prefill(kv, 0, q, starts, *tables_of(2, 2, 9))
    attention.append(kv, 0, q[:, :2], q[:, 2:], slots)
    decode, prefill, append = (launch.args for launch in attention.launcher.launches)
    for found in (decode, prefill):
        assert found.q_token == 4 * 64
        assert np.array_equal(found.q, q)
    for array, stride, given_ in (
        (append.k, append.k_token, q[:, :2]),
        (append.v, append.v_token, q[:, 2:]),
    ):
        assert array.flags.c_contiguous
        assert stride == 2 * 64
        assert np.array_equal(array, given_)
    for array in (decode.q, prefill.q, append.k, append.v):
        assert address_of(array) % 16 == 0


def test_tables_may_be_columns_of_larger_ones():
    attention = KernelBackend(Recorder())
    kv, lens = memory(), np.full(3, 4, np.int32)
    wide, tall = np.zeros((3, 10), np.int32), np.zeros((4, 3), np.int32).T
    q = np.zeros((3, 2, 64), np.float16)
    attention.decode(kv, 0, q, wide[:, :4], lens)
    attention.decode(kv, 0, q, tall, lens)
    attention.decode(kv, 0, q, wide[:, :4], np.zeros((3, 2), np.int32)[:, 0])
    narrow, turned, strided = (launch.args for launch in attention.launcher.launches)
    assert narrow.table_stride == 10
    assert np.shares_memory(narrow.block_tables, wide)
    assert turned.table_stride == 4
    assert turned.block_tables.flags.c_contiguous
    assert strided.lens.flags.c_contiguous


def test_what_a_step_repeats_is_not_worked_out_anew():
    """A step asks for the same in each of its layers, and the device waits for the answer."""
    attention, kv = KernelBackend(Recorder(resident=1056)), memory()
    q, tables = np.zeros((8, 8, 64), np.float16), tables_of(8, 8192)
    out = np.zeros_like(q)
    attention.decode(kv, 0, q, *tables, out=out)
    called = []
    sys.setprofile(lambda frame, event, _: called.append(frame) if event == "call" else None)
    try:
        attention.decode(kv, 1, q, *tables, out=out)
    finally:
        sys.setprofile(None)
    assert attention.launcher.launches[-1].kernel is attention.launcher.launches[1].kernel
    # Two launches, of 40 arguments together. A dtype's name alone is ten calls of NumPy's.
    assert len(called) < 250, f"{len(called)} calls"


# --- graphs ---------------------------------------------------------------------------------------


def captured(attention, call):
    attention.launcher.is_capturing = True
    try:
        return call()
    finally:
        attention.launcher.is_capturing = False


def test_a_workspace_that_is_missing_names_its_bytes():
    attention = KernelBackend(Recorder(resident=264))
    kv, q = memory(), np.zeros((1, 2, 64), np.float16)
    tables = tables_of(1, 256)
    attention.memory(kv)
    pair = ("float16", "float16")
    for kernel in (
        kernels.decode_cores(*pair, 64, 64, 1),
        kernels.merge_states("float16", "float32"),
    ):
        attention.launcher.prepare(kernel)
    size = 4 * 2 * plan_splits(2, 4096, 264) * (64 + 1)
    with pytest.raises(StateError, match=rf"{size} bytes of workspace are missing: call prepare"):
        captured(attention, lambda: attention.decode(kv, 0, q, *tables))
    attention.decode(kv, 0, q, *tables)
    captured(attention, lambda: attention.decode(kv, 0, q, *tables))


@given(st.data())
def test_after_prepare_nothing_is_missing(data):
    dtype, stored = data.draw(st.sampled_from(kernels.PAIRS))
    group = data.draw(st.sampled_from([1, 3, 4, 8, 17]))
    most, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 300))
    split = data.draw(st.none() | st.sampled_from([16, 256, 4096]))
    on = data.draw(st.sampled_from(["auto", "cores", "tensor"]))
    resident = data.draw(st.sampled_from([1, 7, 132, 528]))
    attention = KernelBackend(Recorder(resident), split_tokens=split, decode_on=on)
    kv = memory(stored)
    attention.prepare(kv, dtype=dtype, num_q_heads=2 * group, max_queries=most, max_blocks=width)
    queries, blocks = data.draw(st.integers(1, most)), data.draw(st.integers(1, width))
    window = data.draw(st.none() | st.integers(1, 5000))
    q = np.zeros((queries, 2 * group, 64), DTYPES[dtype])
    out, k = np.zeros_like(q), q[:, :2]
    # As few rows as may be have the fewest tiles, and are split the furthest.
    rows = data.draw(st.integers(1, queries))
    starts = np.linspace(0, queries, rows + 1).astype(np.int32)
    tables, chunks = tables_of(queries, blocks, 1), tables_of(rows, blocks, 1)

    def step():
        attention.append(kv, 0, k, k, np.arange(queries))
        attention.decode(kv, 0, q, *tables, window=window, out=out)
        attention.prefill(kv, 0, q, starts, *chunks, window=window, out=out)

    captured(attention, step)


def test_a_fixed_size_of_parts_takes_room_for_as_many_decodes_as_there_may_be():
    attention = KernelBackend(Recorder(resident=1), split_tokens=16)
    sizes = {"dtype": "float16", "num_q_heads": 2, "max_queries": 50, "max_blocks": 800}
    kv = memory()
    attention.prepare(kv, **sizes, max_decodes=3)
    q, out = np.zeros((4, 2, 64), np.float16), np.zeros((4, 2, 64), np.float16)
    captured(attention, lambda: attention.decode(kv, 0, q[:3], *tables_of(3, 800), out=out[:3]))
    with pytest.raises(StateError, match="workspace"):
        captured(attention, lambda: attention.decode(kv, 0, q, *tables_of(4, 800), out=out))


def apart(array):
    """The same with a gap after each element of the last axis."""
    return np.repeat(array, 2, axis=-1)[..., ::2]


@pytest.mark.parametrize(
    "apart_from", ["q", "k", "v", "slots", "starts", "tables", "lens", "copies", "parts", "logs"]
)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_graph_takes_nothing_that_is_copied(dtype, apart_from):
    """The copy is freed once the call returns; each replay would write to where it lay."""
    attention, kv = KernelBackend(Recorder()), memory(dtype)
    attention.prepare(kv, dtype=dtype, num_q_heads=2, max_queries=3, max_blocks=4)
    for kernel in (kernels.copy_blocks(), kernels.merge_states(dtype, dtype)):
        attention.launcher.prepare(kernel)
    q = np.zeros((3, 2, 64), DTYPES[dtype])
    tables, lens = tables_of(3, 4)
    given_ = {
        "q": q, "k": q, "v": q, "slots": np.arange(3), "starts": np.arange(4, dtype=np.int32),
        "tables": tables, "lens": lens, "copies": np.zeros((1, 3), np.int32),
        "parts": np.zeros((2, 3, 2, 64), DTYPES[dtype]), "logs": np.zeros((2, 3, 2), np.float32),
    }  # fmt: skip

    def step(*, q, k, v, slots, starts, tables, lens, copies, parts, logs):
        attention.append(kv, 0, k, v, slots)
        attention.decode(kv, 0, q, tables, lens, out=np.zeros_like(q))
        attention.prefill(kv, 0, q, starts, tables, lens, out=np.zeros_like(q))
        attention.copy_blocks(kv, copies)
        attention.merge_states(parts, logs)

    captured(attention, lambda: step(**given_))
    given_[apart_from] = apart(given_[apart_from])
    with pytest.raises(StateError, match=r"a graph is captured and .* would be copied"):
        captured(attention, lambda: step(**given_))
    step(**given_)


def test_a_graph_takes_no_memory_that_is_new():
    attention = KernelBackend(Recorder())
    sizes = {"dtype": "float16", "num_q_heads": 2, "max_queries": 1, "max_blocks": 4}
    attention.prepare(memory(), **sizes)
    other, q = memory(), np.zeros((1, 2, 64), np.float16)
    with pytest.raises(StateError, match="nothing is known of this memory yet: call prepare"):
        captured(attention, lambda: attention.decode(other, 0, q, *tables_of(1, 4), out=q.copy()))
    attention.prepare(other, **sizes)
    captured(attention, lambda: attention.decode(other, 0, q, *tables_of(1, 4), out=q.copy()))


def test_a_graph_takes_nothing_that_waits_for_the_device():
    attention, kv = KernelBackend(Recorder()), memory()
    tables, none = tables_of(1, 4), np.zeros(1, np.int32)
    attention.memory(kv)
    for call in (
        lambda: attention.gather(kv, 0, *tables),
        lambda: attention.poison(kv, *tables),
        lambda: attention.tables_to_csr(*tables, 16),
        lambda: attention.slots_from_tables(*tables, 16),
        lambda: attention.csr_to_tables(none, none[:0], none[:0], 16),
    ):
        with pytest.raises(StateError, match=r"a graph is captured, and .* outside"):
            captured(attention, call)
        call()


def test_what_a_graph_was_given_stays_when_the_workspace_grows():
    """Its replays write there: it must not become another array's."""
    attention, kv = KernelBackend(Recorder(resident=264)), memory()
    attention.prepare(kv, dtype="float16", num_q_heads=2, max_queries=1, max_blocks=64)
    q = np.zeros((1, 2, 64), np.float16)
    captured(attention, lambda: attention.decode(kv, 0, q, *tables_of(1, 64), out=q.copy()))
    part = attention.launcher.launches[0].args.part_out
    given_ = weakref.ref(part.base)
    attention.launcher.launches.clear()
    del part
    attention.decode(kv, 0, q, *tables_of(1, 4096))
    assert attention.launcher.launches[0].args.part_out.base is not given_()
    gc.collect()
    assert given_() is not None


def test_prepare_of_what_no_kernel_takes_is_named():
    attention = KernelBackend(Recorder())
    sizes = {"num_q_heads": 4, "max_queries": 4, "max_blocks": 4}
    with pytest.raises(RequestError, match="dtype: no kernel takes float64 over float16"):
        attention.prepare(memory(), dtype="float64", **sizes)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("split_tokens", 0),
        ("split_tokens", 8),
        ("split_tokens", 100),
        ("split_tokens", -16),
        ("split_tokens", 256.0),
        ("split_tokens", True),
        ("decode_on", "gpu"),
        ("decode_on", None),
    ],
)
def test_a_setting_outside_its_range_is_named(option, value):
    with pytest.raises(ConfigError) as caught:
        KernelBackend(Recorder(), **{option: value})
    assert (caught.value.field, caught.value.value) == (option, value)


def misaligned(offset=0, token=2 * 64):
    """A memory whose keys begin, or whose tokens follow each other, between multiples of 16."""
    spec = KVSpec(1, 8, 16, 2, 64, dtype="float16")
    flat = np.zeros(8 * 16 * token + 64, np.float16)
    first = (-address_of(flat) % 16) // 2 + offset
    shape, strides = spec.k_shape, (2 * 16 * token, 2 * token, 2 * 64, 2)
    keys = np.lib.stride_tricks.as_strided(flat[first:], shape, strides)
    return PagedKV(spec, arrays=[(keys, np.zeros(shape, np.float16))])


def backwards():
    spec = KVSpec(1, 8, 16, 2, 64, dtype="float16")
    keys, values = (np.zeros((8, 16, 2, 128), np.float16)[..., ::2] for _ in range(2))
    return PagedKV(spec, arrays=[(keys, values)])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: memory("float64"), "holds float64; kernels take float32, float16, bfloat16"),
        (lambda: memory(head_dim=72), "head_dim is 72; kernels take 64, 80, 96, 128, 192, 256"),
        (lambda: memory(v_head_dim=8), "v_head_dim is 8; kernels take"),
        (lambda: misaligned(offset=4), "keys of layer 0: rows are not aligned to 16 bytes"),
        (lambda: misaligned(token=2 * 64 + 4), "keys of layer 0: rows are not aligned"),
        (backwards, "keys of layer 0: a head's elements do not lie side by side"),
    ],
)
def test_memory_that_kernels_cannot_read_is_named(make, words, tmp_path):
    attention, kv = KernelBackend(Recorder()), make()
    tables, lens = tables_of(1, 2)
    q = np.zeros((1, 2, kv.spec.head_dim), np.float16)
    ids = np.zeros(1, np.int32)
    for call in (
        lambda: attention.decode(kv, 0, q, tables, lens),
        lambda: attention.prefill(kv, 0, q, np.array([0, 1], np.int32), tables, lens),
        lambda: attention.append(kv, 0, q, q, np.zeros(1, np.int64)),
        lambda: attention.gather(kv, 0, tables, lens),
        lambda: attention.copy_blocks(kv, np.zeros((1, 3), np.int32)),
        lambda: attention.swap_out(kv, ids, tmp_path / "kv"),
        lambda: attention.poison_all(kv),
        lambda: attention.prepare(kv, dtype="float16", num_q_heads=2, max_queries=1, max_blocks=1),
    ):
        with pytest.raises(RequestError) as caught:
            call()
        assert caught.value.argument == "kv"
        assert words in caught.value.message
    assert not attention.launcher.launches


def test_a_back_end_keeps_no_memory_alive():
    """A pool on a card is most of the card."""
    attention, kv = KernelBackend(Recorder()), memory()
    decoded(attention, kv)
    attention.poison_all(kv)
    attention.launcher.launches.clear()
    gone = weakref.ref(kv)
    del kv
    gc.collect()
    assert gone() is None


def test_memory_of_another_module_is_named(monkeypatch):
    kv = PagedKV(KVSpec(1, 8, 16, 2, 64), xp=install(monkeypatch))
    with pytest.raises(RequestError, match="kv: holds arrays of cupy, kernels take numpy's"):
        KernelBackend(Recorder()).poison_all(kv)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("q", {"q": np.zeros((2, 2, 64))}),
        ("q", {"q": np.zeros((2, 2, 64), np.float32)}),
        ("q", {"q": np.zeros((2, 3, 64), np.float16)}),
        ("layer", {"layer": 2}),
        ("window", {"window": 0}),
        ("scale", {"scale": np.inf}),
        ("out", {"out": np.zeros((2, 2, 64), np.float32)}),
        ("out", {"out": np.zeros((2, 2, 80), np.float16)}),
        ("out", {"out": np.zeros((2, 2, 128), np.float16)[..., ::2]}),
        ("out", {"out": np.zeros(2 * 2 * 64 + 1, np.float16)[1:].reshape(2, 2, 64)}),
        ("block_tables", {"block_tables": np.zeros((2, 4), np.int64)}),
        ("seq_lens", {"seq_lens": np.zeros(3, np.int32)}),
    ],
)
def test_bad_arguments_are_named_before_anything_runs(name, change):
    attention = KernelBackend(Recorder())
    tables, lens = tables_of(2, 4)
    q = np.zeros((2, 2, 64), np.float16)
    good = {"layer": 0, "q": q, "block_tables": tables, "seq_lens": lens}
    starts = np.array([0, 1, 2], np.int32)
    for call, more in ((attention.decode, {}), (attention.prefill, {"query_start": starts})):
        with pytest.raises(RequestError) as caught:
            call(memory(), **{**good, **more, **change})
        assert caught.value.argument == name
    assert not attention.launcher.launches


def test_values_are_looked_at_with_debug_only():
    kv, q = memory(), np.zeros((1, 2, 64), np.float16)
    k, slots = q, np.array([10**6])
    tables, lens = np.full((1, 2), 99, np.int32), np.array([33], np.int32)
    for call in (
        lambda attention: attention.decode(kv, 0, q, tables, lens),
        lambda attention: attention.append(kv, 0, k, k, slots),
        lambda attention: attention.copy_blocks(kv, np.array([[0, 0, 1]], np.int32)),
        lambda attention: attention.prefill(kv, 0, q, np.array([0, 2], np.int32), tables, lens),
    ):
        with pytest.raises(RequestError):
            call(KernelBackend(Recorder(), debug=True))
        trusting = KernelBackend(Recorder())
        call(trusting)
        assert trusting.launcher.launches


def test_states_of_float64_are_refused():
    attention = KernelBackend(Recorder())
    out, lse = np.zeros((2, 1, 2, 8), np.float32), np.zeros((2, 1, 2))
    for pair in itertools.product((out.astype(np.float64),), (lse, lse.astype(np.float32))):
        with pytest.raises(RequestError, match="kernels take no float64"):
            attention.merge_states(*pair)
    with pytest.raises(RequestError, match="kernels take no float64"):
        attention.merge_states(out, lse)
