"""Blocks to host arrays and to files, and back.

    row of a block   layer 0 K, layer 0 V, layer 1 K, …   the bytes of the layout, without padding
    file             magic, length and checksum of the header, header (JSON), rows

The header has what must agree (layers, heads, dims, block size, dtype, layout, scales) and a CRC-32
of each row. A file is complete or not there: it is written beside its name and moved into place.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from octavo.attention.arrays import Array, to_host
from octavo.attention.checks import check_array, check_blocks
from octavo.errors import RequestError

if TYPE_CHECKING:
    from octavo.attention.spec import KVSpec
    from octavo.attention.store import PagedKV

__all__ = ["swap_in", "swap_out"]

_MAGIC = b"OctavoKV"
# Length of the header, and its CRC-32.
_SIZES = struct.Struct("<II")


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
    check_blocks(kv, blocks, once=False)
    path = _path(target)
    if path is not None:
        _write(path, kv.spec, _rows(kv, blocks))
        return
    shape = (len(blocks), kv.spec.bytes_per_block)
    check_array(np, "target", target, shape, ("uint8",))[...] = _rows(kv, blocks)


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
    check_blocks(kv, blocks, once=True)
    shape = (len(blocks), kv.spec.bytes_per_block)
    path = _path(source)
    if path is not None:
        rows = _read(path, kv.spec, len(blocks))
    else:
        rows = check_array(np, "source", source, shape, ("uint8",))
    start = 0
    for layer in range(kv.spec.num_layers):
        for plane in (kv.k(layer), kv.v(layer)):
            block = plane.shape[1:]
            end = start + math.prod(block) * kv.dtype.itemsize
            part: Array = np.ascontiguousarray(rows[:, start:end])
            plane[blocks] = kv.xp.asarray(part.view(kv.dtype).reshape(len(blocks), *block))
            start = end


def _path(place: object) -> Path | None:
    """The path where it is one, and no array."""
    return Path(cast("str", place)) if isinstance(place, (str, os.PathLike)) else None


def _rows(kv: PagedKV, blocks: Array) -> Array:
    """uint8[n, bytes_per_block] on the host."""
    parts = list[Array]()
    for layer in range(kv.spec.num_layers):
        for plane in (kv.k(layer), kv.v(layer)):
            values: Array = np.ascontiguousarray(to_host(plane[blocks]))
            parts.append(values.reshape(len(blocks), math.prod(plane.shape[1:])).view(np.uint8))
    return np.concatenate(parts, axis=1)


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
