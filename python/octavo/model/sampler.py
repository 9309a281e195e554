"""From logits to tokens: greedy, temperature, top-k, top-p.

The random number of a token depends on nothing but the seed of its sequence and its position, so
that no schedule can change what is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from octavo.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Sampling", "sample", "sequence_seed", "uniform"]

_MASK = 2**64 - 1
_GOLDEN = 0x9E37_79B9_7F4A_7C15


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Logits are divided by `temperature`, the `top_k` largest are kept, then the fewest of those
    whose probabilities reach `top_p`; one of them is drawn.

    Attributes:
        temperature: 0 takes the largest logit; finite, at least 0.
        top_k: How many of the largest logits are kept; 0 for all.
        top_p: The probability kept, above 0, at most 1.
        seed: 0 … 2^64-1.

    Raises:
        ConfigError: A number outside its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError("temperature", self.temperature, "a finite number, at least 0")
        if not 0 <= self.top_k < 2**31:
            raise ConfigError("top_k", self.top_k, "a whole number, at least 0")
        if not 0 < self.top_p <= 1:
            raise ConfigError("top_p", self.top_p, "above 0, at most 1")
        if not 0 <= self.seed <= _MASK:
            raise ConfigError("seed", self.seed, "a whole number, 0 … 2^64-1")

    @property
    def is_cut(self) -> bool:
        """Whether some tokens are left out."""
        return self.top_k > 0 or self.top_p < 1

    def of(self, index: int) -> Sampling:
        """The same for the sequence `index` of a request, with a seed of its own."""
        seed = sequence_seed(self.seed, index)
        return Sampling(self.temperature, self.top_k, self.top_p, seed)


def sequence_seed(seed: int, index: int) -> int:
    """The seed of the sequence `index` of a request; the first keeps that of the request."""
    return seed if index == 0 else _mixed(seed ^ _mixed(index * _GOLDEN & _MASK))


def uniform(
    seeds: Sequence[int] | npt.NDArray[np.uint64], positions: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """The random numbers of tokens: 0 ≤ u < 1, equal for equal (seed, position).

    SplitMix64 (Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators, 2014), started
    at the mixed seed and read at the position.

    Args:
        seeds: uint64[S].
        positions: Whole numbers [S]: where in its sequence each token stands.

    Returns:
        float64[S].
    """
    golden = np.uint64(_GOLDEN)
    start = _mix(np.asarray(seeds, dtype=np.uint64) + golden)
    steps = np.asarray(positions).astype(np.uint64) + np.uint64(1)
    bits = _mix(start + steps * golden) >> np.uint64(11)
    numbers: npt.NDArray[np.float64] = bits.astype(np.float64) * 2.0**-53
    return numbers


def sample(
    logits: Any, samplings: Sequence[Sampling], positions: npt.ArrayLike, *, xp: Any = np
) -> npt.NDArray[np.int32]:
    """Chooses a token for each row of logits.

    A row's token depends on that row only; among equal logits the smaller token comes first.

    Args:
        logits: float[S, vocabulary], of `xp`.
        samplings: How, S of them.
        positions: Whole numbers [S]: where in its sequence each token will stand.
        xp: NumPy or CuPy.

    Returns:
        int32[S], of NumPy.

    Raises:
        RequestError: A row has a NaN or no finite largest logit, by its index.

    Example:
        >>> sample(np.array([[0.0, 3.0, 1.0]]), [Sampling()], [7]).tolist()
        [1]
    """
    # argmax finds the first NaN, where there is one.
    tokens = xp.argmax(logits, axis=1)
    broken = ~xp.isfinite(logits[xp.arange(len(tokens)), tokens])
    if broken.any():
        raise RequestError("logits", f"row {int(xp.argmax(broken))} has NaN, or no finite largest")
    tokens = _to_host(tokens).astype(np.int32)
    # Rows that are cut are sorted first. The others must not be, or their tokens would depend on
    # whether a row beside them is cut.
    whole: list[int] = []
    cut: list[int] = []
    for row, one in enumerate(samplings):
        if one.temperature > 0:
            (cut if one.is_cut else whole).append(row)
    for rows in filter(None, (whole, cut)):
        chosen = [samplings[row] for row in rows]
        numbers = uniform([one.seed for one in chosen], np.asarray(positions)[rows])
        drawn = _draw(logits[xp.asarray(rows)], chosen, numbers, is_cut=rows is cut, xp=xp)
        tokens[rows] = _to_host(drawn)
    return tokens


def _draw(
    logits: Any,
    samplings: list[Sampling],
    numbers: npt.NDArray[np.float64],
    *,
    is_cut: bool,
    xp: Any,
) -> Any:
    temperatures = xp.asarray([[one.temperature] for one in samplings])
    # The largest is taken away first, so that a tiny temperature makes -inf and not inf.
    with np.errstate(over="ignore"):
        scaled = (logits - logits.max(axis=1, keepdims=True)).astype(xp.float64) / temperatures
    order = None
    if is_cut:
        order = xp.argsort(-scaled, axis=1, kind="stable")
        scaled = xp.take_along_axis(scaled, order, axis=1)
    shares = xp.exp(scaled)
    if order is not None:
        shares = _kept(shares, samplings, xp)
    heaped = xp.cumsum(shares, axis=1)
    aims = xp.asarray(numbers)[:, None] * heaped[:, -1:]
    # The first whose heap passes the aim, and that has a share of its own: CuPy sums in parallel,
    # and its heaps may fall by a rounding. Where that leaves none, the last that has one.
    has_share = shares > 0
    passed = has_share & (heaped > aims)
    last = shares.shape[1] - 1 - xp.argmax(has_share[:, ::-1], axis=1)
    places = xp.where(passed.any(axis=1), xp.argmax(passed, axis=1), last)
    return places if order is None else order[xp.arange(len(places)), places]


def _kept(shares: Any, samplings: list[Sampling], xp: Any) -> Any:
    """Shares in falling order with 0 where top-k or top-p cuts them off."""
    width = shares.shape[1]
    counts = xp.asarray([[one.top_k or width] for one in samplings])
    shares = xp.where(xp.arange(width)[None] < counts, shares, 0.0)
    before = xp.cumsum(shares, axis=1) - shares
    bounds = xp.asarray([[one.top_p] for one in samplings]) * shares.sum(axis=1, keepdims=True)
    # A bound of 1 cuts nothing off, not even what rounding puts behind the sum.
    every = xp.asarray([[one.top_p == 1] for one in samplings])
    return xp.where(every | (before < bounds), shares, 0.0)


def _to_host(values: Any) -> npt.NDArray[Any]:
    host: npt.NDArray[Any] = values.get() if hasattr(values, "get") else values
    return host


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    mixed: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


def _mixed(value: int) -> int:
    return int(_mix(np.array([value], dtype=np.uint64))[0])
