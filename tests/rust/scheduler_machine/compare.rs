//! Everything that can be seen, on all sides.

use octavo_core::{Decision, Reason, SequenceId, StepPlan};

use super::calls::Manner;
use super::trio::Trio;
use crate::support::scheduler::Ending;
use crate::support::scheduler::plan::ModelPlan;

pub fn compare_plan(trio: &Trio, expected: &ModelPlan) {
    let name = |raw: &i64| trio.names[raw];
    let names = |raws: &[i64]| raws.iter().map(name).collect::<Vec<_>>();
    let plan = &trio.plan;
    let found = ModelPlan {
        number: plan.number(),
        seqs: names(plan.seqs()),
        rows: plan.rows().to_vec(),
        num_decodes: plan.num_decodes(),
        num_padded: plan.num_padded(),
        num_tokens: plan.num_tokens().to_vec(),
        query_start: plan.query_start().to_vec(),
        token_ids: plan.token_ids().to_vec(),
        token_source: plan.token_source().to_vec(),
        positions: plan.positions().to_vec(),
        slot_mapping: plan.slot_mapping().to_vec(),
        seq_lens: plan.seq_lens().to_vec(),
        sample: plan.sample().to_vec(),
        sample_seqs: names(plan.sample_seqs()),
        sample_indptr: plan.sample_indptr().to_vec(),
        table_changes: plan.table_changes().to_vec(),
        copies: plan.copies().to_vec(),
        admitted: names(plan.admitted()),
        resumed: names(plan.resumed()),
        preempted: names(plan.preempted()),
        ended: names(plan.ended()),
    };
    assert_eq!(&found, expected, "plan");
    assert!(plan.zero().is_empty());
    check_layout(plan);
    let scheduled: i32 = plan.num_tokens().iter().sum();
    assert!(scheduled as usize <= trio.model.world.max_num_batched_tokens, "L10");
    assert!(plan.seqs().len() <= trio.model.world.max_num_seqs, "L10");
}

/// The arrays lie in the buffer one after the other, each where a 64-bit word begins, and fill it.
fn check_layout(plan: &StepPlan) {
    let mut end: usize = 0;
    for section in plan.layout() {
        assert_eq!(section.offset, end.next_multiple_of(8), "{}", section.name);
        end = section.offset + section.size() * section.dtype.size();
    }
    assert_eq!(plan.bytes().len(), end.next_multiple_of(8));
    let seqs = plan.section("seqs").expect("every plan has it");
    let bytes = &plan.bytes()[seqs.offset..][..seqs.size() * 8];
    let read: Vec<i64> =
        bytes.chunks_exact(8).map(|word| i64::from_ne_bytes(word.try_into().expect("8 bytes"))).collect();
    assert_eq!(read, plan.seqs());
}

pub fn compare_decision(decision: &Decision, plan: &StepPlan) {
    let raws = |seqs: &[SequenceId]| seqs.iter().map(|seq| seq.raw()).collect::<Vec<_>>();
    let placed = &decision.placed;
    assert_eq!(decision.number, plan.number());
    assert_eq!(decision.num_decodes, plan.num_decodes());
    assert_eq!(decision.num_tokens, plan.token_ids().len());
    assert_eq!(decision.num_padded, plan.num_padded());
    assert_eq!(placed.iter().map(|placed| placed.seq.raw()).collect::<Vec<_>>(), plan.seqs());
    assert_eq!(placed.iter().map(|placed| placed.row as i32).collect::<Vec<_>>(), plan.rows());
    assert_eq!(placed.iter().map(|placed| placed.num_tokens as i32).collect::<Vec<_>>(), plan.num_tokens());
    assert_eq!(
        placed.iter().map(|placed| (placed.start + placed.num_tokens) as i32).collect::<Vec<_>>(),
        plan.seq_lens()
    );
    let samples: Vec<usize> = placed.iter().map(|placed| placed.num_samples as usize).collect();
    let by_row = |place: usize| {
        let last = plan.query_start()[place + 1] - 1;
        plan.sample().iter().filter(|&&index| index == last).count()
    };
    assert_eq!(samples, (0..placed.len()).map(by_row).collect::<Vec<_>>());
    assert_eq!(raws(&decision.admitted), plan.admitted());
    assert_eq!(raws(&decision.resumed), plan.resumed());
    assert_eq!(raws(&decision.preempted), plan.preempted());
    assert_eq!(raws(&decision.ended), plan.ended());
}

