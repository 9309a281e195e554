"""Writing to paged memory and reading from it, by kernels."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from octavo.attention import kernels, swap
from octavo.attention.checks import check_append, check_copies
from octavo.attention.dtypes import FP8, name_of
from octavo.attention.gpu_swap import StagedRows
from octavo.attention.kernel_calls import KernelCalls, pair_of
from octavo.attention.tables import starts_of

if TYPE_CHECKING:
    from octavo.attention.arrays import Array
    from octavo.attention.memory import KernelMemory
    from octavo.attention.store import PagedKV

__all__ = ["MemoryKernels"]

# A NaN of each dtype, repeated to 4 bytes.
_NANS = {"float32": 0x7FC00000, "float16": 0x7E007E00, "bfloat16": 0x7FC07FC0, FP8: 0x7F7F7F7F}


class MemoryKernels(KernelCalls):
    """`append`, `gather`, `copy_blocks`, swaps and poison."""

    _copies: swap.Rows | None = None

    def append(self, kv: PagedKV, layer: int, k: Array, v: Array, slot_mapping: Array) -> None:
        """Writes the keys and values of new tokens to their slots; as in the reference."""
        memory = self.memory(kv)
        check_append(kv, layer, k, v, slot_mapping, values=self.looks)
        kernel = kernels.append(*pair_of(name_of(k.dtype), kv, "k"))
        (k, k_token), (v, v_token) = self.rows_of_tokens("k", k), self.rows_of_tokens("v", v)
        self.launch(
            kernel,
            (len(slot_mapping), 1, 1),
            memory.pages(layer),
            k=k,
            v=v,
            slot_mapping=self.dense("slot_mapping", slot_mapping),
            heads=kv.spec.num_kv_heads,
            k_dim=kv.spec.head_dim,
            v_dim=kv.spec.v_dim,
            k_token=k_token,
            v_token=v_token,
        )

    def gather(
        self, kv: PagedKV, layer: int, block_tables: Array, seq_lens: Array
    ) -> tuple[Array, Array]:
        """The keys and values of rows, one token after the other; waits for their number."""
        memory, xp, spec = self.memory(kv), kv.xp, kv.spec
        kv.k(layer)
        self.outside_graphs("the number of tokens is waited for: gather")
        tables, stride, lens = self.tables_of(kv, block_tables, seq_lens)
        # As far as the longest row reaches: tables may be much wider.
        longest = int(lens.max()) if len(lens) else 0
        width = -(-longest // spec.block_size)
        starts = starts_of(xp, lens, np.int64)
        total = int(starts[-1])
        dtype = np.dtype(np.float32) if spec.dtype == FP8 else kv.dtype
        k = xp.empty((total, spec.num_kv_heads, spec.head_dim), dtype=dtype)
        v = xp.empty((total, spec.num_kv_heads, spec.v_dim), dtype=dtype)
        self.launch(
            kernels.gather(spec.dtype),
            (len(lens) * width, 1, 1),
            memory.pages(layer),
            k=k,
            v=v,
            block_tables=tables,
            seq_lens=lens,
            starts=starts,
            heads=spec.num_kv_heads,
            k_dim=spec.head_dim,
            v_dim=spec.v_dim,
            width=width,
            table_stride=stride,
        )
        return k, v

    def copy_blocks(self, kv: PagedKV, copies: Array) -> None:
        """Copies the first tokens of blocks into others, in all layers at once."""
        memory = self.memory(kv)
        check_copies(kv, copies, values=self.looks)
        self.launch(
            kernels.copy_blocks(),
            (len(copies), len(memory.planes), 1),
            planes=memory.planes,
            copies=self.dense("copies", copies),
            heads=kv.spec.num_kv_heads,
        )

    def swap_out(self, kv: PagedKV, blocks: Array, target: str | os.PathLike[str] | Array) -> None:
        """Copies blocks of all layers to the host or to a file; they are there when it returns."""
        self.memory(kv)
        swap.send(kv, blocks, target, self._rows())

    def swap_in(self, kv: PagedKV, blocks: Array, source: str | os.PathLike[str] | Array) -> None:
        """Copies blocks of all layers back; what the stream runs later sees them."""
        self.memory(kv)
        swap.receive(kv, blocks, source, self._rows())

    def _rows(self) -> swap.Rows:
        """How rows are copied: those of one back end share their staging."""
        self.outside_graphs("a swap waits for the host: swap")
        if self._copies is None:
            xp = self.launcher.xp
            self._copies = swap.PlainRows() if xp is np else StagedRows(xp)
        return self._copies

    def poison(self, kv: PagedKV, block_tables: Array, seq_lens: Array) -> None:
        """Writes NaN to every slot of all layers that these rows do not own."""
        memory = self.memory(kv)
        self.outside_graphs("which slots are used is noted in memory that goes: poison")
        tables, stride, lens = self.tables_of(kv, block_tables, seq_lens)
        width = tables.shape[1]
        used = kv.xp.zeros(kv.spec.num_slots, dtype=np.uint8)
        self.launch(
            kernels.mark_used(),
            (len(lens) * width, 1, 1),
            used=used,
            block_tables=tables,
            seq_lens=lens,
            block_size=kv.spec.block_size,
            width=width,
            table_stride=stride,
        )
        self._poison(memory, used)

    def poison_all(self, kv: PagedKV) -> None:
        """Writes NaN to every slot of all layers."""
        self._poison(self.memory(kv), None)

    def _poison(self, memory: KernelMemory, used: Array | None) -> None:
        spec = memory.spec
        self.launch(
            kernels.poison(),
            (spec.num_blocks, len(memory.planes), 1),
            planes=memory.planes,
            used=used,
            pattern=_NANS[spec.dtype],
            heads=spec.num_kv_heads,
            block_size=spec.block_size,
        )
