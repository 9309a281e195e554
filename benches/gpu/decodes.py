"""Decode, in bytes of keys and values a second, against a copy on the card in the same run."""

from __future__ import annotations

import machine as machines
import pages
from clock import Clock, Tape
from rows import Row

_KV_HEADS, _DIM, _BLOCK = 8, 128, 16
_GROUPS = (1, 2, 4, 8)


def decodes(machine):
    clock = Clock(machine)
    rate, time = clock.copy_rate()
    yield Row("a copy on the card, read and written", rate, "B/s", time.spread)
    count, length = machine.size((64, 4096), (3, 40))
    rows = rows_of(machine, count, length, machine.half)
    work = f"decode {count} x {length:,} tokens, 32/8 x 128, {machine.half}"
    ours = timed(machine, clock, rows, 4)
    yield _share(work, ours, rows, rate, aim=0.85)
    for group in _GROUPS:
        for on in ("cores", "tensor"):
            time = timed(machine, clock, rows, group, decode_on=on)
            yield _share(f"{group} query heads to a KV head, {on}", time, rows, rate)
    fp8 = rows_of(machine, count, length, "float8_e4m3")
    work = f"decode {count} x {length:,} tokens, 32/8 x 128, {machine.half} over fp8"
    yield _share(work, timed(machine, clock, fp8, 4), fp8, rate)
    del fp8, rows
    for count, length in machine.size([(1, 2**17), (8, 2**13), (256, 512)], [(1, 300)]):
        some = rows_of(machine, count, length, machine.half)
        work = f"decode {count} x {length:,} tokens, 32/8 x 128, {machine.half}"
        yield _share(work, timed(machine, clock, some, 4), some, rate)


def rows_of(machine, count, length, stored):
    shape = {"num_kv_heads": _KV_HEADS, "head_dim": _DIM, "block_size": _BLOCK}
    return pages.Rows(machine, count, length, stored=stored, **shape)


def timed(machine, clock, rows, group, **options):
    """The kernels of a decode alone: what the host does before them is not in a graph either."""
    attention = machine.make(**options)
    q = rows.queries(len(rows.lens), group * _KV_HEADS, machine.half)
    out = machine.xp.zeros(q.shape, dtype=q.dtype)
    tape = Tape(attention, lambda: attention.decode(rows.kv, 0, q, rows.tables, rows.lens, out=out))
    return clock(tape)


def _share(work, time, rows, rate, aim=None):
    reached = time.rate(rows.kv_bytes)
    return Row(work, reached, "B/s", time.spread, "the copy", reached / rate, aim)


if __name__ == "__main__":
    machines.run(decodes)
