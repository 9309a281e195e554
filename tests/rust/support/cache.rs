//! The allocator, naively: sequences over a pool, copies before writes, steps in flight.

use std::collections::BTreeMap;

use super::names::{Identity, name_of};
use super::picture::{self, Shown};
use super::pool::Pool;

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Config,
    Request,
    Unknown,
    Stale,
    State,
}

/// What became of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    Granted,
    Short { needed: usize, available: usize },
}

#[derive(Clone, Debug)]
pub struct Sequence {
    pub table: Vec<i32>,
    pub tokens: Vec<i32>,
    pub reserved: usize,
    pub identity: Identity,
    pub epoch: usize,
}

#[derive(Clone, Debug)]
struct Pin {
    blocks: Vec<i32>,
    /// How many more steps begin before the one that releases it.
    expires: Option<usize>,
}

#[derive(Clone, Debug)]
struct Copy {
    src: i32,
    dst: i32,
    num_tokens: usize,
    step: Option<u64>,
    is_taken: bool,
}

/// FlashInfer's three arrays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Csr {
    pub indptr: Vec<i32>,
    pub indices: Vec<i32>,
    pub last_page_len: Vec<i32>,
}

#[derive(Clone, Debug)]
pub struct CacheModel {
    pub pool: Pool,
    pub prefix_caching: bool,
    /// Live sequences; a closed one leaves `None` behind, so that numbers are never reused.
    sequences: Vec<Option<Sequence>>,
    copies: Vec<Copy>,
    /// A pin that is gone leaves `None` behind.
    pins: Vec<Option<Pin>>,
    epoch: usize,
    pub prefix_queries: usize,
    pub prefix_hits: usize,
    pub num_copies: usize,
}

/// A plan for a reservation: what `reserve` would do.
struct Wanted {
    new_blocks: usize,
    copied_tail: Option<usize>,
    unpublished_tail: Option<i32>,
}

impl CacheModel {
    pub fn new(num_blocks: usize, block_size: usize, prefix_caching: bool) -> Self {
        Self {
            pool: Pool::new(num_blocks, block_size),
            prefix_caching,
            sequences: Vec::new(),
            copies: Vec::new(),
            pins: Vec::new(),
            epoch: 0,
            prefix_queries: 0,
            prefix_hits: 0,
            num_copies: 0,
        }
    }

    pub fn sequence(&self, seq: usize) -> Result<&Sequence, Fault> {
        match self.sequences.get(seq) {
            None => Err(Fault::Unknown),
            Some(None) => Err(Fault::Stale),
            Some(Some(sequence)) => Ok(sequence),
        }
    }

    pub fn num_sequences(&self) -> usize {
        self.sequences.iter().flatten().count()
    }

    fn live(&mut self, seq: usize) -> &mut Sequence {
        self.sequences[seq].as_mut().expect("checked by the caller")
    }

    pub fn open(&mut self, tokens: &[i32], identity: &Identity) -> Result<usize, Fault> {
        check_tokens(tokens)?;
        let hit = if self.prefix_caching { self.pool.hit(identity, tokens) } else { Vec::new() };
        for &block in &hit {
            self.pool.retain(block);
        }
        let computed = hit.len() * self.pool.block_size;
        if self.prefix_caching {
            self.prefix_queries += tokens.len();
            self.prefix_hits += computed;
        }
        self.sequences.push(Some(Sequence {
            table: hit,
            tokens: tokens[..computed].to_vec(),
            reserved: computed,
            identity: identity.clone(),
            epoch: self.epoch,
        }));
        Ok(self.sequences.len() - 1)
    }

    pub fn match_prefix(&self, tokens: &[i32], identity: &Identity) -> Result<usize, Fault> {
        check_tokens(tokens)?;
        if !self.prefix_caching {
            return Ok(0);
        }
        Ok(self.pool.hit(identity, tokens).len() * self.pool.block_size)
    }

    pub fn reserve(&mut self, seq: usize, num_tokens: usize) -> Result<Room, Fault> {
        let Some(wanted) = self.wanted(seq, num_tokens)? else {
            return Ok(Room::Granted);
        };
        let needed = wanted.new_blocks + usize::from(wanted.copied_tail.is_some());
        let available = self.pool.available();
        if needed > available {
            return Ok(Room::Short { needed, available });
        }
        if let Some(block) = wanted.unpublished_tail {
            self.pool.unpublish(block);
        }
        if let Some(index) = wanted.copied_tail {
            self.copy_tail(seq, index);
        }
        for _ in 0..wanted.new_blocks {
            let block = self.allocate();
            self.live(seq).table.push(block);
        }
        self.live(seq).reserved = num_tokens;
        Ok(Room::Granted)
    }

