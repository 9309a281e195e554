//! A steady decode step and its commit ask the heap for nothing.
//!
//! One test only: the counter belongs to the whole process, and tests of one binary share it.

#![allow(
    unsafe_code,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a counting allocator can not be written without `unsafe`; a test stops at the first surprise"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use octavo_core::{CacheConfig, Outcome, Request, Scheduler, SchedulerConfig, StepPlan};

/// The system's allocator, and how often memory was asked for.
struct Counting;

static REQUESTS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is handed to the system's allocator as it came; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        REQUESTS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is that of the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` or `realloc` above, so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        REQUESTS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as for `dealloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SEQS: usize = 64;
const BLOCK: i64 = 16;
/// The longest a sequence gets, so that a row's table has its full size from the beginning.
const LONGEST: usize = 512;

/// A scheduler with what its caller keeps and uses again.
struct Engine {
    sched: Scheduler,
    plan: StepPlan,
    outcome: Outcome,
}

impl Engine {
    fn new(num_blocks: i64) -> Self {
        let sched = Scheduler::new(&SchedulerConfig {
            cache: CacheConfig { block_size: BLOCK, ..CacheConfig::new(num_blocks) },
            max_num_seqs: SEQS as i64,
            max_num_batched_tokens: 2_048,
            max_model_len: LONGEST as i64,
            ..SchedulerConfig::new(num_blocks)
        });
        Self { sched: sched.unwrap(), plan: StepPlan::new(), outcome: Outcome::default() }
    }

    fn round(&mut self, token: i32) {
        let tokens = [token; SEQS];
        assert!(self.sched.step(0.0, &mut self.plan).unwrap());
        let sampled = &tokens[..self.plan.sample_seqs().len()];
        self.sched.commit(self.plan.number(), sampled, None, &mut self.outcome).unwrap();
    }

    /// Fills every row with a prompt that no other call gave, and steps until all decode.
    fn fill_rows(&mut self, first: i32) {
        for row in 0..SEQS as i32 {
            let prompt = (0..100).map(|token| first + row * 100 + token).collect();
            self.sched.add(Request::new(prompt, LONGEST)).unwrap();
        }
        self.round(0);
        while self.plan.num_decodes() < SEQS {
            self.round(0);
        }
    }

    fn run_dry(&mut self) {
        while self.sched.stats().running > 0 {
            self.round(1);
        }
    }

    /// How often each of 64 decode steps with its commit asked for memory, and in which of them.
    fn count(&mut self) -> Vec<(i32, u64)> {
        let mut asking = Vec::with_capacity(64);
        for number in 0..64 {
            let before = REQUESTS.load(Ordering::Relaxed);
            self.round(100 + number);
            let asked = REQUESTS.load(Ordering::Relaxed) - before;
            if asked > 0 {
                asking.push((number, asked));
            }
        }
        assert_eq!(self.plan.num_decodes(), SEQS);
        asking
    }
}

#[test]
fn test_steady_decode_steps_ask_for_no_memory() {
    // A pool in which every block has been used, published and evicted once.
    let blocks_of_all = SEQS as i64 * LONGEST as i64 / BLOCK;
    let mut engine = Engine::new(blocks_of_all);
    for round in 0..3 {
        engine.fill_rows(1_000_000 * round);
        engine.run_dry();
    }
    engine.fill_rows(9_000_000);
    let before = engine.sched.stats();
    assert!(before.evicted_blocks > 0 && before.blank == 0, "the pool is full of cached blocks");
    let asking = engine.count();
    let after = engine.sched.stats();
    assert!(after.published_blocks > before.published_blocks, "blocks filled on the way");
    assert!(after.evicted_blocks > before.evicted_blocks, "and cached ones left for them");
    assert!(asking.is_empty(), "(step, requests for memory): {asking:?}");

    // In a fresh pool the store of published blocks doubles now and then, and nothing else grows.
    let mut engine = Engine::new(1 << 16);
    engine.fill_rows(0);
    engine.round(1);
    let asking = engine.count();
    assert!(asking.len() <= 3, "(step, requests for memory): {asking:?}");
}
