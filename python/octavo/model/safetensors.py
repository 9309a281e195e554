"""A reader of safetensors files: eight bytes with the header's length, JSON, then the tensors.

Everything that the header says is held against the file before a tensor is read.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from octavo.errors import CheckpointError

__all__ = ["TensorFile"]

# BF16 has no NumPy type of its own: its 16 bits are the upper half of a float32.
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_LONGEST_HEADER = 100_000_000


class _Entry(NamedTuple):
    type: str
    shape: tuple[int, ...]
    begin: int
    end: int


class TensorFile:
    """The tensors of one file, read when they are asked for.

    Attributes:
        path: The file.
        names: Its tensors, in their order in the header.

    Raises:
        CheckpointError: The file is not there, is truncated, or its header is none.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._size = self.path.stat().st_size
            with self.path.open("rb") as file:
                header = self._header(file)
        except FileNotFoundError:
            raise self._error("is not there") from None
        self._entries = {name: self._entry(name, entry) for name, entry in header.items()}
        self._check_spans()
        self.names = tuple(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor that is there."""
        return self._entries[name].shape

    def read(self, name: str) -> npt.NDArray[Any]:
        """A tensor that is there, as float64, float32 or float16; bfloat16 comes as float32."""
        entry = self._entries[name]
        count = math.prod(entry.shape)
        kind, start = _TYPES[entry.type], self._data + entry.begin
        values = cast("Any", np.fromfile(self.path, dtype=kind, count=count, offset=start))
        if len(values) < count:
            raise self._error("is truncated", name)
        if entry.type == "BF16":
            values = _widened(values)
        shaped: npt.NDArray[Any] = values.reshape(entry.shape)
        return shaped

    def _header(self, file: Any) -> dict[str, Any]:
        if self._size < 8:
            raise self._error(f"is truncated: {self._size} bytes hold no header")
        length = int.from_bytes(file.read(8), "little")
        self._data = 8 + length
        if length > _LONGEST_HEADER:
            raise self._error(f"is no safetensors file: a header of {length:,} bytes")
        if self._data > self._size:
            raise self._error(f"is truncated: {self._size:,} bytes, {self._data:,} for the header")
        try:
            header: Any = json.loads(file.read(length), object_pairs_hook=_unique)
        except ValueError as error:
            raise self._error(f"has a header that is no JSON: {error}") from error
        if not isinstance(header, dict):
            raise self._error("has a header that is no JSON object")
        tensors = cast("dict[str, Any]", header)
        tensors.pop("__metadata__", None)
        return tensors

    def _entry(self, name: str, given: Any) -> _Entry:
        try:
            kind, shape, (begin, end) = given["dtype"], given["shape"], given["data_offsets"]
            numbers = [begin, end, *shape]
        except (KeyError, TypeError, ValueError):
            raise self._error("has no dtype, shape and data_offsets", name) from None
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise self._error("has a shape or data_offsets that are no counts", name)
        if kind not in _TYPES:
            raise self._error(f"is of type {kind}: {', '.join(_TYPES)} are read", name)
        size = math.prod(shape) * np.dtype(_TYPES[kind]).itemsize
        if end - begin != size:
            raise self._error(f"has {end - begin:,} bytes, its shape {size:,}", name)
        return _Entry(kind, tuple(shape), begin, end)

    def _check_spans(self) -> None:
        place = 0
        for name, entry in sorted(self._entries.items(), key=lambda item: item[1].begin):
            if entry.begin != place:
                raise self._error("does not begin where the tensor before it ends", name)
            place = entry.end
        expected = self._data + place
        if self._size < expected:
            raise self._error(f"is truncated: {self._size:,} of {expected:,} bytes")
        if self._size > expected:
            raise self._error(f"has {self._size - expected:,} bytes behind its tensors")

    def _error(self, reason: str, tensor: str | None = None) -> CheckpointError:
        return CheckpointError(str(self.path), reason, tensor)


def _widened(halves: Any) -> Any:
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        message = "a name stands twice"
        raise ValueError(message)
    return values
