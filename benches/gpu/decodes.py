"""Decode against the copy in the same run, and against PyTorch over contiguous keys and values."""

from __future__ import annotations

import numpy as np

import machine as machines
import pages
import peers
from clock import Clock, Tape
from rows import Row

_KV_HEADS, _DIM, _BLOCK = 8, 128, 16
_GROUPS = (1, 2, 4, 8)


def decodes(machine):
    clock = Clock(machine)
    rate, time = clock.copy_rate()
    yield Row("a copy on the card, read and written", rate, "B/s", time.spread)
    count, length = machine.size((64, 4096), (3, 40))
    rows = _rows(machine, count, length, machine.half)
    work = f"decode {count} x {length:,} tokens, 32/8 x 128, {machine.half}"
    ours = _timed(machine, clock, rows, 4)
    yield _share(work, ours, rows, rate, aim=0.85)
    for group in _GROUPS:
        for on in ("cores", "tensor"):
            time = _timed(machine, clock, rows, group, decode_on=on)
            yield _share(f"{group} query heads to a KV head, {on}", time, rows, rate)
    yield from _beside_torch(machine, clock, ours, (count, length))
    fp8 = _rows(machine, count, length, "float8_e4m3")
    work = f"decode {count} x {length:,} tokens, 32/8 x 128, {machine.half} over fp8"
    yield _share(work, _timed(machine, clock, fp8, 4), fp8, rate)
    del fp8, rows
    for count, length in machine.size([(1, 2**17), (8, 2**13), (256, 512)], [(1, 300)]):
        some = _rows(machine, count, length, machine.half)
        work = f"decode {count} x {length:,} tokens, 32/8 x 128, {machine.half}"
        yield _share(work, _timed(machine, clock, some, 4), some, rate)


def _rows(machine, count, length, stored):
    shape = {"num_kv_heads": _KV_HEADS, "head_dim": _DIM, "block_size": _BLOCK}
    return pages.Rows(machine, count, length, stored=stored, **shape)


def _timed(machine, clock, rows, group, **options):
    """The kernels of a decode alone: what the host does before them is not in a graph either."""
    attention = machine.make(**options)
    q = rows.queries(len(rows.lens), group * _KV_HEADS, machine.half)
    out = machine.xp.zeros(q.shape, dtype=q.dtype)
    tape = Tape(attention, lambda: attention.decode(rows.kv, 0, q, rows.tables, rows.lens, out=out))
    return clock(tape)


def _share(work, time, rows, rate, aim=None):
    reached = time.rate(rows.kv_bytes)
    return Row(work, reached, "B/s", time.spread, "the copy", reached / rate, aim)


def _beside_torch(machine, clock, ours, shape):
    """What others need for the same; they are no part of what must work."""
    torch, (count, length) = peers.torch_of(machine), shape
    if torch is None:
        yield Row("PyTorch", note="absent" if machine.is_card else "a dry run")
        return
    heads = (count, 4 * _KV_HEADS, _KV_HEADS, _DIM)
    tables, _ = pages.tables_for(
        np.random.default_rng(0),
        [length] * count,
        pages.spec_of(
            machine.half,
            num_layers=1,
            num_blocks=count * length // _BLOCK,
            block_size=_BLOCK,
            num_kv_heads=_KV_HEADS,
            head_dim=_DIM,
        ),
    )
    makers = {
        "PyTorch's attention, contiguous": lambda: peers.torch_decode(
            torch, machine.half, heads, length
        ),
        "FlashInfer's decode, pages": lambda: peers.flashinfer_decode(
            torch, machine.half, heads, tables, _BLOCK
        ),
    }
    for name, make in makers.items():
        try:
            call = make()
            time = None if call is None else clock(call)
        except Exception as error:  # noqa: BLE001 - a peer that fails is told, and no fault of ours
            yield Row(name, note=f"failed: {type(error).__name__}: {str(error)[:120]}")
            continue
        if time is None:
            yield Row(name, note="absent")
        else:
            ratio = time.seconds / ours.seconds
            yield Row(f"the same beside {name}", ours.seconds, "s", ours.spread, name, ratio)


if __name__ == "__main__":
    machines.run(decodes)
