//! The calls, and the worlds they are made in.

use octavo_core::{Batching, Policy, Request, Reserve, Victim};
use proptest::prelude::*;

use crate::support::bridge;
use crate::support::names::{Identity, Span};
use crate::support::scheduler::{Ending, Submitted, World};

/// A request as a call gives it.
#[derive(Clone, Debug)]
pub struct Asked {
    prompt: Vec<i32>,
    max_tokens: usize,
    min_tokens: usize,
    stop_token_ids: Vec<i32>,
    arrival: Option<f64>,
    salt: bool,
    spans: Vec<Span>,
    adapter: u64,
    use_cache: bool,
    priority: i64,
    deadline: Option<f64>,
    key: Option<f64>,
    ready: bool,
    n: usize,
}

impl Asked {
    pub fn submitted(&self) -> Submitted {
        let mut spans = self.spans.clone();
        if self.adapter != 0 {
            spans.push(Span::new(0, None, "adapter", &self.adapter.to_le_bytes()));
        }
        Submitted {
            prompt: self.prompt.clone(),
            max_tokens: self.max_tokens,
            min_tokens: self.min_tokens,
            stop_token_ids: self.stop_token_ids.clone(),
            arrival: self.arrival,
            identity: Identity { salt: salt(self.salt), spans },
            use_cache: self.use_cache,
            priority: self.priority,
            deadline: self.deadline,
            key: self.key,
            ready: self.ready,
            n: self.n,
        }
    }

    pub fn request(&self) -> Request {
        let given = Identity { salt: salt(self.salt), spans: self.spans.clone() };
        Request {
            min_tokens: self.min_tokens,
            stop_token_ids: self.stop_token_ids.clone(),
            arrival: self.arrival,
            identity: bridge::identity(&given).with_adapter(self.adapter),
            use_cache: self.use_cache,
            priority: self.priority,
            deadline: self.deadline,
            key: self.key,
            ready: self.ready,
            n: self.n,
            ..Request::new(self.prompt.clone(), self.max_tokens)
        }
    }
}

/// How a commit is asked for.
#[derive(Clone, Copy, Debug)]
pub enum Manner {
    Plain,
    WithCounts,
    OldPlan,
    NextPlan,
    TooMany,
    TooFew,
    NegativeToken,
    WrongCounts,
    ShortCounts,
}

#[derive(Clone, Debug)]
pub enum Op {
    Add(Asked),
    AddMany(Vec<Asked>),
    SetReady {
        request: usize,
    },
    Clear,
    /// Aborts or finishes a request, or one of its sequences.
    End {
        request: usize,
        ending: Ending,
        member: Option<usize>,
    },
    Extend {
        request: usize,
        tokens: Vec<i32>,
        max_tokens: usize,
    },
    /// Commits all plans that are out, and extends the newest request that can be; finishes one for it otherwise.
    NextTurn {
        sampled: Vec<i32>,
        request: usize,
        tokens: Vec<i32>,
        max_tokens: usize,
    },
    /// Takes some steps, and cancels one of the plans that are out, the newest first; or one that is not.
    Cancel {
        steps: usize,
        back: usize,
    },
    Pin {
        tokens: Vec<i32>,
        expires: Option<usize>,
    },
    /// Pins what a request knows.
    PinLike {
        request: usize,
        expires: Option<usize>,
    },
    Unpin {
        pin: usize,
    },
    NewEpoch,
    Step {
        seconds: f64,
    },
    Commit {
        tokens: Vec<i32>,
        manner: Manner,
    },
    /// A number of steps, with so many plans out at most.
    Run {
        rounds: usize,
        depth: usize,
        tokens: Vec<i32>,
    },
    Match {
        tokens: Vec<i32>,
        salt: bool,
    },
    Read {
        request: usize,
    },
}

