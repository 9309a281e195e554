//! The pool: which blocks are blank, cached, held or fenced, and how they move between these.
//!
//! Keeps L1 (exactly one state), L2 (counts are true; a second release panics) and L7 (nothing is reused while a step
//! may still touch it). It does not know tokens, hashes or sequences.

use crate::error::ConfigError;
use crate::fence::Fences;
use crate::free::BlankStack;
use crate::ids::BlockId;
use crate::recency::Recency;
use crate::slot::{Released, Slots, State};

/// A block that was just given out, held once.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Taken {
    /// It was blank.
    Blank(BlockId),
    /// It was cached, and its publication must be withdrawn now (L4).
    Evicted(BlockId),
}

/// The most blocks that one call gives out.
const AT_ONCE: usize = 256;

/// All blocks of one memory.
#[derive(Debug)]
pub(crate) struct Pool {
    num_usable: usize,
    slots: Slots,
    blank: BlankStack,
    recency: Recency,
    fences: Fences,
    /// What the last call gave out at once.
    taken: Vec<BlockId>,
}

impl Pool {
    /// Blocks `first .. num_blocks` can be given out.
    pub(crate) fn new(first: usize, num_blocks: usize) -> Result<Self, ConfigError> {
        let parts = (Slots::with_room(num_blocks), BlankStack::new(first, num_blocks), Recency::with_room(num_blocks));
        let (Some(slots), Some(blank), Some(recency)) = parts else {
            return Err(ConfigError::new("num_blocks", num_blocks, "as many as this machine has memory to describe"));
        };
        Ok(Self { num_usable: num_blocks - first, slots, blank, recency, fences: Fences::default(), taken: Vec::new() })
    }

    /// Blocks that can be given out at all.
    pub(crate) const fn num_usable(&self) -> usize {
        self.num_usable
    }

    /// Blocks that could be given out now.
    #[inline]
    pub(crate) fn available(&self) -> usize {
        self.blank.len() + self.recency.evictable()
    }

    pub(crate) fn num_blank(&self) -> usize {
        self.blank.len()
    }

    pub(crate) fn num_cached(&self) -> usize {
        self.recency.len()
    }

    pub(crate) fn num_guarded(&self) -> usize {
        self.recency.guarded()
    }

    pub(crate) fn num_fenced(&self) -> usize {
        self.fences.num_waiting()
    }

    /// Blocks that somebody holds: what is in no other state.
    pub(crate) fn num_held(&self) -> usize {
        self.num_usable - self.blank.len() - self.recency.len() - self.fences.num_waiting()
    }

    pub(crate) const fn slots(&self) -> &Slots {
        &self.slots
    }

    pub(crate) const fn recency(&self) -> &Recency {
        &self.recency
    }

    pub(crate) const fn fences(&self) -> &Fences {
        &self.fences
    }

    pub(crate) const fn blank(&self) -> &BlankStack {
        &self.blank
    }

    #[inline]
    pub(crate) fn state(&self, block: BlockId) -> State {
        self.slots.state(block)
    }

    /// Gives out one block, a blank one before a cached one. The caller has seen that one is available. O(1).
    #[inline]
    pub(crate) fn take(&mut self) -> Taken {
        if let Some(block) = self.blank.pop() {
            self.slots.allocate(block);
            return Taken::Blank(block);
        }
        let Some(block) = self.recency.pop() else { unreachable!("a block was taken though none is available") };
        self.slots.evict(block);
        Taken::Evicted(block)
    }

    /// Gives out `count` blocks, or as many of them as it does at once, as [`take`](Self::take) does one after the other:
    /// the blank ones, then the evicted ones. The caller has seen that `count` are available. O(count).
    pub(crate) fn take_many(&mut self, count: usize) -> (&[BlockId], &[BlockId]) {
        let count = count.min(AT_ONCE);
        self.taken.clear();
        self.blank.pop_many(count, &mut self.taken);
        let num_blank = self.taken.len();
        self.recency.pop_many(count - num_blank, &mut self.taken);
        if self.taken.len() < count {
            unreachable!("{count} blocks were taken though {} are available", self.taken.len());
        }
        let (blank, evicted) = self.taken.split_at(num_blank);
        for &block in blank {
            self.slots.allocate(block);
        }
        for &block in evicted {
            self.slots.evict(block);
        }
        (blank, evicted)
    }

