"""What an operation may be called with, checked before anything is read or written.

Everything raises `RequestError` with the argument's name. Values are looked at on the host; where
there is a choice, `values=False` leaves them unseen, so that nobody waits for a device.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from octavo.attention.arrays import Array, module_of, to_host, whole_number
from octavo.attention.dtypes import MODEL_DTYPES, name_of
from octavo.errors import RequestError

if TYPE_CHECKING:
    from octavo.attention.store import PagedKV

__all__ = [
    "check_append",
    "check_array",
    "check_attention",
    "check_block_size",
    "check_blocks",
    "check_copies",
    "check_csr",
    "check_paged",
    "check_queries",
    "check_states",
    "check_table_shapes",
    "check_tables",
]

_INT32 = ("int32",)


def check_array(
    xp: ModuleType, name: str, given: Any, shape: tuple[int | None, ...], dtypes: tuple[str, ...]
) -> Array:
    """An array of `xp` with one of these dtypes and this shape, None where any size will do."""
    if not isinstance(given, xp.ndarray):
        kind = type(given).__name__
        raise RequestError(name, f"is a {kind}, no array of {xp.__name__}")
    array: Array = given
    if name_of(array.dtype) not in dtypes:
        raise RequestError(name, f"is {array.dtype}, needed is {' or '.join(dtypes)}")
    fits = len(array.shape) == len(shape) and all(
        size is None or size == found for size, found in zip(shape, array.shape, strict=True)
    )
    if not fits:
        needed = ", ".join("any" if size is None else str(size) for size in shape)
        raise RequestError(name, f"has the shape {array.shape}, needed is ({needed})")
    return array


def check_block_size(block_size: object) -> int:
    """1 … 256."""
    number = whole_number(block_size)
    if number is None or not 1 <= number <= 256:
        raise RequestError("block_size", f"{block_size!r} is none of 1 … 256")
    return number


def check_append(
    kv: PagedKV, layer: int, k: Any, v: Any, slot_mapping: Any, *, values: bool = True
) -> None:
    """Keys and values of one dtype, no more slots than tokens, none outside or named twice."""
    kv.k(layer)
    heads = kv.spec.num_kv_heads
    keys = check_array(kv.xp, "k", k, (None, heads, kv.spec.head_dim), MODEL_DTYPES)
    check_array(kv.xp, "v", v, (len(keys), heads, kv.spec.v_dim), (keys.dtype.name,))
    slots = check_array(kv.xp, "slot_mapping", slot_mapping, (None,), ("int64",))
    if len(slots) > len(keys):
        message = f"has {len(slots)} slots for {len(keys)} tokens"
        excess = float(len(slots) - len(keys))
        raise RequestError("slot_mapping", message, limit=float(len(keys)), excess=excess)
    if not values:
        return
    slots = to_host(slots)
    at = _first(slots >= kv.spec.num_slots)
    if at is not None:
        message = f"slot {slots[at]} at {at[0]} is beyond the {kv.spec.num_slots} of the pool"
        raise RequestError("slot_mapping", message, limit=float(kv.spec.num_slots))
    named = np.sort(slots[slots >= 0])
    twice = _first(named[1:] == named[:-1])
    if twice is not None:
        raise RequestError("slot_mapping", f"slot {named[twice]} is named twice")


def check_table_shapes(
    block_tables: Any, seq_lens: Any, xp: ModuleType | None = None
) -> ModuleType:
    """int32[B, M] and int32[B]. Returns the module that they are of."""
    module = module_of(block_tables) if xp is None else xp
    tables = check_array(module, "block_tables", block_tables, (None, None), _INT32)
    check_array(module, "seq_lens", seq_lens, (len(tables),), _INT32)
    return module


def check_tables(
    block_tables: Array, seq_lens: Array, block_size: int, num_blocks: int = 2**31
) -> None:
    """Lengths within their tables, and entries that are read within the pool."""
    tables, lens = to_host(block_tables), to_host(seq_lens)
    at = _first(lens < 0)
    if at is not None:
        raise RequestError("seq_lens", f"row {at[0]} has the length {lens[at]}")
    counts = -(-lens.astype(np.int64) // block_size)
    width = tables.shape[1]
    at = _first(counts > width)
    if at is not None:
        room = width * block_size
        message = f"row {at[0]} has {lens[at]} tokens, its table has room for {room}"
        raise RequestError("seq_lens", message, limit=float(room), excess=float(lens[at] - room))
    entries = cast("Array", np.arange(width))
    used = entries < counts[:, None]
    at = _first(used & ((tables < 0) | (tables >= num_blocks)))
    if at is not None:
        message = f"entry {tables[at]} at [{at[0]}, {at[1]}] is no block"
        pool = f" of the {num_blocks}" if num_blocks < 2**31 else ""
        raise RequestError("block_tables", f"{message}{pool}")


def check_paged(kv: PagedKV, block_tables: Any, seq_lens: Any) -> None:
    """Tables that this memory can be read through."""
    check_table_shapes(block_tables, seq_lens, kv.xp)
    check_tables(block_tables, seq_lens, kv.spec.block_size, kv.spec.num_blocks)


def check_attention(
    kv: PagedKV,
    layer: int,
    q: Any,
    num_queries: int | None,
    scale: float | None,
    window: int | None,
) -> None:
    """Queries of a multiple of the KV heads, a finite scale, a window of at least 1."""
    kv.k(layer)
    queries = check_array(kv.xp, "q", q, (num_queries, None, kv.spec.head_dim), MODEL_DTYPES)
    heads, kv_heads = queries.shape[1], kv.spec.num_kv_heads
    if heads == 0 or heads % kv_heads:
        raise RequestError("q", f"has {heads} heads, no multiple of the {kv_heads} KV heads")
    if scale is not None and not _is_finite(scale):
        raise RequestError("scale", f"{scale!r} is no finite number")
    if window is not None:
        tokens = whole_number(window)
        if tokens is None or tokens < 1:
            raise RequestError("window", f"{window!r} is no number of tokens, 1 or more")


def check_queries(query_start: Array, seq_lens: Array, num_queries: int | None = None) -> None:
    """From 0 to the last, never falling, and no more than a row's tokens unless it has none."""
    starts, lens = to_host(query_start).astype(np.int64), to_host(seq_lens)
    if starts[0] != 0:
        raise RequestError("query_start", f"starts at {starts[0]}, not at 0")
    counts = starts[1:] - starts[:-1]
    at = _first(counts < 0)
    if at is not None:
        raise RequestError("query_start", f"falls behind row {at[0]}")
    if num_queries is not None and starts[-1] != num_queries:
        raise RequestError("query_start", f"ends at {starts[-1]}, q has {num_queries} queries")
    at = _first((counts > lens) & (lens > 0))
    if at is not None:
        message = f"row {at[0]} has {lens[at]} tokens and {counts[at]} queries"
        raise RequestError("seq_lens", message)


