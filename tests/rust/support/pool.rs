//! The blocks: in which state each is, who counts on it, and in which order they are given out.

use std::collections::BTreeMap;

use super::names::{Identity, Name, name_of};

/// How many of the blocks are in each state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    pub blank: usize,
    pub cached: usize,
    pub held: usize,
    pub fenced: usize,
    pub guarded: usize,
}

#[derive(Clone, Debug)]
pub struct Pool {
    pub block_size: usize,
    pub num_blocks: usize,
    /// 1 where block 0 is never given out.
    pub first: i32,
    /// Blocks that became blank again, the newest last.
    returned: Vec<i32>,
    /// The lowest id that was never given out.
    fresh: i32,
    /// Cached blocks, the next to be evicted first.
    recency: Vec<i32>,
    /// Cached blocks that a step may still read, and that step.
    guards: BTreeMap<i32, u64>,
    /// Unpublished blocks that a step may still touch, and that step, oldest first.
    fenced: Vec<(i32, u64)>,
    /// Held blocks and by how many.
    counts: BTreeMap<i32, usize>,
    /// Findable blocks and all that they are found by.
    names: BTreeMap<i32, Name>,
    /// Open steps, oldest first.
    pub open_steps: Vec<u64>,
    steps_begun: u64,
    pub published: usize,
    pub merged: usize,
    pub evicted: usize,
}

impl Pool {
    pub fn new(num_blocks: usize, block_size: usize) -> Self {
        Self {
            block_size,
            num_blocks,
            first: 0,
            returned: Vec::new(),
            fresh: 0,
            recency: Vec::new(),
            guards: BTreeMap::new(),
            fenced: Vec::new(),
            counts: BTreeMap::new(),
            names: BTreeMap::new(),
            open_steps: Vec::new(),
            steps_begun: 0,
            published: 0,
            merged: 0,
            evicted: 0,
        }
    }

    pub fn without_block_0(mut self) -> Self {
        (self.first, self.fresh) = (1, 1);
        self
    }

    pub fn usable(&self) -> usize {
        self.num_blocks - self.first as usize
    }

    pub fn tally(&self) -> Tally {
        Tally {
            blank: self.num_blank(),
            cached: self.recency.len(),
            held: self.counts.len(),
            fenced: self.fenced.len(),
            guarded: self.guards.len(),
        }
    }

    pub fn available(&self) -> usize {
        self.num_blank() + self.recency.len() - self.guards.len()
    }

    fn num_blank(&self) -> usize {
        self.returned.len() + self.num_blocks - self.fresh as usize
    }

    pub fn count(&self, block: i32) -> usize {
        self.counts.get(&block).copied().unwrap_or(0)
    }

    pub fn is_cached(&self, block: i32) -> bool {
        self.recency.contains(&block)
    }

    pub fn is_fenced(&self, block: i32) -> bool {
        self.fenced.iter().any(|&(fenced, _)| fenced == block)
    }

    pub fn is_findable(&self, block: i32) -> bool {
        self.names.contains_key(&block)
    }

    pub fn find(&self, name: &Name) -> Option<i32> {
        self.names.iter().find(|(_, other)| *other == name).map(|(&block, _)| block)
    }

    pub fn has_findable_child(&self, block: i32) -> bool {
        let name = &self.names[&block];
        self.names.values().any(|other| other.is_child_of(name))
    }

    /// The blocks of the longest findable chain that `tokens` begin with, at least one token
    /// being left over.
    pub fn hit(&self, identity: &Identity, tokens: &[i32]) -> Vec<i32> {
        self.hit_up_to(identity, tokens, tokens.len().saturating_sub(1) / self.block_size)
    }

    pub fn hit_up_to(&self, identity: &Identity, tokens: &[i32], limit: usize) -> Vec<i32> {
        (0..limit).map_while(|index| self.find(&name_of(identity, tokens, index, self.block_size))).collect()
    }

