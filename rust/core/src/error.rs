//! What a call may refuse, one type for each area, and the sum of them that public calls return.
//!
//! Running out of blocks is not here: it is an outcome ([`Room`](crate::Room)), not a failure. A corrupt state is
//! not here either: it panics, or [`audit`](crate::KvCache::audit) reports it with the number of the broken law.

use std::borrow::Cow;

use thiserror::Error;

/// A field of a configuration is outside its range.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field} = {value} is not accepted: {range}")]
pub struct ConfigError {
    /// The field, by its public name.
    pub field: &'static str,
    /// The value that was given.
    pub value: String,
    /// What would have been accepted.
    pub range: String,
}

impl ConfigError {
    /// An error for `field`, which may be `range`.
    pub fn new(field: &'static str, value: impl std::fmt::Display, range: impl Into<String>) -> Self {
        Self { field, value: value.to_string(), range: range.into() }
    }
}

/// An argument of a call can not be accepted, whatever the state.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{argument}: {reason}")]
pub struct RequestError {
    /// The argument, by its public name, with an index where it is one of several.
    pub argument: Cow<'static, str>,
    /// What is wrong with it.
    pub reason: String,
    /// The limit that was passed, where there is one.
    pub limit: Option<f64>,
    /// By how much it was passed.
    pub excess: Option<f64>,
}

impl RequestError {
    /// An error that has no number to it.
    pub fn new(argument: impl Into<Cow<'static, str>>, reason: impl Into<String>) -> Self {
        Self { argument: argument.into(), reason: reason.into(), limit: None, excess: None }
    }

    /// The argument passes `limit` by `excess`.
    pub fn beyond(argument: impl Into<Cow<'static, str>>, reason: impl Into<String>, limit: f64, excess: f64) -> Self {
        Self { argument: argument.into(), reason: reason.into(), limit: Some(limit), excess: Some(excess) }
    }
}

/// The call is well formed but does not fit the state it meets, or (from an audit) a law is broken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct StateError {
    /// What does not fit.
    pub message: String,
    /// The number of the broken law, from an audit.
    pub law: Option<u8>,
}

impl StateError {
    /// A call that does not fit the state.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), law: None }
    }

    /// Law `number` is broken.
    pub fn law(number: u8, message: impl std::fmt::Display) -> Self {
        Self { message: format!("law L{number} is broken: {message}"), law: Some(number) }
    }
}

/// Everything that a public call may refuse. A call that returns an error changed nothing (law L12).
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Error {
    /// A configuration is outside its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An argument can not be accepted.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The handle was never given out, or is of another kind.
    #[error("handle {handle} was never given out by this object, or is of another kind")]
    UnknownHandle {
        /// The handle, as it was given.
        handle: i64,
    },
    /// The handle's tenant is gone.
    #[error("handle {handle} is stale: what it named has ended and was released")]
    StaleHandle {
        /// The handle, as it was given.
        handle: i64,
    },
    /// The call does not fit the state.
    #[error(transparent)]
    State(#[from] StateError),
}
