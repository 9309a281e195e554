"""What a back end can do: the operations that every one of them has, as a protocol.

A module is one, such as `octavo.attention.reference`, where the arguments are explained. All arrays
are of `kv.xp`; the stream of the caller is followed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, Protocol, overload

if TYPE_CHECKING:
    from octavo.attention.arrays import Array
    from octavo.attention.store import PagedKV

__all__ = ["Backend"]


class Backend(Protocol):
    """Operations on paged KV memory; each names a bad argument before it writes anything."""

    def append(self, kv: PagedKV, layer: int, k: Array, v: Array, slot_mapping: Array) -> None:
        """Writes the keys and values of new tokens to their slots."""
        ...

    def gather(
        self, kv: PagedKV, layer: int, block_tables: Array, seq_lens: Array
    ) -> tuple[Array, Array]:
        """The keys and values of rows, one token after the other."""
        ...

    @overload
    def decode(
        self,
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
        self,
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
    def decode(
        self,
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
        """Attention of one query a row, the row's last token, over all of the row."""
        ...

    @overload
    def prefill(
        self,
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
        self,
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
    def prefill(
        self,
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
        """Causal attention of a run of queries a row, its last tokens, over all of the row."""
        ...

    def merge_states(self, out: Array, lse: Array) -> tuple[Array, Array]:
        """One attention result from those over parts of the context."""
        ...

    def copy_blocks(self, kv: PagedKV, copies: Array) -> None:
        """Copies the first tokens of blocks into others, in all layers."""
        ...

    def swap_out(self, kv: PagedKV, blocks: Array, target: str | os.PathLike[str] | Array) -> None:
        """Copies blocks of all layers to the host or to a file."""
        ...

    def swap_in(self, kv: PagedKV, blocks: Array, source: str | os.PathLike[str] | Array) -> None:
        """Copies blocks of all layers back."""
        ...

    def tables_to_csr(
        self, block_tables: Array, seq_lens: Array, block_size: int
    ) -> tuple[Array, Array, Array]:
        """Padded tables, compressed."""
        ...

    def csr_to_tables(
        self,
        indptr: Array,
        indices: Array,
        last_page_len: Array,
        block_size: int,
        *,
        width: int | None = None,
    ) -> tuple[Array, Array]:
        """Compressed tables, padded."""
        ...

    def slots_from_tables(
        self,
        block_tables: Array,
        seq_lens: Array,
        block_size: int,
        query_start: Array | None = None,
    ) -> Array:
        """Where the tokens of each row lie, or its last ones only."""
        ...

    def poison(self, kv: PagedKV, block_tables: Array, seq_lens: Array) -> None:
        """Writes NaN to every slot of all layers that these rows do not own."""
        ...

    def poison_all(self, kv: PagedKV) -> None:
        """Writes NaN to every slot of all layers."""
        ...
