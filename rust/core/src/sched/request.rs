//! What a caller asks for, and what the scheduler keeps of it.

use crate::config::{Limits, Policy, Reserve};
use crate::identity::Identity;
use crate::ids::{RequestId, SequenceId};
use crate::sched::outcome::Reason;
use crate::sched::rank::Rank;
use crate::sched::rows::small;
use crate::table::{Table, blocks_for};

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
    /// Sequences: they share the prompt, and fork when it is computed.
    pub n: usize,
    /// Smaller is more urgent; the class under `priority`.
    pub priority: i64,
    /// Seconds on the caller's clock; the class under `edf`.
    pub deadline: Option<f64>,
    /// Seconds on the caller's clock; the newest `now` by default.
    pub arrival: Option<f64>,
    /// Who asks; without effect so far.
    pub tenant: u64,
    /// Salt, extra keys and adapter.
    pub identity: Identity,
    /// A class key of the caller's, in place of the policy's.
    pub key: Option<f64>,
    /// `false` waits for [`set_ready`](crate::Scheduler::set_ready).
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
    /// Outside the queue, until `set_ready`.
    NotReady,
    /// In the batch, at this row.
    Running(u32),
    /// Behind the first living sequence of its request, which stands for all until they fork; with a row of its own while
    /// that one runs.
    Following(Option<u32>),
    /// Over. It keeps its row until the next step takes it.
    Ended { reason: Reason, row: Option<u32> },
}

/// A request that is alive.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) sequences: Box<[SequenceId]>,
    /// How many of them have living handles.
    pub(crate) num_alive: usize,
    /// Each of its sequences stands for itself.
    pub(crate) forked: bool,
    /// Before that, the place of the one that stands for all.
    pub(crate) leader: usize,
}

impl Limits {
    /// Where `sequence` stands in the order if it is queued now.
    pub(crate) fn rank(&self, sequence: &Sequence) -> Rank {
        let class = sequence.class.unwrap_or(count(sequence.tokens.len().max(sequence.prompt_len)));
        let Rank { arrival, order, index, .. } = sequence.rank;
        // No deadline at all is no nearer for having waited.
        let key = if class.is_finite() { class + self.aging * arrival } else { class };
        Rank { class, key, arrival, order, index }
    }

    /// The class of a request under the policy; `None` is the number of tokens left to prefill, whenever it is queued.
    pub(crate) fn class(&self, request: &Request) -> Option<f64> {
        let class = match self.policy {
            _ if request.key.is_some() => request.key,
            Policy::Priority => Some(signed(request.priority)),
            Policy::Edf => Some(request.deadline.unwrap_or(f64::INFINITY)),
            Policy::Sjf => None,
            Policy::Fcfs | Policy::Lpm | Policy::Fair => Some(0.0),
        };
        // Adding 0 makes the two zeros one.
        class.map(|class| class + 0.0)
    }

    /// The blocks that `sequence` owns from its admission on, whatever it knows.
    pub(crate) fn worst_blocks(&self, sequence: &Sequence, block_size: usize) -> usize {
        if self.is_worst_case() { blocks_for(sequence.max_len, block_size) } else { 0 }
    }

    pub(crate) fn is_worst_case(&self) -> bool {
        self.reserve == Reserve::WorstCase
    }
}

#[allow(clippy::cast_precision_loss, reason = "lengths far below 2^53")]
const fn count(tokens: usize) -> f64 {
    tokens as f64
}

#[allow(clippy::cast_precision_loss, reason = "checked to be within 2^53 when the request was added")]
const fn signed(priority: i64) -> f64 {
    priority as f64
}

/// One token stream, and everything about it that a steady step does not touch.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "four independent facts, none of them a state")]
pub(crate) struct Sequence {
    /// Prompt and outputs; none as long as another one stands for it.
    pub(crate) tokens: Vec<i32>,
    pub(crate) table: Table,
    /// The chained hashes of the full blocks of `tokens`, as far as they were needed.
    pub(crate) chain: Vec<u64>,
    pub(crate) status: Status,
    pub(crate) request: RequestId,
    pub(crate) rank: Rank,
    /// The class, unless the policy computes it anew whenever the sequence is queued.
    pub(crate) class: Option<f64>,
    /// Whether `rank.arrival` waits for the first step.
    pub(crate) undated: bool,
    pub(crate) prompt_len: usize,
    /// Ends with `length` when it knows this many tokens.
    pub(crate) max_len: usize,
    pub(crate) min_tokens: usize,
    /// In order.
    pub(crate) stop_token_ids: Box<[i32]>,
    pub(crate) identity: Identity,
    pub(crate) use_cache: bool,
    pub(crate) was_admitted: bool,
    /// Its end took effect.
    pub(crate) released: bool,
    /// How often its request was extended.
    pub(crate) turn: u32,
    /// The most tokens that were computed before it lost its blocks.
    pub(crate) high_water: usize,
    /// Plans out that name it, while it does not run.
    pub(crate) in_plans: u8,
}

impl Sequence {
    pub(crate) const fn has_ended(&self) -> bool {
        matches!(self.status, Status::Ended { .. })
    }

    /// Whether `token`, the newest, ends it.
    pub(crate) fn is_stop(&self, token: i32) -> bool {
        self.tokens.len() - self.prompt_len >= self.min_tokens && self.stop_token_ids.binary_search(&token).is_ok()
    }
}

/// Up to which length a sequence that has computed so many tokens needs no closer look at each token that is accepted.
pub(crate) fn quiet_until(sequence: &Sequence, computed: usize) -> u32 {
    let is_quiet = sequence.stop_token_ids.is_empty() && sequence.high_water <= computed;
    if is_quiet { small(sequence.max_len) } else { 0 }
}

/// Outputs that a sequence has memory for when it is admitted, so that a steady step allocates nothing.
const OUTPUT_ROOM: usize = 1_024;

pub(crate) fn make_room(sequence: &mut Sequence, block_size: usize, max_model_len: usize) {
    let tokens = sequence.max_len.min(sequence.tokens.len() + OUTPUT_ROOM).min(max_model_len);
    let blocks = blocks_for(tokens, block_size);
    sequence.tokens.reserve_exact(tokens.saturating_sub(sequence.tokens.len()));
    sequence.chain.reserve_exact(blocks.saturating_sub(sequence.chain.len()));
    sequence.table.make_room(blocks);
}
