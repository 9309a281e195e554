//! How often each kind of thing happened in a machine's runs: a machine that never meets a case proves nothing of it.

use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Debug, Default)]
pub struct Census {
    counts: BTreeMap<String, u64>,
}

impl Census {
    pub fn add(&mut self, what: &str, times: usize) {
        *self.counts.entry(what.to_owned()).or_insert(0) += times as u64;
    }

    /// Counts a call under the name of its variant.
    pub fn add_call(&mut self, call: &impl fmt::Debug) {
        let text = format!("{call:?}");
        let name = text.split([' ', '(', '{']).next().unwrap_or_default().to_owned();
        self.add(&format!("call {name}"), 1);
    }

    pub fn absorb(&mut self, other: &Self) {
        for (what, times) in &other.counts {
            *self.counts.entry(what.clone()).or_insert(0) += times;
        }
    }
}

impl fmt::Display for Census {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts.iter().try_for_each(|(what, times)| writeln!(formatter, "| {what} | {times} |"))
    }
}
