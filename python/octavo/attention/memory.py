"""What kernels need to know of paged memory: addresses, strides, scales, and whether it is fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.attention.arrays import Array, address_of, device_of, sent
from octavo.attention.dtypes import FP8
from octavo.attention.kernels import HEAD_DIMS, PAIRS
from octavo.errors import RequestError

if TYPE_CHECKING:
    from octavo.attention.store import PagedKV

__all__ = ["KernelMemory"]

# Bytes of a load, and what every address must be a multiple of.
_VECTOR = 16
_KV_DTYPES = tuple(dict.fromkeys(kv for _, kv in PAIRS))


class KernelMemory:
    """A `PagedKV` as kernels take it.

    It holds the memory's arrays and not the memory: a back end keeps one for as long as the memory
    lives, and must not be why it lives.

    Attributes:
        spec: The memory's shape.
        strides: For each layer the elements between blocks, slots and heads of keys and of values,
            by the names of the kernels' parameters.
        planes: int64[2 x layers, 5] on the device: keys before values of each layer, the address
            and the bytes between blocks, slots and heads, and of a head.
        k_scale: float32[num_kv_heads] on the device; None where there are no scales.
        v_scale: The same for values.

    Raises:
        RequestError: Kernels are not made for its dtype or head dims, its rows are not aligned to
            16 bytes, or it lies on another device than the current one.
    """

    def __init__(self, kv: PagedKV) -> None:
        spec = kv.spec
        if spec.dtype not in _KV_DTYPES:
            raise RequestError("kv", f"holds {spec.dtype}; kernels take {', '.join(_KV_DTYPES)}")
        for name, dim in (("head_dim", spec.head_dim), ("v_head_dim", spec.v_dim)):
            if dim not in HEAD_DIMS:
                dims = ", ".join(map(str, HEAD_DIMS))
                raise RequestError("kv", f"{name} is {dim}; kernels take {dims}")
        self.spec = spec
        self._pages = [kv.pages(layer) for layer in range(spec.num_layers)]
        self.strides: list[dict[str, int]] = []
        rows = list[list[int]]()
        for layer, planes in enumerate(self._pages):
            strides = dict[str, int]()
            for plane, pages in zip("kv", planes, strict=True):
                block, slot, head = _row_strides(layer, plane, pages)
                size = pages.dtype.itemsize
                rows.append([address_of(pages), block, slot, head, pages.shape[3] * size])
                names = (f"{plane}_block", f"{plane}_slot", f"{plane}_head")
                strides |= zip(names, (block // size, slot // size, head // size), strict=True)
            self.strides.append(strides)
        self.planes: Array = sent(kv.xp, np.array(rows, dtype=np.int64))
        _check_device(kv, device_of(self.planes))
        self.k_scale = _scales(kv, spec.k_scale)
        self.v_scale = _scales(kv, spec.v_scale)

    def pages(self, layer: int) -> dict[str, object]:
        """What every kernel on one layer is given, by the names of its parameters."""
        keys, values = self._pages[layer]
        named: dict[str, object] = {
            "keys": keys,
            "values": values,
            "block_size": self.spec.block_size,
        }
        return named | {"k_scale": self.k_scale, "v_scale": self.v_scale} | self.strides[layer]


def _row_strides(layer: int, plane: str, pages: Array) -> tuple[int, int, int]:
    """Bytes between blocks, slots and heads; 0 along an axis of length 1."""
    name = f"{'keys' if plane == 'k' else 'values'} of layer {layer}"
    *strides, last = pages.strides
    if last != pages.dtype.itemsize:
        raise RequestError("kv", f"{name}: a head's elements do not lie side by side")
    strides = [step if size > 1 else 0 for step, size in zip(strides, pages.shape, strict=False)]
    if address_of(pages) % _VECTOR or any(step % _VECTOR for step in strides):
        raise RequestError("kv", f"{name}: rows are not aligned to {_VECTOR} bytes")
    return strides[0], strides[1], strides[2]


def _check_device(kv: PagedKV, device: int | None) -> None:
    for layer in range(kv.spec.num_layers):
        for name, pages in zip(("keys", "values"), kv.pages(layer), strict=True):
            found = device_of(pages)
            if found != device:
                message = f"{name} of layer {layer} lie on device {found}, kernels run on {device}"
                raise RequestError("kv", message)


def _scales(kv: PagedKV, scale: object) -> Array | None:
    if kv.spec.dtype != FP8:
        return None
    each = np.broadcast_to(np.asarray(scale, dtype=np.float32), (kv.spec.num_kv_heads,))
    return sent(kv.xp, np.ascontiguousarray(each))
