//! The Python extension `octavo._core`: it translates calls, arrays and errors, and decides nothing.

#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands the arguments of a method over by value")]

mod arrays;
mod config;
mod errors;
mod handles;
mod identity;
mod kvcache;
mod outcome;
mod plan;
mod request;
mod scheduler;
mod sim;
mod stats;

use pyo3::pymodule;

/// The compiled core of Octavo.
#[pymodule(gil_used = false)]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::kvcache::{Ops, PyKvCache};
    #[pymodule_export]
    use crate::outcome::{OutcomeIterator, PyOutcome};
    #[pymodule_export]
    use crate::plan::PyStepPlan;
    #[pymodule_export]
    use crate::scheduler::PyScheduler;
    #[pymodule_export]
    use crate::sim::{SimulationRun, Workload, simulate, simulation_defaults};
    #[pymodule_export]
    use crate::stats::{CacheStats, SchedulerStats};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
