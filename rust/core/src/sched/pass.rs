//! A step that is being put together, and the moves that its phases are made of.

use crate::config::Victim;
use crate::ids::SequenceId;
use crate::sched::decision::{Decision, Placed};
use crate::sched::outcome::Reason;
use crate::sched::request::Status;
use crate::sched::rows::small;
use crate::sched::state::State;
use crate::table::blocks_for;
use crate::tokens;

/// A step that is being put together.
pub(crate) struct Pass<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) decision: Decision,
    /// Tokens that may still be placed.
    pub(crate) budget: usize,
    /// The most tokens that one prompt may take.
    pub(crate) prompt_cap: usize,
    /// Rows that are not decodes, of those that phase 2 saw.
    pub(crate) num_prompts: usize,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(state: &'a mut State, prompt_cap: usize) -> Self {
        let mut decision = state.spare.pop().unwrap_or_default();
        decision.clear();
        let budget = state.limits.token_budget;
        Self { state, decision, budget, prompt_cap, num_prompts: 0 }
    }

    /// Completes the decision; false, with the plan's news kept for later, when it is empty.
    pub(crate) fn close(self) -> bool {
        let Self { state, mut decision, budget, .. } = self;
        let nothing =
            budget == state.limits.token_budget && decision.preempted.is_empty() && state.ends.to_report.is_empty();
        if nothing {
            state.spare.push(decision);
            return false;
        }
        if !decision.preempted.is_empty() {
            let decodes = &decision.placed[..decision.num_decodes];
            decision.num_decodes = decodes.iter().filter(|placed| placed.num_tokens > 0).count();
            decision.placed.retain(|placed| placed.num_tokens > 0);
        }
        decision.num_tokens = state.limits.token_budget - budget;
        decision.num_padded = if decision.num_decodes > 0 { state.padding.len() } else { 0 };
        decision.number = state.counters.plans;
        state.counters.plans += 1;
        std::mem::swap(&mut decision.ended, &mut state.news.ended);
        std::mem::swap(&mut decision.vacated, &mut state.news.vacated);
        std::mem::swap(&mut decision.merged, &mut state.news.merged);
        decision.step = state.cache.begin_step();
        state.out.push_back(decision);
        true
    }

    #[inline]
    pub(crate) fn place(&mut self, row: u32, num_tokens: usize) {
        let runner = self.state.rows.at_mut(row);
        let samples = runner.samples && num_tokens == runner.lacking();
        let first_new = std::mem::replace(&mut runner.announced, runner.blocks);
        self.budget -= num_tokens;
        self.decision.num_samples += usize::from(samples);
        self.decision.num_new_blocks += (runner.blocks - first_new) as usize;
        let (seq, start, num_tokens) = (runner.seq, runner.computed, small(num_tokens));
        self.decision.placed.push(Placed { seq, row, start, num_tokens, samples, first_new });
    }

    /// Adds new blocks, which are available, to a row's table.
    pub(crate) fn grow(&mut self, row: u32, blocks: usize) {
        if blocks == 0 {
            return;
        }
        let runner = self.state.rows.at_mut(row);
        let table = &mut self.state.sequences.live_mut(runner.seq).table;
        self.state.cache.grow(table, blocks);
        let block_size = self.state.cache.block_size();
        let (index, offset) = (runner.computed as usize / block_size, runner.computed as usize % block_size);
        runner.next_slot = tokens::slot(table.blocks()[index], block_size, offset);
        runner.blocks = small(table.len());
    }

    /// Sees to it that a block is available for the row at `at` in the order, preempting those at it and behind it. False
    /// when that row itself had to go.
    pub(crate) fn find_block(&mut self, at: usize) -> bool {
        while self.state.cache.available() == 0 {
            let place = self.victim(at);
            let row = self.state.rows.order.remove(place);
            if place == 0 && self.state.rows.order.is_empty() {
                self.expire(row);
            } else {
                self.preempt(row);
            }
            if place == at {
                return false;
            }
        }
        true
    }

    /// Who of those from `at` on in the order loses its blocks; of equals the later one.
    fn victim(&self, at: usize) -> usize {
        let State { rows, sequences, limits, .. } = &*self.state;
        let candidates = at..rows.order.len();
        let victim = match limits.victim {
            Victim::Latest => candidates.last(),
            Victim::LeastComputed => candidates.rev().min_by_key(|&place| rows.at(rows.order[place]).computed),
            Victim::LowestClass => candidates.max_by(|&a, &b| {
                let class = |place: usize| sequences.live(rows.at(rows.order[place]).seq).rank.class;
                class(a).total_cmp(&class(b))
            }),
        };
        victim.unwrap_or_else(|| unreachable!("the requester is in the order"))
    }

    /// The row's sequence is alone and cannot grow: it ends here.
    fn expire(&mut self, row: u32) {
        let seq = self.withdraw(row);
        self.end_now(seq);
    }

    /// Takes everything from the row, which the caller took out of the order, and puts its sequence back into the queue.
    pub(crate) fn preempt(&mut self, row: u32) {
        let runner = *self.state.rows.at(row);
        let seq = self.withdraw(row);
        self.decision.preempted.push(seq);
        self.state.counters.preemptions += 1;
        let sequence = self.state.sequences.live_mut(seq);
        sequence.high_water = runner.high_water as usize;
        sequence.status = Status::Waiting;
        if blocks_for(sequence.tokens.len(), self.state.cache.block_size()) > self.state.cache.num_blocks() {
            self.end_now(seq);
        } else {
            sequence.rank = self.state.limits.rank(sequence);
            self.state.queue.push(sequence.rank, seq);
        }
    }

    /// Undoes the row's part in this plan and frees what it holds.
    fn withdraw(&mut self, row: u32) -> SequenceId {
        let runner = *self.state.rows.at(row);
        let placed = self.decision.placed.iter_mut().rev().find(|placed| placed.row == row && placed.num_tokens > 0);
        if let Some(placed) = placed {
            self.budget += placed.num_tokens as usize;
            self.decision.num_samples -= usize::from(placed.samples);
            self.decision.num_new_blocks -= (runner.announced - placed.first_new) as usize;
            placed.num_tokens = 0;
        }
        self.state.evacuate(runner.seq, row);
        runner.seq
    }

    /// Ends with `capacity` a sequence that has neither row nor blocks any more.
    fn end_now(&mut self, seq: SequenceId) {
        let reason = Reason::Capacity;
        self.state.sequences.live_mut(seq).status = Status::Ended { reason, row: None };
        self.state.ends.to_report.push((seq, reason));
        self.state.news.ended.push(seq);
        self.state.counters.finished += 1;
    }
}
