"""Attention written a second time: float64, contiguous keys and values, a query and head at a time.

`Filled` is a paged memory and what it was filled with, by plain loops and not by `append`: block
ids from the whole pool, NaN wherever no row owns a slot, 2^31-1 in entries that nobody may read.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from octavo.attention import KVSpec, PagedKV

UNREAD = 2**31 - 1
# What an output may differ by, mostly its own rounding; values are about 1.
TOLERANCE = {"float64": 1e-12, "float32": 3e-6, "float16": 1e-3, "bfloat16": 8e-3}


def plain_attention(q, k, v, scale=None, window=None):
    """Output and log-sum-exp of q[Q, heads, D], the last Q tokens, over k and v[L, kv heads, ·]."""
    q, k, v = (np.asarray(array).astype(np.float64) for array in (q, k, v))
    scale = 1 / math.sqrt(k.shape[2]) if scale is None else scale
    out = np.zeros((*q.shape[:2], v.shape[2]))
    lse = np.full(q.shape[:2], -np.inf)
    for i in range(len(q)):
        position = len(k) - len(q) + i
        first = 0 if window is None else max(0, position + 1 - window)
        for head in range(q.shape[1]):
            shared = head // (q.shape[1] // k.shape[1])
            if position < first:
                continue
            scores = k[first : position + 1, shared] @ q[i, head] * scale
            weights = np.exp(scores - scores.max())
            out[i, head] = weights @ v[first : position + 1, shared] / weights.sum()
            lse[i, head] = scores.max() + math.log(weights.sum())
    return out, lse


def spec_of(dtype, **shape):
    """A spec; the dtype "bytes" is fp8."""
    fp8 = dtype in {"bytes", "float8_e4m3"}
    scales = {"k_scale": 0.01, "v_scale": 0.02} if fp8 else {}
    return KVSpec(**{"dtype": "float8_e4m3" if fp8 else dtype, **scales, **shape})


def memory_of(dtype, **shape):
    """A memory; that of "bytes" holds fp8 as uint8, as all do on a GPU."""
    spec = spec_of(dtype, **shape)
    if dtype != "bytes":
        return PagedKV(spec)
    pairs = [
        (np.zeros(spec.k_shape, np.uint8), np.zeros(spec.v_shape, np.uint8))
        for _ in range(spec.num_layers)
    ]
    return PagedKV(spec, arrays=pairs)


def elements(plane):
    """The same array, whose elements NumPy knows."""
    return plane.view(ml_dtypes.float8_e4m3fn) if plane.dtype == np.uint8 else plane


class Filled:
    """A memory with a row for each length, and the keys and values of its rows in float64."""

    def __init__(self, lens, *, seed=0, layer=0, spare_blocks=5, spare_columns=2, **shape):
        self.random = np.random.default_rng(seed)
        size = shape["block_size"]
        counts = [-(-length // size) for length in lens]
        options = {"num_layers": layer + 1, "num_kv_heads": 2, "head_dim": 8, **shape}
        dtype = options.pop("dtype", "float32")
        self.kv = memory_of(dtype, num_blocks=sum(counts) + spare_blocks, **options)
        self.spec = self.kv.spec
        self.layer = layer
        self.seq_lens = np.array(lens, dtype=np.int32)
        ids = iter(self.random.permutation(self.spec.num_blocks))
        width = max([*counts, 0]) + spare_columns
        self.block_tables = np.full((len(lens), width), UNREAD, dtype=np.int32)
        for row, count in enumerate(counts):
            self.block_tables[row, :count] = [next(ids) for _ in range(count)]
        for one in range(self.spec.num_layers):
            elements(self.kv.k(one))[...] = np.nan
            elements(self.kv.v(one))[...] = np.nan
        keys, values = elements(self.kv.k(layer)), elements(self.kv.v(layer))
        self.keys = [self._fill(row, keys, self.spec.k_scale) for row in self.rows]
        self.values = [self._fill(row, values, self.spec.v_scale) for row in self.rows]

    @property
    def rows(self):
        return range(len(self.seq_lens))

    def place(self, row, position):
        """The index of a token in an array of the layout, all heads."""
        block, slot = divmod(position, self.spec.block_size)
        block = self.block_tables[row, block]
        return (block, slot) if self.spec.layout == "NHD" else (block, slice(None), slot)

    def _fill(self, row, plane, scale):
        each = np.broadcast_to(1.0 if scale is None else scale, (self.spec.num_kv_heads,))[:, None]
        told = []
        for position in range(self.seq_lens[row]):
            given = self.random.standard_normal((self.spec.num_kv_heads, plane.shape[-1]))
            plane[self.place(row, position)] = (given / each).astype(plane.dtype)
            told.append(plane[self.place(row, position)].astype(np.float64) * each)
        return np.array(told).reshape(-1, self.spec.num_kv_heads, plane.shape[-1])

    def queries(self, count, heads, dtype):
        given = self.random.standard_normal((count, heads, self.spec.head_dim))
        return given.astype(dtype)

    def bytes(self):
        """All of the memory: equal before and after means that nothing was written."""
        return b"".join(
            plane.tobytes()
            for layer in range(self.spec.num_layers)
            for plane in (self.kv.k(layer), self.kv.v(layer))
        )
