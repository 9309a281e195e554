//! The calls, and the worlds they are made in.

use proptest::prelude::*;

use crate::support::names::{Identity, Span};

#[derive(Clone, Debug)]
pub struct World {
    pub num_blocks: usize,
    pub block_size: usize,
    pub prefix_caching: bool,
    pub hash_seed: u64,
    pub null_block: bool,
    pub dedupe: bool,
}

/// A call; sequences and steps are chosen modulo what there is when the call is made.
#[derive(Clone, Debug)]
pub enum Op {
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
pub fn identities() -> Vec<Identity> {
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

pub fn op() -> impl Strategy<Value = Op> {
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

pub fn world() -> impl Strategy<Value = World> {
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
