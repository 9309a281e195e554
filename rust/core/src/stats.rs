//! Exact numbers about a cache.

use crate::cache::Cache;

/// Exact numbers about a [`KvCache`](crate::KvCache), derived from its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Blocks in the pool.
    pub num_blocks: u64,
    /// Blocks that can be given out at all.
    pub usable: u64,
    /// Blank blocks.
    pub blank: u64,
    /// Published blocks that nobody holds.
    pub cached: u64,
    /// Blocks that somebody holds.
    pub held: u64,
    /// Freed blocks that wait for a step in flight.
    pub fenced: u64,
    /// Blank and evictable blocks.
    pub available: u64,
    /// Cached blocks that wait for a step in flight.
    pub guarded: u64,
    /// Open sequences.
    pub sequences: u64,
    /// Steps in flight.
    pub open_steps: u64,
    /// Tokens that were looked up.
    pub prefix_queries: u64,
    /// Tokens of them that were found.
    pub prefix_hits: u64,
    /// Blocks made findable so far.
    pub published_blocks: u64,
    /// Blocks merged with an equal one so far.
    pub merged_blocks: u64,
    /// Cached blocks evicted for reuse so far.
    pub evicted_blocks: u64,
    /// Copies made so far.
    pub copies: u64,
    /// Candidates whose hash agreed and whose content did not; each was a miss.
    pub hash_collisions: u64,
}

impl CacheStats {
    /// What a cache alone knows.
    pub(crate) fn of(cache: &Cache) -> Self {
        let (pool, counters) = (cache.pool(), cache.counters());
        Self {
            num_blocks: cache.num_blocks() as u64,
            usable: pool.num_usable() as u64,
            blank: pool.num_blank() as u64,
            cached: pool.num_cached() as u64,
            held: pool.num_held() as u64,
            fenced: pool.num_fenced() as u64,
            available: pool.available() as u64,
            guarded: pool.num_guarded() as u64,
            published_blocks: counters.published,
            merged_blocks: counters.merged,
            evicted_blocks: counters.evicted,
            copies: cache.copies().num_made(),
            hash_collisions: counters.collisions,
            ..Self::default()
        }
    }
}
