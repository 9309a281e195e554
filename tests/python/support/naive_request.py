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
    known: list[int] = field(default_factory=list)  # prompt and accepted output
    emitted: int = 0
    computed: int = 0
    high_water: int = 0  # the most tokens that it ever had computed
    table: list[int] = field(default_factory=list)
    row: int | None = None  # while it runs
    was_admitted: bool = False
    reason: Reason | None = None  # once it has ended
    is_reported: bool = False

    @property
    def key(self) -> tuple[float, int]:
        assert self.arrival is not None
        return self.arrival, self.order

    @property
    def is_decode(self) -> bool:
        return self.emitted >= 1 and len(self.known) - self.computed == 1


@dataclass(frozen=True)
class Limits:
    block_size: int
    usable: int
    max_num_seqs: int
    max_model_len: int


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
    tokens = checked_tokens("prompt", prompt)
    _check_prompt(limits, len(tokens))
    if not is_int(max_tokens) or max_tokens < 0:
        raise RequestError("max_tokens", "is negative")
    if not is_int(min_tokens) or not 0 <= min_tokens <= max_tokens:
        raise RequestError("min_tokens", "is not within 0 … max_tokens")
    stops = checked_tokens("stop_token_ids", stop_token_ids)
    _refuse_later(limits, n, key, ready=ready)
    for name, time in (("arrival", arrival), ("deadline", deadline)):
        if time is not None and not math.isfinite(time):
            raise RequestError(name, "is not finite")
    for name, number in (("adapter", adapter), ("tenant", tenant)):
        if not 0 <= number < 2**63:
            raise RequestError(name, "is not within 0 … 2^63-1")
    assert is_int(priority)
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


def _refuse_later(limits: Limits, n: int, key: Any, *, ready: bool) -> None:
    if n > limits.max_num_seqs:
        raise RequestError("n", "is more than max_num_seqs", limits.max_num_seqs)
    if n != 1:
        raise RequestError("n", "other than 1: later")
    if key is not None:
        raise RequestError("key", "later")
    if not ready:
        raise RequestError("ready", "False: later")
