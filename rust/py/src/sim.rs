//! The simulator: workloads in, texts out. It runs without the GIL.

use octavo_sim::{
    Arrivals, Columns, Feeding, Festival, Length, NamedPrefixes, Plain, Progress, Record, SimConfig, Summary, Value,
};
use pyo3::exceptions::{PyIndexError, PyOverflowError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString};

use std::num::NonZeroU32;

use crate::errors::{Failure, Outcome};

/// The requests of a run: a trace's, or made from a seed.
#[pyclass(frozen, module = "octavo._core")]
pub(crate) struct Workload(octavo_sim::Workload);

#[pymethods]
impl Workload {
    /// A workload from columns, each the bytes of an array in the machine's order.
    #[staticmethod]
    #[pyo3(signature = (arrival_s, prompt_tokens, output_tokens, *, prefix_ids, prefix_tokens, hash_ends, block_tokens))]
    #[allow(clippy::too_many_arguments, reason = "a table has as many columns as it has")]
    fn from_columns(
        arrival_s: &[u8],
        prompt_tokens: &[u8],
        output_tokens: &[u8],
        prefix_ids: &[u8],
        prefix_tokens: &[u8],
        hash_ends: &[u8],
        block_tokens: u32,
    ) -> Outcome<Self> {
        let ids = words(prefix_ids, i64::from_ne_bytes)?;
        let prefixes = if !hash_ends.is_empty() {
            let ends = words(hash_ends, u64::from_ne_bytes)?;
            let ends = ends.into_iter().map(|end| usize::try_from(end).unwrap_or(usize::MAX));
            NamedPrefixes::Blocks { block_tokens, indptr: std::iter::once(0).chain(ends).collect(), ids }
        } else if !prefix_tokens.is_empty() {
            NamedPrefixes::Shared { ids, tokens: words(prefix_tokens, u32::from_ne_bytes)? }
        } else {
            NamedPrefixes::None
        };
        let columns = Columns {
            arrival_s: words(arrival_s, f64::from_ne_bytes)?,
            prompt_tokens: words(prompt_tokens, u32::from_ne_bytes)?,
            output_tokens: words(output_tokens, u32::from_ne_bytes)?,
            prefixes,
        };
        octavo_sim::Workload::new(columns).map(Self).map_err(|error| workload_failure(&error))
    }

    /// The festival sale.
    #[staticmethod]
    fn festival(seed: u64) -> Self {
        Self(Festival::default().workload(seed))
    }

    /// Requests with drawn arrivals and lengths.
    #[staticmethod]
    #[pyo3(signature = (num_requests, *, request_rate, burstiness, concurrency, input_len, output_len, seed))]
    fn plain(
        num_requests: u32,
        request_rate: f64,
        burstiness: f64,
        concurrency: Option<u32>,
        input_len: &str,
        output_len: &str,
        seed: u64,
    ) -> Outcome<Self> {
        let open = Arrivals::Open { rate: request_rate, burstiness };
        let arrivals = concurrency.and_then(NonZeroU32::new).map_or(open, Arrivals::Closed);
        let length = |field, text| Length::parse(field, text).map_err(|error| failure(error.into()));
        let (input_len, output_len) = (length("input_len", input_len)?, length("output_len", output_len)?);
        let plain = Plain { num_requests, arrivals, input_len, output_len };
        plain.workload(seed).map(Self).map_err(|error| failure(error.into()))
    }

    /// The first `limit` requests.
    fn truncate(&self, limit: usize) -> Self {
        let mut workload = self.0.clone();
        workload.truncate(limit);
        Self(workload)
    }

    /// The same requests with every arrival multiplied by `scale`.
    fn scale_time(&self, scale: f64) -> Outcome<Self> {
        let mut workload = self.0.clone();
        workload.scale_time(scale).map_err(|error| workload_failure(&error))?;
        Ok(Self(workload))
    }

    /// The workload as a trace in Octavo's own CSV.
    fn trace_csv(&self) -> String {
        octavo_sim::report::trace_csv(&self.0)
    }

    /// How many users send the requests in turn, or `None`.
    #[getter]
    fn concurrency(&self) -> Option<u32> {
        self.0.concurrency()
    }

    /// A hash of all that the workload is.
    #[getter]
    fn hash(&self) -> String {
        self.0.hash()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }
}

/// A finished run.
#[pyclass(frozen, module = "octavo._core")]
pub(crate) struct SimulationRun {
    json: String,
    workload: octavo_sim::Workload,
    record: Record,
}

#[pymethods]
impl SimulationRun {
    /// The report.
    fn json(&self) -> &str {
        &self.json
    }

    /// One line per request.
    fn csv(&self, py: Python<'_>) -> String {
        py.detach(|| octavo_sim::report::requests_csv(&self.workload, &self.record))
    }

