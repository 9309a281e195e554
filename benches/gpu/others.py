"""Decode and prefill beside other libraries on the same card, where they are: PyTorch, FlashInfer.

PyTorch attends over contiguous keys and values, FlashInfer over pages. What fails there is told and
is no fault of ours: FlashInfer may compile for longer than this section has.
"""

from __future__ import annotations

from functools import partial

import numpy as np

import decodes
import machine as machines
import pages
import peers
import prefills
from clock import Clock
from rows import Row

_BLOCK = 16


def others(machine):
    torch = peers.torch_of(machine)
    if torch is None:
        yield Row("PyTorch", note="absent" if machine.is_card else "a dry run")
        return
    clock, half = Clock(machine), machine.half
    count, length = machine.size((64, 4096), (3, 48))
    rows = decodes.rows_of(machine, count, length, half)
    ours = decodes.timed(machine, clock, rows, 4)
    work = f"decode {count} x {length:,} tokens, 32/8 x 128, {half}"
    yield Row(work, ours.seconds, "s", ours.spread)
    shape = count, 32, 8, 128
    make = partial(peers.torch_decode, torch, half, shape, length)
    yield _beside(clock, work, ours, "PyTorch", make)

    chunk, context = machine.size((2048, 8192), (9, 31))
    time = prefills.timed(machine, clock, [context + chunk], chunk, half)
    behind = f"prefill {chunk:,} tokens behind {context:,}, 32/8 x 128, {half}"
    yield Row(behind, time.seconds, "s", time.spread)
    prompt = chunk, 32, 8, 128
    make = partial(peers.torch_prefill, torch, half, prompt, context + chunk)
    yield _beside(clock, behind, time, "PyTorch", make)

    tables, _ = pages.tables_for(np.random.default_rng(0), [length] * count, rows.spec)
    make = partial(peers.flashinfer_decode, torch, half, shape, tables, _BLOCK)
    yield _beside(clock, work, ours, "FlashInfer", make)


def _beside(clock, work, ours, name, make):
    """Another library's time, and how many times as long it takes."""
    try:
        call = make()
        if call is None:
            return Row(name, note="absent")
        theirs = clock(call)
    except Exception as error:  # noqa: BLE001 - told in the table
        return Row(name, note=f"failed: {type(error).__name__}: {str(error)[:120]}")
    ratio = theirs.seconds / ours.seconds
    return Row(f"{name}: {work}", theirs.seconds, "s", theirs.spread, "ours", ratio)


if __name__ == "__main__":
    machines.run(others)
