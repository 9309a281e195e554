"""How many parts the context of a decode is split into, so that the work fills the device."""

from __future__ import annotations

from functools import lru_cache

__all__ = ["LEAST_SPLIT", "MOST_WAVES", "plan_splits"]

# Fewer tokens are not worth a part of their own: that of cuda/pages.cuh.
LEAST_SPLIT = 128
# Waves that parts are worth: beyond, the last one hardly counts. It bounds the memory of the parts.
MOST_WAVES = 4
# How close to the best use of the device the fewest parts have to come.
_CLOSE = 0.85


# A step asks the same for each of its layers.
@lru_cache(maxsize=4096)
def plan_splits(blocks: int, longest: int, resident: int, split_tokens: int | None = None) -> int:
    """Parts of each row's context.

    A device that runs `resident` thread blocks at once needs ⌈blocks x parts / resident⌉ waves;
    what of them is used is best where the last one is full. More parts cost a merge: the fewest
    that come within 85 % of the best are taken, as FlashAttention does (`num_splits_heuristic` of
    Dao-AILab/flash-attention).

    Args:
        blocks: Thread blocks of one part: queries x tiles of heads.
        longest: The most tokens that a query may see.
        resident: Thread blocks that the device runs at once.
        split_tokens: Tokens of each part where that is fixed, so that a row's result depends on
            nothing but the row.

    Returns:
        The number, at least 1.

    Example:
        >>> plan_splits(blocks=512, longest=4096, resident=264), plan_splits(8, 4096, 264)
        (1, 28)
        >>> plan_splits(8, 4096, 264, split_tokens=1024)
        4
    """
    if split_tokens is not None:
        return max(1, -(-longest // split_tokens))
    most = max(1, min(longest // LEAST_SPLIT, MOST_WAVES * resident // blocks))
    use = [_use(blocks * parts, resident) for parts in range(1, most + 1)]
    enough = _CLOSE * max(use)
    return next(parts for parts, one in enumerate(use, start=1) if one >= enough)


def _use(blocks: int, resident: int) -> float:
    """The share of the device's places that have work, over all waves."""
    waves = -(-blocks // resident)
    return blocks / (waves * resident)
