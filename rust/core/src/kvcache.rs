//! The allocator alone: sequences over the cache, for engines that bring their own scheduler.

mod arrays;
mod batch;

use std::sync::Arc;

use crate::arena::Arena;
use crate::audit::{self, Holder};
use crate::cache::{Cache, Pending, Room, Tail};
use crate::config::CacheConfig;
use crate::draw;
use crate::error::{Error, StateError};
use crate::identity::Identity;
use crate::ids::{BlockId, PinId, SequenceId};
use crate::pins::Pins;
use crate::prefix::{Hits, Link};
use crate::stats::CacheStats;
use crate::table::{Table, blocks_for};
use crate::tokens;

pub use arrays::Csr;
/// Memory work that must run before the next forward pass (CONTRACT §4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ops {
    /// `[src, dst, num_tokens]`: the first slots of `src` go to `dst`. No block is the target of two copies, and no
    /// source is another's target, so they may run in parallel.
    pub copies: Vec<[i32; 3]>,
    /// Blocks to be zeroed; none before windowed groups.
    pub zero: Vec<i32>,
}

#[derive(Debug)]
struct Sequence {
    table: Table,
    num_computed: usize,
    /// Tokens that there is room for; more than `num_computed` only while the tail is writable.
    reserved: usize,
    /// The computed tokens of the last, partly filled block.
    tail: Vec<i32>,
    /// The chained hashes of the full blocks.
    chain: Vec<u64>,
    identity: Arc<Identity>,
    /// It publishes only in the epoch in which it was opened.
    epoch: u64,
}

/// Gives out KV memory in blocks, shared by reference and copied on write, and keeps computed prefixes.
///
/// It stores computed tokens only: `open` adopts what is cached, `reserve` makes room, `advance` tells what was
/// computed. A call that returns an error changed nothing (L12).
///
/// # Example
///
/// ```
/// use octavo_core::{CacheConfig, Identity, KvCache, Room};
///
/// let mut cache = KvCache::new(&CacheConfig { block_size: 4, ..CacheConfig::new(8) })?;
/// let prompt: Vec<i32> = (0..10).collect();
/// let first = cache.open(&prompt, &Identity::default())?;
/// assert_eq!(cache.reserve(first, 10)?, Room::Granted);
/// cache.advance(first, &prompt)?;
/// let second = cache.open(&prompt, &Identity::default())?;
/// assert_eq!(cache.num_computed(second)?, 8, "two full blocks are shared");
/// # Ok::<(), octavo_core::Error>(())
/// ```
#[derive(Debug)]
pub struct KvCache {
    cache: Cache,
    sequences: Arena<SequenceId, Sequence>,
    pins: Pins,
    epoch: u64,
    prefix_queries: u64,
    prefix_hits: u64,
}

impl KvCache {
    /// An empty cache.
    ///
    /// # Errors
    ///
    /// [`ConfigError`](crate::ConfigError) for a field out of range, or a pool that this machine cannot describe.
    pub fn new(config: &CacheConfig) -> Result<Self, Error> {
        let cache = Cache::new(config.check()?)?;
        Ok(Self { cache, sequences: Arena::new(), pins: Pins::default(), epoch: 0, prefix_queries: 0, prefix_hits: 0 })
    }

    /// Tokens in a block.
    #[must_use]
    pub const fn block_size(&self) -> usize {
        self.cache.block_size()
    }

    /// A new sequence, which adopts the longest hit of `tokens` and leaves at least one token to compute.
    ///
    /// # Effects
    ///
    /// Claims the blocks of the hit. The tokens themselves are not kept: [`advance`](Self::advance) passes them again.
    ///
    /// # Errors
    ///
    /// [`RequestError`] for a negative token.
    ///
    /// # Complexity
    ///
    /// O(tokens).
    pub fn open(&mut self, tokens: &[i32], identity: &Identity) -> Result<SequenceId, Error> {
        tokens::check("tokens", tokens)?;
        Ok(self.open_checked(tokens, &Arc::new(identity.clone())))
    }

    fn open_checked(&mut self, tokens: &[i32], identity: &Arc<Identity>) -> SequenceId {
        let (mut chain, mut hits) = (Vec::new(), Hits::default());
        self.cache.look_up(&mut chain, tokens, identity, self.cache.hit_limit(tokens.len()), &mut hits);
        let mut table = Table::default();
        self.cache.adopt(&mut table, &hits);
        let num_computed = table.len() * self.block_size();
        if self.cache.is_caching() {
            self.prefix_queries += tokens.len() as u64;
            self.prefix_hits += num_computed as u64;
        }
        chain.truncate(table.len());
        let (tail, identity, epoch) = (Vec::new(), Arc::clone(identity), self.epoch);
        self.sequences.insert_with(|_| Sequence {
            table,
            num_computed,
            reserved: num_computed,
            tail,
            chain,
            identity,
            epoch,
        })
    }

