//! Who counts on blocks: tables, canonical twins, copies on their way, pins; and the steps that may still touch them.

use std::collections::BTreeMap;

use super::names::{Identity, Name};
use super::pool::Pool;

/// The blocks of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub blocks: Vec<i32>,
    /// Where its own block has an equal findable one that it holds too: the index and that block.
    pub twins: Vec<(usize, i32)>,
    /// Whether its full blocks become findable; a new epoch, and letting twins go, ends that.
    publishes: bool,
}

#[derive(Clone, Debug)]
struct Copy {
    src: i32,
    dst: i32,
    num_tokens: usize,
    step: Option<u64>,
    is_taken: bool,
}

#[derive(Clone, Debug)]
struct Pin {
    blocks: Vec<i32>,
    /// How many more steps begin before the one that releases it.
    expires: Option<usize>,
}

/// What a write into the last, partly filled block of a table takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// There is none, or it is this sequence's alone.
    Writable,
    /// It is findable, but nobody else's.
    Unpublished,
    Copied,
}

#[derive(Clone, Debug)]
pub struct Memory {
    pub pool: Pool,
    /// Whether equal blocks are merged.
    pub dedupe: bool,
    tables: BTreeMap<usize, Table>,
    copies: Vec<Copy>,
    /// A pin that is gone leaves `None` behind.
    pins: Vec<Option<Pin>>,
    pub num_copies: usize,
}

impl Memory {
    pub fn new(pool: Pool, dedupe: bool) -> Self {
        Self { pool, dedupe, tables: BTreeMap::new(), copies: Vec::new(), pins: Vec::new(), num_copies: 0 }
    }

    // ------------------------------------------------------------------ tables

    pub fn table(&self, seq: usize) -> Option<&Table> {
        self.tables.get(&seq)
    }

    /// The blocks of a sequence; none where it has no table.
    pub fn blocks(&self, seq: usize) -> &[i32] {
        self.tables.get(&seq).map_or(&[], |table| &table.blocks)
    }

    fn table_mut(&mut self, seq: usize) -> &mut Table {
        self.tables.get_mut(&seq).expect("the caller knows that it has a table")
    }

    /// A new table that begins with a hit.
    pub fn open(&mut self, seq: usize, hit: &[i32]) {
        for &block in hit {
            self.pool.retain(block);
        }
        let table = Table { blocks: hit.to_vec(), twins: Vec::new(), publishes: true };
        assert!(self.tables.insert(seq, table).is_none(), "it had no table");
    }

    /// Gives a table blocks until it has `num_blocks`.
    pub fn grow(&mut self, seq: usize, num_blocks: usize) {
        while self.blocks(seq).len() < num_blocks {
            let block = self.allocate();
            self.table_mut(seq).blocks.push(block);
        }
    }

    /// `child` gets the same blocks as `parent`, and the same twins.
    pub fn share(&mut self, parent: usize, child: usize) {
        let table = self.tables[&parent].clone();
        for &block in table.blocks.iter().chain(table.twins.iter().map(|(_, twin)| twin)) {
            self.pool.retain(block);
        }
        assert!(self.tables.insert(child, table).is_none(), "it had no table");
    }

    /// A table changes hands.
    pub fn hand_over(&mut self, from: usize, to: usize) {
        if let Some(table) = self.tables.remove(&from) {
            self.tables.insert(to, table);
        }
    }

    /// Lets the blocks of a table go from index `keep` on, the last one first, each with its twin.
    pub fn release_tail(&mut self, seq: usize, keep: usize) {
        while self.blocks(seq).len() > keep {
            let block = self.table_mut(seq).blocks.pop().expect("longer than `keep`");
            self.release(block);
            self.release_twins(seq, self.blocks(seq).len());
        }
    }

    /// Lets the twins from index `keep` on go, the last one first.
    pub fn release_twins(&mut self, seq: usize, keep: usize) {
        while let Some((_, twin)) = self.table_mut(seq).twins.pop_if(|(index, _)| *index >= keep) {
            self.release(twin);
        }
    }

    pub fn close(&mut self, seq: usize) {
        self.release_tail(seq, 0);
        self.tables.remove(&seq);
    }

