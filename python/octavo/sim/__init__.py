"""The scheduler in virtual time: workloads, traces, runs, reports.

Example:
    >>> from octavo.sim import plain, simulate
    >>> run = simulate(plain(3, input_len=10, output_len=4))
    >>> run.summary["completed"], run.summary["ttft_s"]["n"]
    (3, 3)
"""

from octavo.sim.simulation import Simulation, simulate
from octavo.sim.traces import Trace, read_trace
from octavo.sim.workload import Workload, festival, plain

__all__ = ["Simulation", "Trace", "Workload", "festival", "plain", "read_trace", "simulate"]
