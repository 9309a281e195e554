//! Requests in: the keywords of `add` and `add_many`, to the core's requests.
//!
//! Everything that Python has to say is heard here, callables included, before the scheduler is locked.

use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use octavo_core::{Error, Identity, Request};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyList, PyRange, PyTuple};

use crate::arrays::{self, Given};
use crate::errors::{Failure, Outcome};
use crate::identity::identity;

/// What `add` or `add_many` was given beside the prompt. Those that may differ from request to request by name, the rest
/// once for all.
pub(crate) struct Keywords<'py> {
    pub(crate) max_tokens: Bound<'py, PyAny>,
    pub(crate) min_tokens: Given<'py>,
    pub(crate) stop_token_ids: Given<'py>,
    pub(crate) n: Given<'py>,
    pub(crate) priority: Given<'py>,
    pub(crate) deadline: Option<Bound<'py, PyAny>>,
    pub(crate) arrival: Option<Bound<'py, PyAny>>,
    pub(crate) tenant: Given<'py>,
    pub(crate) adapter: Given<'py>,
    pub(crate) salt: Given<'py>,
    pub(crate) extra_keys: Given<'py>,
    pub(crate) key: Option<Bound<'py, PyAny>>,
    pub(crate) ready: bool,
    pub(crate) use_cache: bool,
}

impl Keywords<'_> {
    /// One request.
    pub(crate) fn one(&self, prompt: &Bound<'_, PyAny>) -> Outcome<Request> {
        let mut request = self.shared()?;
        request.max_tokens = arrays::count(&self.max_tokens, "max_tokens")?;
        request.min_tokens = self.min_tokens.read(0, |value| arrays::count(value, "min_tokens"))?;
        request.priority = self.priority.read(0, |value| arrays::integer(value, "priority"))?;
        request.deadline = self.deadline.as_ref().map(|time| arrays::real(time, "deadline")).transpose()?;
        request.arrival = self.arrival.as_ref().map(|time| arrays::real(time, "arrival")).transpose()?;
        request.prompt = arrays::tokens(prompt, "prompt")?.into_vec();
        request.key = self.key(request.prompt.len())?;
        Ok(request)
    }

    /// A request for each of `prompts`.
    pub(crate) fn many(&self, prompts: &Bound<'_, PyAny>) -> Outcome<Vec<Request>> {
        let shared = self.shared()?;
        let prompts = read_prompts(prompts)?;
        let len = prompts.len();
        let max_tokens = counts(Some(&self.max_tokens), "max_tokens", len)?;
        let min_tokens = counts(self.min_tokens.0.as_ref(), "min_tokens", len)?;
        let priority = integers(self.priority.0.as_ref(), "priority", len)?;
        let deadline = times(self.deadline.as_ref(), "deadline", len)?;
        let arrival = times(self.arrival.as_ref(), "arrival", len)?;
        let request = |(i, prompt): (usize, Vec<i32>)| -> Outcome<Request> {
            Ok(Request {
                max_tokens: max_tokens.at(i),
                min_tokens: min_tokens.at(i),
                priority: priority.at(i),
                deadline: deadline.at(i),
                arrival: arrival.at(i),
                key: self.key(prompt.len()).map_err(|failure| indexed(failure, i))?,
                prompt,
                ..shared.clone()
            })
        };
        prompts.into_iter().enumerate().map(request).collect()
    }

    /// A request without a prompt, from what all have in common.
    fn shared(&self) -> Outcome<Request> {
        let number = |given: &Given<'_>, name, default| given.read(default, |value| arrays::count(value, name));
        Ok(Request {
            stop_token_ids: self
                .stop_token_ids
                .read(Vec::new(), |ids| Ok(arrays::tokens(ids, "stop_token_ids")?.into_vec()))?,
            n: number(&self.n, "n", 1)?,
            tenant: number(&self.tenant, "tenant", 0)? as u64,
            identity: self.identity()?,
            ready: self.ready,
            use_cache: self.use_cache,
            ..Request::new(Vec::new(), 0)
        })
    }

    fn identity(&self) -> Outcome<Identity> {
        let adapter = self.adapter.read(0, |value| arrays::count(value, "adapter"))? as u64;
        Ok(identity(&self.salt, &self.extra_keys)?.with_adapter(adapter))
    }

    /// The class key of a prompt of `len` tokens: the number given, or what the callable makes of the length.
    fn key(&self, len: usize) -> Outcome<Option<f64>> {
        let Some(key) = &self.key else { return Ok(None) };
        if !key.is_callable() {
            return real(key, "key").map(Some);
        }
        real(&key.call1((len,))?, "key").map(Some)
    }
}

