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
use support::{Engine, Fill, Shape};

const FILLS: [(&str, Fill); 2] = [("fresh", Fill::Fresh), ("full", Fill::Full)];

fn step_commit(criterion: &mut Criterion) {
    for rows in [256, 1_024, 4_096] {
        for (name, fill) in FILLS {
            measure(criterion, &format!("{rows}_{name}"), Shape::decoding(rows, fill));
        }
    }
    // What the pool holds beside the batch, and what waits behind it, must cost a step nothing.
    for num_blocks in [10_000, 100_000, 1_000_000] {
        for (name, fill) in FILLS {
            measure(criterion, &format!("256_{name}_pool_{num_blocks}"), Shape::in_pool(num_blocks, fill));
        }
    }
    for waiting in [100, 100_000] {
        measure(criterion, &format!("256_waiting_{waiting}"), Shape::with_waiting(waiting));
    }
}

fn measure(criterion: &mut Criterion, name: &str, shape: Shape) {
    let mut group = criterion.benchmark_group("step_commit");
    group.sample_size(20).measurement_time(Duration::from_secs(2));
    let mut engine = None;
    group.bench_function(name, |bencher| {
        let engine = engine.get_or_insert_with(|| Engine::new(shape));
        bencher.iter_custom(|steps| engine.time(steps));
    });
    group.finish();
}

criterion_group!(benches, step_commit);
criterion_main!(benches);
