"""Decode of the reference back end over pages, beside plain NumPy over contiguous keys and values.

8,192 tokens in rows of 128 or of 1,024: more than a processor keeps at hand, as with the layers of
a model. 32 query and 8 KV heads of 128, float32, blocks of 16 from all of the pool.
"""

import math
import statistics
import time

import numpy as np
import pytest

from inputs import BLOCK_SIZE, draw
from octavo.attention import KVSpec, PagedKV, reference

TOKENS, HEADS, KV_HEADS, DIM = 8_192, 32, 8, 128


class Work:
    """The same keys, values and queries over pages and in one piece for each row."""

    def __init__(self, layout, length):
        rows, blocks = TOKENS // length, length // BLOCK_SIZE
        pool = 2 * rows * blocks
        self.kv = PagedKV(KVSpec(1, pool, BLOCK_SIZE, KV_HEADS, DIM, layout=layout))
        ids = np.argsort(draw(40, pool))[: rows * blocks]
        self.tables = ids.reshape(rows, blocks).astype(np.int32)
        self.lens = np.full(rows, length, np.int32)
        random = np.random.default_rng(41)
        shape = (TOKENS, KV_HEADS, DIM)
        k, v = (random.standard_normal(shape, dtype=np.float32) for _ in range(2))
        slots = reference.slots_from_tables(self.tables, self.lens, BLOCK_SIZE)
        reference.append(self.kv, 0, k, v, slots)
        self.keys, self.values = np.split(k, rows), np.split(v, rows)
        self.q = random.standard_normal((rows, HEADS, DIM), dtype=np.float32)

    def pages(self):
        return reference.decode(self.kv, 0, self.q, self.tables, self.lens)

    def contiguous(self):
        out = np.empty_like(self.q)
        for row, (k, v) in enumerate(zip(self.keys, self.values, strict=True)):
            grouped = self.q[row].reshape(KV_HEADS, -1, DIM)
            scores = grouped @ k.transpose(1, 2, 0) * (1 / math.sqrt(DIM))
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            out[row] = (weights @ v.transpose(1, 0, 2)).reshape(HEADS, DIM)
        return out


@pytest.mark.parametrize("length", [128, 1_024])
def test_decode_contiguous(benchmark, quick, length):
    work = Work("NHD", length)
    benchmark.pedantic(work.contiguous, rounds=7 if quick else 51, warmup_rounds=2)


@pytest.mark.parametrize("length", [128, 1_024])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_decode_pages(benchmark, quick, length, layout, capsys):
    work, beside = Work(layout, length), []

    def in_turns():
        start = time.perf_counter()
        work.contiguous()
        beside.append(time.perf_counter() - start)

    np.testing.assert_allclose(work.pages(), work.contiguous(), atol=1e-5)
    benchmark.pedantic(work.pages, setup=in_turns, rounds=7 if quick else 51, warmup_rounds=2)
    ratio = benchmark.stats.stats.median / statistics.median(beside)
    benchmark.extra_info["over_contiguous"] = ratio
    with capsys.disabled():
        print(f"\ndecode over pages, {layout}, {length}: {ratio:.2f} x the time in one piece")
