//! The figures of a run, by the definitions that vLLM's benchmark uses.
//!
//! ```text
//! ttft       first token - arrival                       queue and preemptions included, never reset
//! tpot       (last - first) / (n - 1)                    per request with n ≥ 2 tokens
//! itl        every gap between two tokens of a request   pooled
//! max_gap    the longest of them                         per request with n ≥ 2 tokens
//! e2e        last token - arrival
//! makespan   last token - first arrival
//! steady     throughput without the first and last 10 % of completions
//! goodput    requests that met all promises / makespan   attainment: their share of every arrival
//! ```
//!
//! Statistics are over completed requests. A request with one token has no tpot: it is left out there and
//! passes the promise. KV use is blocks held / blocks of the pool, weighted by time over the makespan, idle
//! time counting as none; cached blocks that nobody holds do not count. The share of KV memory with tokens is Σ tokens in
//! held blocks / Σ slots of held blocks, weighted by time: what a reservation or the end of a last block leaves empty is
//! the rest. A shared block counts once.

use crate::distribution::Distribution;
use crate::num::{count, float, index};
use crate::record::{EmissionRun, Parts, Record, Status};
use crate::steady::Steady;
use crate::verdict::Verdict;
use crate::workload::Workload;
use serde::Serialize;

/// What a request must keep to be good: upper bounds in seconds, `None` where nothing is promised.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Promise {
    /// Time to the first token.
    pub ttft_s: Option<f64>,
    /// Time per further token.
    pub tpot_s: Option<f64>,
    /// Time to the last token.
    pub e2e_s: Option<f64>,
}

impl Promise {
    /// Whether anything is promised.
    #[must_use]
    pub const fn is_some(&self) -> bool {
        self.ttft_s.is_some() || self.tpot_s.is_some() || self.e2e_s.is_some()
    }

    fn is_kept(&self, ttft: f64, tpot: Option<f64>, e2e: f64) -> bool {
        let within = |bound: Option<f64>, value: f64| bound.is_none_or(|bound| value <= bound);
        within(self.ttft_s, ttft) && tpot.is_none_or(|tpot| within(self.tpot_s, tpot)) && within(self.e2e_s, e2e)
    }
}

/// Share of the pool's blocks in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct KvUsage {
    /// Over the makespan.
    pub mean: f64,
    /// In the fullest pass.
    pub peak: f64,
}

/// The figures of a run; the field order is that of the report.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Requests of the workload.
    pub requests: u64,
    /// Those that emitted all of their tokens.
    pub completed: u64,
    /// Those whose prompt can never fit.
    pub rejected: u64,
    /// Last token - first arrival, seconds.
    pub makespan_s: f64,
    /// Completed requests per second of the makespan.
    pub request_throughput: f64,
    /// Output tokens per second of the makespan.
    pub output_token_throughput: f64,
    /// Passes of the model.
    pub passes: u64,
    /// Decode slots that emitted a wanted token.
    pub useful_slot_steps: u64,
    /// Slots that a finished member of a static batch kept.
    pub padded_slot_steps: u64,
    /// Slots without a decode, in passes with at least one.
    pub idle_slot_steps: u64,
    /// useful / (useful + padded + idle); 0 without any.
    pub slot_utilization: f64,
    /// Preemptions.
    pub preemptions: u64,
    /// Tokens computed again after them.
    pub recomputed_tokens: u64,
    /// Tokens found in the prefix cache, at the first admission of each request.
    pub prefix_hit_tokens: u64,
    /// Tokens looked up there.
    pub prefix_query_tokens: u64,
    /// Blocks held / blocks of the pool.
    pub kv_usage: KvUsage,
    /// Tokens in held blocks / slots of held blocks; 0 where nothing was held.
    pub kv_token_share: f64,
    /// Passes whose memory time was the longer one / passes; the others are bound by arithmetic.
    pub memory_bound_share: f64,
    /// First token - arrival.
    pub ttft_s: Distribution,
    /// What its mean is made of; the parts add up to it, to the bit.
    pub ttft_parts_s: Parts,
    /// (last - first) / (n - 1).
    pub tpot_s: Distribution,
    /// Every gap between tokens.
    pub itl_s: Distribution,
    /// Last token - arrival.
    pub e2e_s: Distribution,
    /// The longest gap of each request.
    pub max_gap_s: Distribution,
    /// Requests per second that met all promises; `None` without a promise.
    pub goodput: Option<f64>,
    /// Their share of every arrival; `None` without a promise.
    pub attainment: Option<f64>,
    /// Throughput in the window without start and end; `None` for fewer than ten completions.
    pub steady: Option<Steady>,
    /// Stable, near capacity or overloaded; `None` where too few arrive to say ([`crate::verdict`]).
    pub verdict: Option<&'static str>,
}