pub fn world() -> impl Strategy<Value = World> {
    let limits = (
        prop_oneof![1 => 1usize..=12, 3 => 4usize..=9],
        1usize..=4,
        prop_oneof![1 => Just(1usize), 4 => 2usize..=4],
        prop_oneof![1 => 1usize..=3, 3 => 3usize..=12],
        prop_oneof![1 => 2usize..=24, 4 => 12usize..=24],
    );
    let manners = (
        1usize..=3,
        prop_oneof![2 => Just(0usize), 1 => 1usize..=4],
        prop_oneof![6 => Just(0.0), 1 => Just(0.01), 2 => Just(0.25), 1 => Just(0.5), 1 => Just(0.9)],
        prop::bool::weighted(0.9),
    );
    let choices = (
        prop_oneof![
            2 => Just(Batching::Chunked),
            1 => Just(Batching::Mixed),
            1 => Just(Batching::Continuous),
            1 => Just(Batching::Static),
        ],
        prop_oneof![Just(Policy::Fcfs), Just(Policy::Priority), Just(Policy::Sjf), Just(Policy::Edf)],
        prop_oneof![2 => Just(0.0), 1 => Just(0.25), 1 => Just(1.0)],
        prop_oneof![Just(Victim::Latest), Just(Victim::LeastComputed), Just(Victim::LowestClass)],
        prop_oneof![3 => Just(Reserve::OnDemand), 1 => Just(Reserve::WorstCase)],
    );
    let flights = (
        prop_oneof![3 => Just(1usize), 4 => Just(2usize), 1 => Just(3usize), 1 => Just(4usize)],
        prop::bool::weighted(0.7),
        prop::bool::weighted(0.15),
    );
    (limits, manners, choices, flights).prop_map(|(limits, manners, choices, flights)| World {
        num_blocks: limits.0,
        block_size: limits.1,
        max_num_seqs: limits.2,
        max_num_batched_tokens: if choices.0 == Batching::Chunked { limits.3 } else { limits.3.max(limits.4) },
        max_model_len: limits.4,
        max_partial_prefills: manners.0,
        long_prefill_threshold: manners.1,
        watermark: manners.2,
        prefix_caching: manners.3,
        batching: choices.0,
        policy: choices.1,
        aging: choices.2,
        victim: choices.3,
        reserve: choices.4,
        inflight_steps: flights.0,
        dedupe: flights.1,
        null_block: flights.2 && limits.0 > 1,
    })
}

/// A text that many begin with.
fn common(len: usize) -> Vec<i32> {
    (0..len).map(|at| (at.count_ones() % 2) as i32).collect()
}

pub fn asked() -> impl Strategy<Value = Asked> {
    let prompt = prop_oneof![
        8 => (1usize..12).prop_map(common),
        5 => (0usize..8, prop::collection::vec(0..2i32, 1..4)).prop_map(move |(len, tail)| {
            let mut prompt = common(len);
            prompt.extend(tail);
            prompt
        }),
        4 => prop::collection::vec(0..2i32, 1..8),
        1 => prop::collection::vec(0..2i32, 10..30),
        1 => prop::collection::vec(-1..2i32, 0..3),
    ];
    let limits = (
        prop_oneof![1 => Just(0usize), 2 => 1usize..4, 8 => 4usize..20],
        prop_oneof![8 => Just(0usize), 2 => 1usize..6],
        prop_oneof![
            12 => Just(Vec::new()),
            2 => prop::collection::vec(0..3i32, 1..3),
            1 => Just(vec![1, -1]),
        ],
    );
    let arrival = prop_oneof![
        16 => Just(None),
        6 => (0u8..6).prop_map(|arrival| Some(f64::from(arrival) - 1.0)),
        1 => prop_oneof![Just(Some(f64::NAN)), Just(Some(f64::INFINITY))],
    ];
    let spans = prop_oneof![
        8 => Just(Vec::new()),
        1 => Just(vec![Span::new(0, None, "adapter", &7u64.to_le_bytes())]),
        1 => Just(vec![Span::new(1, Some(3), "image", b"x")]),
    ];
    let identity =
        (prop::bool::weighted(0.15), spans, prop_oneof![8 => Just(0u64), 1 => Just(7u64)], prop::bool::weighted(0.85));
    let rank = (
        prop_oneof![30 => -2i64..2, 1 => Just((1 << 53) + 1)],
        prop_oneof![4 => Just(None), 4 => (0u8..3).prop_map(|time| Some(f64::from(time))), 1 => Just(Some(-0.0))],
        prop_oneof![
            12 => Just(None),
            2 => (0u8..3).prop_map(|key| Some(f64::from(key) - 1.0)),
            1 => Just(Some(-0.0)),
            1 => Just(Some(f64::NEG_INFINITY)),
        ],
        prop::bool::weighted(0.85),
        prop_oneof![20 => Just(1usize), 5 => Just(2usize), 3 => Just(3usize), 1 => 0usize..6],
    );
    (prompt, limits, arrival, identity, rank).prop_map(|(prompt, limits, arrival, identity, rank)| Asked {
        prompt,
        max_tokens: limits.0,
        min_tokens: limits.1,
        stop_token_ids: limits.2,
        arrival,
        salt: identity.0,
        spans: identity.1,
        adapter: identity.2,
        use_cache: identity.3,
        priority: rank.0,
        deadline: rank.1,
        key: rank.2,
        ready: rank.3,
        n: rank.4,
    })
}

