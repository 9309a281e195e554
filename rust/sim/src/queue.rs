//! The front door: requests that have arrived and that the scheduler has not been given yet.
//!
//! The scheduler would hold a waiting request with its whole prompt. An hour of overload is millions of
//! prompt tokens that nothing looks at, so requests wait here as numbers, and prompts are made when a step
//! could admit them.

use crate::num::index;
use crate::workload::Workload;
use std::borrow::Cow;

/// How eagerly waiting requests are handed to the scheduler. Both give the same run, number for number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Feeding {
    /// Only as many as the next step could admit.
    #[default]
    Lazy,
    /// All that have arrived, as an engine would.
    Eager,
}

impl Feeding {
    /// How many requests should wait inside the scheduler before a step that begins with `free_rows` rows.
    ///
    /// Under first come, first served, `free_rows + 2` cannot be told from all of them:
    ///
    /// - Whatever waits in here has a later (arrival, position) than all that was ever handed over, a
    ///   preempted sequence included, so it stands behind them in either case.
    /// - A step admits from the head and at most one request a free row. A row that a preemption frees comes
    ///   with the preempted sequence itself, which stands ahead. Only an end for lack of capacity frees a row
    ///   and brings nobody, and only the one sequence that could fill the whole pool can end so in a step:
    ///   that is one request more.
    /// - One prompt's share of a step is capped "while others wait": two waiting ones are as good as all.
    #[must_use]
    pub const fn wanted(self, free_rows: usize) -> usize {
        match self {
            Self::Lazy => free_rows + 2,
            Self::Eager => usize::MAX,
        }
    }
}

/// Requests in the order of (arrival, position in the trace).
///
/// In a closed loop the first ones are there at 0, and each end lets one more arrive in that moment: arrivals are then
/// results, and kept here.
#[derive(Debug)]
pub struct Queue<'a> {
    arrivals: Cow<'a, [f64]>,
    order: Vec<u32>,
    handed: usize,
    /// How many may arrive so far.
    released: usize,
}

impl<'a> Queue<'a> {
    /// All requests of a workload.
    ///
    /// # Complexity
    /// O(requests), O(requests · log requests) where the trace is not in order of arrival.
    #[must_use]
    pub fn new(workload: &'a Workload) -> Self {
        let order = workload.queue_order();
        let (arrivals, released) = match workload.concurrency() {
            None => (Cow::Borrowed(workload.arrivals()), order.len()),
            Some(concurrency) => (Cow::Owned(vec![0.0; order.len()]), index(concurrency).min(order.len())),
        };
        Self { arrivals, order, handed: 0, released }
    }

    /// When a request arrived.
    #[must_use]
    pub fn arrival(&self, request: u32) -> f64 {
        self.arrivals[index(request)]
    }

    /// When the next request arrives, or arrived.
    #[must_use]
    pub fn next_arrival(&self) -> Option<f64> {
        let next = self.order.get(self.handed).filter(|_| self.handed < self.released);
        next.map(|&request| self.arrivals[index(request)])
    }

    /// Takes the next request if it has arrived by `now`.
    pub fn take(&mut self, now: f64) -> Option<u32> {
        if self.next_arrival()? > now {
            return None;
        }
        let request = self.order[self.handed];
        self.handed += 1;
        Some(request)
    }

    /// A request has ended: in a closed loop another one arrives now.
    pub fn release(&mut self, now: f64) {
        if let Some(&request) = self.order.get(self.released) {
            self.arrivals.to_mut()[index(request)] = now;
            self.released += 1;
        }
    }

    /// When each request arrived, where that is a result; otherwise empty.
    #[must_use]
    pub fn into_released(self) -> Vec<f64> {
        match self.arrivals {
            Cow::Borrowed(_) => Vec::new(),
            Cow::Owned(arrivals) => arrivals,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Feeding, Queue};
    use crate::workload::{Columns, Workload};

    #[test]
    fn test_queue_gives_what_has_arrived_in_order() -> Result<(), crate::WorkloadError> {
        let workload = Workload::new(Columns {
            arrival_s: vec![2.0, 1.0, 1.0],
            prompt_tokens: vec![1; 3],
            output_tokens: vec![1; 3],
            ..Columns::default()
        })?;
        let mut queue = Queue::new(&workload);
        assert_eq!((queue.take(0.9), queue.next_arrival()), (None, Some(1.0)));
        // Exactly on time is on time.
        assert_eq!([queue.take(1.0), queue.take(1.0), queue.take(1.0)], [Some(1), Some(2), None]);
        assert_eq!((queue.take(2.0), queue.next_arrival()), (Some(0), None));
        Ok(())
    }

    #[test]
    fn test_lazy_feeding_wants_two_more_than_the_free_rows() {
        assert_eq!((Feeding::Lazy.wanted(3), Feeding::Eager.wanted(3)), (5, usize::MAX));
    }
}
