"""A launcher over NumPy that runs nothing: what it would have run is on record."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from octavo.attention.launch import check_arguments
from octavo.errors import StateError


class Recorder:
    """A `Launcher`; every launch is checked like a real one.

    Attributes:
        launches: What was run: `kernel`, `grid`, and the arguments by the names of parameters.
        is_capturing: Whether it says that a graph is captured; kernels must then be prepared.
        resident: What `resident_blocks` answers.
    """

    xp = np

    def __init__(self, resident=264):
        self.launches, self.prepared = [], set()
        self.is_capturing, self.resident = False, resident

    def launch(self, kernel, grid, args):
        check_arguments(np, kernel, args)
        self.prepare(kernel)
        assert len(grid) == 3
        assert all(type(size) is int for size in grid)
        names = [name for name, _ in kernel.params]
        values = SimpleNamespace(**dict(zip(names, args, strict=True)))
        self.launches.append(SimpleNamespace(kernel=kernel, grid=grid, args=values))

    def prepare(self, kernel):
        if self.is_capturing and kernel not in self.prepared:
            raise StateError(f"{kernel.name} was not prepared")
        self.prepared.add(kernel)

    def resident_blocks(self, kernel):
        self.prepare(kernel)
        return self.resident

    @property
    def names(self):
        """The templates that were run."""
        return [launch.kernel.name.partition("<")[0] for launch in self.launches]
