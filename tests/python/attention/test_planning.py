"""What the back end of kernels plans, packs and launches, on record."""

import gc
import sys
import weakref

import numpy as np
import pytest

from octavo.attention import KVSpec, PagedKV, kernels
from octavo.attention.arrays import address_of
from octavo.attention.kernel_backend import KernelBackend
from octavo.attention.launch import Kernel, arguments
from octavo.attention.splits import plan_splits
from octavo.errors import RequestError
from support.launches import DTYPES, FP8, decoded, memory, tables_of
from support.recording import Recorder

# --- which kernel, and how many blocks of it ----------------------------------------------------


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
        "gather": (3 * 1, 1, 1),  # as far as the longest row reaches
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


# --- arguments ----------------------------------------------------------------------------------


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