    pub fn can_reserve(&self, seq: usize, num_tokens: usize) -> Result<bool, Fault> {
        self.sequence(seq)?;
        Ok(match self.wanted(seq, num_tokens) {
            Ok(None) => true,
            Ok(Some(wanted)) => {
                let needed = wanted.new_blocks + usize::from(wanted.copied_tail.is_some());
                needed <= self.pool.available()
            }
            Err(_) => false,
        })
    }

    fn wanted(&self, seq: usize, num_tokens: usize) -> Result<Option<Wanted>, Fault> {
        let sequence = self.sequence(seq)?;
        if num_tokens <= sequence.reserved {
            return Ok(None);
        }
        let mut wanted = Wanted {
            new_blocks: num_tokens.div_ceil(self.pool.block_size) - sequence.table.len(),
            copied_tail: None,
            unpublished_tail: None,
        };
        let in_tail = sequence.tokens.len() % self.pool.block_size;
        if in_tail > 0 {
            let index = sequence.tokens.len() / self.pool.block_size;
            let block = sequence.table[index];
            if !self.pool.is_findable(block) {
                if !self.is_sole_writer(block, in_tail) {
                    wanted.copied_tail = Some(index);
                }
            } else if self.pool.count(block) == 1 && !self.pool.has_findable_child(block) {
                wanted.unpublished_tail = Some(block);
            } else {
                wanted.copied_tail = Some(index);
            }
            let pending = self.untaken_into(block);
            if wanted.copied_tail.is_some() && pending.is_some_and(|copy| copy.num_tokens < in_tail) {
                return Err(Fault::State);
            }
        }
        Ok(Some(wanted))
    }

    /// Whether a write at `offset` and later is seen by one table alone and by no copy.
    fn is_sole_writer(&self, block: i32, offset: usize) -> bool {
        let entries = self.sequences.iter().flatten().flat_map(|sequence| &sequence.table);
        let is_pinned = self.pins.iter().flatten().any(|pin| pin.blocks.contains(&block));
        !is_pinned
            && entries.filter(|&&entry| entry == block).count() == 1
            && self.copies.iter().filter(|copy| copy.src == block).all(|copy| copy.num_tokens <= offset)
    }

    fn untaken_into(&self, block: i32) -> Option<&Copy> {
        self.copies.iter().find(|copy| !copy.is_taken && copy.dst == block)
    }

