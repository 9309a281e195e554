//! The cache: pool, prefix index and copies composed, and the only thing that changes a table.
//!
//! Every operation here leaves the laws L1 to L7 true. What can run short is asked beforehand
//! ([`Cache::available`]); the operations themselves can not fail. The cache does not know sequences, only their
//! tables.

use std::collections::BTreeMap;

use crate::config::Geometry;
use crate::copies::{self, CopyLedger, CopyOp};
use crate::error::{ConfigError, StateError};
use crate::hash::ChainHasher;
use crate::identity::Identity;
use crate::ids::BlockId;
use crate::pool::{Pool, Taken};
use crate::prefix::{Hits, Link, Parent, Prefix};
use crate::slot::{Released, State};
use crate::table::{Dropped, Table};

/// Whether there was room. Running out of blocks is an outcome, not an error.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// There was, and it is given.
    Granted,
    /// There was not, and nothing changed.
    Short {
        /// Blocks that the call needed.
        needed: usize,
        /// Blocks that were available.
        available: usize,
    },
}

/// What must happen to a table's last, partly filled block before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Nothing: it is this table's alone, and not findable.
    Writable,
    /// Nobody else holds it and nothing hangs below it: it stops being findable.
    Unpublish,
    /// It is shared or findable: its first tokens are copied, from here.
    Copy(BlockId),
}

/// How earlier copies of the same call change the counts of blocks, before any of them is made.
#[derive(Debug, Default)]
pub(crate) struct Pending(BTreeMap<BlockId, Shift>);

#[derive(Clone, Copy, Debug, Default)]
struct Shift {
    gained: u32,
    lost: u32,
    gained_copies: u32,
    longest: usize,
}

impl Pending {
    /// A table will have its own copy of the first `num_tokens` slots of `block`, read from `src`.
    pub(crate) fn copy(&mut self, block: BlockId, src: BlockId, num_tokens: usize) {
        self.0.entry(block).or_default().lost += 1;
        let source = self.0.entry(src).or_default();
        source.gained += 1;
        source.gained_copies += 1;
        source.longest = source.longest.max(num_tokens);
    }

    fn of(&self, block: BlockId) -> Shift {
        self.0.get(&block).copied().unwrap_or_default()
    }
}

/// What the cache did so far; everything else is derived from its state.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) published: u64,
    pub(crate) merged: u64,
    pub(crate) evicted: u64,
    pub(crate) collisions: u64,
}

/// Blocks, their contents' identities, and the copies that are owed.
#[derive(Debug)]
pub(crate) struct Cache {
    geometry: Geometry,
    pool: Pool,
    prefix: Prefix,
    copies: CopyLedger,
    counters: Counters,
}

impl Cache {
    pub(crate) fn new(geometry: Geometry) -> Result<Self, ConfigError> {
        let Geometry { num_blocks, block_size, .. } = geometry;
        let pool = Pool::new(geometry.first_block, num_blocks)?;
        let hasher = ChainHasher::new(geometry.hash_seed, geometry.hash_bits);
        let findable = if geometry.caching { num_blocks } else { 0 };
        let Some(prefix) = Prefix::new(findable, block_size, hasher) else {
            return Err(ConfigError::new("num_blocks", num_blocks, "as many as this machine has memory to describe"));
        };
        Ok(Self { geometry, pool, prefix, copies: CopyLedger::default(), counters: Counters::default() })
    }

    #[inline]
    pub(crate) const fn block_size(&self) -> usize {
        self.geometry.block_size
    }

    pub(crate) const fn num_blocks(&self) -> usize {
        self.geometry.num_blocks
    }

    /// Blocks that can be given out at all.
    pub(crate) const fn usable(&self) -> usize {
        self.pool.num_usable()
    }

    /// Whether full blocks are published at all.
    pub(crate) const fn is_caching(&self) -> bool {
        self.geometry.caching
    }

    #[inline]
    pub(crate) fn available(&self) -> usize {
        self.pool.available()
    }

    /// Free blocks that a step in flight may still touch.
    pub(crate) fn coming(&self) -> usize {
        self.pool.num_fenced() + self.pool.num_guarded()
    }

    pub(crate) const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// To break laws on purpose, where the audit is tested.
    #[cfg(test)]
    pub(crate) const fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    pub(crate) const fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    pub(crate) const fn copies(&self) -> &CopyLedger {
        &self.copies
    }

