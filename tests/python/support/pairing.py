"""Two implementations driven by the same calls: names shared by both, errors compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from octavo.errors import (
    OctavoError,
    OutOfBlocks,
    RequestError,
    StaleHandleError,
    UnknownHandleError,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Result:
    """What a call returned, or the error that it raised."""

    value: Any = None
    error: OctavoError | None = None


def result_of(call: Callable[..., Any], *arguments: Any, **options: Any) -> Result:
    try:
        return Result(call(*arguments, **options))
    except OctavoError as error:
        return Result(error=error)


def assert_same_error(real: OctavoError | None, twin: OctavoError | None) -> None:
    """Both raised the same class with the same data, or neither raised."""
    if type(real) is not type(twin):
        pytest.fail(f"the core raised {real!r}, the twin {twin!r}")
    if isinstance(real, OutOfBlocks) and isinstance(twin, OutOfBlocks):
        assert (real.needed, real.available) == (twin.needed, twin.available)
    if isinstance(real, RequestError) and isinstance(twin, RequestError):
        assert real.argument == twin.argument


def _flat(view: dict[str, Any]) -> dict[str, Any]:
    """A view with its inner dictionaries' entries beside the others."""
    flat: dict[str, Any] = {}
    for name, value in view.items():
        inner = value.items() if isinstance(value, dict) else ()
        flat |= {f"{name}.{key}": part for key, part in inner} or {name: value}
    return flat


def assert_same_view(real: dict[str, Any], twin: dict[str, Any]) -> None:
    """Fails with the entries that differ, and no others."""
    real, twin = _flat(real), _flat(twin)
    differing = {
        name: f"core {real[name]!r}, twin {twin.get(name)!r}"
        for name in real
        if real[name] != twin.get(name)
    }
    assert real.keys() == twin.keys()
    assert not differing, "\n".join(f"{name}: {both}" for name, both in differing.items())


class Names:
    """The handles of both sides, one name for each pair."""

    def __init__(self) -> None:
        self.real: list[int] = []
        self.twin: list[int] = []

    def add(self, real: int, twin: int) -> int:
        assert real not in self.real, "a handle is given once"
        self.real.append(real)
        self.twin.append(twin)
        return len(self.real) - 1

    def twin_of(self, real: int) -> int:
        """The twin's handle; for a number that was never given out, one that never will be."""
        return self.twin[self.real.index(real)] if real in self.real else -1

    def of_real(self, real: int) -> int:
        return self.real.index(real)

    def of_twin(self, twin: int) -> int:
        return self.twin.index(twin)


def assert_names_handle(error: OctavoError | None, handle: int) -> None:
    if isinstance(error, StaleHandleError | UnknownHandleError):
        assert error.handle == handle


def slot_of(handle: int) -> int:
    """The place in the slot table that a handle names, as documented for pictures."""
    return handle & 0xFFFF_FFFF
