"""Renderings of a run's report."""

from octavo.sim.report.table import table

__all__ = ["table"]
