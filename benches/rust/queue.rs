//! The heap of those who wait, alone, with 100,000 in it; per request. The queue is no part of the crate's face, so its
//! source is compiled here.

#![allow(
    dead_code,
    missing_docs,
    unused_imports,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::disallowed_types,
    clippy::expect_used,
    reason = "a benchmark reads the clock and stops at the first surprise; its inputs and the queue are shared, tests of theirs included"
)]

#[path = "../../rust/core/src/ids.rs"]
mod ids;
mod support;

#[path = "../../rust/core/src/sched"]
mod sched {
    pub mod queue;
    pub mod rank;
}

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ids::SequenceId;
use sched::queue::Queue;
use sched::rank::Rank;
use support::{draw, shuffled, timed, total};

const WAITING: usize = 100_000;
/// Requests that one iteration pushes, pops or removes.
const BATCH: usize = 1_000;

fn seq(index: usize) -> SequenceId {
    SequenceId::from_raw((2 << 60) | index as i64).expect("a sequence")
}

fn rank(index: usize, round: u64) -> Rank {
    let arrival = (draw(round, index as u64) % 1_000_000) as f64;
    Rank { class: 0.0, key: 0.0, arrival, order: index as u64, index: 0 }
}

fn push(queue: &mut Queue, round: u64) {
    for index in WAITING..WAITING + BATCH {
        queue.push(rank(index, round), seq(index));
    }
}

fn remove(queue: &mut Queue, order: &[usize]) {
    for &at in order {
        assert!(queue.remove(seq(WAITING + at)));
    }
}

fn pop(queue: &mut Queue) -> Vec<SequenceId> {
    let first = |queue: &mut Queue| queue.peek().inspect(|&first| assert!(queue.remove(first)));
    (0..BATCH).map_while(|_| first(queue)).collect()
}

fn queue(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("queue");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.sample_size(20).measurement_time(Duration::from_secs(2));
    let order = shuffled(10, BATCH);
    let mut queue = Queue::default();
    for index in 0..WAITING {
        queue.push(rank(index, 11), seq(index));
    }
    let mut round = 100;
    group.bench_function(format!("push_{WAITING}"), |bencher| {
        bencher.iter_custom(|iterations| {
            total(iterations, || {
                round += 1;
                let (took, ()) = timed(|| push(&mut queue, round));
                remove(&mut queue, &order);
                took
            })
        });
    });
    group.bench_function(format!("remove_{WAITING}"), |bencher| {
        bencher.iter_custom(|iterations| {
            total(iterations, || {
                round += 1;
                push(&mut queue, round);
                timed(|| remove(&mut queue, &order)).0
            })
        });
    });
    group.bench_function(format!("pop_{WAITING}"), |bencher| {
        bencher.iter_custom(|iterations| {
            total(iterations, || {
                let (took, popped) = timed(|| pop(&mut queue));
                round += 1;
                for seq in popped {
                    let index = (seq.raw() & i64::from(u32::MAX)) as usize;
                    queue.push(rank(index, round), seq);
                }
                took
            })
        });
    });
    group.finish();
}

criterion_group!(benches, queue);
criterion_main!(benches);