pub fn ending(reason: Reason) -> Ending {
    match reason {
        Reason::Stop => Ending::Stop,
        Reason::Length => Ending::Length,
        Reason::Capacity => Ending::Capacity,
        Reason::Aborted => Ending::Aborted,
        Reason::Finished => Ending::Finished,
        Reason::Rejected => panic!("nothing is rejected after `add`"),
    }
}

impl Trio {
    pub fn compare(&mut self) {
        self.census.add("comparison", 1);
        self.model.check();
        self.core.audit().expect("the laws hold");
        self.decider.audit().expect("the laws hold");
        assert_eq!(self.core.has_work(), self.model.has_work(), "has_work");
        assert_eq!(self.core.plans_out().collect::<Vec<_>>(), self.model.out_numbers(), "plans_out");
        let (stats, model) = (self.core.stats(), &self.model);
        assert_eq!(stats, self.decider.stats(), "L13");
        let (tally, counters) = (model.pool().tally(), &model.counters);
        let found = [
            ("num_blocks", stats.num_blocks as usize, model.world.num_blocks),
            ("usable", stats.usable as usize, model.pool().usable()),
            ("blank", stats.blank as usize, tally.blank),
            ("cached", stats.cached as usize, tally.cached),
            ("held", stats.held as usize, tally.held),
            ("fenced", stats.fenced as usize, tally.fenced),
            ("available", stats.available as usize, model.pool().available()),
            ("guarded", stats.guarded as usize, tally.guarded),
            ("prefix_queries", stats.prefix_queries as usize, counters.prefix_queries),
            ("prefix_hits", stats.prefix_hits as usize, counters.prefix_hits),
            ("resumed_queries", stats.resumed_queries as usize, counters.resumed_queries),
            ("resumed_hits", stats.resumed_hits as usize, counters.resumed_hits),
            ("published_blocks", stats.published_blocks as usize, model.pool().published),
            ("merged_blocks", stats.merged_blocks as usize, model.pool().merged),
            ("evicted_blocks", stats.evicted_blocks as usize, model.pool().evicted),
            ("copies", stats.copies as usize, model.memory.num_copies),
            ("waiting", stats.waiting as usize, model.num_waiting()),
            ("running", stats.running as usize, model.num_running()),
            ("requests", stats.requests as usize, model.num_requests()),
            ("steps", stats.steps as usize, counters.steps),
            ("scheduled_tokens", stats.scheduled_tokens as usize, counters.scheduled_tokens),
            ("preemptions", stats.preemptions as usize, counters.preemptions),
            ("recomputed_tokens", stats.recomputed_tokens as usize, counters.recomputed_tokens),
            ("finished", stats.finished as usize, counters.finished),
            ("plans_out", stats.plans_out as usize, model.out_numbers().len()),
        ];
        for (name, core, model) in found {
            assert_eq!(core, model, "stats.{name}");
        }
        assert_eq!(self.core.draw().trim_end(), model.draw(), "draw");
    }

    /// Steps until nothing is left: every request must end in a bounded number of steps (L11).
    pub fn finish(&mut self) {
        self.unpin_all();
        for request in 0..self.handles.len() {
            self.set_ready(request);
        }
        let world = &self.model.world;
        let tokens_each = 2 * world.max_model_len * self.names.len().max(1);
        let mut rounds_left = 40 + tokens_each * (1 + self.names.len());
        while self.model.has_work() {
            assert!(rounds_left > 0, "L11: requests do not end");
            rounds_left -= 1;
            self.step(self.now + 1.0);
            self.compare();
            let out = self.model.out_numbers().len();
            if out == self.model.world.inflight_steps || rounds_left.is_multiple_of(2) {
                self.commit(&[0, 1, 0, 1], Manner::Plain);
                self.compare();
            }
        }
        self.step(self.now);
        self.compare();
        let stats = self.core.stats();
        assert_eq!((stats.held, stats.available), (0, stats.usable), "at idle nothing is held");
        self.read_all();
    }
}
