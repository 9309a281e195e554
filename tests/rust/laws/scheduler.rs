//! L3–L5, L8, L10, L11 and L13 on the scheduler.

use std::collections::BTreeMap;

use octavo_core::{CacheConfig, Outcome, Reason, Request, RequestId, Scheduler, SchedulerConfig, StepPlan};

fn config(num_blocks: i64, block_size: i64) -> SchedulerConfig {
    SchedulerConfig {
        cache: CacheConfig { block_size, ..CacheConfig::new(num_blocks) },
        watermark: 0.0,
        ..SchedulerConfig::new(num_blocks)
    }
}

/// A scheduler with what an engine keeps beside it: its plan, its outcome, its mirror of the tables.
struct Engine {
    sched: Scheduler,
    plan: StepPlan,
    outcome: Outcome,
    mirror: BTreeMap<(i32, i32), i32>,
    now: f64,
}

impl Engine {
    fn new(config: &SchedulerConfig) -> Self {
        Self {
            sched: Scheduler::new(config).unwrap(),
            plan: StepPlan::default(),
            outcome: Outcome::default(),
            mirror: BTreeMap::new(),
            now: 0.0,
        }
    }

    fn add(&mut self, prompt: &[i32], max_tokens: usize) -> RequestId {
        self.sched.add(Request::new(prompt.to_vec(), max_tokens)).unwrap()
    }

    fn raw(&self, request: RequestId) -> i64 {
        self.sched.sequences(request).unwrap()[0].raw()
    }

    fn step(&mut self) -> bool {
        self.now += 1.0;
        let is_planned = self.sched.step(self.now, &mut self.plan).unwrap();
        self.sched.audit().unwrap();
        if is_planned {
            for &[_, row, index, block] in self.plan.table_changes() {
                self.mirror.insert((row, index), block);
            }
        }
        is_planned
    }

    /// Commits the plan; every sequence samples `token`.
    fn commit(&mut self, token: i32) {
        let tokens = vec![token; self.plan.sample_seqs().len()];
        self.sched.commit(self.plan.number(), &tokens, None, &mut self.outcome).unwrap();
        self.sched.audit().unwrap();
    }

    fn round(&mut self, token: i32) -> bool {
        let is_planned = self.step();
        if is_planned {
            self.commit(token);
        }
        is_planned
    }
}

#[test]
fn test_l4_equal_prompts_of_one_step_share_nothing_until_its_commit() {
    let mut engine = Engine::new(&config(8, 2));
    engine.add(&[1, 2, 3], 4);
    engine.add(&[1, 2, 3], 4);
    assert!(engine.step());
    assert_eq!(engine.plan.num_tokens(), [3, 3], "nothing was computed when they were admitted");
    let tables: Vec<i32> = engine.plan.table_changes().iter().map(|change| change[3]).collect();
    assert_eq!(tables, [0, 1, 2, 3]);
    engine.commit(7);
    assert_eq!(engine.sched.stats().merged_blocks, 1);
    assert!(engine.step());
    assert_eq!(engine.plan.table_changes(), [[0, 1, 0, 0]], "the merge shows in the next plan");
    engine.commit(7);
}

#[test]
fn test_l4_a_chunk_is_found_as_soon_as_it_is_committed() {
    let mut engine = Engine::new(&SchedulerConfig { max_num_batched_tokens: 2, ..config(8, 2) });
    let public = octavo_core::Identity::default();
    engine.add(&[1, 2, 3, 4, 5], 1);
    let probe = [1, 2, 3, 4, 0];
    for expected in [0, 2, 4] {
        assert_eq!(engine.sched.match_prefix(&probe, &public).unwrap(), expected);
        assert!(engine.step());
        assert_eq!(engine.sched.match_prefix(&probe, &public).unwrap(), expected);
        engine.commit(7);
    }
}

#[test]
fn test_l5_a_request_without_cache_neither_hits_nor_publishes() {
    let mut engine = Engine::new(&config(8, 2));
    let private = Request { use_cache: false, ..Request::new(vec![1, 2, 3], 1) };
    engine.sched.add(private.clone()).unwrap();
    engine.round(7);
    assert_eq!(engine.sched.stats().published_blocks, 0);
    engine.add(&[1, 2, 3], 1);
    engine.round(7);
    assert_eq!(engine.sched.stats().published_blocks, 1);
    engine.sched.add(private).unwrap();
    assert!(engine.step());
    assert_eq!(engine.plan.num_tokens(), [3]);
    assert_eq!(engine.sched.stats().prefix_queries, 3, "only the second one was looked up");
}

