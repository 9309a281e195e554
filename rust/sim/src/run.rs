//! The loop: the real scheduler, with virtual time around it.
//!
//! ```text
//! loop   hand over what has arrived ─► decide(now) ─► nothing? jump to the next arrival, or stop
//!                                          │
//!        pass: T = tokens placed, K = Σ (start + n) over its rows, end = now + pass(T, K)
//!                                          │
//!        commit one token for each row that samples; finish those that have their traced length; now = end
//! ```
//!
//! A request that arrives exactly when a pass starts is in that pass's step. The scheduler is told
//! `max_tokens = max_model_len - prompt` for every request, the same bound for all, and never a true length: it
//! learns that a request is over when `finish` says so, before the next step.

use crate::batch::Batch;
use crate::cost::PassShape;
use crate::error::Error;
use crate::num::{count, float, index};
use crate::options::SimConfig;
use crate::queue::{Feeding, Queue};
use crate::record::{Record, Status};
use crate::workload::Workload;
use octavo_core::{Decision, Outcome, Request, Scheduler, SchedulerConfig, SequenceId};

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Virtual time, seconds on the trace's clock.
    pub now_s: f64,
    /// Passes so far.
    pub passes: u64,
    /// Requests that have ended, in any way.
    pub ended: u64,
    /// Requests of the workload.
    pub requests: u64,
}

/// How many passes lie between two reports of progress: some milliseconds of work.
const PASSES_PER_REPORT: u64 = 1_024;

/// Runs a workload to its end.
///
/// `observe` is called every thousand passes and stops the run by returning `false`.
///
/// # Errors
/// [`Error::Config`] for settings that fit no scheduler, [`Error::Stopped`] when `observe` says so. The other
/// variants are defects: the scheduler refused a call, or something was not conserved.
///
/// # Complexity
/// O(output tokens + prompt tokens + passes); memory O(requests + passes), whatever the lengths.
pub fn simulate(
    config: &SimConfig,
    workload: &Workload,
    feeding: Feeding,
    observe: &mut dyn FnMut(Progress) -> bool,
) -> Result<Record, Error> {
    if workload.is_empty() {
        return Ok(Record::default());
    }
    let mut run = Run::new(config, workload, feeding)?;
    while run.step()? {
        if run.reports_progress() && !observe(run.progress()) {
            return Err(Error::Stopped);
        }
    }
    run.close()
}

/// The scheduler's configuration for a workload.
fn scheduler_config(config: &SimConfig, workload: &Workload) -> Result<SchedulerConfig, Error> {
    let mut scheduler = SchedulerConfig::new(config.pool()?.cast_signed());
    scheduler.cache.block_size = config.block_size.cast_signed();
    scheduler.cache.prefix_caching = config.prefix_caching;
    scheduler.max_num_seqs = config.max_num_seqs.cast_signed();
    scheduler.max_num_batched_tokens = config.max_num_batched_tokens.cast_signed();
    scheduler.max_model_len = workload.longest().cast_signed();
    scheduler.max_partial_prefills = config.max_partial_prefills.cast_signed();
    scheduler.long_prefill_threshold = config.long_prefill_threshold.cast_signed();
    scheduler.watermark = config.watermark;
    Ok(scheduler)
}

struct Run<'a> {
    config: &'a SimConfig,
    workload: &'a Workload,
    feeding: Feeding,
    max_model_len: u32,
    scheduler: Scheduler,
    queue: Queue<'a>,
    batch: Batch,
    record: Record,
    now: f64,
    ended: u64,
    pass: Pass,
    outcome: Outcome,
}

/// The pass that is being made; its vectors are reused.
#[derive(Default)]
struct Pass {
    number: u64,
    num_placed: usize,
    shape: PassShape,
    num_decodes: u64,
    /// One token for each row that samples.
    tokens: Vec<i32>,
    /// Who has all of its tokens now.
    done: Vec<SequenceId>,
    /// Who works towards its first token.
    prefilling: Vec<u32>,
}

