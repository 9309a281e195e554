"""Compiles a kernel source with g++ into a shared object that the launcher loads.

What is compiled is kept in a cache under the hash of everything that went into it: compiler, flags,
headers, source and name expressions.
"""

import hashlib
import os
import platform
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEVICE, RUNTIME = HERE / "device", HERE / "runtime"

# The runtime is never instrumented for races and undefined behaviour of its own, but it tells the
# sanitizer of the kernel about fibers and shared memory.
_KERNEL_FLAGS = {
    "": ["-Wl,-z,defs"],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "thread": ["-fsanitize=thread"],
}
_RUNTIME_FLAGS = {"": [], "address": ["-fsanitize=address"], "thread": []}
_DEFINES = {
    "": [],
    "address": ["-DCUEMU_ASAN", "-DCUEMU_STATIC_SHARED"],
    "thread": ["-DCUEMU_TSAN"],
}
SANITIZERS = tuple(_KERNEL_FLAGS)
# A kernel is compiled more often than it is run for long: -O2 takes half as long again to compile.
_OPTIMIZE_KERNEL, _OPTIMIZE_RUNTIME = "-O1", "-O3"
_COMMON = ["-std=c++17", "-g1", "-fPIC", "-pthread"]
_COMMON += ["-shared", "-fvisibility=hidden"]
# Two threads that want the same object compile it once.
_LOCKS: dict[Path, threading.Lock] = {}
_LOCKS_LOCK = threading.Lock()


class BuildError(Exception):
    """A source that does not compile, in the compiler's words."""


@dataclass(frozen=True)
class Builder:
    """A compiler, what it is asked for, and a folder to keep its work in.

    Attributes:
        cache: Where compiled objects are kept; made when needed.
        sanitize: "", "address" (undefined behaviour, too) or "thread".
        defines: More macros, for kernel and runtime alike.
        compiler: g++, or what takes its options.
    """

    cache: Path
    sanitize: str = ""
    defines: tuple[str, ...] = ()
    compiler: str = "g++"

    def library(self, text: str, names: Sequence[str]) -> Path:
        """The shared object of a source; it exports `kernel_0`, `kernel_1` … for `names`.

        Raises:
            BuildError: It does not compile.
        """
        exports = [f"CUEMU_EXPORT(kernel_{i}, {name})" for i, name in enumerate(names)]
        source = "\n".join(['#line 1 "kernel.cu"', text, *exports, ""])
        flags = [
            *self._flags(),
            _OPTIMIZE_KERNEL,
            "-fno-strict-aliasing",
            "-fno-gnu-unique",
            f"-I{DEVICE}",
            f"-include{DEVICE / 'cuda_on_cpu.h'}",
            *_KERNEL_FLAGS[self.sanitize],
        ]
        runtime = str(self.runtime())
        return self._made(flags, ["-xc++", "-", "-xnone", runtime], source)

    def runtime(self) -> Path:
        """The library with the runtime, which is loaded with the first kernel, once."""
        # As one file: what the parts include takes longer to compile than they do.
        parts = [f'#include "{path}"' for path in sorted(RUNTIME.glob("*.cpp"))]
        flags = [*self._flags(), _OPTIMIZE_RUNTIME, *_RUNTIME_FLAGS[self.sanitize]]
        return self._made(flags, ["-xc++", "-"], "\n".join([*parts, ""]))

    def _flags(self) -> list[str]:
        return [*_COMMON, *_machine_flags(), *_DEFINES[self.sanitize], *self.defines]

    def _made(self, flags: list[str], inputs: list[str], text: str) -> Path:
        """Compiles unless the cache has it; `text` is the compiler's standard input."""
        parts = [_version(self.compiler), _own_sources(), *flags, *inputs, text]
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
        target = self.cache / f"{key}.so"
        with _LOCKS_LOCK:
            lock = _LOCKS.setdefault(target, threading.Lock())
        with lock:
            if not target.exists():
                self._compile(target, flags, inputs, text)
        return target

    def _compile(self, target: Path, flags: list[str], inputs: list[str], text: str) -> None:
        self.cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.cache) as folder:
            made = Path(folder) / target.name
            command = [self.compiler, *flags, *inputs, "-o", str(made)]
            done = _run(command, text)
            if done.returncode != 0:
                raise BuildError(done.stderr)
            made.replace(target)  # whole or not at all, whoever else is compiling it


def default_cache() -> Path:
    """The folder named by CUEMU_CACHE, else one beside the tests that git ignores."""
    named = os.environ.get("CUEMU_CACHE")
    return Path(named) if named else HERE.parent / ".cache"


@cache
def _version(compiler: str) -> str:
    return _run([compiler, "--version"], "").stdout


def _run(command: list[str], text: str) -> subprocess.CompletedProcess[str]:
    """Runs the compiler, which must not be sanitized with us."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run(
        command, env=environment, input=text, capture_output=True, text=True, check=False
    )


@lru_cache(maxsize=1)
def _own_sources() -> str:
    files = sorted([*DEVICE.iterdir(), *RUNTIME.iterdir()])
    return "\0".join(path.read_text(encoding="utf-8") for path in files)


@cache
def _machine_flags() -> tuple[str, ...]:
    """What this processor can convert and multiply at once, where the compiler would not use it."""
    if platform.machine() != "x86_64":
        return ()
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("flags")[2].split("\n")[0]
    have = set(flags.split())
    return tuple(f"-m{flag}" for flag in ("f16c", "fma", "avx2") if flag in have)