    /// How many tokens of `seq` are computed.
    ///
    /// # Errors
    ///
    /// A dead or foreign handle.
    pub fn num_computed(&self, seq: SequenceId) -> Result<usize, Error> {
        Ok(self.sequences.get(seq)?.num_computed)
    }

    /// How many tokens of `seq` there is room for.
    ///
    /// # Errors
    ///
    /// A dead or foreign handle.
    pub fn num_reserved(&self, seq: SequenceId) -> Result<usize, Error> {
        Ok(self.sequences.get(seq)?.reserved)
    }

    /// Makes room for `num_tokens` in all. A shared or findable tail is copied first (L3).
    ///
    /// # Errors
    ///
    /// A dead or foreign handle; [`StateError`] when the tail's content itself waits for a copy that was not taken.
    ///
    /// # Complexity
    ///
    /// O(new blocks).
    pub fn reserve(&mut self, seq: SequenceId, num_tokens: usize) -> Result<Room, Error> {
        let need = self.need(seq, num_tokens, &Pending::default())?;
        let available = self.cache.available();
        if need.total() > available {
            return Ok(Room::Short { needed: need.total(), available });
        }
        let block_size = self.block_size();
        let sequence = self.sequences.live_mut(seq);
        let (full, filled) = (sequence.num_computed / block_size, sequence.num_computed % block_size);
        if let Some(tail) = need.tail {
            self.cache.make_writable(&mut sequence.table, full, filled, tail);
        }
        self.cache.grow(&mut sequence.table, need.new_blocks);
        sequence.reserved = sequence.reserved.max(num_tokens);
        Ok(Room::Granted)
    }

