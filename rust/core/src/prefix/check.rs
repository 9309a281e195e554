//! The audit of the prefix index: what it files is what the pool counts as findable, where its content says.

use std::collections::BTreeMap;

use super::{Parent, Prefix};
use crate::error::StateError;
use crate::ids::BlockId;

impl Prefix {
    /// Checks the index against `published`, the blocks that the pool counts as findable, in order of their ids.
    ///
    /// # Errors
    ///
    /// [`StateError`] with the number of the broken law.
    pub(crate) fn check(&self, published: &[BlockId]) -> Result<(), StateError> {
        if self.index.len() != published.len() {
            let text = format!("{} blocks are published, {} are filed", published.len(), self.index.len());
            return Err(StateError::law(4, text));
        }
        self.check_parents(published)?;
        self.check_content(published)?;
        self.check_counts(published)
    }

    /// Every findable block has a findable parent, which counts it (L6).
    fn check_parents(&self, published: &[BlockId]) -> Result<(), StateError> {
        let end = self.rows.len() / self.row_len();
        let mut is_findable = vec![false; end];
        for block in published {
            is_findable[block.index()] = true;
        }
        let mut children = vec![0_u32; end];
        for &block in published {
            let Some(parent) = self.parent(block) else {
                continue;
            };
            if !is_findable[parent.index()] {
                let text = format!("block {} is findable, its parent {} is not", block.get(), parent.get());
                return Err(StateError::law(6, text));
            }
            children[parent.index()] += 1;
        }
        for &block in published {
            let kept = self.record(block).children;
            let real = children[block.index()];
            if kept != real {
                let text = format!("block {} has {real} children and counts {kept}", block.get());
                return Err(StateError::law(6, text));
            }
        }
        Ok(())
    }

    /// Every findable block is filed (L4), under the hash of its content (L5).
    fn check_content(&self, published: &[BlockId]) -> Result<(), StateError> {
        let mut hashes = BTreeMap::new();
        for &block in published {
            let tag = self.record(block).tag;
            if self.index.find(tag, |candidate| candidate == block).is_none() {
                let text = format!("block {} is published and cannot be found", block.get());
                return Err(StateError::law(4, text));
            }
            if self.hasher.tag(self.full_hash(block, &mut hashes)) != tag {
                let text = format!("block {} is filed under a hash not its own", block.get());
                return Err(StateError::law(5, text));
            }
        }
        Ok(())
    }

    /// Salts and extra keys are counted once for each block that refers to them.
    fn check_counts(&self, published: &[BlockId]) -> Result<(), StateError> {
        let mut salts = vec![0_u32; self.salts.capacity()];
        let record = |block: &BlockId| self.record(*block);
        for block in published {
            if let Parent::Root(salt) = record(block).parent {
                salts[salt.0 as usize] += 1;
            }
        }
        let keys = published.iter().map(|block| record(block).key);
        if self.salts.agrees(&salts) && self.keys.agrees(keys) {
            return Ok(());
        }
        Err(StateError::law(2, "the counts of salts or extra keys are not true"))
    }

    /// The chained hash of a published block, recomputed from its root.
    fn full_hash(&self, block: BlockId, known: &mut BTreeMap<BlockId, u64>) -> u64 {
        let mut path = vec![];
        let mut at = block;
        let mut hash = loop {
            if let Some(&hash) = known.get(&at) {
                break hash;
            }
            path.push(at);
            match self.record(at).parent {
                Parent::Root(salt) => break self.hasher.root(self.salts.bytes(salt)),
                Parent::Block(parent) => at = parent,
            }
        };
        for &block in path.iter().rev() {
            let key = self.keys.hashed(self.record(block).key);
            hash = self.hasher.block(hash, self.tokens(block), &key);
            known.insert(block, hash);
        }
        hash
    }
}
