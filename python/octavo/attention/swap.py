"""Blocks to host arrays and to files, and back.

    row of a block   layer 0 K, layer 0 V, layer 1 K, …   the bytes of the layout, without padding
    file             magic, length and checksum of the header, header (JSON), rows

The header has what must agree (layers, heads, dims, block size, dtype, layout, scales) and a CRC-32
of each row. A file is complete or not there: it is written beside its name and moved into place.
How rows get to the host and back is a `Rows`: by indexing here, staged on a GPU in `gpu_swap`.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from octavo.attention.arrays import Array, to_host
from octavo.attention.checks import check_array, check_blocks
from octavo.errors import RequestError

if TYPE_CHECKING:
    from octavo.attention.spec import KVSpec
    from octavo.attention.store import PagedKV

__all__ = ["PlainRows", "Rows", "columns", "receive", "send", "swap_in", "swap_out"]

_MAGIC = b"OctavoKV"
# Length of the header, and its CRC-32.
_SIZES = struct.Struct("<II")


class Rows(Protocol):
    """How rows of blocks get from a memory to the host and back."""

    def read(self, kv: PagedKV, blocks: Array, target: Array) -> None:
        """Copies blocks of all layers; they are there when it returns.

        Args:
            kv: The memory.
            blocks: int32[n], block ids, checked.
            target: uint8[n, kv.spec.bytes_per_block] on the host.
        """
        ...

    def write(self, kv: PagedKV, blocks: Array, source: Array) -> None:
        """Copies blocks of all layers back; `source` is free when it returns.

        Args:
            kv: The memory.
            blocks: int32[n], block ids, checked.
            source: uint8[n, kv.spec.bytes_per_block] on the host.
        """
        ...


class PlainRows:
    """Rows by indexing, for memory of any module, at once."""

    def read(self, kv: PagedKV, blocks: Array, target: Array) -> None:
        """Copies blocks of all layers, plane by plane."""
        for plane, part in columns(kv):
            values: Array = np.ascontiguousarray(to_host(plane[blocks]))
            flat = values.reshape(len(blocks), math.prod(plane.shape[1:]))
            target[:, part] = flat.view(np.uint8)

    def write(self, kv: PagedKV, blocks: Array, source: Array) -> None:
        """Copies blocks of all layers back, plane by plane."""
        for plane, part in columns(kv):
            values: Array = np.ascontiguousarray(source[:, part])
            shape = (len(blocks), *plane.shape[1:])
            plane[blocks] = kv.xp.asarray(values.view(kv.dtype).reshape(shape))


def columns(kv: PagedKV) -> Iterator[tuple[Array, slice]]:
    """Each plane, and the bytes of a row that hold a block of it."""
    start = 0
    for layer in range(kv.spec.num_layers):
        for plane in (kv.k(layer), kv.v(layer)):
            end = start + math.prod(plane.shape[1:]) * kv.dtype.itemsize
            yield plane, slice(start, end)
            start = end


def swap_out(kv: PagedKV, blocks: Array, target: str | os.PathLike[str] | Array) -> None:
    """Copies blocks of all layers to the host or to a file.

    Args:
        kv: The memory; it stays as it is.
        blocks: int32[n], block ids.
        target: A file, written anew, or a NumPy array uint8[n, kv.spec.bytes_per_block].

    Raises:
        RequestError: `blocks` or `target` is of a wrong dtype or shape, or a block is none of the
            pool's.
        OSError: The file cannot be written; no part of it is left.

    Example:
        >>> from octavo.attention import KVSpec, PagedKV
        >>> kv = PagedKV(KVSpec(1, num_blocks=4, block_size=2, num_kv_heads=1, head_dim=2))
        >>> kv.k(0)[3] = 7
        >>> host = np.empty((1, kv.spec.bytes_per_block), np.uint8)
        >>> swap_out(kv, np.array([3], np.int32), host)
        >>> swap_in(kv, np.array([0], np.int32), host)
        >>> kv.k(0)[0, 0, 0].tolist()
        [7.0, 7.0]
    """
    send(kv, blocks, target, PlainRows())


def swap_in(kv: PagedKV, blocks: Array, source: str | os.PathLike[str] | Array) -> None:
    """Copies blocks of all layers back, into these blocks or others.

    Args:
        kv: The memory; only these blocks of it change.
        blocks: int32[n], block ids, none of them twice; as many as the source has.
        source: A file that `swap_out` wrote, or a NumPy array uint8[n, kv.spec.bytes_per_block].

    Raises:
        RequestError: `blocks` or `source` is of a wrong dtype or shape, or the file is of another
            memory, has another number of blocks, is cut short, or does not match a checksum.
            Nothing was written.
        OSError: The file cannot be read.
    """
    receive(kv, blocks, source, PlainRows())


def send(kv: PagedKV, blocks: Array, target: str | os.PathLike[str] | Array, rows: Rows) -> None:
    """`swap_out` whose rows are copied as `rows` does."""
    check_blocks(kv, blocks, once=False)
    shape = (len(blocks), kv.spec.bytes_per_block)
    path = _path(target)
    if path is None:
        rows.read(kv, blocks, check_array(np, "target", target, shape, ("uint8",)))
        return
    host = np.empty(shape, dtype=np.uint8)
    rows.read(kv, blocks, host)
    _write(path, kv.spec, host)


def receive(kv: PagedKV, blocks: Array, source: str | os.PathLike[str] | Array, rows: Rows) -> None:
    """`swap_in` whose rows are copied as `rows` does."""
    check_blocks(kv, blocks, once=True)
    shape = (len(blocks), kv.spec.bytes_per_block)
    path = _path(source)
    if path is None:
        found = check_array(np, "source", source, shape, ("uint8",))
    else:
        found = _read(path, kv.spec, len(blocks))
    rows.write(kv, blocks, found)


def _path(place: object) -> Path | None:
    """The path where it is one, and no array."""
    return Path(cast("str", place)) if isinstance(place, (str, os.PathLike)) else None


def _agreed(spec: KVSpec) -> dict[str, Any]:
    """What two memories must have in common for a block's bytes to mean the same, as JSON."""
    fields = {
        "num_layers": spec.num_layers,
        "block_size": spec.block_size,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "v_head_dim": spec.v_dim,
        "dtype": spec.dtype,
        "layout": spec.layout,
        "k_scale": spec.k_scale,
        "v_scale": spec.v_scale,
    }
    return cast("dict[str, Any]", json.loads(json.dumps(fields)))


