//! The order of cached blocks: least recently used first.
//!
//! ```text
//!   front ─▶ [ b7 | gone | b2 | b9 | gone | b4 ] ◀─ back      a block keeps its position; who is claimed
//!                              ▲ guard of step 12               leaves a gap, and gaps are closed now and then
//! ```
//!
//! A step in flight guards every block that was cached since it opened: such a block stays findable, but it is not
//! evicted before that step has ended (law L7). Since steps end oldest first, one watermark a step is enough.
//! The queue does not know what a block holds; that children stand before their parents is the caller's premise (L6).

use std::collections::VecDeque;

use crate::ids::BlockId;

#[derive(Debug)]
struct Guard {
    step: u64,
    /// The first position that the step guards.
    from: u64,
    /// Blocks that it guards now.
    live: usize,
}

/// The cached blocks in order, with O(1) append, claim and eviction (amortised over the gaps).
#[derive(Debug, Default)]
pub(crate) struct Recency {
    entries: VecDeque<Option<BlockId>>,
    /// The position of the first entry; positions only grow until the gaps are closed.
    head: u64,
    /// Each block's position, its low 32 bits: the queue is shorter than that.
    positions: Vec<u32>,
    live: usize,
    guards: VecDeque<Guard>,
}

impl Recency {
    /// Room for `num_blocks`, not yet touched; `None` when the machine refuses it.
    pub(crate) fn with_room(num_blocks: usize) -> Option<Self> {
        let (mut entries, mut positions) = (VecDeque::new(), Vec::new());
        positions.try_reserve_exact(num_blocks).ok()?;
        entries.try_reserve_exact(longest(num_blocks) + 1).ok()?;
        Some(Self { entries, positions, ..Self::default() })
    }

    /// How many blocks are cached.
    pub(crate) const fn len(&self) -> usize {
        self.live
    }

    /// How many of them no open step guards.
    #[inline]
    pub(crate) fn evictable(&self) -> usize {
        self.live - self.guarded()
    }

    /// How many of them an open step guards.
    #[inline]
    pub(crate) fn guarded(&self) -> usize {
        self.guards.iter().map(|guard| guard.live).sum()
    }

    /// Appends a block that became cached.
    #[inline]
    pub(crate) fn push(&mut self, block: BlockId) {
        if self.entries.len() > longest(self.live) {
            self.close_gaps();
        }
        self.make_place(block);
        self.positions[block.index()] = low(self.head + self.entries.len() as u64);
        self.entries.push_back(Some(block));
        self.live += 1;
        if let Some(guard) = self.guards.back_mut() {
            guard.live += 1;
        }
    }

    #[inline]
    fn make_place(&mut self, block: BlockId) {
        if block.index() >= self.positions.len() {
            self.extend_to(block.index());
        }
    }

    /// Puts a block behind those that no step guards, and before those that one does. O(guarded).
    pub(crate) fn push_unguarded(&mut self, block: BlockId) {
        let Some(first) = self.guards.front() else { return self.push(block) };
        let offset = usize::try_from(first.from.max(self.head) - self.head).unwrap_or(usize::MAX);
        self.make_place(block);
        self.entries.insert(offset, Some(block));
        for (entry, position) in self.entries.range(offset..).zip(self.head + offset as u64..) {
            if let Some(moved) = entry {
                self.positions[moved.index()] = low(position);
            }
        }
        for guard in &mut self.guards {
            guard.from = guard.from.max(self.head) + 1;
        }
        self.live += 1;
    }

    /// Whether an open step guards a cached block. O(1).
    pub(crate) fn is_guarded(&self, block: BlockId) -> bool {
        let position = self.head + self.offset_of(block) as u64;
        self.guards.front().is_some_and(|guard| guard.from <= position)
    }