fn manner() -> impl Strategy<Value = Manner> {
    prop_oneof![
        14 => Just(Manner::Plain),
        3 => Just(Manner::WithCounts),
        1 => Just(Manner::OldPlan),
        1 => Just(Manner::NextPlan),
        1 => Just(Manner::TooMany),
        1 => Just(Manner::TooFew),
        1 => Just(Manner::NegativeToken),
        1 => Just(Manner::WrongCounts),
        1 => Just(Manner::ShortCounts),
    ]
}

pub fn op() -> impl Strategy<Value = Op> {
    let ending = prop_oneof![Just(Ending::Aborted), Just(Ending::Finished)];
    let sampled = prop::collection::vec(0..2i32, 4);
    prop_oneof![
        9 => asked().prop_map(Op::Add),
        2 => prop::collection::vec(asked(), 0..4).prop_map(Op::AddMany),
        3 => (0usize..8).prop_map(|request| Op::SetReady { request }),
        1 => Just(Op::Clear),
        4 => (0usize..8, ending, prop::option::weighted(0.6, 0usize..4))
            .prop_map(|(request, ending, member)| Op::End { request, ending, member }),
        2 => (0usize..6, prop::collection::vec(0..2i32, 1..6), 0usize..9)
            .prop_map(|(request, tokens, max_tokens)| Op::Extend { request, tokens, max_tokens }),
        1 => (0usize..6, prop::collection::vec(-1..2i32, 0..14), 0usize..30)
            .prop_map(|(request, tokens, max_tokens)| Op::Extend { request, tokens, max_tokens }),
        4 => (0usize..4, prop_oneof![6 => 0usize..2, 1 => 2usize..6])
            .prop_map(|(steps, back)| Op::Cancel { steps, back }),
        3 => (sampled.clone(), 0usize..4, prop::collection::vec(0..2i32, 1..6), 0usize..9)
            .prop_map(|(sampled, request, tokens, max_tokens)| Op::NextTurn { sampled, request, tokens, max_tokens }),
        2 => ((0usize..12).prop_map(common), prop::option::of(0usize..9))
            .prop_map(|(tokens, expires)| Op::Pin { tokens, expires }),
        3 => (0usize..6, prop::option::weighted(0.3, 1usize..9))
            .prop_map(|(request, expires)| Op::PinLike { request, expires }),
        1 => (prop::collection::vec(-1..2i32, 0..8), prop::option::of(1usize..9))
            .prop_map(|(tokens, expires)| Op::Pin { tokens, expires }),
        2 => (0usize..5).prop_map(|pin| Op::Unpin { pin }),
        1 => Just(Op::NewEpoch),
        10 => prop_oneof![
            8 => Just(1.0),
            2 => Just(0.0),
            1 => prop_oneof![Just(-0.5), Just(f64::NAN), Just(f64::NEG_INFINITY)],
        ]
        .prop_map(|seconds| Op::Step { seconds }),
        10 => (sampled.clone(), manner())
            .prop_map(|(tokens, manner)| Op::Commit { tokens, manner }),
        9 => (1usize..8, 1usize..5, sampled)
            .prop_map(|(rounds, depth, tokens)| Op::Run { rounds, depth, tokens }),
        1 => (prop::collection::vec(-1..2i32, 0..10), any::<bool>())
            .prop_map(|(tokens, salt)| Op::Match { tokens, salt }),
        1 => (0usize..12).prop_map(|request| Op::Read { request }),
    ]
}

pub fn salt(is_salted: bool) -> Vec<u8> {
    if is_salted { b"salt".to_vec() } else { Vec::new() }
}
