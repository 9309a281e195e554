//! The model's values in the core's types, and the core's errors in the model's.

use octavo_core::{Error, ExtraKey};

use super::cache::Fault;
use super::names::{Identity, Span};
use super::scheduler::Ending;

pub fn extra_keys(spans: &[Span]) -> Vec<ExtraKey> {
    spans
        .iter()
        .map(|span| ExtraKey {
            start: span.start as u64,
            end: span.end.map(|end| end as u64),
            kind: span.kind.clone(),
            value: span.value.clone(),
        })
        .collect()
}

pub fn identity(identity: &Identity) -> octavo_core::Identity {
    octavo_core::Identity::new(&identity.salt, extra_keys(&identity.spans)).expect("well formed")
}

pub fn fault(error: &Error) -> Fault {
    match error {
        Error::Config(_) => Fault::Config,
        Error::Request(_) => Fault::Request,
        Error::UnknownHandle { .. } => Fault::Unknown,
        Error::StaleHandle { .. } => Fault::Stale,
        Error::State(_) => Fault::State,
    }
}

pub fn ending(reason: octavo_core::Reason) -> Option<Ending> {
    match reason {
        octavo_core::Reason::Stop => Some(Ending::Stop),
        octavo_core::Reason::Length => Some(Ending::Length),
        octavo_core::Reason::Capacity => Some(Ending::Capacity),
        octavo_core::Reason::Aborted => Some(Ending::Aborted),
        octavo_core::Reason::Finished => Some(Ending::Finished),
        octavo_core::Reason::Rejected => None,
    }
}
