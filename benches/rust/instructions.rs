//! What one decode step and its commit execute, to be counted by callgrind (`benches/instructions.py` runs it).
//!
//! Arguments: rows, blocks of the pool, `fresh` or `full`, how many wait, steps. Only `counted` is to be collected.

#![allow(
    dead_code,
    missing_docs,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    reason = "a measurement reads its arguments and stops at the first surprise; its inputs are shared"
)]

mod support;

use support::{Engine, Fill, Shape};

#[inline(never)]
fn counted(engine: &mut Engine, steps: usize) {
    (0..steps).for_each(|_| engine.round());
}

fn main() {
    // Other flags are what `cargo bench` adds.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let [rows, num_blocks, fill, waiting, steps] = words.as_slice() else { return };
    let number = |word: &String| word.parse::<usize>().expect("a number");
    let fill = if fill == "full" { Fill::Full } else { Fill::Fresh };
    let (rows, num_blocks, waiting) = (number(rows), number(num_blocks), number(waiting));
    let mut engine = Engine::unmixed(Shape { rows, num_blocks, max_model_len: 4_096, fill, waiting });
    counted(&mut engine, number(steps));
}
