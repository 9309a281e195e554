"""Blocks between a GPU and the host: in batches through pinned memory, on a stream of their own.

    out   blocks ──take──▶ batch ──copy──▶ pinned ──▶ target     the next batch is under way
    in    source ──▶ pinned ──copy──▶ batch ──put──▶ blocks      while the host moves one

The copy stream waits for the caller's, so that it sees what was written and overwrites nothing
that is still read; after a way in, the caller's stream waits for the copy stream. Where the host's
array is pinned itself, batches go straight there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.attention.arrays import Array, address_of
from octavo.attention.swap import columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from octavo.attention.store import PagedKV

__all__ = ["StagedRows"]

# Of a batch: large enough that its copies take the link's time, not the calls'.
_BATCH_BYTES = 64 * 2**20
# What is taken and put at a time, where blocks lie in one piece.
_WORD = np.dtype(np.uint64)


class _Stage:
    """Pinned memory, and when its last copy has ended."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._memory: Array = np.empty(0, dtype=np.uint8)
        self.event: Any = cuda.Event(disable_timing=True)

    def rows(self, count: int, size: int) -> Array:
        """uint8[count, size], once nothing is under way from there or to there."""
        self.event.synchronize()
        if self._memory.size < count * size:
            self._memory = np.frombuffer(self._cuda.alloc_pinned_memory(count * size), np.uint8)
        return self._memory[: count * size].reshape(count, size)


class StagedRows:
    """The `swap.Rows` of CuPy's memory.

    One object serves one caller at a time. It keeps two batches of pinned memory and a stream.

    Args:
        xp: CuPy.
        batch_bytes: The most bytes of a batch that has more than one block.
    """

    def __init__(self, xp: Any, batch_bytes: int = _BATCH_BYTES) -> None:
        self._xp = xp
        self._batch_bytes = batch_bytes
        # Not one that waits for the legacy default stream: it waits for the caller's.
        self._stream: Any = xp.cuda.Stream(non_blocking=True)
        self._stages = (_Stage(xp.cuda), _Stage(xp.cuda))

    def read(self, kv: PagedKV, blocks: Array, target: Array) -> None:
        """Copies blocks of all layers; they are there when it returns."""
        self._follow()
        straight = self._is_pinned(target)
        # A batch that is on its way to a stage, and where it goes from there.
        coming: tuple[_Stage, Array, Array] | None = None
        try:
            for number, part in self._batches(kv, len(blocks)):
                stage, wanted = self._stages[number % 2], target[part]
                host = wanted if straight else stage.rows(*wanted.shape)
                with self._stream:
                    batch = self._xp.empty(host.shape, dtype=np.uint8)
                    self._take(kv, blocks[part], batch)
                batch.data.copy_to_host_async(address_of(host), host.nbytes, self._stream)
                stage.event.record(self._stream)
                if coming is not None:
                    _land(*coming)
                coming = None if straight else (stage, host, wanted)
            if coming is not None:
                _land(*coming)
        finally:
            self._stream.synchronize()

    def write(self, kv: PagedKV, blocks: Array, source: Array) -> None:
        """Copies blocks of all layers back; `source` is free when it returns."""
        caller = self._follow()
        straight = self._is_pinned(source)
        try:
            for number, part in self._batches(kv, len(blocks)):
                stage, given = self._stages[number % 2], source[part]
                host = given
                if not straight:
                    host = stage.rows(*given.shape)
                    host[...] = given
                with self._stream:
                    batch = self._xp.empty(host.shape, dtype=np.uint8)
                    batch.data.copy_from_host_async(address_of(host), host.nbytes, self._stream)
                    stage.event.record(self._stream)
                    self._put(kv, blocks[part], batch)
        finally:
            caller.wait_event(self._stream.record(self._xp.cuda.Event(disable_timing=True)))
            if straight:
                for stage in self._stages:
                    stage.event.synchronize()

    def _follow(self) -> Any:
        """Lets the copy stream wait for what the caller's has so far. Returns the caller's."""
        caller = self._xp.cuda.get_current_stream()
        ready = caller.record(self._xp.cuda.Event(disable_timing=True))
        self._stream.wait_event(ready)
        return caller

    def _batches(self, kv: PagedKV, count: int) -> Iterator[tuple[int, slice]]:
        """The number of each batch and its part of so many blocks."""
        most = max(1, self._batch_bytes // kv.spec.bytes_per_block)
        for number, first in enumerate(range(0, count, most)):
            yield number, slice(first, min(first + most, count))

    def _is_pinned(self, host: Array) -> bool:
        """Whether the card can copy to and from it without a stage."""
        runtime = self._xp.cuda.runtime
        if not host.size or not host.flags.c_contiguous:
            return False
        return bool(runtime.pointerGetAttributes(address_of(host)).type == runtime.memoryTypeHost)

    def _take(self, kv: PagedKV, ids: Array, batch: Array) -> None:
        for plane, part in columns(kv):
            words = _words(plane)
            if words is None:
                batch[:, part] = plane[ids].reshape(len(ids), -1).view(np.uint8)
            else:
                self._xp.take(words, ids, axis=0, out=batch.view(_WORD)[:, _in_words(part)])

    def _put(self, kv: PagedKV, ids: Array, batch: Array) -> None:
        for plane, part in columns(kv):
            words = _words(plane)
            if words is None:
                values = self._xp.ascontiguousarray(batch[:, part]).view(kv.dtype)
                plane[ids] = values.reshape(len(ids), *plane.shape[1:])
            else:
                words[ids] = batch.view(_WORD)[:, _in_words(part)]


def _land(stage: _Stage, host: Array, target: Array) -> None:
    """Moves a batch on when it is there."""
    stage.event.synchronize()
    target[...] = host


def _words(plane: Array) -> Array | None:
    """The blocks of a plane as rows of words: a view. None where they lie in other pieces.

    Kernels' memory has heads of whole words, so that all planes' parts of a row have, too.
    """
    if not plane.flags.c_contiguous:
        return None
    blocks, size = plane.shape[0], math.prod(plane.shape[1:]) * plane.dtype.itemsize
    return plane.reshape(-1).view(_WORD).reshape(blocks, size // _WORD.itemsize)


def _in_words(part: slice) -> slice:
    return slice(part.start // _WORD.itemsize, part.stop // _WORD.itemsize)
