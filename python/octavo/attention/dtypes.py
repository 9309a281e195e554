"""What KV memory may hold: names, widths, and NumPy's dtypes for them."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from octavo._optional import require_ml_dtypes

__all__ = ["DTYPES", "FP8", "MODEL_DTYPES", "memory_dtype", "name_of", "numpy_dtype"]

# Bytes of an element.
DTYPES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3": 1}

FP8 = "float8_e4m3"

# What queries, and keys and values on their way in, may be of.
MODEL_DTYPES = ("float64", "float32", "float16", "bfloat16")


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """NumPy's dtype for one of `DTYPES`.

    Raises:
        MissingDependencyError: It is bfloat16 or float8_e4m3, and ml_dtypes is not installed.

    Example:
        >>> numpy_dtype("float16").itemsize, numpy_dtype("float8_e4m3").name
        (2, 'float8_e4m3fn')
    """
    if name == "bfloat16":
        found: Any = require_ml_dtypes().bfloat16
    elif name == FP8:
        # "fn": finite, and NaN; the e4m3 that GPUs have.
        found = require_ml_dtypes().float8_e4m3fn
    else:
        found = name
    dtype: np.dtype[np.generic] = np.dtype(found)
    return dtype


@cache
def name_of(dtype: np.dtype[np.generic]) -> str:
    """The dtype's name; of one in the other byte order, something that is no name.

    Kept, since NumPy puts a name together whenever it is asked for: microseconds, many a launch.

    Example:
        >>> name_of(np.dtype("f2")), name_of(np.dtype(">f2"))
        ('float16', '>f2')
    """
    found: Any = dtype
    name: str = found.name if found.isnative else found.str
    return name


def memory_dtype(name: str, xp: ModuleType) -> np.dtype[np.generic]:
    """The dtype that arrays of a module hold it in: CuPy has no fp8, bytes stand for it there.

    Raises:
        MissingDependencyError: It needs ml_dtypes, which is not installed.

    Example:
        >>> memory_dtype("float8_e4m3", np).name
        'float8_e4m3fn'
    """
    return np.dtype(np.uint8) if name == FP8 and xp is not np else numpy_dtype(name)
