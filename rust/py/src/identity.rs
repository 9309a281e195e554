//! Salt and extra keys in: malformed ones are refused by index, never weakened.

use octavo_core::{ExtraKey, Identity};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyList, PyString, PyTuple};

use crate::arrays::Given;
use crate::errors::{Failure, Outcome};

/// The identity that `salt` and `extra_keys` give to a prompt; left out, they are empty.
pub(crate) fn identity(salt: &Given<'_>, extra_keys: &Given<'_>) -> Outcome<Identity> {
    let salt = match salt {
        Given(Some(salt)) => salt.cast::<PyBytes>().map_err(|_| Failure::request("salt", "is no bytes"))?.as_bytes(),
        Given(None) => &[],
    };
    let Given(Some(extra_keys)) = extra_keys else {
        return Ok(Identity::new(salt, Vec::new()));
    };
    let is_list = extra_keys.is_instance_of::<PyTuple>() || extra_keys.is_instance_of::<PyList>();
    if !is_list {
        return Err(Failure::request("extra_keys", "is no tuple or list"));
    }
    let mut keys = Vec::new();
    for (i, item) in extra_keys.try_iter()?.enumerate() {
        let argument = format!("extra_keys[{i}]");
        keys.push(extra_key(&item?, &argument).map_err(|message| Failure::request(argument, message))?);
    }
    Ok(Identity::new(salt, keys))
}

fn extra_key(item: &Bound<'_, PyAny>, argument: &str) -> Result<ExtraKey, String> {
    let shape = || "is no tuple (start, end or None, kind, value)".to_owned();
    let parts = item.cast::<PyTuple>().map_err(|_| shape())?;
    let [start, end, kind, value] = parts.iter().collect::<Vec<_>>().try_into().map_err(|_| shape())?;
    let start = offset(&start, "start")?;
    let end = if end.is_none() { None } else { Some(offset(&end, "end")?) };
    let kind = kind.cast::<PyString>().map_err(|_| "has a kind that is no str")?;
    let kind = kind.to_str().map_err(|_| "has a kind that is no Unicode text")?;
    let value = value.cast::<PyBytes>().map_err(|_| "has a value that is no bytes")?;
    ExtraKey::new(start, end, kind, value.as_bytes()).map_err(|error| {
        debug_assert!(argument.starts_with(error.argument.as_ref()), "the core names the same argument");
        error.reason
    })
}

fn offset(object: &Bound<'_, PyAny>, name: &str) -> Result<u64, String> {
    let value = if object.is_instance_of::<PyBool>() { None } else { object.extract::<i64>().ok() };
    let value = value.and_then(|value| u64::try_from(value).ok());
    value.ok_or_else(|| format!("has a {name} that is no integer 0 ..= 2^63 - 1"))
}
