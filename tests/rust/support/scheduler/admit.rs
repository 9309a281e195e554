//! Admissions: the head of the queue gets a row and its blocks, or waits.

use octavo_core::{Batching, Policy, Reserve};

use super::SchedulerModel;
use super::step::Step;

/// What an admission is measured against.
struct Supply {
    rows: usize,
    blocks: usize,
    /// Whether guarded blocks are among these.
    has_guarded: bool,
    /// One block each for decodes that need one.
    promised: usize,
}

impl SchedulerModel {
    /// Admits the head of the queue; false where it has to wait.
    pub(super) fn admit_next(&mut self, step: &mut Step) -> bool {
        let Some(&head) = self.waiting().first() else { return false };
        let hit = self.hit(head);
        self.turns.add("turn: holds the queue, being named", usize::from(self.is_named(head)));
        if self.is_named(head) || step.budget == 0 || self.first_chunk(step, head, hit.len()).is_none() {
            return false;
        }
        if !self.fits(head, &hit, &self.supply_now()) {
            let victims = self.strict_victims(step, head, &hit);
            self.turns.add("turn: strict preemption", usize::from(!victims.is_empty()));
            for &victim in &victims {
                self.preempt_in(step, victim);
            }
            assert_eq!(hit, self.hit(head), "whoever was preempted is still found");
            if !self.fits(head, &hit, &self.supply_now()) {
                self.turns.add("turn: strict preemption for later", usize::from(!victims.is_empty()));
                return false;
            }
        }
        let chunk = self.first_chunk(step, head, hit.len()).expect("a larger budget takes no less");
        self.seat(step, head, &hit);
        self.place(step, head, chunk, false);
        true
    }

    fn hit(&self, candidate: usize) -> Vec<i32> {
        if self.uses_cache(candidate) {
            self.pool().hit(&self.request_of(candidate).submitted.identity, &self.sequences[candidate].known)
        } else {
            Vec::new()
        }
    }

    /// How much of a candidate the step would compute; none where that is too little.
    fn first_chunk(&self, step: &Step, candidate: usize, hit: usize) -> Option<usize> {
        let left = self.sequences[candidate].known.len() - hit * self.world.block_size;
        let chunk = left.min(step.budget).min(step.cap);
        let incomplete = self.prompts().into_iter().filter(|&seq| !self.completes(step, seq)).count();
        let may_stay_incomplete =
            self.world.batching == Batching::Chunked && incomplete < self.world.max_partial_prefills;
        (chunk == left || may_stay_incomplete).then_some(chunk)
    }

    /// Prompts in progress, those admitted in this step among them.
    fn prompts(&self) -> Vec<usize> {
        self.running().into_iter().filter(|&seq| self.is_prompt(seq)).collect()
    }

    /// Whether the step computes all that is known of a running sequence.
    fn completes(&self, step: &Step, seq: usize) -> bool {
        let known = self.sequences[seq].known.len();
        step.placed.iter().any(|placed| placed.seq == seq && placed.start + placed.num_tokens == known)
    }

    fn supply_now(&self) -> Supply {
        Supply {
            rows: self.rows_without(false).len(),
            blocks: self.pool().available(),
            has_guarded: false,
            promised: self.hungry_decodes().len(),
        }
    }

    /// Once what is coming has come, and these decodes have what they need now.
    fn supply_to_come(&self, hungry: &[usize]) -> Supply {
        Supply {
            rows: self.rows_without(false).len() + self.rows_without(true).len(),
            blocks: self.pool().available() + self.pool().coming(),
            has_guarded: true,
            promised: hungry.len(),
        }
    }

    /// Whether there are rows and room for all of a candidate.
    fn fits(&self, candidate: usize, hit: &[i32], supply: &Supply) -> bool {
        let is_claimed =
            |block: i32| self.pool().count(block) == 0 && (supply.has_guarded || !self.pool().is_guarded(block));
        let claimed = hit.iter().filter(|&&block| is_claimed(block)).count();
        let lacks = |seq: usize| self.target(seq).saturating_sub(self.memory.blocks(seq).len());
        let lack: usize = self.prompts().into_iter().map(lacks).sum::<usize>() + supply.promised;
        let kept = if self.running().is_empty() {
            0
        } else {
            (self.world.watermark * self.pool().usable() as f64).floor() as usize
        };
        let needed = self.target(candidate) - hit.len() + lack + kept + claimed;
        self.kin(candidate).len() <= supply.rows && needed <= supply.blocks
    }

    /// Under `continuous` the decodes come after the admission: with plans out they would lose again and again to it what
    /// they had to wait for.
    fn hungry_decodes(&self) -> Vec<usize> {
        if self.world.batching != Batching::Continuous || self.world.inflight_steps == 1 {
            return Vec::new();
        }
        self.running().into_iter().filter(|&seq| self.is_decode(seq) && self.needed(seq, 1) > 0).collect()
    }

    /// As few of strictly worse classes as it takes, the last in order first; nobody if all do not suffice, or none
    /// is needed once what is coming has come.
    fn strict_victims(&self, step: &Step, candidate: usize, hit: &[i32]) -> Vec<usize> {
        let mut then = self.clone();
        // As they are before anybody is preempted: a tail may be shared with a victim.
        let mut hungry = self.hungry_decodes();
        let is_strict = matches!(self.world.policy, Policy::Priority | Policy::Edf);
        let may_preempt = is_strict && self.world.batching != Batching::Static;
        if !may_preempt || then.fits(candidate, hit, &then.supply_to_come(&hungry)) {
            return Vec::new();
        }
        let mut victims = Vec::new();
        for seq in self.running().into_iter().rev() {
            let is_worse = self.class(seq) > self.class(candidate) && self.is_behind(seq, candidate);
            if is_worse && !step.has_seated(seq) {
                victims.push(seq);
                then.preempt(seq);
                hungry.retain(|&other| other != seq);
                if then.fits(candidate, hit, &then.supply_to_come(&hungry)) {
                    return victims;
                }
            }
        }
        Vec::new()
    }

    /// Gives a candidate its rows and its hit, and counts that.
    fn seat(&mut self, step: &mut Step, head: usize, hit: &[i32]) {
        for (member, row) in self.seating(head) {
            self.rows[row] = Some(member);
            self.sequences[member].row = Some(row);
        }
        self.memory.open(head, hit);
        let counts = self.uses_cache(head);
        let state = &mut self.sequences[head];
        let (queries, hits) = (state.known.len(), hit.len() * self.world.block_size);
        (state.computed, state.scheduled, state.high_water) = (hits, hits, state.high_water.max(hits));
        let was_introduced = std::mem::replace(&mut state.is_introduced, true);
        let counters = &mut self.counters;
        match (was_introduced, counts) {
            (false, true) => {
                counters.prefix_queries += queries;
                counters.prefix_hits += hits;
            }
            (true, true) => {
                counters.resumed_queries += queries;
                counters.resumed_hits += hits;
            }
            (_, false) => {}
        }
        if was_introduced { &mut step.resumed } else { &mut step.admitted }.push(head);
        if self.world.reserve == Reserve::WorstCase {
            self.memory.grow(head, self.target(head));
        }
    }

    /// The lowest free row for the one that stands for all, the next ones for the others.
    fn seating(&self, head: usize) -> Vec<(usize, usize)> {
        let others = self.kin(head).into_iter().filter(|&member| member != head);
        std::iter::once(head).chain(others).zip(self.rows_without(false)).collect()
    }
}
