//! The model's values in the core's types, and the core's errors in the model's.

use octavo_core::{BlockId, Error, ExtraKey};

use super::cache::Fault;
use super::names::{Identity, Span};

pub fn extra_keys(spans: &[Span]) -> Vec<ExtraKey> {
    spans
        .iter()
        .map(|span| {
            let end = span.end.map(|end| end as u64);
            ExtraKey::new(span.start as u64, end, &span.kind, &span.value).expect("well formed")
        })
        .collect()
}

pub fn identity(identity: &Identity) -> octavo_core::Identity {
    octavo_core::Identity::new(&identity.salt, extra_keys(&identity.spans))
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

pub fn ids(blocks: &[BlockId]) -> Vec<i32> {
    blocks.iter().map(|block| block.get()).collect()
}
