"""What all verbs share: a parser that raises, the names that come later, progress."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

__all__ = ["LATER_VERBS", "Parser", "ProgressLine", "UsageError"]

LATER_VERBS = frozenset({"plan", "sweep", "trace", "report"})

_LATER_FLAGS = frozenset(
    {
        "--alert", "--chrome-trace", "--columns",
        "--config", "--decode-replicas", "--gpu", "--html", "--model", "--prefill-replicas",
        "--replicas", "--router", "--slo", "--spread",
    }
)  # fmt: skip


class UsageError(Exception):
    """Words that are no command; the message is one sentence."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError` instead of ending the process."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Refuses the words."""
        raise UsageError(message)

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parses all words; what is unknown is refused by name."""
        options, rest = self.parse_known_args(words)
        if rest:
            name = rest[0].partition("=")[0]
            reason = "comes later" if name in _LATER_FLAGS else "is no flag of this verb"
            raise UsageError(f"{name} {reason}")
        return options


class ProgressLine:
    """Progress of a long run on standard error, at most twice a second, and only after a second."""

    FIRST_S = 1.0
    EVERY_S = 0.5

    def __init__(self) -> None:
        self.start = time.monotonic()
        self._next = self.start + self.FIRST_S
        self._shown = False

    def __call__(self, now_s: float, passes: int, ended: int, requests: int) -> None:
        """Shows how far the run is, where a person watches and it is time."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self.EVERY_S
        line = f"{ended:,} of {requests:,} requests, {passes:,} passes, virtual {now_s:,.0f} s"
        if sys.stderr.isatty():
            print(f"\r{line}\033[K", end="", file=sys.stderr, flush=True)
            self._shown = True

    def close(self) -> float:
        """Wipes the line; returns the seconds since the start."""
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        return time.monotonic() - self.start