    /// Gives one block out; true where it was evicted for that. The caller has asked `available` before.
    pub fn allocate(&mut self) -> (i32, bool) {
        let evicted = self.evicted;
        let block = self.take();
        (block, self.evicted > evicted)
    }

    fn take(&mut self) -> i32 {
        let block = if let Some(block) = self.returned.pop() {
            block
        } else if (self.fresh as usize) < self.num_blocks {
            self.fresh += 1;
            self.fresh - 1
        } else {
            let at =
                self.recency.iter().position(|block| !self.guards.contains_key(block)).expect("a block is available");
            let block = self.recency.remove(at);
            self.names.remove(&block).expect("cached blocks are findable");
            self.evicted += 1;
            block
        };
        self.counts.insert(block, 1);
        block
    }

    /// One more count on a block that is held or cached.
    pub fn retain(&mut self, block: i32) {
        if let Some(at) = self.recency.iter().position(|&cached| cached == block) {
            self.recency.remove(at);
            self.guards.remove(&block);
        }
        *self.counts.entry(block).or_insert(0) += 1;
    }

    /// One count less. True where the block's content is lost by it: nobody holds it, and it is not findable.
    pub fn release(&mut self, block: i32) -> bool {
        let count = self.counts.get_mut(&block).expect("only held blocks are released");
        *count -= 1;
        if *count > 0 {
            return false;
        }
        self.counts.remove(&block);
        if self.names.contains_key(&block) {
            self.cache_last(block);
            self.renew_ancestors(block);
            return false;
        } else if let Some(&step) = self.open_steps.last() {
            self.fenced.push((block, step));
        } else {
            self.returned.push(block);
        }
        true
    }

    fn cache_last(&mut self, block: i32) {
        self.recency.retain(|&cached| cached != block);
        self.recency.push(block);
        if let Some(&step) = self.open_steps.last() {
            self.guards.insert(block, step);
        }
    }

    /// One count less on the source of a copy whose target was just evicted: what could be evicted still can be.
    pub fn release_source_of_evicted(&mut self, block: i32) {
        let unguarded = |pool: &Self, block| pool.is_cached(block) && !pool.guards.contains_key(&block);
        let parent_of = |pool: &Self, block| {
            let parent = pool.names.get(&block)?.parent()?;
            Some(pool.find(&parent).expect("parents of findable blocks are findable"))
        };
        let parent = parent_of(self, block);
        if self.count(block) > 1 || !parent.is_some_and(|parent| unguarded(self, parent)) {
            self.release(block);
            return;
        }
        self.counts.remove(&block);
        let mut at = Some(block);
        while let Some(moved) = at {
            self.recency.retain(|&cached| cached != moved);
            let guarded = self.recency.iter().position(|cached| self.guards.contains_key(cached));
            self.recency.insert(guarded.unwrap_or(self.recency.len()), moved);
            at = parent_of(self, moved).filter(|&parent| unguarded(self, parent));
        }
    }

    /// A child must leave before its parent: cached ancestors go behind `block` again.
    pub fn renew_ancestors(&mut self, block: i32) {
        let Some(mut name) = self.names.get(&block).cloned() else { return };
        while let Some(parent) = name.parent() {
            let ancestor = self.find(&parent).expect("parents of findable blocks are findable");
            if !self.is_cached(ancestor) {
                break;
            }
            self.cache_last(ancestor);
            name = parent;
        }
    }

    pub fn unpublish(&mut self, block: i32) {
        self.names.remove(&block).expect("only findable blocks are unpublished");
    }

    /// Makes a full block findable. No equal one is so already.
    pub fn publish(&mut self, block: i32, name: Name) {
        assert!(self.find(&name).is_none(), "two equal blocks are findable");
        self.published += 1;
        self.names.insert(block, name);
    }

    pub fn name(&self, block: i32) -> Option<&Name> {
        self.names.get(&block)
    }

