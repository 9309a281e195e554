//! Every documented refusal, by name, and that it changed nothing (L12).

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test of tiny cases: it stops at the first surprise"
)]

#[path = "errors/cache.rs"]
mod cache;
#[path = "errors/config.rs"]
mod config;
#[path = "errors/scheduler.rs"]
mod scheduler;
