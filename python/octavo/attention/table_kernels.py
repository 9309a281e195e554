"""Block tables in their forms, by kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.attention import kernels
from octavo.attention.checks import check_block_size, check_csr
from octavo.attention.kernel_calls import KernelCalls
from octavo.attention.tables import starts_of, table_width

if TYPE_CHECKING:
    from octavo.attention.arrays import Array

__all__ = ["TableKernels"]


class TableKernels(KernelCalls):
    """`tables_to_csr`, `csr_to_tables` and `slots_from_tables`."""

    def tables_to_csr(
        self, block_tables: Array, seq_lens: Array, block_size: int
    ) -> tuple[Array, Array, Array]:
        """Padded tables, compressed; waits for their number of entries."""
        xp = self.launcher.xp
        self.outside_graphs("how much there is, is waited for: convert tables")
        tables, stride, lens = self.table_pair(block_tables, seq_lens, block_size)
        indptr = starts_of(xp, -(-lens.astype(np.int64) // block_size), np.int32)
        indices = xp.empty(int(indptr[-1]), dtype=np.int32)
        last_page_len = xp.empty(len(lens), dtype=np.int32)
        self.launch(
            kernels.tables_to_csr(),
            (len(lens), 1, 1),
            indices=indices,
            last_page_len=last_page_len,
            indptr=indptr,
            block_tables=tables,
            seq_lens=lens,
            block_size=block_size,
            table_stride=stride,
        )
        return indptr, indices, last_page_len

    def csr_to_tables(
        self,
        indptr: Array,
        indices: Array,
        last_page_len: Array,
        block_size: int,
        *,
        width: int | None = None,
    ) -> tuple[Array, Array]:
        """Compressed tables, padded; looks at what they hold, for nothing else says how wide."""
        xp = self.launcher.xp
        self.outside_graphs("how wide rows are is waited for: convert tables")
        check_csr(indptr, indices, last_page_len, check_block_size(block_size))
        width = table_width(indptr[1:] - indptr[:-1], width)
        tables = xp.empty((len(last_page_len), width), dtype=np.int32)
        lens = xp.empty(len(last_page_len), dtype=np.int32)
        self.launch(
            kernels.csr_to_tables(),
            (len(lens), 1, 1),
            block_tables=tables,
            seq_lens=lens,
            indptr=self.dense("indptr", indptr),
            indices=self.dense("indices", indices),
            last_page_len=self.dense("last_page_len", last_page_len),
            block_size=block_size,
            width=width,
        )
        return tables, lens

    def slots_from_tables(
        self,
        block_tables: Array,
        seq_lens: Array,
        block_size: int,
        query_start: Array | None = None,
    ) -> Array:
        """Where the tokens of each row lie, or its last ones only; waits for their number."""
        xp = self.launcher.xp
        self.outside_graphs("how much there is, is waited for: convert tables")
        tables, stride, lens = self.table_pair(block_tables, seq_lens, block_size)
        if query_start is None:
            starts = starts_of(xp, lens, np.int32)
        else:
            self.check_starts(xp, query_start, lens, None)
            starts = self.dense("query_start", query_start)
        slots = xp.empty(int(starts[-1]), dtype=np.int64)
        self.launch(
            kernels.slots_from_tables(),
            (len(lens), 1, 1),
            slots=slots,
            block_tables=tables,
            seq_lens=lens,
            query_start=starts,
            block_size=block_size,
            table_stride=stride,
        )
        return slots
