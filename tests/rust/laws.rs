//! The laws of the core, each shown by hand on the smallest case that could break it; the number
//! of the law is in the name of the test. The machines beside this file try the rest.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test of tiny cases: it stops at the first surprise"
)]

#[path = "laws/cache.rs"]
mod cache;
#[path = "laws/inflight.rs"]
mod inflight;
#[path = "laws/outputs.rs"]
mod outputs;
#[path = "laws/scheduler.rs"]
mod scheduler;