    /// Whatever is findable at `name` and below is so no longer; cached blocks among that are given back.
    pub fn forget_below(&mut self, name: &Name) {
        self.names.retain(|_, other| !other.starts_with(name));
        for block in self.recency.clone() {
            if !self.names.contains_key(&block) {
                self.recency.retain(|&cached| cached != block);
                self.give_back(block);
            }
        }
    }

    /// A block that was cached and is findable no more.
    fn give_back(&mut self, block: i32) {
        if self.guards.remove(&block).is_some() {
            let newest = *self.open_steps.last().expect("guards are open steps");
            self.fenced.push((block, newest));
        } else {
            self.returned.push(block);
        }
    }

    pub fn begin_step(&mut self) -> u64 {
        self.steps_begun += 1;
        self.open_steps.push(self.steps_begun);
        self.steps_begun
    }

    /// Ends the oldest open step, which must be `step`.
    pub fn end_step(&mut self, step: u64) {
        assert_eq!(self.open_steps.remove(0), step);
        let (ended, kept): (Vec<_>, Vec<_>) = self.fenced.iter().partition(|&&(_, fence)| fence == step);
        self.returned.extend(ended.iter().map(|&(block, _): &(i32, u64)| block));
        self.fenced = kept;
        self.guards.retain(|_, guard| *guard != step);
    }

    /// Open steps from `first` on are void: what waits for them waits for the newest that is left, or for nothing.
    pub fn void_steps(&mut self, first: u64) {
        self.open_steps.retain(|&step| step < first);
        if let Some(&newest) = self.open_steps.last() {
            self.fenced.iter_mut().for_each(|(_, fence)| *fence = newest.min(*fence));
            self.guards.values_mut().for_each(|guard| *guard = newest.min(*guard));
        } else {
            self.returned.extend(self.fenced.drain(..).map(|(block, _)| block));
            self.guards.clear();
        }
    }

    /// Blocks that will be available once the steps that may still touch them have ended.
    pub fn coming(&self) -> usize {
        self.fenced.len() + self.guards.len()
    }

    pub fn is_guarded(&self, block: i32) -> bool {
        self.guards.contains_key(&block)
    }

    /// Nothing is findable any more. Returns the cached blocks, which are given back.
    pub fn new_epoch(&mut self) -> Vec<i32> {
        self.names.clear();
        let cached = std::mem::take(&mut self.recency);
        for &block in &cached {
            self.give_back(block);
        }
        cached
    }

    /// Forgets the cached blocks, unless anything is in use.
    pub fn clear(&mut self) -> bool {
        let in_use = !self.counts.is_empty()
            || !self.fenced.is_empty()
            || !self.guards.is_empty()
            || !self.open_steps.is_empty();
        if in_use {
            return false;
        }
        self.names.clear();
        self.returned.append(&mut self.recency);
        true
    }

    /// Checks on the model itself, so that it is not wrong in silence: L1, L2 and L6.
    pub fn check(&self, uses: &BTreeMap<i32, usize>) {
        let tally = self.tally();
        assert_eq!(tally.blank + tally.cached + tally.held + tally.fenced, self.usable(), "L1");
        assert!(self.first == 0 || self.count(0) == 0, "block 0 is given out");
        assert_eq!(&self.counts, uses, "L2");
        for (block, name) in &self.names {
            assert!(self.is_cached(*block) || self.count(*block) > 0, "L1: findable, nowhere");
            if let Some(parent) = name.parent() {
                let parent = self.find(&parent).expect("L6: the parent is findable");
                if let (Some(child_at), Some(parent_at)) = (self.place(*block), self.place(parent)) {
                    assert!(child_at < parent_at, "L6: children are evicted first");
                }
            }
        }
        let guards: Vec<_> = self.recency.iter().map(|block| self.guards.get(block)).collect();
        assert!(guards.is_sorted(), "guarded blocks stand behind all others");
    }

    fn place(&self, block: i32) -> Option<usize> {
        self.recency.iter().position(|&cached| cached == block)
    }
}