/// Per-request values gathered on the way to a [`Summary`].
#[derive(Default)]
struct Gathered {
    ttft: Vec<f64>,
    parts: Parts,
    ends: Vec<f64>,
    tpot: Vec<f64>,
    e2e: Vec<f64>,
    max_gap: Vec<f64>,
    /// (gap, 1) between runs; those inside runs are added from the passes.
    gaps: Vec<(f64, u64)>,
    output_tokens: u64,
    last_token_s: f64,
    good: u64,
}

impl Summary {
    /// The figures of a sorted record.
    ///
    /// # Complexity
    /// O(output tokens) for the longest gaps, a linear read of pass lengths, and O(passes · log passes).
    #[must_use]
    pub fn of(workload: &Workload, record: &Record, promise: &Promise) -> Self {
        let lengths = pass_lengths(&record.pass_ends);
        let mut gathered = Gathered::default();
        for (request, runs) in record.runs_by_request() {
            let arrival = record.arrival(request, workload);
            gathered.add_request(record, runs, arrival, &lengths, promise);
        }
        let waited = waiting_for_pass(record, lengths.len());
        gathered.gaps.extend(lengths.iter().copied().zip(waited));
        let ended = |status| count(record.requests.iter().filter(|r| r.status == status).count());
        // In a closed loop the first ones arrive at 0, as the columns say for all.
        let first_arrival = workload.arrivals().iter().copied().reduce(f64::min);
        let makespan = first_arrival.map_or(0.0, |first| (gathered.last_token_s - first).max(0.0));
        let per_second = |value: u64| if makespan > 0.0 { float(value) / makespan } else { 0.0 };
        let counters = &record.counters;
        let useful = counters.useful_slot_steps;
        let slots = useful + counters.padded_slot_steps + counters.idle_slot_steps;
        let requests = count(workload.len());
        let ttft_s = Distribution::of(&gathered.ttft);
        let held_slot_seconds = counters.held_block_seconds * float(record.block_size);
        Self {
            requests,
            completed: ended(Status::Completed),
            rejected: ended(Status::Rejected),
            makespan_s: makespan,
            request_throughput: per_second(ended(Status::Completed)),
            output_token_throughput: per_second(gathered.output_tokens),
            passes: count(record.pass_ends.len()),
            useful_slot_steps: useful,
            padded_slot_steps: counters.padded_slot_steps,
            idle_slot_steps: counters.idle_slot_steps,
            slot_utilization: share(useful, slots),
            preemptions: counters.preemptions,
            recomputed_tokens: counters.recomputed_tokens,
            prefix_hit_tokens: counters.prefix_hit_tokens,
            prefix_query_tokens: counters.prefix_query_tokens,
            kv_usage: kv_usage(record, makespan),
            kv_token_share: if held_slot_seconds > 0.0 { counters.held_token_seconds / held_slot_seconds } else { 0.0 },
            memory_bound_share: share(counters.memory_bound_passes, count(record.pass_ends.len())),
            ttft_parts_s: gathered.mean_parts(ttft_s.mean),
            ttft_s,
            tpot_s: Distribution::of(&gathered.tpot),
            itl_s: Distribution::of_weighted(gathered.gaps),
            e2e_s: Distribution::of(&gathered.e2e),
            max_gap_s: Distribution::of(&gathered.max_gap),
            goodput: promise.is_some().then(|| per_second(gathered.good)),
            attainment: promise.is_some().then(|| share(gathered.good, requests)),
            steady: Steady::of(record, gathered.ends),
            verdict: Verdict::of(workload, record).map(Verdict::name),
        }
    }
}

