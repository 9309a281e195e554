//! What a run leaves behind: when each pass ended, and which passes gave each request a token.
//!
//! A sequence that decodes gets a token in every pass, so a request is a few runs of consecutive passes,
//! usually one, and not one number per token:
//!
//! ```text
//! pass end   0.03  0.07  0.10  0.15  0.19  0.22
//! request 0          [ run of 3 ]          [ run of 1 ]     preempted after its third token
//! request 1                [     run of 3     ]
//! ```

use crate::num::index;
use crate::workload::Workload;
use serde::Serialize;

/// How a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// It has not.
    #[default]
    Unfinished,
    /// All of its tokens were emitted.
    Completed,
    /// It can never fit into the pool: its prompt, or what `worst_case` reserves for it.
    Rejected,
    /// It outgrew the whole pool.
    Capacity,
}

impl Status {
    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unfinished => "unfinished",
            Self::Completed => "completed",
            Self::Rejected => "rejected",
            Self::Capacity => "capacity",
        }
    }
}

/// Consecutive passes that each gave one request one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmissionRun {
    /// The request's position in the trace.
    pub request: u32,
    /// The first of the passes.
    pub first: u32,
    /// How many.
    pub len: u32,
}

/// What is remembered of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RequestRecord {
    /// How it ended.
    pub status: Status,
    /// Tokens emitted.
    pub emitted: u32,
    /// How often it was preempted.
    pub preemptions: u32,
    /// Prompt tokens found in the prefix cache when it was first admitted.
    pub hit_tokens: u32,
    /// From its arrival to the start of the pass that admitted it, seconds.
    pub queue_s: f64,
    /// The passes up to its first token in which it had tokens, seconds.
    pub prefill_s: f64,
    /// How many passes those are.
    pub prefill_passes: u32,
    /// The pass that admitted it.
    pub admitted_pass: u32,
}

/// What a time to the first token is made of, seconds. [`Parts::sum`] is that time, to the bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Parts {
    /// From the arrival to the start of the pass that admitted it.
    pub queue: f64,
    /// The passes in which its prompt was computed.
    pub prefill: f64,
    /// What lies between them: passes without it, preemptions.
    pub stall: f64,
    /// Moves of KV cache between machines: none, with one.
    pub transfer: f64,
}

impl Parts {
    /// queue + prefill + stall + transfer, added in this order.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.queue + self.prefill + self.stall + self.transfer
    }

    /// These parts, with `prefill` moved by the rounding errors until the sum is `whole`.
    #[must_use]
    pub fn closed(mut self, whole: f64) -> Self {
        // Each round takes back what rounding left, which is some last digits; two suffice where any do.
        for _ in 0..4 {
            self.prefill += whole - self.sum();
        }
        self
    }
}

impl RequestRecord {
    /// The parts of the time to a first token that came after `ttft` seconds, in the pass `first`.
    #[must_use]
    pub fn parts(&self, ttft: f64, first: u32) -> Parts {
        let admitted = ttft - self.queue_s;
        // Who had tokens in every pass from its admission on never stalled.
        let is_unbroken = first - self.admitted_pass + 1 == self.prefill_passes;
        let stall = if is_unbroken { 0.0 } else { (admitted - self.prefill_s).max(0.0) };
        Parts { queue: self.queue_s, prefill: admitted - stall, stall, transfer: 0.0 }.closed(ttft)
    }
}

/// Sums over the passes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Decode slots that emitted a wanted token.
    pub useful_slot_steps: u64,
    /// Slots of finished members of a static batch.
    pub padded_slot_steps: u64,
    /// Slots without a decode, over the passes with at least one.
    pub idle_slot_steps: u64,
    /// Tokens run through the model, padding left out.
    pub scheduled_tokens: u64,
    /// Passes whose memory time was the longer one.
    pub memory_bound_passes: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Tokens computed again after a preemption.
    pub recomputed_tokens: u64,
    /// Tokens found in the prefix cache at first admissions.
    pub prefix_hit_tokens: u64,
    /// Tokens looked up at first admissions.
    pub prefix_query_tokens: u64,
    /// Σ held blocks · seconds of the pass.
    pub held_block_seconds: f64,
    /// Σ tokens whose KV is in held blocks · seconds of the pass.
    pub held_token_seconds: f64,
    /// The most blocks held in a pass.
    pub peak_held_blocks: u64,
    /// The blocks of the pool.
    pub usable_blocks: u64,
}

/// A whole run.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The end of each pass, seconds on the trace's clock.
    pub pass_ends: Vec<f64>,
    /// Emission runs; after [`Record::sort`] those of one request stand together, in time order.
    pub runs: Vec<EmissionRun>,
    /// One record per request, in trace order.
    pub requests: Vec<RequestRecord>,
    /// Sums over the passes.
    pub counters: Counters,
    /// When each request arrived, where that depends on the run (a closed loop); otherwise empty.
    pub released: Vec<f64>,
    /// Tokens of a block.
    pub block_size: u64,
}

impl Record {
    /// When a request arrived, seconds on the trace's clock.
    #[must_use]
    pub fn arrival(&self, request: u32, workload: &Workload) -> f64 {
        let arrivals = if self.released.is_empty() { workload.arrivals() } else { &self.released };
        arrivals[index(request)]
    }

    /// Brings the runs of each request together.
    ///
    /// # Complexity
    /// O(runs · log runs).
    pub fn sort(&mut self) {
        self.runs.sort_unstable_by_key(|run| (run.request, run.first));
    }

    /// The runs by request, for requests that emitted something; [`Record::sort`] must have run.
    pub fn runs_by_request(&self) -> impl Iterator<Item = (u32, &[EmissionRun])> {
        self.runs.chunk_by(|a, b| a.request == b.request).map(|runs| (runs[0].request, runs))
    }

    /// The times of a request's first and last token.
    #[must_use]
    pub fn span(&self, runs: &[EmissionRun]) -> Option<(f64, f64)> {
        let (first, last) = (runs.first()?, runs.last()?);
        let start = self.pass_ends.get(index(first.first))?;
        let end = self.pass_ends.get(index(last.first + last.len - 1))?;
        Some((*start, *end))
    }

    /// The times of all tokens of a request, in order.
    #[must_use]
    pub fn token_times(&self, request: u32) -> Vec<f64> {
        let own = self.runs.iter().filter(|run| run.request == request);
        let times = own.flat_map(|run| &self.pass_ends[index(run.first)..][..index(run.len)]);
        times.copied().collect()
    }
}
