"""One interface to whatever runs a kernel: a GPU through CuPy, or an emulator without one.

A `Kernel` says which parameters it has, and every launch is checked against that before it starts:
a raw launch takes a Python int for 8 bytes, a float for a double and any array for any pointer, and
says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, cast

import numpy as np

from octavo.attention.dtypes import FP8, name_of
from octavo.errors import RequestError

__all__ = ["Kernel", "Launcher", "arguments", "check_arguments"]

# What a pointer may point to, and the arrays that are passed for it, by the names of their dtypes.
# NumPy has no fp8 of its own: bytes will do.
_ELEMENTS = {
    name: (name,)
    for name in ("float32", "float16", "bfloat16", "int32", "int64", "uint8", "uint16", "uint32")
} | {FP8: ("float8_e4m3fn", "uint8")}
_SCALARS: dict[str, type[np.generic]] = {
    "int32": np.int32,
    "int64": np.int64,
    "uint32": np.uint32,
    "float32": np.float32,
}
_POINTER, _CONST_POINTER = "*", "const *"


@dataclass(frozen=True)
class Kernel:
    """A compiled function of a kernel source, with its parameters as they are declared there.

    Attributes:
        source: The file under `cuda/` that it is in, such as `decode_cores.cu`.
        name: The name expression of the instantiation, such as `decode<__half,__half,128>`.
        params: A name and a type for each parameter, in order: a scalar (`int32`, `int64`,
            `uint32`, `float32`), or a pointer that is written through (`*float32`) or only read
            (`const *float16`), to float32, float16, bfloat16, float8_e4m3, int32, int64, uint8,
            uint16 or uint32.
        threads: Threads of a block.
        shared_bytes: Dynamic shared memory of a block.
    """

    source: str
    name: str
    params: tuple[tuple[str, str], ...]
    threads: int
    shared_bytes: int = 0


class Launcher(Protocol):
    """Runs kernels over the arrays of one module.

    Attributes:
        xp: NumPy or CuPy: whose arrays it takes.
        is_capturing: Whether the current stream is being captured in a graph: nothing may be
            compiled, allocated or waited for.
    """

    @property
    def xp(self) -> ModuleType:
        """NumPy or CuPy."""
        ...

    @property
    def is_capturing(self) -> bool:
        """Whether a graph is captured."""
        ...

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], args: Sequence[object]) -> None:
        """Runs the kernel for every block of the grid, in the current stream where there is one.

        Args:
            kernel: What to run.
            grid: Blocks in x, y and z.
            args: As `check_arguments` wants them; they must live until the kernel has ended.

        Raises:
            RequestError: An argument does not fit its parameter.
            StateError: The stream is being captured, and the kernel was not prepared.
        """
        ...

    def prepare(self, kernel: Kernel) -> None:
        """Compiles the kernel now, so that its first launch does not have to."""
        ...

    def resident_blocks(self, kernel: Kernel) -> int:
        """How many blocks of it the whole device runs at once."""
        ...


def arguments(kernel: Kernel, values: Mapping[str, object]) -> list[object]:
    """What a kernel takes, in its order: arrays as they are, numbers in the declared type.

    Raises:
        RequestError: A parameter has no value, or a value no parameter.

    Example:
        >>> scale = Kernel("scale.cu", "scale", (("x", "*float32"), ("by", "float32")), 128)
        >>> arguments(scale, {"by": 2.0, "x": None})
        [None, np.float32(2.0)]
    """
    names = [name for name, _ in kernel.params]
    for name in (*names, *values):
        if name not in values or name not in names:
            raise RequestError(name, f"kernel {kernel.name} takes {', '.join(names)}")
    return [
        values[name] if kind.startswith((_POINTER, _CONST_POINTER)) else _scalar(kind, values[name])
        for name, kind in kernel.params
    ]


def _scalar(kind: str, value: object) -> np.generic:
    if kind not in _SCALARS:
        raise _unknown(kind)
    number: np.generic = cast("Any", _SCALARS[kind])(value)
    return number


def check_arguments(xp: ModuleType, kernel: Kernel, args: Sequence[object]) -> None:
    """Holds arguments to what the kernel declares: their number, and the kind and size of each.

    A pointer takes an array of `xp` of its element type, which need not be contiguous: what is
    passed is its address. A float8_e4m3 pointer takes uint8, too, and every pointer takes None for
    null. A scalar takes a NumPy scalar of exactly its type, and no number of Python.

    Raises:
        RequestError: One does not fit; the error names the parameter, and its message the kernel.

    Example:
        >>> scale = Kernel("scale.cu", "scale", (("x", "*float32"), ("by", "float32")), 128)
        >>> check_arguments(np, scale, (np.ones(4, np.float32), np.float32(2)))
        >>> check_arguments(np, scale, (np.ones(4, np.float32), 2.0))
        Traceback (most recent call last):
        octavo.errors.RequestError: by: kernel scale takes float32, given is a float
    """
    if len(args) != len(kernel.params):
        takes = f"kernel {kernel.name} takes {len(kernel.params)}, given are {len(args)}"
        raise RequestError("args", takes)
    for (param, kind), value in zip(kernel.params, args, strict=True):
        if kind.startswith((_POINTER, _CONST_POINTER)):
            wrong = _wrong_array(xp, kind, value)
        else:
            wrong = _wrong_scalar(kind, value)
        if wrong is not None:
            raise RequestError(param, f"kernel {kernel.name} takes {kind}, given is {wrong}")


def _wrong_array(xp: ModuleType, kind: str, value: Any) -> str | None:
    """What is wrong with a value for a pointer, in words."""
    element = kind.removeprefix(_CONST_POINTER).removeprefix(_POINTER)
    if element not in _ELEMENTS:
        raise _unknown(kind)
    if value is None:
        return None
    if not isinstance(value, xp.ndarray):
        return f"a {type(value).__name__}, no array of {xp.__name__}"
    if name_of(value.dtype) not in _ELEMENTS[element]:
        return f"an array of {value.dtype}"
    # CuPy's arrays can always be written and have no such flag.
    if not kind.startswith(_CONST_POINTER) and not getattr(value.flags, "writeable", True):
        return "an array that is read-only"
    return None


def _wrong_scalar(kind: str, value: Any) -> str | None:
    """What is wrong with a value for a scalar, in words."""
    if kind not in _SCALARS:
        raise _unknown(kind)
    if isinstance(value, _SCALARS[kind]):
        return None
    is_scalar = isinstance(value, np.generic)
    return f"a scalar of {cast('Any', value).dtype}" if is_scalar else f"a {type(value).__name__}"


def _unknown(kind: str) -> RequestError:
    return RequestError("params", f"'{kind}' is no type of a kernel's parameter")