    fn copy_tail(&mut self, seq: usize, index: usize) {
        let sequence = self.live(seq);
        let old = sequence.table[index];
        let num_tokens = sequence.tokens.len() % self.pool.block_size;
        let src = self.untaken_into(old).map_or(old, |copy| copy.src);
        let dst = self.allocate();
        self.pool.retain(src);
        let step = self.pool.open_steps.last().copied();
        self.copies.push(Copy { src, dst, num_tokens, step, is_taken: false });
        self.num_copies += 1;
        self.live(seq).table[index] = dst;
        self.release(old);
    }

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
        if let Some(at) = self.copies.iter().position(|copy| !copy.is_taken && copy.dst == block) {
            let copy = self.copies.remove(at);
            self.release(copy.src);
        }
    }

    /// Lets the blocks of a table go from index `keep` on, the last one first.
    fn release_tail(&mut self, seq: usize, keep: usize) {
        while self.live(seq).table.len() > keep {
            let block = self.live(seq).table.pop().expect("longer than `keep`");
            self.release(block);
        }
    }

    pub fn advance(&mut self, seq: usize, tokens: &[i32]) -> Result<(), Fault> {
        let sequence = self.sequence(seq)?;
        check_tokens(tokens)?;
        if sequence.tokens.len() + tokens.len() > sequence.reserved {
            return Err(Fault::State);
        }
        let block_size = self.pool.block_size;
        let first = sequence.tokens.len() / block_size;
        self.live(seq).tokens.extend_from_slice(tokens);
        let last = self.live(seq).tokens.len() / block_size;
        if !self.prefix_caching || self.live(seq).epoch != self.epoch {
            return Ok(());
        }
        for index in first..last {
            let sequence = self.live(seq);
            let own = sequence.table[index];
            let name = name_of(&sequence.identity, &sequence.tokens, index, block_size);
            if let Some(canonical) = self.pool.publish_or_merge(own, name) {
                self.live(seq).table[index] = canonical;
                self.release(own);
            }
        }
        Ok(())
    }

    pub fn truncate(&mut self, seq: usize, num_tokens: usize) -> Result<(), Fault> {
        if num_tokens > self.sequence(seq)?.tokens.len() {
            return Err(Fault::State);
        }
        self.release_tail(seq, num_tokens.div_ceil(self.pool.block_size));
        let sequence = self.live(seq);
        sequence.tokens.truncate(num_tokens);
        sequence.reserved = num_tokens;
        Ok(())
    }

    pub fn fork(&mut self, seq: usize) -> Result<usize, Fault> {
        let computed = self.sequence(seq)?.tokens.len();
        self.release_tail(seq, computed.div_ceil(self.pool.block_size));
        self.live(seq).reserved = computed;
        let child = self.live(seq).clone();
        for &block in &child.table {
            self.pool.retain(block);
        }
        self.sequences.push(Some(child));
        Ok(self.sequences.len() - 1)
    }

    pub fn close(&mut self, seq: usize) -> Result<(), Fault> {
        self.sequence(seq)?;
        self.release_tail(seq, 0);
        self.sequences[seq] = None;
        Ok(())
    }

    pub fn csr(&self, seqs: &[usize], lens: &[usize]) -> Result<Csr, Fault> {
        let mut csr = Csr { indptr: vec![0], indices: Vec::new(), last_page_len: Vec::new() };
        for &seq in seqs {
            self.sequence(seq)?;
        }
        if seqs.len() != lens.len() {
            return Err(Fault::Request);
        }
        for (&seq, &len) in seqs.iter().zip(lens) {
            let sequence = self.sequence(seq)?;
            if len > sequence.reserved {
                return Err(Fault::State);
            }
            let blocks = len.div_ceil(self.pool.block_size);
            csr.indices.extend_from_slice(&sequence.table[..blocks]);
            csr.indptr.push(csr.indices.len() as i32);
            let before = blocks.saturating_sub(1) * self.pool.block_size;
            csr.last_page_len.push((len - before) as i32);
        }
        Ok(csr)
    }

    pub fn slots(&self, seqs: &[usize], starts: &[usize], lens: &[usize]) -> Result<Vec<i64>, Fault> {
        for &seq in seqs {
            self.sequence(seq)?;
        }
        if seqs.len() != starts.len() || seqs.len() != lens.len() {
            return Err(Fault::Request);
        }
        let mut slots = Vec::new();
        for ((&seq, &start), &len) in seqs.iter().zip(starts).zip(lens) {
            let sequence = self.sequence(seq)?;
            if start + len > sequence.reserved {
                return Err(Fault::State);
            }
            slots.extend((start..start + len).map(|position| {
                let block = sequence.table[position / self.pool.block_size];
                slot(block, position, self.pool.block_size)
            }));
        }
        Ok(slots)
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

    pub fn open_many(&mut self, prompts: &[Vec<i32>], identity: &Identity) -> Result<Vec<usize>, Fault> {
        prompts.iter().try_for_each(|tokens| check_tokens(tokens))?;
        prompts.iter().map(|tokens| self.open(tokens, identity)).collect()
    }

    /// What the calls need is found out on a copy of everything, in which blocks are never short.
    pub fn reserve_many(&mut self, seqs: &[usize], lens: &[usize]) -> Result<Room, Fault> {
        self.check_seqs(seqs)?;
        if seqs.len() != lens.len() {
            return Err(Fault::Request);
        }
        let mut trial = self.clone();
        trial.pool.num_blocks += 1_000;
        let mut needed = 0;
        for (&seq, &len) in seqs.iter().zip(lens) {
            if let Some(wanted) = trial.wanted(seq, len)? {
                needed += wanted.new_blocks + usize::from(wanted.copied_tail.is_some());
            }
            assert_eq!(trial.reserve(seq, len), Ok(Room::Granted));
        }
        let available = self.pool.available();
        if needed > available {
            return Ok(Room::Short { needed, available });
        }
        for (&seq, &len) in seqs.iter().zip(lens) {
            assert_eq!(self.reserve(seq, len), Ok(Room::Granted), "the trial was granted");
        }
        Ok(Room::Granted)
    }

    pub fn advance_many(&mut self, seqs: &[usize], tokens: &[Vec<i32>]) -> Result<(), Fault> {
        self.check_seqs(seqs)?;
        if seqs.len() != tokens.len() {
            return Err(Fault::Request);
        }
        tokens.iter().try_for_each(|tokens| check_tokens(tokens))?;
        let mut trial = self.clone();
        seqs.iter().zip(tokens).try_for_each(|(&seq, tokens)| trial.advance(seq, tokens))?;
        *self = trial;
        Ok(())
    }

    pub fn close_many(&mut self, seqs: &[usize]) -> Result<(), Fault> {
        self.check_seqs(seqs)?;
        seqs.iter().try_for_each(|&seq| self.close(seq))
    }

    fn check_seqs(&self, seqs: &[usize]) -> Result<(), Fault> {
        seqs.iter().try_for_each(|&seq| self.sequence(seq).map(drop))?;
        let is_twice = |(at, seq): (usize, &usize)| seqs[..at].contains(seq);
        if seqs.iter().enumerate().any(is_twice) { Err(Fault::Request) } else { Ok(()) }
    }

    pub fn pin(&mut self, tokens: &[i32], identity: &Identity, expires: Option<usize>) -> Result<usize, Fault> {
        check_tokens(tokens)?;
        if expires == Some(0) {
            return Err(Fault::Request);
        }
        let limit = if self.prefix_caching { tokens.len() / self.pool.block_size } else { 0 };
        let blocks = self.pool.hit_up_to(identity, tokens, limit);
        for &block in &blocks {
            self.pool.retain(block);
        }
        self.pins.push(Some(Pin { blocks, expires }));
        Ok(self.pins.len() - 1)
    }

    pub fn unpin(&mut self, pin: usize) -> Result<(), Fault> {
        let pin = self.pins.get_mut(pin).ok_or(Fault::Unknown)?.take().ok_or(Fault::Stale)?;
        for block in pin.blocks.into_iter().rev() {
            self.release(block);
        }
        Ok(())
    }

    pub fn new_epoch(&mut self) {
        self.epoch += 1;
        for block in self.pool.new_epoch() {
            if let Some(at) = self.copies.iter().position(|copy| !copy.is_taken && copy.dst == block) {
                let copy = self.copies.remove(at);
                self.release(copy.src);
            }
        }
    }

    pub fn begin_step(&mut self) -> u64 {
        for pin in 0..self.pins.len() {
            let Some(Pin { expires: Some(steps), .. }) = &mut self.pins[pin] else { continue };
            *steps -= 1;
            if *steps == 0 {
                self.unpin(pin).expect("it was there");
            }
        }
        self.pool.begin_step()
    }

    pub fn end_step(&mut self, step: u64) -> Result<(), Fault> {
        if self.pool.open_steps.first() != Some(&step) {
            return Err(Fault::State);
        }
        self.pool.end_step(step);
        let (ended, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.copies).into_iter().partition(|copy| copy.is_taken && copy.step == Some(step));
        self.copies = kept;
        for copy in ended {
            self.release(copy.src);
        }
        Ok(())
    }

    pub fn clear(&mut self) -> bool {
        self.pool.clear()
    }

    /// The picture; `order` lists the live sequences as they are lettered.
    pub fn draw(&self, order: &[usize]) -> String {
        let shown: Vec<Shown> = order
            .iter()
            .map(|&seq| {
                let sequence = self.sequence(seq).expect("live");
                Shown { table: sequence.table.clone(), num_tokens: sequence.tokens.len() }
            })
            .collect();
        picture::draw(&self.pool, &shown)
    }

    /// The model's own laws.
    pub fn check(&self) {
        let mut uses: BTreeMap<i32, usize> = BTreeMap::new();
        for sequence in self.sequences.iter().flatten() {
            assert_eq!(sequence.table.len(), sequence.reserved.div_ceil(self.pool.block_size));
            assert!(sequence.tokens.len() <= sequence.reserved);
            for &block in &sequence.table {
                *uses.entry(block).or_insert(0) += 1;
            }
        }
        for block in self.pins.iter().flatten().flat_map(|pin| &pin.blocks) {
            *uses.entry(*block).or_insert(0) += 1;
        }
        for copy in &self.copies {
            *uses.entry(copy.src).or_insert(0) += 1;
        }
        self.pool.check(&uses);
        for sequence in self.sequences.iter().flatten() {
            let in_tail = sequence.tokens.len() % self.pool.block_size;
            if sequence.reserved > sequence.tokens.len() && in_tail > 0 {
                let tail = sequence.table[sequence.tokens.len() / self.pool.block_size];
                assert!(!self.pool.is_findable(tail), "L3: a writable tail is findable");
                assert!(self.is_sole_writer(tail, in_tail), "L3: a writable tail is shared");
            }
        }
    }
}

/// The slot of a token at `position` whose block is `block`.
pub fn slot(block: i32, position: usize, block_size: usize) -> i64 {
    i64::from(block) * block_size as i64 + (position % block_size) as i64
}

pub fn check_tokens(tokens: &[i32]) -> Result<(), Fault> {
    if tokens.iter().any(|&token| token < 0) { Err(Fault::Request) } else { Ok(()) }
}
