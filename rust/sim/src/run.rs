//! The loop: the real scheduler, with virtual time around it.
//!
//! ```text
//! loop   hand over what has arrived ─► decide(now) ─► nothing? jump to the next arrival, or stop
//!                                          │
//!        pass: T = tokens placed, K = Σ (start + n) over its rows; a padding row adds 1 to T and its p + o to K;
//!        end = now + pass(T, K)
//!                                          │
//!        commit one token for each row that samples; finish those that have their traced length; now = end
//! ```
//!
//! A request that arrives exactly when a pass starts is in that pass's step. The scheduler is told
//! `max_tokens = max_model_len - prompt` for every request, the same bound for all, and never a true length: it
//! learns that a request is over when `finish` says so, before the next step.

use crate::batch::Batch;
use crate::error::Error;
use crate::num::{count, float, index};
use crate::options::SimConfig;
use crate::pass::{Observer, Pass};
use crate::queue::{Feeding, Queue};
use crate::record::{Record, Status};
use crate::schedule::Batching;
use crate::workload::Workload;
use octavo_core::{Decision, Outcome, Policy, Request, Reserve, Scheduler};

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
/// Under a policy that looks at more than arrivals all that has arrived is handed over, whatever `feeding` says:
/// who stands first depends on everybody who waits.
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
    let config = config.resolved(workload);
    let feeding = if config.schedule.policy == Policy::Fcfs { feeding } else { Feeding::Eager };
    let mut run = Run::new(&config, workload, feeding)?;
    while run.step()? {
        if run.reports_progress() && !observe(run.progress()) {
            return Err(Error::Stopped);
        }
    }
    run.close()
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
    held_blocks: u64,
    /// Whether `held_blocks` may be wrong by now.
    is_stale: bool,
}

impl<'a> Run<'a> {
    fn new(config: &'a SimConfig, workload: &'a Workload, feeding: Feeding) -> Result<Self, Error> {
        let scheduler = Scheduler::new(&config.scheduler(workload)?)?;
        let mut record = Record { block_size: config.block_size, ..Record::default() };
        record.requests.resize(workload.len(), crate::record::RequestRecord::default());
        Ok(Self {
            config,
            workload,
            feeding,
            // The scheduler accepted the length, so it fits.
            max_model_len: u32::try_from(workload.longest()).unwrap_or(u32::MAX),
            scheduler,
            queue: Queue::new(workload),
            batch: Batch::new(config, workload),
            record,
            now: 0.0,
            ended: 0,
            pass: Pass::default(),
            outcome: Outcome::default(),
            held_blocks: 0,
            is_stale: true,
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
        if self.waits_for_more() {
            return self.jump();
        }
        let Self { config, workload, scheduler, batch, record, pass, .. } = self;
        let Some(decision) = scheduler.decide(self.now)? else {
            return self.jump();
        };
        let observer = Observer { config, workload, start_s: self.now };
        let ended = changes(decision, batch, record);
        observer.shape(decision, batch, record, pass)?;
        for _ in 0..ended {
            self.over();
        }
        self.is_stale |= self.pass.moves_blocks;
        if self.pass.num_placed > 0 {
            self.count_held();
            self.advance_clock()?;
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
            added.arrival = Some(self.queue.arrival(request));
            match self.scheduler.add(added) {
                Ok(id) => {
                    let seq = self.scheduler.sequences(id)?[0];
                    self.batch.wait(seq, request);
                }
                Err(octavo_core::Error::Request(refused)) if self.is_beyond_the_pool(&refused.argument) => {
                    self.record.requests[index(request)].status = Status::Rejected;
                    self.over();
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// What a checked workload can still be refused for: a prompt beyond the pool, or a reservation beyond it.
    fn is_beyond_the_pool(&self, argument: &str) -> bool {
        argument == "prompt" || (argument == "max_tokens" && self.config.schedule.reserve == Reserve::WorstCase)
    }

    /// Whether a static batch waits for members who are still to come.
    fn waits_for_more(&self) -> bool {
        self.config.schedule.waits_for_full()
            && self.batch.is_idle()
            && self.batch.num_waiting() < self.batch.free_rows()
            && self.queue.next_arrival().is_some()
    }

    /// A request has ended, in any way; in a closed loop that lets the next one come.
    fn over(&mut self) {
        self.ended += 1;
        self.queue.release(self.now);
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

    /// Asks the scheduler for the held blocks, where they can have changed.
    fn count_held(&mut self) {
        let ask = |scheduler: &Scheduler| {
            let (available, usable) = scheduler.available();
            (usable - available) as u64
        };
        if std::mem::take(&mut self.is_stale) {
            self.held_blocks = ask(&self.scheduler);
        }
        debug_assert_eq!(self.held_blocks, ask(&self.scheduler), "held blocks changed and nobody noticed");
    }

    /// The pass is run: its end, and what that means for the counters.
    fn advance_clock(&mut self) -> Result<(), Error> {
        let Self { config, record, pass, batch, held_blocks, .. } = self;
        let held_blocks = *held_blocks;
        let Some(held_tokens) = (held_blocks * config.block_size).checked_sub(batch.unused()) else {
            return Err(Error::Conservation("more slots are unused than held".to_owned()));
        };
        let seconds = config.cost.seconds(pass.shape);
        self.now += seconds;
        record.pass_ends.push(self.now);
        for &request in &pass.prefilling {
            let request = &mut record.requests[index(request)];
            request.prefill_s += seconds;
            request.prefill_passes += 1;
        }
        let counters = &mut record.counters;
        counters.scheduled_tokens += pass.shape.tokens - pass.num_padded;
        let memory_bound = config.cost.memory_seconds(pass.shape) > config.cost.compute_seconds(pass.shape);
        counters.memory_bound_passes += u64::from(memory_bound);
        if pass.num_decodes > 0 {
            counters.useful_slot_steps += pass.num_decodes;
            counters.padded_slot_steps += pass.num_padded;
            counters.idle_slot_steps += config.max_num_seqs - pass.num_decodes - pass.num_padded;
        }
        counters.held_block_seconds += float(held_blocks) * seconds;
        counters.held_token_seconds += float(held_tokens) * seconds;
        counters.peak_held_blocks = counters.peak_held_blocks.max(held_blocks);
        Ok(())
    }

    /// Ends what has reached its traced length, before the next step.
    fn finish_done(&mut self) -> Result<(), Error> {
        let mut done = std::mem::take(&mut self.pass.done);
        for seq in done.drain(..) {
            // One that also reached max_tokens has ended by itself, and this changes nothing.
            self.scheduler.finish(seq)?;
            let Some(request) = self.batch.leave(seq, &mut self.record) else { continue };
            self.record.requests[index(request)].status = Status::Completed;
            if self.config.schedule.batching == Batching::Static {
                let lengths =
                    (self.workload.prompt_tokens()[index(request)], self.workload.output_tokens()[index(request)]);
                let context = u64::from(lengths.0) + u64::from(lengths.1);
                self.batch.pad(self.config.kv_read.tokens(context, self.config.block_size));
            }
            self.over();
        }
        self.pass.done = done;
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
        self.record.released = self.queue.into_released();
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
