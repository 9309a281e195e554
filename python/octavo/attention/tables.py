"""Block tables in their forms: padded, compressed (CSR), and as the slots of tokens.

    padded   block_tables int32[B, M], seq_lens int32[B]       unused entries may hold anything
    CSR      indptr int32[B + 1], indices int32[N], last_page_len int32[B]
    slots    int64[T]: block id x block_size + offset          negative: none

CSR is that of FlashInfer (arXiv 2501.01005, section 3.1), and of `StepPlan.kv_indptr`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.attention.arrays import Array, module_of
from octavo.attention.checks import (
    check_array,
    check_block_size,
    check_csr,
    check_queries,
    check_table_shapes,
    check_tables,
)
from octavo.errors import RequestError

__all__ = [
    "csr_to_tables",
    "ragged",
    "slots_from_tables",
    "starts_of",
    "table_width",
    "tables_to_csr",
]


def tables_to_csr(
    block_tables: Array, seq_lens: Array, block_size: int
) -> tuple[Array, Array, Array]:
    """Padded tables, compressed.

    Args:
        block_tables: int32[B, M]; the first ⌈len / block_size⌉ entries of a row are read.
        seq_lens: int32[B], tokens of each row.
        block_size: Token slots in a block, 1 … 256.

    Returns:
        indptr int32[B + 1], indices int32[indptr[B]], and last_page_len int32[B] in 1 … block_size,
        0 for a row without tokens. Copies.

    Raises:
        RequestError: An argument has a wrong dtype or shape, a length is negative or beyond its
            table, or an entry that is read is negative.

    Example:
        >>> tables = np.array([[7, 3, 99], [5, 99, 99]], dtype=np.int32)
        >>> [part.tolist() for part in tables_to_csr(tables, np.array([5, 4], np.int32), 4)]
        [[0, 2, 3], [7, 3, 5], [1, 4]]
    """
    xp = check_table_shapes(block_tables, seq_lens)
    check_tables(block_tables, seq_lens, check_block_size(block_size))
    lens = seq_lens.astype(np.int64)
    counts = -(-lens // block_size)
    indptr = starts_of(xp, counts, np.int32)
    used = xp.arange(block_tables.shape[1]) < counts[:, None]
    last = lens - xp.maximum(counts - 1, 0) * block_size
    return indptr, block_tables[used], last.astype(np.int32)


def csr_to_tables(
    indptr: Array,
    indices: Array,
    last_page_len: Array,
    block_size: int,
    *,
    width: int | None = None,
) -> tuple[Array, Array]:
    """Compressed tables, padded.

    Args:
        indptr: int32[B + 1], from 0 on, never falling.
        indices: int32[indptr[B]], the block ids.
        last_page_len: int32[B], tokens in the last block of a row, 1 … block_size; what it says of
            a row without blocks does not matter, as long as it is no more than that.
        block_size: Token slots in a block, 1 … 256.
        width: Entries of a row, at least those of the longest; by default as many as that has.

    Returns:
        block_tables int32[B, width], unused entries 0, and seq_lens int32[B].

    Raises:
        RequestError: An argument has a wrong dtype, shape or value.

    Example:
        >>> indptr, indices, last = (np.array(x, np.int32) for x in ([0, 2, 3], [7, 3, 5], [1, 4]))
        >>> tables, lens = csr_to_tables(indptr, indices, last, 4)
        >>> tables.tolist(), lens.tolist()
        ([[7, 3], [5, 0]], [5, 4])
    """
    check_csr(indptr, indices, last_page_len, check_block_size(block_size))
    xp = module_of(indptr)
    counts = (indptr[1:] - indptr[:-1]).astype(np.int64)
    width = table_width(counts, width)
    tables = xp.zeros((len(counts), width), dtype=np.int32)
    tables[xp.arange(width) < counts[:, None]] = indices
    lens = xp.where(counts > 0, (counts - 1) * block_size + last_page_len, 0)
    if len(lens) and int(lens.max()) >= 2**31:
        raise RequestError("indptr", "a row has more tokens than int32 holds")
    return tables, lens.astype(np.int32)


def slots_from_tables(
    block_tables: Array, seq_lens: Array, block_size: int, query_start: Array | None = None
) -> Array:
    """Where the tokens of each row lie, or its last ones only.

    Args:
        block_tables: int32[B, M]; the first ⌈len / block_size⌉ entries of a row are read.
        seq_lens: int32[B], tokens of each row.
        block_size: Token slots in a block, 1 … 256.
        query_start: int32[B + 1]: the tokens wanted of row b are its last query_start[b + 1] -
            query_start[b], as for `prefill`. All of them by default.

    Returns:
        int64[T], row after row; -1 for each query of a row without tokens (padding).

    Raises:
        RequestError: An argument has a wrong dtype or shape, a length is negative or beyond its
            table, an entry that is read is negative, or a row has more queries than tokens.

    Example:
        >>> tables, lens = np.array([[7, 3]], np.int32), np.array([6], np.int32)
        >>> slots_from_tables(tables, lens, 4).tolist()
        [28, 29, 30, 31, 12, 13]
        >>> slots_from_tables(tables, lens, 4, np.array([0, 2], np.int32)).tolist()
        [12, 13]
    """
    xp = check_table_shapes(block_tables, seq_lens)
    check_tables(block_tables, seq_lens, check_block_size(block_size))
    lens = seq_lens.astype(np.int64)
    counts = lens
    if query_start is not None:
        check_array(xp, "query_start", query_start, (len(lens) + 1,), ("int32",))
        check_queries(query_start, seq_lens)
        counts = (query_start[1:] - query_start[:-1]).astype(np.int64)
    rows, positions = ragged(xp, lens - counts, counts)
    if block_tables.shape[1] == 0:
        return xp.full(len(rows), -1, dtype=np.int64)
    exists = positions >= 0
    # 64 bits before the product: block ids reach 2^31-1.
    blocks = block_tables[rows, xp.where(exists, positions // block_size, 0)].astype(np.int64)
    return xp.where(exists, blocks * block_size + positions % block_size, -1)


def table_width(counts: Array, width: int | None) -> int:
    """Entries of a padded row: as many as the longest has, or what was asked for.

    Raises:
        RequestError: That is fewer.
    """
    longest = int(counts.max()) if len(counts) else 0
    if width is not None and width < longest:
        message = f"{width} entries are fewer than the {longest} of the longest row"
        raise RequestError("width", message, limit=float(longest), excess=float(longest - width))
    return longest if width is None else width


def starts_of(xp: Any, counts: Array, dtype: type[np.signedinteger[Any]]) -> Array:
    """Where each row starts when they lie one after the other, and where the last one ends."""
    starts = xp.zeros(len(counts) + 1, dtype=dtype)
    starts[1:] = xp.cumsum(counts)
    return starts


def ragged(xp: Any, starts: Array, counts: Array) -> tuple[Array, Array]:
    """Row after row, the row's number and the numbers start … start + count - 1: int64 each."""
    rows = xp.repeat(xp.arange(len(counts)), counts)
    before = xp.cumsum(counts) - counts
    numbers = xp.arange(len(rows)) - before[rows] + starts[rows]
    return rows, numbers
