"""Shared memory starts as NaN in every block; asynchronous copies land when they are waited for."""

import numpy as np
import pytest

from emulator.launcher import EmulatorError

STATIC = "__shared__ float s[64];"
DYNAMIC = "float* s = (float*)cuemu::dyn_smem();"


@pytest.mark.parametrize("memory", [STATIC, DYNAMIC], ids=["static", "dynamic"])
@pytest.mark.parametrize("workers", [1, 3])
def test_every_block_finds_nan(emulate, memory, workers):
    text = """
    __global__ void leave(float* out) {
      MEMORY
      out[blockIdx.x * 64 + threadIdx.x] = s[threadIdx.x];
      s[threadIdx.x] = 1.f;
    }""".replace("MEMORY", memory)
    out = np.zeros((9, 64), np.float32)
    size = {"grid": (9, 1, 1), "threads": 64, "shared": 256}
    emulate(text, "leave", "*float32 out", [out], **size, workers=workers)
    assert np.isnan(out).all()


COPY = """
__global__ void copy(float* out, const float* x, int early, int keep) {
  MEMORY
  const int t = threadIdx.x;
  if (t % 4 == 0) {
    cuemu::cp_async16(s + t, x + t);
    cuemu::cp_async_commit();
    cuemu::cp_async16(s + 32 + t, x + 32 + t, t < 16);
    cuemu::cp_async_commit();
    if (!early) cuemu::cp_async_wait(keep);
  }
  __syncthreads();
  out[t] = s[t];
  out[32 + t] = s[32 + t];
  __syncthreads();
  cuemu::cp_async_wait(0);
}
"""
PARAMS = "*float32 out, const *float32 x, int32 early, int32 keep"


@pytest.mark.parametrize("memory", [STATIC, DYNAMIC], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("early", "keep", "landed"), [(0, 0, 64), (0, 1, 32), (0, 2, 0), (1, 0, 0)]
)
def test_copies_land_at_the_wait_for_their_group(emulate, memory, early, keep, landed):
    x = np.arange(1, 65, dtype=np.float32)
    x[48:] = np.nan  # what a false predicate must not read
    out = np.zeros(64, np.float32)
    args = [out, x, np.int32(early), np.int32(keep)]
    emulate(COPY.replace("MEMORY", memory), "copy", PARAMS, args, shared=256, order="random:2")
    expected = np.where(np.arange(64) < 48, x, 0)
    assert np.array_equal(out[:landed], expected[:landed])
    assert np.isnan(out[landed:]).all()


FAULTS = {
    "cp.async: the shared address is not aligned to 16 bytes": "cuemu::cp_async16(s + 1, x);",
    "cp.async: the source is not aligned to 16 bytes": "cuemu::cp_async16(s, x + 1);",
    "cp.async: the address is not in the block's shared memory": "cuemu::cp_async16(s + 64, x);",
    "a thread exited with cp.async copies that it never waited for": "cuemu::cp_async16(s, x);",
    "ldmatrix: the shared address is not aligned to 16 bytes": "cuemu::ldmatrix_x4(f, s + 2);",
    "ldmatrix: the address is not in the block's shared memory": "cuemu::ldmatrix_x4(f, x);",
}


@pytest.mark.parametrize("message", FAULTS)
def test_misplaced_copies_are_told(emulate, message):
    text = """
    __global__ void wrong(const float* x) {
      MEMORY
      unsigned f[4] = {};
      CALL
      (void)f;
    }"""
    text = text.replace("MEMORY", DYNAMIC).replace("CALL", FAULTS[message])
    x = np.zeros(72, np.float32)
    x = x[(-x.ctypes.data // 4) % 4 :]
    with pytest.raises(EmulatorError) as caught:
        emulate(text, "wrong", "const *float32 x", [x], shared=256)
    assert str(caught.value).startswith(f"wrong: {message}\n  block (0,0,0) thread 0 ")
