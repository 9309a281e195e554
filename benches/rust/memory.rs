//! Bytes that a cached block costs: tokens, slot, order of eviction and index; block size 16. Prints one line of JSON.

#![allow(
    dead_code,
    missing_docs,
    unsafe_code,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a counting allocator can not be written without `unsafe`; a measurement prints what it saw"
)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, and how many bytes it has given out.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed to the system's allocator as it came; counting touches no memory of it. `realloc` is the
// default, which allocates, copies and frees.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is that of the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `pointer` came from `alloc` above, so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Blocks of the chains that fill the pool.
const CHAIN: usize = 16;

fn bytes_per_cached_block(num_blocks: usize) -> f64 {
    let before = BYTES.load(Ordering::Relaxed);
    let (cache, seeds) = support::full_cache(num_blocks, CHAIN);
    drop(seeds);
    let bytes = BYTES.load(Ordering::Relaxed) - before;
    let stats = cache.stats();
    assert_eq!(stats.cached as usize, num_blocks / CHAIN * CHAIN);
    bytes as f64 / stats.cached as f64
}

fn main() {
    let figures = [100_000, 1_000_000].map(|blocks| format!("\"{blocks}\": {}", bytes_per_cached_block(blocks)));
    println!("{{{}}}", figures.join(", "));
}
