"""Paged KV memory and attention over it; works without the extension `octavo._core`.

`PagedKV` is the memory, `KVSpec` its shape and size, `Backend` what can be done with it, and
`reference` the back end over NumPy: the oracle of every other. `octavo.attention.gpu.backend()` is
the one that runs kernels on a GPU, through CuPy.

Example:
    >>> import numpy as np
    >>> from octavo.attention import KVSpec, PagedKV, reference
    >>> kv = PagedKV(KVSpec(1, num_blocks=8, block_size=4, num_kv_heads=2, head_dim=8))
    >>> tokens = np.ones((6, 2, 8), np.float32)
    >>> tables, lens = np.array([[5, 2]], np.int32), np.array([6], np.int32)
    >>> slots = reference.slots_from_tables(tables, lens, block_size=4)
    >>> reference.append(kv, 0, tokens, 3 * tokens, slots)
    >>> q = np.ones((1, 4, 8), np.float32)  # 4 query heads, 2 to a KV head
    >>> reference.decode(kv, 0, q, tables, lens)[0, :, 0].round(5).tolist()
    [3.0, 3.0, 3.0, 3.0]
"""

from typing import TYPE_CHECKING

from octavo.attention import reference
from octavo.attention.base import Backend
from octavo.attention.spec import KVSpec
from octavo.attention.store import PagedKV

__all__ = ["Backend", "KVSpec", "PagedKV", "reference"]

if TYPE_CHECKING:
    _conforms: Backend = reference
