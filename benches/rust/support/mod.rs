//! Seeded inputs, the same here and in `benches/python/inputs.py`, and engines in a steady state.

use std::time::{Duration, Instant};

use octavo_core::{
    CacheConfig, Identity, KvCache, Outcome, Request, Room, Scheduler, SchedulerConfig, SequenceId, StepPlan,
};

/// Token ids are drawn from 0 .. VOCABULARY.
pub const VOCABULARY: u64 = 32_000;
pub const BLOCK_SIZE: usize = 16;

/// The value at `index` of the stream of `seed` (`SplitMix64`, by counter).
pub const fn draw(seed: u64, index: u64) -> u64 {
    let mut mixed = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

pub fn tokens(seed: u64, len: usize) -> Vec<i32> {
    (0..len as u64).map(|index| (draw(seed, index) % VOCABULARY) as i32).collect()
}

/// The numbers 0 .. len in an order that depends on `seed` only.
pub fn shuffled(seed: u64, len: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    for last in (1..len).rev() {
        order.swap(last, draw(seed, last as u64) as usize % (last + 1));
    }
    order
}

/// Times `iterations` calls of `work`, which says how long its own timed part took.
pub fn total(iterations: u64, mut work: impl FnMut() -> Duration) -> Duration {
    (0..iterations).map(|_| work()).sum()
}

pub fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = std::hint::black_box(work());
    (start.elapsed(), result)
}

/// An allocator whose blocks were all used, freed and mixed, and are blank again.
pub fn mixed_cache(num_blocks: usize) -> KvCache {
    let config = CacheConfig { block_size: BLOCK_SIZE as i64, ..CacheConfig::new(num_blocks as i64) };
    let mut cache = KvCache::new(&config).expect("in range");
    let mut open = Vec::new();
    let mut left = num_blocks;
    while left > 0 {
        let blocks = left.min(1 + draw(1, left as u64) as usize % 31);
        open.push(reserved(&mut cache, blocks));
        left -= blocks;
    }
    for at in shuffled(2, open.len()) {
        cache.close(open[at]).expect("open");
    }
    cache
}

/// The same, full of cached chains of `chain` blocks each; also the seeds of their tokens.
pub fn full_cache(num_blocks: usize, chain: usize) -> (KvCache, Vec<u64>) {
    let mut cache = mixed_cache(num_blocks);
    let seeds: Vec<u64> = (0..(num_blocks / chain) as u64).map(|at| 1_000_000 + at).collect();
    for &seed in &seeds {
        let seq = computed(&mut cache, &tokens(seed, chain * BLOCK_SIZE));
        cache.close(seq).expect("open");
    }
    (cache, seeds)
}

pub fn reserved(cache: &mut KvCache, blocks: usize) -> SequenceId {
    let seq = cache.open(&[], &Identity::default()).expect("no tokens");
    assert_eq!(cache.reserve(seq, blocks * BLOCK_SIZE).expect("open"), Room::Granted);
    seq
}

pub fn computed(cache: &mut KvCache, tokens: &[i32]) -> SequenceId {
    let seq = reserved(cache, tokens.len().div_ceil(BLOCK_SIZE));
    cache.advance(seq, tokens).expect("reserved");
    seq
}

/// What the pool of a scheduler holds beside the running sequences.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Blank blocks, all used before, in mixed order.
    Fresh,
    /// Cached blocks of other prompts: every new block evicts one.
    Full,
}

pub const PROMPT: usize = 512;
/// Decode steps before the sequences are replaced.
const STEPS: usize = 1_024;

/// A scheduler all of whose rows decode, with what its caller uses again.
pub struct Engine {
    sched: Scheduler,
    plan: StepPlan,
    outcome: Outcome,
    sampled: Vec<i32>,
    rows: usize,
    num_blocks: usize,
    fill: Fill,
    waiting: usize,
    next_seed: u64,
    steps_left: usize,
}

