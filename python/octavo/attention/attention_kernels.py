"""Attention over paged memory, by kernels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, overload

import numpy as np

from octavo.attention import kernels
from octavo.attention.arrays import Array, whole_number
from octavo.attention.checks import check_attention
from octavo.attention.dtypes import FP8, name_of
from octavo.attention.kernel_calls import pair_of
from octavo.attention.part_kernels import PartKernels
from octavo.attention.splits import LEAST_SPLIT, MOST_WAVES
from octavo.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from octavo.attention.launch import Kernel, Launcher
    from octavo.attention.store import PagedKV

__all__ = ["AttentionKernels"]

# float32's largest number, less than log2(e) times: what kernels make of a scale is finite.
_LARGEST_SCALE = 2.0**127
# Query heads of a KV head from which tensor cores pay.
_TENSOR_GROUP = 5


class AttentionKernels(PartKernels):
    """`decode` and `prefill`, and what makes them ready for a graph."""

    def __init__(
        self,
        launcher: Launcher,
        *,
        split_tokens: int | None,
        decode_on: Literal["auto", "cores", "tensor"],
        debug: bool,
    ) -> None:
        super().__init__(launcher, split_tokens=split_tokens, debug=debug)
        if decode_on not in ("auto", "cores", "tensor"):
            raise ConfigError("decode_on", decode_on, "one of auto, cores, tensor")
        self._decode_on = decode_on

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
        out: Array | None = None,
        lse: Array | None = None,
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
        out: Array | None = None,
        lse: Array | None = None,
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
        out: Array | None = None,
        lse: Array | None = None,
    ) -> Array | tuple[Array, Array]:
        """Attention of one query a row, over all of the row.

        Args:
            kv: As in the reference, like all that follow.
            layer: The layer.
            q: [B, num_q_heads, head_dim].
            block_tables: int32[B, M]. How far M blocks reach is what the context is split by.
            seq_lens: int32[B].
            scale: Of scores.
            window: Tokens attended to.
            return_lse: Whether the log-sum-exp is wanted.
            out: Where the output goes, [B, num_q_heads, v_head_dim] in q's dtype, contiguous
                and aligned to 16 bytes: a graph needs one that stays. By default a new array.
            lse: Where the log-sum-exp goes that `return_lse` asks for, float32[B, num_q_heads].

        Returns:
            As in the reference.

        Raises:
            RequestError: An argument has a wrong dtype or shape.
        """
        self.memory(kv)
        tables, stride, lens = self.tables_of(kv, block_tables, seq_lens)
        check_attention(kv, layer, q, len(lens), scale, window)
        out, lse = self._outputs(kv, q, out, lse, return_lse=return_lse)
        self._decode(kv, layer, q, (tables, stride, lens, None), scale, window, out, lse)
        return out if lse is None else (out, lse)

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
        out: Array | None = None,
        lse: Array | None = None,
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
        out: Array | None = None,
        lse: Array | None = None,
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
        out: Array | None = None,
        lse: Array | None = None,
    ) -> Array | tuple[Array, Array]:
        """Causal attention of a run of queries a row, its last tokens, over all of the row.

        Args:
            kv: As in the reference, like all that follow.
            layer: The layer.
            q: [T, num_q_heads, head_dim].
            query_start: int32[B + 1].
            block_tables: int32[B, M].
            seq_lens: int32[B].
            scale: Of scores.
            window: Tokens attended to.
            return_lse: Whether the log-sum-exp is wanted.
            out: As in `decode`.
            lse: As in `decode`.

        Returns:
            As in the reference.

        Raises:
            RequestError: An argument has a wrong dtype or shape.
        """
        memory = self.memory(kv)
        tables, stride, lens = self.tables_of(kv, block_tables, seq_lens)
        check_attention(kv, layer, q, None, scale, window)
        self.check_starts(kv.xp, query_start, lens, len(q))
        pair, group = pair_of(name_of(q.dtype), kv, "q"), q.shape[1] // kv.spec.num_kv_heads
        out, lse = self._outputs(kv, q, out, lse, return_lse=return_lse)
        if pair not in kernels.TENSOR_PAIRS:
            rows, sees = self._expanded(query_start, lens, len(q))
            self._decode(kv, layer, q, (tables, stride, sees, rows), scale, window, out, lse)
            return out if lse is None else (out, lse)
        kernel = kernels.prefill_mma(*pair, kv.spec.head_dim, kv.spec.v_dim)
        # Each row's last tile may be partly empty.
        tiles = -(-len(q) * group // kernels.rows_at_once(kernel)) + len(lens)
        grid = (tiles if len(q) else 0, kv.spec.num_kv_heads)
        splits = self._splits(kernel, grid, self._longest(kv, tables, window))
        q, q_token = self.rows_of_tokens("q", q)
        self._attend(
            kernel,
            (*grid, splits),
            memory.pages(layer),
            q=q,
            out=out,
            lse=lse,
            query_start=self.dense("query_start", query_start),
            block_tables=tables,
            seq_lens=lens,
            scale=_scale(kv, scale),
            num_rows=len(lens),
            group=group,
            window=_window(window),
            split_tokens=0,
            q_token=q_token,
            table_stride=stride,
        )
        return out if lse is None else (out, lse)

    def prepare(
        self,
        kv: PagedKV,
        *,
        dtype: str,
        num_q_heads: int,
        max_queries: int,
        max_blocks: int,
        max_decodes: int | None = None,
    ) -> None:
        """Compiles what attention over this memory needs, and takes its workspace.

        After it, `append`, `decode` and `prefill` allocate nothing where they are given `out`, and
        `lse` if it is asked for: they can be captured in a graph, which is replayed with whatever
        the arrays then hold. An argument that would be copied first is refused there.

        Args:
            kv: The memory.
            dtype: Of queries, keys and values.
            num_q_heads: Query heads.
            max_queries: The most queries of a call.
            max_blocks: The most entries of a row's table.
            max_decodes: The most rows of a decode; by default as many as of any call. With
                `split_tokens` the workspace grows with them.

        Raises:
            RequestError: There is no kernel for the dtype over this memory.
        """
        self.memory(kv)
        pair = pair_of(dtype, kv, "dtype")
        heads, kv_heads = whole_number(num_q_heads), kv.spec.num_kv_heads
        if heads is None or heads < 1 or heads % kv_heads:
            raise RequestError("num_q_heads", f"{num_q_heads!r} is no multiple of {kv_heads}")
        group = heads // kv_heads
        decode = self._decode_kernel(pair, kv, group)
        needed = [kernels.append(*pair), decode, kernels.merge_states(dtype, "float32")]
        if pair in kernels.TENSOR_PAIRS:
            needed.append(kernels.prefill_mma(*pair, kv.spec.head_dim, kv.spec.v_dim))
        else:
            needed.append(kernels.expand_queries())
            self._workspace.queries(max_queries)
        for kernel in needed:
            self.launcher.prepare(kernel)
        longest = max_blocks * kv.spec.block_size
        rows = max_queries * heads
        filling = [kernels.rows_at_once(k) * self._room(k) for k in needed if k.shared_bytes]
        parts = min(rows * max(1, longest // LEAST_SPLIT), MOST_WAVES * max(filling))
        if self._split_tokens is not None:
            # Of decodes; chunks fill the device all the same.
            decodes = max_queries if max_decodes is None else max_decodes
            parts = max(parts, decodes * heads * -(-longest // self._split_tokens))
        self._workspace.parts(parts, kv.spec.v_dim)

    def _decode(
        self,
        kv: PagedKV,
        layer: int,
        q: Array,
        rows: tuple[Array, int, Array, Array | None],
        scale: float | None,
        window: int | None,
        out: Array,
        lse: Array | None,
    ) -> None:
        """Of `rows`: tables, their stride, what a query sees, each query's row if not its own."""
        tables, stride, lens, row_of = rows
        pair, (queries, heads, _) = pair_of(name_of(q.dtype), kv, "q"), q.shape
        group = heads // kv.spec.num_kv_heads
        kernel = self._decode_kernel(pair, kv, group)
        grid = (queries, kv.spec.num_kv_heads * -(-group // kernels.rows_at_once(kernel)))
        # A part of a fixed size is for decodes: a chunk's queries have no need of it.
        split_tokens = self._split_tokens if row_of is None else None
        splits = self._splits(kernel, grid, self._longest(kv, tables, window), split_tokens)
        q, q_token = self.rows_of_tokens("q", q)
        self._attend(
            kernel,
            (*grid, splits),
            self.memory(kv).pages(layer),
            q=q,
            out=out,
            lse=lse,
            block_tables=tables,
            lens=lens,
            rows=row_of,
            scale=_scale(kv, scale),
            group=group,
            window=_window(window),
            split_tokens=split_tokens or 0,
            q_token=q_token,
            table_stride=stride,
        )

    def _decode_kernel(self, pair: tuple[str, str], kv: PagedKV, group: int) -> Kernel:
        dims = (kv.spec.head_dim, kv.spec.v_dim)
        if pair in kernels.TENSOR_PAIRS:
            wanted = group >= _TENSOR_GROUP if self._decode_on == "auto" else None
            if pair[1] == FP8 or wanted or self._decode_on == "tensor":
                return kernels.decode_mma(*pair, *dims)
        heads = next((h for h in kernels.CORES_GROUPS if h >= group), kernels.CORES_GROUPS[-1])
        return kernels.decode_cores(*pair, *dims, heads)

    def _expanded(self, starts: Array, lens: Array, count: int) -> tuple[Array, Array]:
        """Of each query its row, and the tokens that it sees."""
        rows, sees = self._workspace.queries(count)
        self.launch(
            kernels.expand_queries(),
            (len(lens) if count else 0, 1, 1),
            rows=rows,
            lens=sees,
            query_start=self.dense("query_start", starts),
            seq_lens=lens,
            num_queries=count,
        )
        return rows, sees

    def _outputs(
        self, kv: PagedKV, q: Array, out: Array | None, lse: Array | None, *, return_lse: bool
    ) -> tuple[Array, Array | None]:
        shape = (*q.shape[:2], kv.spec.v_dim)
        out = self._output("out", out, shape, q.dtype)
        if not return_lse:
            return out, None
        return out, self._output("lse", lse, shape[:2], np.dtype(np.float32))


def _window(window: int | None) -> int:
    """0 where there is none; no row is as long as the largest, whatever was meant by more."""
    return 0 if window is None else min(int(window), 2**31 - 1)


def _scale(kv: PagedKV, scale: float | None) -> float:
    if scale is None:
        return 1 / math.sqrt(kv.spec.head_dim)
    if abs(scale) > _LARGEST_SCALE:
        raise RequestError("scale", f"{scale!r} is beyond float32", limit=_LARGEST_SCALE)
    return float(scale)