    pub(crate) const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How many of `blocks` nobody holds: claiming them takes as many from what is available or coming.
    pub(crate) fn num_unheld(&self, blocks: &[BlockId]) -> usize {
        blocks.iter().filter(|&&block| self.pool.state(block) == State::Cached).count()
    }

    /// How many of `blocks` could be evicted: claiming them takes as many from what is available.
    pub(crate) fn num_evictable(&self, blocks: &[BlockId]) -> usize {
        blocks.iter().filter(|&&block| self.pool.is_evictable(block)).count()
    }

    /// The most blocks that a prompt of `len` tokens may hit: one token is left to compute.
    pub(crate) const fn hit_limit(&self, len: usize) -> usize {
        len.saturating_sub(1) / self.block_size()
    }

    /// Finds the longest hit of at most `limit` blocks, none when nothing is published; `chain` is completed first. Changes
    /// nothing else.
    pub(crate) fn look_up(
        &self,
        chain: &mut Vec<u64>,
        tokens: &[i32],
        identity: &Identity,
        limit: usize,
        hits: &mut Hits,
    ) {
        let limit = if self.is_caching() { limit } else { 0 };
        self.prefix.extend_chain(chain, &tokens[..limit * self.block_size()], identity);
        self.prefix.look_up(chain, tokens, identity, limit, hits);
    }

    /// Adds the hit to an empty table, first to last.
    pub(crate) fn adopt(&mut self, table: &mut Table, hits: &Hits) {
        for &block in &hits.blocks {
            self.pool.retain(block);
            table.push(block);
        }
        self.counters.collisions += hits.collisions;
    }

    /// Adds `count` new blocks, which the caller knows to be available.
    pub(crate) fn grow(&mut self, table: &mut Table, count: usize) {
        if count == 1 || !self.copies.is_settled() {
            // Evicting the target of a copy that is owed makes its source cached.
            for _ in 0..count {
                let block = self.take();
                table.push(block);
            }
            return;
        }
        if count > table.len() {
            table.make_room(table.len() + count);
        }
        let len = table.len() + count;
        while table.len() < len {
            let (blank, evicted) = self.pool.take_many(len - table.len());
            self.prefix.remove_many(evicted);
            self.counters.evicted += evicted.len() as u64;
            blank.iter().chain(evicted).for_each(|&block| table.push(block));
        }
    }

    /// Drops the entries from `keep` on, last first, each with its twin.
    pub(crate) fn shrink(&mut self, table: &mut Table, keep: usize) {
        if self.copies.is_settled() && table.twins().is_empty() {
            self.pool.release_many(&table.blocks()[keep.min(table.len())..]);
            table.truncate(keep);
            return;
        }
        while table.len() > keep {
            let Some(Dropped { block, twin }) = table.pop() else { unreachable!("a table that long has a last entry") };
            self.release(block);
            if let Some(twin) = twin {
                self.release(twin);
            }
        }
    }

    /// Lets all twins of a table go, last first. What is findable below them by way of the table is so no more (L6).
    /// O(pool).
    pub(crate) fn abandon_twins(&mut self, table: &mut Table) {
        if let Some(&(first, _)) = table.twins().first() {
            for &block in &table.blocks()[first + 1..] {
                if matches!(self.pool.state(block), State::Held { published: true, .. }) {
                    self.withdraw(block);
                }
            }
        }
        self.drop_twins(table, 0);
    }

    /// Makes a held block and every findable block below it unfindable, children first. Cached ones are blank then, or fenced
    /// by the newest open step if one guards them, first to go first. O(pool).
    fn withdraw(&mut self, block: BlockId) {
        let is_findable = |&block: &BlockId| self.pool.state(block).is_findable();
        let findable = self.pool.blank().parts().1.map(BlockId::new).filter(is_findable);
        let mut children = BTreeMap::<BlockId, Vec<BlockId>>::new();
        for child in findable {
            if let Some(parent) = self.prefix.parent(child) {
                children.entry(parent).or_default().push(child);
            }
        }
        let (mut open, mut found) = (vec![block], Vec::new());
        while let Some(block) = open.pop() {
            open.extend(children.get(&block).into_iter().flatten());
            found.push(block);
        }
        for &block in found.iter().rev() {
            self.prefix.remove(block);
        }
        found.sort_unstable();
        let is_below = |block: &BlockId| found.binary_search(block).is_ok();
        let cached: Vec<BlockId> = self.pool.recency().iter().filter(is_below).collect();
        for &block in &found {
            if self.pool.state(block) != State::Cached {
                self.pool.withdraw(block);
            }
        }
        for block in cached {
            self.pool.discard(block);
            if let Some(src) = self.copies.drop_target(block) {
                self.release_source(src);
            }
        }
    }

