//! A scheduler in a world drawn by chance, and a device that runs its plans.

use std::collections::BTreeMap;

use octavo_core::{
    Batching, CacheConfig, Identity, Outcome, PinId, Policy, Request, RequestId, Reserve, Scheduler, SchedulerConfig,
    SequenceId, StepPlan, Victim,
};

use super::dice::Dice;
use crate::census::Census;
use crate::device::{Device, Pass, history};

/// What the engine knows of a sequence.
struct Stream {
    seed: u64,
    /// The tokens of the prompts, by their places: all others were sampled.
    given: BTreeMap<usize, i32>,
    tokens: Vec<i32>,
    is_done: bool,
    /// Ends that an extension took back before they were reported; they still will be.
    num_revoked: usize,
}

pub struct Engine {
    dice: Dice,
    scheduler: Scheduler,
    device: Device,
    plan: StepPlan,
    outcome: Outcome,
    config: SchedulerConfig,
    streams: BTreeMap<i64, Stream>,
    requests: Vec<RequestId>,
    pins: Vec<PinId>,
    now: f64,
    num_calls: u64,
    num_steps: u64,
    pub census: Census,
}

/// What the device samples behind a context.
fn sampled(context: u64) -> i32 {
    (context >> 7) as i32 & 1
}

fn draw_config(dice: &mut Dice) -> SchedulerConfig {
    let num_blocks = dice.range(3, 14);
    let batching =
        dice.choose(&[Batching::Chunked, Batching::Chunked, Batching::Mixed, Batching::Continuous, Batching::Static]);
    let max_model_len = dice.range(8, 40);
    let budget = dice.range(1, 16);
    let policy = dice.choose(&[Policy::Fcfs, Policy::Priority, Policy::Sjf, Policy::Edf]);
    SchedulerConfig {
        cache: CacheConfig {
            block_size: dice.range(1, 5),
            prefix_caching: dice.chance(90),
            dedupe: dice.chance(60),
            reserve_null_block: dice.chance(20),
            hash_bits: dice.choose(&[64, 64, 8, 1]),
            hash_seed: dice.range(0, 1 << 40) as u64,
            ..CacheConfig::new(num_blocks)
        },
        max_num_seqs: dice.range(1, 8),
        max_num_batched_tokens: if batching == Batching::Chunked { budget } else { budget.max(max_model_len) },
        max_model_len,
        batching,
        policy,
        aging: dice.choose(&[0.0, 0.25, 1.0]),
        max_partial_prefills: dice.range(1, 4),
        long_prefill_threshold: dice.choose(&[0, 0, 2, 5]),
        watermark: dice.choose(&[0.0, 0.0, 0.01, 0.25]),
        reserve: dice.choose(&[Reserve::OnDemand, Reserve::OnDemand, Reserve::OnDemand, Reserve::WorstCase]),
        victim: dice.choose(&[Victim::Latest, Victim::LeastComputed, Victim::LowestClass]),
        inflight_steps: dice.range(1, 4),
        ..SchedulerConfig::new(num_blocks)
    }
}

impl Engine {
    pub fn new(mut dice: Dice) -> Self {
        let config = draw_config(&mut dice);
        Self {
            scheduler: Scheduler::new(&config).expect("drawn in range"),
            device: Device::new(config.cache.num_blocks as usize, config.cache.block_size as usize),
            plan: StepPlan::default(),
            outcome: Outcome::default(),
            config,
            streams: BTreeMap::new(),
            requests: Vec::new(),
            pins: Vec::new(),
            now: 0.0,
            num_calls: 0,
            num_steps: 0,
            census: Census::default(),
            dice,
        }
    }

    pub fn num_steps(&self) -> u64 {
        self.num_steps
    }

    /// One call, drawn by chance; a step or a commit in most cases.
    pub fn act(&mut self) {
        match self.dice.range(0, 99) {
            0..22 => self.add(),
            22..25 => self.end(),
            25..28 => self.extend(),
            28..30 => self.cancel(),
            30 => self.pin(),
            31..33 => self.unpin(),
            33 => self.new_epoch(),
            34..66 => self.commit(),
            _ => self.step(),
        }
        self.check();
    }

    /// The laws after every call; what costs more, at times.
    fn check(&mut self) {
        self.num_calls += 1;
        self.scheduler.audit().expect("the laws hold");
        if self.num_calls.is_multiple_of(64) {
            let stats = self.scheduler.stats();
            assert_eq!(stats.blank + stats.cached + stats.held + stats.fenced, stats.usable, "L1");
            assert!(stats.plans_out as i64 <= self.config.inflight_steps);
        }
    }

