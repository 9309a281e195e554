//! The scheduler, naively: requests, rows, plans and outcomes over a memory.
//!
//! Whatever can be worked out from the plans that are out is worked out anew each time: who is named, which rows are
//! free, how many tokens are still to be sampled. What would become of a preemption is tried on a copy of everything.
//!
//! | module | holds |
//! | --- | --- |
//! | `requests` | what calls between steps do to requests and their sequences |
//! | `order` | who comes before whom, who runs, waits, decodes |
//! | `step` | a step: its phases by batching, and who is placed |
//! | `room` | who loses its blocks, or waits for some |
//! | `admit` | who of the queue gets a row |
//! | `plan` | the arrays of a plan |
//! | `commit` | what comes back, and what never does |
//! | `check` | numbers, the picture, the model's own laws |

mod admit;
mod check;
mod commit;
mod order;
pub mod plan;
pub mod requests;
mod room;
mod step;

use octavo_core::{Batching, Policy, Reserve, Victim};

use super::census::Census;
use super::memory::Memory;
use super::names::Identity;
use super::pool::Pool;

#[derive(Clone, Debug)]
pub struct World {
    pub num_blocks: usize,
    pub block_size: usize,
    pub max_num_seqs: usize,
    pub max_num_batched_tokens: usize,
    pub max_model_len: usize,
    pub max_partial_prefills: usize,
    pub long_prefill_threshold: usize,
    pub watermark: f64,
    pub prefix_caching: bool,
    pub batching: Batching,
    pub policy: Policy,
    pub aging: f64,
    pub victim: Victim,
    pub reserve: Reserve,
    pub inflight_steps: usize,
    pub dedupe: bool,
    pub null_block: bool,
}

#[derive(Clone, Debug)]
pub struct Submitted {
    pub prompt: Vec<i32>,
    pub max_tokens: usize,
    pub min_tokens: usize,
    pub stop_token_ids: Vec<i32>,
    pub n: usize,
    pub arrival: Option<f64>,
    /// Extra keys as given, the adapter's among them.
    pub identity: Identity,
    pub use_cache: bool,
    pub priority: i64,
    pub deadline: Option<f64>,
    pub key: Option<f64>,
    pub ready: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Stop,
    Length,
    Capacity,
    Aborted,
    Finished,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelOutcome {
    pub seqs: Vec<usize>,
    pub indptr: Vec<i32>,
    pub tokens: Vec<i32>,
    pub finished: Vec<(usize, Ending)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub prefix_queries: usize,
    pub prefix_hits: usize,
    pub resumed_queries: usize,
    pub resumed_hits: usize,
    pub steps: usize,
    pub scheduled_tokens: usize,
    pub preemptions: usize,
    pub recomputed_tokens: usize,
    pub finished: usize,
}

/// A request: its sequences are numbers of `SchedulerModel::sequences`.
#[derive(Clone, Debug)]
struct Request {
    submitted: Submitted,
    arrival: Option<f64>,
    members: Vec<usize>,
    /// The member that stands for all of them until the fork.
    leader: usize,
    is_forked: bool,
    is_ready: bool,
}

#[derive(Clone, Debug)]
struct Sequence {
    request: usize,
    /// Prompt and accepted outputs.
    known: Vec<i32>,
    emitted: usize,
    min_tokens: usize,
    /// The length at which it ends.
    max_len: usize,
    computed: usize,
    /// Tokens placed in plans returned, at least those computed.
    scheduled: usize,
    high_water: usize,
    row: Option<usize>,
    /// Entries of its table that plans have listed.
    told: usize,
    /// Whether a plan has listed it as admitted, or the next one will.
    is_introduced: bool,
    /// What it knew when it was last put into the queue.
    queued_with: usize,
    end: Option<Ending>,
    is_stale: bool,
}

#[derive(Clone, Debug)]
struct End {
    seq: usize,
    ending: Ending,
    is_applied: bool,
    is_reported: bool,
    /// The sequence was extended since.
    is_revoked: bool,
}

#[derive(Clone, Debug)]
struct Placed {
    seq: usize,
    row: usize,
    start: usize,
    num_tokens: usize,
    is_decode: bool,
    /// Who samples behind its last token.
    samplers: Vec<usize>,
    /// The entry of its table that a copy replaced.
    copied: Option<usize>,
}

/// A plan that is out.
#[derive(Clone, Debug)]
struct Out {
    number: u64,
    step: u64,
    placed: Vec<Placed>,
}

impl Out {
    fn samplers(&self) -> impl Iterator<Item = usize> {
        self.placed.iter().flat_map(|placed| placed.samplers.iter().copied())
    }

