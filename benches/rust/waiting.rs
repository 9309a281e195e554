//! The queue behind a batch that is full: adding to it and leaving it again; per request.

#![allow(
    dead_code,
    missing_docs,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::disallowed_types,
    clippy::expect_used,
    reason = "a benchmark reads the clock and stops at the first surprise; its inputs are shared"
)]

mod support;

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use octavo_core::{CacheConfig, Outcome, Request, RequestId, Scheduler, SchedulerConfig, StepPlan};
use support::{shuffled, timed, total};

/// Requests that one iteration adds or aborts.
const BATCH: usize = 1_000;

struct Queue {
    sched: Scheduler,
    plan: StepPlan,
    outcome: Outcome,
    added: u64,
}

impl Queue {
    fn new(waiting: usize) -> Self {
        let config = SchedulerConfig {
            cache: CacheConfig { block_size: 256, ..CacheConfig::new(1 << 20) },
            max_num_seqs: 1,
            max_model_len: i64::from(i32::MAX / 512),
            ..SchedulerConfig::new(1 << 20)
        };
        let mut queue = Self {
            sched: Scheduler::new(&config).expect("in range"),
            plan: StepPlan::new(),
            outcome: Outcome::default(),
            added: 0,
        };
        queue.add(usize::MAX);
        queue.round();
        for _ in 0..waiting {
            queue.add(1);
        }
        queue
    }

    /// A prompt of one token, so that the queue and not the prompt is measured.
    fn add(&mut self, max_tokens: usize) -> RequestId {
        self.added += 1;
        let arrival = Some(if self.added == 1 { -1.0 } else { (support::draw(9, self.added) % 1_000_000) as f64 });
        let request = Request { arrival, ..Request::new(vec![1], max_tokens) };
        self.sched.add(request).expect("it fits")
    }

    fn round(&mut self) {
        assert!(self.sched.step(0.0, &mut self.plan).expect("time stands still"));
        self.sched.commit(self.plan.number(), &[1], None, &mut self.outcome).expect("the plan is out");
    }

    fn leave(&mut self, requests: &[RequestId], order: &[usize]) {
        for &at in order {
            self.sched.abort(requests[at]).expect("alive");
        }
        self.round();
    }
}

fn waiting(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("waiting");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.sample_size(20).measurement_time(Duration::from_secs(2));
    let order = shuffled(10, BATCH);
    for waiting in [100, 100_000] {
        let mut queue = Queue::new(waiting);
        group.bench_function(format!("add_{waiting}"), |bencher| {
            bencher.iter_custom(|iterations| {
                total(iterations, || {
                    let (took, requests) = timed(|| (0..BATCH).map(|_| queue.add(1)).collect::<Vec<_>>());
                    queue.leave(&requests, &order);
                    took
                })
            });
        });
        group.bench_function(format!("abort_{waiting}"), |bencher| {
            bencher.iter_custom(|iterations| {
                total(iterations, || {
                    let requests: Vec<_> = (0..BATCH).map(|_| queue.add(1)).collect();
                    timed(|| queue.leave(&requests, &order)).0
                })
            });
        });
    }
    group.finish();
}

criterion_group!(benches, waiting);
criterion_main!(benches);