#[test]
fn test_l8_the_changes_of_all_plans_give_every_running_table() {
    let mut engine =
        Engine::new(&SchedulerConfig { max_num_seqs: 3, max_num_batched_tokens: 5, max_model_len: 14, ..config(7, 2) });
    for length in 1..9 {
        let prompt: Vec<i32> = (0..length).map(|at| at % 2).collect();
        engine.add(&prompt, 5);
    }
    let width = engine.sched.table_width();
    let mut rounds = 0;
    while engine.sched.has_work() {
        assert!(engine.step());
        let tables = engine.sched.block_tables(0).unwrap().to_vec();
        for (at, &row) in engine.plan.rows().iter().enumerate() {
            let blocks = (engine.plan.seq_lens()[at] as usize).div_ceil(2);
            for (index, block) in tables[row as usize * width..][..blocks].iter().enumerate() {
                assert_eq!(engine.mirror.get(&(row, index as i32)), Some(block), "row {row}");
            }
        }
        engine.commit(rounds % 2);
        rounds += 1;
        assert!(rounds < 200);
    }
    assert!(engine.sched.stats().preemptions > 0, "the case is tight enough");
}

#[test]
fn test_l8_a_block_granted_to_a_row_that_is_withdrawn_is_not_announced() {
    // Pool of 6 x 2, two tokens a step: one for the young one, which decodes, and one for the prompt of the old one,
    // whose arrival was told late. In the fifth step together both need a block and one is left.
    let mut engine = Engine::new(&SchedulerConfig { max_num_batched_tokens: 2, ..config(6, 2) });
    let young = engine.add(&[9, 9], 20);
    let young = engine.raw(young);
    assert!(engine.round(0));
    let old = Request { arrival: Some(-1.0), ..Request::new(vec![1, 2, 3, 4, 5, 6, 7, 8], 1) };
    let old = engine.sched.add(old).unwrap();
    let old = engine.raw(old);
    for _ in 0..4 {
        assert!(engine.step());
        assert_eq!(engine.plan.seqs(), [young, old]);
        assert_eq!(engine.plan.num_tokens(), [1, 1]);
        engine.commit(0);
    }
    assert_eq!(engine.sched.stats().available, 1);
    assert!(engine.step());
    assert_eq!(engine.plan.preempted(), [young]);
    assert_eq!(engine.plan.seqs(), [old], "the young one was placed, and is withdrawn completely");
    assert_eq!((engine.plan.num_tokens(), engine.plan.num_decodes()), (&[2][..], 0), "its token went back");
    assert_eq!(engine.plan.table_changes().len(), 1);
    assert_eq!(engine.plan.table_changes()[0][..3], [0, 1, 2], "the third block of the old one");
    engine.commit(0);
}

#[test]
fn test_l10_budget_rows_and_length_are_never_passed() {
    let mut engine =
        Engine::new(&SchedulerConfig { max_num_seqs: 2, max_num_batched_tokens: 3, max_model_len: 9, ..config(32, 2) });
    for length in 1..8 {
        // No two share a block, so that the longer ones are cut by the budget.
        let prompt: Vec<i32> = (0..length).map(|at| 10 * length + at).collect();
        engine.add(&prompt, 100);
    }
    let mut ended = 0;
    while engine.sched.has_work() {
        assert!(engine.step());
        let scheduled: i32 = engine.plan.num_tokens().iter().sum();
        assert!((1..=3).contains(&scheduled));
        assert!(engine.plan.seqs().len() <= 2);
        assert!(engine.plan.seq_lens().iter().all(|&len| len < 9));
        engine.commit(0);
        ended += engine.outcome.finished.len();
        assert!(engine.outcome.reasons.iter().all(|&reason| reason == Reason::Length));
    }
    assert_eq!(ended, 7);
}

#[test]
fn test_l11_the_last_one_that_cannot_grow_ends_with_capacity() {
    let mut engine = Engine::new(&config(3, 4));
    let request = engine.add(&[1, 2, 3, 4, 5], 100);
    let seq = engine.sched.sequences(request).unwrap()[0];
    let mut rounds = 0;
    while engine.sched.has_work() {
        assert!(engine.round(0));
        rounds += 1;
        assert!(rounds < 20);
    }
    assert_eq!(engine.outcome.finished, [seq]);
    assert_eq!(engine.outcome.reasons, [Reason::Capacity]);
    assert_eq!(engine.sched.tokens(seq).unwrap().len(), 13, "12 slots, and one token never fed");
    assert!(!engine.step());
    assert_eq!(engine.sched.stats().held, 0);
}

#[test]
fn test_l11_a_request_that_fits_alone_ends_whatever_runs_beside_it() {
    let mut engine = Engine::new(&SchedulerConfig { max_num_batched_tokens: 4, ..config(4, 2) });
    let requests: Vec<RequestId> = (0..5).map(|at| engine.add(&[at, 1, 2], 4)).collect();
    let mut reasons = Vec::new();
    let mut rounds = 0;
    while engine.sched.has_work() {
        assert!(engine.round(5));
        reasons.extend_from_slice(&engine.outcome.reasons);
        rounds += 1;
        assert!(rounds < 100, "a livelock");
    }
    assert_eq!(reasons, vec![Reason::Length; requests.len()]);
}

