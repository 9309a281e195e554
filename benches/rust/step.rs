//! `step` + `commit` of a decoding batch: prompts of 512, blocks of 16, prefix caching on, block ids
//! mixed by a warm-up.

#![allow(
    dead_code,
    missing_docs,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::disallowed_types,
    clippy::expect_used,
    reason = "a benchmark reads the clock and stops at the first surprise; its inputs are shared"
)]

mod support;

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use support::{Engine, Fill};

fn step_commit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("step_commit");
    group.sample_size(20).measurement_time(Duration::from_secs(2));
    for rows in [256, 1_024, 4_096] {
        for (name, fill) in [("fresh", Fill::Fresh), ("full", Fill::Full)] {
            let mut engine = None;
            group.bench_function(format!("{rows}_{name}"), |bencher| {
                let engine = engine.get_or_insert_with(|| Engine::new(rows, fill, 0));
                bencher.iter_custom(|steps| engine.time(steps));
            });
        }
    }
    // The same batch with many behind it: what waits must cost a step nothing.
    for waiting in [100, 100_000] {
        let mut engine = None;
        group.bench_function(format!("256_waiting_{waiting}"), |bencher| {
            let engine = engine.get_or_insert_with(|| Engine::new(256, Fill::Fresh, waiting));
            bencher.iter_custom(|steps| engine.time(steps));
        });
    }
    group.finish();
}

criterion_group!(benches, step_commit);
criterion_main!(benches);
