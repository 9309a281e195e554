//! What a caller asks for, and what the scheduler keeps of it.

use crate::identity::Identity;
use crate::ids::{RequestId, SequenceId};
use crate::sched::outcome::Reason;
use crate::sched::rank::Rank;
use crate::table::Table;

/// A prompt, its limits, and its place in the order (CONTRACT §3.1).
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids, at least one.
    pub prompt: Vec<i32>,
    /// The most tokens to sample; 0 computes and publishes the prompt.
    pub max_tokens: usize,
    /// A stop counts from this output on.
    pub min_tokens: usize,
    /// Tokens that end the output; they belong to it.
    pub stop_token_ids: Vec<i32>,
    /// Sequences; more than one comes later.
    pub n: usize,
    /// Smaller is more urgent; without effect under `fcfs`.
    pub priority: i64,
    /// Seconds on the caller's clock; without effect under `fcfs`.
    pub deadline: Option<f64>,
    /// Seconds on the caller's clock; the newest `now` by default.
    pub arrival: Option<f64>,
    /// Who asks; without effect under `fcfs`.
    pub tenant: u64,
    /// Salt, extra keys and adapter.
    pub identity: Identity,
    /// *Later*: a class key of the caller's.
    pub key: Option<f64>,
    /// *Later*: `false` waits for `set_ready`.
    pub ready: bool,
    /// `false` takes no hits and publishes nothing.
    pub use_cache: bool,
}

impl Request {
    /// A request with the defaults.
    #[must_use]
    pub fn new(prompt: Vec<i32>, max_tokens: usize) -> Self {
        Self {
            prompt,
            max_tokens,
            min_tokens: 0,
            stop_token_ids: Vec::new(),
            n: 1,
            priority: 0,
            deadline: None,
            arrival: None,
            tenant: 0,
            identity: Identity::default(),
            key: None,
            ready: true,
            use_cache: true,
        }
    }
}

/// Where a sequence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// In the queue: never admitted, or preempted.
    Waiting,
    /// In the batch, at this row.
    Running(u32),
    /// Over. It keeps its row until the next step takes it.
    Ended { reason: Reason, row: Option<u32> },
}

/// A request that is alive.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) sequences: Vec<SequenceId>,
}

/// One token stream, and everything about it that a steady step does not touch.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "four independent facts, none of them a state")]
pub(crate) struct Sequence {
    /// Prompt and outputs.
    pub(crate) tokens: Vec<i32>,
    pub(crate) table: Table,
    /// The chained hashes of the full blocks of `tokens`, as far as they were needed.
    pub(crate) chain: Vec<u64>,
    pub(crate) status: Status,
    pub(crate) request: RequestId,
    pub(crate) rank: Rank,
    /// Whether `rank.arrival` waits for the first step.
    pub(crate) undated: bool,
    pub(crate) prompt_len: usize,
    /// Ends with `length` when it knows this many tokens.
    pub(crate) max_len: usize,
    pub(crate) min_tokens: usize,
    /// In order.
    pub(crate) stop_token_ids: Box<[i32]>,
    pub(crate) samples: bool,
    pub(crate) identity: Identity,
    pub(crate) use_cache: bool,
    pub(crate) was_admitted: bool,
    /// The most tokens that were ever computed.
    pub(crate) high_water: usize,
}
