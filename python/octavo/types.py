"""Words that callers and core share: why a sequence ended, and the shapes of what is passed in."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias, Union

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["ExtraKey", "Integers", "Reason", "Times", "TokenIds"]

# A one-dimensional integer array, or any sequence of ints: handles, lengths, positions.
Integers: TypeAlias = Union[Sequence[int], "npt.NDArray[np.integer]"]

# Seconds on the caller's clock, one for each request; None where it has none.
Times: TypeAlias = Union["Sequence[float | None]", "npt.NDArray[np.floating]"]

# Token ids, 0 … 2^31-1. An int32 array is not copied.
TokenIds: TypeAlias = Integers

# What tells blocks of equal tokens apart: (start, end or None, kind, value).
ExtraKey: TypeAlias = tuple[int, "int | None", str, bytes]


class Reason(IntEnum):
    """Why a sequence ended, as in `Outcome.reasons`.

    Example:
        >>> Reason(2).name
        'CAPACITY'
    """

    STOP = 0
    LENGTH = 1
    CAPACITY = 2
    ABORTED = 3
    FINISHED = 4
    REJECTED = 5
