//! Blocks are short: who waits for some that are coming, and who loses its own.

use octavo_core::Victim;

use super::step::Step;
use super::{Ending, SchedulerModel};

impl SchedulerModel {
    /// Asks until there are blocks for so many tokens more of a running sequence; false where it is not placed.
    pub(super) fn finds_room(&mut self, step: &mut Step, seq: usize, num_tokens: usize) -> bool {
        while self.needed(seq, num_tokens) > self.pool().available() {
            if self.pool().coming() > step.num_waiting {
                step.num_waiting += 1;
                self.turns.add("turn: waits for coming blocks", 1);
                return false;
            }
            let victim = self.victim(seq);
            if victim != seq {
                self.preempt_in(step, victim);
            } else if self.running().len() > 1 {
                self.preempt_in(step, seq);
                return false;
            } else if self.memory.table(seq).is_some_and(|table| !table.twins.is_empty()) {
                self.memory.let_twins_go(seq);
                self.turns.add("turn: twins let go", 1);
            } else {
                if self.is_named(seq) {
                    self.turns.add("turn: alone, but named", 1);
                } else {
                    self.end_for_capacity(seq);
                }
                return false;
            }
        }
        true
    }

    /// Who loses its blocks, of the requester and those behind it; of equals the later one.
    fn victim(&self, requester: usize) -> usize {
        let order = self.running();
        let place = order.iter().position(|&seq| seq == requester).expect("the requester runs");
        let mut victim = requester;
        for &other in &order[place..] {
            let is_no_better = match self.world.victim {
                Victim::Latest => true,
                Victim::LeastComputed => self.sequences[other].computed <= self.sequences[victim].computed,
                Victim::LowestClass => self.class(other) >= self.class(victim),
            };
            if is_no_better {
                victim = other;
            }
        }
        victim
    }

    /// Ends whoever cannot go on inside a step.
    fn end_for_capacity(&mut self, seq: usize) {
        let kin = self.kin(seq);
        self.turns.add("turn: a family ends with capacity", usize::from(kin.len() > 1));
        for member in kin {
            self.leave_row(member);
            self.note_end(member, Ending::Capacity, true);
            self.ended.push(member);
        }
    }

    pub(super) fn preempt_in(&mut self, step: &mut Step, victim: usize) {
        if let Some(at) = step.placed.iter().position(|placed| placed.seq == victim) {
            step.budget += step.placed.remove(at).num_tokens;
        }
        step.decoding.retain(|&seq| seq != victim);
        step.preempted.push(victim);
        self.preempt(victim);
        if self.is_too_long(victim) {
            self.end_for_capacity(victim);
        }
    }

    /// Takes rows and blocks of a running sequence, which waits again.
    pub(super) fn preempt(&mut self, victim: usize) {
        let kin = self.kin(victim);
        self.turns.add("turn: a family is preempted", usize::from(kin.len() > 1));
        self.turns.add("turn: preempted while named", usize::from(self.is_named(victim)));
        for member in kin {
            self.leave_row(member);
        }
        self.counters.preemptions += 1;
        let state = &mut self.sequences[victim];
        (state.computed, state.scheduled, state.told) = (0, 0, 0);
        state.queued_with = state.known.len();
    }

    /// Whether it waits, knows more than the memory can hold, and no plan out has more of it.
    pub(super) fn is_too_long(&self, seq: usize) -> bool {
        let state = &self.sequences[seq];
        let blocks = state.known.len().div_ceil(self.world.block_size);
        state.end.is_none() && state.row.is_none() && !self.is_named(seq) && blocks > self.pool().usable()
    }
}
