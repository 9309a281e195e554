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

/// How a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// It has not.
    #[default]
    Unfinished,
    /// All of its tokens were emitted.
    Completed,
    /// Its prompt can never fit into the pool.
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
    /// Tokens run through the model.
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
}

impl Record {
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
