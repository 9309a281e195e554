//! Sequences of calls on the scheduler and on its naive model, in worlds so small that rows,
//! blocks and budget are always short; after every call the two must agree in plans, tables,
//! outcomes, counters and errors, and the core's `audit` must find nothing.
//!
//! Two schedulers of the core run: one writes whole plans, the other only decides. A device does as the plans say, from
//! their changes of the tables alone (L8), and finds every context as it should be.

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

#[path = "scheduler_machine/calls.rs"]
mod calls;
#[path = "scheduler_machine/compare.rs"]
mod compare;
#[path = "scheduler_machine/plans.rs"]
mod plans;
#[path = "scheduler_machine/trio.rs"]
mod trio;

use std::cell::RefCell;

use calls::{Op, op, world};
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestRunner};
use support::census::Census;
use support::scheduler::World;
use trio::Trio;

fn run(world: &World, hash_bits: i64, ops: &[Op]) -> Census {
    let mut trio = Trio::new(world, hash_bits);
    trio.compare();
    for op in ops {
        trio.census.add_call(op);
        trio.apply(op);
        trio.compare();
    }
    trio.finish();
    trio.census.absorb(&trio.model.turns);
    let stats = trio.core.stats();
    for (what, times) in [
        ("case", 1),
        ("tokens looked up", stats.prefix_queries + stats.resumed_queries),
        ("tokens hit", stats.prefix_hits + stats.resumed_hits),
        ("tokens recomputed", stats.recomputed_tokens),
        ("copy made", stats.copies),
        ("block published", stats.published_blocks),
        ("block merged", stats.merged_blocks),
        ("block evicted", stats.evicted_blocks),
    ] {
        trio.census.add(what, times as usize);
    }
    trio.census
}

support::machine::machine_tests!("scheduler_machine", 50);
