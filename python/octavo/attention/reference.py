"""The reference back end: every operation on paged KV memory, written to be read.

It is the oracle of the kernels, and what runs where there is no GPU. Arithmetic is in float32, or
in float64 where queries or memory are float64. What lies past a row's length, and outside the
blocks that its table names, does not matter: it may be NaN.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, overload

import numpy as np

from octavo.attention import float8
from octavo.attention.attend import attention, per_head, widened
from octavo.attention.checks import (
    check_append,
    check_array,
    check_attention,
    check_copies,
    check_paged,
    check_queries,
    check_states,
)
from octavo.attention.dtypes import FP8
from octavo.attention.swap import swap_in, swap_out
from octavo.attention.tables import csr_to_tables, ragged, slots_from_tables, tables_to_csr

if TYPE_CHECKING:
    from octavo.attention.arrays import Array
    from octavo.attention.store import PagedKV

__all__ = [
    "append",
    "copy_blocks",
    "csr_to_tables",
    "decode",
    "gather",
    "merge_states",
    "poison",
    "poison_all",
    "prefill",
    "slots_from_tables",
    "swap_in",
    "swap_out",
    "tables_to_csr",
]

# Values that a dtype does not hold become infinite, as they do on a GPU.
_quietly = np.errstate(over="ignore", invalid="ignore")


@_quietly
def append(kv: PagedKV, layer: int, k: Array, v: Array, slot_mapping: Array) -> None:
    """Writes the keys and values of new tokens to their slots.

    Args:
        kv: The memory.
        layer: The layer.
        k: [T, num_kv_heads, head_dim] in the model's dtype: float64, float32, float16, bfloat16.
        v: [T, num_kv_heads, v_head_dim] in the same.
        slot_mapping: int64[at most T]: where each token goes. A negative slot, like one that is
            missing at the end, means nowhere. fp8 memory saturates at ±448 x scale.

    Raises:
        RequestError: An argument has a wrong dtype or shape, or a slot is outside the pool or named
            twice. Nothing was written.

    Example:
        >>> from octavo.attention import KVSpec, PagedKV
        >>> kv = PagedKV(KVSpec(1, num_blocks=4, block_size=2, num_kv_heads=1, head_dim=2))
        >>> k = np.arange(6, dtype=np.float32).reshape(3, 1, 2)
        >>> append(kv, 0, k, -k, np.array([5, -1, 0]))
        >>> kv.k(0)[2, 1, 0].tolist(), kv.v(0)[0, 0, 0].tolist()
        ([0.0, 1.0], [-4.0, -5.0])
    """
    check_append(kv, layer, k, v, slot_mapping)
    size = kv.spec.block_size
    kept = slot_mapping >= 0
    blocks, offsets = slot_mapping[kept] // size, slot_mapping[kept] % size
    scales = (kv.spec.k_scale, kv.spec.v_scale)
    for plane, given, scale in zip(kv.pages(layer), (k, v), scales, strict=True):
        plane[blocks, offsets] = _stored(kv, given[: len(slot_mapping)][kept], scale)


def gather(kv: PagedKV, layer: int, block_tables: Array, seq_lens: Array) -> tuple[Array, Array]:
    """The keys and values of rows, one token after the other: copies.

    Args:
        kv: The memory.
        layer: The layer.
        block_tables: int32[B, M]; the first ⌈len / block_size⌉ entries of a row are read.
        seq_lens: int32[B], tokens of each row.

    Returns:
        [T, num_kv_heads, head_dim] and [T, num_kv_heads, v_head_dim] in the memory's dtype, T the
        sum of the lengths; of fp8 memory the values that it stands for, in float32.

    Raises:
        RequestError: An argument has a wrong dtype, shape or value.

    Example:
        >>> from octavo.attention import KVSpec, PagedKV
        >>> kv = PagedKV(KVSpec(1, num_blocks=4, block_size=2, num_kv_heads=1, head_dim=2))
        >>> kv.k(0)[3] = 7
        >>> k, v = gather(kv, 0, np.array([[3, 0]], np.int32), np.array([3], np.int32))
        >>> k[:, 0, 0].tolist()
        [7.0, 7.0, 0.0]
    """
    check_paged(kv, block_tables, seq_lens)
    keys, values = kv.pages(layer)
    blocks, offsets = _slots(kv, block_tables, seq_lens)
    k, v = keys[blocks, offsets], values[blocks, offsets]
    if kv.spec.dtype == FP8:
        heads, dtype = kv.spec.num_kv_heads, np.dtype(np.float32)
        k = widened(kv, k, dtype) * per_head(kv, kv.spec.k_scale, heads, dtype)
        v = widened(kv, v, dtype) * per_head(kv, kv.spec.v_scale, heads, dtype)
    return k, v


@overload
def decode(
    kv: PagedKV,
    layer: int,
    q: Array,
    block_tables: Array,
    seq_lens: Array,
    *,
    scale: float | None = None,
    window: int | None = None,
    return_lse: Literal[False] = False,
) -> Array: ...
@overload
def decode(
    kv: PagedKV,
    layer: int,
    q: Array,
    block_tables: Array,
    seq_lens: Array,
    *,
    scale: float | None = None,
    window: int | None = None,
    return_lse: Literal[True],
) -> tuple[Array, Array]: ...
@_quietly
def decode(
    kv: PagedKV,
    layer: int,
    q: Array,
    block_tables: Array,
    seq_lens: Array,
    *,
    scale: float | None = None,
    window: int | None = None,
    return_lse: bool = False,
) -> Array | tuple[Array, Array]:
    """Attention of one query a row, the row's last token, over all of the row.

    softmax(q kᵀ x scale) v (Attention Is All You Need, arXiv 1706.03762, section 3.2.1); query
    heads share KV heads in groups of num_q_heads / num_kv_heads (GQA, arXiv 2305.13245).

    Args:
        kv: The memory; the row's last token was appended.
        layer: The layer.
        q: [B, num_q_heads, head_dim] in the model's dtype.
        block_tables: int32[B, M]; the first ⌈len / block_size⌉ entries of a row are looked at.
        seq_lens: int32[B], tokens of each row.
        scale: What scores are multiplied by; 1 / sqrt(head_dim) by default.
        window: Only the last `window` tokens are attended to, the query's own included.
        return_lse: Whether the log-sum-exp is wanted, for `merge_states`.

    Returns:
        [B, num_q_heads, v_head_dim] in q's dtype, 0 for a row without tokens. With `return_lse`
        also the natural logarithm of the sum of exponentials of the scores, [B, num_q_heads] in
        float32 or float64, -inf for a row without tokens.

    Raises:
        RequestError: An argument has a wrong dtype, shape or value.

    Example:
        >>> from octavo.attention import KVSpec, PagedKV
        >>> kv = PagedKV(KVSpec(1, num_blocks=4, block_size=2, num_kv_heads=1, head_dim=2))
        >>> kv.v(0)[2, 0], kv.v(0)[1, 0] = 6, 3
        >>> tables, lens = np.array([[2, 1]], np.int32), np.array([3], np.int32)
        >>> out, lse = decode(kv, 0, np.ones((1, 1, 2), np.float32), tables, lens, return_lse=True)
        >>> out.tolist(), bool(np.isclose(lse, np.log(3)))
        ([[[3.0, 3.0]]], True)
    """
    check_paged(kv, block_tables, seq_lens)
    check_attention(kv, layer, q, len(block_tables), scale, window)
    starts = np.arange(len(q) + 1)
    out, lse = attention(kv, layer, q, starts, block_tables, seq_lens, scale, window)
    return (out, lse) if return_lse else out


@overload
def prefill(
    kv: PagedKV,
    layer: int,
    q: Array,
    query_start: Array,
    block_tables: Array,
    seq_lens: Array,
    *,
    scale: float | None = None,
    window: int | None = None,
    return_lse: Literal[False] = False,
) -> Array: ...
@overload
def prefill(
    kv: PagedKV,
    layer: int,
    q: Array,
    query_start: Array,
    block_tables: Array,
    seq_lens: Array,
    *,
    scale: float | None = None,
    window: int | None = None,
    return_lse: Literal[True],
) -> tuple[Array, Array]: ...
@_quietly
def prefill(
    kv: PagedKV,
    layer: int,
    q: Array,
    query_start: Array,
    block_tables: Array,
    seq_lens: Array,
    *,
    scale: float | None = None,
    window: int | None = None,
    return_lse: bool = False,
) -> Array | tuple[Array, Array]:
    """Causal attention of a run of queries a row, its last tokens, over all of the row.

    Whole prompts, chunks of them, single decodes and drafts alike, mixed in one call.

    Args:
        kv: The memory; all tokens of the rows were appended.
        layer: The layer.
        q: [T, num_q_heads, head_dim] in the model's dtype, row after row.
        query_start: int32[B + 1], from 0 to T: where each row's queries start.
        block_tables: int32[B, M]; the first ⌈len / block_size⌉ entries of a row are looked at.
        seq_lens: int32[B], tokens of each row, its queries included: the queries of row b are its
            last ones, and each attends to what is not behind it. A row of 0 tokens may have
            queries, as padding has.
        scale: As in `decode`.
        window: As in `decode`: each query attends to `window` tokens, its own included.
        return_lse: As in `decode`.

    Returns:
        [T, num_q_heads, v_head_dim] in q's dtype, and [T, num_q_heads], as in `decode`.

    Raises:
        RequestError: An argument has a wrong dtype, shape or value.

    Example:
        >>> from octavo.attention import KVSpec, PagedKV
        >>> kv = PagedKV(KVSpec(1, num_blocks=4, block_size=2, num_kv_heads=1, head_dim=2))
        >>> kv.v(0)[2, 0], kv.v(0)[1, 0] = 6, 3
        >>> tables, lens = np.array([[2, 1]], np.int32), np.array([3], np.int32)
        >>> q = np.ones((2, 1, 2), np.float32)
        >>> prefill(kv, 0, q, np.array([0, 2], np.int32), tables, lens)[:, 0, 0].tolist()
        [3.0, 3.0]
    """
    check_paged(kv, block_tables, seq_lens)
    check_attention(kv, layer, q, None, scale, window)
    check_array(kv.xp, "query_start", query_start, (len(seq_lens) + 1,), ("int32",))
    check_queries(query_start, seq_lens, len(q))
    out, lse = attention(kv, layer, q, query_start, block_tables, seq_lens, scale, window)
    return (out, lse) if return_lse else out


@_quietly
def merge_states(out: Array, lse: Array) -> tuple[Array, Array]:
    """One attention result from those over parts of the context.

    out = Σ exp(lseₛ - lse) outₛ with lse = log Σ exp(lseₛ) (FlashInfer, arXiv 2501.01005, section
    2.2). A part without tokens has the log-sum-exp -inf; what its output holds is not looked at.

    Args:
        out: [S, …, num_q_heads, v_head_dim], S ≥ 1 parts, in the model's dtype.
        lse: [S, …, num_q_heads] in float32 or float64, natural logarithms.

    Returns:
        [..., num_q_heads, v_head_dim] in out's dtype and [..., num_q_heads] in lse's; 0 and -inf
        where no part has tokens.

    Raises:
        RequestError: An argument has a wrong dtype or shape.

    Example:
        >>> out = np.array([[[2.0]], [[5.0]]], np.float32)
        >>> lse = np.log(np.array([[2.0], [1.0]], np.float32))
        >>> merged, total = merge_states(out, lse)
        >>> merged.tolist(), bool(np.isclose(total, np.log(3)))
        ([[3.0]], True)
    """
    xp = check_states(out, lse)
    exact = "float64" in (out.dtype.name, lse.dtype.name)
    parts = lse.astype(np.float64 if exact else np.float32)
    top = parts.max(axis=0)
    top = xp.where(top == -math.inf, 0, top)
    weights = xp.exp(parts - top)
    total = weights.sum(axis=0)
    empty = total == 0
    # Not 0 x out: an empty part's output may be NaN.
    given = xp.where(weights[..., None] > 0, out.astype(parts.dtype), 0)
    given = xp.where(xp.isnan(weights)[..., None], math.nan, given)
    merged = (weights[..., None] * given).sum(axis=0) / xp.where(empty, 1, total)[..., None]
    logs = xp.where(empty, -math.inf, top + xp.log(xp.where(empty, 1, total)))
    return merged.astype(out.dtype), logs.astype(lse.dtype)


def copy_blocks(kv: PagedKV, copies: Array) -> None:
    """Copies the first tokens of blocks into others, in all layers: copy-on-write.

    Args:
        kv: The memory.
        copies: int32[n, 3]: source, target, tokens. They may happen in any order: no target is
            named twice, and none is a source.

    Raises:
        RequestError: `copies` has a wrong dtype or shape, a block outside the pool, more tokens
            than a block has, a target twice, or a source that is a target. Nothing was written.

    Example:
        >>> from octavo.attention import KVSpec, PagedKV
        >>> kv = PagedKV(KVSpec(1, num_blocks=4, block_size=2, num_kv_heads=1, head_dim=2))
        >>> kv.k(0)[3] = 7
        >>> copy_blocks(kv, np.array([[3, 0, 1]], np.int32))
        >>> kv.k(0)[0, :, 0, 0].tolist()
        [7.0, 0.0]
    """
    check_copies(kv, copies)
    tokens = copies[:, 2].astype(np.int64)
    rows, offsets = ragged(kv.xp, kv.xp.zeros_like(tokens), tokens)
    sources, targets = copies[rows, 0], copies[rows, 1]
    for layer in range(kv.spec.num_layers):
        for plane in kv.pages(layer):
            plane[targets, offsets] = plane[sources, offsets]


def poison(kv: PagedKV, block_tables: Array, seq_lens: Array) -> None:
    """Writes NaN to every slot of all layers that these rows do not own.

    Args:
        kv: The memory.
        block_tables: int32[B, M]; the first ⌈len / block_size⌉ entries of a row are looked at.
        seq_lens: int32[B], tokens of each row.

    Raises:
        RequestError: An argument has a wrong dtype, shape or value. Nothing was written.

    Example:
        >>> from octavo.attention import KVSpec, PagedKV
        >>> kv = PagedKV(KVSpec(1, num_blocks=2, block_size=2, num_kv_heads=1, head_dim=2))
        >>> poison(kv, np.array([[1]], np.int32), np.array([1], np.int32))
        >>> kv.v(0)[..., 0, 0].tolist()
        [[nan, nan], [0.0, nan]]
    """
    check_paged(kv, block_tables, seq_lens)
    unused = kv.xp.ones((kv.spec.num_blocks, kv.spec.block_size), dtype=bool)
    unused[_slots(kv, block_tables, seq_lens)] = False
    for layer in range(kv.spec.num_layers):
        for plane in kv.pages(layer):
            plane[unused] = _nan(kv)


def poison_all(kv: PagedKV) -> None:
    """Writes NaN to every slot of all layers.

    Example:
        >>> from octavo.attention import KVSpec, PagedKV
        >>> kv = PagedKV(KVSpec(1, num_blocks=2, block_size=2, num_kv_heads=1, head_dim=2))
        >>> poison_all(kv)
        >>> bool(np.isnan(kv.k(0)).all())
        True
    """
    for layer in range(kv.spec.num_layers):
        for plane in kv.pages(layer):
            plane[...] = _nan(kv)


def _slots(kv: PagedKV, block_tables: Array, seq_lens: Array) -> tuple[Array, Array]:
    """Block and offset of every token of the rows, int64."""
    slots = slots_from_tables(block_tables, seq_lens, kv.spec.block_size)
    return slots // kv.spec.block_size, slots % kv.spec.block_size


def _stored(kv: PagedKV, values: Array, scale: object) -> Array:
    """Values as the memory's dtype holds them."""
    if kv.spec.dtype != FP8:
        return values.astype(kv.dtype)
    dtype = np.dtype(np.float32)
    scaled = values.astype(dtype) / per_head(kv, scale, kv.spec.num_kv_heads, dtype)
    return float8.encode(kv.xp, scaled).view(kv.dtype)


def _nan(kv: PagedKV) -> float:
    """What an element of the memory becomes NaN by."""
    return float8.NAN if kv.dtype == np.uint8 else math.nan
