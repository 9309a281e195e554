"""Paged memory with rows on the machine; where its blocks lie, and what is asked of it."""

from __future__ import annotations

import numpy as np

from octavo.attention import KVSpec, PagedKV
from octavo.attention.dtypes import FP8, numpy_dtype

UNREAD = 2**31 - 1


def spec_of(stored, **shape):
    """A spec; fp8 has scales that differ by head."""
    heads = shape["num_kv_heads"]
    scales = {}
    if stored == FP8:
        scales["k_scale"] = [0.02 + 0.01 * (head % 3) for head in range(heads)]
        scales["v_scale"] = [0.03 - 0.01 * (head % 2) for head in range(heads)]
    return KVSpec(dtype=stored, **scales, **shape)


def on_host(spec):
    """The same memory over NumPy; fp8 as bytes, as it is on a card."""
    if spec.dtype != FP8:
        return PagedKV(spec)
    layers = range(spec.num_layers)
    pairs = [(np.zeros(spec.k_shape, np.uint8), np.zeros(spec.v_shape, np.uint8)) for _ in layers]
    return PagedKV(spec, arrays=pairs)


def tables_for(random, lens, spec, *, ids=None, spare_columns=0):
    """Block tables whose ids are drawn from the whole pool, or from `ids`; unused: 2^31-1."""
    counts = [-(-length // spec.block_size) for length in lens]
    drawn = iter(random.permutation(spec.num_blocks) if ids is None else random.permutation(ids))
    tables = np.full((len(lens), max([*counts, 0]) + spare_columns), UNREAD, np.int32)
    for row, count in enumerate(counts):
        tables[row, :count] = [next(drawn) for _ in range(count)]
    return tables, np.array(lens, np.int32)


def normal(random, shape, dtype):
    """Random numbers of a type, by its name."""
    return random.standard_normal(shape, dtype=np.float32).astype(numpy_dtype(dtype))


def repeated(machine, few, shape, dtype):
    """Numbers of the host on the machine, again and again: quick, and as good to read as any."""
    size = int(np.prod(shape))
    # As integers: they are but moved, and CuPy moves every integer.
    bits = np.dtype(f"u{few.dtype.itemsize}")
    some = machine.xp.asarray(few.view(bits))
    return machine.xp.tile(some, -(-size // some.size))[:size].view(dtype).reshape(shape)


class Rows:
    """Rows of equal length, every block of the pool in use, filled with random numbers."""

    def __init__(self, machine, count, length, *, stored, num_layers=1, spare_blocks=0, **shape):
        random = np.random.default_rng(0)
        xp, blocks = machine.xp, -(-length // shape["block_size"])
        spec = spec_of(
            stored, num_layers=num_layers, num_blocks=count * blocks + spare_blocks, **shape
        )
        self.spec, self.kv, self.machine = spec, PagedKV(spec, xp=xp), machine
        tables, lens = tables_for(random, [length] * count, spec)
        self.tables, self.lens = xp.asarray(tables), xp.asarray(lens)
        self.random = random
        some = min(2**20, self.kv.k(0).size)
        # Bytes below 0x78 are finite in fp8.
        fp8 = random.integers(0, 0x78, some, dtype=np.uint8)
        few = fp8 if stored == FP8 else normal(random, some, stored)
        for layer in range(num_layers):
            for plane in (self.kv.k(layer), self.kv.v(layer)):
                plane[...] = repeated(machine, few, plane.shape, plane.dtype)

    def queries(self, count, heads, dtype):
        shape = (count, heads, self.spec.head_dim)
        return self.machine.xp.asarray(normal(self.random, shape, dtype))

    @property
    def kv_bytes(self):
        """Bytes of the keys and values of all rows in one layer."""
        return int(self.lens.sum()) * self.spec.bytes_per_token // self.spec.num_layers
