//! The allocator, naively: sequences over a pool, copies before writes, steps in flight.

use super::memory::{Memory, Tail};
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
    pub tokens: Vec<i32>,
    pub reserved: usize,
    pub identity: Identity,
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
    pub memory: Memory,
    pub prefix_caching: bool,
    /// Live sequences; a closed one leaves `None` behind, so that numbers are never reused.
    sequences: Vec<Option<Sequence>>,
    pub prefix_queries: usize,
    pub prefix_hits: usize,
}

/// A plan for a reservation: what `reserve` would do.
struct Wanted {
    new_blocks: usize,
    tail: Tail,
}

impl Wanted {
    fn num_blocks(&self) -> usize {
        self.new_blocks + usize::from(self.tail == Tail::Copied)
    }
}

impl CacheModel {
    pub fn new(pool: Pool, prefix_caching: bool, dedupe: bool) -> Self {
        Self {
            memory: Memory::new(pool, dedupe),
            prefix_caching,
            sequences: Vec::new(),
            prefix_queries: 0,
            prefix_hits: 0,
        }
    }

    pub fn pool(&self) -> &Pool {
        &self.memory.pool
    }

    fn block_size(&self) -> usize {
        self.memory.pool.block_size
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
        let hit = if self.prefix_caching { self.pool().hit(identity, tokens) } else { Vec::new() };
        let computed = hit.len() * self.block_size();
        if self.prefix_caching {
            self.prefix_queries += tokens.len();
            self.prefix_hits += computed;
        }
        let seq = self.sequences.len();
        self.memory.open(seq, &hit);
        self.sequences.push(Some(Sequence {
            tokens: tokens[..computed].to_vec(),
            reserved: computed,
            identity: identity.clone(),
        }));
        Ok(seq)
    }

    pub fn match_prefix(&self, tokens: &[i32], identity: &Identity) -> Result<usize, Fault> {
        check_tokens(tokens)?;
        if !self.prefix_caching {
            return Ok(0);
        }
        Ok(self.pool().hit(identity, tokens).len() * self.block_size())
    }

    pub fn reserve(&mut self, seq: usize, num_tokens: usize) -> Result<Room, Fault> {
        let Some(wanted) = self.wanted(seq, num_tokens)? else {
            return Ok(Room::Granted);
        };
        let (needed, available) = (wanted.num_blocks(), self.pool().available());
        if needed > available {
            return Ok(Room::Short { needed, available });
        }
        let computed = self.live(seq).tokens.len();
        self.memory.own_tail(seq, computed);
        self.memory.grow(seq, num_tokens.div_ceil(self.block_size()));
        self.live(seq).reserved = num_tokens;
        Ok(Room::Granted)
    }

    pub fn can_reserve(&self, seq: usize, num_tokens: usize) -> Result<bool, Fault> {
        self.sequence(seq)?;
        Ok(match self.wanted(seq, num_tokens) {
            Ok(None) => true,
            Ok(Some(wanted)) => wanted.num_blocks() <= self.pool().available(),
            Err(_) => false,
        })
    }

    fn wanted(&self, seq: usize, num_tokens: usize) -> Result<Option<Wanted>, Fault> {
        let sequence = self.sequence(seq)?;
        if num_tokens <= sequence.reserved {
            return Ok(None);
        }
        let computed = sequence.tokens.len();
        let wanted = Wanted {
            new_blocks: num_tokens.div_ceil(self.block_size()) - self.memory.blocks(seq).len(),
            tail: self.memory.tail(seq, computed),
        };
        if wanted.tail == Tail::Copied {
            let tail = self.memory.blocks(seq)[computed / self.block_size()];
            if self.memory.owed_to(tail).is_some_and(|owed| owed < computed % self.block_size()) {
                return Err(Fault::State);
            }
        }
        Ok(Some(wanted))
    }

