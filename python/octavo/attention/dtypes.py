"""What KV memory may hold: names, widths, and NumPy's dtypes for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo._optional import require_ml_dtypes

__all__ = ["DTYPES", "FP8", "FP8_MAX", "MODEL_DTYPES", "numpy_dtype"]

# Bytes of an element.
DTYPES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3": 1}

FP8 = "float8_e4m3"
# The largest finite e4m3 value, S.1111.110 (FP8 Formats for Deep Learning, arXiv 2209.05433, table
# 1). There is no infinity: what is larger must saturate before it is converted, or becomes NaN.
FP8_MAX = 448.0

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
