//! The allocator of the core and the model, asked the same.

use octavo_core::{CacheConfig, KvCache, PinId, Room, SequenceId};

use super::calls::{Op, World, identities};
use crate::support;
use crate::support::bridge;
use crate::support::cache::{CacheModel, Fault, Room as ModelRoom};
use crate::support::census::Census;
use crate::support::names::Identity;
use crate::support::pool::Pool;

/// The core and the model side by side.
pub struct Pair {
    pub core: KvCache,
    pub model: CacheModel,
    /// Live sequences: the model's number and the core's handle.
    pub live: Vec<(usize, SequenceId)>,
    dead: Vec<(usize, SequenceId)>,
    pins: Vec<(usize, PinId)>,
    pub census: Census,
}

impl Pair {
    pub fn new(world: &World, hash_bits: i64) -> Self {
        let config = CacheConfig {
            block_size: world.block_size as i64,
            prefix_caching: world.prefix_caching,
            hash_seed: world.hash_seed,
            hash_bits,
            reserve_null_block: world.null_block,
            dedupe: world.dedupe,
            ..CacheConfig::new(world.num_blocks as i64)
        };
        let pool = Pool::new(world.num_blocks, world.block_size);
        let pool = if world.null_block { pool.without_block_0() } else { pool };
        Self {
            core: KvCache::new(&config).expect("a world in range"),
            model: CacheModel::new(pool, world.prefix_caching, world.dedupe),
            live: Vec::new(),
            dead: Vec::new(),
            pins: Vec::new(),
            census: Census::default(),
        }
    }

