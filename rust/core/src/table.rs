//! A sequence's block table: its blocks, in the order of its tokens.
//!
//! The table only names blocks; whoever adds or drops an entry changes the block's count in the same operation, which
//! is why only the cache does.

use crate::ids::BlockId;

/// The blocks of one sequence in one KV group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    blocks: Vec<BlockId>,
}

impl Table {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    #[inline]
    pub(crate) fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Makes room for `blocks` in all, so that growing up to there allocates nothing.
    pub(crate) fn make_room(&mut self, blocks: usize) {
        self.blocks.reserve_exact(blocks.saturating_sub(self.blocks.len()));
    }

    #[inline]
    pub(crate) fn push(&mut self, block: BlockId) {
        self.blocks.push(block);
    }

    pub(crate) fn pop(&mut self) -> Option<BlockId> {
        self.blocks.pop()
    }

    /// Names `block` at `index`; returns what was named there.
    pub(crate) fn replace(&mut self, index: usize, block: BlockId) -> BlockId {
        std::mem::replace(&mut self.blocks[index], block)
    }
}

/// How many blocks hold `tokens`.
#[inline]
pub(crate) const fn blocks_for(tokens: usize, block_size: usize) -> usize {
    tokens.div_ceil(block_size)
}
