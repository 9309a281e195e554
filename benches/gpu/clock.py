"""How long the card takes: CUDA events around a call, the median of several, nothing left in L2."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

import pages

# Written before each measured call: more than any L2, and long enough that the host has put the
# call behind it before the card is done.
_FLUSH_BYTES = 2**30


@dataclass(frozen=True)
class Time:
    """Seconds, the median, and half the distance of the quartiles as a share of it."""

    seconds: float
    spread: float

    @classmethod
    def of(cls, seconds):
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, (high - low) / 2 / median if median else 0.0)

    def rate(self, amount):
        return amount / self.seconds


class Clock:
    """Measures calls on a machine."""

    def __init__(self, machine):
        self._machine = machine
        self._repeats = machine.size(11, 3)
        if machine.is_card:
            self._flush = machine.xp.empty(_FLUSH_BYTES, dtype=np.uint8)

    def __call__(self, call, *, repeats=None):
        """The time of a call on the card, from its first kernel to its last."""
        for _ in range(2):
            call()
        self._machine.synchronize()
        return Time.of([self._one(call) for _ in range(repeats or self._repeats)])

    def wall(self, call, *, repeats=None):
        """The time of a call until the card has done everything, as the host sees it."""
        call()
        seconds = []
        for _ in range(repeats or max(3, self._repeats // 2)):
            self._machine.synchronize()
            start = time.perf_counter()
            call()
            self._machine.synchronize()
            seconds.append(time.perf_counter() - start)
        return Time.of(seconds)

    def _one(self, call):
        if not self._machine.is_card:
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        cuda = self._machine.xp.cuda
        start, end = cuda.Event(), cuda.Event()
        self._flush.data.memset_async(0, self._flush.nbytes)
        start.record()
        call()
        end.record()
        end.synchronize()
        return cuda.get_elapsed_time(start, end) / 1e3

    def copy_rate(self):
        """Bytes per second of a copy on the card, read and written: what everything is held to."""
        xp, size = self._machine.xp, self._machine.size(2**31, 2**16)
        source, target = (xp.zeros(size, dtype=np.uint8) for _ in range(2))

        def copy():
            target[...] = source

        time = self(copy)
        return time.rate(2 * size), time

    def product_rate(self):
        """FLOP per second of a product of 16-bit matrices: what arithmetic is held to."""
        size = self._machine.size(8192, 32)
        few = pages.normal(np.random.default_rng(0), 2**10, self._machine.half)
        a, b = (pages.repeated(self._machine, few, (size, size), few.dtype) for _ in range(2))
        return self(lambda: a @ b).rate(2 * size**3)


class Tape:
    """Launches of an operation, to be run again without what the host does before and between."""

    def __init__(self, attention, operation):
        self._launches = []
        self._operation = operation
        self._launcher = getattr(attention, "launcher", None)
        if not hasattr(self._launcher, "launch"):
            return
        attention.launcher = self
        try:
            operation()
        finally:
            attention.launcher = self._launcher

    def __getattr__(self, name):
        return getattr(self._launcher, name)

    def launch(self, kernel, grid, args):
        self._launches.append((kernel, grid, list(args)))
        self._launcher.launch(kernel, grid, args)

    def __call__(self):
        if not self._launches:
            self._operation()
        for launch in self._launches:
            self._launcher.launch(*launch)
