"""What a sequence says if nothing is batched, paged, shared or preempted.

A token depends on nothing but the tokens before it, the identity of the request and the number of
the sequence among those of its request. So a schedule must not change it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.naive_identity import Identity

_PRIME = 2**61 - 1


class Truth:
    """The history of one sequence, as far as anybody asks, and a digest of each prefix."""

    def __init__(
        self, identity: Identity, index: int, prompt: Sequence[int], *, taste: int = 0
    ) -> None:
        self.identity = identity
        self.index = index
        self.taste = taste  # another one, other tokens
        self.start = crc32(repr(identity.salt).encode())
        self.tokens = list(prompt)
        self.digests: list[int] = []

    def digest_after(self, before: int, token: int, position: int) -> int:
        """What a slot holds: all that came before it, this token, and the keys that cover it."""
        keys = [
            (kind, value, position - start)
            for start, end, kind, value in self.identity.spans
            if start <= position and (end is None or position < end)
        ]
        covering = crc32(repr(keys).encode()) if keys else 0
        return (before * 1_000_003 + token * 7_919 + covering + 1) % _PRIME

    def next_token(self, digest: int) -> int:
        """Nearly always 0, so that equal sequences stay equal for a while."""
        mixed = crc32(b"%d %d %d" % (digest, self.index, self.taste))
        return int(mixed % 5 == 0)

    def token(self, position: int) -> int:
        while len(self.tokens) <= position:
            self.tokens.append(self.next_token(self.digest(len(self.tokens) - 1)))
        return self.tokens[position]

    def digest(self, position: int) -> int:
        while len(self.digests) <= position:
            place = len(self.digests)
            before = self.digests[-1] if self.digests else self.start
            self.digests.append(self.digest_after(before, self.token(place), place))
        return self.digests[position]

    def go_on_from(self, known: Sequence[int]) -> None:
        """The sequence was cut or given more tokens from outside."""
        self.tokens, self.digests = list(known), []
