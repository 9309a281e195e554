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
/// Decode steps that a shape leaves room for, and those that go by until every row decodes.
const STEPS: usize = 1_024;
const STARTING: usize = 64;

/// What an engine runs, and in how large a memory.
#[derive(Clone, Copy)]
pub struct Shape {
    pub rows: usize,
    pub num_blocks: usize,
    pub max_model_len: usize,
    pub fill: Fill,
    pub waiting: usize,
}

impl Shape {
    /// `rows` decode in a memory of their own size.
    pub const fn decoding(rows: usize, fill: Fill) -> Self {
        let num_blocks = rows * (PROMPT + STEPS + STARTING).div_ceil(BLOCK_SIZE);
        Self { rows, num_blocks, max_model_len: 4_096, fill, waiting: 0 }
    }

    /// 256 rows decode in a memory of any size; the limits are the same for all sizes.
    pub const fn in_pool(num_blocks: usize, fill: Fill) -> Self {
        Self { rows: 256, num_blocks, max_model_len: 1 << 17, fill, waiting: 0 }
    }

    /// 256 rows decode while `waiting` others wait.
    pub const fn with_waiting(waiting: usize) -> Self {
        Self { waiting, ..Self::decoding(256, Fill::Fresh) }
    }

    /// Decode steps before the sequences are replaced.
    fn steps(&self) -> usize {
        let room = self.num_blocks / self.rows * BLOCK_SIZE;
        room.min(PROMPT + STEPS) - PROMPT - STARTING
    }
}

/// A scheduler all of whose rows decode, with what its caller uses again.
pub struct Engine {
    sched: Scheduler,
    plan: StepPlan,
    outcome: Outcome,
    sampled: Vec<i32>,
    shape: Shape,
    next_seed: u64,
    steps_left: usize,
}

impl Engine {
    pub fn new(shape: Shape) -> Self {
        let mut engine = Self::empty(shape);
        engine.mix_blocks();
        engine.fill_and_start();
        engine
    }

    /// The same with blocks in the order of their ids, which a count of instructions does not see.
    pub fn unmixed(shape: Shape) -> Self {
        let mut engine = Self::empty(shape);
        engine.fill_and_start();
        engine
    }

    fn empty(shape: Shape) -> Self {
        let num_blocks = shape.num_blocks as i64;
        let config = SchedulerConfig {
            cache: CacheConfig { block_size: BLOCK_SIZE as i64, ..CacheConfig::new(num_blocks) },
            max_num_seqs: shape.rows as i64,
            max_num_batched_tokens: 65_536,
            max_model_len: shape.max_model_len as i64,
            max_partial_prefills: 64,
            watermark: 0.0,
            ..SchedulerConfig::new(num_blocks)
        };
        Self {
            sched: Scheduler::new(&config).expect("in range"),
            plan: StepPlan::new(),
            outcome: Outcome::default(),
            sampled: tokens(3, shape.rows),
            shape,
            next_seed: 10_000_000,
            steps_left: 0,
        }
    }

    fn fill_and_start(&mut self) {
        if self.shape.fill == Fill::Full {
            self.fill_with_cached();
        }
        self.start_rows();
        let stats = self.sched.stats();
        assert_eq!((stats.running as usize, stats.waiting as usize), (self.shape.rows, self.shape.waiting));
        assert_eq!(stats.blank == 0, self.shape.fill == Fill::Full);
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
        if self.shape.fill == Fill::Fresh {
            *self = Self::new(self.shape);
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
        for row in 0..self.shape.rows {
            let len = 1 + draw(4, row as u64) as usize % PROMPT;
            self.next_seed += 1;
            let prompt = tokens(self.next_seed, len);
            let request = Request { use_cache: false, ..Request::new(prompt, self.shape.max_model_len) };
            requests.push(self.sched.add(request).expect("it fits"));
        }
        while self.sched.stats().available >= self.shape.rows as u64 {
            self.round();
        }
        for at in shuffled(6, requests.len()) {
            self.sched.abort(requests[at]).expect("alive");
        }
        self.round();
        assert_eq!(self.sched.stats().blank, self.shape.num_blocks as u64);
    }

    fn fill_with_cached(&mut self) {
        let blocks_each = 128;
        for _ in 0..self.shape.num_blocks / blocks_each {
            self.add(blocks_each * BLOCK_SIZE, 0, true);
        }
        while self.sched.has_work() {
            self.round();
        }
    }

    fn start_rows(&mut self) {
        for row in 0..self.shape.rows {
            // Not all at the same place of a block: every step fills some.
            self.add(PROMPT - row % BLOCK_SIZE, self.shape.max_model_len, true);
        }
        self.round();
        while self.plan.num_decodes() < self.shape.rows {
            self.round();
        }
        for _ in 0..self.shape.waiting.saturating_sub(self.sched.stats().waiting as usize) {
            self.add(1, 1, true);
        }
        self.steps_left = self.shape.steps();
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
