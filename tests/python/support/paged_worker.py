"""What runs plans in the theorem: a Llama over paged memory that is NaN wherever nobody may read.

It is as unkind as the contract allows. All memory is NaN at first; a block is NaN again when it is
blank, and from the first token on that a plan computes in it, as soon as the plan is out: a step
may touch its blocks from then on. The pass itself is run at once, or as late as its commit, after
plans that came later have poisoned what they will write; whole, or row by row from the last to the
first, since no row may read what another computes in the same plan. Copies run when the plan comes
out, before passes that came earlier, or just before its own. Tables are rebuilt from table changes
alone, and what lies past their ends is no block at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.attention import Backend, KVSpec, PagedKV, reference
from octavo.model import Batch, sample
from support.replay import TableMirror

if TYPE_CHECKING:
    from octavo.model import Llama, Sampling

_NO_BLOCK = 2**31 - 1


@dataclass
class _Pass:
    """A plan's arrays, copied when it came out."""

    batch: Batch
    sources: Any
    copies: Any
    samplings: list[Sampling]


class PagedWorker:
    """Memory, tables and passes of one scheduler."""

    def __init__(
        self,
        model: Llama,
        num_blocks: int,
        block_size: int,
        *,
        layout: str,
        late: bool,
        late_copies: bool = False,
        by_row: bool = False,
        backend: Backend = reference,
    ) -> None:
        config = model.config
        spec = KVSpec(
            num_layers=config.num_layers,
            num_blocks=num_blocks,
            block_size=block_size,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=model.dtype,
            layout=layout,
        )
        self.model = model
        self.backend = backend
        self.kv = PagedKV(spec)
        self.late, self.late_copies = late, late_copies
        self.by_row = by_row
        self.mirror = TableMirror()
        self.passes: dict[int, _Pass] = {}
        self.sampled: dict[int, Any] = {}
        reference.poison_all(self.kv)

    def begin(self, plan: Any, samplings: list[Sampling]) -> None:
        """Takes a plan that has just come out, and does what need not wait for its pass."""
        self.mirror.apply(plan)
        tables = self._tables(plan)
        copies = np.array(plan.copies)
        for _, target, _ in copies.tolist():
            self._poison([target], 0)
        starts = (plan.seq_lens - plan.num_tokens).tolist()
        size = self.kv.spec.block_size
        for table, start, length in zip(tables, starts, plan.seq_lens.tolist(), strict=True):
            blocks = table[start // size : -(-length // size)].tolist()
            self._poison(blocks[:1], start % size)
            self._poison(blocks[1:], 0)
        if not self.late_copies:
            self._copy(copies)
        arrays = (plan.token_ids, plan.positions, plan.slot_mapping, plan.query_start)
        rest = (tables, np.array(plan.seq_lens), np.array(plan.sample))
        batch = Batch(plan.num_decodes, *map(np.array, arrays), *rest)
        self.passes[plan.number] = _Pass(batch, np.array(plan.token_source), copies, samplings)
        if not self.late:
            self._run(plan.number)

    def end(self, number: int) -> Any:
        """The tokens of a plan, which is run now at the latest."""
        self._run(number)
        del self.passes[number]
        return self.sampled[number]

    def void(self, number: int) -> None:
        """Forgets a plan and all later ones; what they would have written may be anything."""
        self.passes = {at: one for at, one in self.passes.items() if at < number}

    def poison_blank(self, picture: str) -> None:
        """Poisons what a scheduler's `draw` shows as blank: no plan that is out may read it."""
        lines = re.findall(r"^ *\d+ ([^ \n]+)$", picture, re.MULTILINE)
        self._poison([at for at, mark in enumerate("".join(lines)) if mark == "."], 0)

    def _run(self, number: int) -> None:
        if number in self.sampled:
            return
        one = self.passes[number]
        batch = one.batch
        if self.late_copies:
            self._copy(one.copies)
        for place, source, index in one.sources.tolist():
            batch.token_ids[place] = self.sampled[source][index]
        if len(batch.seq_lens) == 0:
            self.sampled[number] = np.empty(0, dtype=np.int32)
            return
        logits = (self._forward_by_row if self.by_row else self._forward)(batch)
        positions = batch.positions[batch.sample] + 1
        self.sampled[number] = sample(logits, one.samplings, positions)

    def _copy(self, copies: Any) -> None:
        if len(copies):
            self.backend.copy_blocks(self.kv, copies)

    def _forward(self, batch: Batch) -> Any:
        return self.model.forward(batch, self.kv, self.backend)

    def _forward_by_row(self, batch: Batch) -> Any:
        logits = np.empty((len(batch.sample), self.model.config.vocab_size))
        for row in reversed(range(len(batch.seq_lens))):
            start, end = batch.query_start[row : row + 2].tolist()
            mine = (start <= batch.sample) & (batch.sample < end)
            logits[mine] = self._forward(
                Batch(
                    int(row < batch.num_decodes),
                    batch.token_ids[start:end],
                    batch.positions[start:end],
                    batch.slot_mapping[start:end],
                    batch.query_start[row : row + 2] - start,
                    batch.block_tables[row : row + 1],
                    batch.seq_lens[row : row + 1],
                    batch.sample[mine] - start,
                )
            )
        return logits

    def _tables(self, plan: Any) -> Any:
        size = self.kv.spec.block_size
        counts = [-(-length // size) for length in plan.seq_lens.tolist()]
        tables = np.full((len(counts), max(counts, default=0) + 1), _NO_BLOCK, dtype=np.int32)
        for at, (row, count) in enumerate(zip(plan.rows.tolist(), counts, strict=True)):
            tables[at, :count] = self.mirror.row(row, count)
        return tables

    def _poison(self, blocks: list[int], offset: int) -> None:
        for layer in range(self.kv.spec.num_layers):
            for plane in (self.kv.k(layer), self.kv.v(layer)):
                if self.kv.spec.layout == "NHD":
                    plane[blocks, offset:] = np.nan
                else:
                    plane[blocks, :, offset:] = np.nan
