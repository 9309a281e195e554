"""What tells blocks of equal tokens apart, and the checks of tokens, salts and extra keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_TOKEN = 2**31 - 1

Span = tuple[int, "int | None", str, bytes]
BlockKey = tuple[tuple[str, bytes, int, int, int], ...]


@dataclass(frozen=True)
class History:
    """Everything that a block's content depends on: two blocks are equal if these are."""

    salt: bytes
    keys: tuple[BlockKey, ...]
    tokens: tuple[int, ...]

    def parent(self, block_size: int) -> History | None:
        """The history of the block before, or None for a first block."""
        if len(self.keys) == 1:
            return None
        return History(self.salt, self.keys[:-1], self.tokens[:-block_size])


@dataclass(frozen=True)
class Identity:
    """A sequence's salt and its spans, sorted and without repetitions."""

    salt: bytes = b""
    spans: tuple[Span, ...] = ()

    def block_key(self, index: int, block_size: int) -> BlockKey:
        first, past = index * block_size, (index + 1) * block_size
        key = []
        for start, end, kind, value in self.spans:
            until = past if end is None else min(end, past)
            since = max(start, first)
            if since < until:
                key.append((kind, value, first - start, since - first, until - first))
        return tuple(key)

    def history(self, tokens: Sequence[int], num_blocks: int, block_size: int) -> History:
        """The history of the last of the first `num_blocks` blocks of `tokens`."""
        keys = tuple(self.block_key(index, block_size) for index in range(num_blocks))
        return History(self.salt, keys, tuple(tokens[: num_blocks * block_size]))


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def checked_tokens(name: str, tokens: Any) -> list[int]:
    for index, token in enumerate(tokens):
        if not is_int(token) or not 0 <= token <= MAX_TOKEN:
            raise RequestError(name, f"has {token!r} at {index}, not a token id")
    return list(tokens)


def checked_identity(salt: Any, extra_keys: Any) -> Identity:
    if not isinstance(salt, bytes):
        raise RequestError("salt", "is not bytes")
    spans = {_checked_span(f"extra_keys[{index}]", key) for index, key in enumerate(extra_keys)}
    return Identity(salt, tuple(sorted(spans, key=_order)))


def _checked_span(name: str, key: Any) -> Span:
    if not isinstance(key, tuple) or len(key) != 4:
        raise RequestError(name, "is not (start, end, kind, value)")
    start, end, kind, value = key
    if not is_int(start) or start < 0:
        raise RequestError(name, "starts before 0")
    if end is not None and (not is_int(end) or end <= start):
        raise RequestError(name, "ends before it starts")
    if not isinstance(kind, str) or not kind:
        raise RequestError(name, "has no kind")
    if not isinstance(value, bytes):
        raise RequestError(name, "has no bytes as its value")
    return start, end, kind, value


def _order(span: Span) -> tuple[str, bytes, int, float]:
    start, end, kind, value = span
    return kind, value, start, float("inf") if end is None else end
