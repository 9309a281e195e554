"""The launcher over CuPy, on a CuPy without a GPU: what it passes on, what it refuses, and when."""

import importlib.metadata

import numpy as np
import pytest

from octavo import _optional
from octavo.attention import KVSpec, PagedKV, gpu, kernels, reference
from octavo.attention.arrays import address_of
from octavo.attention.dtypes import numpy_dtype
from octavo.attention.launch import Kernel
from octavo.errors import MissingDependencyError, RequestError, StateError
from support.fake_cuda import Card, World, capturing
from support.fake_cupy import FakeCupy, install
from support.plain_attention import Filled

PARAMS = (
    ("slots", "*int64"),
    ("block_tables", "const *int32"),
    ("seq_lens", "const *int32"),
    ("query_start", "const *int32"),
    ("block_size", "int32"),
    ("table_stride", "int64"),
)
PLAIN = kernels.slots_from_tables()
TEMPLATE = kernels.decode_mma("float16", "float16", 128, 128)


@pytest.fixture
def cupy(monkeypatch):
    return install(monkeypatch)


def plain_arguments(xp, **changes):
    values = {
        "slots": xp.zeros(4, np.int64),
        "block_tables": xp.zeros((1, 2), np.int32),
        "seq_lens": xp.zeros(1, np.int32),
        "query_start": None,
        "block_size": np.int32(16),
        "table_stride": np.int64(2),
    }
    return list({**values, **changes}.values())


# --- launches -------------------------------------------------------------------------------------


def test_what_is_launched_is_what_was_given(cupy):
    launcher = gpu.CupyLauncher()
    assert launcher.xp is cupy
    assert not cupy.world.compiled
    args = plain_arguments(cupy)
    launcher.launch(PLAIN, (3, 2, 1), args)
    [launch] = cupy.world.launches
    assert (launch.name, launch.grid, launch.block) == ("slots_from_tables", (3, 2, 1), (128, 1, 1))
    assert (launch.shared_mem, launch.stream.ptr) == (0, 0)
    null = launch.args[3]
    assert launch.args[:3] == tuple(args[:3])
    assert launch.args[4:] == tuple(args[4:])
    # CuPy takes a number for as many bytes as it has: a pointer has 8.
    assert (null, null.dtype) == (0, np.uint64)


def test_a_kernel_is_compiled_once_when_it_is_first_needed(cupy):
    launcher = gpu.CupyLauncher()
    for _ in range(3):
        launcher.prepare(TEMPLATE)
        launcher.launch(PLAIN, (1, 1, 1), plain_arguments(cupy))
    names = ["decode_mma<__half,__half,128,128,4,2>", "slots_from_tables"]
    assert cupy.world.compiled == [(name, ("-std=c++17",)) for name in names]
    assert all(cupy.world.attributes[name]["asked"] for name in names), "loaded, not only compiled"


def test_launches_follow_the_current_stream(cupy):
    launcher, stream = gpu.CupyLauncher(), cupy.cuda.Stream(non_blocking=True)
    with stream:
        launcher.launch(PLAIN, (1, 1, 1), plain_arguments(cupy))
    launcher.launch(PLAIN, (1, 1, 1), plain_arguments(cupy))
    assert [launch.stream.ptr for launch in cupy.world.launches] == [stream.ptr, 0]


def test_an_empty_grid_is_no_launch_and_is_checked_all_the_same(cupy):
    launcher = gpu.CupyLauncher()
    launcher.launch(PLAIN, (0, 1, 1), plain_arguments(cupy))
    with pytest.raises(RequestError, match="block_size"):
        launcher.launch(PLAIN, (0, 1, 1), plain_arguments(cupy, block_size=16))
    assert not cupy.world.launches


def test_shared_memory_beyond_the_usual_is_asked_for(cupy):
    launcher = gpu.CupyLauncher()
    small, large = kernels.decode_cores("float16", "float16", 64, 64, 1), TEMPLATE
    assert small.shared_bytes <= 48 * 1024 < large.shared_bytes
    for kernel in (small, large):
        launcher.prepare(kernel)
    asked = {
        name: told.get("max_dynamic_shared_size_bytes")
        for name, told in cupy.world.attributes.items()
    }
    assert asked == {small.name: None, large.name: large.shared_bytes}


