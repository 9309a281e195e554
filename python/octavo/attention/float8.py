"""float8_e4m3 as bytes, for modules of arrays that have no such type.

    bit       7     6 … 3     2 … 0
    meaning   sign  exponent  fraction      ± 1.fraction x 2^(exponent - 7), or 0.fraction x 2^-6

There is no infinity, and one NaN of each sign (FP8 Formats for Deep Learning, arXiv 2209.05433,
table 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from octavo.attention.arrays import Array

__all__ = ["NAN", "VALUES", "encode"]

# The byte of a NaN.
NAN = 0x7F
_MAX = 448.0
# The least value that has a leading one.
_NORMAL = 2.0**-6
# From float32: bits of the fraction that are cut off, and the exponents between the two biases.
_CUT, _BIASES = 20, 127 - 7


def _values() -> npt.NDArray[np.float32]:
    codes = np.arange(128)
    exponent, fraction = codes >> 3, (codes & 7) / 8
    values = np.where(exponent == 0, fraction * _NORMAL, (1 + fraction) * 2.0 ** (exponent - 7))
    values[NAN] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


# What each byte stands for: float32[256].
VALUES = _values()


def encode(xp: Any, values: Array) -> Array:
    """Numbers as bytes: rounded to the nearest, a tie to the even one, and ±448 beyond it.

    Args:
        xp: NumPy or CuPy.
        values: float32, any shape. NaN becomes 0x7F.

    Returns:
        uint8, of the same shape.

    Example:
        >>> codes = encode(np, np.array([1.0, -0.1, 1e9, 0.0], np.float32))
        >>> VALUES[codes].tolist()
        [1.0, -0.1015625, 448.0, 0.0]
    """
    missing = xp.isnan(values)
    size = xp.clip(xp.abs(xp.where(missing, np.float32(0), values)), 0, _MAX).astype(np.float32)
    bits = size.view(np.uint32)
    half = (1 << (_CUT - 1)) - 1
    large = ((bits + half + ((bits >> _CUT) & 1)) >> _CUT) - (_BIASES << 3)
    small = xp.rint(size * np.float32(8 / _NORMAL)).astype(np.uint32)
    codes = xp.where(size < _NORMAL, small, large) | (values.view(np.uint32) >> 24 & 0x80)
    return xp.where(missing, NAN, codes).astype(np.uint8)