    /// Takes out a block that is claimed.
    pub(crate) fn remove(&mut self, block: BlockId) {
        let offset = self.offset_of(block);
        if self.entries[offset].take() != Some(block) {
            unreachable!("block {} is not where its position says", block.get());
        }
        self.live -= 1;
        let position = self.head + offset as u64;
        if let Some(guard) = self.guards.iter_mut().rev().find(|guard| guard.from <= position) {
            guard.live -= 1;
        }
        self.drop_leading_gaps();
    }

    /// Moves a cached block to the back.
    pub(crate) fn renew(&mut self, block: BlockId) {
        self.remove(block);
        self.push(block);
    }

    /// Takes the least recently used block that no step guards.
    pub(crate) fn pop(&mut self) -> Option<BlockId> {
        if self.evictable() == 0 {
            return None;
        }
        let block = self.entries.pop_front().flatten();
        self.head += 1;
        self.live -= 1;
        self.drop_leading_gaps();
        block
    }

    /// Takes `count` blocks, in the order of [`pop`](Self::pop), to the end of `taken`; fewer when no more can go.
    pub(crate) fn pop_many(&mut self, count: usize, taken: &mut Vec<BlockId>) {
        let count = count.min(self.evictable());
        self.live -= count;
        let until = taken.len() + count;
        while taken.len() < until {
            taken.extend(self.entries.pop_front().flatten());
            self.head += 1;
        }
        self.drop_leading_gaps();
    }

    /// Takes out all blocks, guarded ones too, first to go first.
    pub(crate) fn drain(&mut self) -> Vec<BlockId> {
        let blocks = self.iter().collect();
        self.head += self.entries.len() as u64;
        self.entries.clear();
        self.live = 0;
        for guard in &mut self.guards {
            guard.live = 0;
        }
        blocks
    }

    /// Opens the guard of `step`, which is newer than all that are open.
    pub(crate) fn open(&mut self, step: u64) {
        let from = self.head + self.entries.len() as u64;
        self.guards.push_back(Guard { step, from, live: 0 });
    }

    /// Ends the guard of `step`, the oldest open one.
    pub(crate) fn close(&mut self, step: u64) {
        let oldest = self.guards.pop_front().map(|guard| guard.step);
        if oldest != Some(step) {
            unreachable!("step {step} is not the oldest that guards");
        }
    }

    /// Drops the guards of the steps from `first` on; what they guarded and an older step guards too stays guarded.
    pub(crate) fn void_from(&mut self, first: u64) {
        let kept = self.guards.partition_point(|guard| guard.step < first);
        let live: usize = self.guards.drain(kept..).map(|guard| guard.live).sum();
        if let Some(older) = self.guards.back_mut() {
            older.live += live;
        }
    }

    /// The cached blocks, first to go first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockId> {
        self.entries.iter().copied().flatten()
    }

    #[inline]
    fn offset_of(&self, block: BlockId) -> usize {
        self.positions[block.index()].wrapping_sub(low(self.head)) as usize
    }

    /// Keeps the premise of `pop`: a non-empty queue begins with a block.
    #[inline]
    fn drop_leading_gaps(&mut self) {
        while matches!(self.entries.front(), Some(None)) {
            self.entries.pop_front();
            self.head += 1;
        }
    }

    #[cold]
    fn extend_to(&mut self, index: usize) {
        self.positions.resize(index + 1, 0);
    }

    /// O(length), at most once in as many changes as there were gaps.
    #[cold]
    fn close_gaps(&mut self) {
        let (mut kept, mut guard) = (0, 0);
        for old in 0..self.entries.len() {
            while self.guards.get(guard).is_some_and(|guard| guard.from <= self.head + old as u64) {
                self.guards[guard].from = self.head + kept as u64;
                guard += 1;
            }
            if let Some(block) = self.entries[old] {
                self.entries[kept] = Some(block);
                self.positions[block.index()] = low(self.head + kept as u64);
                kept += 1;
            }
        }
        for guard in self.guards.range_mut(guard..) {
            guard.from = self.head + kept as u64;
        }
        self.entries.truncate(kept);
    }
}

