"""The picture of the blocks in text, drawn from the twin's state."""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.naive_pool import NaivePool

_LETTERS = ascii_uppercase + ascii_lowercase
_BLOCKS_PER_LINE = 16


def draw(pool: NaivePool, named: Sequence[tuple[int, list[int]]]) -> str:
    """Draws the pool. `named`: computed tokens and table of each sequence, in order."""
    held = sum(block.count > 0 for block in pool.blocks.values())
    summary = f"{held} held, {len(pool.recency)} cached, {len(pool.fenced)} fenced"
    lines = [
        f"{pool.num_blocks} blocks x {pool.block_size} tokens: {summary}, {pool.num_blank()} blank"
    ]
    for first in range(0, pool.num_blocks, _BLOCKS_PER_LINE):
        past = min(first + _BLOCKS_PER_LINE, pool.num_blocks)
        marks = "".join(_mark(pool, named, number) for number in range(first, past))
        lines.append(f"{first:>5} {marks}")
    for letter, (num_tokens, table) in zip(_LETTERS, named, strict=False):
        slots = len(table) * pool.block_size
        blocks = " ".join(map(str, table))
        lines.append(
            f"{letter}: {num_tokens} tokens in {len(table)} blocks ({blocks}), "
            f"{slots - num_tokens} of {slots} slots unused"
        )
    return "".join(f"{line}\n" for line in lines)


def _mark(pool: NaivePool, named: Sequence[tuple[int, list[int]]], number: int) -> str:
    if number < pool.first or number in pool.fenced:
        return "0" if number < pool.first else "~"
    if number in pool.recency:
        return "="
    if number in pool.stack or number not in pool.blocks:
        return "."
    owners = [index for index, (_, table) in enumerate(named) if number in table]
    if not owners:
        return ">"
    if len(owners) > 1:
        return "+"
    return _LETTERS[owners[0]] if owners[0] < len(_LETTERS) else "#"
