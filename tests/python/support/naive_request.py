"""A request of the naive scheduler, and what `add` refuses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.errors import RequestError
from support.naive_identity import Identity, checked_identity, checked_tokens, is_int

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo import Reason


@dataclass(eq=False)
class NaiveRequest:
    handle: int
    seq: int
    order: int
    prompt: list[int]
    max_tokens: int
    min_tokens: int
    stop_token_ids: list[int]
    arrival: float | None
    identity: Identity
    use_cache: bool
    priority: int = 0
    deadline: float | None = None
    own_key: float | None = None
    is_ready: bool = True
    queued_with: int = 0  # the tokens it knew when it was last put into the queue
    known: list[int] = field(default_factory=list)  # prompt and accepted output
    emitted: int = 0
    computed: int = 0
    high_water: int = 0  # the most tokens that it ever had computed
    table: list[int] = field(default_factory=list)
    row: int | None = None  # while it runs
    was_admitted: bool = False
    reason: Reason | None = None  # once it has ended
    is_reported: bool = False

    def class_under(self, policy: str) -> float:
        if self.own_key is not None:
            return self.own_key
        if policy == "priority":
            return self.priority
        if policy == "sjf":
            return self.queued_with
        if policy == "edf":
            return math.inf if self.deadline is None else self.deadline
        return 0

    @property
    def is_decode(self) -> bool:
        return self.emitted >= 1 and len(self.known) - self.computed == 1


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
        handle=0,
        seq=0,
        order=0,
        prompt=tokens,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=stops,
        arrival=arrival,
        identity=checked_identity(salt, extra_keys),
        use_cache=use_cache,
        priority=priority,
        deadline=deadline,
        own_key=key,
        is_ready=ready,
        queued_with=len(tokens),
        known=list(tokens),
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
        if not is_int(number) or not 0 <= number < 2**63:
            raise RequestError(name, "is not within 0 … 2^63-1")


def _check_n(limits: Limits, n: int) -> None:
    if n > limits.max_num_seqs:
        raise RequestError("n", "is more than max_num_seqs", limits.max_num_seqs)
    if n != 1:
        raise RequestError("n", "other than 1: later")