    /// Lets the twins of the entries from `from` on go, last first.
    pub(crate) fn drop_twins(&mut self, table: &mut Table, from: usize) {
        while let Some(twin) = table.pop_twin(from) {
            self.release(twin);
        }
    }

    /// A second table of the same blocks.
    pub(crate) fn share(&mut self, table: &Table) -> Table {
        for block in table.held() {
            self.pool.retain(block);
        }
        table.clone()
    }

    /// What it takes to write into `block` behind its first `num_tokens` tokens, after what `pending` says happens
    /// before. O(log copies).
    pub(crate) fn tail(&self, block: BlockId, num_tokens: usize, pending: &Pending) -> Result<Tail, StateError> {
        let State::Held { count, published } = self.pool.state(block) else {
            unreachable!("a table names block {}, which is not held", block.get())
        };
        let (copies, longest) = self.copies.owed_from(block);
        let shift = pending.of(block);
        let (count, copies, longest) =
            (count + shift.gained - shift.lost, copies + shift.gained_copies, longest.max(shift.longest));
        if !published && count - copies == 1 && longest <= num_tokens {
            return Ok(Tail::Writable);
        }
        if published && count == 1 && !self.prefix.has_children(block) {
            return Ok(Tail::Unpublish);
        }
        match self.copies.owed_to(block) {
            None => Ok(Tail::Copy(block)),
            Some(owed) if owed.num_tokens >= num_tokens => Ok(Tail::Copy(owed.src)),
            Some(_) => Err(StateError::new(
                "the block to be copied is itself the target of a copy that was not taken yet: call take_ops first",
            )),
        }
    }

    /// Makes entry `index`, of which `num_tokens` slots are filled, writable as `tail` says. A copy needs one
    /// available block.
    pub(crate) fn make_writable(&mut self, table: &mut Table, index: usize, num_tokens: usize, tail: Tail) {
        let block = table.blocks()[index];
        match tail {
            Tail::Writable => {}
            Tail::Unpublish => {
                self.prefix.remove(block);
                self.pool.unpublish(block);
            }
            Tail::Copy(src) => {
                // The table's count on the block becomes the copy's, unless the copy reads from elsewhere.
                let dst = self.take();
                self.copies.record(CopyOp { src, dst, num_tokens }, self.pool.fences().newest());
                table.replace(index, dst);
                if src != block {
                    self.pool.retain(src);
                    self.release(block);
                }
            }
        }
    }

    /// Publishes entry `index`, which `link` now fills. An equal block that is findable already takes its place in the
    /// table, or is held beside it as its twin. All entries before it were published. True when the table names the
    /// other block now.
    pub(crate) fn publish(&mut self, table: &mut Table, index: usize, link: Link<'_>, identity: &Identity) -> bool {
        let own = table.blocks()[index];
        let before = index.checked_sub(1).map(|before| table.canonical(before));
        let parent = before.map(Parent::Block).or_else(|| self.prefix.root(identity));
        let twin = parent.and_then(|parent| self.prefix.twin(parent, link, &mut self.counters.collisions));
        if let Some(twin) = twin {
            self.pool.retain(twin);
            if !self.geometry.dedupe {
                table.push_twin(index, twin);
                return false;
            }
            table.replace(index, twin);
            self.release(own);
            self.counters.merged += 1;
            return true;
        }
        self.pool.publish(own);
        self.prefix.insert(own, before, link, identity);
        self.counters.published += 1;
        false
    }

    /// The copies decided since the last call, in order; they are to run before the next forward pass.
    pub(crate) fn take_copies(&mut self) -> Vec<CopyOp> {
        let fences = self.pool.fences();
        let newest = fences.newest();
        let taken = self.copies.take(|step| step.filter(|&step| fences.is_open(step)).or(newest));
        self.settle_taken(taken)
    }

