//! Everything that can be seen, on both sides.

use super::pair::Pair;
use crate::support::bridge;
use crate::support::names::Identity;

impl Pair {
    pub fn compare(&mut self) {
        self.census.add("comparison", 1);
        self.model.check();
        self.core.audit().expect("the laws hold");
        for &(model, core) in &self.live {
            let sequence = self.model.sequence(model).expect("live");
            let table = self.core.table(core).expect("live");
            assert_eq!(bridge::ids(table), self.model.memory.blocks(model), "table");
            assert_eq!(self.core.num_computed(core).expect("live"), sequence.tokens.len());
        }
        let tally = self.model.pool().tally();
        let stats = self.core.stats();
        let found = [
            ("num_blocks", stats.num_blocks as usize, self.model.pool().num_blocks),
            ("usable", stats.usable as usize, self.model.pool().usable()),
            ("blank", stats.blank as usize, tally.blank),
            ("cached", stats.cached as usize, tally.cached),
            ("held", stats.held as usize, tally.held),
            ("fenced", stats.fenced as usize, tally.fenced),
            ("available", stats.available as usize, self.model.pool().available()),
            ("guarded", stats.guarded as usize, tally.guarded),
            ("sequences", stats.sequences as usize, self.model.num_sequences()),
            ("open_steps", stats.open_steps as usize, self.model.pool().open_steps.len()),
            ("prefix_queries", stats.prefix_queries as usize, self.model.prefix_queries),
            ("prefix_hits", stats.prefix_hits as usize, self.model.prefix_hits),
            ("published_blocks", stats.published_blocks as usize, self.model.pool().published),
            ("merged_blocks", stats.merged_blocks as usize, self.model.pool().merged),
            ("evicted_blocks", stats.evicted_blocks as usize, self.model.pool().evicted),
            ("copies", stats.copies as usize, self.model.memory.num_copies),
        ];
        for (name, core, model) in found {
            assert_eq!(core, model, "stats.{name}");
        }
        let mut order = self.live.clone();
        order.sort_by_key(|&(_, core)| core.raw() & 0xFFFF_FFFF);
        let order: Vec<usize> = order.into_iter().map(|(model, _)| model).collect();
        assert_eq!(self.core.draw().trim_end(), self.model.draw(&order), "draw");
    }

    /// Lets a new sequence take all that is available: its table tells the order in which blocks
    /// are given out, blank ones and evicted ones.
    pub fn drain(&mut self) {
        let available = self.model.pool().available();
        self.open(&[], &Identity::default());
        let (model, core) = *self.live.last().expect("just opened");
        let block_size = self.model.pool().block_size;
        self.reserve(model, core, (available + 1) * block_size);
        self.reserve(model, core, available * block_size);
        self.compare();
    }
}
