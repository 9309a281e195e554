//! The stack of blank blocks: what was freed last is given first, and blocks never used come in order after those.

use std::ops::Range;

use crate::ids::BlockId;

/// Blank blocks. Taking and giving are O(1) and run over dense memory.
#[derive(Debug)]
pub(crate) struct BlankStack {
    returned: Vec<BlockId>,
    /// Blocks from here on were never given out.
    fresh: usize,
    first: usize,
    num_blocks: usize,
}

impl BlankStack {
    /// All of `num_blocks` from `first` on, blank; `None` when the machine refuses the memory.
    pub(crate) fn new(first: usize, num_blocks: usize) -> Option<Self> {
        let mut returned = Vec::new();
        returned.try_reserve_exact(num_blocks).ok()?;
        Some(Self { returned, fresh: first, first, num_blocks })
    }

    pub(crate) fn len(&self) -> usize {
        self.returned.len() + self.num_blocks - self.fresh
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<BlockId> {
        self.returned.pop().or_else(|| {
            (self.fresh < self.num_blocks).then(|| {
                self.fresh += 1;
                BlockId::new(self.fresh - 1)
            })
        })
    }

    /// Takes up to `count` blocks, in the order of [`pop`](Self::pop), to the end of `taken`.
    pub(crate) fn pop_many(&mut self, count: usize, taken: &mut Vec<BlockId>) {
        let num_returned = count.min(self.returned.len());
        taken.extend(self.returned.drain(self.returned.len() - num_returned..).rev());
        let num_fresh = (count - num_returned).min(self.num_blocks - self.fresh);
        taken.extend((self.fresh..self.fresh + num_fresh).map(BlockId::new));
        self.fresh += num_fresh;
    }

    #[inline]
    pub(crate) fn push(&mut self, block: BlockId) {
        self.returned.push(block);
    }

    /// The blocks that were given back, and the ids that were ever given out, for the audit.
    pub(crate) fn parts(&self) -> (&[BlockId], Range<usize>) {
        (&self.returned, self.first..self.fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_last_is_given_first_then_the_lowest_never_used() {
        let mut stack = BlankStack::new(0, 3).unwrap_or_else(|| unreachable!("three words fit"));
        let take = |stack: &mut BlankStack| stack.pop().map(BlockId::get);
        assert_eq!((take(&mut stack), take(&mut stack)), (Some(0), Some(1)));
        stack.push(BlockId::new(0));
        assert_eq!(stack.len(), 2);
        let mut many = Vec::new();
        BlankStack { returned: stack.returned.clone(), ..stack }.pop_many(5, &mut many);
        assert_eq!(many.into_iter().map(BlockId::get).collect::<Vec<_>>(), [0, 2]);
        assert_eq!([take(&mut stack), take(&mut stack), take(&mut stack)], [Some(0), Some(2), None]);
    }
}