def test_more_shared_memory_than_the_card_has_is_named(monkeypatch):
    cupy = install(monkeypatch, World(cards=[Card(shared=50_000)]))
    with pytest.raises(RequestError) as caught:
        gpu.CupyLauncher().prepare(TEMPLATE)
    assert f"{TEMPLATE.shared_bytes} bytes of shared memory, the card has 50000" in str(
        caught.value
    )
    assert (caught.value.limit, caught.value.excess) == (50_000, TEMPLATE.shared_bytes - 50_000)
    assert not cupy.world.compiled


def test_resident_blocks_are_those_of_all_processors(monkeypatch):
    install(monkeypatch, World(cards=[Card(blocks=3, processors=100)]))
    assert gpu.CupyLauncher().resident_blocks(TEMPLATE) == 300
    # A kernel that fits nowhere divides nothing by zero.
    install(monkeypatch, World(cards=[Card(blocks=0, processors=100)]))
    assert gpu.CupyLauncher().resident_blocks(TEMPLATE) == 100


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("slots", np.zeros(4, np.int64), "given is a ndarray, no array of cupy"),
        ("slots", [1, 2], "given is a list"),
        ("block_size", 16, "given is a int"),
        ("block_size", np.int64(16), "given is a scalar of int64"),
        ("table_stride", np.int32(2), "given is a scalar of int32"),
    ],
)
def test_an_argument_of_another_kind_is_named(cupy, name, value, words):
    launcher = gpu.CupyLauncher()
    with pytest.raises(RequestError) as caught:
        launcher.launch(PLAIN, (1, 1, 1), plain_arguments(cupy, **{name: value}))
    assert caught.value.argument == name
    assert words in caught.value.message
    with pytest.raises(RequestError, match="takes 6, given are 5"):
        launcher.launch(PLAIN, (1, 1, 1), plain_arguments(cupy)[:5])


def test_a_float_pointer_takes_no_half(cupy):
    kernel = Kernel("merge_states.cu", "merge_states", (("out", "*float32"),), 32)
    with pytest.raises(RequestError, match=r"out: .* given is an array of float16"):
        gpu.CupyLauncher().launch(kernel, (1, 1, 1), [cupy.zeros(1, np.float16)])


# --- devices --------------------------------------------------------------------------------------


def test_an_array_on_another_device_is_named(monkeypatch):
    cupy = install(monkeypatch, World(cards=[Card(), Card()]))
    launcher = gpu.CupyLauncher()
    with cupy.cuda.Device(1):
        far, empty = cupy.zeros(1, np.int32), cupy.zeros((0, 2), np.int32)
    with pytest.raises(RequestError) as caught:
        launcher.launch(PLAIN, (1, 1, 1), plain_arguments(cupy, seq_lens=far))
    assert caught.value.argument == "seq_lens"
    assert "runs on device 0, given is an array on device 1" in caught.value.message
    # What holds nothing lies nowhere.
    launcher.launch(PLAIN, (1, 1, 1), plain_arguments(cupy, block_tables=empty))
    with cupy.cuda.Device(1), pytest.raises(StateError, match=r"enter `with cupy.cuda.Device\(0"):
        launcher.launch(PLAIN, (1, 1, 1), plain_arguments(cupy))
    assert len(cupy.world.launches) == 1


def test_memory_on_another_device_is_named(monkeypatch):
    cupy = install(monkeypatch, World(cards=[Card(), Card()]))
    attention = gpu.backend()
    spec = KVSpec(1, 4, 16, 2, 64, dtype="float16")
    with cupy.cuda.Device(1):
        kv = PagedKV(spec, xp=cupy)
    with pytest.raises(RequestError, match="kv: keys of layer 0 lie on device 1, kernels run on 0"):
        attention.poison_all(kv)


def test_a_launcher_is_of_the_device_that_was_current(monkeypatch):
    cupy = install(monkeypatch, World(cards=[Card(capability=70), Card()]))
    with cupy.cuda.Device(1):
        assert gpu.CupyLauncher().device == 1
        assert _optional.cuda_ready()


# --- graphs ---------------------------------------------------------------------------------------