impl Gathered {
    /// Adds a request that emitted something; only completed ones enter the statistics.
    fn add_request(&mut self, record: &Record, runs: &[EmissionRun], arrival: f64, lengths: &[f64], promise: &Promise) {
        let Some((first, last)) = record.span(runs) else { return };
        let request = &record.requests[index(runs[0].request)];
        self.output_tokens += u64::from(request.emitted);
        self.last_token_s = self.last_token_s.max(last);
        if request.status != Status::Completed {
            return;
        }
        let (ttft, e2e) = (first - arrival, last - arrival);
        let gaps = request.emitted - 1;
        let tpot = (gaps > 0).then(|| (last - first) / f64::from(gaps));
        let parts = request.parts(ttft, runs[0].first);
        self.parts.queue += parts.queue;
        self.parts.stall += parts.stall;
        self.parts.prefill += parts.prefill;
        self.ends.push(last);
        self.ttft.push(ttft);
        self.e2e.push(e2e);
        self.tpot.extend(tpot);
        if gaps > 0 {
            let longest = self.longest_gap(record, runs, lengths);
            self.max_gap.push(longest);
        }
        self.good += u64::from(promise.is_kept(ttft, tpot, e2e));
    }

    /// The mean of each part, closed to the mean that they make up.
    fn mean_parts(&self, ttft: Option<f64>) -> Parts {
        let Some(ttft) = ttft else { return Parts::default() };
        let n = float(count(self.ttft.len()));
        let Parts { queue, prefill, stall, transfer } = self.parts;
        Parts { queue: queue / n, prefill: prefill / n, stall: stall / n, transfer: transfer / n }.closed(ttft)
    }

    /// The longest gap of a request; gaps between its runs are pooled on the way.
    fn longest_gap(&mut self, record: &Record, runs: &[EmissionRun], lengths: &[f64]) -> f64 {
        let mut longest = 0.0_f64;
        for run in runs {
            let inside = &lengths[index(run.first) + 1..index(run.first + run.len)];
            longest = inside.iter().copied().fold(longest, f64::max);
        }
        for pair in runs.windows(2) {
            let before = record.pass_ends[index(pair[0].first + pair[0].len - 1)];
            let gap = record.pass_ends[index(pair[1].first)] - before;
            self.gaps.push((gap, 1));
            longest = longest.max(gap);
        }
        longest
    }
}

/// The time from the end of the pass before to the end of each pass; 0 for the first, which no gap uses.
fn pass_lengths(ends: &[f64]) -> Vec<f64> {
    let mut before = ends.first().copied().unwrap_or(0.0);
    ends.iter().map(|&end| end - std::mem::replace(&mut before, end)).collect()
}

/// How many completed requests had a token in each pass and in the one before it.
fn waiting_for_pass(record: &Record, passes: usize) -> Vec<u64> {
    let mut starts = vec![0_u64; passes + 1];
    let mut stops = vec![0_u64; passes + 1];
    for run in &record.runs {
        if record.requests[index(run.request)].status == Status::Completed {
            starts[index(run.first) + 1] += 1;
            stops[index(run.first + run.len)] += 1;
        }
    }
    let mut open = 0;
    let pairs = starts.iter().zip(&stops).take(passes);
    pairs
        .map(|(start, stop)| {
            open = open + start - stop;
            open
        })
        .collect()
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { float(part) / float(whole) }
}

fn kv_usage(record: &Record, makespan: f64) -> KvUsage {
    let counters = &record.counters;
    let usable = float(counters.usable_blocks);
    if usable <= 0.0 || makespan <= 0.0 {
        return KvUsage::default();
    }
    KvUsage { mean: counters.held_block_seconds / usable / makespan, peak: float(counters.peak_held_blocks) / usable }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "these floats are exact")]
mod tests {
    use super::{Promise, Summary};
    use crate::record::{EmissionRun, Record, RequestRecord, Status};
    use crate::workload::{Columns, Workload};

    fn run(request: u32, first: u32, len: u32) -> EmissionRun {
        EmissionRun { request, first, len }
    }