    fn names(&self, seq: usize) -> bool {
        self.placed.iter().any(|placed| placed.seq == seq)
    }
}

#[derive(Clone, Debug)]
pub struct SchedulerModel {
    pub world: World,
    pub memory: Memory,
    requests: Vec<Request>,
    sequences: Vec<Sequence>,
    rows: Vec<Option<usize>>,
    /// Rows of members of the static batch that are done.
    padding: Vec<usize>,
    now: Option<f64>,
    ends: Vec<End>,
    /// Ends that took effect since the last plan was returned.
    ended: Vec<usize>,
    /// Sequences that began to run outside a step, and those that a cancelled plan preempted, since then.
    joined: Vec<usize>,
    stopped: Vec<usize>,
    /// Merges since the last plan was returned: sequence, index, block.
    merges: Vec<(usize, usize, i32)>,
    /// Oldest first.
    outs: Vec<Out>,
    plans: u64,
    pub block_tables: Vec<i32>,
    pub counters: Counters,
    /// How often the rarer turns were taken.
    pub turns: Census,
}

impl SchedulerModel {
    pub fn new(world: &World) -> Self {
        let pool = Pool::new(world.num_blocks, world.block_size);
        let pool = if world.null_block { pool.without_block_0() } else { pool };
        let mut model = Self {
            world: world.clone(),
            memory: Memory::new(pool, world.dedupe),
            requests: Vec::new(),
            sequences: Vec::new(),
            rows: vec![None; world.max_num_seqs],
            padding: Vec::new(),
            now: None,
            ends: Vec::new(),
            ended: Vec::new(),
            joined: Vec::new(),
            stopped: Vec::new(),
            merges: Vec::new(),
            outs: Vec::new(),
            plans: 0,
            block_tables: Vec::new(),
            counters: Counters::default(),
            turns: Census::default(),
        };
        model.block_tables = model.tables_now();
        model
    }

    pub fn table_width(&self) -> usize {
        self.world.max_model_len.div_ceil(self.world.block_size)
    }

    pub fn pool(&self) -> &Pool {
        &self.memory.pool
    }

    /// The request of a sequence.
    fn request_of(&self, seq: usize) -> &Request {
        &self.requests[self.sequences[seq].request]
    }

    fn uses_cache(&self, seq: usize) -> bool {
        self.world.prefix_caching && self.request_of(seq).submitted.use_cache
    }

    /// Members of a request that have not ended, in order.
    fn alive_members(&self, request: usize) -> Vec<usize> {
        let members = self.requests[request].members.iter().copied();
        members.filter(|&member| self.sequences[member].end.is_none()).collect()
    }

    /// Those that stand and fall with a sequence: the members alive of a request before its fork, otherwise itself.
    fn kin(&self, seq: usize) -> Vec<usize> {
        let request = self.sequences[seq].request;
        if self.requests[request].is_forked { vec![seq] } else { self.alive_members(request) }
    }

    /// Whether another member stands for it.
    fn is_follower(&self, seq: usize) -> bool {
        let request = self.request_of(seq);
        !request.is_forked && request.leader != seq
    }

    /// How many tokens of a sequence are still to come from plans out.
    fn pending(&self, seq: usize) -> usize {
        self.outs.iter().flat_map(Out::samplers).filter(|&sampler| sampler == seq).count()
    }

    fn expected(&self, seq: usize) -> usize {
        self.sequences[seq].known.len() + self.pending(seq)
    }

    fn is_named(&self, seq: usize) -> bool {
        self.outs.iter().any(|out| out.names(seq))
    }

    fn is_row_named(&self, row: usize) -> bool {
        self.outs.iter().any(|out| out.placed.iter().any(|placed| placed.row == row))
    }

    /// Rows without a sequence; those that a plan out still names are only coming.
    fn rows_without(&self, is_coming: bool) -> Vec<usize> {
        let is_vacant = |row: &usize| self.rows[*row].is_none() && !self.padding.contains(row);
        (0..self.rows.len()).filter(is_vacant).filter(|&row| self.is_row_named(row) == is_coming).collect()
    }
}