def test_a_captured_stream_takes_prepared_kernels_only(cupy):
    launcher = gpu.CupyLauncher()
    args = plain_arguments(cupy)
    assert not launcher.is_capturing
    with capturing(cupy.cuda) as stream:
        assert launcher.is_capturing
        for call in (
            lambda: launcher.launch(PLAIN, (1, 1, 1), args),
            lambda: launcher.prepare(PLAIN),
            lambda: launcher.resident_blocks(PLAIN),
        ):
            with pytest.raises(
                StateError, match=r"slots_from_tables was never .* call prepare\(\)"
            ):
                call()
    assert not cupy.world.compiled
    launcher.prepare(PLAIN)
    ran = []
    cupy.world.run = lambda name, *_: ran.append(name)
    with stream:
        launcher.launch(PLAIN, (1, 1, 1), args)
    assert [launch.stream for launch in cupy.world.launches] == [stream]
    graph = stream.end_capture()
    assert not ran
    graph.launch(stream)
    graph.launch(stream)
    stream.synchronize()
    assert ran == ["slots_from_tables"] * 2


@pytest.mark.parametrize(("dtype", "stored"), kernels.PAIRS)
def test_after_prepare_a_step_can_be_captured(cupy, monkeypatch, dtype, stored):
    """Without it the first thing that is missing is named; with it nothing is."""
    scales = {"k_scale": 1.0, "v_scale": 1.0} if stored == "float8_e4m3" else {}
    kv = PagedKV(KVSpec(1, 64, 16, 2, 64, dtype=stored, **scales), xp=cupy)
    dtype = numpy_dtype(dtype)
    k, q, out = (cupy.zeros((6, heads, 64), dtype) for heads in (2, 8, 8))
    slots, starts = cupy.zeros(6, np.int64), cupy.asarray(np.arange(7, dtype=np.int32))
    tables, lens = cupy.zeros((6, 32), np.int32), cupy.zeros(6, np.int32)

    def step(attention):
        attention.append(kv, 0, k, k, slots)
        attention.decode(kv, 0, q, tables, lens, out=out)
        attention.prefill(kv, 0, q, starts, tables, lens, out=out)

    cold = gpu.backend()
    # Looked at once: the addresses of its planes are sent to the device.
    cold.memory(kv)
    with capturing(cupy.cuda), pytest.raises(StateError, match=r"call prepare\(\)"):
        step(cold)
    cupy.world.launches.clear()
    ready = gpu.backend()
    ready.prepare(kv, dtype=dtype.name, num_q_heads=8, max_queries=6, max_blocks=32)
    compiled = len(cupy.world.compiled)
    for name in ("empty", "zeros", "asarray", "array"):
        monkeypatch.setattr(cupy, name, lambda *_, **__: pytest.fail("was allocated"))
    with capturing(cupy.cuda) as stream:
        step(ready)
    assert len(cupy.world.compiled) == compiled
    assert {launch.stream for launch in cupy.world.launches} == {stream}
    assert len(cupy.world.launches) >= 3


def test_what_is_known_of_a_memory_is_there_for_every_stream(cupy):
    """Prepared in one stream, used in another: nothing makes that one wait for the first."""
    spec = KVSpec(1, 64, 16, 2, 64, dtype="float8_e4m3", k_scale=[0.5, 2.0], v_scale=0.25)
    kv, attention = PagedKV(spec, xp=cupy), gpu.backend()
    attention.prepare(kv, dtype="float16", num_q_heads=2, max_queries=1, max_blocks=1)
    known = attention.memory(kv)
    # As the device's memory is, with no stream waited for.
    assert known.k_scale.host.tolist() == [0.5, 2.0]
    assert known.v_scale.host.tolist() == [0.25, 0.25]
    assert known.planes.host[:, 0].tolist() == [address_of(kv.k(0)), address_of(kv.v(0))]


# --- what is not there ----------------------------------------------------------------------------

REFUSED = {
    "no driver": (World(status=35, driver=0), "there is no CUDA driver: install NVIDIA's"),
    "old driver": (
        World(status=35, driver=12_040),
        "the CUDA driver is for CUDA 12.4 and too old for CUDA 13.2: update it, or install",
    ),
    "no device": (World(status=100), "no CUDA device is present, or CUDA_VISIBLE_DEVICES hides it"),
    "another status": (World(status=999), "CUDA error 999"),
    "old card": (
        World(cards=[Card("Tesla V100", 70)]),
        "device 0 (Tesla V100) has compute capability 7.0, the kernels need 8.0: octavo.attention",
    ),
    "new card": (
        World(cards=[Card("Card of tomorrow", 130)]),
        "has compute capability 13.0, NVRTC 13.2 does not compile for it: install a newer",
    ),
    "no NVRTC": (
        World(architectures=None),
        "NVRTC, CUDA's compiler, is not found: install octavo[cuda12] or octavo[cuda13]",
    ),
}