    fn pick(&self, seq: usize) -> Option<(usize, SequenceId)> {
        (!self.live.is_empty()).then(|| self.live[seq % self.live.len()])
    }

    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Open { tokens, identity } => self.open(tokens, &identities()[*identity]),
            Op::Start { tokens, identity } => {
                self.open(tokens, &identities()[*identity]);
                let (model, core) = *self.live.last().expect("just opened");
                let hit = self.model.sequence(model).expect("live").tokens.len();
                self.reserve(model, core, tokens.len());
                self.advance(model, core, &tokens[hit..]);
            }
            Op::OpenLike { seq, keep, more } => {
                if let Some((model, _)) = self.pick(*seq) {
                    let like = self.model.sequence(model).expect("live").clone();
                    let mut tokens = like.tokens;
                    tokens.truncate(*keep);
                    tokens.extend(more);
                    self.open(&tokens, &like.identity);
                }
            }
            Op::Reserve { seq, num_tokens } => {
                if let Some((model, core)) = self.pick(*seq) {
                    self.reserve(model, core, *num_tokens);
                }
            }
            Op::Advance { seq, tokens } => {
                if let Some((model, core)) = self.pick(*seq) {
                    self.advance(model, core, tokens);
                }
            }
            Op::Grow { seq, tokens } => {
                if let Some((model, core)) = self.pick(*seq) {
                    let computed = self.model.sequence(model).expect("live").tokens.len();
                    self.reserve(model, core, computed + tokens.len());
                    self.advance(model, core, tokens);
                }
            }
            Op::Truncate { seq, num_tokens } => {
                if let Some((model, core)) = self.pick(*seq) {
                    self.truncate(model, core, *num_tokens);
                }
            }
            Op::Fork { seq } => {
                if let Some((model, core)) = self.pick(*seq) {
                    let expected = self.model.fork(model).expect("live");
                    let found = self.core.fork(core).expect("live");
                    self.live.push((expected, found));
                }
            }
            Op::Close { seq } => {
                if let Some((model, core)) = self.pick(*seq) {
                    self.model.close(model).expect("live");
                    self.core.close(core).expect("live");
                    self.live.retain(|&(other, _)| other != model);
                    self.dead.push((model, core));
                }
            }
            Op::Match { tokens, identity } => self.compare_match(tokens, &identities()[*identity]),
            Op::Views { seqs, starts, lens } => self.compare_views(seqs, starts, lens),
            Op::Rewind { seq, by, tokens } => {
                if let Some((model, core)) = self.pick(*seq) {
                    let computed = self.model.sequence(model).expect("live").tokens.len();
                    let keep = computed.saturating_sub(*by);
                    self.truncate(model, core, keep);
                    self.reserve(model, core, keep + tokens.len());
                    self.advance(model, core, tokens);
                }
            }
            Op::CloseNewest { count } => {
                for (model, core) in self.live.split_off(self.live.len().saturating_sub(*count)) {
                    self.model.close(model).expect("live");
                    self.core.close(core).expect("live");
                    self.dead.push((model, core));
                }
            }
            Op::Branch { seq, cuts, tokens, takes_ops } => {
                if let Some((model, core)) = self.pick(*seq) {
                    let computed = self.model.sequence(model).expect("live").tokens.len();
                    if *cuts {
                        self.truncate(model, core, computed.saturating_sub(1));
                    }
                    let model = self.model.fork(model).expect("live");
                    let core = self.core.fork(core).expect("live");
                    self.live.push((model, core));
                    let computed = self.model.sequence(model).expect("live").tokens.len();
                    self.reserve(model, core, computed + tokens.len());
                    if *takes_ops {
                        self.take_ops();
                    }
                    self.advance(model, core, tokens);
                }
            }
            Op::OpenMany { prompts, identity } => {
                let identity = &identities()[*identity];
                let expected = self.model.open_many(prompts, identity).expect("good tokens");
                let slices: Vec<&[i32]> = prompts.iter().map(Vec::as_slice).collect();
                let hits = self.core.match_many(&slices, &bridge::identity(identity)).expect("good tokens");
                let found = self.core.open_many(&slices, &bridge::identity(identity)).expect("good tokens");
                for ((&model, &core), hit) in expected.iter().zip(&found).zip(hits) {
                    assert_eq!(self.core.num_computed(core).expect("live"), hit, "match_many");
                    self.live.push((model, core));
                }
            }
            Op::ReserveMany { seqs, more } => {
                let Some((model, core)) = self.pick_all(seqs) else { return };
                let lens = more.iter().zip(model.iter().chain(std::iter::repeat(&model[0])));
                let lens: Vec<usize> =
                    lens.map(|(more, &seq)| self.model.sequence(seq).expect("live").tokens.len() + more).collect();
                self.reserve_many(&model, &core, &lens);
            }
            Op::AdvanceMany { seqs, tokens } => {
                let Some((model, core)) = self.pick_all(seqs) else { return };
                self.advance_many(&model, &core, tokens);
            }
            Op::GrowMany { tokens } => {
                let (model, core): (Vec<_>, Vec<_>) = self.live.iter().rev().take(tokens.len()).copied().unzip();
                let tokens = &tokens[..model.len()];
                let lens = model.iter().zip(tokens);
                let lens: Vec<usize> = lens
                    .map(|(&seq, tokens)| self.model.sequence(seq).expect("live").tokens.len() + tokens.len())
                    .collect();
                self.reserve_many(&model, &core, &lens);
                self.advance_many(&model, &core, tokens);
            }
            Op::CloseMany { seqs } => {
                let Some((model, core)) = self.pick_all(seqs) else { return };
                let expected = self.model.close_many(&model);
                let found = self.core.close_many(&core).map_err(|error| bridge::fault(&error));
                assert_eq!(found, expected, "close_many");
                if expected.is_ok() {
                    self.live.retain(|(other, _)| !model.contains(other));
                    self.dead.extend(model.into_iter().zip(core));
                }
            }
            Op::Pin { tokens, identity, expires } => self.pin(tokens, &identities()[*identity], *expires),
            Op::PinLike { seq, keep, expires } => {
                if let Some((model, _)) = self.pick(*seq) {
                    let like = self.model.sequence(model).expect("live").clone();
                    self.pin(&like.tokens[..like.tokens.len().min(*keep)], &like.identity, *expires);
                }
            }
            Op::Unpin { pin } => {
                if let Some(&(model, core)) = self.pins.get(pin % self.pins.len().max(1)) {
                    let expected = self.model.unpin(model);
                    let found = self.core.unpin(core).map_err(|error| bridge::fault(&error));
                    assert_eq!(found, expected, "unpin");
                    self.census.add(if expected.is_ok() { "pin released" } else { "pin stale" }, 1);
                }
            }
            Op::NewEpoch => {
                self.model.memory.new_epoch();
                self.core.new_epoch();
            }
            Op::TakeOps => self.take_ops(),
            Op::BeginStep => assert_eq!(self.core.begin_step(), self.model.begin_step()),
            Op::EndStep { step } => {
                let open = &self.model.pool().open_steps;
                let step = open.get(*step % open.len().max(1)).copied().unwrap_or(0);
                self.end_step(step);
            }
            Op::EndAnyStep { step } => self.end_step(*step),
            Op::Clear => assert_eq!(self.core.clear(), self.model.clear(), "clear"),
            Op::Dead { seq, call } => self.call_dead(*seq, *call),
        }
    }

    fn pick_all(&self, seqs: &[usize]) -> Option<(Vec<usize>, Vec<SequenceId>)> {
        let chosen = seqs.iter().map(|&seq| self.pick(seq)).collect::<Option<Vec<_>>>()?;
        (!chosen.is_empty()).then(|| chosen.into_iter().unzip())
    }

    fn reserve_many(&mut self, model: &[usize], core: &[SequenceId], lens: &[usize]) {
        let expected = self.model.reserve_many(model, lens);
        let found = match self.core.reserve_many(core, lens) {
            Ok(Room::Granted) => Ok(ModelRoom::Granted),
            Ok(Room::Short { needed, available }) => Ok(ModelRoom::Short { needed, available }),
            Err(error) => Err(bridge::fault(&error)),
        };
        assert_eq!(found, expected, "reserve_many");
        self.census.add(&format!("reserve many: {}", outcome_of(&expected)), 1);
    }

    fn advance_many(&mut self, model: &[usize], core: &[SequenceId], tokens: &[Vec<i32>]) {
        let expected = self.model.advance_many(model, tokens);
        let counts: Vec<usize> = tokens.iter().map(Vec::len).collect();
        let found = self.core.advance_many(core, &tokens.concat(), &counts);
        assert_eq!(found.map_err(|error| bridge::fault(&error)), expected, "advance_many");
    }

    fn pin(&mut self, tokens: &[i32], identity: &Identity, expires: Option<usize>) {
        let expected = self.model.pin(tokens, identity, expires);
        let found = self.core.pin(tokens, &bridge::identity(identity), expires.map(|steps| steps as u64));
        match (expected, found) {
            (Ok(model), Ok(core)) => self.pins.push((model, core)),
            (expected, found) => assert_eq!(found.map(drop).map_err(|error| bridge::fault(&error)), expected.map(drop)),
        }
    }

    pub fn open(&mut self, tokens: &[i32], identity: &Identity) {
        self.compare_match(tokens, identity);
        let expected = self.model.open(tokens, identity).expect("good tokens");
        let found = self.core.open(tokens, &bridge::identity(identity)).expect("good tokens");
        self.live.push((expected, found));
    }

    pub fn reserve(&mut self, model: usize, core: SequenceId, num_tokens: usize) {
        let can = self.model.can_reserve(model, num_tokens);
        let core_can = self.core.can_reserve(core, num_tokens);
        assert_eq!(core_can.map_err(|error| bridge::fault(&error)), can, "can_reserve");
        let expected = self.model.reserve(model, num_tokens);
        let found = match self.core.reserve(core, num_tokens) {
            Ok(Room::Granted) => Ok(ModelRoom::Granted),
            Ok(Room::Short { needed, available }) => Ok(ModelRoom::Short { needed, available }),
            Err(error) => Err(bridge::fault(&error)),
        };
        assert_eq!(found, expected, "reserve");
        self.census.add(&format!("reserve: {}", outcome_of(&expected)), 1);
    }

    fn advance(&mut self, model: usize, core: SequenceId, tokens: &[i32]) {
        let expected = self.model.advance(model, tokens);
        let found = self.core.advance(core, tokens).map_err(|error| bridge::fault(&error));
        assert_eq!(found, expected, "advance");
        self.census.add(if expected.is_ok() { "advance: accepted" } else { "advance: refused" }, 1);
    }

    fn truncate(&mut self, model: usize, core: SequenceId, num_tokens: usize) {
        let expected = self.model.truncate(model, num_tokens);
        let found = self.core.truncate(core, num_tokens).map_err(|error| bridge::fault(&error));
        assert_eq!(found, expected, "truncate");
        self.census.add(if expected.is_ok() { "truncate: accepted" } else { "truncate: refused" }, 1);
    }

    fn take_ops(&mut self) {
        let expected = self.model.memory.take_ops();
        let found = self.core.take_ops();
        assert_eq!(found.copies, expected, "take_ops");
        self.census.add("copy taken", expected.len());
        assert!(found.zero.is_empty());
    }

    pub fn end_step(&mut self, step: u64) {
        let expected = self.model.end_step(step);
        let found = self.core.end_step(step).map_err(|error| bridge::fault(&error));
        assert_eq!(found, expected, "end_step");
    }

    fn compare_match(&self, tokens: &[i32], identity: &Identity) {
        let expected = self.model.match_prefix(tokens, identity);
        let found = self.core.match_prefix(tokens, &bridge::identity(identity));
        assert_eq!(found.map_err(|error| bridge::fault(&error)), expected, "match");
    }

    fn compare_views(&self, seqs: &[usize], starts: &[usize], lens: &[usize]) {
        let Some(chosen) = seqs.iter().map(|&seq| self.pick(seq)).collect::<Option<Vec<_>>>() else {
            return;
        };
        let (model, core): (Vec<_>, Vec<_>) = chosen.into_iter().unzip();
        let expected = self.model.csr(&model, lens);
        let found = self.core.csr(&core, lens).map_err(|error| bridge::fault(&error));
        let found = found.map(|csr| support::cache::Csr {
            indptr: csr.indptr,
            indices: csr.indices,
            last_page_len: csr.last_page_len,
        });
        assert_eq!(found, expected, "csr");
        let expected = self.model.slots(&model, starts, lens);
        let found = self.core.slots(&core, starts, lens).map_err(|error| bridge::fault(&error));
        assert_eq!(found, expected, "slots");
    }

    fn call_dead(&mut self, seq: usize, call: usize) {
        let (core, expected) = match self.dead.get(seq) {
            Some(&(_, core)) => (core, Fault::Stale),
            None => (never_issued(), Fault::Unknown),
        };
        let other = octavo_core::Identity::default();
        assert!(self.core.open(&[-1], &other).is_err(), "a negative token");
        let found = match call {
            0 => self.core.num_computed(core).map(drop),
            1 => self.core.reserve(core, 1).map(drop),
            2 => self.core.can_reserve(core, 1).map(drop),
            3 => self.core.advance(core, &[-5]).map(drop),
            4 => self.core.truncate(core, 1_000).map(drop),
            5 => self.core.fork(core).map(drop),
            6 => self.core.close(core).map(drop),
            7 => self.core.table(core).map(drop),
            8 => self.core.csr(&[core], &[]).map(drop),
            _ => self.core.slots(&[core], &[], &[]).map(drop),
        };
        assert_eq!(found.map_err(|error| bridge::fault(&error)), Err(expected), "call {call}");
    }
}

fn outcome_of(result: &Result<ModelRoom, Fault>) -> &'static str {
    match result {
        Ok(ModelRoom::Granted) => "granted",
        Ok(ModelRoom::Short { .. }) => "short of blocks",
        Err(_) => "refused, ops not taken",
    }
}

fn never_issued() -> SequenceId {
    SequenceId::from_raw((2 << 60) | 0xD_BBA0).expect("a sequence's tag")
}
