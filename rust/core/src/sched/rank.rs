//! The total order of requests (CONTRACT §3.4).

use std::cmp::Ordering;

/// A place in the order: class key and aging, then arrival, then order of `add`, then place in the request. Smaller goes first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rank {
    /// What "strictly better" compares.
    pub(crate) class: f64,
    /// The class, and what waiting adds to it.
    pub(crate) key: f64,
    /// Seconds on the caller's clock.
    pub(crate) arrival: f64,
    /// Counts the calls of `add`.
    pub(crate) order: u64,
    /// Which of its request's sequences it is.
    pub(crate) index: u32,
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = self.key.total_cmp(&other.key);
        let by_arrival = by_key.then(self.arrival.total_cmp(&other.arrival));
        by_arrival.then(self.order.cmp(&other.order)).then(self.index.cmp(&other.index))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Rank {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Rank {}