impl<'a> Run<'a> {
    fn new(config: &'a SimConfig, workload: &'a Workload, feeding: Feeding) -> Result<Self, Error> {
        let scheduler = Scheduler::new(&scheduler_config(config, workload)?)?;
        let rows = usize::try_from(config.max_num_seqs).unwrap_or(usize::MAX);
        let mut record = Record::default();
        record.requests.resize(workload.len(), crate::record::RequestRecord::default());
        Ok(Self {
            config,
            workload,
            feeding,
            // The scheduler accepted the length, so it fits.
            max_model_len: u32::try_from(workload.longest()).unwrap_or(u32::MAX),
            scheduler,
            queue: Queue::new(workload),
            batch: Batch::new(rows),
            record,
            now: 0.0,
            ended: 0,
            pass: Pass::default(),
            outcome: Outcome::default(),
        })
    }

    fn reports_progress(&self) -> bool {
        count(self.record.pass_ends.len()).is_multiple_of(PASSES_PER_REPORT)
    }

    fn progress(&self) -> Progress {
        Progress {
            now_s: self.now,
            passes: count(self.record.pass_ends.len()),
            ended: self.ended,
            requests: count(self.workload.len()),
        }
    }

    /// One pass, or one jump of the clock; `false` when all is done.
    fn step(&mut self) -> Result<bool, Error> {
        self.feed()?;
        let Self { config, workload, scheduler, batch, record, pass, .. } = self;
        let Some(decision) = scheduler.decide(self.now)? else {
            return self.jump();
        };
        let observer = Observer { config, workload, start_s: self.now };
        self.ended += changes(decision, batch, record);
        observer.shape(decision, batch, record, pass)?;
        if self.pass.num_placed > 0 {
            let stats = self.scheduler.stats();
            self.advance_clock(stats.usable - stats.available);
        }
        let Self { scheduler, pass, outcome, .. } = self;
        scheduler.commit(pass.number, &pass.tokens, None, outcome)?;
        self.finish_done()?;
        Ok(true)
    }

