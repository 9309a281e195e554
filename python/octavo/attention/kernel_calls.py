"""What all operations of kernels have in common: whose arrays, which memory, and one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from octavo.attention import kernels
from octavo.attention.arrays import Array, address_of
from octavo.attention.checks import (
    check_array,
    check_block_size,
    check_queries,
    check_table_shapes,
    check_tables,
)
from octavo.attention.launch import Kernel, Launcher, arguments
from octavo.attention.memory import KernelMemory
from octavo.errors import RequestError, StateError

if TYPE_CHECKING:
    from octavo.attention.store import PagedKV

__all__ = ["KernelCalls", "pair_of"]


class KernelCalls:
    """Runs kernels over the arrays of a launcher.

    Args:
        launcher: What runs them.
        debug: Whether values on the device are looked at, to be checked.

    Attributes:
        launcher: As given.
        debug: As given.
    """

    def __init__(self, launcher: Launcher, *, debug: bool) -> None:
        self.launcher = launcher
        self.debug = debug
        self._memories: WeakKeyDictionary[PagedKV, KernelMemory] = WeakKeyDictionary()

    def memory(self, kv: PagedKV) -> KernelMemory:
        """A memory as kernels take it, looked at once.

        Raises:
            RequestError: It is of another module than the launcher's arrays, or unfit for kernels.
            StateError: It was not looked at yet, and a graph is captured.
        """
        if kv.xp is not self.launcher.xp:
            takes = self.launcher.xp.__name__
            raise RequestError("kv", f"holds arrays of {kv.xp.__name__}, kernels take {takes}'s")
        found = self._memories.get(kv)
        if found is None:
            if self.launcher.is_capturing:
                raise StateError(
                    "a graph is captured and nothing is known of this memory yet: call prepare() "
                    "with it before"
                )
            found = self._memories[kv] = KernelMemory(kv)
        return found

    def tables_of(self, kv: PagedKV, tables: Array, lens: Array) -> tuple[Array, int, Array]:
        """As `table_pair`, for the blocks of a memory."""
        return self.table_pair(tables, lens, kv.spec.block_size, kv.spec.num_blocks)

    def table_pair(
        self, tables: Array, lens: Array, block_size: int, num_blocks: int = 2**31
    ) -> tuple[Array, int, Array]:
        """Tables with entries side by side, the entries between rows, and lengths."""
        xp = self.launcher.xp
        check_table_shapes(tables, lens, xp)
        size = check_block_size(block_size)
        if self.looks:
            check_tables(tables, lens, size, num_blocks)
        if tables.strides[1] != 4:
            tables = self._copied("block_tables", tables)
        return tables, tables.strides[0] // 4, self.dense("seq_lens", lens)

    def check_starts(self, xp: Any, starts: Array, lens: Array, num_queries: int | None) -> None:
        """Where the queries of rows start: int32[B + 1]."""
        check_array(xp, "query_start", starts, (len(lens) + 1,), ("int32",))
        if self.looks:
            check_queries(starts, lens, num_queries)

    def rows_of_tokens(self, name: str, array: Array) -> tuple[Array, int]:
        """[T, heads, dim], aligned tokens in one piece each, and the elements between them.

        What lies otherwise is copied.

        Raises:
            StateError: It would be, and a graph is captured.
        """
        size = array.dtype.itemsize
        heads, dim = array.shape[1:]
        token, head, element = array.strides
        in_pieces = element == size and (head == dim * size or heads == 1)
        aligned = address_of(array) % 16 == 0 and (token % 16 == 0 or len(array) == 1)
        if not (in_pieces and aligned):
            array = self._copied(name, array)
            token = array.strides[0]
        return array, token // size

    def dense(self, name: str, array: Array) -> Array:
        """The array itself where it is contiguous, else a copy.

        Raises:
            StateError: It would be copied, and a graph is captured.
        """
        return array if array.flags.c_contiguous else self._copied(name, array)

    def _copied(self, name: str, array: Array) -> Array:
        # A graph would write the copy each time it is replayed, long after the copy was freed.
        if self.launcher.is_capturing:
            raise StateError(
                f"a graph is captured and {name} would be copied: give it in one piece, aligned "
                "to 16 bytes"
            )
        return self.launcher.xp.array(array, order="C")

    @property
    def looks(self) -> bool:
        """Whether values on the device are looked at, to be checked.

        Raises:
            StateError: They are, and a graph is captured.
        """
        if self.debug:
            self.outside_graphs("debug looks at values: call this")
        return self.debug

    def outside_graphs(self, what: str) -> None:
        """For what a graph cannot hold.

        Raises:
            StateError: One is captured.
        """
        if self.launcher.is_capturing:
            raise StateError(f"a graph is captured, and {what} outside")

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        shared: dict[str, object] | None = None,
        /,
        **values: object,
    ) -> None:
        """Runs a kernel on `values` and what it takes of `shared`; an empty grid is no launch."""
        if 0 not in grid:
            taken = {name for name, _ in kernel.params}
            given = {name: value for name, value in (shared or {}).items() if name in taken}
            self.launcher.launch(kernel, grid, arguments(kernel, given | values))


def pair_of(dtype: str, kv: PagedKV, name: str) -> tuple[str, str]:
    """The model's dtype and the memory's, where kernels take both."""
    pair = (dtype, kv.spec.dtype)
    if pair not in kernels.PAIRS:
        raise RequestError(name, f"no kernel takes {pair[0]} over {pair[1]}")
    return pair
