"""Attention of some queries over the tokens of their rows, in tiles of blocks.

A tile stays in the processor's cache: first all scores of a row, then the softmax over all of them,
then the weighted sum of the values, so that the memory is read once. Each row is computed by
itself: its result does not depend on the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from octavo.attention import float8
from octavo.attention.arrays import Array, to_host
from octavo.attention.dtypes import FP8

if TYPE_CHECKING:
    from octavo.attention.store import PagedKV

__all__ = ["attention", "per_head", "widened"]

# Elements of a tile of keys or values: 256 KiB in float32, less than a second-level cache.
_TILE = 2**16
# Scores at a time, in all heads: 16 MiB in float32.
_SCORES = 2**22


class _Layer(NamedTuple):
    """What a call reads: [block, slot, head, dim] of keys and of values, and how."""

    kv: PagedKV
    keys: Array
    values: Array
    # Blocks of a tile.
    step: int
    # Of the arithmetic.
    dtype: np.dtype[np.generic]
    window: int | None


class _Sums(NamedTuple):
    """A softmax that is not divided yet, for each query and head.

    Attributes:
        values: [T, KV head, group, dim], the sum of weights x values.
        weights: [T, KV head, group], the sum of weights.
        top: [T, KV head, group], what was taken from each score before the exponential; -inf where
            there is no token.
    """

    values: Array
    weights: Array
    top: Array


def attention(
    kv: PagedKV,
    layer: int,
    q: Array,
    query_start: Array,
    block_tables: Array,
    seq_lens: Array,
    scale: float | None,
    window: int | None,
) -> tuple[Array, Array]:
    """Output in q's dtype and log-sum-exp; the arguments are those of `prefill`, checked."""
    xp, spec = kv.xp, kv.spec
    exact = "float64" in (q.dtype.name, spec.dtype)
    dtype = np.dtype(np.float64 if exact else np.float32)
    step = max(1, _TILE // (spec.block_size * spec.num_kv_heads * max(spec.head_dim, spec.v_dim)))
    read = _Layer(kv, *kv.pages(layer), step, dtype, window)

    num_queries, heads, _ = q.shape
    factor = 1 / math.sqrt(spec.head_dim) if scale is None else float(scale)
    # On the few queries rather than on the scores: the same product.
    queries = q.astype(dtype) * (factor * per_head(kv, spec.k_scale, heads, dtype))
    shape = (num_queries, spec.num_kv_heads, heads // spec.num_kv_heads)
    queries = queries.reshape(*shape, spec.head_dim)
    sums = _Sums(
        xp.zeros((*shape, spec.v_dim), dtype=dtype),
        xp.zeros(shape, dtype=dtype),
        xp.full(shape, -math.inf, dtype=dtype),
    )
    starts, lens = to_host(query_start).tolist(), to_host(seq_lens).tolist()
    for row, length in enumerate(lens):
        if length > 0:
            begin, end = starts[row], starts[row + 1]
            # So many queries at a time that their scores stay small.
            few = max(1, _SCORES // (heads * length))
            for at in range(begin, end, few):
                to = min(at + few, end)
                # What lies behind the last of these queries stays unread.
                _attend(read, queries, at, to, block_tables[row], length - (end - to), sums)
    return _divided(kv, sums, q.dtype)


def _attend(
    read: _Layer, queries: Array, at: int, to: int, table: Array, length: int, sums: _Sums
) -> None:
    """The sums of queries at … to - 1, which are the last tokens of `length` of a row."""
    xp = read.kv.xp
    num, (_, kv_heads, group, dim) = to - at, queries.shape
    first = 0 if read.window is None else max(0, length - num + 1 - read.window)
    tiles = list(_tiles(read, first, length))

    # All queries of a KV head together: [KV head, query x group, dim].
    grouped = queries[at:to].swapaxes(0, 1).reshape(kv_heads, num * group, dim)
    parts = [
        grouped @ _gathered(read, read.keys, table[blocks], tokens).swapaxes(1, 2)
        for blocks, tokens, _ in tiles
    ]
    scores = parts[0] if len(parts) == 1 else xp.concatenate(parts, axis=-1)
    if num > 1:
        hidden = _hidden(read, num, first, length)[:, None, :]
        shown = scores.reshape(kv_heads, num, group, length - first)
        scores = xp.where(hidden, -math.inf, shown).reshape(scores.shape)

    # From -inf, not from a number that stands for it: scores may be as low as they like.
    top = scores.max(axis=-1, keepdims=True)
    scores -= xp.where(top == -math.inf, 0, top)
    weights = xp.exp(scores, out=scores)

    out = None
    for blocks, tokens, columns in tiles:
        part = weights[..., columns] @ _gathered(read, read.values, table[blocks], tokens)
        out = part if out is None else out + part
    by_head = (kv_heads, num, group)
    sums.values[at:to] = xp.asarray(out).reshape(*by_head, -1).swapaxes(0, 1)
    sums.weights[at:to] = weights.sum(axis=-1).reshape(by_head).swapaxes(0, 1)
    sums.top[at:to] = top.reshape(by_head).swapaxes(0, 1)


def _tiles(read: _Layer, first: int, length: int) -> Iterator[tuple[slice, slice, slice]]:
    """By tiles: entries of the table, tokens of these blocks, and those counted from `first`."""
    size = read.kv.spec.block_size
    last = -(-length // size)
    for block in range(first // size, last, read.step):
        behind = min(block + read.step, last)
        begin, end = max(first, block * size), min(length, behind * size)
        tokens = slice(begin - block * size, end - block * size)
        yield slice(block, behind), tokens, slice(begin - first, end - first)


def _gathered(read: _Layer, plane: Array, blocks: Array, tokens: slice) -> Array:
    """Tokens of blocks as [KV head, token, dim], read in pieces as long as the layout has them."""
    kv = read.kv
    if kv.spec.layout == "NHD":
        tile = widened(kv, plane[blocks], read.dtype)
        return tile.reshape(-1, *tile.shape[2:])[tokens].swapaxes(0, 1)
    heads = kv.xp.arange(kv.spec.num_kv_heads)[:, None]
    tile = widened(kv, plane.swapaxes(1, 2)[blocks, heads], read.dtype)
    return tile.reshape(len(heads), -1, tile.shape[-1])[:, tokens]


def _hidden(read: _Layer, num_queries: int, first: int, length: int) -> Array:
    """bool[query, key]: what a query does not attend to, being behind it or too far back."""
    xp, window = read.kv.xp, read.window
    query = xp.arange(length - num_queries, length)[:, None]
    key = xp.arange(first, length)
    hidden = key > query
    return hidden if window is None else hidden | (key <= query - window)


def _divided(kv: PagedKV, sums: _Sums, dtype: np.dtype[np.generic]) -> tuple[Array, Array]:
    """Output and log-sum-exp by query and head; 0 and -inf where there were no weights."""
    xp, (num, kv_heads, group, dim) = kv.xp, sums.values.shape
    heads = kv_heads * group
    weights = sums.weights.reshape(num, heads)
    empty = weights == 0
    divisor = xp.where(empty, 1, weights)
    scales = per_head(kv, kv.spec.v_scale, heads, divisor.dtype)
    out = sums.values.reshape(num, heads, dim) * scales / divisor[..., None]
    lse = xp.where(empty, -math.inf, sums.top.reshape(num, heads) + xp.log(divisor))
    return out.astype(dtype), lse


def per_head(kv: PagedKV, scale: object, heads: int, dtype: np.dtype[np.generic]) -> Array:
    """The scale of each of so many heads, [heads, 1], shared by groups; 1 where there is none."""
    xp = kv.xp
    each = xp.asarray(1.0 if scale is None else scale, dtype=dtype)
    each = xp.broadcast_to(each, (kv.spec.num_kv_heads,))
    return xp.repeat(each, heads // kv.spec.num_kv_heads)[:, None]


def widened(kv: PagedKV, stored: Array, dtype: np.dtype[np.generic]) -> Array:
    """Stored elements as `dtype`, fp8 without its scale."""
    if kv.spec.dtype != FP8:
        return stored.astype(dtype, copy=False)
    return kv.xp.asarray(float8.VALUES, dtype=dtype)[stored.view(np.uint8)]