    fn common(&mut self, longest: i64) -> Vec<i32> {
        let length = self.dice.range(1, longest) as usize;
        let mut tokens: Vec<i32> = (0..length).map(|at| (at.count_ones() % 2) as i32).collect();
        for _ in 0..self.dice.range(0, 2) {
            tokens.push(self.dice.range(0, 1) as i32);
        }
        tokens
    }

    // ------------------------------------------------------------------ requests

    fn add(&mut self) {
        if self.requests.len() > 16 {
            return;
        }
        let prompt = self.common(14);
        let adapter = self.dice.choose(&[0, 0, 0, 7]);
        let n = if self.dice.chance(25) { self.dice.range(2, 4) as usize } else { 1 };
        let request = Request {
            n,
            min_tokens: 0,
            stop_token_ids: if self.dice.chance(10) { vec![1] } else { Vec::new() },
            priority: self.dice.range(-1, 1),
            deadline: self.dice.chance(50).then(|| self.now + self.dice.range(0, 9) as f64),
            identity: Identity::default().with_adapter(adapter),
            use_cache: self.dice.chance(90),
            ready: self.dice.chance(90),
            ..Request::new(prompt.clone(), self.dice.range(0, 20) as usize)
        };
        let Ok(handle) = self.scheduler.add(request) else {
            self.census.add("add: refused", 1);
            return;
        };
        self.census.add("add", 1);
        self.requests.push(handle);
        for seq in self.scheduler.sequences(handle).expect("alive") {
            let given = prompt.iter().copied().enumerate().collect();
            let stream = Stream { seed: 1 + adapter, given, tokens: prompt.clone(), is_done: false, num_revoked: 0 };
            assert!(self.streams.insert(seq.raw(), stream).is_none(), "handles are never given twice");
        }
    }

    fn pick(&mut self) -> Option<RequestId> {
        let newest = self.requests.len() as i64 - 1;
        (newest >= 0).then(|| self.requests[self.dice.range(0, newest) as usize])
    }

    fn end(&mut self) {
        let Some(request) = self.pick() else { return };
        let Ok(members) = self.scheduler.sequences(request) else { return };
        let member = members[self.dice.range(0, members.len() as i64 - 1) as usize];
        let result = match self.dice.range(0, 4) {
            0 => self.scheduler.abort(request),
            1 => self.scheduler.finish(request),
            2 => self.scheduler.abort(member),
            3 => self.scheduler.finish(member),
            _ => self.scheduler.set_ready(request),
        };
        // One member of a request may be long gone.
        self.census.add(if result.is_ok() { "end" } else { "end: stale" }, 1);
    }

    /// The next turn of a conversation, once it has ended and before a step releases it.
    fn extend(&mut self) {
        let Some(request) = self.pick() else { return };
        let tokens = self.common(4);
        let max_tokens = self.dice.range(0, 9) as usize;
        if self.dice.chance(60) {
            while self.scheduler.plans_out().next().is_some() {
                self.commit();
            }
            let _ = self.scheduler.finish(request);
        }
        let Ok(seqs) = self.scheduler.sequences(request) else { return };
        let seq = seqs[0];
        if self.scheduler.extend(request, &tokens, max_tokens).is_err() {
            self.census.add("extend: refused", 1);
            return;
        }
        self.census.add("extend", 1);
        let stream = self.streams.get_mut(&seq.raw()).expect("alive");
        for token in tokens {
            stream.given.insert(stream.tokens.len(), token);
            stream.tokens.push(token);
        }
        stream.num_revoked += usize::from(!stream.is_done);
        stream.is_done = false;
    }

    // ------------------------------------------------------------------ the cache

    fn pin(&mut self) {
        // Pins for good would starve the pool.
        let expires =
            if self.pins.len() < 2 && self.dice.chance(50) { None } else { Some(self.dice.range(1, 20) as u64) };
        let tokens = self.common(14);
        let pin = self.scheduler.pin(&tokens, &Identity::default(), expires).expect("good tokens");
        if expires.is_none() {
            self.pins.push(pin);
        }
        self.census.add("pin", 1);
    }

    fn unpin(&mut self) {
        if let Some(pin) = self.pins.pop() {
            self.scheduler.unpin(pin).expect("pinned for good");
        }
    }

    fn new_epoch(&mut self) {
        if self.dice.chance(30) {
            self.scheduler.new_epoch();
            self.census.add("epoch", 1);
        }
    }

    // ------------------------------------------------------------------ plans

