"""Traffic made from a seed: what to simulate where there is no trace.

The draws and their logarithms come from the simulator crate, so that a seed gives the same bytes on
every machine.
"""

from __future__ import annotations

import math

from octavo._core import Workload
from octavo.errors import ConfigError

__all__ = ["Workload", "festival", "plain"]

_MAX_SEED = (1 << 64) - 1
_MAX_REQUESTS = (1 << 29) - 1
_MAX_TOKENS = 1 << 30


def festival(seed: int = 0) -> Workload:
    """The sale of a festival's tickets, answered by a bot.

    An ordinary hour of 0.6 requests/s, then 6.0 requests/s in the ten minutes after the sale opens,
    Poisson both. Prompts of about 1,000 tokens begin with 150 that all share; answers are
    log-normal with mean 300, held to 1 … 2,000.
    """
    return Workload.festival(_count("seed", seed, 0, _MAX_SEED))


def plain(
    num_requests: int = 1_000,
    *,
    request_rate: float = math.inf,
    input_len: int = 1_000,
    output_len: int = 300,
    seed: int = 0,
) -> Workload:
    """Requests of one length, Poisson at one rate; an infinite rate brings all of them at 0.

    The first request arrives at 0. Prompts share nothing.

    Raises:
        ConfigError: A rate or a length is not above 0.
    """
    return Workload.plain(
        _count("num_requests", num_requests, 1, _MAX_REQUESTS),
        request_rate,
        _count("input_len", input_len, 1, _MAX_TOKENS),
        _count("output_len", output_len, 1, _MAX_TOKENS),
        _count("seed", seed, 0, _MAX_SEED),
    )


def _count(field: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise ConfigError(field, value, f"a whole number, {least} … {most}")
    return value