def _write(path: Path, spec: KVSpec, rows: Array) -> None:
    sums = [zlib.crc32(row) for row in rows]
    header = json.dumps({**_agreed(spec), "checksums": sums}).encode()
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(_MAGIC + _SIZES.pack(len(header), zlib.crc32(header)) + header)
            file.write(rows.data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _read(path: Path, spec: KVSpec, num_blocks: int) -> Array:
    """The rows of a file, once everything about it was found right."""
    content = path.read_bytes()
    start = len(_MAGIC) + _SIZES.size
    if not content.startswith(_MAGIC) or len(content) < start:
        raise RequestError("source", f"{path} is no file of swapped blocks")
    length, checksum = _SIZES.unpack_from(content, len(_MAGIC))
    header = content[start : start + length]
    if len(header) < length or zlib.crc32(header) != checksum:
        raise RequestError("source", f"the header of {path} does not match its checksum")
    found: dict[str, Any] = json.loads(header)
    sums: list[int] = found.pop("checksums")
    for field, needed in _agreed(spec).items():
        if found.get(field) != needed:
            message = f"{field} of {path} is {found.get(field)!r}, the memory's is {needed!r}"
            raise RequestError("source", message)
    if len(sums) != num_blocks:
        raise RequestError("source", f"{path} has {len(sums)} blocks, {num_blocks} are named")
    payload: Array = np.frombuffer(content, np.uint8, offset=start + length)
    needed = num_blocks * spec.bytes_per_block
    if payload.size != needed:
        raise RequestError("source", f"{path} has {payload.size} bytes of blocks, not {needed}")
    rows: Array = payload.reshape(num_blocks, spec.bytes_per_block)
    for i, (row, checksum) in enumerate(zip(rows, sums, strict=True)):
        if zlib.crc32(row) != checksum:
            raise RequestError("source", f"block {i} of {path} does not match its checksum")
    return rows
