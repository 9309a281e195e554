"""Memory that operations need while they run, kept between calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import StateError

if TYPE_CHECKING:
    from octavo.attention.arrays import Array
    from octavo.attention.launch import Launcher

__all__ = ["Workspace"]


class Workspace:
    """Two buffers that grow, but never while a graph is captured.

    What a graph was given stays as long as the workspace: nobody says when a graph is gone, and a
    replay would write to whatever lay in its place.

    Args:
        launcher: Whose arrays they are.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._buffers: dict[str, Array] = {}
        self._captured: dict[int, Array] = {}

    def parts(self, count: int, dim: int) -> tuple[Array, Array]:
        """Output float32[count, dim] and log-sum-exp float32[count] of parts of rows.

        Raises:
            StateError: They are larger than ever before, and a graph is captured.
        """
        buffer = self._buffer("parts", count * (dim + 1), np.dtype(np.float32))
        return buffer[: count * dim], buffer[count * dim : count * (dim + 1)]

    def queries(self, count: int) -> tuple[Array, Array]:
        """Row int32[count] and tokens seen int32[count] of queries.

        Raises:
            StateError: They are larger than ever before, and a graph is captured.
        """
        buffer = self._buffer("queries", 2 * count, np.dtype(np.int32))
        return buffer[:count], buffer[count : 2 * count]

    def _buffer(self, name: str, size: int, dtype: np.dtype[np.generic]) -> Array:
        found = self._buffers.get(name)
        is_capturing = self._launcher.is_capturing
        if found is None or found.size < size:
            if is_capturing:
                raise StateError(
                    f"a graph is captured and {size * dtype.itemsize} bytes of workspace are "
                    "missing: call prepare() with the largest batch before"
                )
            found = self._buffers[name] = self._launcher.xp.empty(size, dtype=dtype)
        if is_capturing:
            self._captured[id(found)] = found
        return found
