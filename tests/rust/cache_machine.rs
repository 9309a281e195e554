//! Sequences of calls on the allocator and on its naive model, in worlds so small that blocks are
//! always short and histories always meet; after every call the two must agree in everything that
//! can be seen, and the core's `audit` must find nothing.
//!
//! `PROPTEST_CASES` sets the number of cases, 256 without it; failures are kept under
//! `tests/rust/regressions`.

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

#[path = "cache_machine/calls.rs"]
mod calls;
#[path = "cache_machine/compare.rs"]
mod compare;
#[path = "cache_machine/pair.rs"]
mod pair;

use std::cell::RefCell;

use calls::{Op, World, op, world};
use pair::Pair;
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestRunner};
use support::census::Census;

fn run(world: &World, hash_bits: i64, ops: &[Op]) -> Census {
    let mut pair = Pair::new(world, hash_bits);
    pair.compare();
    for op in ops {
        pair.census.add_call(op);
        pair.apply(op);
        pair.compare();
    }
    for step in pair.model.pool().open_steps.clone() {
        pair.end_step(step);
        pair.compare();
    }
    let stats = pair.core.stats();
    for (what, times) in [
        ("case", 1),
        ("tokens looked up", stats.prefix_queries),
        ("tokens hit", stats.prefix_hits),
        ("block published", stats.published_blocks),
        ("block merged", stats.merged_blocks),
        ("block evicted", stats.evicted_blocks),
        ("copy made", stats.copies),
        ("hash collision", stats.hash_collisions),
    ] {
        pair.census.add(what, times as usize);
    }
    pair.drain();
    pair.census
}

support::machine::machine_tests!("cache_machine", 60);