#[test]
fn test_l11_a_step_with_nothing_but_ends_returns_an_empty_plan() {
    let mut engine = Engine::new(&config(4, 2));
    let request = engine.add(&[1, 2], 4);
    let seq = engine.sched.sequences(request).unwrap()[0];
    engine.sched.abort(request).unwrap();
    assert!(engine.sched.has_work());
    assert!(engine.step());
    assert_eq!((engine.plan.seqs().len(), engine.plan.ended()), (0, &[seq.raw()][..]));
    engine.commit(0);
    assert_eq!(engine.outcome.finished, [seq]);
    assert_eq!(engine.outcome.reasons, [Reason::Aborted]);
    assert!(!engine.sched.has_work());
    assert!(!engine.step());
}

#[test]
fn test_l11_a_step_behind_a_plan_that_is_out_changes_nothing() {
    let mut engine = Engine::new(&config(4, 2));
    engine.add(&[1, 2], 4);
    assert!(engine.step());
    let before = (engine.sched.stats(), engine.sched.draw());
    engine.add(&[3], 1);
    assert!(!engine.step());
    assert!(!engine.step());
    let stats = engine.sched.stats();
    assert_eq!((stats.waiting, stats.plans_out), (1, 1));
    assert_eq!(engine.sched.draw(), before.1);
    engine.commit(0);
    assert!(engine.step());
}

#[test]
fn test_l13_the_same_calls_give_the_same_bytes() {
    let run = |hash_seed: u64, hash_bits: i64, is_fresh: bool| {
        let base = config(9, 2);
        let cache = CacheConfig { hash_seed, hash_bits, ..base.cache };
        let mut engine = Engine::new(&SchedulerConfig { cache, max_num_batched_tokens: 6, max_num_seqs: 3, ..base });
        for length in 1..9 {
            let prompt: Vec<i32> = (0..length).map(|at| at % 2).collect();
            engine.add(&prompt, 6);
        }
        let mut bytes = Vec::new();
        while engine.sched.has_work() {
            if is_fresh {
                engine.plan = StepPlan::new();
            }
            engine.step();
            bytes.extend_from_slice(engine.plan.bytes());
            engine.commit(1);
        }
        bytes
    };
    let expected = run(0, 64, false);
    for (seed, bits) in [(0, 64), (77, 64), (3, 8), (4, 1)] {
        assert!(run(seed, bits, false) == expected, "seed {seed}, {bits} bits");
    }
    assert!(run(0, 64, true) == expected, "what the buffer held before does not show");
}

#[test]
fn test_l11_limits_of_any_size_are_limits() {
    let mut engine = Engine::new(&SchedulerConfig { max_model_len: 6, ..config(8, 2) });
    let request = Request { min_tokens: usize::MAX, stop_token_ids: vec![7], ..Request::new(vec![1, 2], usize::MAX) };
    engine.sched.add(request).unwrap();
    let mut rounds = 0;
    while engine.sched.has_work() {
        assert!(engine.round(7));
        rounds += 1;
        assert!(rounds < 10);
    }
    assert_eq!(engine.outcome.reasons, [Reason::Length], "no output is late enough for a stop");
}

#[test]
fn test_l10_no_more_prompts_are_left_incomplete_than_allowed() {
    let config = SchedulerConfig {
        max_num_batched_tokens: 8,
        long_prefill_threshold: 2,
        max_partial_prefills: 2,
        ..config(16, 4)
    };
    let mut engine = Engine::new(&config);
    for first in 0..3 {
        engine.add(&[first; 12], 1);
    }
    assert!(engine.step());
    assert_eq!(engine.plan.num_tokens(), [2, 2], "a third prompt would be left incomplete too");
    engine.commit(7);
    assert_eq!(engine.sched.stats().waiting, 1);
}

#[test]
fn test_l5_collisions_of_a_hit_are_counted() {
    let cache = CacheConfig { block_size: 2, hash_bits: 1, ..CacheConfig::new(64) };
    let mut engine = Engine::new(&SchedulerConfig { cache, watermark: 0.0, ..SchedulerConfig::new(64) });
    for first in 0..8 {
        engine.add(&[first, first, first], 1);
    }
    while engine.round(9) {}
    assert_eq!(engine.sched.stats().prefix_hits, 0);
    let before = engine.sched.stats().hash_collisions;
    assert!(before > 0, "eight first blocks under one bit of hash must meet");
    for first in 0..8 {
        engine.add(&[first, first, first], 1);
    }
    while engine.round(9) {}
    assert_eq!(engine.sched.stats().prefix_hits, 16, "each is found all the same");
    assert!(engine.sched.stats().hash_collisions > before);
}