    /// As [`take_copies`](Self::take_copies), where all of them run in the newest open step.
    pub(crate) fn take_copies_for_newest(&mut self) -> Vec<CopyOp> {
        if self.copies.is_settled() {
            return Vec::new();
        }
        let newest = self.pool.fences().newest();
        let taken = self.copies.take(|_| newest);
        self.settle_taken(taken)
    }

    fn settle_taken(&mut self, taken: copies::Taken) -> Vec<CopyOp> {
        for src in taken.held {
            self.renew_ancestors(src);
        }
        self.release_sources(taken.free);
        taken.ops
    }

    pub(crate) fn begin_step(&mut self) -> u64 {
        self.pool.begin_step()
    }

    /// Ends the oldest open step.
    pub(crate) fn end_step(&mut self, step: u64) {
        self.pool.end_step(step);
        let ended = self.copies.end(step);
        self.release_sources(ended);
    }

    /// The open steps from `first` on never run: what waits for them waits for the newest before them, or for nothing.
    pub(crate) fn void_steps(&mut self, first: u64) {
        self.pool.void_steps(first);
        let ended = self.copies.end_from(first);
        self.release_sources(ended);
    }

    /// Forgets every published block; false, and nothing changes, while anything is held, fenced or in flight.
    pub(crate) fn clear(&mut self) -> bool {
        let idle = self.pool.num_held() == 0 && self.pool.num_fenced() == 0 && self.pool.fences().num_open() == 0;
        if idle {
            while let Some(block) = self.pool.forget_one() {
                self.prefix.remove(block);
            }
        }
        idle
    }

    /// Makes every block unfindable; those that are held stay held. O(pool).
    pub(crate) fn new_epoch(&mut self) {
        self.prefix.forget_all();
        for block in self.pool.unpublish_all() {
            if let Some(src) = self.copies.drop_target(block) {
                self.release_source(src);
            }
        }
    }

    #[inline]
    fn take(&mut self) -> BlockId {
        match self.pool.take() {
            Taken::Blank(block) => block,
            Taken::Evicted(block) => {
                self.prefix.remove(block);
                self.counters.evicted += 1;
                if let Some(src) = self.copies.drop_target(block) {
                    self.release_source_of_evicted(src);
                }
                block
            }
        }
    }

    #[inline]
    fn release(&mut self, block: BlockId) {
        if self.pool.release(block) == Released::ToBlank
            && let Some(src) = self.copies.drop_target(block)
        {
            self.release_source(src);
        }
    }

    fn release_sources(&mut self, sources: Vec<BlockId>) {
        for src in sources {
            self.release_source(src);
        }
    }

    /// Releases the source of a copy. The tables that led to it may be gone before it, so its ancestors that are
    /// cached already are renewed behind it: a child must be evicted before its parent (L6).
    fn release_source(&mut self, src: BlockId) {
        if self.pool.release(src) == Released::ToCached {
            self.renew_ancestors(src);
        }
    }

    /// Releases the source of a copy whose cached target was just evicted. A caller that takes several blocks counted
    /// the source's evictable ancestors as available: they are renewed, but stay evictable, and so does the source. No
    /// step that is open reads it unless it reads its parent too.
    fn release_source_of_evicted(&mut self, src: BlockId) {
        let is_last = matches!(self.pool.state(src), State::Held { count: 1, published: true });
        let parent = if is_last { self.prefix.parent(src) } else { None };
        if !parent.is_some_and(|parent| self.pool.is_evictable(parent)) {
            return self.release_source(src);
        }
        self.pool.release_unguarded(src);
        let mut at = parent;
        while let Some(ancestor) = at.filter(|&ancestor| self.pool.is_evictable(ancestor)) {
            self.pool.renew_unguarded(ancestor);
            at = self.prefix.parent(ancestor);
        }
    }

    /// Makes the cached ancestors of a published block the most recent, nearest first, up to the first that is held.
    fn renew_ancestors(&mut self, block: BlockId) {
        let mut at = if self.pool.state(block).is_findable() { self.prefix.parent(block) } else { None };
        while let Some(ancestor) = at.filter(|&ancestor| self.pool.state(ancestor) == State::Cached) {
            self.pool.renew(ancestor);
            at = self.prefix.parent(ancestor);
        }
    }
}