    /// Counts `block` once more, claiming it if it was cached. O(1).
    #[inline]
    pub(crate) fn retain(&mut self, block: BlockId) {
        if self.slots.retain(block) {
            self.recency.remove(block);
        }
    }

    /// Counts `block` once less. At zero a published block becomes the most recently used of the cached ones, an
    /// unpublished one is fenced by the newest open step, or blank. O(1).
    #[inline]
    pub(crate) fn release(&mut self, block: BlockId) -> Released {
        let released = self.slots.release(block);
        self.settle(block, released);
        released
    }

    /// Puts a released block where its state says.
    #[inline]
    fn settle(&mut self, block: BlockId, released: Released) {
        match released {
            Released::StillHeld => {}
            Released::ToCached => self.recency.push(block),
            Released::ToBlank => self.let_go(block, self.fences.newest()),
        }
    }

    /// Makes a block of no count and no publication blank, once `step` has ended if one may still touch it.
    #[inline]
    fn let_go(&mut self, block: BlockId, step: Option<u64>) {
        match step {
            Some(step) => {
                self.slots.fence(block);
                self.fences.wait_for(step, block);
            }
            None => self.blank.push(block),
        }
    }

    /// [`release`](Self::release) for each of `blocks`, last first. O(blocks).
    pub(crate) fn release_many(&mut self, blocks: &[BlockId]) {
        let newest = self.fences.newest();
        for &block in blocks.iter().rev() {
            match self.slots.release(block) {
                Released::ToBlank if newest.is_none() => self.blank.push(block),
                released => self.settle(block, released),
            }
        }
    }

    /// Releases the last count on a published block, which no step guards then. O(guarded).
    pub(crate) fn release_unguarded(&mut self, block: BlockId) {
        match self.slots.release(block) {
            Released::ToCached => self.recency.push_unguarded(block),
            released => unreachable!("block {} is cached and {released:?}", block.get()),
        }
    }

    pub(crate) fn publish(&mut self, block: BlockId) {
        self.slots.publish(block);
    }

    pub(crate) fn unpublish(&mut self, block: BlockId) {
        self.slots.unpublish(block);
    }

    /// As [`unpublish`](Self::unpublish), whoever else holds the block.
    pub(crate) fn withdraw(&mut self, block: BlockId) {
        self.slots.withdraw(block);
    }

    /// Makes a cached block the most recently used.
    pub(crate) fn renew(&mut self, block: BlockId) {
        self.recency.renew(block);
    }

    /// Makes a cached block that no step guards the most recently used of those.
    pub(crate) fn renew_unguarded(&mut self, block: BlockId) {
        self.recency.remove(block);
        self.recency.push_unguarded(block);
    }

    /// Whether a block could be evicted now.
    pub(crate) fn is_evictable(&self, block: BlockId) -> bool {
        self.state(block) == State::Cached && !self.recency.is_guarded(block)
    }

    /// Makes the least recently used cached block blank; `None` when there is none. No step may be open.
    pub(crate) fn forget_one(&mut self) -> Option<BlockId> {
        let block = self.recency.pop()?;
        self.slots.forget(block);
        self.blank.push(block);
        Some(block)
    }

    /// Makes a cached block blank, or fences it by the newest open step if one guards it. Its publication is withdrawn.
    pub(crate) fn discard(&mut self, block: BlockId) {
        let is_guarded = self.recency.is_guarded(block);
        self.recency.remove(block);
        self.slots.forget(block);
        self.let_go(block, self.fences.newest().filter(|_| is_guarded));
    }

