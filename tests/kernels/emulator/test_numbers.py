"""Conversions of number types against NumPy's and ml_dtypes'."""

import ml_dtypes
import numpy as np
import pytest

FROM_FLOAT = """
__global__ void convert(const float* x, unsigned short* half, unsigned short* bfloat,
                        unsigned char* fp8, unsigned short* fp8_pairs, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    half[i] = __half_as_ushort(__float2half_rn(x[i]));
    bfloat[i] = __bfloat16_as_ushort(__float2bfloat16_rn(x[i]));
    fp8[i] = __nv_fp8_e4m3(x[i]).__x;
    const float2 pair = {x[i], -x[i]};
    fp8_pairs[i] = __nv_cvt_float2_to_fp8x2(pair, __NV_NOSAT, __NV_E4M3);
  }
}
"""
TO_FLOAT = """
__global__ void widen(float* half, float* bfloat, float* fp8, float* fp8_by_half) {
  const unsigned bits = blockIdx.x * blockDim.x + threadIdx.x;
  half[bits] = __half2float(__ushort_as_half((unsigned short)bits));
  bfloat[bits] = __bfloat162float(__ushort_as_bfloat16((unsigned short)bits));
  __nv_fp8_e4m3 narrow;
  narrow.__x = (unsigned char)bits;
  fp8[bits] = (float)narrow;
  const float2 pair = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(bits, __NV_E4M3)));
  fp8_by_half[bits] = bits % 2 ? pair.x : pair.y;
}
"""
PAIRS = """
__global__ void pairs(float* out, float a, float b) {
  const float2 h = __half22float2(__floats2half2_rn(a, b));
  const __nv_bfloat162 packed = __floats2bfloat162_rn(a, b);
  const float2 f = __bfloat1622float2(packed);
  unsigned word;
  memcpy(&word, &packed, 4);
  out[0] = h.x, out[1] = h.y, out[2] = f.x, out[3] = f.y;
  out[4] = __uint_as_float(word << 16), out[5] = __uint_as_float(word & 0xffff0000u);
}
"""


def same(found, expected):
    """Equal bit for bit, but for which NaN it is."""
    nan = np.isnan(expected)
    bits = np.dtype(f"u{expected.itemsize}")
    return np.array_equal(np.isnan(found), nan) and np.array_equal(
        found[~nan].view(bits), expected[~nan].view(bits)
    )


@pytest.fixture(scope="module")
def floats():
    """Every upper half of a float with the lower halves where rounding turns, and some others."""
    low = np.array([0, 1, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    bits = (np.arange(2**16, dtype=np.uint32)[:, None] << 16 | low).ravel()
    random = np.random.default_rng(3).integers(0, 2**32, 2**18, np.uint32)
    near = np.random.default_rng(4).uniform(-500, 500, 2**18).astype(np.float32)
    return np.concatenate([bits.view(np.float32), random.view(np.float32), near])


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered in cast:RuntimeWarning")
def test_from_float(emulate, floats):
    half, bfloat, pairs = (np.zeros(floats.size, np.uint16) for _ in range(3))
    fp8 = np.zeros(floats.size, np.uint8)
    params = (
        "const *float32 x, *uint16 half, *uint16 bfloat, *uint8 fp8, *uint16 fp8_pairs, int32 n"
    )
    args = [floats, half, bfloat, fp8, pairs, np.int32(floats.size)]
    emulate(FROM_FLOAT, "convert", params, args, grid=(64, 1, 1), threads=128)
    assert same(half.view(np.float16), floats.astype(np.float16))
    assert same(bfloat.view(ml_dtypes.bfloat16), floats.astype(ml_dtypes.bfloat16))
    # ml_dtypes does not saturate, NVIDIA's conversion does; the other one need not.
    e4m3 = ml_dtypes.float8_e4m3fn
    assert same(fp8.view(e4m3), np.clip(floats, -448, 448).astype(e4m3))
    plain = floats.astype(e4m3)
    both = pairs.view(np.uint8).reshape(-1, 2).view(e4m3)
    assert same(both[:, 0].copy(), plain)
    assert same(both[:, 1].copy(), -plain)


def test_to_float(emulate):
    half, bfloat, fp8, by_half = (np.zeros(2**16, np.float32) for _ in range(4))
    params = "*float32 half, *float32 bfloat, *float32 fp8, *float32 by_half"
    emulate(TO_FLOAT, "widen", params, [half, bfloat, fp8, by_half], grid=(512, 1, 1), threads=128)
    bits = np.arange(2**16).astype(np.uint16)
    narrow = np.arange(2**16).astype(np.uint8)
    pair = bits.view(np.uint8).reshape(-1, 2)[bits % 2 == 0, 1]
    e4m3 = ml_dtypes.float8_e4m3fn
    assert same(half, bits.view(np.float16).astype(np.float32))
    assert same(bfloat, bits.view(ml_dtypes.bfloat16).astype(np.float32))
    assert same(fp8, narrow.view(e4m3).astype(np.float32))
    assert same(by_half[1::2].copy(), narrow[1::2].copy().view(e4m3).astype(np.float32))
    assert same(by_half[::2].copy(), pair.copy().view(e4m3).astype(np.float32))


def test_pairs_have_the_first_in_the_lower_half(emulate):
    out = np.zeros(6, np.float32)
    args = [out, np.float32(1.5), np.float32(-3)]
    emulate(PAIRS, "pairs", "*float32 out, float32 a, float32 b", args, threads=1)
    assert out.tolist() == [1.5, -3] * 3