    /// When each token of a request came.
    fn token_times(&self, request: u32) -> PyResult<Vec<f64>> {
        if usize::try_from(request).is_ok_and(|at| at < self.record.requests.len()) {
            return Ok(self.record.token_times(request));
        }
        Err(PyIndexError::new_err(format!("there is no request {request}")))
    }

    /// When each pass ended.
    fn pass_ends(&self) -> Vec<f64> {
        self.record.pass_ends.clone()
    }
}

/// Runs a workload with the given settings.
#[pyfunction]
#[pyo3(signature = (workload, settings, observer=None))]
pub(crate) fn simulate(
    py: Python<'_>,
    workload: &Workload,
    settings: &Bound<'_, PyDict>,
    observer: Option<Py<PyAny>>,
) -> Outcome<SimulationRun> {
    let mut config = SimConfig::default();
    for (name, value) in settings.iter() {
        let name: String = name.extract()?;
        let read = read_value(&value)?;
        config.set(&name, &read).map_err(|error| {
            let is_unknown = error.field != name;
            let value = if is_unknown { PyString::new(py, &name).into_any() } else { value };
            Failure::Config { field: error.field, value: value.unbind(), range: error.range }
        })?;
    }
    let mut raised = None;
    let mut observe = |progress: Progress| {
        let told = Python::attach(|py| tell(py, observer.as_ref(), progress));
        told.map_err(|error| raised = Some(error)).is_ok()
    };
    let workload = &workload.0;
    let finished = py.detach(|| {
        let record = octavo_sim::simulate(&config, workload, Feeding::Lazy, &mut observe)?;
        let summary = Summary::of(workload, &record, &config.promise);
        let json = octavo_sim::report::json(&config, workload, &summary)?;
        Ok(SimulationRun { json, workload: workload.clone(), record })
    });
    finished.map_err(|error| raised.map_or_else(|| failure(error), Failure::Python))
}

/// Every setting and its default.
#[pyfunction]
pub(crate) fn simulation_defaults(py: Python<'_>) -> Outcome<Bound<'_, PyDict>> {
    let defaults = PyDict::new(py);
    let entries = SimConfig::default().entries().map_err(|error| failure(error.into()))?;
    for (name, value) in entries {
        match value {
            Value::None => defaults.set_item(name, py.None())?,
            Value::Switch(on) => defaults.set_item(name, on)?,
            Value::Whole(number) => defaults.set_item(name, number)?,
            Value::Real(number) => defaults.set_item(name, number)?,
            Value::Name(text) => defaults.set_item(name, text)?,
        }
    }
    Ok(defaults)
}

/// Lets Ctrl-C through and tells the observer.
fn tell(py: Python<'_>, observer: Option<&Py<PyAny>>, progress: Progress) -> PyResult<()> {
    py.check_signals()?;
    if let Some(observer) = observer {
        observer.call1(py, (progress.now_s, progress.passes, progress.ended, progress.requests))?;
    }
    Ok(())
}

fn read_value(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    if value.is_none() {
        return Ok(Value::None);
    }
    if value.is_instance_of::<PyBool>() {
        return Ok(Value::Switch(value.extract()?));
    }
    if value.is_instance_of::<PyInt>() {
        // Beyond 64 bits it is out of every range anyway; as a float it is refused by its name.
        let whole: PyResult<i64> = value.extract();
        return match whole {
            Ok(number) => Ok(Value::Whole(number)),
            Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => Ok(Value::Real(f64::INFINITY)),
            Err(error) => Err(error),
        };
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(Value::Real(value.extract()?));
    }
    Ok(Value::Name(value.str()?.extract()?))
}

fn words<T, const N: usize>(bytes: &[u8], read: fn([u8; N]) -> T) -> PyResult<Vec<T>> {
    let (whole, rest) = bytes.as_chunks::<N>();
    if !rest.is_empty() {
        return Err(PyValueError::new_err(format!("{} bytes are no column", bytes.len())));
    }
    Ok(whole.iter().map(|&word| read(word)).collect())
}

fn failure(error: octavo_sim::Error) -> Failure {
    use octavo_sim::Error;
    match error {
        Error::Config(error) => Failure::Core(error.into()),
        Error::Core(error) => Failure::Core(error),
        Error::Workload(error) => workload_failure(&error),
        // The observer's own exception is raised instead of the first; the second is a defect.
        Error::Stopped | Error::Conservation(_) => Failure::Python(PyRuntimeError::new_err(error.to_string())),
    }
}

fn workload_failure(error: &octavo_sim::WorkloadError) -> Failure {
    Failure::request(format!("{}[{}]", error.column, error.index), error.reason.clone())
}
