"""Renderings of a run's report."""

from octavo.sim.report.comparison import comparison
from octavo.sim.report.table import table

__all__ = ["comparison", "table"]