    /// Whether [`reserve`](Self::reserve) would be granted now.
    ///
    /// # Errors
    ///
    /// A dead or foreign handle.
    pub fn can_reserve(&self, seq: SequenceId, num_tokens: usize) -> Result<bool, Error> {
        match self.need(seq, num_tokens, &Pending::default()) {
            Ok(need) => Ok(need.total() <= self.cache.available()),
            Err(Error::State(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// These tokens of `seq` were computed and accepted. Blocks that they fill are published, equal ones merged.
    ///
    /// # Errors
    ///
    /// A dead or foreign handle; [`RequestError`] for a negative token; [`StateError`] beyond the reservation.
    ///
    /// # Complexity
    ///
    /// O(tokens).
    pub fn advance(&mut self, seq: SequenceId, tokens: &[i32]) -> Result<(), Error> {
        let sequence = self.sequences.get(seq)?;
        tokens::check("tokens", tokens)?;
        let room = sequence.reserved - sequence.num_computed;
        if tokens.len() > room {
            let text = format!("{} tokens were computed, {room} are reserved", tokens.len());
            return Err(StateError::new(text).into());
        }
        self.advance_checked(seq, tokens);
        Ok(())
    }

    fn advance_checked(&mut self, seq: SequenceId, tokens: &[i32]) {
        let sequence = self.sequences.live_mut(seq);
        sequence.num_computed += tokens.len();
        if !self.cache.is_caching() || sequence.epoch != self.epoch {
            return;
        }
        sequence.tail.extend_from_slice(tokens);
        let block_size = self.cache.block_size();
        let Sequence { table, tail, chain, identity, .. } = sequence;
        let mut done = 0;
        while tail.len() - done >= block_size {
            let (block, filled) = (chain.len(), &tail[done..done + block_size]);
            let key = identity.key_of(block, block_size);
            let hash = self.cache.prefix().next_hash(chain.last().copied(), filled, &key, identity);
            chain.push(hash);
            self.cache.publish(table, block, Link { hash, tokens: filled, key: &key }, identity);
            done += block_size;
        }
        tail.drain(..done);
    }

    /// Rolls `seq` back to its first `num_tokens` tokens; blocks that it no longer needs are released, last first.
    ///
    /// # Errors
    ///
    /// A dead or foreign handle; [`StateError`] beyond the computed tokens.
    ///
    /// # Complexity
    ///
    /// O(blocks dropped).
    pub fn truncate(&mut self, seq: SequenceId, num_tokens: usize) -> Result<(), Error> {
        let sequence = self.sequences.get(seq)?;
        if num_tokens > sequence.num_computed {
            let text = format!("cannot truncate to {num_tokens} tokens: {} are computed", sequence.num_computed);
            return Err(StateError::new(text).into());
        }
        let block_size = self.block_size();
        let sequence = self.sequences.live_mut(seq);
        let (full, filled) = (num_tokens / block_size, num_tokens % block_size);
        if self.cache.is_caching() && sequence.epoch == self.epoch {
            if full < sequence.chain.len() {
                let kept = &self.cache.prefix().tokens(sequence.table.canonical(full))[..filled];
                sequence.tail.clear();
                sequence.tail.extend_from_slice(kept);
                sequence.chain.truncate(full);
            } else {
                sequence.tail.truncate(filled);
            }
        }
        self.cache.shrink(&mut sequence.table, blocks_for(num_tokens, block_size));
        self.cache.drop_twins(&mut sequence.table, full);
        sequence.num_computed = num_tokens;
        sequence.reserved = num_tokens;
        Ok(())
    }

    /// A second sequence with the same computed tokens, sharing their blocks. An earlier reservation of `seq` is
    /// void: both must reserve before they advance.
    ///
    /// # Errors
    ///
    /// A dead or foreign handle.
    ///
    /// # Complexity
    ///
    /// O(blocks); no block is needed.
    pub fn fork(&mut self, seq: SequenceId) -> Result<SequenceId, Error> {
        let block_size = self.block_size();
        let sequence = self.sequences.get_mut(seq)?;
        self.cache.shrink(&mut sequence.table, blocks_for(sequence.num_computed, block_size));
        sequence.reserved = sequence.num_computed;
        let child = Sequence {
            table: self.cache.share(&sequence.table),
            num_computed: sequence.num_computed,
            reserved: sequence.num_computed,
            tail: sequence.tail.clone(),
            chain: sequence.chain.clone(),
            identity: Arc::clone(&sequence.identity),
            epoch: sequence.epoch,
        };
        Ok(self.sequences.insert_with(|_| child))
    }

    /// Ends `seq` and releases its blocks, last first. Its handle is stale from now on.
    ///
    /// # Errors
    ///
    /// A dead or foreign handle.
    ///
    /// # Complexity
    ///
    /// O(blocks).
    pub fn close(&mut self, seq: SequenceId) -> Result<(), Error> {
        let mut sequence = self.sequences.remove(seq)?;
        self.cache.shrink(&mut sequence.table, 0);
        Ok(())
    }

    /// How many tokens a sequence opened with `tokens` would have computed. Changes nothing, recency included.
    ///
    /// # Errors
    ///
    /// [`RequestError`] for a negative token.
    ///
    /// # Complexity
    ///
    /// O(tokens).
    pub fn match_prefix(&self, tokens: &[i32], identity: &Identity) -> Result<usize, Error> {
        tokens::check("tokens", tokens)?;
        Ok(self.match_checked(tokens, identity))
    }

    fn match_checked(&self, tokens: &[i32], identity: &Identity) -> usize {
        let (mut chain, mut hits) = (Vec::new(), Hits::default());
        self.cache.look_up(&mut chain, tokens, identity, self.cache.hit_limit(tokens.len()), &mut hits);
        hits.blocks.len() * self.block_size()
    }

    /// The block table of `seq`, reserved blocks included.
    ///
    /// # Errors
    ///
    /// A dead or foreign handle.
    pub fn table(&self, seq: SequenceId) -> Result<&[BlockId], Error> {
        Ok(self.sequences.get(seq)?.table.blocks())
    }

    /// The memory work decided since the last call. It must run before the next forward pass.
    ///
    /// # Effects
    ///
    /// A copy's source is held until the copy's step has ended; with no step open it is released at once.
    pub fn take_ops(&mut self) -> Ops {
        let copies = self.cache.take_copies().into_iter();
        let copies = copies.map(|op| [op.src.get(), op.dst.get(), small(op.num_tokens)]).collect();
        Ops { copies, zero: Vec::new() }
    }

    /// Opens a step in flight: what is freed until it ends is not reused before that (L7). It precedes the step's
    /// reservations. Pins that expire with it are released before it opens.
    pub fn begin_step(&mut self) -> u64 {
        self.pins.begin_step(&mut self.cache);
        self.cache.begin_step()
    }

    /// Ends a step.
    ///
    /// # Errors
    ///
    /// [`StateError`] when `step` is not the oldest open one.
    ///
    /// # Complexity
    ///
    /// O(blocks that waited for it).
    pub fn end_step(&mut self, step: u64) -> Result<(), Error> {
        match self.cache.pool().fences().oldest() {
            Some(oldest) if oldest == step => {
                self.cache.end_step(step);
                Ok(())
            }
            Some(oldest) => Err(StateError::new(format!("step {step} cannot end: step {oldest} is the oldest")).into()),
            None => Err(StateError::new(format!("step {step} cannot end: no step is open")).into()),
        }
    }

    /// Holds every full cached block of the prefix that `tokens` and it have in common; there may be none.
    ///
    /// With `expires = k` the pin is released by the k-th [`begin_step`](Self::begin_step) from now; its handle is
    /// stale then. Without, it lasts until [`unpin`](Self::unpin). It counts nothing as looked up.
    ///
    /// # Errors
    ///
    /// [`RequestError`] for a negative token, or a pin that expires at once.
    ///
    /// # Complexity
    ///
    /// O(tokens).
    pub fn pin(&mut self, tokens: &[i32], identity: &Identity, expires: Option<u64>) -> Result<PinId, Error> {
        self.pins.pin(&mut self.cache, tokens, identity, expires)
    }

    /// Lets the blocks of a pin go, last first.
    ///
    /// # Errors
    ///
    /// A foreign handle, or a pin that was released or has expired.
    ///
    /// # Complexity
    ///
    /// O(blocks).
    pub fn unpin(&mut self, pin: PinId) -> Result<(), Error> {
        self.pins.unpin(&mut self.cache, pin)
    }

    /// Forgets the prefix cache; false, with nothing changed, while blocks are held or a step is open.
    pub fn clear(&mut self) -> bool {
        self.cache.clear()
    }

    /// Makes every block that was published so far unfindable, as when the model's weights change.
    ///
    /// # Effects
    ///
    /// Cached blocks become blank, or are fenced where a step in flight guards them. Running sequences keep their
    /// blocks, pins theirs. A sequence opened before publishes nothing from now on, nor does a fork of it: its content
    /// is that of the old epoch.
    ///
    /// # Complexity
    ///
    /// O(pool).
    pub fn new_epoch(&mut self) {
        self.epoch += 1;
        self.cache.new_epoch();
    }

    /// Exact numbers, derived from the state.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let open_steps = self.cache.pool().fences().num_open() as u64;
        CacheStats {
            sequences: self.sequences.len() as u64,
            open_steps,
            prefix_queries: self.prefix_queries,
            prefix_hits: self.prefix_hits,
            ..CacheStats::of(&self.cache)
        }
    }

    /// Checks every law on the whole state and changes nothing.
    ///
    /// # Errors
    ///
    /// [`StateError`] with the number of the broken law.
    pub fn audit(&self) -> Result<(), StateError> {
        let block_size = self.block_size();
        let holders: Vec<Holder<'_>> = self
            .sequences
            .iter()
            .map(|(_, sequence)| Holder {
                table: &sequence.table,
                writes_from: (sequence.reserved > sequence.num_computed).then(|| sequence.num_computed / block_size),
                tokens: None,
            })
            .collect();
        audit::check(&self.cache, &holders, &self.pins.blocks())
    }

    /// A picture of the blocks and of who holds them.
    #[must_use]
    pub fn draw(&self) -> String {
        draw::draw(&self.cache, self.sequences.iter().map(|(_, sequence)| (&sequence.table, sequence.num_computed)))
    }

    fn need(&self, seq: SequenceId, num_tokens: usize, pending: &Pending) -> Result<Need, Error> {
        let sequence = self.sequences.get(seq)?;
        if num_tokens <= sequence.reserved {
            return Ok(Need::default());
        }
        let (full, filled) = (sequence.num_computed / self.block_size(), sequence.num_computed % self.block_size());
        let tail =
            if filled == 0 { None } else { Some(self.cache.tail(sequence.table.blocks()[full], filled, pending)?) };
        let new_blocks = blocks_for(num_tokens, self.block_size()) - sequence.table.len();
        Ok(Need { tail, new_blocks })
    }
}

/// The blocks that a reservation takes.
#[derive(Debug, Default)]
struct Need {
    tail: Option<Tail>,
    new_blocks: usize,
}

impl Need {
    fn total(&self) -> usize {
        self.new_blocks + usize::from(matches!(self.tail, Some(Tail::Copy(_))))
    }
}

/// A count that the pool's size bounds.
fn small(count: usize) -> i32 {
    i32::try_from(count).unwrap_or_else(|_| unreachable!("{count} is beyond every pool"))
}
