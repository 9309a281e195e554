"""Values from outside: arrays of NumPy or of what stands in for it, and whole numbers."""

from __future__ import annotations

import operator
import sys
from types import ModuleType
from typing import Any, TypeAlias, cast

import numpy as np

__all__ = ["Array", "address_of", "device_of", "module_of", "sent", "to_host", "whole_number"]

# An array of NumPy, or of CuPy where the memory is a GPU's. `PagedKV.xp` says which when it runs;
# the two have no type in common, so a type checker is told nothing.
Array: TypeAlias = Any


def module_of(array: object) -> ModuleType:
    """The module that the array is of: CuPy for its arrays, NumPy for everything else.

    Example:
        >>> module_of(np.zeros(1)).__name__
        'numpy'
    """
    is_cupy = type(array).__module__.partition(".")[0] == "cupy"
    return sys.modules["cupy"] if is_cupy else np


def address_of(array: Array) -> int:
    """Where the first element lies, on the device or the host."""
    # Not by the array interfaces: they know no bfloat16.
    return int(array.ctypes.data if module_of(array) is np else array.data.ptr)


def device_of(array: Array) -> int | None:
    """The number of the device that it lies on; None for the host."""
    return None if module_of(array) is np else int(array.data.device_id)


def sent(xp: ModuleType, array: Array) -> Array:
    """A NumPy array as one of `xp`, there when this returns, whichever stream looks at it.

    Example:
        >>> sent(np, np.arange(2)).tolist()
        [0, 1]
    """
    return array if xp is np else xp.asarray(array, blocking=True)


def to_host(array: Array) -> Array:
    """The values as a NumPy array: the array itself where it is one, else a copy from the device.

    Example:
        >>> to_host(np.arange(2)).tolist()
        [0, 1]
    """
    xp = module_of(array)
    return array if xp is np else xp.asnumpy(array)


def whole_number(value: object) -> int | None:
    """The value as an int, where it is one, of Python or of NumPy; None for what is not.

    Example:
        >>> whole_number(np.int32(3)), whole_number(True), whole_number(3.0)
        (3, None, None)
    """
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(cast("Any", value))
    except TypeError:
        return None
