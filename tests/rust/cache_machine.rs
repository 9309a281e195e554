//! Sequences of calls on the allocator and on its naive model, in worlds so small that blocks are
//! always short and histories always meet; after every call the two must agree in everything that
//! can be seen, and the core's `audit` must find nothing.
//!
//! `PROPTEST_CASES` sets the number of cases, 256 without it; failures are kept under
//! `tests/rust/regressions`.

#![allow(
    dead_code,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::too_many_lines,
    clippy::unwrap_used,
    reason = "a test over tiny worlds: it stops at the first surprise, and its model is shared"
)]

mod support;

use std::cell::RefCell;

use octavo_core::{CacheConfig, KvCache, PinId, Room, SequenceId};
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestRunner};
use support::bridge;
use support::cache::{CacheModel, Fault, Room as ModelRoom};
use support::census::Census;
use support::names::{Identity, Span};
use support::pool::Pool;

#[derive(Clone, Debug)]
struct World {
    num_blocks: usize,
    block_size: usize,
    prefix_caching: bool,
    hash_seed: u64,
    null_block: bool,
    dedupe: bool,
}

/// A call; sequences and steps are chosen modulo what there is when the call is made.
#[derive(Clone, Debug)]
enum Op {
    Open {
        tokens: Vec<i32>,
        identity: usize,
    },
    /// Opens and computes all of the tokens.
    Start {
        tokens: Vec<i32>,
        identity: usize,
    },
    /// Opens with what another sequence has computed, and a little more.
    OpenLike {
        seq: usize,
        keep: usize,
        more: Vec<i32>,
    },
    Reserve {
        seq: usize,
        num_tokens: usize,
    },
    Advance {
        seq: usize,
        tokens: Vec<i32>,
    },
    /// Reserves room for the tokens and advances by them.
    Grow {
        seq: usize,
        tokens: Vec<i32>,
    },
    Truncate {
        seq: usize,
        num_tokens: usize,
    },
    Fork {
        seq: usize,
    },
    Close {
        seq: usize,
    },
    /// Rolls back into the tail, makes room, and advances.
    Rewind {
        seq: usize,
        by: usize,
        tokens: Vec<i32>,
    },
    /// Perhaps rolls back a token; forks, makes room in the fork and advances it. Its copy is taken in between, or
    /// later.
    Branch {
        seq: usize,
        cuts: bool,
        tokens: Vec<i32>,
        takes_ops: bool,
    },
    /// Closes the newest sequences.
    CloseNewest {
        count: usize,
    },
    Match {
        tokens: Vec<i32>,
        identity: usize,
    },
    Views {
        seqs: Vec<usize>,
        starts: Vec<usize>,
        lens: Vec<usize>,
    },
    OpenMany {
        prompts: Vec<Vec<i32>>,
        identity: usize,
    },
    ReserveMany {
        seqs: Vec<usize>,
        more: Vec<usize>,
    },
    AdvanceMany {
        seqs: Vec<usize>,
        tokens: Vec<Vec<i32>>,
    },
    /// Reserves room for the tokens in all of the sequences and advances them.
    GrowMany {
        tokens: Vec<Vec<i32>>,
    },
    CloseMany {
        seqs: Vec<usize>,
    },
    Pin {
        tokens: Vec<i32>,
        identity: usize,
        expires: Option<usize>,
    },
    /// Pins what another sequence has computed.
    PinLike {
        seq: usize,
        keep: usize,
        expires: Option<usize>,
    },
    Unpin {
        pin: usize,
    },
    NewEpoch,
    TakeOps,
    BeginStep,
    EndStep {
        step: usize,
    },
    EndAnyStep {
        step: u64,
    },
    Clear,
    /// Any call on a sequence that is closed, or was never there.
    Dead {
        seq: usize,
        call: usize,
    },
}

