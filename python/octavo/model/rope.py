"""Rotary position embedding (Su et al., RoFormer, 2021, section 3.4) with its scaling variants."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from octavo.errors import ConfigError

__all__ = ["Rope"]

_KINDS = ("default", "linear", "llama3")
# A key is rotated once, when it is stored. What rotates by the length so far would have to turn
# every stored key again.
_REFUSED = {"dynamic": "it turns keys again as a text grows"}


@dataclass(frozen=True)
class Rope:
    """How positions are rotated into queries and keys.

    Attributes:
        kind: "default"; "linear", which divides positions by `factor`; or "llama3", which divides
            the slow frequencies only (Llama 3.1).
        theta: The base of the frequencies, above 0.
        factor: Of "linear" and "llama3", at least 1.
        low_freq_factor: Of "llama3": turns within `original_max_position` up to which a frequency
            is slow.
        high_freq_factor: Of "llama3": turns from which it is fast; more than `low_freq_factor`.
        original_max_position: Of "llama3": the length that the model was first made for.

    Raises:
        ConfigError: A kind that is not done, or a number outside its range.

    Example:
        >>> import numpy
        >>> Rope(theta=100.0).frequencies(4, numpy).tolist()
        [1.0, 0.1]
        >>> Rope("linear", 100.0, factor=4.0).frequencies(4, numpy).tolist()
        [0.25, 0.025]
    """

    kind: str = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8_192

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            why = _REFUSED.get(self.kind, "not done")
            raise ConfigError("rope_type", self.kind, f"one of {', '.join(_KINDS)} ({why})")
        self._demand("theta", self.theta, 0.0, "above 0")
        if self.kind == "default":
            return
        self._demand("factor", self.factor, math.nextafter(1.0, 0.0), "at least 1")
        if self.kind == "llama3":
            self._demand("low_freq_factor", self.low_freq_factor, 0.0, "above 0")
            low = self.low_freq_factor
            self._demand("high_freq_factor", self.high_freq_factor, low, f"above {low}")
            self._demand("original_max_position", self.original_max_position, 0.0, "above 0")

    @staticmethod
    def _demand(name: str, value: Any, least: float, words: str) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and math.isfinite(value) and value > least):
            raise ConfigError(name, value, f"a finite number {words}")

    def frequencies(self, head_dim: int, xp: Any) -> Any:
        """The angle that each pair of a head turns by per position: float64[head_dim / 2]."""
        plain = 1.0 / self.theta ** (xp.arange(0, head_dim, 2, dtype=xp.float64) / head_dim)
        if self.kind == "default":
            return plain
        slowed = plain / self.factor
        if self.kind == "linear":
            return slowed
        turns = self.original_max_position * plain / (2.0 * math.pi)
        span = self.high_freq_factor - self.low_freq_factor
        share = xp.clip((turns - self.low_freq_factor) / span, 0.0, 1.0)
        return (1.0 - share) * slowed + share * plain