    /// For a sequence that cannot grow otherwise: it has no twins from now on, and publishes nothing.
    pub fn let_twins_go(&mut self, seq: usize) {
        let Some(&(first, _)) = self.tables[&seq].twins.first() else { return };
        self.release_twins(seq, 0);
        self.table_mut(seq).publishes = false;
        // What it published below a twin would be findable without its parent (L6).
        let below: Vec<Name> =
            self.blocks(seq)[first + 1..].iter().filter_map(|&block| self.pool.name(block)).cloned().collect();
        for name in below {
            self.pool.forget_below(&name);
        }
    }

    /// A block of a table became full, and is found by `name` from now on, itself or an equal one. That is given where
    /// it took the place in the table.
    pub fn publish(&mut self, seq: usize, index: usize, name: Name) -> Option<i32> {
        let table = &self.tables[&seq];
        if !table.publishes {
            return None;
        }
        let own = table.blocks[index];
        let Some(canonical) = self.pool.find(&name) else {
            self.pool.publish(own, name);
            return None;
        };
        self.pool.retain(canonical);
        if !self.dedupe {
            self.table_mut(seq).twins.push((index, canonical));
            return None;
        }
        self.pool.merged += 1;
        self.table_mut(seq).blocks[index] = canonical;
        self.release(own);
        Some(canonical)
    }

    // ------------------------------------------------------------------ copies

    /// What a write behind the first `num_tokens` of a sequence takes.
    pub fn tail(&self, seq: usize, num_tokens: usize) -> Tail {
        let offset = num_tokens % self.pool.block_size;
        if offset == 0 {
            return Tail::Writable;
        }
        let block = self.blocks(seq)[num_tokens / self.pool.block_size];
        if self.pool.is_findable(block) {
            let is_free = self.pool.count(block) == 1 && !self.pool.has_findable_child(block);
            return if is_free { Tail::Unpublished } else { Tail::Copied };
        }
        let copies: Vec<&Copy> = self.copies.iter().filter(|copy| copy.src == block).collect();
        let is_sole = self.pool.count(block) - copies.len() == 1;
        let is_read_only_below = copies.iter().all(|copy| copy.num_tokens <= offset);
        if is_sole && is_read_only_below { Tail::Writable } else { Tail::Copied }
    }

    /// How many tokens a copy brings into `block` that was not taken yet.
    pub fn owed_to(&self, block: i32) -> Option<usize> {
        self.untaken_into(block).map(|copy| copy.num_tokens)
    }

    fn untaken_into(&self, block: i32) -> Option<&Copy> {
        self.copies.iter().find(|copy| !copy.is_taken && copy.dst == block)
    }

    /// Makes the tail of a sequence of `num_tokens` this sequence's alone. True where another block takes its place.
    pub fn own_tail(&mut self, seq: usize, num_tokens: usize) -> bool {
        let index = num_tokens / self.pool.block_size;
        match self.tail(seq, num_tokens) {
            Tail::Writable => return false,
            Tail::Unpublished => {
                let block = self.blocks(seq)[index];
                self.pool.unpublish(block);
                return false;
            }
            Tail::Copied => {}
        }
        let old = self.blocks(seq)[index];
        let src = self.untaken_into(old).map_or(old, |copy| copy.src);
        let dst = self.allocate();
        self.pool.retain(src);
        let step = self.pool.open_steps.last().copied();
        self.copies.push(Copy { src, dst, num_tokens: num_tokens % self.pool.block_size, step, is_taken: false });
        self.num_copies += 1;
        self.table_mut(seq).blocks[index] = dst;
        self.release(old);
        true
    }

    pub fn take_ops(&mut self) -> Vec<[i32; 3]> {
        let mut taken = Vec::new();
        let mut done = Vec::new();
        let newest = self.pool.open_steps.last().copied();
        for copy in &mut self.copies {
            if copy.is_taken {
                continue;
            }
            copy.is_taken = true;
            taken.push([copy.src, copy.dst, copy.num_tokens as i32]);
            let is_open = copy.step.is_some_and(|step| self.pool.open_steps.contains(&step));
            if !is_open {
                copy.step = newest;
            }
            if copy.step.is_none() {
                done.push(copy.src);
            } else {
                self.pool.renew_ancestors(copy.src);
            }
        }
        self.copies.retain(|copy| !copy.is_taken || copy.step.is_some());
        for src in done {
            self.release(src);
        }
        taken
    }

