"""The launcher of `octavo.attention` over NumPy arrays and the emulator."""

import ctypes
import importlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from emulator.build import SANITIZERS, Builder, default_cache
from octavo.attention.launch import Kernel, check_arguments
from octavo.errors import RequestError

ORDERS = {"forward": 0, "reverse": 1, "random": 2}
# ThreadSanitizer follows one worker, and AddressSanitizer's static arrays are there once.
_ONE_WORKER = ("address", "thread")

# Kernels of a source that are compiled as one.
_TOGETHER = 6


class EmulatorError(Exception):
    """What the emulator found wrong while a kernel ran: threads and lines are in the message."""


class _Launch(ctypes.Structure):
    """As `cuemu::Launch` in device/runtime.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint64),
        ("order", ctypes.c_uint),
        ("workers", ctypes.c_uint),
        ("seed", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class _Compiled:
    """A function of a loaded shared object."""

    library: ctypes.CDLL
    run: object


class EmulatorLauncher:
    """Runs kernels on the CPU; a `Launcher` whose arrays are NumPy's.

    A kernel's `source` is a file of the package, or the text of a test's own source (it has more
    than one line). Each kernel is compiled when it is first needed, and kept.

    Attributes:
        xp: NumPy.
        resident: What `resident_blocks` answers; planning follows from it.
        order: In which order ready threads, and the blocks, run: `forward`, `reverse` or
            `random:SEED`; by default what CUEMU_ORDER says, else forward.
        workers: Threads of the system that share the blocks; by default what CUEMU_WORKERS says,
            else one for each core. A sanitizer wants one.
    """

    def __init__(
        self,
        xp: ModuleType = np,
        *,
        resident: int = 264,
        sanitize: str | None = None,
        order: str | None = None,
        workers: int | None = None,
        defines: Sequence[str] = (),
    ) -> None:
        sanitize = os.environ.get("CUEMU_SANITIZE", "") if sanitize is None else sanitize
        if xp is not np:
            raise ValueError(f"the emulator runs over NumPy, not {xp.__name__}")
        if sanitize not in SANITIZERS:
            raise ValueError(f"'{sanitize}' is none of the sanitizers {SANITIZERS}")
        self.xp = xp
        self.resident = resident
        self.is_capturing = False
        self.order = order or os.environ.get("CUEMU_ORDER") or "forward"
        self.workers = workers or int(os.environ.get("CUEMU_WORKERS") or os.cpu_count() or 1)
        if sanitize in _ONE_WORKER:
            self.workers = 1
        self._builder = Builder(default_cache(), sanitize, tuple(defines))
        self._compiled: dict[Kernel, _Compiled] = {}

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        args: Sequence[object],
    ) -> None:
        """Runs the kernel, and returns when every block has ended.

        Raises:
            RequestError: An argument does not fit its parameter.
            EmulatorError: A deadlock, lanes that disagree, a misplaced copy, a trap, a size that no
                device accepts.
        """
        check_arguments(self.xp, kernel, args)
        compiled = self._prepared(kernel)
        order, seed = parse_order(self.order)
        how = _Launch(grid, (kernel.threads, 1, 1), kernel.shared_bytes, order, self.workers, seed)
        values = [_value(value) for value in args]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        message = ctypes.create_string_buffer(1 << 14)
        if compiled.run(ctypes.byref(how), pointers, message, ctypes.c_size_t(len(message))) != 0:
            raise EmulatorError(f"{kernel.name}: {message.value.decode()}")

    def prepare(self, kernel: Kernel) -> None:
        """Compiles and loads the kernel, and compares its parameters with what is declared.

        Raises:
            BuildError: It does not compile.
            RequestError: A parameter is declared as something else than it is.
        """
        self._prepared(kernel)

    def prepare_all(self, kernels: Iterable[Kernel], jobs: int = 2) -> None:
        """Prepares many, `jobs` compilers at a time."""
        groups = grouped(kernel for kernel in kernels if kernel not in self._compiled)
        compile_all(self._builder, groups, jobs)
        for group in groups:
            self._load(group)

    def resident_blocks(self, kernel: Kernel) -> int:
        """What the constructor was told, whatever the kernel."""
        return self.resident

    def _prepared(self, kernel: Kernel) -> _Compiled:
        if kernel not in self._compiled:
            self._load([kernel])
        return self._compiled[kernel]

    def _load(self, group: Sequence[Kernel]) -> None:
        names = [kernel.name for kernel in group]
        library = ctypes.CDLL(str(self._builder.library(source_text(group[0]), names)))
        for i, kernel in enumerate(group):
            signature = library[f"kernel_{i}_signature"]
            signature.restype = ctypes.c_char_p
            _check_declaration(kernel, signature().decode().split(";")[:-1])
            self._compiled[kernel] = _Compiled(library, library[f"kernel_{i}"])


def parse_order(order: str) -> tuple[int, int]:
    """The runtime's number for an order, and its seed."""
    name, _, seed = order.partition(":")
    if name not in ORDERS or (seed and (name != "random" or not seed.isdecimal())):
        raise ValueError(f"'{order}' is no order: forward, reverse or random:SEED")
    return ORDERS[name], int(seed or 0)


def source_text(kernel: Kernel) -> str:
    """A source of several lines is the text; anything else names a file of the package."""
    if "\n" in kernel.source:
        return kernel.source
    return importlib.import_module("octavo.attention._build").source(kernel.source)


def grouped(kernels: Iterable[Kernel]) -> list[list[Kernel]]:
    """Kernels of one source together, a few at a time: headers and source are read once for all."""
    of_source: dict[str, list[Kernel]] = {}
    for kernel in dict.fromkeys(kernels):
        of_source.setdefault(kernel.source, []).append(kernel)
    starts = [(same, i) for same in of_source.values() for i in range(0, len(same), _TOGETHER)]
    return [same[i : i + _TOGETHER] for same, i in starts]


def compile_all(builder: Builder, groups: Sequence[Sequence[Kernel]], jobs: int) -> None:
    """Fills the cache, and loads nothing: a process without the sanitizer could not.

    Raises:
        BuildError: Something does not compile.
    """
    builder.runtime()
    with ThreadPoolExecutor(jobs) as pool:
        names = [[kernel.name for kernel in group] for group in groups]
        list(pool.map(builder.library, [source_text(group[0]) for group in groups], names))


def _check_declaration(kernel: Kernel, compiled: list[str]) -> None:
    if len(compiled) != len(kernel.params):
        takes = f"kernel {kernel.name} takes {len(compiled)}, declared are {len(kernel.params)}"
        raise RequestError("params", takes)
    for (name, declared), found in zip(kernel.params, compiled, strict=True):
        if declared != found:
            takes = f"kernel {kernel.name} takes {found}, declared is {declared}"
            raise RequestError(name, takes)


def _value(argument: object) -> ctypes.Array | ctypes.c_void_p:
    """The argument's bytes, as a kernel receives them."""
    if argument is None or isinstance(argument, np.ndarray):
        return ctypes.c_void_p(None if argument is None else argument.ctypes.data)
    return ctypes.create_string_buffer(argument.tobytes())