/// Identities whose keys are told apart only by salt, kind, value, place or reach.
fn identities() -> Vec<Identity> {
    let with = |salt: &[u8], spans: Vec<Span>| Identity { salt: salt.to_vec(), spans };
    vec![
        with(b"", vec![]),
        with(b"s", vec![]),
        with(b"", vec![Span::new(0, None, "s", b"")]),
        with(b"", vec![Span::new(0, None, "adapter", b"s")]),
        with(b"", vec![Span::new(2, Some(5), "image", b"x")]),
        with(b"", vec![Span::new(2, None, "image", b"x"), Span::new(0, Some(1), "image", b"y")]),
        with(b"", vec![Span::new(0, Some(1), "image", b"y"), Span::new(2, None, "image", b"x")]),
        with(b"", vec![Span::new(0, Some(2), "k", b""), Span::new(0, Some(90), "k", b"")]),
        with(b"", vec![Span::new(0, Some(2), "k", b""), Span::new(0, None, "k", b"")]),
        with(b"", vec![Span::new(0, None, "s", b""), Span::new(0, None, "s", b"")]),
    ]
}

fn identity_index() -> impl Strategy<Value = usize> {
    prop_oneof![12 => Just(0usize), 2 => Just(1usize), 5 => 0usize..identities().len()]
}

fn tokens(longest: usize) -> impl Strategy<Value = Vec<i32>> {
    prop_oneof![
        1 => prop::collection::vec(Just(0), 0..=longest),
        3 => prop::collection::vec(0..2i32, 0..=longest),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let seq = 0usize..8;
    prop_oneof![
        3 => (tokens(14), identity_index()).prop_map(|(tokens, identity)| Op::Open { tokens, identity }),
        10 => (tokens(14), identity_index()).prop_map(|(tokens, identity)| Op::Start { tokens, identity }),
        4 => (seq.clone(), 0usize..14, tokens(2))
            .prop_map(|(seq, keep, more)| Op::OpenLike { seq, keep, more }),
        6 => (seq.clone(), 0usize..20).prop_map(|(seq, num_tokens)| Op::Reserve { seq, num_tokens }),
        4 => (seq.clone(), tokens(5)).prop_map(|(seq, tokens)| Op::Advance { seq, tokens }),
        1 => (seq.clone(), prop::collection::vec(-1..2i32, 1..3))
            .prop_map(|(seq, tokens)| Op::Advance { seq, tokens }),
        14 => (seq.clone(), tokens(6)).prop_map(|(seq, tokens)| Op::Grow { seq, tokens }),
        6 => (seq.clone(), 0usize..16).prop_map(|(seq, num_tokens)| Op::Truncate { seq, num_tokens }),
        3 => seq.clone().prop_map(|seq| Op::Fork { seq }),
        8 => seq.clone().prop_map(|seq| Op::Close { seq }),
        12 => (seq.clone(), any::<bool>(), prop::collection::vec(0..2i32, 1..4), any::<bool>())
            .prop_map(|(seq, cuts, tokens, takes_ops)| Op::Branch { seq, cuts, tokens, takes_ops }),
        5 => (seq.clone(), 1usize..4, prop::collection::vec(0..2i32, 1..4))
            .prop_map(|(seq, by, tokens)| Op::Rewind { seq, by, tokens }),
        5 => (1usize..6).prop_map(|count| Op::CloseNewest { count }),
        2 => (tokens(14), identity_index()).prop_map(|(tokens, identity)| Op::Match { tokens, identity }),
        2 => (
            prop::collection::vec(0usize..8, 0..4),
            prop::collection::vec(0usize..6, 0..4),
            prop::collection::vec(0usize..12, 0..4),
        )
            .prop_map(|(seqs, starts, lens)| Op::Views { seqs, starts, lens }),
        1 => (prop::collection::vec(tokens(9), 0..4), identity_index())
            .prop_map(|(prompts, identity)| Op::OpenMany { prompts, identity }),
        3 => (prop::collection::vec(seq.clone(), 0..5), prop::collection::vec(0usize..6, 0..5))
            .prop_map(|(seqs, more)| Op::ReserveMany { seqs, more }),
        2 => (prop::collection::vec(seq.clone(), 0..4), prop::collection::vec(tokens(3), 0..4))
            .prop_map(|(seqs, tokens)| Op::AdvanceMany { seqs, tokens }),
        4 => prop::collection::vec(tokens(3), 1..5).prop_map(|tokens| Op::GrowMany { tokens }),
        1 => prop::collection::vec(seq.clone(), 0..4).prop_map(|seqs| Op::CloseMany { seqs }),
        1 => (tokens(9), identity_index(), prop::option::of(0usize..4))
            .prop_map(|(tokens, identity, expires)| Op::Pin { tokens, identity, expires }),
        4 => (seq, 0usize..14, prop::option::of(1usize..4))
            .prop_map(|(seq, keep, expires)| Op::PinLike { seq, keep, expires }),
        4 => (0usize..9).prop_map(|pin| Op::Unpin { pin }),
        1 => Just(Op::NewEpoch),
        5 => Just(Op::TakeOps),
        5 => Just(Op::BeginStep),
        5 => (0usize..3).prop_map(|step| Op::EndStep { step: step / 2 }),
        1 => (0u64..6).prop_map(|step| Op::EndAnyStep { step }),
        1 => Just(Op::Clear),
        1 => (0usize..20, 0usize..10).prop_map(|(seq, call)| Op::Dead { seq, call }),
    ]
}

fn world() -> impl Strategy<Value = World> {
    (
        prop_oneof![1 => 1usize..=12, 4 => 6usize..=12],
        prop_oneof![1 => Just(1usize), 6 => 2usize..=4],
        prop::bool::weighted(0.9),
        any::<u64>(),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.6),
    )
        .prop_map(|(num_blocks, block_size, prefix_caching, hash_seed, null_block, dedupe)| World {
            num_blocks,
            block_size,
            prefix_caching,
            hash_seed,
            null_block: null_block && num_blocks > 1,
            dedupe,
        })
}

