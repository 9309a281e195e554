"""What a sequence ought to say: what the plain model says to all that it knows.

In float64 that is one token. In float32 a schedule changes how sums are rounded, so that another
token is right where two are as good: the largest logit, and those within `tie` of it. Whoever says
one of these goes on from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from octavo import Reason
from octavo.model import sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.model import Llama, Sampling


class Plain:
    """The plain model, unbatched and unpaged: one text at a time, and what it said before is kept.

    Args:
        model: What is asked, by its `plain`.
        tie: How far below the largest logit another token is as good; None where none is. A drawn
            token has no such rule: with a tie, sequences are greedy.
    """

    def __init__(self, model: Llama, tie: float | None = None) -> None:
        self.model = model
        self.tie = tie
        self.ties = 0
        self._logits: Callable[..., Any] = lru_cache(50_000)(self._run)
        self.token: Callable[[tuple[int, ...], Sampling], int] = lru_cache(200_000)(self._token)

    def allows(self, token: int, known: tuple[int, ...], sampling: Sampling) -> bool:
        """Whether `token` may follow `known`; counts those that do so by the tie rule alone."""
        if token == self.token(known, sampling):
            return True
        logits = self._logits(known)
        if self.tie is None or sampling.temperature or not 0 <= token < len(logits):
            return False
        is_tie = bool(logits[token] >= logits.max() - self.tie)
        self.ties += is_tie
        return is_tie

    def _run(self, known: tuple[int, ...]) -> Any:
        return self.model.plain(known)[-1]

    def _token(self, known: tuple[int, ...], sampling: Sampling) -> int:
        return int(sample(self._logits(known)[None], [sampling], [len(known)])[0])


@dataclass
class Text:
    """A sequence: what it was given, what it has said, and what it may say and how it may end."""

    plain: Plain
    request: int
    prompt: list[int]
    sampling: Sampling
    limit: int
    min_tokens: int = 0
    stops: tuple[int, ...] = ()
    said: list[int] = field(default_factory=list)
    reason: Reason | None = None

    def say(self, tokens: list[int]) -> None:
        for token in tokens:
            assert self.reason is None, "nothing is said after the end"
            known = (*self.prompt, *self.said)
            assert self.plain.allows(token, known, self.sampling), "not the plain model's token"
            self.said.append(token)

    def end(self, reason: Reason) -> None:
        assert self.reason is None, "an end is told once"
        self.reason = reason
        stopped = any(
            token in self.stops and place + 1 >= self.min_tokens
            for place, token in enumerate(self.said)
        )
        if reason is Reason.STOP:
            assert stopped
        if reason is Reason.LENGTH:
            assert not stopped
            assert len(self.said) == self.limit
        assert len(self.said) <= self.limit
