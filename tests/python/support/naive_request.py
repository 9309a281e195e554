"""A request of the naive scheduler, and what `add` refuses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.errors import RequestError
from support.naive_identity import Identity, checked_identity, checked_tokens, is_int
from support.naive_sequence import NaiveSequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(eq=False)
class NaiveRequest:
    """What `add` was given. Until the fork its first sequence alive stands for all of them."""

    prompt: list[int]
    max_tokens: int
    min_tokens: int
    stop_token_ids: list[int]
    n: int
    arrival: float | None
    identity: Identity
    use_cache: bool
    priority: int = 0
    deadline: float | None = None
    own_key: float | None = None
    is_ready: bool = True
    handle: int = 0
    order: int = 0
    num_prompt_tokens: int = 0
    is_forked: bool = False
    members: list[NaiveSequence] = field(default_factory=list)

    def issue(self, handles: Iterator[int], order: int) -> None:
        """Becomes a request of a scheduler, with its sequences."""
        self.handle, self.order = next(handles), order
        self.num_prompt_tokens = len(self.prompt)
        self.is_forked = self.n == 1
        self.members = [
            NaiveSequence(self, index, next(handles), list(self.prompt), len(self.prompt))
            for index in range(self.n)
        ]

    def alive(self) -> list[NaiveSequence]:
        return [member for member in self.members if member.reason is None]

    def leader(self) -> NaiveSequence:
        """The sequence that stands for all; the last one where none is alive."""
        return [*self.alive(), self.members[-1]][0]


@dataclass(frozen=True)
class Limits:
    block_size: int
    usable: int
    max_num_seqs: int
    max_model_len: int
    worst_case: bool

    def worst_blocks(self, num_prompt_tokens: int, max_tokens: int) -> int:
        """The blocks that a request may come to need, if they are reserved for that case."""
        longest = min(num_prompt_tokens + max_tokens, self.max_model_len)
        return -(-longest // self.block_size) if self.worst_case else 0


def checked_request(
    limits: Limits,
    prompt: Sequence[int],
    *,
    max_tokens: int,
    min_tokens: int = 0,
    stop_token_ids: Sequence[int] = (),
    n: int = 1,
    arrival: float | None = None,
    deadline: float | None = None,
    adapter: int = 0,
    tenant: int = 0,
    priority: int = 0,
    salt: bytes = b"",
    extra_keys: Sequence[Any] = (),
    key: Any = None,
    ready: bool = True,
    use_cache: bool = True,
) -> NaiveRequest:
    """What `add` was given as a request without handles, or the error that names the argument."""
    _check_counts(max_tokens=max_tokens, min_tokens=min_tokens, adapter=adapter, tenant=tenant)
    tokens = checked_tokens("prompt", prompt)
    if callable(key):
        key = key(len(tokens))
    _check_prompt(limits, len(tokens))
    if not is_int(min_tokens) or not 0 <= min_tokens <= max_tokens:
        raise RequestError("min_tokens", "is not within 0 … max_tokens")
    stops = checked_tokens("stop_token_ids", stop_token_ids)
    for name, number in (("deadline", deadline), ("arrival", arrival), ("key", key)):
        if number is not None and not math.isfinite(number):
            raise RequestError(name, "is not finite")
    if abs(priority) > 2**53:
        raise RequestError("priority", "is beyond 2^53")
    if (blocks := limits.worst_blocks(len(tokens), max_tokens)) > limits.usable:
        raise RequestError("max_tokens", "never fits", limits.usable, blocks - limits.usable)
    _check_n(limits, n)
    if adapter != 0:
        extra_keys = [*extra_keys, (0, None, "adapter", adapter.to_bytes(8, "little"))]
    return NaiveRequest(
        prompt=tokens,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=stops,
        n=n,
        arrival=arrival,
        identity=checked_identity(salt, extra_keys),
        use_cache=use_cache,
        priority=priority,
        deadline=deadline,
        own_key=key,
        is_ready=ready,
    )


def _check_prompt(limits: Limits, length: int) -> None:
    if length == 0:
        raise RequestError("prompt", "is empty")
    if length >= limits.max_model_len:
        longest = limits.max_model_len - 1
        raise RequestError("prompt", "is too long", longest, length - longest)
    num_blocks = -(-length // limits.block_size)
    if num_blocks > limits.usable:
        raise RequestError("prompt", "can never fit", limits.usable, num_blocks - limits.usable)


def _check_counts(**counts: int) -> None:
    for name, number in counts.items():
        checked_count(name, number)


def checked_count(name: str, number: Any) -> int:
    if not is_int(number) or not 0 <= number < 2**63:
        raise RequestError(name, "is not within 0 … 2^63-1")
    return number


def _check_n(limits: Limits, n: int) -> None:
    if n < 1:
        raise RequestError("n", "is less than 1")
    if n > limits.max_num_seqs:
        raise RequestError("n", "is more than max_num_seqs", limits.max_num_seqs)
    if n > 1 and limits.worst_case:
        raise RequestError("n", "is more than 1, where the worst case is reserved")


def check_extension(limits: Limits, num_known: int, tokens: Sequence[int], max_tokens: int) -> None:
    """What `extend` refuses because of its length."""
    length = num_known + len(tokens)
    if length >= limits.max_model_len:
        raise RequestError("tokens", "are too many")
    if -(-length // limits.block_size) > limits.usable:
        raise RequestError("tokens", "can never fit")
    if limits.worst_blocks(length, max_tokens) > limits.usable:
        raise RequestError("max_tokens", "never fits")