    fn step(&mut self) {
        self.now += self.dice.range(0, 2) as f64;
        self.num_steps += 1;
        let has_plan = self.scheduler.step(self.now, &mut self.plan).expect("time goes on");
        let scheduler = &self.scheduler;
        self.requests.retain(|&request| scheduler.sequences(request).is_ok());
        if !has_plan {
            self.census.add("step: None", 1);
            return;
        }
        let plan = &self.plan;
        assert!(plan.token_ids().len() as i64 <= self.config.max_num_batched_tokens, "L10");
        assert!(plan.seqs().len() as i64 <= self.config.max_num_seqs, "L10");
        for (what, times) in [
            ("plan", 1),
            ("row", plan.seqs().len()),
            ("token unknown", plan.token_source().len()),
            ("copy", plan.copies().len()),
            ("preempted", plan.preempted().len()),
            ("resumed", plan.resumed().len()),
        ] {
            self.census.add(what, times);
        }
        self.device.receive(Pass::from(plan));
        self.compare_tables();
    }

    /// The tables that plans told of are those of the scheduler (L8).
    fn compare_tables(&self) {
        let tables = self.scheduler.block_tables(0).expect("a group");
        let width = self.scheduler.table_width();
        for (&row, &length) in self.plan.rows().iter().zip(self.plan.seq_lens()) {
            for index in 0..(length as usize).div_ceil(self.config.cache.block_size as usize) {
                let block = tables[row as usize * width + index];
                assert_eq!(self.device.block(row as usize, index), Some(block), "L8: row {row}, index {index}");
            }
        }
    }

    fn commit(&mut self) {
        let Some(number) = self.scheduler.plans_out().next() else { return };
        let streams = &self.streams;
        let contexts = self.device.run(|raw| {
            let stream = &streams[&raw];
            (stream.seed, (!stream.is_done).then(|| stream.tokens.clone()))
        });
        let tokens: Vec<i32> = contexts.into_iter().map(sampled).collect();
        self.device.answer(number, &tokens);
        self.scheduler.commit(number, &tokens, None, &mut self.outcome).expect("the oldest plan out");
        self.accept();
    }

    fn accept(&mut self) {
        for (at, seq) in self.outcome.seqs.iter().enumerate() {
            let run = self.outcome.indptr[at] as usize..self.outcome.indptr[at + 1] as usize;
            let stream = self.streams.get_mut(&seq.raw()).expect("it was added");
            stream.tokens.extend_from_slice(&self.outcome.tokens[run]);
        }
        let finished: Vec<(SequenceId, String)> = self
            .outcome
            .finished
            .iter()
            .zip(&self.outcome.reasons)
            .map(|(&seq, reason)| (seq, format!("end: {reason:?}")))
            .collect();
        for (seq, reason) in finished {
            self.census.add(&reason, 1);
            let found = self.scheduler.tokens(seq).expect("readable until the next step");
            let stream = self.streams.get_mut(&seq.raw()).expect("it was added");
            assert_eq!(found, stream.tokens, "tokens");
            if stream.num_revoked > 0 {
                stream.num_revoked -= 1;
                continue;
            }
            compare_with_plain_model(stream);
            stream.is_done = true;
        }
    }

    fn cancel(&mut self) {
        let out: Vec<u64> = self.scheduler.plans_out().collect();
        if !out.is_empty() {
            let number = self.dice.choose(&out);
            self.scheduler.cancel(number).expect("it is out");
            self.device.void(number);
            self.census.add("cancel", 1);
        }
    }

    // ------------------------------------------------------------------ the end

    /// No more requests: those that are there must end, or half of the time are aborted; then every block is available.
    pub fn drain(&mut self) {
        while !self.pins.is_empty() {
            self.unpin();
        }
        let aborts = self.dice.chance(50);
        for request in self.requests.clone() {
            let result = if aborts { self.scheduler.abort(request) } else { self.scheduler.set_ready(request) };
            result.expect("alive");
        }
        let mut steps_left = 20_000;
        while self.scheduler.has_work() {
            assert!(steps_left > 0, "L11: requests do not end");
            steps_left -= 1;
            self.step();
            self.check();
            if self.dice.chance(50) || self.scheduler.plans_out().count() as i64 == self.config.inflight_steps {
                self.commit();
                self.check();
            }
        }
        // Pins that expire, and the release of what ended last.
        for _ in 0..21 {
            self.step();
            self.check();
        }
        let stats = self.scheduler.stats();
        assert_eq!((stats.held, stats.fenced, stats.available), (0, 0, stats.usable), "every block is available");
        assert_eq!((stats.requests, stats.running, stats.waiting, stats.plans_out), (0, 0, 0, 0));
        assert!(self.requests.is_empty());
        self.census.add("world", 1);
    }
}

/// Every sampled token is that of a model without batches and pages.
fn compare_with_plain_model(stream: &Stream) {
    let mut context = stream.seed;
    for (place, &token) in stream.tokens.iter().enumerate() {
        if !stream.given.contains_key(&place) {
            assert_eq!(token, sampled(context), "the theorem: token {place}");
        }
        context = history(context, token);
    }
}
