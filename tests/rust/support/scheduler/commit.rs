//! What comes back from the model, and plans from which nothing does.

use super::super::cache::{Fault, check_tokens};
use super::super::names::name_of;
use super::{Ending, ModelOutcome, Out, Placed, SchedulerModel};

impl SchedulerModel {
    pub fn commit(&mut self, number: u64, tokens: &[i32], counts: Option<&[i32]>) -> Result<ModelOutcome, Fault> {
        let num_samplers = match self.outs.first() {
            Some(out) if out.number == number => out.samplers().count(),
            _ => return Err(Fault::State),
        };
        let counts_are_ones =
            counts.is_none_or(|counts| counts.len() == num_samplers && counts.iter().all(|&count| count == 1));
        if tokens.len() != num_samplers || !counts_are_ones {
            return Err(Fault::Request);
        }
        check_tokens(tokens)?;
        let out = self.outs.remove(0);
        self.memory.end_step(out.step);
        let mut outcome = ModelOutcome { indptr: vec![0], ..ModelOutcome::default() };
        let mut sampled = tokens.iter().copied();
        for placed in &out.placed {
            self.counters.scheduled_tokens += placed.num_tokens;
            self.count_computed(placed);
            if placed.samplers.is_empty() {
                self.end_without_samples(placed.seq);
                continue;
            }
            let tokens: Vec<(usize, i32)> = placed.samplers.iter().copied().zip(&mut sampled).collect();
            self.fork(placed.seq, &tokens);
            for (seq, token) in tokens {
                self.accept(seq, token, &mut outcome);
            }
        }
        self.end_too_long(&out);
        for end in self.ends.iter_mut().filter(|end| !end.is_reported) {
            end.is_reported = true;
            outcome.finished.push((end.seq, end.ending));
        }
        Ok(outcome)
    }

    /// Tokens of a row are computed: full blocks become findable, if it still has its row.
    fn count_computed(&mut self, placed: &Placed) {
        let state = &mut self.sequences[placed.seq];
        let has_row = state.row.is_some();
        if !has_row && state.end.is_some() {
            return;
        }
        let end = (placed.start + placed.num_tokens).min(state.known.len());
        self.counters.recomputed_tokens += state.high_water.min(end).saturating_sub(placed.start);
        state.high_water = state.high_water.max(end);
        if !has_row {
            return;
        }
        let before = state.computed;
        state.computed = before.max(end);
        let block_size = self.world.block_size;
        let full = before / block_size..state.computed / block_size;
        for index in if self.uses_cache(placed.seq) { full } else { 0..0 } {
            let known = &self.sequences[placed.seq].known;
            let name = name_of(&self.request_of(placed.seq).submitted.identity, known, index, block_size);
            if let Some(canonical) = self.memory.publish(placed.seq, index, name) {
                self.merges.push((placed.seq, index, canonical));
            }
        }
    }

    /// A prompt for which nothing is sampled is done when it is computed.
    fn end_without_samples(&mut self, seq: usize) {
        let state = &self.sequences[seq];
        let is_done = state.end.is_none() && state.row.is_some() && state.computed == state.known.len();
        if is_done && self.request_of(seq).submitted.max_tokens == 0 {
            for member in self.kin(seq) {
                self.note_end(member, Ending::Length, false);
            }
        }
    }

    /// The prompt of several sequences is complete: each goes on alone from now on.
    fn fork(&mut self, leader: usize, sampled: &[(usize, i32)]) {
        let request = self.sequences[leader].request;
        if std::mem::replace(&mut self.requests[request].is_forked, true) {
            return;
        }
        let was = self.sequences[leader].clone();
        for &(seq, _) in sampled {
            if seq == leader || self.sequences[seq].end.is_some() {
                continue;
            }
            (self.sequences[seq].high_water, self.sequences[seq].queued_with) = (was.high_water, was.queued_with);
            let turn = if was.row.is_some() { "turn: forks" } else { "turn: forks in the queue" };
            self.turns.add(turn, 1);
            if was.row.is_some() {
                self.memory.share(leader, seq);
                (self.sequences[seq].computed, self.sequences[seq].scheduled) = (was.computed, was.computed);
                self.join(seq);
            }
        }
    }

    /// It runs from now on, without an admission: the next plan tells.
    pub(super) fn join(&mut self, seq: usize) {
        self.sequences[seq].is_introduced = true;
        self.joined.push(seq);
    }

    fn accept(&mut self, seq: usize, token: i32, outcome: &mut ModelOutcome) {
        let stops = self.request_of(seq).submitted.stop_token_ids.contains(&token);
        let state = &mut self.sequences[seq];
        if state.end.is_some() {
            return;
        }
        state.known.push(token);
        state.emitted += 1;
        outcome.seqs.push(seq);
        outcome.tokens.push(token);
        outcome.indptr.push(outcome.tokens.len() as i32);
        if stops && state.emitted >= state.min_tokens {
            self.note_end(seq, Ending::Stop, false);
        } else if state.known.len() == state.max_len {
            self.note_end(seq, Ending::Length, false);
        }
    }

    /// Who waits and has outgrown the memory, once no plan out names it.
    fn end_too_long(&mut self, out: &Out) {
        for placed in &out.placed {
            let forked = placed.samplers.iter().copied().filter(|&sampler| sampler != placed.seq);
            for seq in std::iter::once(placed.seq).chain(forked) {
                if self.is_too_long(seq) {
                    self.turns.add("turn: outgrew the memory while it waited", 1);
                    self.note_end(seq, Ending::Capacity, false);
                }
            }
        }
    }

    /// The pass of a plan failed: it and all later ones are void.
    pub fn cancel(&mut self, number: u64) -> Result<(), Fault> {
        let at = self.outs.iter().position(|out| out.number == number).ok_or(Fault::State)?;
        let void = self.outs.split_off(at);
        for placed in void.iter().flat_map(|out| &out.placed) {
            let state = &self.sequences[placed.seq];
            if state.row.is_some() && state.end.is_none() {
                self.preempt(placed.seq);
                self.stopped.push(placed.seq);
                self.turns.add("turn: preempted by a cancel", 1);
                if self.is_too_long(placed.seq) {
                    self.note_end(placed.seq, Ending::Capacity, false);
                }
            }
        }
        self.memory.void_steps(void[0].step);
        Ok(())
    }
}
