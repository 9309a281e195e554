"""What moves memory, against a copy on the card in the same run: gather, append, copies, swaps."""

from __future__ import annotations

from functools import partial

import numpy as np

import machine as machines
import pages
from clock import Clock, Tape
from rows import Row

_HEADS = {"num_kv_heads": 8, "head_dim": 128, "block_size": 16}


def copies(machine):
    clock = Clock(machine)
    rate, time = clock.copy_rate()
    yield Row("a copy on the card, read and written", rate, "B/s", time.spread)
    yield from _gather(machine, clock, rate)
    yield from _append(machine, clock, rate)
    yield from _copy_blocks(machine, clock, rate)
    yield from _swap(machine, clock)


def _beside_the_copy(work, time, moved, rate, aim=None, note=""):
    reached = time.rate(moved)
    return Row(work, reached, "B/s", time.spread, "the copy", reached / rate, aim, note)


def _gather(machine, clock, rate):
    count, length = machine.size((64, 4096), (3, 40))
    for stored in (machine.half, "float8_e4m3"):
        rows = pages.Rows(machine, count, length, stored=stored, **_HEADS)
        attention = machine.make()
        tape = Tape(attention, partial(attention.gather, rows.kv, 0, rows.tables, rows.lens))
        # fp8 comes as float32: four bytes written for one that is read.
        moved = rows.kv_bytes * (2 if stored == machine.half else 5)
        aim = 0.9 if stored == machine.half else None
        work = f"gather {count} x {length:,} tokens, 8 x 128, {stored}"
        yield _beside_the_copy(work, clock(tape), moved, rate, aim)


def _append(machine, clock, rate):
    tokens = machine.size(2**17, 2**6)
    rows, xp = pages.Rows(machine, 1, tokens, stored=machine.half, **_HEADS), machine.xp
    attention, random = machine.make(), np.random.default_rng(1)
    few = pages.normal(random, 2**10, machine.half)
    k, v = (pages.repeated(machine, few, (tokens, 8, 128), rows.kv.dtype) for _ in range(2))
    slots = xp.asarray(random.permutation(tokens).astype(np.int64))
    tape = Tape(attention, lambda: attention.append(rows.kv, 0, k, v, slots))
    work = f"append {tokens:,} tokens, 8 x 128, {machine.half}, slots at random"
    yield _beside_the_copy(work, clock(tape), 2 * rows.kv_bytes, rate)


def _copy_blocks(machine, clock, rate):
    layers, pairs = machine.size((8, 1024), (2, 4))
    rows = pages.Rows(machine, 1, 2 * pairs * 16, stored=machine.half, num_layers=layers, **_HEADS)
    attention, order = machine.make(), np.random.default_rng(2).permutation(2 * pairs)
    copies_ = np.stack([order[:pairs], order[pairs:], np.full(pairs, 16)], axis=1).astype(np.int32)
    ids = machine.xp.asarray(copies_)
    tape = Tape(attention, lambda: attention.copy_blocks(rows.kv, ids))
    moved = 2 * pairs * rows.spec.bytes_per_block
    work = f"copy {pairs:,} blocks of {layers} layers in one launch"
    yield _beside_the_copy(work, clock(tape), moved, rate)


def _swap(machine, clock):
    """Beside a copy of as many pinned bytes in one piece: of the link, not of the memory."""
    layers, blocks = machine.size((32, 512), (2, 4))
    rows = pages.Rows(machine, 1, blocks * 16, stored=machine.half, num_layers=layers, **_HEADS)
    attention, xp = machine.make(), machine.xp
    ids = xp.asarray(np.random.default_rng(3).permutation(blocks).astype(np.int32))
    shape = (blocks, rows.spec.bytes_per_block)
    size = shape[0] * shape[1]
    pageable = np.zeros(shape, np.uint8)
    pinned = pageable
    if machine.is_card:
        pinned = np.frombuffer(xp.cuda.alloc_pinned_memory(size), np.uint8, size).reshape(shape)
    whole = xp.zeros(size, dtype=np.uint8)
    links = {"out": lambda: _fetch(machine, whole, pinned), "in": lambda: _send(whole, pinned)}
    calls = {"out": attention.swap_out, "in": attention.swap_in}
    for way, link in links.items():
        best = clock.wall(link).rate(size)
        yield Row(f"a copy {way}, pinned, {size:,} B", best, "B/s")
        for kind, host in (("pinned", pinned), ("pageable", pageable)):
            time = clock.wall(partial(calls[way], rows.kv, ids, host))
            reached = time.rate(size)
            work = f"swap {blocks} blocks of {layers} layers {way}, {kind}"
            yield Row(work, reached, "B/s", time.spread, f"the copy {way}", reached / best)


def _fetch(machine, whole, host):
    if machine.is_card:
        whole.get(out=host.reshape(-1))
    else:
        host.reshape(-1)[...] = whole


def _send(whole, host):
    if hasattr(whole, "set"):
        whole.set(host.reshape(-1))
    else:
        whole[...] = host.reshape(-1)


if __name__ == "__main__":
    machines.run(copies)
