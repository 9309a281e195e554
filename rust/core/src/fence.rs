//! The steps in flight, and the freed blocks that wait for them (law L7).
//!
//! A block that is freed while steps are open may still be touched by all of them; since they end oldest first, it
//! waits for the newest.

use std::collections::VecDeque;

use crate::ids::BlockId;

/// Open steps, oldest first, and the blocks that each of them fences.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    begun: u64,
    open: VecDeque<u64>,
    waiting: VecDeque<(u64, BlockId)>,
}

impl Fences {
    /// Opens the next step; they are numbered from 1.
    pub(crate) fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.open.push_back(self.begun);
        self.begun
    }

    /// Ends `step`, which the caller knows to be the oldest.
    pub(crate) fn end(&mut self, step: u64) {
        if self.open.pop_front() != Some(step) {
            unreachable!("step {step} is not the oldest that is open");
        }
    }

    /// Closes the steps from `first` on, which never run; blocks that waited for them wait for the newest step before.
    pub(crate) fn void_from(&mut self, first: u64) {
        self.open.retain(|&step| step < first);
        // With none open, whatever a block waits for has ended.
        let Some(newest) = self.newest() else { return };
        for (step, _) in self.waiting.iter_mut().rev().take_while(|(step, _)| *step >= first) {
            *step = newest;
        }
    }

    pub(crate) fn oldest(&self) -> Option<u64> {
        self.open.front().copied()
    }

    #[inline]
    pub(crate) fn newest(&self) -> Option<u64> {
        self.open.back().copied()
    }

    pub(crate) fn is_open(&self, step: u64) -> bool {
        self.open.contains(&step)
    }

    pub(crate) fn num_open(&self) -> usize {
        self.open.len()
    }

    /// Fences a freed block until `step` ends.
    pub(crate) fn wait_for(&mut self, step: u64, block: BlockId) {
        self.waiting.push_back((step, block));
    }

    /// The next block whose step has ended, in the order in which they were fenced.
    pub(crate) fn pop_ended(&mut self) -> Option<BlockId> {
        let &(step, _) = self.waiting.front()?;
        let ended = self.oldest().is_none_or(|oldest| step < oldest);
        if ended { self.waiting.pop_front().map(|(_, block)| block) } else { None }
    }

    /// How many blocks wait.
    pub(crate) fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The blocks that wait, with the step that each waits for.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, BlockId)> {
        self.waiting.iter().copied()
    }
}