/// A core's refusal of one of many, in the words of `add_many`: what all have in common has no index.
pub(crate) fn in_plural(error: Error) -> Error {
    match error {
        Error::Request(mut error) => {
            error.argument = match error.argument.split_once('[') {
                Some(("prompt", index)) => format!("prompts[{index}").into(),
                Some(("stop_token_ids", _)) => "stop_token_ids".into(),
                Some(("n", _)) => "n".into(),
                _ => error.argument,
            };
            Error::Request(error)
        }
        other => other,
    }
}

fn read_prompts(prompts: &Bound<'_, PyAny>) -> Outcome<Vec<Vec<i32>>> {
    if !is_row(prompts) {
        return Err(Failure::request("prompts", "is no list, tuple or array of prompts"));
    }
    let read = |(i, prompt): (usize, PyResult<Bound<'_, PyAny>>)| {
        let prompt = arrays::tokens(&prompt?, "prompts").map_err(|failure| indexed(failure, i))?.into_vec();
        Ok(prompt)
    };
    prompts.try_iter()?.enumerate().map(read).collect()
}

/// One value for all requests, or one for each.
enum Column<T> {
    All(T),
    Each(Vec<T>),
}

impl<T: Copy> Column<T> {
    fn at(&self, i: usize) -> T {
        match self {
            Self::All(value) => *value,
            Self::Each(values) => values[i],
        }
    }

    fn each(values: Vec<T>, argument: &str, len: usize) -> Outcome<Self> {
        if values.len() == len {
            return Ok(Self::Each(values));
        }
        Err(Failure::request(argument, format!("has {} items for {len} prompts", values.len())))
    }
}

fn counts(object: Option<&Bound<'_, PyAny>>, argument: &str, len: usize) -> Outcome<Column<usize>> {
    match object {
        None => Ok(Column::All(0)),
        Some(row) if is_row(row) => {
            let count = |(i, &value)| arrays::non_negative(value, argument).map_err(|failure| indexed(failure, i));
            let values = arrays::integers(row, argument)?;
            Column::each(values.iter().enumerate().map(count).collect::<Outcome<_>>()?, argument, len)
        }
        Some(value) => Ok(Column::All(arrays::count(value, argument)?)),
    }
}

fn integers(object: Option<&Bound<'_, PyAny>>, argument: &str, len: usize) -> Outcome<Column<i64>> {
    match object {
        None => Ok(Column::All(0)),
        Some(row) if is_row(row) => Column::each(arrays::integers(row, argument)?, argument, len),
        Some(value) => Ok(Column::All(arrays::integer(value, argument)?)),
    }
}

fn times(object: Option<&Bound<'_, PyAny>>, argument: &str, len: usize) -> Outcome<Column<Option<f64>>> {
    let time = |(i, item): (usize, PyResult<Bound<'_, PyAny>>)| {
        let item = item?;
        if item.is_none() { Ok(None) } else { real(&item, argument).map(Some).map_err(|failure| indexed(failure, i)) }
    };
    match object {
        None => Ok(Column::All(None)),
        Some(row) if is_row(row) => {
            Column::each(row.try_iter()?.enumerate().map(time).collect::<Outcome<_>>()?, argument, len)
        }
        Some(value) => Ok(Column::All(Some(arrays::real(value, argument)?))),
    }
}

/// Whether this is one value for each request: an array without dimensions is one number.
fn is_row(object: &Bound<'_, PyAny>) -> bool {
    let is_array = object.cast::<PyUntypedArray>().is_ok_and(|array| array.ndim() > 0);
    is_array
        || object.is_instance_of::<PyList>()
        || object.is_instance_of::<PyTuple>()
        || object.is_instance_of::<PyRange>()
}

fn real(object: &Bound<'_, PyAny>, argument: &str) -> Outcome<f64> {
    let real = if object.is_instance_of::<PyBool>() { None } else { object.extract().ok() };
    real.ok_or_else(|| Failure::request(argument, "is no number"))
}

/// The same failure, of item `i` of the argument.
fn indexed(failure: Failure, i: usize) -> Failure {
    match failure {
        Failure::Request { argument, message, limit, excess } => {
            Failure::Request { argument: format!("{argument}[{i}]"), message, limit, excess }
        }
        other => other,
    }
}
