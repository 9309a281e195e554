"""A chunk of a prompt against its context: arithmetic a second, beside a product of matrices."""

from __future__ import annotations

import numpy as np

import machine as machines
import pages
from clock import Clock, Tape
from rows import Row

_KV_HEADS, _GROUP, _DIM = 8, 4, 128


def prefills(machine):
    clock = Clock(machine)
    matmul = clock.product_rate()
    yield Row(f"a product of matrices, {machine.half}", matmul, "FLOP/s")
    chunk, context = machine.size((2048, 8192), (9, 31))
    for stored in (machine.half, "float8_e4m3"):
        time = timed(machine, clock, [context + chunk], chunk, stored)
        flop = _flop(chunk, context)
        reached = time.rate(flop)
        work = f"prefill {chunk:,} tokens behind {context:,}, 32/8 x 128, {stored}"
        yield Row(work, reached, "FLOP/s", time.spread, "the product of matrices", reached / matmul)
    count, length = machine.size((8, 1024), (2, 9))
    time = timed(machine, clock, [length] * count, length, machine.half)
    reached = time.rate(count * _flop(length, 0))
    work = f"prefill {count} whole prompts of {length:,}"
    yield Row(work, reached, "FLOP/s", time.spread, "the product of matrices", reached / matmul)


def _flop(chunk, context):
    """Two products of as many pairs as are seen."""
    seen = chunk * context + chunk * (chunk + 1) // 2
    return 4 * seen * _KV_HEADS * _GROUP * _DIM


def timed(machine, clock, lens, queries, stored):
    shape = {"num_kv_heads": _KV_HEADS, "head_dim": _DIM, "block_size": 16}
    rows = pages.Rows(machine, len(lens), lens[0], stored=stored, **shape)
    attention, total = machine.make(), queries * len(lens)
    q = rows.queries(total, _KV_HEADS * _GROUP, machine.half)
    out = machine.xp.zeros(q.shape, dtype=q.dtype)
    starts = machine.xp.asarray((np.arange(len(lens) + 1) * queries).astype(np.int32))
    tape = Tape(
        attention,
        lambda: attention.prefill(rows.kv, 0, q, starts, rows.tables, rows.lens, out=out),
    )
    return clock(tape)


if __name__ == "__main__":
    machines.run(prefills)
