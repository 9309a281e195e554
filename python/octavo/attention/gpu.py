"""Attention on a GPU: the launcher over CuPy, and the back end that it runs.

    attention = gpu.backend()
    kv = PagedKV(spec, xp=attention.launcher.xp)
    out = attention.decode(kv, 0, q, block_tables, seq_lens)

A kernel is compiled for the card that is there when it is first asked for; CuPy keeps what NVRTC
made on disk. Everything follows CuPy's current stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal

import numpy as np

from octavo._optional import require_cupy
from octavo.attention._build import source
from octavo.attention.arrays import device_of
from octavo.attention.kernel_backend import KernelBackend
from octavo.attention.launch import Kernel, check_arguments
from octavo.errors import MissingDependencyError, RequestError, StateError

__all__ = ["CupyLauncher", "backend"]

# What is compiled for: bfloat16 and asynchronous copies begin there.
_LEAST_CAPABILITY = 80
# Bytes of shared memory that a thread block has without asking.
_PLAIN_SHARED = 48 * 1024
_OPTIONS = ("-std=c++17",)
_EXTRAS = "octavo[cuda12] or octavo[cuda13]"
# Streams whose number is not an address: nobody can capture the legacy default stream.
_LEGACY = (0, 1)
# Where a kernel takes null: 8 bytes.
_NULL = np.uint64(0)


def backend(
    *,
    split_tokens: int | None = None,
    decode_on: Literal["auto", "cores", "tensor"] = "auto",
    debug: bool = False,
) -> KernelBackend:
    """The back end of kernels on CuPy's current device.

    Args:
        split_tokens: As in `KernelBackend`, like what follows.
        decode_on: Which kernel decodes.
        debug: Whether values on the device are checked.

    Raises:
        MissingDependencyError: As `CupyLauncher` does.
        ConfigError: A setting is outside its range.
    """
    launcher = CupyLauncher()
    return KernelBackend(launcher, split_tokens=split_tokens, decode_on=decode_on, debug=debug)


class CupyLauncher:
    """Runs kernels through CuPy, on the device that is current when it is made.

    Attributes:
        device: The device's number.

    Raises:
        MissingDependencyError: CuPy is absent, twice installed, without a driver or a device; the
            card is older than compute capability 8.0; NVRTC is absent, or does not know the card.
            The error says which, and what to do.
    """

    def __init__(self) -> None:
        self._xp: Any = require_cupy()
        self._cuda: Any = self._xp.cuda
        runtime = self._cuda.runtime
        self.device = int(runtime.getDevice())
        _check_card(self._cuda, self.device)
        attribute = runtime.deviceGetAttribute
        self._processors = int(attribute(runtime.cudaDevAttrMultiProcessorCount, self.device))
        self._most_shared = int(
            attribute(runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin, self.device)
        )
        # By file and name: hashing a kernel with all of its parameters takes longer.
        self._functions: dict[tuple[str, str, int], Any] = {}

    @property
    def xp(self) -> ModuleType:
        """CuPy."""
        cupy: ModuleType = self._xp
        return cupy

    @property
    def is_capturing(self) -> bool:
        """Whether the current stream is captured in a graph."""
        stream = self._cuda.get_current_stream()
        return stream.ptr not in _LEGACY and bool(stream.is_capturing())

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], args: Sequence[object]) -> None:
        """Runs the kernel in the current stream; an empty grid is no launch.

        Args:
            kernel: What to run.
            grid: Blocks in x, y and z.
            args: As `check_arguments` wants them. CuPy frees memory in the order of streams, so
                that an array may be dropped once the launch has returned.

        Raises:
            RequestError: An argument does not fit its parameter, or lies on another device.
            StateError: Another device is current, or the stream is captured and the kernel was
                not prepared.
        """
        check_arguments(self._xp, kernel, args)
        self._check_devices(kernel, args)
        function = self.function(kernel)
        # CuPy would make a grid of 1 of it.
        if 0 in grid:
            return
        passed = tuple(_NULL if arg is None else arg for arg in args)
        function(grid, (kernel.threads, 1, 1), passed, shared_mem=kernel.shared_bytes)

    def prepare(self, kernel: Kernel) -> None:
        """Compiles the kernel and loads it, so that its first launch does not have to.

        Raises:
            RequestError: It needs more shared memory than the card has.
            MissingDependencyError: NVRTC finds no CUDA headers.
            StateError: The stream is captured.
        """
        self.function(kernel)

    def resident_blocks(self, kernel: Kernel) -> int:
        """How many blocks of it the whole device runs at once, as its driver says."""
        blocks = self._cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
            self.function(kernel).ptr, kernel.threads, kernel.shared_bytes
        )
        return max(1, int(blocks)) * self._processors

    def function(self, kernel: Kernel) -> Any:
        """CuPy's function, compiled and loaded.

        Raises:
            RequestError: As `prepare`, like the others.
            MissingDependencyError: NVRTC finds no CUDA headers.
            StateError: It was not prepared, and the stream is captured.
        """
        key = (kernel.source, kernel.name, kernel.shared_bytes)
        found = self._functions.get(key)
        if found is None:
            if self.is_capturing:
                raise StateError(
                    f"a graph is captured and {kernel.name} was never compiled: call prepare() "
                    "before, or run once what is captured"
                )
            found = self._functions[key] = self._load(kernel)
        return found

    def _load(self, kernel: Kernel) -> Any:
        most = self._most_shared
        if kernel.shared_bytes > most:
            message = f"{kernel.name} needs {kernel.shared_bytes} bytes of shared memory"
            excess = float(kernel.shared_bytes - most)
            raise RequestError(
                "kernel", f"{message}, the card has {most}", limit=float(most), excess=excess
            )
        # A kernel that is no template has its plain name.
        names = (kernel.name,) if "<" in kernel.name else None
        module = self._xp.RawModule(
            code=source(kernel.source), options=_OPTIONS, name_expressions=names
        )
        try:
            raw = module.get_function(kernel.name)
        except self._cuda.compiler.CompileException as error:
            # NVRTC 12 cannot, NVRTC 13 could not.
            if "not open source file" not in str(error):
                raise
            reason = f"NVRTC finds no CUDA headers: install {_EXTRAS}, which bring them"
            raise MissingDependencyError("cupy", reason) from error
        if kernel.shared_bytes > _PLAIN_SHARED:
            raw.max_dynamic_shared_size_bytes = kernel.shared_bytes
        # CUDA may load code at its first launch, which must not be inside a graph: a question for
        # an attribute loads it.
        if kernel.threads > raw.max_threads_per_block:
            message = f"{kernel.name} runs at most {raw.max_threads_per_block} threads a block here"
            raise RequestError("kernel", message)
        return raw.kernel

    def _check_devices(self, kernel: Kernel, args: Sequence[Any]) -> None:
        current = int(self._cuda.runtime.getDevice())
        if current != self.device:
            raise StateError(
                f"device {current} is current, this back end is of device {self.device}: enter "
                f"`with cupy.cuda.Device({self.device})`"
            )
        for (param, _), value in zip(kernel.params, args, strict=True):
            if isinstance(value, self._xp.ndarray) and value.size:
                found = device_of(value)
                if found != self.device:
                    message = f"kernel {kernel.name} runs on device {self.device}"
                    raise RequestError(param, f"{message}, given is an array on device {found}")


def _check_card(cuda: Any, device: int) -> None:
    """Whether kernels can be compiled for a card.

    Raises:
        MissingDependencyError: They cannot.
    """
    name = cuda.runtime.getDeviceProperties(device)["name"].decode(errors="replace")
    capability = int(cuda.Device(device).compute_capability)
    card = f"device {device} ({name}) has compute capability {_dotted(capability)}"
    if capability < _LEAST_CAPABILITY:
        least = _dotted(_LEAST_CAPABILITY)
        reason = f"{card}, the kernels need {least}: octavo.attention.reference runs without them"
        raise MissingDependencyError("cupy", reason)
    try:
        known = cuda.nvrtc.getSupportedArchs()
        version = ".".join(map(str, cuda.nvrtc.getVersion()))
    except RuntimeError as error:
        reason = f"NVRTC, CUDA's compiler, is not found: install {_EXTRAS}, which bring it"
        raise MissingDependencyError("cupy", reason) from error
    if capability not in known:
        reason = f"{card}, NVRTC {version} does not compile for it: install a newer {_EXTRAS}"
        raise MissingDependencyError("cupy", reason)


def _dotted(capability: int) -> str:
    """90 is 9.0."""
    return f"{capability // 10}.{capability % 10}"
