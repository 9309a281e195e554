"""One emulator for all tests: what it has compiled, it keeps."""

import pytest

from emulator.launcher import EmulatorLauncher
from octavo.attention.kernel_backend import KernelBackend


@pytest.fixture(scope="session")
def launcher():
    """A device that runs 24 thread blocks at once, so that small worlds are split, too."""
    return EmulatorLauncher(resident=24)


@pytest.fixture
def backend(launcher):
    return KernelBackend(launcher, debug=True)
