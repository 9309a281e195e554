"""The half of a CuPy without a GPU that is not arrays: devices, streams, pinned memory, kernels.

A stream runs as late as CUDA allows: what is put into it waits until somebody waits for it, so that
a missing event shows as a wrong value. A graph takes launches of kernels and nothing else, and puts
them into a stream again. Kernels are compiled and launched on record; they do nothing, or what
`World.run` does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

LEAST_PTR = 0x1000


@dataclass
class Card:
    """What a device says of itself."""

    name: str = "Fake H100"
    capability: int = 90
    processors: int = 132
    shared: int = 232_448
    # Blocks of a kernel that a processor runs at once, and threads of a block, for all of them.
    blocks: int = 4
    threads: int = 1024


@dataclass
class World:
    """One machine, and what has happened on it."""

    cards: list[Card] = field(default_factory=lambda: [Card()])
    status: int = 0
    driver: int = 13_020
    runtime: int = 13_020
    # None where NVRTC is not installed.
    architectures: list[int] | None = field(default_factory=lambda: [75, 80, 86, 89, 90, 100, 120])
    compile_error: str | None = None
    has_cublas: bool = True
    device: int = 0
    compiled: list[tuple] = field(default_factory=list)
    launches: list[SimpleNamespace] = field(default_factory=list)
    attributes: dict = field(default_factory=dict)
    # Runs a kernel when its stream comes to it: by its name, grid and arguments.
    run: Callable | None = None
    pinned: list[np.ndarray] = field(default_factory=list)

    def is_pinned(self, address):
        return any(0 <= address - one.ctypes.data < one.size for one in self.pinned)


class CUDARuntimeError(RuntimeError):
    def __init__(self, status):
        super().__init__(f"CUDA error {status}")
        self.status = status


class CompileException(Exception):  # noqa: N818 - CuPy's name
    pass


class Stream:
    """Work in order, run when somebody waits for it."""

    def __init__(self, cuda, ptr):
        self._cuda, self.ptr = cuda, ptr
        self._work, self._done = [], 0
        self._captured = None

    def put(self, work):
        if self.is_capturing():
            raise CUDARuntimeError(900)
        self._work.append(work)

    def put_kernel(self, work):
        """What a graph takes, too."""
        (self._work if self._captured is None else self._captured).append(work)

    def begin_capture(self):
        assert self.ptr >= LEAST_PTR, "the legacy default stream is never captured"
        self._captured = []

    def end_capture(self):
        work, self._captured = self._captured, None
        return Graph(work)

    def run(self, end=None):
        """Everything up to the `end`-th piece of work."""
        while self._done < (len(self._work) if end is None else end):
            work = self._work[self._done]
            self._done += 1
            work()

    @property
    def length(self):
        return len(self._work)

    def synchronize(self):
        if self.is_capturing():
            raise CUDARuntimeError(900)
        self.run()

    def record(self, event=None):
        event = event or self._cuda.Event()
        event.record(self)
        return event

    def wait_event(self, event):
        stream, end = event.place or (self, 0)
        self.put(lambda: stream.run(end))

    def is_capturing(self):
        return self._captured is not None

    def __enter__(self):
        self._cuda.stack.append(self)
        return self

    def __exit__(self, *_):
        assert self._cuda.stack.pop() is self


class Graph:
    """Launches, to be put into a stream as often as one likes."""

    def __init__(self, work):
        self._work = work

    def launch(self, stream):
        for work in self._work:
            stream.put(work)


class Event:
    def __init__(self, *, disable_timing=False):
        self.place = None

    def record(self, stream=None):
        self.place = (stream, stream.length)

    def synchronize(self):
        if self.place:
            stream, end = self.place
            stream.run(end)


class RawKernel:
    """A compiled kernel, on record."""

    def __init__(self, world, name):
        self._world, self.name, self.ptr = world, name, id(self)

    @property
    def kernel(self):
        return self

    @property
    def max_threads_per_block(self):
        self._world.attributes.setdefault(self.name, {})["asked"] = True
        return self._world.cards[self._world.device].threads

    def __setattr__(self, name, value):
        if name == "max_dynamic_shared_size_bytes":
            self._world.attributes.setdefault(self.name, {})[name] = value
        else:
            object.__setattr__(self, name, value)

    def __call__(self, grid, block, args, *, shared_mem=0):
        assert all(type(size) is int and size > 0 for size in (*grid, *block))
        stream = self._world.stream()
        entry = SimpleNamespace(
            name=self.name, grid=grid, block=block, args=args, shared_mem=shared_mem, stream=stream
        )
        self._world.launches.append(entry)
        if self._world.run is not None:
            stream.put_kernel(lambda: self._world.run(self.name, grid, args))


class RawModule:
    def __init__(self, world, *, code, options=(), name_expressions=None):
        self._world, self._names, self._code = world, name_expressions, code
        self._options = options

    def get_function(self, name):
        if self._world.compile_error:
            raise CompileException(self._world.compile_error)
        assert self._names is None or name in self._names
        assert (self._names is None) == ("<" not in name)
        assert name.partition("<")[0] + "(" in self._code
        self._world.compiled.append((name, self._options))
        return RawKernel(self._world, name)


class Device:
    def __init__(self, world, number=None):
        self._world, self.id = world, world.device if number is None else number
        self._before = []

    @property
    def compute_capability(self):
        return str(self._world.cards[self.id].capability)

    def __enter__(self):
        self._before.append(self._world.device)
        self._world.device = self.id
        return self

    def __exit__(self, *_):
        self._world.device = self._before.pop()


def _runtime(world):
    def device_count():
        if world.status:
            raise CUDARuntimeError(world.status)
        return len(world.cards)

    def attribute(name, device):
        return getattr(world.cards[device], name)

    def pointer(address):
        return SimpleNamespace(type=1 if world.is_pinned(address) else 0)

    return SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=device_count,
        getDevice=lambda: world.device,
        getDeviceProperties=lambda device: {"name": world.cards[device].name.encode()},
        driverGetVersion=lambda: world.driver,
        runtimeGetVersion=lambda: world.runtime,
        deviceGetAttribute=attribute,
        cudaDevAttrMultiProcessorCount="processors",
        cudaDevAttrMaxSharedMemoryPerBlockOptin="shared",
        pointerGetAttributes=pointer,
        memoryTypeHost=1,
    )


def _nvrtc(world):
    def architectures():
        if world.architectures is None:
            raise RuntimeError('Failure finding "libnvrtc.so"')
        return world.architectures

    return SimpleNamespace(getSupportedArchs=architectures, getVersion=lambda: (13, 2))


def make_cuda(world):
    """The module `cupy.cuda`."""
    cuda = SimpleNamespace(Event=Event, stack=[])
    null = Stream(cuda, 0)
    cuda.stack.append(null)
    streams = iter(range(LEAST_PTR, 2 * LEAST_PTR))

    def new_stream(*, non_blocking=False):
        assert non_blocking, "a blocking stream waits for the legacy default stream"
        return Stream(cuda, next(streams))

    def alloc_pinned_memory(size):
        world.pinned.append(np.full(size, 0xA5, np.uint8))
        return world.pinned[-1].data

    def cublas_handle():
        if not world.has_cublas:
            raise RuntimeError('Failure finding "libcublas.so"')
        return 1

    def occupancy(_function, _threads, _shared):
        return world.cards[world.device].blocks

    world.stream = lambda: cuda.stack[-1]
    cuda.Stream = new_stream
    cuda.get_current_stream = world.stream
    cuda.Device = lambda number=None: Device(world, number)
    cuda.runtime = _runtime(world)
    cuda.nvrtc = _nvrtc(world)
    cuda.driver = SimpleNamespace(occupancyMaxActiveBlocksPerMultiprocessor=occupancy)
    cuda.compiler = SimpleNamespace(CompileException=CompileException)
    cuda.alloc_pinned_memory = alloc_pinned_memory
    cuda.get_cublas_handle = cublas_handle
    return cuda


@contextlib.contextmanager
def capturing(cuda):
    """A stream in capture mode, made current."""
    stream = cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        yield stream
