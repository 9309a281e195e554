//! Sequences of calls on the scheduler and on its naive model, in worlds so small that rows,
//! blocks and budget are always short; after every call the two must agree in plans, tables,
//! outcomes, counters and errors, and the core's `audit` must find nothing.
//!
//! Two schedulers of the core run: one writes whole plans, the other only decides. The mirror of
//! the tables that an engine would keep is replayed from the plans' changes alone (L8).

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
use std::collections::BTreeMap;

use octavo_core::{
    Batching, CacheConfig, Decision, Error, Outcome, Policy, Reason, Request, RequestId, Reserve, Scheduler,
    SchedulerConfig, SequenceId, StepPlan, Victim,
};
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestRunner};
use support::bridge;
use support::census::Census;
use support::names::{Identity, Span};
use support::scheduler::{Ending, ModelOutcome, ModelPlan, SchedulerModel, Submitted, World};

#[derive(Clone, Debug)]
struct Asked {
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
}

impl Asked {
    fn submitted(&self) -> Submitted {
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
        }
    }

    fn request(&self) -> Request {
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
            ..Request::new(self.prompt.clone(), self.max_tokens)
        }
    }
}

/// How a commit is asked for.
#[derive(Clone, Copy, Debug)]
enum Manner {
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
enum Op {
    Add(Asked),
    AddMany(Vec<Asked>),
    SetReady {
        request: usize,
    },
    Clear,
    End {
        request: usize,
        ending: Ending,
        by_sequence: bool,
    },
    Step {
        seconds: f64,
    },
    Commit {
        tokens: Vec<i32>,
        manner: Manner,
    },
    /// A number of steps, each committed at once.
    Run {
        rounds: usize,
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

fn world() -> impl Strategy<Value = World> {
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
        prop_oneof![2 => Just(Reserve::OnDemand), 1 => Just(Reserve::WorstCase)],
    );
    (limits, manners, choices).prop_map(|(limits, manners, choices)| World {
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
    })
}

fn asked() -> impl Strategy<Value = Asked> {
    let common = |len: usize| (0..len).map(|at| (at.count_ones() % 2) as i32).collect::<Vec<i32>>();
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

fn op() -> impl Strategy<Value = Op> {
    let ending = prop_oneof![Just(Ending::Aborted), Just(Ending::Finished)];
    let sampled = prop::collection::vec(0..2i32, 4);
    prop_oneof![
        9 => asked().prop_map(Op::Add),
        2 => prop::collection::vec(asked(), 0..4).prop_map(Op::AddMany),
        3 => (0usize..8).prop_map(|request| Op::SetReady { request }),
        1 => Just(Op::Clear),
        4 => (0usize..8, ending, any::<bool>())
            .prop_map(|(request, ending, by_sequence)| Op::End { request, ending, by_sequence }),
        10 => prop_oneof![
            8 => Just(1.0),
            2 => Just(0.0),
            1 => prop_oneof![Just(-0.5), Just(f64::NAN), Just(f64::NEG_INFINITY)],
        ]
        .prop_map(|seconds| Op::Step { seconds }),
        10 => (sampled.clone(), manner())
            .prop_map(|(tokens, manner)| Op::Commit { tokens, manner }),
        6 => (1usize..8, sampled).prop_map(|(rounds, tokens)| Op::Run { rounds, tokens }),
        1 => (prop::collection::vec(-1..2i32, 0..10), any::<bool>())
            .prop_map(|(tokens, salt)| Op::Match { tokens, salt }),
        1 => (0usize..12).prop_map(|request| Op::Read { request }),
    ]
}

fn salt(is_salted: bool) -> Vec<u8> {
    if is_salted { b"salt".to_vec() } else { Vec::new() }
}

/// The core, writing and deciding, and the model side by side.
struct Trio {
    core: Scheduler,
    decider: Scheduler,
    model: SchedulerModel,
    plan: StepPlan,
    handles: Vec<(RequestId, SequenceId)>,
    names: BTreeMap<i64, usize>,
    mirror: BTreeMap<(i32, i32), i32>,
    now: f64,
    last_number: Option<u64>,
    census: Census,
}

impl Trio {
    fn new(world: &World, hash_bits: i64) -> Self {
        let config = SchedulerConfig {
            cache: CacheConfig {
                block_size: world.block_size as i64,
                prefix_caching: world.prefix_caching,
                hash_bits,
                ..CacheConfig::new(world.num_blocks as i64)
            },
            max_num_seqs: world.max_num_seqs as i64,
            max_num_batched_tokens: world.max_num_batched_tokens as i64,
            max_model_len: world.max_model_len as i64,
            max_partial_prefills: world.max_partial_prefills as i64,
            long_prefill_threshold: world.long_prefill_threshold as i64,
            watermark: world.watermark,
            batching: world.batching,
            policy: world.policy,
            aging: world.aging,
            victim: world.victim,
            reserve: world.reserve,
            ..SchedulerConfig::new(world.num_blocks as i64)
        };
        Self {
            core: Scheduler::new(&config).expect("a world in range"),
            decider: Scheduler::new(&config).expect("a world in range"),
            model: SchedulerModel::new(world),
            plan: StepPlan::default(),
            handles: Vec::new(),
            names: BTreeMap::new(),
            mirror: BTreeMap::new(),
            now: 0.0,
            last_number: None,
            census: Census::default(),
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Add(asked) => self.add(asked),
            Op::AddMany(all) => self.add_many(all),
            Op::SetReady { request } => self.set_ready(self.newest(*request)),
            Op::Clear => {
                let cleared = self.model.clear();
                assert_eq!(self.core.clear(), cleared, "clear");
                assert_eq!(self.decider.clear(), cleared, "L13");
            }
            Op::End { request, ending, by_sequence } => {
                self.end(self.newest(*request), *ending, *by_sequence);
            }
            Op::Step { seconds } => self.step(self.now + seconds),
            Op::Commit { tokens, manner } => self.commit(tokens, *manner),
            Op::Run { rounds, tokens } => {
                for round in 0..*rounds {
                    self.step(self.now + 1.0);
                    self.compare();
                    let mut tokens = tokens.clone();
                    tokens.rotate_left(round % 4);
                    self.commit(&tokens, Manner::Plain);
                    self.compare();
                }
            }
            Op::Match { tokens, salt: is_salted } => {
                let identity = Identity { salt: salt(*is_salted), spans: Vec::new() };
                let expected = self.model.match_prefix(tokens, &identity);
                let found = self.core.match_prefix(tokens, &bridge::identity(&identity));
                assert_eq!(found.map_err(|error| bridge::fault(&error)), expected, "match");
            }
            Op::Read { request } => self.read(self.newest(*request)),
        }
    }

    /// The number of the request that was added `back` requests before the newest one; beyond the first one, a number
    /// that was never given.
    fn newest(&self, back: usize) -> usize {
        self.handles.len().checked_sub(back + 1).unwrap_or(self.handles.len())
    }

    fn add(&mut self, asked: &Asked) {
        let expected = self.model.add(&asked.submitted());
        let request = asked.request();
        let decided = self.decider.add(request.clone());
        let found = self.core.add(request);
        assert_eq!(found.is_ok(), decided.is_ok(), "L13");
        match (found, expected) {
            (Ok(handle), Ok(number)) => {
                assert_eq!(decided.expect("both"), handle, "L13: handles");
                self.name(handle, number);
            }
            (found, expected) => {
                self.census.add("add: refused", 1);
                assert_eq!(found.map(drop).map_err(|error| bridge::fault(&error)), expected.map(drop), "add");
            }
        }
    }

    fn name(&mut self, handle: RequestId, number: usize) {
        let sequences = self.core.sequences(handle).expect("alive");
        assert_eq!(sequences.len(), 1);
        self.names.insert(sequences[0].raw(), number);
        self.handles.push((handle, sequences[0]));
    }

    fn add_many(&mut self, all: &[Asked]) {
        let submitted: Vec<Submitted> = all.iter().map(Asked::submitted).collect();
        let requests: Vec<Request> = all.iter().map(Asked::request).collect();
        let decided = self.decider.add_many(requests.clone());
        match (self.core.add_many(requests), self.model.add_many(&submitted)) {
            (Ok(handles), Ok(numbers)) => {
                assert_eq!(decided.expect("both"), handles, "L13: handles");
                assert_eq!(handles.len(), numbers.len());
                for (handle, number) in handles.into_iter().zip(numbers) {
                    self.name(handle, number);
                }
            }
            (Err(Error::Request(error)), Err(index)) => {
                assert!(error.argument.ends_with(&format!("[{index}]")), "{}", error.argument);
                assert!(decided.is_err(), "L13");
            }
            (found, expected) => panic!("add_many: {found:?}, and {expected:?} in the model"),
        }
    }

    fn set_ready(&mut self, request: usize) {
        let (handle, _) = self.handles.get(request).copied().unwrap_or_else(never_issued);
        let expected = self.model.set_ready(request);
        for scheduler in [&mut self.core, &mut self.decider] {
            assert_eq!(scheduler.set_ready(handle).map_err(|error| bridge::fault(&error)), expected, "set_ready");
        }
    }

    fn end(&mut self, request: usize, ending: Ending, by_sequence: bool) {
        let (handle, sequence) = self.handles.get(request).copied().unwrap_or_else(never_issued);
        let call = |scheduler: &mut Scheduler| match (ending, by_sequence) {
            (Ending::Aborted, false) => scheduler.abort(handle),
            (Ending::Aborted, true) => scheduler.abort(sequence),
            (_, false) => scheduler.finish(handle),
            (_, true) => scheduler.finish(sequence),
        };
        let expected = self.model.end(request, ending);
        let found = call(&mut self.core).map_err(|error| bridge::fault(&error));
        assert_eq!(found, expected, "abort or finish");
        let decided = call(&mut self.decider).map_err(|error| bridge::fault(&error));
        assert_eq!(decided, expected, "L13");
    }

    fn read(&self, request: usize) {
        let (handle, sequence) = self.handles.get(request).copied().unwrap_or_else(never_issued);
        let expected = self.model.tokens(request);
        let found = self.core.tokens(sequence).map_err(|error| bridge::fault(&error));
        assert_eq!(found, expected, "tokens");
        let found = self.core.sequences(handle).map_err(|error| bridge::fault(&error));
        assert_eq!(found.map(<[SequenceId]>::to_vec), expected.map(|_| vec![sequence]));
    }

    fn step(&mut self, now: f64) {
        let expected = self.model.step(now);
        let found = self.core.step(now, &mut self.plan).map_err(|error| bridge::fault(&error));
        assert_eq!(found, expected.as_ref().map(Option::is_some).map_err(|fault| *fault), "step");
        let decided = self.decider.decide(now).map_err(|error| bridge::fault(&error));
        assert_eq!(decided.as_ref().map(Option::is_some).map_err(|fault| *fault), found, "decide alone");
        if let Ok(Some(decision)) = decided {
            compare_decision(decision, &self.plan);
        }
        if found.is_ok() {
            self.now = now;
        }
        match &expected {
            Ok(Some(plan)) => self.count_plan(plan),
            Ok(None) => self.census.add("step: None", 1),
            Err(_) => self.census.add("step: refused", 1),
        }
        if let Ok(Some(plan)) = expected {
            self.compare_plan(&plan);
            self.replay(&plan);
            self.last_number = Some(plan.number);
        }
        if found.is_ok() {
            assert_eq!(self.core.table_width(), self.model.table_width());
            assert_eq!(self.core.block_tables(0), Some(self.model.block_tables.as_slice()), "block_tables");
        }
    }

    fn count_plan(&mut self, plan: &ModelPlan) {
        let placed = plan.seqs.len();
        let prompts = placed - plan.num_decodes;
        let chunks = plan.sample_seqs.len().abs_diff(placed);
        for (what, times) in [
            ("plan", 1),
            ("plan: empty", usize::from(placed == 0)),
            ("plan: preempts and computes", usize::from(placed > 0 && !plan.preempted.is_empty())),
            ("row: decode", plan.num_decodes),
            ("row: prompt", prompts),
            ("row: not sampling", chunks),
            ("admitted", plan.admitted.len()),
            ("resumed", plan.resumed.len()),
            ("preempted", plan.preempted.len()),
            ("table change", plan.table_changes.len()),
        ] {
            self.census.add(what, times);
        }
    }

    fn compare_plan(&self, expected: &ModelPlan) {
        let name = |raw: &i64| self.names[raw];
        let names = |raws: &[i64]| raws.iter().map(name).collect::<Vec<_>>();
        let plan = &self.plan;
        let found = ModelPlan {
            number: plan.number(),
            seqs: names(plan.seqs()),
            rows: plan.rows().to_vec(),
            num_decodes: plan.num_decodes(),
            num_padded: plan.num_padded(),
            num_tokens: plan.num_tokens().to_vec(),
            query_start: plan.query_start().to_vec(),
            token_ids: plan.token_ids().to_vec(),
            positions: plan.positions().to_vec(),
            slot_mapping: plan.slot_mapping().to_vec(),
            seq_lens: plan.seq_lens().to_vec(),
            sample: plan.sample().to_vec(),
            sample_seqs: names(plan.sample_seqs()),
            sample_indptr: plan.sample_indptr().to_vec(),
            table_changes: plan.table_changes().to_vec(),
            admitted: names(plan.admitted()),
            resumed: names(plan.resumed()),
            preempted: names(plan.preempted()),
            ended: names(plan.ended()),
        };
        assert_eq!(&found, expected, "plan");
        assert!(plan.token_source().is_empty() && plan.copies().is_empty() && plan.zero().is_empty());
        check_layout(plan);
        let scheduled: i32 = plan.num_tokens().iter().sum();
        assert!(scheduled as usize <= self.model.world.max_num_batched_tokens, "L10");
        assert!(plan.seqs().len() <= self.model.world.max_num_seqs, "L10");
    }

    /// What an engine knows of the tables must be enough (L8).
    fn replay(&mut self, plan: &ModelPlan) {
        for &[group, row, index, block] in &plan.table_changes {
            assert_eq!(group, 0);
            self.mirror.insert((row, index), block);
        }
        for row in 0..self.model.world.max_num_seqs {
            for (index, &block) in self.model.row_table(row).unwrap_or(&[]).iter().enumerate() {
                let seen = self.mirror.get(&(row as i32, index as i32));
                assert_eq!(seen, Some(&block), "L8: row {row}, index {index}");
            }
        }
    }

    fn commit(&mut self, tokens: &[i32], manner: Manner) {
        let num_samplers = self.model.num_samplers();
        let mut tokens = tokens[..num_samplers].to_vec();
        let mut number = self.model.out_number().or(self.last_number).unwrap_or(0);
        let mut counts = None;
        match manner {
            Manner::Plain => {}
            Manner::WithCounts => counts = Some(vec![1; num_samplers]),
            Manner::OldPlan => number = number.wrapping_sub(1),
            Manner::NextPlan => number += 1,
            Manner::TooMany => tokens.push(0),
            Manner::TooFew => drop(tokens.pop()),
            Manner::NegativeToken => tokens.iter_mut().for_each(|token| *token = -1),
            Manner::WrongCounts => counts = Some(vec![2; num_samplers]),
            Manner::ShortCounts => counts = Some(vec![1; num_samplers + 1]),
        }
        let expected = self.model.commit(number, &tokens, counts.as_deref());
        let mut outcome = Outcome::default();
        let found = self.core.commit(number, &tokens, counts.as_deref(), &mut outcome);
        let found = found.map(|()| self.outcome(&outcome)).map_err(|error| bridge::fault(&error));
        assert_eq!(found, expected, "commit");
        match &expected {
            Ok(outcome) => {
                self.census.add("commit: accepted", 1);
                for (_, ending) in &outcome.finished {
                    self.census.add(&format!("end: {ending:?}"), 1);
                }
            }
            Err(fault) => self.census.add(&format!("commit: {fault:?}"), 1),
        }
        let mut second = Outcome::default();
        let decided = self.decider.commit(number, &tokens, counts.as_deref(), &mut second);
        let decided = decided.map(|()| self.outcome(&second)).map_err(|error| bridge::fault(&error));
        assert_eq!(decided, expected, "L13");
    }

    fn outcome(&self, outcome: &Outcome) -> ModelOutcome {
        let name = |seq: &SequenceId| self.names[&seq.raw()];
        let reasons = outcome.reasons.iter().map(|&reason| ending(reason));
        ModelOutcome {
            seqs: outcome.seqs.iter().map(name).collect(),
            indptr: outcome.indptr.clone(),
            tokens: outcome.tokens.clone(),
            finished: outcome.finished.iter().map(name).zip(reasons).collect(),
        }
    }

    /// Everything that can be seen, on all sides.
    fn compare(&mut self) {
        self.census.add("comparison", 1);
        self.model.check();
        self.core.audit().expect("the laws hold");
        self.decider.audit().expect("the laws hold");
        assert_eq!(self.core.has_work(), self.model.has_work(), "has_work");
        let (stats, model) = (self.core.stats(), &self.model);
        assert_eq!(stats, self.decider.stats(), "L13");
        let (tally, counters) = (model.pool.tally(), &model.counters);
        let found = [
            ("num_blocks", stats.num_blocks as usize, model.world.num_blocks),
            ("usable", stats.usable as usize, model.world.num_blocks),
            ("blank", stats.blank as usize, tally.blank),
            ("cached", stats.cached as usize, tally.cached),
            ("held", stats.held as usize, tally.held),
            ("fenced", stats.fenced as usize, tally.fenced),
            ("available", stats.available as usize, model.pool.available()),
            ("guarded", stats.guarded as usize, tally.guarded),
            ("prefix_queries", stats.prefix_queries as usize, counters.prefix_queries),
            ("prefix_hits", stats.prefix_hits as usize, counters.prefix_hits),
            ("resumed_queries", stats.resumed_queries as usize, counters.resumed_queries),
            ("resumed_hits", stats.resumed_hits as usize, counters.resumed_hits),
            ("published_blocks", stats.published_blocks as usize, model.pool.published),
            ("merged_blocks", stats.merged_blocks as usize, model.pool.merged),
            ("evicted_blocks", stats.evicted_blocks as usize, model.pool.evicted),
            ("copies", stats.copies as usize, 0),
            ("waiting", stats.waiting as usize, model.num_waiting()),
            ("running", stats.running as usize, model.num_unended()),
            ("requests", stats.requests as usize, model.num_alive()),
            ("steps", stats.steps as usize, counters.steps),
            ("scheduled_tokens", stats.scheduled_tokens as usize, counters.scheduled_tokens),
            ("preemptions", stats.preemptions as usize, counters.preemptions),
            ("recomputed_tokens", stats.recomputed_tokens as usize, counters.recomputed_tokens),
            ("finished", stats.finished as usize, model.num_finished()),
            ("plans_out", stats.plans_out as usize, usize::from(model.out_number().is_some())),
        ];
        for (name, core, model) in found {
            assert_eq!(core, model, "stats.{name}");
        }
        assert_eq!(self.core.draw().trim_end(), model.draw(), "draw");
    }

    /// Steps until nothing is left: every request must end in a bounded number of steps (L11).
    fn finish(&mut self) {
        for request in 0..self.handles.len() {
            self.set_ready(request);
        }
        let world = &self.model.world;
        let tokens_each = 2 * world.max_model_len * self.handles.len().max(1);
        let mut rounds_left = 40 + tokens_each * (1 + self.handles.len());
        while self.model.has_work() {
            assert!(rounds_left > 0, "L11: requests do not end");
            rounds_left -= 1;
            self.step(self.now + 1.0);
            self.compare();
            self.commit(&[0, 1, 0, 1], Manner::Plain);
            self.compare();
        }
        self.step(self.now);
        self.compare();
        assert_eq!(self.core.stats().held, 0, "at idle nothing is held");
        for request in 0..self.handles.len() {
            self.read(request);
        }
    }
}

/// The arrays lie in the buffer one after the other, each where a 64-bit word begins, and fill it.
fn check_layout(plan: &StepPlan) {
    let mut end: usize = 0;
    for section in plan.layout() {
        assert_eq!(section.offset, end.next_multiple_of(8), "{}", section.name);
        end = section.offset + section.size() * section.dtype.size();
    }
    assert_eq!(plan.bytes().len(), end.next_multiple_of(8));
    let seqs = plan.section("seqs").expect("every plan has it");
    let bytes = &plan.bytes()[seqs.offset..][..seqs.size() * 8];
    let read: Vec<i64> =
        bytes.chunks_exact(8).map(|word| i64::from_ne_bytes(word.try_into().expect("8 bytes"))).collect();
    assert_eq!(read, plan.seqs());
}

fn compare_decision(decision: &Decision, plan: &StepPlan) {
    let raws = |seqs: &[SequenceId]| seqs.iter().map(|seq| seq.raw()).collect::<Vec<_>>();
    let placed = &decision.placed;
    assert_eq!(decision.number, plan.number());
    assert_eq!(decision.num_decodes, plan.num_decodes());
    assert_eq!(decision.num_tokens, plan.token_ids().len());
    assert_eq!(decision.num_padded, plan.num_padded());
    assert_eq!(placed.iter().map(|placed| placed.seq.raw()).collect::<Vec<_>>(), plan.seqs());
    assert_eq!(placed.iter().map(|placed| placed.row as i32).collect::<Vec<_>>(), plan.rows());
    assert_eq!(placed.iter().map(|placed| placed.num_tokens as i32).collect::<Vec<_>>(), plan.num_tokens());
    assert_eq!(
        placed.iter().map(|placed| (placed.start + placed.num_tokens) as i32).collect::<Vec<_>>(),
        plan.seq_lens()
    );
    let samplers: Vec<i64> =
        placed.iter().filter(|placed| placed.num_samples > 0).map(|placed| placed.seq.raw()).collect();
    assert_eq!(samplers, plan.sample_seqs());
    assert_eq!(raws(&decision.admitted), plan.admitted());
    assert_eq!(raws(&decision.resumed), plan.resumed());
    assert_eq!(raws(&decision.preempted), plan.preempted());
    assert_eq!(raws(&decision.ended), plan.ended());
}

fn ending(reason: Reason) -> Ending {
    match reason {
        Reason::Stop => Ending::Stop,
        Reason::Length => Ending::Length,
        Reason::Capacity => Ending::Capacity,
        Reason::Aborted => Ending::Aborted,
        Reason::Finished => Ending::Finished,
        Reason::Rejected => panic!("nothing is rejected after `add`"),
    }
}

fn never_issued() -> (RequestId, SequenceId) {
    let request = RequestId::from_raw((1 << 60) | 0xD_BBA0).expect("a request's tag");
    let sequence = SequenceId::from_raw((2 << 60) | 0xD_BBA0).expect("a sequence's tag");
    (request, sequence)
}

fn run(world: &World, hash_bits: i64, ops: &[Op]) -> Census {
    let mut trio = Trio::new(world, hash_bits);
    trio.compare();
    for op in ops {
        trio.census.add_call(op);
        trio.apply(op);
        trio.compare();
    }
    trio.finish();
    let stats = trio.core.stats();
    for (what, times) in [
        ("case", 1),
        ("tokens looked up", stats.prefix_queries + stats.resumed_queries),
        ("tokens hit", stats.prefix_hits + stats.resumed_hits),
        ("tokens recomputed", stats.recomputed_tokens),
        ("block published", stats.published_blocks),
        ("block merged", stats.merged_blocks),
        ("block evicted", stats.evicted_blocks),
    ] {
        trio.census.add(what, times as usize);
    }
    trio.census
}

support::machine::machine_tests!("scheduler_machine", 50);
