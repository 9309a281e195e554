"""The tiny worlds of the state machines: two tokens, a few blocks, a few reasons to differ."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

POOLS = st.integers(1, 12)
BLOCK_SIZES = st.integers(1, 4)
CACHE_OPTIONS = st.fixed_dictionaries(
    {
        "prefix_caching": st.integers(0, 9).map(bool),
        "dedupe": st.sampled_from([True, True, False]),
        "reserve_null_block": st.sampled_from([False, False, True]),
    }
)
HASH_SEEDS = st.sampled_from([0, 1, 2**64 - 1])
# Most sequences are plain, so that they meet; the others differ from them and from each other.
_KEYS = [
    ((0, None, "adapter", b"s"),),
    ((2, None, "tenant", b"s"),),
    ((0, 3, "image", b"a"),),
    ((1, 5, "image", b"a"), (0, 3, "image", b"b")),
    ((0, 3, "image", b"b"), (1, 5, "image", b"a"), (0, 3, "image", b"b")),
]
IDENTITIES = st.sampled_from(
    [{}] * 8 + [{"salt": b"s"}] * 2 + [{"extra_keys": keys} for keys in _KEYS]
)
EXTRA_KEYS = st.sampled_from([(), *_KEYS])
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


DTYPES = st.sampled_from([None, None, None, np.int32, np.int64, np.uint8])


def _zeros_and_ones(length: int, ones: list[int], dtype: Any) -> Any:
    tokens = [int(position in ones) for position in range(length)]
    return tokens if dtype is None else np.array(tokens, dtype=dtype)


def token_lists(max_size: int, min_size: int = 0) -> st.SearchStrategy[Any]:
    """Up to `max_size` tokens, nearly all of them 0, so that most have a prefix in common.

    As a list, or as an array of some integer type.
    """
    lengths = st.integers(min_size, max_size)
    ones = st.lists(st.integers(0, max_size), max_size=2)
    return st.builds(_zeros_and_ones, lengths, ones, DTYPES)


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


# A crowd: a few sequences fit at first, and then grow into each other.
CROWDED_POOLS = st.sampled_from([6, 5, 8, 4, 7, 10, 12, 9, 3, 2, 1])


def _with_budget_for_whole_prompts(options: dict[str, Any]) -> dict[str, Any]:
    if options["batching"] == "chunked":
        return options
    budget = max(options["max_num_batched_tokens"], options["max_model_len"])
    return options | {"max_num_batched_tokens": budget}


SCHEDULER_OPTIONS = st.fixed_dictionaries(
    {
        "block_size": BLOCK_SIZES,
        "max_num_seqs": st.sampled_from([4, 3, 5, 2, 1]),
        "max_num_batched_tokens": st.sampled_from([12, 8, 10, 5, 6, 3, 4, 2, 1]),
        "max_model_len": st.sampled_from([24, 16, 24, 12, 24, 7, 3, 2]),
        "max_partial_prefills": st.integers(1, 3),
        "long_prefill_threshold": st.sampled_from([0, 0, 1, 2, 5]),
        "watermark": st.sampled_from([0.0, 0.01, 0.25, 0.5, 0.99]),
        "prefix_caching": st.sampled_from([True, True, True, False]),
        "batching": st.sampled_from(["chunked", "chunked", "mixed", "static", "continuous"]),
        "policy": st.sampled_from(["fcfs", "priority", "edf", "sjf"]),
        "aging": st.sampled_from([0.0, 0.0, 0.25, 1.0]),
        "victim": st.sampled_from(["latest", "least_computed", "lowest_class"]),
        "reserve": st.sampled_from(["on_demand", "on_demand", "worst_case"]),
        "inflight_steps": st.sampled_from([2, 1, 3, 1, 4]),
        "dedupe": st.sampled_from([True, True, False]),
        "reserve_null_block": st.sampled_from([False, False, True]),
    }
).map(_with_budget_for_whole_prompts)


def _minus(num_prompt_tokens: int) -> float:
    """A class key: the longest prompt goes first."""
    return -float(num_prompt_tokens)


REQUEST_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "stop_token_ids": st.sampled_from([(1,), (0, 1), (7,)]),
        "arrival": st.sampled_from([-1.0, 0.0, 0.5, 2.0, 9.0]),
        "adapter": st.sampled_from([0, 0, 1, 2**63 - 1]),
        "use_cache": st.sampled_from([True, False]),
        "priority": st.integers(-1, 1),
        "tenant": st.integers(0, 1),
        "deadline": st.sampled_from([None, 0.0, 5.0]),
        "key": st.sampled_from([None, None, None, 1.0, -0.0, -2, float, _minus]),
        "ready": st.sampled_from([True, True, False]),
        "n": st.sampled_from([1, 2, 3, 2]),
    },
)
# A pin's lifetime in steps.
EXPIRIES = st.sampled_from([None, 1, 2, 5, 0])
BAD_REQUESTS = st.sampled_from(
    [
        ("max_tokens", {"max_tokens": -1}),
        ("min_tokens", {"max_tokens": 2, "min_tokens": -1}),
        ("min_tokens", {"max_tokens": 2, "min_tokens": 3}),
        ("stop_token_ids", {"max_tokens": 2, "stop_token_ids": [-1]}),
        ("n", {"max_tokens": 2, "n": 6}),
        ("n", {"max_tokens": 2, "n": 0}),
        ("key", {"max_tokens": 2, "key": math.nan}),
        ("key", {"max_tokens": 2, "key": -math.inf}),
        ("key", {"max_tokens": 2, "key": lambda _: math.inf}),
        ("priority", {"max_tokens": 2, "priority": 2**53 + 1}),
        ("priority", {"max_tokens": 2, "priority": -(2**63)}),
        ("arrival", {"max_tokens": 2, "arrival": math.nan}),
        ("arrival", {"max_tokens": 2, "arrival": math.inf}),
        ("deadline", {"max_tokens": 2, "deadline": -math.inf}),
        ("adapter", {"max_tokens": 2, "adapter": -1}),
        ("tenant", {"max_tokens": 2, "tenant": -1}),
    ]
)
# Columns of `add_many`: one value for all, or one for each prompt.
PRIORITIES = st.one_of(st.integers(-1, 1), st.lists(st.integers(-1, 1), min_size=3, max_size=3))
MOMENTS = st.one_of(
    st.sampled_from([None, 0.0]),
    st.lists(st.sampled_from([None, 0.0, 1.0, -1.5]), min_size=3, max_size=3),
    st.just(np.array([0.5, 0.0, 3.0])),
)
