"""NVRTC through ctypes: CUDA C++ to machine code on a machine without a device or a driver."""

import ctypes
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# As CuPy compiles a RawModule, so that what is checked is what will run.
OPTIONS = ("-std=c++17", "-ftz=true", "--device-as-default-execution-space")

_INFORMS = re.compile(r"ptxas (info|  )|$")


class CompileError(Exception):
    """A source that does not compile, or not without a warning; in the compiler's words."""


@dataclass(frozen=True)
class Compiled:
    """One program for one architecture.

    Attributes:
        cubin: The machine code.
        symbols: The symbol of each name expression.
        log: What the assembler, asked by `-Xptxas -v`, says of each kernel.
    """

    cubin: bytes
    symbols: dict[str, str]
    log: str


def toolkit() -> Path:
    """The folder with `include`, `lib` and `bin` that the nvidia-cuda-* packages share."""
    return Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"


def version() -> str:
    """The compiler's version."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _checked(_library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"{major.value}.{minor.value}"


def compile_source(text: str, names: Sequence[str], arch: str) -> Compiled:
    """Compiles a source's instantiations.

    Args:
        text: The source.
        names: Name expressions of the kernels that are wanted.
        arch: Such as `sm_90`.

    Raises:
        CompileError: It does not compile, or not without a warning.
    """
    library, program = _library(), ctypes.c_void_p()
    create = library.nvrtcCreateProgram
    _checked(create(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None))
    try:
        for name in names:
            _checked(library.nvrtcAddNameExpression(program, name.encode()))
        flags = [*OPTIONS, f"-I{toolkit() / 'include'}", f"-arch={arch}", "-Xptxas", "-v"]
        encoded = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        status = library.nvrtcCompileProgram(program, len(flags), encoded)
        log = _text(program, "ProgramLog").decode()
        if status != 0 or not all(_INFORMS.match(line) for line in log.splitlines()):
            raise CompileError(log)
        symbols = {name: _symbol(program, name) for name in names}
        return Compiled(_text(program, "CUBIN"), symbols, log)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


@cache
def _library() -> ctypes.CDLL:
    folder = toolkit() / "lib"
    # The library finds its builtins by name only, and its wheel gives it no path to them.
    ctypes.CDLL(str(next(folder.glob("libnvrtc-builtins.so.*"))))
    library = ctypes.CDLL(str(next(folder.glob("libnvrtc.so.*"))))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _checked(status: int) -> None:
    if status != 0:
        raise CompileError(_library().nvrtcGetErrorString(status).decode())


def _text(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _checked(getattr(_library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _checked(getattr(_library(), f"nvrtcGet{what}")(program, buffer))
    return buffer.raw if what == "CUBIN" else buffer.value


def _symbol(program: ctypes.c_void_p, name: str) -> str:
    symbol = ctypes.c_char_p()
    _checked(_library().nvrtcGetLoweredName(program, name.encode(), ctypes.byref(symbol)))
    assert symbol.value is not None
    return symbol.value.decode()
