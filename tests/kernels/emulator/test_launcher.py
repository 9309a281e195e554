"""The launcher: a kernel from its text to its result, and everything that it refuses."""

import numpy as np
import pytest

from emulator.build import BuildError
from emulator.launcher import EmulatorError, EmulatorLauncher, parse_order
from octavo.attention.launch import Kernel, Launcher
from octavo.errors import RequestError

SUM = """
// out[block] = sum of a[i] + b[i] over the block's part of 0 ... n - 1
template <int WARPS>
__global__ void sum(float* __restrict__ out, const float* __restrict__ a,
                    const float* __restrict__ b, int n) {
  __shared__ float parts[WARPS];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float x = i < n ? a[i] + b[i] : 0.f;
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
  if ((threadIdx.x & 31) == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0.f;
    for (int w = 0; w < WARPS; ++w) total += parts[w];
    out[blockIdx.x] = total;
  }
}
"""
PARAMS = (
    ("out", "*float32"),
    ("a", "const *float32"),
    ("b", "const *float32"),
    ("n", "int32"),
)
KERNEL = Kernel(SUM, "sum<4>", PARAMS, 128)


def arguments(count=1000, blocks=8):
    a = np.arange(count, dtype=np.float32)
    return np.full(blocks, np.nan, np.float32), a, np.flip(a).copy(), np.int32(count)


def expected(blocks=8):
    _, a, b, _ = arguments()
    return [(a + b)[i * 128 : (i + 1) * 128].sum() for i in range(blocks)]


@pytest.mark.parametrize("order", ["forward", "reverse", "random:0", "random:5"])
@pytest.mark.parametrize("workers", [1, 2, 7])
def test_sums_of_blocks(order, workers):
    out, *rest = arguments()
    EmulatorLauncher(order=order, workers=workers).launch(KERNEL, (8, 1, 1), [out, *rest])
    assert out.tolist() == expected()


def test_fibers_of_the_c_library_do_the_same():
    out, *rest = arguments()
    EmulatorLauncher(defines=["-DCUEMU_UCONTEXT"]).launch(KERNEL, (8, 1, 1), [out, *rest])
    assert out.tolist() == expected()


def test_every_thread_of_every_block_runs_once(emulate):
    text = """
    __global__ void mark(int* seen) {
      const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      atomicAdd(&seen[block * blockDim.x + threadIdx.x], 1 + (int)(blockIdx.z * 100));
    }"""
    seen = np.zeros((2, 3, 5, 70), np.int32)
    emulate(text, "mark", "*int32 seen", [seen], grid=(5, 3, 2), threads=70, order="random:1")
    assert (seen[0] == 1).all()
    assert (seen[1] == 101).all()


ORDER = """
__global__ void order(int* turn, int* seen) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  turn[i] = atomicAdd(&seen[blockIdx.x], 1);
}
"""


def turns(emulate, order, workers):
    turn, seen = np.zeros((6, 96), np.int32), np.zeros(6, np.int32)
    size = {"grid": (6, 1, 1), "threads": 96}
    params = "*int32 turn, *int32 seen"
    emulate(ORDER, "order", params, [turn, seen], **size, order=order, workers=workers)
    assert (np.sort(turn) == np.arange(96)).all()
    return turn.tolist()


def test_an_order_is_the_same_however_many_workers_there_are(emulate):
    forward, backward = list(range(96)), list(range(95, -1, -1))
    assert turns(emulate, "forward", 3) == [forward] * 6
    assert turns(emulate, "reverse", 3) == [backward] * 6
    random = turns(emulate, "random:1", 1)
    assert turns(emulate, "random:1", 3) == random
    assert turns(emulate, "random:2", 3) != random
    assert len({tuple(block) for block in random}) == 6


def test_it_is_a_launcher():
    launcher: Launcher = EmulatorLauncher(resident=12)
    assert launcher.xp is np
    assert launcher.resident_blocks(KERNEL) == 12


def test_arguments_are_checked():
    out, a, b, _ = arguments()
    with pytest.raises(RequestError, match="n: kernel sum<4> takes int32, given is a int"):
        EmulatorLauncher().launch(KERNEL, (8, 1, 1), [out, a, b, 1000])


