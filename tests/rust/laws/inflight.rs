//! L3, L4, L7 and L11 with several plans out and several sequences a request.

use octavo_core::{CacheConfig, Identity, Outcome, Request, Scheduler, SchedulerConfig, StepPlan};

struct Engine {
    sched: Scheduler,
    plans: Vec<StepPlan>,
    outcome: Outcome,
}

impl Engine {
    fn new(num_blocks: i64, inflight_steps: i64) -> Self {
        let config = SchedulerConfig {
            cache: CacheConfig { block_size: 2, ..CacheConfig::new(num_blocks) },
            watermark: 0.0,
            inflight_steps,
            ..SchedulerConfig::new(num_blocks)
        };
        Self { sched: Scheduler::new(&config).unwrap(), plans: Vec::new(), outcome: Outcome::default() }
    }

    /// A plan more is out.
    fn step(&mut self) {
        let mut plan = StepPlan::new();
        assert!(self.sched.step(0.0, &mut plan).unwrap());
        self.sched.audit().unwrap();
        self.plans.push(plan);
    }

    /// Commits the oldest plan that is out; everybody samples `token`.
    fn commit(&mut self, token: i32) {
        let plan = self.plans.remove(0);
        let tokens = vec![token; plan.sample_seqs().len()];
        self.sched.commit(plan.number(), &tokens, None, &mut self.outcome).unwrap();
        self.sched.audit().unwrap();
    }
}

#[test]
fn test_l3_a_prompt_that_forks_is_copied_where_its_sequences_part() {
    let mut engine = Engine::new(8, 1);
    engine.sched.add(Request { n: 3, ..Request::new(vec![1, 2, 3], 3) }).unwrap();
    engine.step();
    assert_eq!(engine.plans[0].sample_seqs().len(), 3, "each samples its own first token");
    engine.commit(7);
    engine.step();
    assert_eq!(engine.plans[0].copies().len(), 2, "the last of three writes in place");
    assert_eq!(engine.sched.stats().held, 4, "one full block, and a tail for each");
}

#[test]
fn test_l4_nothing_of_a_cancelled_plan_is_published_and_the_prompt_runs_again() {
    let mut engine = Engine::new(8, 2);
    let request = engine.sched.add(Request::new(vec![1, 2, 3, 4, 5], 2)).unwrap();
    let seq = engine.sched.sequences(request).unwrap()[0];
    engine.step();
    engine.step();
    engine.sched.cancel(engine.plans[0].number()).unwrap();
    engine.plans.clear();
    engine.sched.audit().unwrap();
    assert_eq!(engine.sched.match_prefix(&[1, 2, 3, 4, 5], &Identity::default()).unwrap(), 0);
    assert_eq!(engine.sched.stats().held, 0);
    for _ in 0..2 {
        engine.step();
        engine.commit(7);
    }
    assert_eq!(engine.sched.tokens(seq).unwrap()[5..], [7, 7]);
    assert_eq!(engine.sched.match_prefix(&[1, 2, 3, 4, 5], &Identity::default()).unwrap(), 4);
}

#[test]
fn test_l7_blocks_of_an_ended_request_wait_for_every_plan_that_is_out() {
    let mut engine = Engine::new(8, 3);
    let ended = engine.sched.add(Request { use_cache: false, ..Request::new(vec![1, 2, 3], 9) }).unwrap();
    engine.step();
    engine.step();
    engine.sched.abort(ended).unwrap();
    engine.sched.add(Request::new(vec![5], 1)).unwrap();
    engine.step();
    assert_eq!(engine.sched.stats().fenced, 2, "two plans may still touch them");
    engine.commit(7);
    assert_eq!(engine.sched.stats().fenced, 2, "one of them still may");
    engine.commit(7);
    assert_eq!(engine.sched.stats().fenced, 0);
}
