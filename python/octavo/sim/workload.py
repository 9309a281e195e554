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


def festival(seed: int = 0) -> Workload:
    """The sale of a festival's tickets, answered by a bot.

    An ordinary hour of 0.6 requests/s, then 6.0 requests/s in the ten minutes after the sale opens,
    Poisson both. Prompts of about 1,000 tokens begin with 150 that all share; answers are
    log-normal with mean 300, held to 1 … 2,000.
    """
    return Workload.festival(_count("seed", seed, 0, _MAX_SEED))


def plain(  # noqa: PLR0913 - one argument a property of the traffic, by keyword
    num_requests: int = 1_000,
    *,
    request_rate: float = math.inf,
    burstiness: float = 1.0,
    concurrency: int | None = None,
    input_len: int | str = 1_000,
    output_len: int | str = 300,
    seed: int = 0,
) -> Workload:
    """Requests with drawn arrivals and lengths; prompts share nothing.

    Args:
        num_requests: How many.
        request_rate: Arrivals per second; the first one is at 0. Infinite brings all of them at 0.
        burstiness: The shape of the gamma distribution of the time between two arrivals: 1 is
            Poisson, less comes in bursts, more is more even, infinite is a clock.
        concurrency: Users who each send the next request when their last has ended, instead of
            arrivals at a rate.
        input_len: Tokens of a prompt: a number, or a distribution, `uniform:LEAST:MOST` or
            `lognormal:MEAN:SIGMA[:LEAST:MOST]`, SIGMA the deviation of the logarithm.
        output_len: Tokens of an output, likewise.
        seed: Of all draws; arrivals, prompts and outputs have a stream each.

    Raises:
        ConfigError: A rate or a length is not above 0, or a distribution is none of these.
    """
    if concurrency is not None:
        _count("concurrency", concurrency, 1, _MAX_REQUESTS)
    return Workload.plain(
        _count("num_requests", num_requests, 1, _MAX_REQUESTS),
        request_rate=request_rate,
        burstiness=burstiness,
        concurrency=concurrency,
        input_len=str(input_len),
        output_len=str(output_len),
        seed=_count("seed", seed, 0, _MAX_SEED),
    )


def _count(field: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise ConfigError(field, value, f"a whole number, {least} … {most}")
    return value
