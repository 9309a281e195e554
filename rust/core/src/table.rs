//! A sequence's block table: its blocks, in the order of its tokens.
//!
//! The table only names blocks; whoever adds or drops an entry changes the block's count in the same operation, which
//! is why only the cache does.

use crate::ids::BlockId;

/// The blocks of one sequence in one KV group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    blocks: Vec<BlockId>,
    /// Where equal blocks are not merged: entries that were computed though a findable block has the same content, and
    /// that block, which is held as well. In the order of the entries.
    twins: Vec<(usize, BlockId)>,
}

/// An entry that was taken off a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dropped {
    pub(crate) block: BlockId,
    pub(crate) twin: Option<BlockId>,
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

    /// The findable blocks that are held for what they have in common with an entry: index, block.
    pub(crate) fn twins(&self) -> &[(usize, BlockId)] {
        &self.twins
    }

    /// Every block that it counts on: its entries, then their twins.
    pub(crate) fn held(&self) -> impl Iterator<Item = BlockId> {
        self.blocks.iter().copied().chain(self.twins.iter().map(|&(_, twin)| twin))
    }

    /// The block under which the content of entry `index` is found: the entry, or its twin.
    pub(crate) fn canonical(&self, index: usize) -> BlockId {
        let twin = self.twins.binary_search_by_key(&index, |&(at, _)| at).ok();
        twin.map_or_else(|| self.blocks[index], |at| self.twins[at].1)
    }

    /// Makes room for `blocks` in all, so that growing up to there allocates nothing.
    pub(crate) fn make_room(&mut self, blocks: usize) {
        self.blocks.reserve_exact(blocks.saturating_sub(self.blocks.len()));
    }

    #[inline]
    pub(crate) fn push(&mut self, block: BlockId) {
        self.blocks.push(block);
    }

    /// Notes the twin of entry `index`, which lies behind all that have one.
    pub(crate) fn push_twin(&mut self, index: usize, twin: BlockId) {
        self.twins.push((index, twin));
    }

    /// Takes the last entry off.
    pub(crate) fn pop(&mut self) -> Option<Dropped> {
        let block = self.blocks.pop()?;
        Some(Dropped { block, twin: self.pop_twin(self.blocks.len()) })
    }

    /// Takes the entries from `keep` on off a table without twins.
    pub(crate) fn truncate(&mut self, keep: usize) {
        debug_assert!(self.twins.is_empty(), "twins go with their entries");
        self.blocks.truncate(keep);
    }

    /// Takes off the last twin, if it belongs to entry `from` or one behind it.
    pub(crate) fn pop_twin(&mut self, from: usize) -> Option<BlockId> {
        self.twins.pop_if(|&mut (at, _)| at >= from).map(|(_, twin)| twin)
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
