"""The shapes that kernels are checked with: every dtype, group, head dim and block size is met."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from octavo.attention.kernels import HEAD_DIMS

GROUPS = (1, 2, 3, 4, 5, 8, 16, 17)
SIZES = (16, 1, 32, 5, 256, 128)
# Decode on, and tokens of a split: a fixed one is met with every kernel.
_MANNERS = (("auto", None), ("cores", 128), ("tensor", 64), ("auto", 256))


@dataclass(frozen=True)
class Case:
    """One memory, and how it is attended to.

    Attributes:
        pair: What the model computes in, and what memory holds.
        dims: Elements of a key and of a value.
        group: Query heads of a KV head.
        block_size: Slots of a block.
        layout: NHD or HND.
        decode_on: As in `KernelBackend`.
        split_tokens: As in `KernelBackend`.
        window: Tokens attended to.
        long: Tokens of the longest row.
    """

    pair: tuple[str, str]
    dims: tuple[int, int]
    group: int
    block_size: int
    layout: str
    decode_on: str = "auto"
    split_tokens: int | None = None
    window: int | None = None
    long: int = 700

    @property
    def lens(self):
        size = self.block_size
        return [0, 1, max(size - 1, 2), size, size + 1, min(5 * size, 400), self.long]

    @property
    def counts(self):
        """Queries of each row of a prefill: padding, all, none, a few, one, and a chunk."""
        lens = self.lens
        return [2, 1, min(3, lens[2]), 0, min(17, lens[4]), 1, min(90, self.long)]


def every(pairs, *, is_tiny):
    """Cases in which each pair meets each head dim, and everything else by turns."""
    if is_tiny:
        dims = [(64, 64), (128, 128)]
    else:
        dims = [*((dim, dim) for dim in HEAD_DIMS), (192, 128), (64, 128)]
    groups, sizes = itertools.cycle(GROUPS), itertools.cycle(SIZES)
    manners, layouts = itertools.cycle(_MANNERS), itertools.cycle(("NHD", "HND", "HND"))
    windows = itertools.cycle((None, None, 100, None, 7))
    for pair, (k_dim, v_dim) in itertools.product(pairs, dims):
        decode_on, split_tokens = next(manners)
        yield Case(
            pair,
            (k_dim, v_dim),
            next(groups),
            next(sizes),
            next(layouts),
            decode_on,
            split_tokens,
            next(windows),
            long=90 if is_tiny else 1500,
        )
    half = next((pair for pair in reversed(pairs) if pair[0] == pair[1] != "float32"), pairs[0])
    if not is_tiny:
        for group, decode_on in itertools.product(GROUPS, ("cores", "tensor")):
            yield Case(half, (128, 128), group, next(sizes), next(layouts), decode_on, long=5000)