@pytest.mark.parametrize(
    ("at", "param", "message"),
    [
        (0, ("out", "*float16"), "out: kernel sum<4> takes *float32, declared is *float16"),
        (1, ("a", "*float32"), "a: kernel sum<4> takes const *float32, declared is *float32"),
        (3, ("n", "int64"), "n: kernel sum<4> takes int32, declared is int64"),
        (3, ("n", "uint32"), "n: kernel sum<4> takes int32, declared is uint32"),
    ],
)
def test_wrong_declaration_is_named(at, param, message):
    params = (*PARAMS[:at], param, *PARAMS[at + 1 :])
    with pytest.raises(RequestError) as caught:
        EmulatorLauncher().prepare(Kernel(SUM, "sum<4>", params, 128))
    assert str(caught.value) == message


def test_wrong_number_of_declarations_is_said():
    with pytest.raises(RequestError, match="params: kernel sum<4> takes 4, declared are 3"):
        EmulatorLauncher().prepare(Kernel(SUM, "sum<4>", PARAMS[:3], 128))


def test_every_type_has_its_name():
    text = """
    __global__ void types(float* a, const __half* b, __nv_bfloat16* c, const __nv_fp8_e4m3* d,
      const int* e, long long* f, unsigned char* g, const unsigned short* h, unsigned* i,
      int j, long long k, unsigned l, float m) {}
    """
    read = ["const *float16", "const *float8_e4m3", "const *int32", "const *uint16"]
    kinds = ["*float32", read[0], "*bfloat16", read[1], read[2], "*int64", "*uint8", read[3]]
    kinds += ["*uint32", "int32", "int64", "uint32", "float32"]
    params = tuple((f"p{i}", kind) for i, kind in enumerate(kinds))
    EmulatorLauncher().prepare(Kernel(text, "types", params, 32))


def test_compiler_errors_name_the_line():
    with pytest.raises(BuildError, match=r"kernel\.cu:2:.*oops"):
        EmulatorLauncher().prepare(Kernel("\n__global__ void f() { oops; }\n", "f", (), 32))


def test_many_are_prepared_at_once():
    launcher = EmulatorLauncher()
    kernels = [Kernel(SUM, f"sum<{n}>", PARAMS, 32 * n) for n in (1, 2, 8)]
    launcher.prepare_all([*kernels, kernels[0]], jobs=2)
    for kernel in kernels:
        out, *rest = arguments(blocks=1)
        launcher.launch(kernel, (1, 1, 1), [out, *rest])
        assert out[0] == 999 * kernel.threads


def test_what_was_compiled_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("CUEMU_CACHE", str(tmp_path))
    EmulatorLauncher().prepare(KERNEL)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(kept) == 2  # the kernel, and the runtime
    EmulatorLauncher().prepare(KERNEL)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == kept
    EmulatorLauncher().prepare(Kernel(SUM.replace("0.f", "0.5f"), "sum<4>", PARAMS, 128))
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("grid", "threads", "shared", "message"),
    [
        ((0, 1, 1), 128, 0, "a grid has"),
        ((1, 65536, 1), 128, 0, "a grid has"),
        ((1, 1, 1), 0, 0, "a block has 1"),
        ((1, 1, 1), 1056, 0, "a block has 1"),
        ((1, 1, 1), 128, 232449, "232449 bytes of shared memory"),
    ],
)
def test_sizes_that_no_device_accepts_are_refused(grid, threads, shared, message):
    kernel = Kernel(SUM, "sum<4>", PARAMS, threads, shared)
    with pytest.raises(EmulatorError, match=f"sum<4>: {message}"):
        EmulatorLauncher().launch(kernel, grid, arguments())


@pytest.mark.parametrize("order", ["backward", "random:x", "reverse:1", "random:-1"])
def test_unknown_orders_are_refused(order):
    with pytest.raises(ValueError, match="is no order"):
        EmulatorLauncher(order=order).launch(KERNEL, (8, 1, 1), arguments())


def test_knobs_of_the_environment(monkeypatch):
    monkeypatch.setenv("CUEMU_ORDER", "random:3")
    monkeypatch.setenv("CUEMU_WORKERS", "5")
    launcher = EmulatorLauncher()
    assert (parse_order(launcher.order), launcher.workers) == ((2, 3), 5)
    monkeypatch.setenv("CUEMU_SANITIZE", "thread")
    assert EmulatorLauncher().workers == 1
    monkeypatch.setenv("CUEMU_SANITIZE", "memory")
    with pytest.raises(ValueError, match="none of the sanitizers"):
        EmulatorLauncher()
