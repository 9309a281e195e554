"""A model small enough to check by eye, whose every token depends on all that came before.

What it keeps per token slot is a digest of the whole history up to there, computed from the digest
in the slot before, which it finds through the block tables that a worker would know. A block that
is wrong, stale, copied too late or given to two sequences therefore changes the tokens that follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.replay import TableMirror
from support.views import as_list

if TYPE_CHECKING:
    from collections.abc import Sequence

VOCABULARY = 1_000
_START = 17
_PRIME = 2**61 - 1


def _digest(before: int, token: int) -> int:
    return (before * 1_000_003 + token + 1) % _PRIME


def _next_token(digest: int) -> int:
    return (digest >> 7) % VOCABULARY


def plain_output(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The tokens that the model gives without batches, blocks or a cache."""
    digest, output = _START, list[int]()
    for token in prompt:
        digest = _digest(digest, token)
    while len(output) < num_tokens:
        output.append(_next_token(digest))
        digest = _digest(digest, output[-1])
    return output


class PagedModel:
    """The same model over the slots of a block pool, told what to do by plans."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.memory: list[int | None] = [None] * (num_blocks * block_size)
        self.mirror = TableMirror()

    def copy(self, copies: Sequence[Sequence[int]]) -> None:
        """Does memory work: all copies read before any writes, as parallel ones may."""
        read = [self._span(source, length) for source, _, length in copies]
        for (_, target, length), values in zip(copies, read, strict=True):
            start = target * self.block_size
            self.memory[start : start + length] = values

    def _span(self, block: int, length: int) -> list[int | None]:
        start = block * self.block_size
        return self.memory[start : start + length]

    def compute(self, table: Sequence[int], position: int, token: int) -> int:
        """Writes one token's slot. Returns its digest."""
        before = _START if position == 0 else self.memory[self.slot(table, position - 1)]
        assert before is not None, "a slot is read before it was ever written"
        digest = _digest(before, token)
        self.memory[self.slot(table, position)] = digest
        return digest

    def slot(self, table: Sequence[int], position: int) -> int:
        return table[position // self.block_size] * self.block_size + position % self.block_size

    def __call__(self, plan: Any) -> list[int]:
        """Runs a plan. Returns the tokens to commit."""
        self.mirror.apply(plan)
        self.copy(as_list(plan.copies))
        starts = as_list(plan.query_start)
        tokens, positions, slots = map(as_list, (plan.token_ids, plan.positions, plan.slot_mapping))
        digests = list[int]()
        for place, (row, length) in enumerate(
            zip(as_list(plan.rows), as_list(plan.seq_lens), strict=True)
        ):
            table = self.mirror.row(row, -(-length // self.block_size))
            for index in range(starts[place], starts[place + 1]):
                assert slots[index] == self.slot(table, positions[index])
                digests.append(self.compute(table, positions[index], tokens[index]))
        return [_next_token(digests[index]) for index in as_list(plan.sample)]
