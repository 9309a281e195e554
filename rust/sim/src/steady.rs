//! Throughput without the start and the end of a run.

use crate::num::{count, float, index};
use crate::record::Record;
use serde::Serialize;

/// The window that begins when the first 10 % of the completions are over and ends before the last 10 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Steady {
    /// When it begins, seconds on the trace's clock.
    pub from_s: f64,
    /// When it ends.
    pub to_s: f64,
    /// Completions per second.
    pub request_throughput: f64,
    /// Output tokens per second, of whatever request.
    pub output_token_throughput: f64,
}

impl Steady {
    /// Of a record, whose completions were at `ends`; `None` where fewer than ten leave no window.
    ///
    /// # Complexity
    /// O(runs + completions · log completions).
    #[must_use]
    pub fn of(record: &Record, mut ends: Vec<f64>) -> Option<Self> {
        ends.sort_unstable_by(f64::total_cmp);
        let skipped = ends.len() / 10;
        let from_s = *ends.get(skipped.checked_sub(1)?)?;
        let to_s = ends[ends.len() - 1 - skipped];
        let seconds = to_s - from_s;
        if seconds <= 0.0 {
            return None;
        }
        // What ends at the very beginning belongs to the time before.
        let inside = |times: &[f64]| {
            let until = |moment: f64| times.partition_point(|&time| time <= moment);
            until(from_s)..until(to_s)
        };
        let passes = inside(&record.pass_ends);
        let tokens: usize = record
            .runs
            .iter()
            .map(|run| {
                let (first, end) = (index(run.first), index(run.first) + index(run.len));
                end.min(passes.end).saturating_sub(first.max(passes.start))
            })
            .sum();
        Some(Self {
            from_s,
            to_s,
            request_throughput: float(count(inside(&ends).len())) / seconds,
            output_token_throughput: float(count(tokens)) / seconds,
        })
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "these floats are exact")]
mod tests {
    use super::Steady;
    use crate::record::{EmissionRun, Record};

    #[test]
    fn test_first_and_last_tenth_are_left_out() {
        // Pass i ends at i + 1, and request i has tokens in passes i and i + 1: it completes at i + 2.
        let record = Record {
            pass_ends: (1..=21).map(f64::from).collect(),
            runs: (0..20).map(|request| EmissionRun { request, first: request, len: 2 }).collect(),
            ..Record::default()
        };
        let ends: Vec<f64> = (2..=21).map(f64::from).collect();
        // Two of twenty are left out at each end: from 3 to 19, in which 16 complete, two tokens a second.
        let steady = Steady { from_s: 3.0, to_s: 19.0, request_throughput: 1.0, output_token_throughput: 2.0 };
        assert_eq!(Steady::of(&record, ends), Some(steady));
        assert_eq!(Steady::of(&record, vec![1.0; 9]), None);
        assert_eq!(Steady::of(&record, vec![1.0; 100]), None);
    }
}
