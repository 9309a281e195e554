//! Long random runs without a model: every option is drawn, the pool is always too small, and after each call the core's
//! own audit must find nothing.
//!
//! A device does as the plans say and samples by what it reads, so that every token that is accepted tells of the whole
//! context: at its end a sequence must have exactly the tokens that a plain model gives it (the theorem). Every request
//! must end, and then every block must be available.
//!
//! `OCTAVO_SOAK_STEPS` sets how many steps are taken, 20,000 without it; `make test-slow` takes 1,000,000. The seeds are
//! fixed: a failure comes again.

#![allow(
    dead_code,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::too_many_lines,
    clippy::unwrap_used,
    reason = "a test that stops at the first surprise; its length comes from the environment, and its support is shared"
)]

#[path = "support/census.rs"]
mod census;
#[path = "support/device.rs"]
mod device;
#[path = "soak/dice.rs"]
mod dice;
#[path = "soak/engine.rs"]
mod engine;

use dice::Dice;
use engine::Engine;

/// Steps in one world.
const STEPS_A_WORLD: u64 = 500;

fn num_steps() -> u64 {
    let text = std::env::var("OCTAVO_SOAK_STEPS").unwrap_or_else(|_| "20000".to_owned());
    text.parse().expect("OCTAVO_SOAK_STEPS is a number of steps")
}

#[test]
fn test_every_request_ends_and_every_block_comes_back() {
    let mut taken = 0;
    let mut census = census::Census::default();
    for world in 0.. {
        if taken >= num_steps() {
            break;
        }
        let mut engine = Engine::new(Dice::new(world));
        while engine.num_steps() < STEPS_A_WORLD {
            engine.act();
        }
        engine.drain();
        taken += engine.num_steps();
        census.absorb(&engine.census);
    }
    println!("{census}");
}