    /// Hands over what has arrived and could be admitted.
    fn feed(&mut self) -> Result<(), Error> {
        while self.batch.num_waiting() < self.feeding.wanted(self.batch.free_rows()) {
            let Some(request) = self.queue.take(self.now) else { break };
            let prompt = self.workload.prompt(request);
            let max_tokens = index(self.max_model_len) - prompt.len();
            let mut added = Request::new(prompt, max_tokens);
            added.arrival = Some(self.workload.arrivals()[index(request)]);
            match self.scheduler.add(added) {
                Ok(id) => {
                    let seq = self.scheduler.sequences(id)?[0];
                    self.batch.wait(seq, request);
                }
                // The one thing that a checked workload can still be refused for: a prompt beyond the pool.
                Err(octavo_core::Error::Request(refused)) if refused.argument == "prompt" => {
                    self.record.requests[index(request)].status = Status::Rejected;
                    self.ended += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Nothing can run now: on to the next arrival.
    fn jump(&mut self) -> Result<bool, Error> {
        match self.queue.next_arrival() {
            Some(arrival) if arrival > self.now => {
                self.now = arrival;
                Ok(true)
            }
            // What has arrived and was not handed over: the scheduler is full of what it cannot run.
            _ if !self.batch.is_empty() => Err(Error::Conservation("requests wait that no step admits".to_owned())),
            Some(_) => Ok(true),
            None => Ok(false),
        }
    }

    /// The pass is run: its end, and what that means for the counters.
    fn advance_clock(&mut self, held_blocks: u64) {
        let Self { config, record, pass, .. } = self;
        let seconds = config.cost.seconds(pass.shape);
        self.now += seconds;
        record.pass_ends.push(self.now);
        for &request in &pass.prefilling {
            record.requests[index(request)].prefill_s += seconds;
        }
        let counters = &mut record.counters;
        counters.scheduled_tokens += pass.shape.tokens;
        let memory_bound = config.cost.memory_seconds(pass.shape) > config.cost.compute_seconds(pass.shape);
        counters.memory_bound_passes += u64::from(memory_bound);
        if pass.num_decodes > 0 {
            counters.useful_slot_steps += pass.num_decodes;
            counters.idle_slot_steps += config.max_num_seqs - pass.num_decodes;
        }
        counters.held_block_seconds += float(held_blocks) * seconds;
        counters.peak_held_blocks = counters.peak_held_blocks.max(held_blocks);
    }

    /// Ends what has reached its traced length, before the next step.
    fn finish_done(&mut self) -> Result<(), Error> {
        let Self { scheduler, batch, record, pass, .. } = self;
        for seq in pass.done.drain(..) {
            // One that also reached max_tokens has ended by itself, and this changes nothing.
            scheduler.finish(seq)?;
            if let Some(request) = batch.leave(seq, record) {
                record.requests[index(request)].status = Status::Completed;
                self.ended += 1;
            }
        }
        Ok(())
    }

    /// The final counts, and the proof that nothing was lost on the way.
    fn close(mut self) -> Result<Record, Error> {
        let stats = self.scheduler.stats();
        let counters = &mut self.record.counters;
        counters.usable_blocks = stats.usable;
        counters.preemptions = stats.preemptions;
        counters.recomputed_tokens = stats.recomputed_tokens;
        counters.prefix_hit_tokens = stats.prefix_hits;
        counters.prefix_query_tokens = stats.prefix_queries;
        self.record.sort();
        crate::conserve::check(&self.scheduler, self.workload, &self.record)?;
        Ok(self.record)
    }
}

/// Who lost its row in this decision; returns how many ended.
fn changes(decision: &Decision, batch: &mut Batch, record: &mut Record) -> u64 {
    for &seq in &decision.preempted {
        if let Some(request) = batch.stand_up(seq, record) {
            record.requests[index(request)].preemptions += 1;
        }
    }
    // Finished ones have left before; who is still here and ends in a step outgrew the pool.
    let mut ended = 0;
    for &seq in &decision.ended {
        if let Some(request) = batch.leave(seq, record) {
            record.requests[index(request)].status = Status::Capacity;
            ended += 1;
        }
    }
    ended
}

/// Reads a decision without changing it.
struct Observer<'a> {
    config: &'a SimConfig,
    workload: &'a Workload,
    start_s: f64,
}

impl Observer<'_> {
    /// T, K and the tokens of the pass that a decision makes.
    fn shape(&self, decision: &Decision, batch: &mut Batch, record: &mut Record, pass: &mut Pass) -> Result<(), Error> {
        pass.number = decision.number;
        pass.num_placed = decision.placed.len();
        pass.num_decodes = count(decision.num_decodes);
        pass.tokens.clear();
        pass.done.clear();
        pass.prefilling.clear();
        // A run of 2^32 passes would be years of work.
        let this_pass = u32::try_from(record.pass_ends.len()).unwrap_or(u32::MAX);
        let mut shape = PassShape::default();
        for (at, placed) in decision.placed.iter().enumerate() {
            let context = u64::from(placed.start) + u64::from(placed.num_tokens);
            shape.tokens += u64::from(placed.num_tokens);
            shape.kv_tokens += self.config.kv_read.tokens(context, self.config.block_size);
            if at >= decision.num_decodes {
                self.prefill(placed.seq, placed.row, placed.start, batch, record, pass)?;
            }
            if placed.samples {
                let (request, is_last) = batch.emit(placed.row, this_pass, record);
                pass.tokens.push(Workload::own_token(request));
                if is_last {
                    pass.done.push(placed.seq);
                }
            }
        }
        pass.shape = shape;
        Ok(())
    }

    /// A row that prefills: newly given, or in progress.
    fn prefill(
        &self,
        seq: SequenceId,
        row: u32,
        start: u32,
        batch: &mut Batch,
        record: &mut Record,
        pass: &mut Pass,
    ) -> Result<(), Error> {
        let seated = batch.seat(seq, row, self.workload.output_tokens(), record);
        let Some(seated) = seated else {
            return Err(Error::Conservation("a plan names a sequence that nobody added".to_owned()));
        };
        let request = &mut record.requests[index(seated.request)];
        if seated.is_first_admission {
            request.queue_s = self.start_s - self.workload.arrivals()[index(seated.request)];
            request.hit_tokens = start;
        }
        if !seated.has_emitted {
            pass.prefilling.push(seated.request);
        }
        Ok(())
    }
}
