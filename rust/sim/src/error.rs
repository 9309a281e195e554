//! What can go wrong around a simulation: one enum, each variant a different channel for the caller.

use octavo_core::ConfigError;

/// A request of a workload that cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {index}: {column}: {reason}")]
pub struct WorkloadError {
    /// The position of the request in the trace, from 0.
    pub index: usize,
    /// The column that is wrong.
    pub column: &'static str,
    /// Why it is refused.
    pub reason: String,
}

/// Why a simulation has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting is outside its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A request is malformed.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The scheduler refused a setting or a call.
    #[error(transparent)]
    Core(#[from] octavo_core::Error),
    /// The caller asked to stop.
    #[error("stopped by the caller")]
    Stopped,
    /// Something that must be conserved was not: a defect of Octavo, never of the input.
    #[error("conservation broken: {0}")]
    Conservation(String),
}