    /// No block is findable any more: cached ones are blank, or fenced by the newest open step if one guards them.
    /// Returns those, first to go first. O(pool).
    pub(crate) fn unpublish_all(&mut self) -> Vec<BlockId> {
        for block in self.blank.parts().1.map(BlockId::new) {
            if matches!(self.slots.state(block), State::Held { published: true, .. }) {
                self.slots.withdraw(block);
            }
        }
        let evictable = self.recency.evictable();
        let cached = self.recency.drain();
        for (at, &block) in cached.iter().enumerate() {
            self.slots.forget(block);
            self.let_go(block, self.fences.newest().filter(|_| at >= evictable));
        }
        cached
    }

    pub(crate) fn begin_step(&mut self) -> u64 {
        let step = self.fences.begin();
        self.recency.open(step);
        step
    }

    /// Ends the oldest open step: what only it fenced is blank, what only it guarded can be evicted.
    pub(crate) fn end_step(&mut self, step: u64) {
        self.fences.end(step);
        self.recency.close(step);
        self.unfence_ended();
    }

    /// Closes the open steps from `first` on: what they fenced or guarded waits for the newest step before them, or for
    /// nothing.
    pub(crate) fn void_steps(&mut self, first: u64) {
        self.fences.void_from(first);
        self.recency.void_from(first);
        self.unfence_ended();
    }

    fn unfence_ended(&mut self) {
        while let Some(block) = self.fences.pop_ended() {
            self.slots.unfence(block);
            self.blank.push(block);
        }
    }

    /// Breaks L1, where the audit is tested.
    #[cfg(test)]
    pub(crate) fn push_blank(&mut self, block: BlockId) {
        self.blank.push(block);
    }

    /// Breaks L7, where the audit is tested.
    #[cfg(test)]
    pub(crate) fn forget_step(&mut self, step: u64) {
        self.fences.end(step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Pool {
        Pool::new(0, 600).unwrap_or_else(|error| unreachable!("{error}"))
    }

    fn take(pool: &mut Pool, count: usize, at_once: bool) -> (Vec<BlockId>, usize) {
        let (mut blocks, mut num_evicted) = (Vec::new(), 0);
        while blocks.len() < count {
            if at_once {
                let (blank, evicted) = pool.take_many(count - blocks.len());
                num_evicted += evicted.len();
                blocks.extend(blank.iter().chain(evicted));
            } else {
                let taken = pool.take();
                num_evicted += usize::from(matches!(taken, Taken::Evicted(_)));
                let (Taken::Blank(block) | Taken::Evicted(block)) = taken;
                blocks.push(block);
            }
        }
        (blocks, num_evicted)
    }

    fn release(pool: &mut Pool, blocks: &[BlockId], at_once: bool) {
        if at_once {
            return pool.release_many(blocks);
        }
        for &block in blocks.iter().rev() {
            pool.release(block);
        }
    }

    #[test]
    fn many_at_once_are_the_same_blocks_as_one_after_the_other() {
        let [mut single, mut many] = [(pool(), false), (pool(), true)].map(|(mut pool, at_once)| {
            let mut seen = Vec::new();
            for with_step in [false, true, false] {
                let step = with_step.then(|| pool.begin_step());
                let (blocks, num_evicted) = take(&mut pool, 500, at_once);
                for &block in blocks.iter().step_by(3) {
                    pool.publish(block);
                }
                pool.retain(blocks[0]);
                release(&mut pool, &blocks, at_once);
                seen.push((blocks.clone(), num_evicted, pool.num_fenced(), pool.num_guarded(), pool.num_blank()));
                pool.release(blocks[0]);
                if let Some(step) = step {
                    pool.end_step(step);
                }
            }
            assert!(seen[2].1 > 0 && seen[1].2 > 0 && seen[1].3 > 0);
            (pool, seen)
        });
        assert_eq!(single.1, many.1);
        let [single, many] = [take(&mut single.0, 600, false), take(&mut many.0, 600, true)];
        assert_eq!(single, many);
    }
}
