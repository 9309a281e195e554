"""Every kernel against the reference in float64: memory bit by bit, attention within its rounding.

Slots that nobody owns are NaN, block ids are drawn from the whole pool, and entries of tables that
nobody reads are 2^31-1.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

import cases
import machine as machines
import oracle
import pages
from octavo.attention import PagedKV, reference
from octavo.attention.dtypes import FP8
from rows import Row

HEADS, LAYER, SPARE = 2, 1, 23


class Checked:
    """One case: a memory on the machine, its twin on the host, and what is asked of both."""

    def __init__(self, machine, attention, case):
        self.machine, self.attention, self.case = machine, attention, case
        self.random = np.random.default_rng(7)
        blocks = sum(-(-length // case.block_size) for length in case.lens) + SPARE
        spec = pages.spec_of(
            case.pair[1],
            num_layers=LAYER + 1,
            num_blocks=blocks,
            block_size=case.block_size,
            num_kv_heads=HEADS,
            head_dim=case.dims[0],
            v_head_dim=case.dims[1],
            layout=case.layout,
        )
        self.kv, self.twin = PagedKV(spec, xp=machine.xp), pages.on_host(spec)
        self.tables, self.lens = pages.tables_for(self.random, case.lens, spec, spare_columns=3)
        self.on_tensor = case.pair[0] != "float32"
        self.far = [machine.xp.asarray(array) for array in (self.tables, self.lens)]

    def normal(self, *shape):
        return pages.normal(self.random, shape, self.case.pair[0])

    def check_writes(self):
        """Poison and append, then all bytes of memory; and what gather reads of it."""
        kv, twin, xp = self.kv, self.twin, self.machine.xp
        self.attention.poison_all(kv)
        reference.poison_all(twin)
        slots = reference.slots_from_tables(self.tables, self.lens, kv.spec.block_size)
        found = self.attention.slots_from_tables(*self.far, kv.spec.block_size)
        oracle.check_equal("slots_from_tables", self.machine.host(found), slots)
        k, v = (self.normal(len(slots), HEADS, dim) for dim in self.case.dims)
        slots[::13] = -1
        self.attention.append(kv, LAYER, xp.asarray(k), xp.asarray(v), xp.asarray(slots))
        reference.append(twin, LAYER, k, v, slots)
        oracle.check_memory("append", self.machine, kv, twin)
        # What was left out is written now, so that no row reads NaN.
        slots[...] = reference.slots_from_tables(self.tables, self.lens, kv.spec.block_size)
        self.attention.append(kv, LAYER, xp.asarray(k), xp.asarray(v), xp.asarray(slots))
        reference.append(twin, LAYER, k, v, slots)
        for name, found, expected in zip(
            "KV",
            self.attention.gather(kv, LAYER, *self.far),
            reference.gather(twin, LAYER, self.tables, self.lens),
            strict=True,
        ):
            oracle.check_equal(f"gather: {name}", self.machine.host(found), expected)

    def check_attention(self):
        """Decode and prefill. Returns the largest error of each."""
        case, xp, host = self.case, self.machine.xp, self.machine.host
        window = {"window": case.window}
        told = {
            "dtype": case.pair[0],
            "largest": oracle.largest_value(self.twin, LAYER, self.tables, self.lens),
        }
        q = self.normal(len(self.lens), case.group * HEADS, case.dims[0])
        found = self.attention.decode(
            self.kv, LAYER, xp.asarray(q), *self.far, return_lse=True, **window
        )
        expected = oracle.decoded(self.twin, LAYER, q, self.tables, self.lens, **window)
        tensor = self.on_tensor and (case.pair[1] == FP8 or case.decode_on != "cores")
        errors = [
            oracle.check_attention(
                "decode", list(map(host, found)), expected, on_tensor=tensor, **told
            )
        ]
        starts = np.concatenate([[0], np.cumsum(case.counts)]).astype(np.int32)
        q = self.normal(int(starts[-1]), case.group * HEADS, case.dims[0])
        args = xp.asarray(q), xp.asarray(starts), *self.far
        found = self.attention.prefill(self.kv, LAYER, *args, return_lse=True, **window)
        expected = oracle.prefilled(self.twin, LAYER, q, starts, self.tables, self.lens, **window)
        errors.append(
            oracle.check_attention(
                "prefill", list(map(host, found)), expected, on_tensor=self.on_tensor, **told
            )
        )
        oracle.check_memory("attention writes nothing", self.machine, self.kv, self.twin)
        return errors

    def check_merge(self):
        """Parts of a row, one of them empty and its output NaN."""
        xp, host = self.machine.xp, self.machine.host
        out = self.normal(3, 5, 4, self.case.dims[1])
        lse = self.random.standard_normal((3, 5, 4)).astype(np.float32)
        lse[1, :2], lse[:, 2] = -np.inf, -np.inf
        out[1, :2], out[:, 2] = np.nan, np.nan
        found = self.attention.merge_states(xp.asarray(out), xp.asarray(lse))
        expected = reference.merge_states(out.astype(np.float64), lse.astype(np.float64))
        largest = float(np.nanmax(np.abs(out.astype(np.float64))))
        told = {"dtype": self.case.pair[0], "largest": largest, "on_tensor": False}
        oracle.check_attention("merge_states", list(map(host, found)), expected, **told)

    def check_moves(self, folder):
        """Copies, swaps, poison, and tables in their other form."""
        kv, twin, xp, host = self.kv, self.twin, self.machine.xp, self.machine.host
        spec = kv.spec
        order = self.random.permutation(spec.num_blocks)
        half = spec.num_blocks // 2
        tokens = self.random.integers(0, spec.block_size + 1, half)
        copies = np.stack([order[half : 2 * half], order[:half], tokens], axis=1).astype(np.int32)
        self.attention.copy_blocks(kv, xp.asarray(copies))
        reference.copy_blocks(twin, copies)
        oracle.check_memory("copy_blocks", self.machine, kv, twin)
        blocks = order[:9].astype(np.int32)
        self.attention.swap_out(kv, xp.asarray(blocks), folder / "far")
        reference.swap_out(twin, blocks, folder / "near")
        if (folder / "far").read_bytes() != (folder / "near").read_bytes():
            raise oracle.MismatchError("swap_out: files differ")
        self.attention.swap_in(kv, xp.asarray(blocks[::-1].copy()), folder / "near")
        reference.swap_in(twin, blocks[::-1].copy(), folder / "near")
        oracle.check_memory("swap_in", self.machine, kv, twin)
        self.attention.poison(kv, *self.far)
        reference.poison(twin, self.tables, self.lens)
        oracle.check_memory("poison", self.machine, kv, twin)
        size = spec.block_size
        compressed = reference.tables_to_csr(self.tables, self.lens, size)
        for found, expected in zip(
            self.attention.tables_to_csr(*self.far, size), compressed, strict=True
        ):
            oracle.check_equal("tables_to_csr", host(found), expected)
        for found, expected in zip(
            self.attention.csr_to_tables(*map(xp.asarray, compressed), size),
            reference.csr_to_tables(*compressed, size),
            strict=True,
        ):
            oracle.check_equal("csr_to_tables", host(found), expected)


@contextlib.contextmanager
def _told(case):
    """Says which case it was, whatever is raised."""
    try:
        yield
    except Exception as error:
        raise oracle.MismatchError(f"{case}: {type(error).__name__}: {error}") from error


def parity(machine):
    """A row for each pair: how many cases, and the largest errors."""
    worst, counts = defaultdict(lambda: [0.0, 0.0]), defaultdict(int)
    made = {}
    with tempfile.TemporaryDirectory() as name:
        for case in cases.every(machine.pairs, is_tiny=machine.is_tiny):
            options = {"decode_on": case.decode_on, "split_tokens": case.split_tokens}
            key = tuple(options.values())
            attention = made[key] if key in made else made.setdefault(key, machine.make(**options))
            with _told(case):
                checked = Checked(machine, attention, case)
                checked.check_writes()
                errors = checked.check_attention()
                checked.check_merge()
                checked.check_moves(Path(name))
            counts[case.pair] += 1
            worst[case.pair] = [max(pair) for pair in zip(worst[case.pair], errors, strict=True)]
    for pair, count in counts.items():
        decode, prefill = worst[pair]
        note = f"{count} cases; largest error: decode {decode:.1e}, prefill {prefill:.1e}"
        yield Row(f"parity, {pair[0]} over {pair[1]}", note=note)


if __name__ == "__main__":
    machines.run(parity)