/// The core and the model side by side.
struct Pair {
    core: KvCache,
    model: CacheModel,
    /// Live sequences: the model's number and the core's handle.
    live: Vec<(usize, SequenceId)>,
    dead: Vec<(usize, SequenceId)>,
    pins: Vec<(usize, PinId)>,
    census: Census,
}

impl Pair {
    fn new(world: &World, hash_bits: i64) -> Self {
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

    fn apply(&mut self, op: &Op) {
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

    fn open(&mut self, tokens: &[i32], identity: &Identity) {
        self.compare_match(tokens, identity);
        let expected = self.model.open(tokens, identity).expect("good tokens");
        let found = self.core.open(tokens, &bridge::identity(identity)).expect("good tokens");
        self.live.push((expected, found));
    }

    fn reserve(&mut self, model: usize, core: SequenceId, num_tokens: usize) {
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

    fn end_step(&mut self, step: u64) {
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

    /// Everything that can be seen, on both sides.
    fn compare(&mut self) {
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
    fn drain(&mut self) {
        let available = self.model.pool().available();
        self.open(&[], &Identity::default());
        let (model, core) = *self.live.last().expect("just opened");
        let block_size = self.model.pool().block_size;
        self.reserve(model, core, (available + 1) * block_size);
        self.reserve(model, core, available * block_size);
        self.compare();
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

fn run(world: &World, hash_bits: i64, ops: &[Op]) -> Census {
    let mut pair = Pair::new(world, hash_bits);
    pair.compare();
    for op in ops {
        pair.census.add_call(op);
        pair.apply(op);
        pair.compare();
    }
    for step in pair.model.pool().open_steps.clone() {
        pair.end_step(step);
        pair.compare();
    }
    let stats = pair.core.stats();
    for (what, times) in [
        ("case", 1),
        ("tokens looked up", stats.prefix_queries),
        ("tokens hit", stats.prefix_hits),
        ("block published", stats.published_blocks),
        ("block merged", stats.merged_blocks),
        ("block evicted", stats.evicted_blocks),
        ("copy made", stats.copies),
        ("hash collision", stats.hash_collisions),
    ] {
        pair.census.add(what, times as usize);
    }
    pair.drain();
    pair.census
}

support::machine::machine_tests!("cache_machine", 60);
