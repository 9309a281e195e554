"""The seeded bugs: kernels that are right, or wrong in one way, by a template argument.

Each file `bugs/NAME.cu` has a header, and a kernel of one shape: `kernel<true>` has the bug,
`kernel<false>` is its control.

    // Breaks: what is wrong, in words
    // Input: plain, paged or sparse (plain where it is not said)
    // Shared: bytes of dynamic shared memory (512 where it is not said)
    template <bool BUG>
    __global__ void kernel(float* y, const float* x, int n)

It runs on 3 blocks of 128 threads; y has an element for each thread.
"""

import mmap
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from octavo.attention.launch import Kernel

FOLDER = Path(__file__).resolve().parent / "bugs"
BLOCKS, THREADS = 3, 128
PARAMS = (("y", "*float32"), ("x", "const *float32"), ("n", "int32"))


@dataclass(frozen=True)
class Seeded:
    """A file of `bugs/`."""

    name: str
    text: str
    breaks: str
    input: str
    shared_bytes: int

    def kernel(self, *, broken: bool) -> Kernel:
        """The kernel with its bug, or its control."""
        name = f"kernel<{str(broken).lower()}>"
        return Kernel(self.text, name, PARAMS, THREADS, self.shared_bytes)

    def kernels(self) -> list[Kernel]:
        """The control, and the kernel with its bug."""
        return [self.kernel(broken=False), self.kernel(broken=True)]


def seeded() -> list[Seeded]:
    """Every bug, by name."""
    return [read(path) for path in sorted(FOLDER.glob("*.cu"))]


def read(path: Path) -> Seeded:
    """Reads a file with its header."""
    text = path.read_text(encoding="utf-8")
    header = dict(re.findall(r"^// (\w+): (.+)$", text, re.MULTILINE))
    if not {"Breaks"} <= set(header) <= {"Breaks", "Input", "Shared"}:
        raise ValueError(f"{path.name}: the header has {', '.join(header)}")
    shared = int(header.get("Shared", 4 * THREADS))
    return Seeded(path.stem, text, header["Breaks"], header.get("Input", "plain"), shared)


def plain() -> tuple[np.ndarray, int]:
    """A value for each thread of the grid."""
    count = BLOCKS * THREADS
    return np.random.default_rng(0).standard_normal(count).astype(np.float32), count


def paged() -> tuple[np.ndarray, int]:
    """Three pages of 16 slots for each block; its sequence has 16 tokens more than the one before.

    The slots behind a sequence are NaN.
    """
    pages = np.random.default_rng(1).standard_normal((3 * BLOCKS, 16, 8)).astype(np.float32)
    for page in range(3 * BLOCKS):
        length = 5 + 16 * (page % BLOCKS)
        pages[page, max(length - page // BLOCKS * 16, 0) :] = np.nan
    return pages, 5


def sparse() -> tuple[np.ndarray, int]:
    """More than 2^31 elements in both directions, of which those from 2^31 on are not zero."""
    half = 2**31
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    memory = mmap.mmap(-1, 4 * (2 * half + 4096), flags=flags)
    x = np.frombuffer(memory, np.float32)[half:]
    x[half : half + THREADS] = np.arange(1, THREADS + 1)
    return x, half - 1


INPUTS = {"plain": plain, "paged": paged, "sparse": sparse}
