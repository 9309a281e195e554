//! From the core's errors to the exceptions of `octavo.errors`: one exhaustive match, no arm that catches the rest.

use std::sync::PoisonError;

use octavo_core::Error;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};

/// Whatever a call of the binding refuses, before it becomes an exception.
pub(crate) enum Failure {
    /// The core refused.
    Core(Error),
    /// The core is short of blocks: an outcome there, an exception here.
    OutOfBlocks { needed: usize, available: usize },
    /// A setting that the core never sees, or one whose value is better shown as it was given.
    Config { field: &'static str, value: Py<PyAny>, range: String },
    /// An argument that the core never sees.
    Request { argument: String, message: String, limit: Option<f64>, excess: Option<f64> },
    /// A number that is no handle.
    UnknownHandle(Py<PyAny>),
    /// The call does not fit the state of the binding's own objects.
    State(&'static str),
    /// Python raised, or an argument has a type that no call takes.
    Python(PyErr),
}

pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// An argument that is wrong without a limit that it passes.
    pub(crate) fn request(argument: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Request { argument: argument.into(), message: message.into(), limit: None, excess: None }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Core(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

/// A call panicked while it held the state: a defect. The object stays refused rather than wrong.
impl<T> From<PoisonError<T>> for Failure {
    fn from(_: PoisonError<T>) -> Self {
        Self::State("an earlier call failed half-way; this object can no longer be used")
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        Python::attach(|py| exception(py, failure).unwrap_or_else(|error| error))
    }
}

/// The exception of a failure; an error only where Python itself fails (no memory, no `octavo.errors`).
fn exception(py: Python<'_>, failure: Failure) -> PyResult<PyErr> {
    match failure {
        Failure::Core(Error::Config(e)) => CONFIG.with(py, (e.field, e.value, e.range)),
        Failure::Core(Error::Request(e)) => REQUEST.with(py, (e.argument, e.reason, e.limit, e.excess)),
        Failure::Core(Error::UnknownHandle { handle }) => UNKNOWN.with(py, (handle,)),
        Failure::Core(Error::StaleHandle { handle }) => STALE.with(py, (handle,)),
        Failure::Core(Error::State(e)) => STATE.with(py, (e.message, e.law)),
        Failure::OutOfBlocks { needed, available } => OUT_OF_BLOCKS.with(py, (needed, available)),
        Failure::Config { field, value, range } => CONFIG.with(py, (field, value, range)),
        Failure::Request { argument, message, limit, excess } => REQUEST.with(py, (argument, message, limit, excess)),
        Failure::UnknownHandle(handle) => UNKNOWN.with(py, (handle,)),
        Failure::State(message) => STATE.with(py, (message,)),
        Failure::Python(error) => Ok(error),
    }
}

/// One class of `octavo.errors`, looked up when it is first raised.
struct Class {
    name: &'static str,
    class: PyOnceLock<Py<PyType>>,
}

impl Class {
    const fn new(name: &'static str) -> Self {
        Self { name, class: PyOnceLock::new() }
    }

    fn with<'py>(&self, py: Python<'py>, arguments: impl IntoPyObject<'py>) -> PyResult<PyErr> {
        let class = self.class.import(py, "octavo.errors", self.name)?;
        let arguments = arguments.into_bound_py_any(py)?.cast_into::<PyTuple>()?;
        Ok(PyErr::from_value(class.call1(arguments)?))
    }
}

static CONFIG: Class = Class::new("ConfigError");
static REQUEST: Class = Class::new("RequestError");
static UNKNOWN: Class = Class::new("UnknownHandleError");
static STALE: Class = Class::new("StaleHandleError");
static STATE: Class = Class::new("StateError");
static OUT_OF_BLOCKS: Class = Class::new("OutOfBlocks");
