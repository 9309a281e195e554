//! L5 and L12 on what a sequence knows: every token is accepted once, in order, wherever rows keep the newest of them.

use octavo_core::{CacheConfig, Outcome, Request, Scheduler, SchedulerConfig, StepPlan};

const OUTPUTS: usize = 100;

/// A prompt of 5 answers 0, 1, 2 …; `before` is called with the number of each step. Returns all that it knows.
fn run(block_size: i64, prefix_caching: bool, before: impl Fn(usize, &mut Scheduler)) -> Vec<i32> {
    let cache = CacheConfig { block_size, prefix_caching, ..CacheConfig::new(128) };
    let mut sched = Scheduler::new(&SchedulerConfig { cache, ..SchedulerConfig::new(128) }).unwrap();
    let request = sched.add(Request::new((500..505).collect(), OUTPUTS)).unwrap();
    let seq = sched.sequences(request).unwrap()[0];
    let (mut plan, mut outcome) = (StepPlan::new(), Outcome::default());
    for (number, token) in (0..).zip(0..OUTPUTS) {
        before(token, &mut sched);
        assert!(sched.step(0.0, &mut plan).unwrap());
        sched.commit(plan.number(), &[number], None, &mut outcome).unwrap();
        sched.audit().unwrap();
        let known: Vec<i32> = (500..505).chain(0..=number).collect();
        assert_eq!(sched.tokens(seq).unwrap(), known);
    }
    sched.tokens(seq).unwrap()
}

#[test]
fn test_l5_outputs_are_kept_in_order_at_any_block_size() {
    for block_size in [1, 3, 15, 16, 17, 31, 32, 33, 64, 256] {
        for prefix_caching in [true, false] {
            assert_eq!(run(block_size, prefix_caching, |_, _| {}).len(), 5 + OUTPUTS);
        }
    }
}

#[test]
fn test_l5_outputs_are_kept_in_order_when_a_row_stops_publishing_at_any_length() {
    for epoch in 0..OUTPUTS {
        let known = run(16, true, |step, sched| {
            if step == epoch {
                sched.new_epoch();
            }
        });
        assert_eq!(known.len(), 5 + OUTPUTS);
    }
}
