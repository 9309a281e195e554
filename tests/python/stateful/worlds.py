"""The tiny worlds of the state machines: two tokens, a few blocks, a few reasons to differ."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

POOLS = st.integers(1, 12)
BLOCK_SIZES = st.integers(1, 4)
SALTS = st.sampled_from([b"", b"s"])
HASH_SEEDS = st.sampled_from([0, 1, 2**64 - 1])
EXTRA_KEYS = st.sampled_from(
    [
        (),
        (),
        ((0, None, "adapter", b"s"),),
        ((2, None, "tenant", b"s"),),
        ((0, 3, "image", b"a"),),
        ((1, 5, "image", b"a"), (0, 3, "image", b"b")),
        ((0, 3, "image", b"b"), (1, 5, "image", b"a"), (0, 3, "image", b"b")),
    ]
)
BAD_EXTRA_KEYS = st.sampled_from(
    [
        (0, 3, "image"),
        (-1, 3, "image", b"a"),
        (3, 3, "image", b"a"),
        (3, 2, "image", b"a"),
        (0, 3, "", b"a"),
        (0, 3, "image", "a"),
        (0, 3, b"image", b"a"),
        (0, 1.5, "image", b"a"),
        (0.0, 3, "image", b"a"),
        (None, 3, "image", b"a"),
        "no tuple",
        None,
    ]
)


def _shaped(tokens: list[int], dtype: Any) -> Any:
    return tokens if dtype is None else np.array(tokens, dtype=dtype)


def token_lists(max_size: int, min_size: int = 0) -> st.SearchStrategy[Any]:
    """Up to `max_size` tokens, as a list or as an array of some integer type."""
    tokens = st.lists(st.integers(0, 1), min_size=min_size, max_size=max_size)
    dtypes = st.sampled_from([None, None, np.int32, np.int64, np.uint8])
    return st.builds(_shaped, tokens, dtypes)


BAD_TOKENS = st.sampled_from(
    [
        [-1],
        [0, 2**31],
        [0, 2**63],
        [0.5],
        [[0, 1]],
        ["0"],
        [None],
        np.array([0.0, 1.0]),
        np.array([[0, 1]]),
        np.array([-1]),
        np.array([2**31]),
        np.array([2**32], dtype=np.uint64),
        np.array(["0"]),
        np.array(0),
    ]
)
# Numbers that no object ever gave out: no kind, no slot, every bit.
FORGED = st.sampled_from([0, 1, 7, -1, 2**63 - 1, 1 << 60, 2 << 60, 3 << 60, (2 << 60) + 999])


def flipped_kind(handle: int) -> int:
    """The same handle said to be of the other kind."""
    return handle ^ (3 << 60)
