"""Attention in parts: into how many a context is split, where these lie, and their merge."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from octavo.attention import kernels
from octavo.attention.arrays import Array, address_of, whole_number
from octavo.attention.checks import check_array, check_states
from octavo.attention.dtypes import name_of
from octavo.attention.kernel_calls import KernelCalls
from octavo.attention.splits import plan_splits
from octavo.attention.workspace import Workspace
from octavo.errors import ConfigError, RequestError

if TYPE_CHECKING:
    import numpy as np

    from octavo.attention.launch import Kernel, Launcher
    from octavo.attention.store import PagedKV

__all__ = ["PartKernels"]

_LOG2_E = 1 / math.log(2)
# Thread blocks of a grid along its third axis.
_MOST_SPLITS = 65_535


class PartKernels(KernelCalls):
    """`merge_states`, and attention that is split and merged."""

    def __init__(self, launcher: Launcher, *, split_tokens: int | None, debug: bool) -> None:
        super().__init__(launcher, debug=debug)
        if split_tokens is not None:
            tokens = whole_number(split_tokens)
            if tokens is None or tokens < 16 or tokens % 16:
                raise ConfigError("split_tokens", split_tokens, "None, or a multiple of 16")
        self._split_tokens = split_tokens
        self._workspace = Workspace(launcher)
        # By name: hashing a kernel with all of its parameters takes longer.
        self._resident: dict[str, int] = {}

    def merge_states(
        self, out: Array, lse: Array, *, into: tuple[Array, Array] | None = None
    ) -> tuple[Array, Array]:
        """One attention result from those over parts of the context.

        Args:
            out: As in the reference, like the log-sum-exp.
            lse: In float32.
            into: Where output and log-sum-exp go, contiguous and aligned to 16 bytes: a graph needs
                such that stay. By default new arrays.

        Raises:
            RequestError: An argument has a wrong dtype or shape.
        """
        check_states(out, lse)
        dtype = name_of(out.dtype)
        if dtype not in dict(kernels.PAIRS) or name_of(lse.dtype) != "float32":
            raise RequestError("out", f"is {dtype} with {lse.dtype}: kernels take no float64")
        merged, logs = (None, None) if into is None else into
        merged = self._output("into", merged, out.shape[1:], out.dtype)
        logs = self._output("into", logs, lse.shape[1:], lse.dtype)
        parts, dim = out.shape[0], out.shape[-1]
        self.launch(
            kernels.merge_states(dtype, dtype),
            (logs.size, 1, 1),
            out=merged,
            lse=logs,
            parts=self.dense("out", out),
            part_lse=self.dense("lse", lse),
            to_log2=_LOG2_E,
            num_parts=parts,
            dim=dim,
            row_stride=dim,
            part_stride=logs.size * dim,
            lse_row_stride=1,
            lse_part_stride=logs.size,
        )
        return merged, logs

    def _attend(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        shared: dict[str, object],
        *,
        q: Array,
        out: Array,
        lse: Array | None,
        **values: object,
    ) -> None:
        """Attention in as many parts as the grid is deep, merged where these are more than one."""
        (queries, heads, dim), splits = out.shape, grid[2]
        part_out = part_lse = None
        if splits > 1 and 0 not in grid:
            part_out, part_lse = self._workspace.parts(queries * heads * splits, dim)
        parts = {"part_out": part_out, "part_lse": part_lse}
        self.launch(kernel, grid, shared, q=q, out=out, lse=lse, **parts, **values)
        if splits > 1:
            self.launch(
                kernels.merge_states(name_of(out.dtype), "float32"),
                (queries * heads, 1, 1),
                out=out,
                lse=lse,
                parts=part_out,
                part_lse=part_lse,
                to_log2=1.0,
                num_parts=splits,
                dim=dim,
                row_stride=splits * dim,
                part_stride=dim,
                lse_row_stride=splits,
                lse_part_stride=1,
            )

    def _splits(
        self, kernel: Kernel, grid: tuple[int, int], longest: int, split_tokens: int | None = None
    ) -> int:
        blocks = grid[0] * grid[1]
        splits = plan_splits(blocks, longest, self._room(kernel), split_tokens) if blocks else 1
        if splits > _MOST_SPLITS:
            message = f"reach {longest} tokens: more than {_MOST_SPLITS} splits of {split_tokens}"
            raise RequestError("block_tables", message, limit=float(_MOST_SPLITS))
        return splits

    def _room(self, kernel: Kernel) -> int:
        """Thread blocks that the device runs at once."""
        if kernel.name not in self._resident:
            self._resident[kernel.name] = self.launcher.resident_blocks(kernel)
        return self._resident[kernel.name]

    @staticmethod
    def _longest(kv: PagedKV, tables: Array, window: int | None) -> int:
        """The most tokens that a query may see, as far as the host knows."""
        longest = int(tables.shape[1]) * kv.spec.block_size
        return longest if window is None else min(longest, window)

    def _output(
        self, name: str, given: Array | None, shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Array:
        """An array for a result: the one that was given, if it is fit for that, or a new one."""
        xp = self.launcher.xp
        if given is None:
            return xp.empty(shape, dtype=dtype)
        if not check_array(xp, name, given, shape, (name_of(dtype),)).flags.c_contiguous:
            raise RequestError(name, "is not contiguous")
        if address_of(given) % 16:
            raise RequestError(name, "is not aligned to 16 bytes")
        return given
