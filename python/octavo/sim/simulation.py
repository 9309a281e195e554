"""One run of a workload, and what can be asked of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

from octavo import _core

__all__ = ["Simulation", "default_settings", "simulate"]

# Called with (virtual seconds, passes, requests ended, requests in all); may raise to stop the run.
Observer = Callable[[float, int, int, int], None]


class Simulation:
    """The result of a run.

    Every text is the same, byte for byte, for the same workload and settings.
    """

    def __init__(self, run: _core.SimulationRun) -> None:
        self._run = run

    def json(self) -> str:
        """The report: `config`, `workload` and `summary`, numbers unrounded."""
        return self._run.json()

    def csv(self) -> str:
        """One line per request, in trace order."""
        return self._run.csv()

    @cached_property
    def report(self) -> dict[str, Any]:
        """The report as a dictionary."""
        report: dict[str, Any] = json.loads(self.json())
        return report

    @property
    def summary(self) -> dict[str, Any]:
        """The figures of the run, `report["summary"]`."""
        summary: dict[str, Any] = self.report["summary"]
        return summary

    def token_times(self, request: int) -> list[float]:
        """When each token of a request came, in seconds on the trace's clock.

        Raises:
            IndexError: There is no such request.
        """
        return self._run.token_times(request)

    def pass_ends(self) -> list[float]:
        """When each pass of the model ended, in seconds on the trace's clock."""
        return self._run.pass_ends()


def default_settings() -> dict[str, Any]:
    """Every setting of a run and its default."""
    return _core.simulation_defaults()


def simulate(
    workload: _core.Workload, *, observer: Observer | None = None, **settings: Any
) -> Simulation:
    """Runs a workload through the scheduler in virtual time.

    Args:
        workload: The requests.
        observer: Told every thousand passes how far the run is.
        settings: Settings by name, as `default_settings` lists them; None means the default.

    Raises:
        ConfigError: A setting is unknown, out of range, or comes later.
    """
    return Simulation(_core.simulate(workload, settings, observer))
