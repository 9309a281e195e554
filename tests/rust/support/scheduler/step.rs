//! A step: its phases by batching, and who is placed.

use octavo_core::{Batching, Reserve};

use super::super::cache::Fault;
use super::super::memory::Tail;
use super::plan::ModelPlan;
use super::{Placed, SchedulerModel};

/// What one step has gathered so far.
pub(super) struct Step {
    pub budget: usize,
    pub cap: usize,
    pub decoding: Vec<usize>,
    pub placed: Vec<Placed>,
    pub admitted: Vec<usize>,
    pub resumed: Vec<usize>,
    pub preempted: Vec<usize>,
    /// How many wait for blocks that are coming.
    pub num_waiting: usize,
    /// A whole prompt in progress found too little budget: nobody joins before it.
    pub holds: bool,
}

impl Step {
    /// Whether it got its row in this step.
    pub fn has_seated(&self, seq: usize) -> bool {
        self.admitted.contains(&seq) || self.resumed.contains(&seq)
    }
}

impl SchedulerModel {
    pub fn step(&mut self, now: f64) -> Result<Option<ModelPlan>, Fault> {
        if !now.is_finite() || self.now.is_some_and(|before| now < before) {
            return Err(Fault::Request);
        }
        self.now = Some(now);
        for request in &mut self.requests {
            request.arrival.get_or_insert(now);
        }
        if self.outs.len() == self.world.inflight_steps {
            return Ok(None);
        }
        self.memory.expire_pins();
        for end in self.ends.iter().filter(|end| end.is_reported && !end.is_revoked) {
            self.sequences[end.seq].is_stale = true;
        }
        self.apply_ends();
        let mut step = self.begin();
        self.run_phases(&mut step);
        let preempts = !step.preempted.is_empty() || !self.stopped.is_empty();
        let has_unreported = self.ends.iter().any(|end| !end.is_reported);
        if step.placed.is_empty() && !preempts && !(has_unreported && self.outs.is_empty()) {
            self.blank_free_rows();
            return Ok(None);
        }
        self.block_tables = self.tables_now();
        Ok(Some(self.write_plan(step)))
    }

    fn apply_ends(&mut self) {
        for at in 0..self.ends.len() {
            if !self.ends[at].is_applied && !self.ends[at].is_revoked {
                self.ends[at].is_applied = true;
                let seq = self.ends[at].seq;
                if self.world.batching == Batching::Static {
                    self.padding.extend(self.sequences[seq].row);
                }
                self.leave_row(seq);
                self.ended.push(seq);
            }
        }
        if self.rows.iter().all(Option::is_none) {
            self.padding.clear();
        }
    }

    fn begin(&self) -> Step {
        let (running, waiting) = (self.running(), self.waiting());
        let others_wait = running.iter().filter(|&&seq| self.is_prompt(seq)).count() + waiting.len() >= 2;
        let threshold = self.world.long_prefill_threshold;
        let has_cap = self.world.batching == Batching::Chunked && threshold > 0 && others_wait;
        Step {
            budget: self.world.max_num_batched_tokens,
            cap: if has_cap { threshold } else { usize::MAX },
            decoding: running.into_iter().filter(|&seq| self.is_decode(seq)).collect(),
            placed: Vec::new(),
            admitted: Vec::new(),
            resumed: Vec::new(),
            preempted: Vec::new(),
            num_waiting: 0,
            holds: false,
        }
    }

    fn run_phases(&mut self, step: &mut Step) {
        let prompts: Vec<usize> = self.running().into_iter().filter(|&seq| self.is_prompt(seq)).collect();
        match self.world.batching {
            Batching::Chunked | Batching::Mixed => {
                self.place_decodes(step);
                self.place_prompts(step, &prompts);
                while !step.holds && self.admit_next(step) {}
            }
            Batching::Continuous => {
                if let Some(first) = prompts.first() {
                    self.place_prompts(step, &[*first]);
                } else if !self.admit_next(step) {
                    self.place_decodes(step);
                }
            }
            Batching::Static => {
                if self.rows_without(false).len() == self.rows.len() {
                    while self.admit_next(step) {}
                } else if prompts.is_empty() {
                    self.place_decodes(step);
                } else {
                    self.place_prompts(step, &prompts);
                }
            }
        }
    }

    fn place_decodes(&mut self, step: &mut Step) {
        for seq in step.decoding.clone() {
            if self.sequences[seq].row.is_none() || step.budget == 0 {
                continue;
            }
            if self.finds_room(step, seq, 1) {
                self.place(step, seq, 1, true);
            }
        }
    }

    fn place_prompts(&mut self, step: &mut Step, prompts: &[usize]) {
        for &seq in prompts {
            let lacking = self.lacking(seq);
            let in_chunks = self.world.batching == Batching::Chunked;
            let is_over_budget = if in_chunks { step.budget == 0 } else { step.budget < lacking };
            if self.sequences[seq].row.is_none() || is_over_budget {
                step.holds |= self.sequences[seq].row.is_some() && !in_chunks;
                continue;
            }
            if self.finds_room(step, seq, if in_chunks { 1 } else { lacking }) {
                let chunk = if in_chunks { lacking.min(step.budget).min(step.cap) } else { lacking };
                self.place(step, seq, chunk.min(self.room(seq)), false);
            }
        }
    }

    /// How many more tokens of a running sequence could find a slot now.
    fn room(&self, seq: usize) -> usize {
        let blocks = self.memory.blocks(seq).len() + self.pool().available();
        blocks * self.world.block_size - self.sequences[seq].scheduled
    }

    /// The blocks that a table must have for so many tokens more.
    fn blocks_for(&self, seq: usize, num_tokens: usize) -> usize {
        let blocks = (self.sequences[seq].scheduled + num_tokens).div_ceil(self.world.block_size);
        if self.world.reserve == Reserve::WorstCase { blocks.max(self.target(seq)) } else { blocks }
    }

    /// The blocks that a running sequence takes for so many tokens more, the copy of its tail among them.
    pub(super) fn needed(&self, seq: usize, num_tokens: usize) -> usize {
        let is_copied = self.memory.tail(seq, self.sequences[seq].scheduled) == Tail::Copied;
        self.blocks_for(seq, num_tokens).saturating_sub(self.memory.blocks(seq).len()) + usize::from(is_copied)
    }

    pub(super) fn place(&mut self, step: &mut Step, seq: usize, num_tokens: usize, is_decode: bool) {
        let state = &self.sequences[seq];
        let (row, start) = (state.row.expect("it runs"), state.scheduled);
        let is_copied = self.memory.own_tail(seq, start);
        self.turns.add("turn: a shared tail is copied", usize::from(is_copied));
        self.memory.grow(seq, self.blocks_for(seq, num_tokens));
        let samples = self.request_of(seq).submitted.max_tokens > 0 && start + num_tokens == self.expected(seq);
        step.budget -= num_tokens;
        step.placed.push(Placed {
            seq,
            row,
            start,
            num_tokens,
            is_decode,
            samplers: if samples { self.kin(seq) } else { Vec::new() },
            copied: is_copied.then_some(start / self.world.block_size),
        });
    }
}
