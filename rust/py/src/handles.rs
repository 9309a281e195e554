//! Handles in: Python ints to the core's typed ids. What is no int is a `TypeError`; what is no handle says so.

use octavo_core::{Handle, PinId, RequestId, SequenceId};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::arrays;
use crate::errors::{Failure, Outcome};

/// The sequence that `object` names.
pub(crate) fn sequence(object: &Bound<'_, PyAny>) -> Outcome<SequenceId> {
    read(object, SequenceId::from_raw)
}

/// The request that `object` names.
pub(crate) fn request(object: &Bound<'_, PyAny>) -> Outcome<RequestId> {
    read(object, RequestId::from_raw)
}

/// The pin that `object` names.
pub(crate) fn pin(object: &Bound<'_, PyAny>) -> Outcome<PinId> {
    read(object, PinId::from_raw)
}

/// The request or sequence that `object` names.
pub(crate) fn either(object: &Bound<'_, PyAny>) -> Outcome<Handle> {
    read(object, Handle::from_raw)
}

/// The sequences that an array or a list names, in its order.
pub(crate) fn sequences(object: &Bound<'_, PyAny>) -> Outcome<Vec<SequenceId>> {
    let raw = arrays::integers(object, "seqs")?;
    let known =
        |&handle| SequenceId::from_raw(handle).ok_or(Failure::Core(octavo_core::Error::UnknownHandle { handle }));
    raw.iter().map(known).collect()
}

fn read<T>(object: &Bound<'_, PyAny>, from_raw: impl Fn(i64) -> Option<T>) -> Outcome<T> {
    let unknown = || Failure::UnknownHandle(object.clone().unbind());
    match object.extract::<i64>() {
        Ok(raw) => from_raw(raw).ok_or_else(unknown),
        Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => Err(unknown()),
        Err(error) => Err(error.into()),
    }
}