    pub fn advance(&mut self, seq: usize, tokens: &[i32]) -> Result<(), Fault> {
        let sequence = self.sequence(seq)?;
        check_tokens(tokens)?;
        if sequence.tokens.len() + tokens.len() > sequence.reserved {
            return Err(Fault::State);
        }
        let block_size = self.block_size();
        let first = sequence.tokens.len() / block_size;
        self.live(seq).tokens.extend_from_slice(tokens);
        let last = self.live(seq).tokens.len() / block_size;
        for index in first..if self.prefix_caching { last } else { first } {
            let sequence = self.live(seq);
            let name = name_of(&sequence.identity, &sequence.tokens, index, block_size);
            self.memory.publish(seq, index, name);
        }
        Ok(())
    }

    pub fn truncate(&mut self, seq: usize, num_tokens: usize) -> Result<(), Fault> {
        if num_tokens > self.sequence(seq)?.tokens.len() {
            return Err(Fault::State);
        }
        self.memory.release_tail(seq, num_tokens.div_ceil(self.block_size()));
        self.memory.release_twins(seq, num_tokens / self.block_size());
        let sequence = self.live(seq);
        sequence.tokens.truncate(num_tokens);
        sequence.reserved = num_tokens;
        Ok(())
    }

    pub fn fork(&mut self, seq: usize) -> Result<usize, Fault> {
        let computed = self.sequence(seq)?.tokens.len();
        self.memory.release_tail(seq, computed.div_ceil(self.block_size()));
        self.live(seq).reserved = computed;
        let child = self.live(seq).clone();
        self.memory.share(seq, self.sequences.len());
        self.sequences.push(Some(child));
        Ok(self.sequences.len() - 1)
    }

    pub fn close(&mut self, seq: usize) -> Result<(), Fault> {
        self.sequence(seq)?;
        self.memory.close(seq);
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
            let blocks = len.div_ceil(self.block_size());
            csr.indices.extend_from_slice(&self.memory.blocks(seq)[..blocks]);
            csr.indptr.push(csr.indices.len() as i32);
            let before = blocks.saturating_sub(1) * self.block_size();
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
                let block = self.memory.blocks(seq)[position / self.block_size()];
                slot(block, position, self.block_size())
            }));
        }
        Ok(slots)
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
        trial.memory.pool.num_blocks += 1_000;
        let mut needed = 0;
        for (&seq, &len) in seqs.iter().zip(lens) {
            if let Some(wanted) = trial.wanted(seq, len)? {
                needed += wanted.num_blocks();
            }
            assert_eq!(trial.reserve(seq, len), Ok(Room::Granted));
        }
        let available = self.pool().available();
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
        Ok(self.memory.pin(identity, tokens, expires))
    }

    pub fn unpin(&mut self, pin: usize) -> Result<(), Fault> {
        if pin >= self.memory.num_pins_given() {
            return Err(Fault::Unknown);
        }
        if self.memory.unpin(pin) { Ok(()) } else { Err(Fault::Stale) }
    }

    pub fn begin_step(&mut self) -> u64 {
        self.memory.expire_pins();
        self.memory.pool.begin_step()
    }

    pub fn end_step(&mut self, step: u64) -> Result<(), Fault> {
        if self.pool().open_steps.first() != Some(&step) {
            return Err(Fault::State);
        }
        self.memory.end_step(step);
        Ok(())
    }

    pub fn clear(&mut self) -> bool {
        self.memory.pool.clear()
    }

    /// The picture; `order` lists the live sequences as they are lettered.
    pub fn draw(&self, order: &[usize]) -> String {
        let shown: Vec<Shown> = order
            .iter()
            .map(|&seq| {
                let sequence = self.sequence(seq).expect("live");
                Shown { table: self.memory.blocks(seq).to_vec(), num_tokens: sequence.tokens.len() }
            })
            .collect();
        picture::draw(self.pool(), &shown)
    }

    /// The model's own laws.
    pub fn check(&self) {
        self.memory.check();
        for (seq, sequence) in self.sequences.iter().enumerate() {
            let Some(sequence) = sequence else { continue };
            assert_eq!(self.memory.blocks(seq).len(), sequence.reserved.div_ceil(self.block_size()));
            assert!(sequence.tokens.len() <= sequence.reserved);
            if sequence.reserved > sequence.tokens.len() {
                assert_eq!(self.memory.tail(seq, sequence.tokens.len()), Tail::Writable, "L3");
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
