//! Whether a run kept up with its traffic.
//!
//! Percentiles of an overloaded run only measure how long it was. So the second half of the arrivals' time, H seconds
//! in which A requests arrive and C end, is looked at on its own; the first half is left to the start. With b(t) the
//! requests that have arrived and not ended, sampled at 100 moments, and its slope by least squares:
//!
//! ```text
//! growth   = (slope · H - 2 √(mean b)) / A     the share of the half's requests that pile up, beyond chance:
//! deficit  = (A - C) / A                       a backlog that stays the same on average moves by about its root
//!
//! overloaded      both above 5 %
//! near capacity   both above 1 %
//! stable          otherwise
//! ```
//!
//! Fewer than 20 arrivals in that half, all of them at one moment, or a closed loop, which cannot be overloaded, have
//! no verdict. Rejected requests are no part of the traffic.

use crate::num::{count, float, index};
use crate::record::{Record, Status};
use crate::workload::Workload;

/// The samples of the backlog.
const SAMPLES: u32 = 100;
/// Fewer arrivals than this say nothing.
const FEWEST: u64 = 20;

/// Whether a run kept up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// What arrives is served.
    Stable,
    /// A little piles up.
    NearCapacity,
    /// Requests pile up as long as they arrive.
    Overloaded,
}

impl Verdict {
    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::NearCapacity => "near capacity",
            Self::Overloaded => "overloaded",
        }
    }

    /// The verdict on a sorted record.
    ///
    /// # Complexity
    /// O(requests · log requests).
    #[must_use]
    pub fn of(workload: &Workload, record: &Record) -> Option<Self> {
        if workload.concurrency().is_some() {
            return None;
        }
        let served = record.requests.iter().zip(workload.arrivals()).filter(|(r, _)| r.status != Status::Rejected);
        let mut arrivals: Vec<f64> = served.map(|(_, &arrival)| arrival).collect();
        let mut ends: Vec<f64> = record.runs_by_request().filter_map(|(_, runs)| Some(record.span(runs)?.1)).collect();
        arrivals.sort_unstable_by(f64::total_cmp);
        ends.sort_unstable_by(f64::total_cmp);
        Self::from_times(&arrivals, &ends)
    }

    fn from_times(arrivals: &[f64], ends: &[f64]) -> Option<Self> {
        let (&first, &last) = (arrivals.first()?, arrivals.last()?);
        let half = (last - first) / 2.0;
        let from = first + half;
        let until = |times: &[f64], moment: f64| count(times.partition_point(|&time| time <= moment));
        let arrived = until(arrivals, last) - until(arrivals, from);
        if arrived < FEWEST || half <= 0.0 {
            return None;
        }
        let ended = until(ends, last) - until(ends, from);
        let mut backlog = [0.0; SAMPLES as usize];
        for sample in 0..SAMPLES {
            let moment = from + (f64::from(sample) + 0.5) * (half / f64::from(SAMPLES));
            // An end that rounding puts before its arrival would be a defect of the clock, not a negative backlog.
            backlog[index(sample)] = float(until(arrivals, moment)) - float(until(ends, moment));
        }
        let (growth, mean) = line(&backlog);
        let growth = (growth - 2.0 * libm::sqrt(mean.max(0.0))) / float(arrived);
        let deficit = (float(arrived) - float(ended)) / float(arrived);
        Some(match growth.min(deficit) {
            both if both > 0.05 => Self::Overloaded,
            both if both > 0.01 => Self::NearCapacity,
            _ => Self::Stable,
        })
    }
}

/// The rise of the least-squares line over all samples, and their mean.
fn line(values: &[f64; SAMPLES as usize]) -> (f64, f64) {
    let middle = f64::from(SAMPLES - 1) / 2.0;
    let (mut along, mut square, mut sum) = (0.0, 0.0, 0.0);
    for (sample, value) in (0..SAMPLES).zip(values) {
        let distance = f64::from(sample) - middle;
        along += distance * value;
        square += distance * distance;
        sum += value;
    }
    (along / square * f64::from(SAMPLES), sum / f64::from(SAMPLES))
}

#[cfg(test)]
mod tests {
    use super::Verdict;

    /// Arrivals once a second for 1,000 s; one server that takes `service` seconds for each.
    fn verdict(service: f64) -> Option<Verdict> {
        let arrivals: Vec<f64> = (0..1_000).map(f64::from).collect();
        let mut free: f64 = 0.0;
        let ends: Vec<f64> = arrivals
            .iter()
            .map(|&arrival| {
                free = free.max(arrival) + service;
                free
            })
            .collect();
        Verdict::from_times(&arrivals, &ends)
    }

    #[test]
    fn test_verdict_follows_the_load() {
        assert_eq!(verdict(0.5), Some(Verdict::Stable));
        assert_eq!(verdict(0.99), Some(Verdict::Stable));
        // 1,000 / 1.06 end in 1,000 s: 5.7 % of what arrives piles up, 2 % of it within chance.
        assert_eq!(verdict(1.06), Some(Verdict::NearCapacity));
        assert_eq!(verdict(1.25), Some(Verdict::Overloaded));
    }

    #[test]
    fn test_a_long_answer_is_no_backlog() {
        // Everybody is served at once and takes 100 s: the backlog is 100 and stays there.
        let arrivals: Vec<f64> = (0..1_000).map(f64::from).collect();
        let ends: Vec<f64> = arrivals.iter().map(|arrival| arrival + 100.0).collect();
        assert_eq!(Verdict::from_times(&arrivals, &ends), Some(Verdict::Stable));
    }

    #[test]
    fn test_few_or_simultaneous_arrivals_have_no_verdict() {
        let times = [0.0, 1.0, 2.0];
        assert_eq!(Verdict::from_times(&times, &times), None);
        assert_eq!(Verdict::from_times(&[0.0; 100], &[1.0; 100]), None);
        assert_eq!(Verdict::from_times(&[], &[]), None);
    }
}
