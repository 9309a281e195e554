"""Pins of the naive twin: cached prefixes that are held without a sequence, some for a while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.errors import RequestError, StaleHandleError, UnknownHandleError
from support.naive_identity import checked_identity, checked_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.naive_pool import NaivePool


@dataclass(eq=False)
class _Pin:
    blocks: list[int]
    expires: int | None  # in how many steps from now


class NaivePins:
    """Handles are 1, 2, 3 … and never given twice."""

    def __init__(self, pool: NaivePool, *, prefix_caching: bool) -> None:
        self.pool = pool
        self.prefix_caching = prefix_caching
        self.held: dict[int, _Pin] = {}
        self.num_issued = 0

    def pin(
        self,
        tokens: Sequence[int],
        *,
        salt: bytes = b"",
        extra_keys: Sequence[Any] = (),
        expires: int | None = None,
    ) -> int:
        prompt = checked_tokens("tokens", tokens)
        identity = checked_identity(salt, extra_keys)
        if expires is not None and expires < 1:
            raise RequestError("expires", "is less than one step")
        limit = len(prompt) // self.pool.block_size if self.prefix_caching else 0
        blocks = self.pool.longest_hit(identity, prompt, limit)
        for number in blocks:
            self.pool.pin(number)
        self.num_issued += 1
        self.held[self.num_issued] = _Pin(blocks, expires)
        return self.num_issued

    def unpin(self, pin: int) -> None:
        if pin not in self.held:
            raise StaleHandleError(pin) if 1 <= pin <= self.num_issued else UnknownHandleError(pin)
        self.pool.release_pin(self.held.pop(pin).blocks)

    def pass_step(self) -> None:
        """A step begins: those that were pinned for so many steps are let go."""
        for number, pin in list(self.held.items()):
            if pin.expires is not None:
                pin.expires -= 1
                if pin.expires == 0:
                    self.unpin(number)

    def blocks(self) -> list[list[int]]:
        return [pin.blocks for pin in self.held.values()]
