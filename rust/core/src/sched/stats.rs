//! Exact numbers about a scheduler.

/// What a scheduler counted, and what its state is, at one moment. The first fields are those of
/// [`CacheStats`](crate::CacheStats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields shared with CacheStats are documented there")]
pub struct SchedulerStats {
    pub num_blocks: u64,
    pub usable: u64,
    pub blank: u64,
    pub cached: u64,
    pub held: u64,
    pub fenced: u64,
    pub available: u64,
    pub guarded: u64,
    /// Tokens looked up by first admissions.
    pub prefix_queries: u64,
    /// Tokens of them that were found.
    pub prefix_hits: u64,
    pub published_blocks: u64,
    pub merged_blocks: u64,
    pub evicted_blocks: u64,
    pub copies: u64,
    pub hash_collisions: u64,
    /// Sequences in the queue.
    pub waiting: u64,
    /// Sequences in the batch that have not ended.
    pub running: u64,
    /// Requests whose handles are alive.
    pub requests: u64,
    /// Plans returned.
    pub steps: u64,
    /// Plans out.
    pub plans_out: u64,
    /// Tokens in committed plans.
    pub scheduled_tokens: u64,
    /// Times that a running sequence lost its blocks.
    pub preemptions: u64,
    /// Tokens computed again after that.
    pub recomputed_tokens: u64,
    /// Tokens looked up by admissions after a preemption.
    pub resumed_queries: u64,
    /// Tokens of them that were found.
    pub resumed_hits: u64,
    /// Sequences that ended.
    pub finished: u64,
}

/// What can not be derived from the state.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) prefix_queries: u64,
    pub(crate) prefix_hits: u64,
    pub(crate) resumed_queries: u64,
    pub(crate) resumed_hits: u64,
    pub(crate) plans: u64,
    pub(crate) scheduled_tokens: u64,
    pub(crate) preemptions: u64,
    pub(crate) recomputed_tokens: u64,
    pub(crate) finished: u64,
}
