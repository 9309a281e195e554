"""Paged KV memory: a layer's keys and values as arrays of blocks, owned or adopted.

    NHD   [block, slot, head, dim]   the projection's output, row for row
    HND   [block, head, slot, dim]   a block's head in one piece

It does not know who owns a block, nor what was written: that is the allocator's, and the tables'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any, cast

import numpy as np

from octavo.attention.arrays import Array, address_of, whole_number
from octavo.attention.dtypes import DTYPES, FP8, memory_dtype
from octavo.attention.spec import LAYOUTS, KVSpec
from octavo.errors import ConfigError, RequestError

__all__ = ["PagedKV"]

_NO_MLA = "keys and values are two arrays: a single latent plane (MLA) is not supported yet"


class PagedKV:
    """KV memory of all layers.

    By default it owns one zeroed allocation, layer after layer, keys before values, without
    padding. With `arrays` it adopts those of an engine and copies nothing; any strides will do.
    float8_e4m3 is that of ml_dtypes over NumPy and bytes over CuPy, which has no such type; adopted
    arrays of it may be bytes anywhere.

    Args:
        spec: Its shape.
        xp: The module of its arrays: NumPy, or CuPy.
        arrays: A pair (keys, values) for each layer, of `spec.k_shape` and `spec.v_shape`, that
            stay the engine's.

    Attributes:
        spec: Its shape.
        xp: The module of its arrays.
        dtype: The dtype of its arrays: `spec.dtype`'s, or uint8 for float8_e4m3.
        nbytes: Bytes of keys and values, exactly.
        buffer: The allocation, uint8[nbytes]; None where arrays were adopted.

    Raises:
        RequestError: `arrays` has not a pair for each layer, or `arrays[i]` is of another shape or
            dtype, read-only, or one plane for keys and values.
        MissingDependencyError: The dtype needs ml_dtypes, which is not installed.

    Example:
        >>> kv = PagedKV(KVSpec(2, num_blocks=4, block_size=16, num_kv_heads=2, head_dim=8))
        >>> kv.k(0).shape, kv.nbytes
        ((4, 16, 2, 8), 16384)
    """

    def __init__(
        self,
        spec: KVSpec,
        *,
        xp: ModuleType = np,
        arrays: Sequence[tuple[Array, Array]] | None = None,
    ) -> None:
        self.spec = spec
        self.xp = xp
        are_bytes = spec.dtype == FP8 and arrays is not None and _hold_bytes(arrays)
        self.dtype = np.dtype(np.uint8) if are_bytes else memory_dtype(spec.dtype, xp)
        self.nbytes = spec.nbytes
        self.buffer: Array | None = None
        if arrays is None:
            self.buffer = xp.zeros(spec.nbytes, dtype=np.uint8)
            self._layers = self._carve(self.buffer)
        else:
            self._layers = self._adopt(arrays)

    @classmethod
    def from_dlpack(
        cls,
        producers: Sequence[tuple[Any, Any]],
        *,
        layout: str = "NHD",
        dtype: str | None = None,
        k_scale: float | Sequence[float] | None = None,
        v_scale: float | Sequence[float] | None = None,
        xp: ModuleType = np,
    ) -> PagedKV:
        """Adopts what another library holds, such as CPU tensors of PyTorch, without a copy.

        Args:
            producers: A pair (keys, values) for each layer, objects with `__dlpack__`.
            layout: The layout of all of them.
            dtype: What their elements are, where DLPack does not say it: bfloat16 and fp8 come as
                integers of the same width only (`tensor.view(torch.uint16)`).
            k_scale: As in `KVSpec`.
            v_scale: As in `KVSpec`.
            xp: The module that takes them. NumPy before 2.1 takes them read-only.

        Raises:
            RequestError: `producers` is empty, or `arrays[i]` is not a pair of DLPack producers, of
                four axes, of the others' shape, or cannot be written.
            ConfigError: The shape or the layout is not a memory's.

        Example:
            >>> import numpy as np
            >>> keys, values = np.zeros((4, 16, 2, 8)), np.zeros((4, 16, 2, 8))
            >>> kv = PagedKV.from_dlpack([(keys, values)])
            >>> kv.spec.dtype, np.shares_memory(kv.k(0), keys)
            ('float64', True)
        """
        if layout not in LAYOUTS:
            raise ConfigError("layout", layout, f"one of {', '.join(LAYOUTS)}")
        if not producers:
            raise RequestError("producers", "is empty: the memory needs a layer")
        taken = None if dtype is None else memory_dtype(_known(dtype), xp)
        arrays = [_import(i, pair, xp, taken) for i, pair in enumerate(producers)]
        keys, values = arrays[0]
        num_blocks, first, second, head_dim = keys.shape
        block_size, heads = (first, second) if layout == "NHD" else (second, first)
        spec = KVSpec(
            num_layers=len(arrays),
            num_blocks=num_blocks,
            block_size=block_size,
            num_kv_heads=heads,
            head_dim=head_dim,
            v_head_dim=values.shape[-1],
            dtype=dtype if dtype is not None else _name_of(keys),
            layout=layout,
            k_scale=k_scale,
            v_scale=v_scale,
        )
        return cls(spec, xp=xp, arrays=arrays)

    def k(self, layer: int) -> Array:
        """The keys of a layer, in the layout: a view.

        Raises:
            RequestError: There is no such layer.
        """
        return self._layers[self._checked(layer)][0]

    def v(self, layer: int) -> Array:
        """The values of a layer, in the layout: a view.

        Raises:
            RequestError: There is no such layer.
        """
        return self._layers[self._checked(layer)][1]

    def pages(self, layer: int) -> tuple[Array, Array]:
        """Keys and values of a layer as [block, slot, head, dim], whatever the layout: views.

        Raises:
            RequestError: There is no such layer.
        """
        keys, values = self._layers[self._checked(layer)]
        if self.spec.layout == "NHD":
            return keys, values
        return keys.swapaxes(1, 2), values.swapaxes(1, 2)

    def __repr__(self) -> str:
        return f"PagedKV({self.spec!r}, xp={self.xp.__name__})"

    def _checked(self, layer: object) -> int:
        last = self.spec.num_layers - 1
        number = whole_number(layer)
        if number is None or not 0 <= number <= last:
            raise RequestError("layer", f"{layer!r} is none of 0 … {last}")
        return number

    def _carve(self, buffer: Array) -> list[tuple[Array, Array]]:
        start, planes = 0, list[Array]()
        for shape in (self.spec.k_shape, self.spec.v_shape) * self.spec.num_layers:
            end = start + math.prod(shape) * self.dtype.itemsize
            planes.append(buffer[start:end].view(self.dtype).reshape(shape))
            start = end
        return list(zip(planes[::2], planes[1::2], strict=True))

    def _adopt(self, arrays: Sequence[Any]) -> list[tuple[Array, Array]]:
        layers = self.spec.num_layers
        if len(arrays) != layers:
            raise RequestError("arrays", f"has {len(arrays)} pairs, the spec has {layers} layers")
        adopted = list[tuple[Array, Array]]()
        for i, given in enumerate(arrays):
            keys, values = _pair(i, given)
            self._check(f"arrays[{i}]", "K", keys, self.spec.k_shape)
            self._check(f"arrays[{i}]", "V", values, self.spec.v_shape)
            if address_of(keys) == address_of(values):
                raise RequestError(f"arrays[{i}]", f"K and V are the same memory; {_NO_MLA}")
            adopted.append((keys, values))
        return adopted

    def _check(self, name: str, plane: str, array: Any, shape: tuple[int, ...]) -> None:
        if not isinstance(array, self.xp.ndarray):
            kind = type(cast("object", array)).__name__
            raise RequestError(name, f"{plane} is a {kind}, no array of {self.xp.__name__}")
        found: Array = array
        if found.shape != shape:
            raise RequestError(name, f"{plane} has the shape {found.shape}, needed is {shape}")
        if found.dtype != self.dtype:
            raise RequestError(name, f"{plane} is {found.dtype}, needed is {self.dtype}")
        if not getattr(found.flags, "writeable", True):
            raise RequestError(name, f"{plane} is read-only")


def _hold_bytes(arrays: Sequence[Any]) -> bool:
    """Whether the first one does; that the others do, too, is checked with the rest."""
    return len(arrays) > 0 and getattr(_pair(0, arrays[0])[0], "dtype", None) == np.uint8


def _pair(i: int, given: Any) -> tuple[Any, Any]:
    if not isinstance(given, (tuple, list)):
        raise RequestError(f"arrays[{i}]", _NO_MLA)
    pair = cast("Sequence[Any]", given)
    if len(pair) != 2 or pair[0] is None or pair[1] is None:
        raise RequestError(f"arrays[{i}]", _NO_MLA)
    return pair[0], pair[1]


def _import(
    i: int, given: Any, xp: ModuleType, dtype: np.dtype[np.generic] | None
) -> tuple[Array, Array]:
    planes = list[Array]()
    for plane, producer in zip("KV", _pair(i, given), strict=True):
        if not hasattr(producer, "__dlpack__"):
            kind = type(producer).__name__
            raise RequestError(f"arrays[{i}]", f"{plane} is a {kind}, without __dlpack__")
        try:
            array: Array = xp.from_dlpack(producer)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            message = f"{plane} is not taken by {xp.__name__}.from_dlpack: {error}"
            raise RequestError(f"arrays[{i}]", message) from error
        if array.ndim != 4:
            raise RequestError(f"arrays[{i}]", f"{plane} has {array.ndim} axes, needed are 4")
        if dtype is not None and array.dtype != dtype:
            if array.dtype.itemsize != dtype.itemsize:
                raise RequestError(f"arrays[{i}]", f"{plane} is {array.dtype}, needed is {dtype}")
            array = array.view(dtype)
        planes.append(array)
    return planes[0], planes[1]


def _known(dtype: str) -> str:
    if dtype not in DTYPES:
        raise ConfigError("dtype", dtype, f"one of {', '.join(DTYPES)}")
    return dtype


def _name_of(array: Array) -> str:
    name = str(array.dtype.name)
    return FP8 if name == "float8_e4m3fn" else name
