"""Octavo's exceptions: plain Python, importing nothing, with their data as attributes.

Every class can be pickled, and compares by identity like any exception.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "ConfigError",
    "MissingDependencyError",
    "OctavoError",
    "OutOfBlocks",
    "RequestError",
    "StaleHandleError",
    "StateError",
    "TraceError",
    "UnknownHandleError",
]


class OctavoError(Exception):
    """Whatever Octavo refuses: a call that raises it changed nothing."""


class ConfigError(OctavoError):
    """A setting outside its range, or a name that does not exist.

    Attributes:
        field: The setting's name, as in `SchedulerConfig` or `KVCache`.
        value: What was given.
        range: What is allowed, in words.

    Example:
        >>> str(ConfigError("block_size", 0, "1 … 256"))
        'block_size = 0 is not accepted: 1 … 256'
    """

    def __init__(
        self,
        field: str,
        value: object,
        range: str,  # noqa: A002 - the contract's word
    ) -> None:
        super().__init__(field, value, range)
        self.field = field
        self.value = value
        self.range = range

    def __str__(self) -> str:
        return f"{self.field} = {self.value!r} is not accepted: {self.range}"


class RequestError(OctavoError):
    """An argument of a call that cannot be served: an array, a length, a time.

    Attributes:
        argument: The argument's name, with its index where it has one.
        message: What is wrong with it, in words.
        limit: The limit it passes, where there is one.
        excess: By how much it does, where there is a number.

    Example:
        >>> error = RequestError("prompt", "has 9 tokens, 8 fit", limit=8, excess=1)
        >>> str(error), error.excess
        ('prompt: has 9 tokens, 8 fit', 1)
    """

    def __init__(
        self,
        argument: str,
        message: str,
        limit: float | None = None,
        excess: float | None = None,
    ) -> None:
        super().__init__(argument, message, limit, excess)
        self.argument = argument
        self.message = message
        self.limit = limit
        self.excess = excess

    def __str__(self) -> str:
        return f"{self.argument}: {self.message}"


class UnknownHandleError(OctavoError):
    """A number that is no handle of this object, or one of another kind.

    Attributes:
        handle: What was given.
    """

    def __init__(self, handle: int) -> None:
        super().__init__(handle)
        self.handle = handle

    def __str__(self) -> str:
        return f"handle {self.handle!r} was never given out by this object, or is of another kind"


class StaleHandleError(OctavoError):
    """The handle of something that has ended.

    Attributes:
        handle: What was given.
    """

    def __init__(self, handle: int) -> None:
        super().__init__(handle)
        self.handle = handle

    def __str__(self) -> str:
        return f"handle {self.handle!r} is stale: what it named has ended and was released"


class StateError(OctavoError):
    """A call that does not fit the state of things, or a law that `audit` found broken.

    Attributes:
        message: What does not fit, in words.
        law: The number of the broken law, from `audit` only.
    """

    def __init__(self, message: str, law: int | None = None) -> None:
        super().__init__(message, law)
        self.message = message
        self.law = law

    def __str__(self) -> str:
        return self.message


class TraceError(OctavoError):
    """A trace file, or a row of it, that cannot be read.

    Attributes:
        file: The file, as it was named.
        line: The line, counted from 1; None where the whole file is meant.
        reason: What is wrong, in words.

    Example:
        >>> str(TraceError("rush.csv", 7, "output_tokens is 0"))
        'rush.csv, line 7: output_tokens is 0'
    """

    def __init__(self, file: str, line: int | None, reason: str) -> None:
        super().__init__(file, line, reason)
        self.file = file
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}, line {self.line}"
        return f"{place}: {self.reason}"


class CheckpointError(OctavoError):
    """A file of a model that cannot be read, or does not fit the others.

    Attributes:
        file: The file, as it was found.
        reason: What is wrong, in words.
        tensor: The tensor that is meant, where it is one.

    Example:
        >>> str(CheckpointError("model.safetensors", "is missing", "model.norm.weight"))
        'model.safetensors: model.norm.weight is missing'
    """

    def __init__(self, file: str, reason: str, tensor: str | None = None) -> None:
        super().__init__(file, reason, tensor)
        self.file = file
        self.reason = reason
        self.tensor = tensor

    def __str__(self) -> str:
        what = self.reason if self.tensor is None else f"{self.tensor} {self.reason}"
        return f"{self.file}: {what}"


class OutOfBlocks(OctavoError):  # noqa: N818 - an outcome, and the contract's word
    """There are too few available blocks; nothing was changed.

    Attributes:
        needed: Blocks that the call needs.
        available: Blocks that are blank or evictable.

    Example:
        >>> str(OutOfBlocks(3, 1))
        '3 blocks are needed, 1 available'
    """

    def __init__(self, needed: int, available: int) -> None:
        super().__init__(needed, available)
        self.needed = needed
        self.available = available

    def __str__(self) -> str:
        return f"{self.needed} blocks are needed, {self.available} available"


class MissingDependencyError(OctavoError, ImportError):
    """An optional library is absent, or cannot run on this machine.

    Attributes:
        dependency: The library's name.
        reason: What is missing, and what to install.
    """

    def __init__(self, dependency: str, reason: str) -> None:
        super().__init__(dependency, reason)
        self.dependency = dependency
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.dependency} is not usable: {self.reason}"
