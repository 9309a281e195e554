"""Traffic made from a seed: what to simulate where there is no trace.

The draws and their logarithms come from the simulator crate, so that a seed gives the same bytes on
every machine.
"""

from __future__ import annotations

import math

from octavo._core import Workload

__all__ = ["Workload", "festival", "plain"]


def festival(seed: int = 0) -> Workload:
    """The sale of a festival's tickets, answered by a bot.

    An ordinary hour of 0.6 requests/s, then 6.0 requests/s in the ten minutes after the sale opens,
    Poisson both. Prompts of about 1,000 tokens begin with 150 that all share; answers are log-normal
    with mean 300, held to 1 … 2,000.
    """
    return Workload.festival(seed)


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
    return Workload.plain(num_requests, request_rate, input_len, output_len, seed)