impl Engine {
    pub fn new(rows: usize, fill: Fill, waiting: usize) -> Self {
        let num_blocks = rows * (PROMPT + STEPS + 64).div_ceil(BLOCK_SIZE);
        let config = SchedulerConfig {
            cache: CacheConfig { block_size: BLOCK_SIZE as i64, ..CacheConfig::new(num_blocks as i64) },
            max_num_seqs: rows as i64,
            max_num_batched_tokens: 65_536,
            max_model_len: 4_096,
            max_partial_prefills: 64,
            watermark: 0.0,
            ..SchedulerConfig::new(num_blocks as i64)
        };
        let mut engine = Self {
            sched: Scheduler::new(&config).expect("in range"),
            plan: StepPlan::new(),
            outcome: Outcome::default(),
            sampled: tokens(3, rows),
            rows,
            num_blocks,
            fill,
            waiting,
            next_seed: 10_000_000,
            steps_left: 0,
        };
        engine.mix_blocks();
        if fill == Fill::Full {
            engine.fill_with_cached();
        }
        engine.start_rows();
        engine
    }

    /// One step and its commit; the decode that is measured.
    pub fn round(&mut self) {
        let is_planned = self.sched.step(0.0, &mut self.plan).expect("time stands still");
        assert!(is_planned);
        let sampled = &self.sampled[..self.plan.sample_seqs().len()];
        self.sched.commit(self.plan.number(), sampled, None, &mut self.outcome).expect("the plan is out");
    }

    /// Times `steps` rounds; sequences are replaced outside the clock.
    pub fn time(&mut self, steps: u64) -> Duration {
        let mut elapsed = Duration::ZERO;
        let mut left = steps as usize;
        while left > 0 {
            if self.steps_left == 0 {
                self.renew();
            }
            let now = left.min(self.steps_left);
            let (took, ()) = timed(|| (0..now).for_each(|_| self.round()));
            elapsed += took;
            self.steps_left -= now;
            left -= now;
        }
        elapsed
    }

    fn renew(&mut self) {
        if self.fill == Fill::Fresh {
            *self = Self::new(self.rows, self.fill, self.waiting);
            return;
        }
        self.abort_rows(5);
        self.start_rows();
    }

    fn add(&mut self, len: usize, max_tokens: usize, use_cache: bool) {
        self.next_seed += 1;
        let prompt = tokens(self.next_seed, len);
        self.sched.add(Request { use_cache, ..Request::new(prompt, max_tokens) }).expect("it fits");
    }

    /// Uses every block once without publishing it, and frees them in mixed order.
    fn mix_blocks(&mut self) {
        let mut requests = Vec::new();
        for row in 0..self.rows {
            let len = 1 + draw(4, row as u64) as usize % PROMPT;
            self.next_seed += 1;
            let prompt = tokens(self.next_seed, len);
            let request = Request { use_cache: false, ..Request::new(prompt, 4_096) };
            requests.push(self.sched.add(request).expect("it fits"));
        }
        while self.sched.stats().available >= self.rows as u64 {
            self.round();
        }
        for at in shuffled(6, requests.len()) {
            self.sched.abort(requests[at]).expect("alive");
        }
        self.round();
        assert_eq!(self.sched.stats().blank, self.num_blocks as u64);
    }

    fn fill_with_cached(&mut self) {
        let blocks_each = 128;
        for _ in 0..self.num_blocks / blocks_each {
            self.add(blocks_each * BLOCK_SIZE, 0, true);
        }
        while self.sched.has_work() {
            self.round();
        }
    }

    fn start_rows(&mut self) {
        for _ in 0..self.rows {
            self.add(PROMPT, 4_096, true);
        }
        self.round();
        while self.plan.num_decodes() < self.rows {
            self.round();
        }
        for _ in 0..self.waiting.saturating_sub(self.sched.stats().waiting as usize) {
            self.add(1, 1, true);
        }
        self.steps_left = STEPS - 64;
    }

    fn abort_rows(&mut self, seed: u64) {
        let running: Vec<i64> = self.plan.seqs().to_vec();
        for at in shuffled(seed, running.len()) {
            let seq = SequenceId::from_raw(running[at]).expect("a sequence");
            self.sched.abort(seq).expect("alive");
        }
        self.round();
    }
}
