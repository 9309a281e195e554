"""A kernel written down in a test, run once."""

import numpy as np
import pytest

from emulator.launcher import EmulatorLauncher
from octavo.attention.launch import Kernel


def parameter(declared):
    """'const *float32 x' as a `Kernel` has it: the name, then the type."""
    kind, _, name = declared.rpartition(" ")
    return name, kind


@pytest.fixture
def emulate():
    """emulate(text, "name", "kind name, …", args, …): compiles the text, and runs the kernel."""

    def run(text, name, params, args, *, grid=(1, 1, 1), threads=32, shared=0, **launcher):
        declared = tuple(parameter(each) for each in params.split(", "))
        kernel = Kernel(text + "\n", name, declared, threads, shared)
        EmulatorLauncher(**launcher).launch(kernel, grid, args)

    return run


@pytest.fixture
def rng():
    return np.random.default_rng(7)