@pytest.mark.parametrize(("world", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_run_says_what_to_do(monkeypatch, world, reason):
    install(monkeypatch, world)
    with pytest.raises(MissingDependencyError) as caught:
        gpu.backend()
    assert caught.value.dependency == "cupy"
    assert reason in caught.value.reason


def test_absent_cupy_says_what_to_install(monkeypatch):
    monkeypatch.setattr(_optional.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"install octavo\[cuda12\] or octavo\[cuda13"):
        gpu.backend()


def test_two_wheels_of_cupy_are_named(monkeypatch):
    cupy = install(monkeypatch)
    installed = {"cupy-cuda12x", "cupy-cuda13x", "numpy"}

    def distribution(name):
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(_optional.importlib.metadata, "distribution", distribution)
    with pytest.raises(MissingDependencyError) as caught:
        gpu.backend()
    assert "cupy-cuda12x and cupy-cuda13x overwrite each other's files" in caught.value.reason
    assert "uninstall both, then install octavo[cuda12] or" in caught.value.reason
    installed.remove("cupy-cuda12x")
    assert gpu.backend().launcher.xp is cupy


def test_an_import_that_fails_says_so_in_a_line(monkeypatch):
    install(monkeypatch)

    def broken(name):
        message = "\n=====\nCuPy failed to load libcublas.so\n\nlong advice"
        raise ImportError(message)

    monkeypatch.setattr(_optional.importlib, "import_module", broken)
    with pytest.raises(MissingDependencyError) as caught:
        gpu.backend()
    assert "its import fails (CuPy failed to load libcublas.so)" in caught.value.reason


def test_missing_headers_are_named_and_other_errors_of_the_compiler_are_shown(cupy):
    launcher = gpu.CupyLauncher()
    for words in ("cannot open source file", "could not open source file"):
        cupy.world.compile_error = f'common.cuh(3): catastrophic error: {words} "cuda_bf16.h"'
        with pytest.raises(MissingDependencyError, match="NVRTC finds no CUDA headers: install"):
            launcher.prepare(TEMPLATE)
    cupy.world.compile_error = "expected a ';'"
    with pytest.raises(cupy.cuda.compiler.CompileException, match="expected"):
        launcher.prepare(TEMPLATE)


def test_a_kernel_of_too_many_threads_is_named(monkeypatch):
    install(monkeypatch, World(cards=[Card(threads=64)]))
    with pytest.raises(RequestError, match="runs at most 64 threads a block here"):
        gpu.CupyLauncher().prepare(TEMPLATE)


# --- everything over its arrays -------------------------------------------------------------------


def on_device(cupy, filled):
    """The same memory on a device."""
    kv = PagedKV(filled.spec, xp=cupy)
    for layer in range(filled.spec.num_layers):
        for name in "kv":
            plane, given = getattr(kv, name)(layer), getattr(filled.kv, name)(layer)
            plane[...] = cupy.asarray(given.view(plane.dtype))
    return kv


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16", "float8_e4m3"])
def test_every_operation_takes_arrays_of_the_device(cupy, stored, debug, tmp_path):
    filled = Filled([5, 0, 33], block_size=16, head_dim=64, dtype=stored)
    kv, attention = on_device(cupy, filled), gpu.backend(debug=debug)
    dtype = np.float32 if stored == "float8_e4m3" else filled.kv.dtype
    q = cupy.asarray(filled.queries(3, 8, dtype))
    k = q[:, :2]
    tables, lens = cupy.asarray(filled.block_tables), cupy.asarray(filled.seq_lens)
    starts = cupy.asarray(np.array([0, 1, 1, 3], np.int32))
    ids = cupy.asarray(np.array([0, 1], np.int32))

    attention.append(kv, 0, k, k, cupy.asarray(np.array([0, -1, 5])))
    gathered = attention.gather(kv, 0, tables, lens)
    assert gathered[0].shape == (38, 2, 64)
    out, lse = attention.decode(kv, 0, q, tables, lens, return_lse=True)
    again = attention.prefill(kv, 0, q, starts, tables, lens, window=7)
    assert isinstance(again, cupy.ndarray)
    merged, _ = attention.merge_states(cupy.concatenate([out[None]]), lse[None])
    assert (merged.shape, merged.dtype) == (out.shape, out.dtype)
    attention.copy_blocks(kv, cupy.asarray(np.array([[0, 1, 3]], np.int32)))
    attention.swap_out(kv, ids, tmp_path / "kv")
    attention.swap_in(kv, ids, tmp_path / "kv")
    slots = attention.slots_from_tables(tables, lens, 16)
    assert slots.shape == (38,)
    indptr, indices, last = attention.tables_to_csr(tables, lens, 16)
    assert indptr.get().tolist() == [0, 1, 1, 4]
    # No kernel ran: the values of `indices` and `last` are still to come.
    indices[...], last[...] = 0, 1
    last[1] = 0
    back, _ = attention.csr_to_tables(indptr, indices, last, 16)
    assert back.shape == (3, 3)
    attention.poison(kv, tables, lens)
    attention.poison_all(kv)

    names = {launch.name.partition("<")[0] for launch in cupy.world.launches}
    assert names >= {"append", "gather", "merge_states", "copy_blocks", "mark_used", "poison"}
    assert names & {"decode_cores", "decode_mma"}
    assert names >= {"slots_from_tables", "tables_to_csr", "csr_to_tables"}
    assert names & {"prefill_mma", "expand_queries"}


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16", "float8_e4m3"])
def test_the_reference_gives_on_the_device_what_it_gives_on_the_host(cupy, layout, stored):
    filled = Filled([5, 0, 33, 16], block_size=4, dtype=stored, layout=layout)
    kv = on_device(cupy, filled)
    assert kv.spec.dtype == stored
    assert kv.dtype == (np.uint8 if stored == "float8_e4m3" else filled.kv.dtype)
    q = filled.queries(4, 4, np.float32)
    tables, lens = filled.block_tables, filled.seq_lens
    starts = np.array([0, 1, 1, 3, 4], np.int32)
    to_device = cupy.asarray
    on_host = (filled.kv, 0, q, tables, lens)
    far = (kv, 0, to_device(q), to_device(tables), to_device(lens))
    expected = reference.decode(*on_host, window=9, return_lse=True)
    found = reference.decode(*far, window=9, return_lse=True)
    for one, other in zip(expected, found, strict=True):
        assert np.array_equal(other.get(), one)
    expected = reference.prefill(filled.kv, 0, q, starts, tables, lens)
    found = reference.prefill(kv, 0, to_device(q), to_device(starts), *far[3:])
    assert np.array_equal(found.get(), expected)
    k, slots = filled.queries(3, 2, np.float32), np.array([2, -1, 40])
    reference.append(filled.kv, 0, k, -k, slots)
    reference.append(kv, 0, to_device(k), -to_device(k), to_device(slots))
    copies = np.array([[0, 1, 3], [0, 2, 0]], np.int32)
    reference.copy_blocks(filled.kv, copies)
    reference.copy_blocks(kv, to_device(copies))
    reference.poison(filled.kv, tables, lens)
    reference.poison(kv, *far[3:])
    for one, other in zip(filled.kv.pages(0), kv.pages(0), strict=True):
        assert other.get().tobytes() == np.ascontiguousarray(one).tobytes()
    for one, other in zip(
        reference.gather(filled.kv, 0, tables, lens), reference.gather(kv, 0, *far[3:]), strict=True
    ):
        assert other.get().tobytes() == one.tobytes()


def test_the_fake_has_only_what_cupy_has():
    cupy = FakeCupy(World())
    array = cupy.zeros(3, np.float32)
    for wrong in (
        lambda: array + np.ones(3, np.float32),
        lambda: np.asarray(array),
        lambda: array.__setitem__(0, np.ones(1, np.float32)),
        lambda: cupy.zeros(3, numpy_dtype("float8_e4m3")),
    ):
        with pytest.raises((TypeError, ValueError)):
            wrong()
    assert cupy.max(array).shape == ()
    assert not hasattr(array.flags, "writeable")