/// How long the queue of `live` blocks may become, gaps included.
const fn longest(live: usize) -> usize {
    live + live / 2 + 64
}

/// The low half of a position.
#[allow(clippy::cast_possible_truncation, reason = "the low half is what is wanted")]
const fn low(position: u64) -> u32 {
    position as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(index: usize) -> BlockId {
        BlockId::new(index)
    }

    fn order(recency: &Recency) -> Vec<i32> {
        recency.iter().map(BlockId::get).collect()
    }

    #[test]
    fn order_survives_claims_and_closed_gaps() {
        let mut recency = Recency::default();
        let mut model: Vec<usize> = Vec::new();
        let mut state = 1_u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let index = (state >> 40) as usize % 100;
            if let Some(place) = model.iter().position(|&other| other == index) {
                model.remove(place);
                recency.remove(block(index));
            } else if state >> 63 == 0 || model.is_empty() {
                model.push(index);
                recency.push(block(index));
            } else {
                let mut taken = Vec::new();
                recency.pop_many(1 + index % 3, &mut taken);
                assert_eq!(taken, model.drain(..model.len().min(1 + index % 3)).map(block).collect::<Vec<_>>());
            }
            assert_eq!(recency.len(), model.len());
        }
        assert_eq!(order(&recency), model.iter().map(|&index| block(index).get()).collect::<Vec<_>>());
    }

    #[test]
    fn unguarded_block_goes_before_the_guarded_ones() {
        let mut recency = Recency::default();
        recency.push(block(4));
        recency.remove(block(4));
        recency.push(block(0));
        recency.open(1);
        recency.push(block(1));
        recency.push_unguarded(block(4));
        assert_eq!(order(&recency), [0, 4, 1]);
        assert!(recency.is_guarded(block(1)) && !recency.is_guarded(block(4)));
        assert_eq!((recency.pop(), recency.pop(), recency.pop()), (Some(block(0)), Some(block(4)), None));
        recency.remove(block(1));
        recency.push_unguarded(block(0));
        assert_eq!((recency.evictable(), recency.pop()), (1, Some(block(0))));
    }

    #[test]
    fn block_that_was_never_cached_goes_before_the_guarded_ones() {
        let mut recency = Recency::default();
        recency.open(1);
        recency.push(block(0));
        recency.push_unguarded(block(7));
        assert_eq!((order(&recency), recency.pop()), (vec![7, 0], Some(block(7))));
    }

    #[test]
    fn guarded_block_is_not_evicted_before_its_step_has_ended() {
        let mut recency = Recency::default();
        recency.push(block(0));
        recency.open(1);
        recency.push(block(1));
        recency.open(2);
        recency.push(block(2));
        assert_eq!((recency.evictable(), recency.guarded()), (1, 2));
        assert_eq!(recency.pop(), Some(block(0)));
        assert_eq!(recency.pop(), None);
        recency.close_gaps();
        recency.remove(block(2));
        assert_eq!(recency.guarded(), 1);
        recency.close(1);
        assert_eq!(recency.pop(), Some(block(1)));
        recency.push(block(1));
        assert_eq!(recency.pop(), None, "cached again under step 2");
        recency.close(2);
        assert_eq!(recency.evictable(), 1);
    }

    #[test]
    fn guards_follow_when_gaps_are_closed() {
        let mut recency = Recency::default();
        (0..4).for_each(|index| recency.push(block(index)));
        recency.open(1);
        (4..6).for_each(|index| recency.push(block(index)));
        recency.remove(block(1));
        recency.remove(block(2));
        recency.close_gaps();
        recency.remove(block(4));
        assert_eq!((recency.evictable(), recency.guarded()), (2, 1));
        recency.remove(block(3));
        assert_eq!((recency.evictable(), recency.guarded()), (1, 1));
    }
}