    /// Three requests over five passes that end at 1, 3, 4, 8, 9:
    ///
    /// ```text
    /// 0, arrives at 0.5: tokens at 1, 3, 4, and, after a preemption, 9
    /// 1, arrives at 0  : one token at 3
    /// 2, rejected
    /// ```
    fn world() -> Result<(Workload, Record), crate::WorkloadError> {
        let workload = Workload::new(Columns {
            arrival_s: vec![0.5, 0.0, 2.0],
            prompt_tokens: vec![10, 10, 10],
            output_tokens: vec![4, 1, 1],
            ..Columns::default()
        })?;
        let completed = RequestRecord { status: Status::Completed, ..RequestRecord::default() };
        let mut record = Record {
            pass_ends: vec![1.0, 3.0, 4.0, 8.0, 9.0],
            runs: vec![run(0, 4, 1), run(1, 1, 1), run(0, 0, 3)],
            requests: vec![
                RequestRecord { emitted: 4, ..completed },
                RequestRecord { emitted: 1, ..completed },
                RequestRecord { status: Status::Rejected, ..RequestRecord::default() },
            ],
            ..Record::default()
        };
        record.counters.usable_blocks = 10;
        record.counters.held_block_seconds = 45.0;
        record.counters.peak_held_blocks = 8;
        record.counters.useful_slot_steps = 3;
        record.counters.idle_slot_steps = 9;
        record.sort();
        Ok((workload, record))
    }

    #[test]
    fn test_figures_follow_their_definitions() -> Result<(), crate::WorkloadError> {
        let (workload, record) = world()?;
        assert_eq!(record.token_times(0), [1.0, 3.0, 4.0, 9.0]);
        let summary = Summary::of(&workload, &record, &Promise::default());
        assert_eq!((summary.requests, summary.completed, summary.rejected), (3, 2, 1));
        // From the first arrival at 0 to the last token at 9.
        assert_eq!(summary.makespan_s, 9.0);
        assert_eq!(summary.request_throughput, 2.0 / 9.0);
        assert_eq!(summary.output_token_throughput, 5.0 / 9.0);
        // First tokens: 1 - 0.5 and 3 - 0.
        let ttft = summary.ttft_s;
        assert_eq!((ttft.min, ttft.max, ttft.n), (Some(0.5), Some(3.0), 2));
        // (9 - 1) / 3; the request with one token has none.
        assert_eq!((summary.tpot_s.mean, summary.tpot_s.n), (Some(8.0 / 3.0), 1));
        // Gaps 2, 1, 5.
        let itl = summary.itl_s;
        assert_eq!((itl.min, itl.p50, itl.max, itl.n), (Some(1.0), Some(2.0), Some(5.0), 3));
        assert_eq!((summary.max_gap_s.max, summary.max_gap_s.n), (Some(5.0), 1));
        assert_eq!((summary.e2e_s.min, summary.e2e_s.max), (Some(3.0), Some(8.5)));
        assert_eq!(summary.slot_utilization, 0.25);
        // 45 block-seconds of 10 blocks over 9 seconds.
        assert_eq!((summary.kv_usage.mean, summary.kv_usage.peak), (0.5, 0.8));
        assert_eq!((summary.goodput, summary.attainment), (None, None));
        Ok(())
    }

    #[test]
    fn test_promise_counts_every_arrival() -> Result<(), crate::WorkloadError> {
        let (workload, record) = world()?;
        let of = |promise| {
            let summary = Summary::of(&workload, &record, &promise);
            (summary.goodput, summary.attainment)
        };
        // One token: passes any tpot. Bounds are inclusive. The rejected one counts as bad.
        let tpot = Promise { tpot_s: Some(2.0), ..Promise::default() };
        assert_eq!(of(tpot), (Some(1.0 / 9.0), Some(1.0 / 3.0)));
        let ttft = Promise { ttft_s: Some(3.0), ..Promise::default() };
        assert_eq!(of(ttft), (Some(2.0 / 9.0), Some(2.0 / 3.0)));
        let none = Promise { e2e_s: Some(0.1), ..Promise::default() };
        assert_eq!(of(none), (Some(0.0), Some(0.0)));
        Ok(())
    }

    #[test]
    fn test_nothing_to_do_has_figures_too() {
        let summary = Summary::of(&Workload::default(), &Record::default(), &Promise::default());
        assert_eq!((summary.requests, summary.makespan_s), (0, 0.0));
        assert_eq!(summary.ttft_s.n, 0);
    }
}