    /// Opens the step of a plan, which does all copies that were not taken yet.
    pub fn open_plan(&mut self) -> (u64, Vec<[i32; 3]>) {
        let step = self.pool.begin_step();
        for copy in self.copies.iter_mut().filter(|copy| !copy.is_taken) {
            copy.step = Some(step);
        }
        (step, self.take_ops())
    }

    // ------------------------------------------------------------------ blocks

    /// Gives one block out. A copy that was not taken, and whose cached target this evicts, is dropped.
    fn allocate(&mut self) -> i32 {
        let (block, was_evicted) = self.pool.allocate();
        let owed = self.copies.iter().position(|copy| was_evicted && !copy.is_taken && copy.dst == block);
        if let Some(at) = owed {
            let copy = self.copies.remove(at);
            self.pool.release_source_of_evicted(copy.src);
        }
        block
    }

    /// Lets one count go; a copy that was not taken and whose target is lost is dropped.
    fn release(&mut self, block: i32) {
        if !self.pool.release(block) {
            return;
        }
        self.drop_copy_into(block);
    }

    fn drop_copy_into(&mut self, block: i32) {
        if let Some(at) = self.copies.iter().position(|copy| !copy.is_taken && copy.dst == block) {
            let copy = self.copies.remove(at);
            self.release(copy.src);
        }
    }

    // ------------------------------------------------------------------ pins, epochs, steps

    /// Holds every findable full block that `tokens` begin with.
    pub fn pin(&mut self, identity: &Identity, tokens: &[i32], expires: Option<usize>) -> usize {
        let blocks = self.pool.hit_up_to(identity, tokens, tokens.len() / self.pool.block_size);
        for &block in &blocks {
            self.pool.retain(block);
        }
        self.pins.push(Some(Pin { blocks, expires }));
        self.pins.len() - 1
    }

    pub fn num_pins_given(&self) -> usize {
        self.pins.len()
    }

    /// Lets a pin go; false where it is gone already.
    pub fn unpin(&mut self, pin: usize) -> bool {
        let Some(pin) = self.pins[pin].take() else { return false };
        for block in pin.blocks.into_iter().rev() {
            self.release(block);
        }
        true
    }

    /// A step of the caller's begins: pins whose time has come are let go.
    pub fn expire_pins(&mut self) {
        for pin in 0..self.pins.len() {
            let Some(Pin { expires: Some(steps), .. }) = &mut self.pins[pin] else { continue };
            *steps -= 1;
            if *steps == 0 {
                self.unpin(pin);
            }
        }
    }

    pub fn new_epoch(&mut self) {
        self.tables.values_mut().for_each(|table| table.publishes = false);
        for block in self.pool.new_epoch() {
            self.drop_copy_into(block);
        }
    }

    /// Ends the oldest open step, which must be `step`.
    pub fn end_step(&mut self, step: u64) {
        self.pool.end_step(step);
        self.end_copies(|copy_step| copy_step == step);
    }

    /// Open steps from `first` on are void.
    pub fn void_steps(&mut self, first: u64) {
        self.pool.void_steps(first);
        self.end_copies(|copy_step| copy_step >= first);
    }

    fn end_copies(&mut self, ends: impl Fn(u64) -> bool) {
        let (ended, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.copies)
            .into_iter()
            .partition(|copy| copy.is_taken && copy.step.is_some_and(&ends));
        self.copies = kept;
        for copy in ended {
            self.release(copy.src);
        }
    }

    /// The model's own laws.
    pub fn check(&self) {
        let mut uses: BTreeMap<i32, usize> = BTreeMap::new();
        let twins = |table: &Table| table.twins.iter().map(|&(_, twin)| twin).collect::<Vec<_>>();
        let in_tables = self.tables.values().flat_map(|table| [table.blocks.clone(), twins(table)].concat());
        let in_pins = self.pins.iter().flatten().flat_map(|pin| pin.blocks.clone());
        for block in in_tables.chain(in_pins).chain(self.copies.iter().map(|copy| copy.src)) {
            *uses.entry(block).or_insert(0) += 1;
        }
        for table in self.tables.values() {
            assert!(!self.dedupe || table.twins.is_empty(), "twins are merged");
            assert!(table.twins.is_sorted_by(|left, right| left.0 < right.0), "one twin an index");
            assert!(table.twins.iter().all(|&(index, twin)| index < table.blocks.len() && table.blocks[index] != twin));
        }
        self.pool.check(&uses);
    }
}