def check_csr(indptr: Any, indices: Any, last_page_len: Any, block_size: int) -> None:
    """Offsets from 0 that never fall, ids of blocks, last blocks neither empty nor over-full."""
    xp = module_of(indptr)
    starts = to_host(check_array(xp, "indptr", indptr, (None,), _INT32)).astype(np.int64)
    if len(starts) == 0 or starts[0] != 0:
        raise RequestError("indptr", "does not start at 0")
    at = _first(starts[1:] < starts[:-1])
    if at is not None:
        raise RequestError("indptr", f"falls behind row {at[0]}")
    ids = to_host(check_array(xp, "indices", indices, (int(starts[-1]),), _INT32))
    at = _first(ids < 0)
    if at is not None:
        raise RequestError("indices", f"entry {ids[at]} at {at[0]} is no block")
    last = to_host(check_array(xp, "last_page_len", last_page_len, (len(starts) - 1,), _INT32))
    least = (starts[1:] > starts[:-1]).astype(np.int64)
    at = _first((last < least) | (last > block_size))
    if at is not None:
        raise RequestError("last_page_len", f"row {at[0]} has {last[at]}, none of 1 … {block_size}")


def check_states(out: Any, lse: Any) -> ModuleType:
    """[S, …, dim] and [S, …], S at least 1. Returns the module that they are of."""
    xp = module_of(out)
    shape = (None,) * max(getattr(out, "ndim", 2), 2)
    outputs = check_array(xp, "out", out, shape, MODEL_DTYPES)
    if len(outputs) == 0:
        raise RequestError("out", "has no states to merge")
    check_array(xp, "lse", lse, outputs.shape[:-1], ("float64", "float32"))
    return xp


def check_blocks(kv: PagedKV, blocks: Any, *, once: bool) -> None:
    """int32[n], blocks of the pool; each `once` where they are written."""
    ids = to_host(check_array(kv.xp, "blocks", blocks, (None,), _INT32))
    _check_ids("blocks", ids, kv.spec.num_blocks)
    if once:
        _check_once("blocks", ids)


def check_copies(kv: PagedKV, copies: Any, *, values: bool = True) -> None:
    """int32[n, 3]: no target twice, no source that is a target, no more tokens than a block has."""
    given = check_array(kv.xp, "copies", copies, (None, 3), _INT32)
    if not values:
        return
    rows = to_host(given)
    sources, targets, tokens = rows[:, 0], rows[:, 1], rows[:, 2]
    _check_ids("copies", sources, kv.spec.num_blocks)
    _check_ids("copies", targets, kv.spec.num_blocks)
    at = _first((tokens < 0) | (tokens > kv.spec.block_size))
    if at is not None:
        message = f"row {at[0]} copies {tokens[at]} tokens, none of 0 … {kv.spec.block_size}"
        raise RequestError("copies", message)
    _check_once("copies", targets)
    at = _first(np.isin(sources, targets))
    if at is not None:
        raise RequestError("copies", f"block {sources[at]} is the source of one and a target")


def _check_ids(name: str, ids: Array, num_blocks: int) -> None:
    at = _first((ids < 0) | (ids >= num_blocks))
    if at is not None:
        raise RequestError(name, f"entry {ids[at]} at {at[0]} is no block of the {num_blocks}")


def _check_once(name: str, ids: Array) -> None:
    ordered = np.sort(ids)
    at = _first(ordered[1:] == ordered[:-1])
    if at is not None:
        raise RequestError(name, f"block {ordered[at]} is written twice")


def _first(wrong: Array) -> tuple[int, ...] | None:
    """Where the first True is."""
    if not wrong.any():
        return None
    return tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))


def _is_finite(number: Any) -> bool:
    try:
        return math.isfinite(number)
    except TypeError:
        return False
