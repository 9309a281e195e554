//! The allocator alone; every figure is per block of 16 tokens.

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

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use octavo_core::Identity;
use support::{BLOCK_SIZE, computed, draw, full_cache, mixed_cache, reserved, timed, tokens, total};

/// Blocks that one iteration handles: a prompt of 4,096 tokens.
const BLOCKS: usize = 256;
const POOLS: [usize; 3] = [10_000, 100_000, 1_000_000];

fn allocate_free(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("allocate_free");
    group.throughput(Throughput::Elements(BLOCKS as u64));
    for num_blocks in POOLS {
        let mut cache = mixed_cache(num_blocks);
        group.bench_function(format!("blank_{num_blocks}"), |bencher| {
            bencher.iter(|| {
                let seq = reserved(&mut cache, BLOCKS);
                cache.close(seq).expect("open");
            });
        });
    }
    group.finish();
}

fn allocate_evict(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("allocate_evict");
    group.throughput(Throughput::Elements(BLOCKS as u64));
    group.sample_size(20).measurement_time(Duration::from_secs(2));
    for num_blocks in POOLS {
        let (mut cache, _) = full_cache(num_blocks, 16);
        let mut seed = 50_000_000;
        group.bench_function(format!("{num_blocks}"), |bencher| {
            bencher.iter_custom(|iterations| {
                total(iterations, || {
                    seed += 1;
                    let (took, seq) = timed(|| reserved(&mut cache, BLOCKS));
                    cache.advance(seq, &tokens(seed, BLOCKS * BLOCK_SIZE)).expect("reserved");
                    cache.close(seq).expect("open");
                    took
                })
            });
        });
    }
    group.finish();
}

fn match_prefix(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("match");
    group.throughput(Throughput::Elements(BLOCKS as u64));
    let public = Identity::default();
    for num_blocks in POOLS {
        let (cache, seeds) = full_cache(num_blocks, BLOCKS);
        // One token more than the blocks, so that all of them may be hit.
        let prompts: Vec<Vec<i32>> = seeds.iter().map(|&seed| tokens(seed, BLOCKS * BLOCK_SIZE + 1)).collect();
        let mut turn = 0;
        group.bench_function(format!("4096_tokens_{num_blocks}"), |bencher| {
            bencher.iter(|| {
                turn += 1;
                let prompt = &prompts[draw(7, turn) as usize % prompts.len()];
                let hit = cache.match_prefix(prompt, &public).expect("good tokens");
                assert_eq!(hit, BLOCKS * BLOCK_SIZE);
            });
        });
    }
    group.finish();
}

fn publish(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("publish");
    group.throughput(Throughput::Elements(BLOCKS as u64));
    group.sample_size(20).measurement_time(Duration::from_secs(2));
    for num_blocks in POOLS {
        let (mut cache, _) = full_cache(num_blocks, 16);
        let mut seed = 60_000_000;
        group.bench_function(format!("{num_blocks}"), |bencher| {
            bencher.iter_custom(|iterations| {
                total(iterations, || {
                    seed += 1;
                    let tokens = tokens(seed, BLOCKS * BLOCK_SIZE);
                    let seq = reserved(&mut cache, BLOCKS);
                    let (took, ()) = timed(|| cache.advance(seq, &tokens).expect("reserved"));
                    cache.close(seq).expect("open");
                    took
                })
            });
        });
    }
    group.finish();
}

fn fork(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fork");
    group.throughput(Throughput::Elements(BLOCKS as u64));
    group.sample_size(20).measurement_time(Duration::from_secs(2));
    for num_blocks in POOLS {
        let mut cache = mixed_cache(num_blocks);
        let parents: Vec<_> = (0..num_blocks / BLOCKS)
            .map(|at| computed(&mut cache, &tokens(70_000_000 + at as u64, BLOCKS * BLOCK_SIZE)))
            .collect();
        let mut turn = 0;
        group.bench_function(format!("{num_blocks}"), |bencher| {
            bencher.iter_custom(|iterations| {
                total(iterations, || {
                    turn += 1;
                    let parent = parents[draw(8, turn) as usize % parents.len()];
                    let (took, child) = timed(|| cache.fork(parent).expect("open"));
                    cache.close(child).expect("open");
                    took
                })
            });
        });
    }
    group.finish();
}

criterion_group!(benches, allocate_free, allocate_evict, match_prefix, publish, fork);
criterion_main!(benches);
