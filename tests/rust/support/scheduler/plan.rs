//! The arrays of a plan.

use super::super::cache::slot;
use super::step::Step;
use super::{Out, Placed, SchedulerModel};

/// A plan; sequences are named by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelPlan {
    pub number: u64,
    pub seqs: Vec<usize>,
    pub rows: Vec<i32>,
    pub num_decodes: usize,
    pub num_padded: usize,
    pub num_tokens: Vec<i32>,
    pub query_start: Vec<i32>,
    pub token_ids: Vec<i32>,
    pub token_source: Vec<[i32; 3]>,
    pub positions: Vec<i32>,
    pub slot_mapping: Vec<i64>,
    pub seq_lens: Vec<i32>,
    pub sample: Vec<i32>,
    pub sample_seqs: Vec<usize>,
    pub sample_indptr: Vec<i32>,
    pub table_changes: Vec<[i32; 4]>,
    pub copies: Vec<[i32; 3]>,
    pub admitted: Vec<usize>,
    pub resumed: Vec<usize>,
    pub preempted: Vec<usize>,
    pub ended: Vec<usize>,
}

impl SchedulerModel {
    pub(super) fn write_plan(&mut self, step: Step) -> ModelPlan {
        let num_decodes = step.placed.iter().filter(|placed| placed.is_decode).count();
        let mut plan = ModelPlan {
            number: self.plans,
            num_decodes,
            num_padded: if num_decodes > 0 { self.padding.len() } else { 0 },
            query_start: vec![0],
            sample_indptr: vec![0],
            table_changes: self.changes(&step.placed),
            admitted: std::mem::take(&mut self.joined),
            resumed: step.resumed,
            preempted: std::mem::take(&mut self.stopped),
            ended: std::mem::take(&mut self.ended),
            ..ModelPlan::default()
        };
        plan.preempted.extend(step.preempted);
        plan.admitted.extend(step.admitted);
        for placed in &step.placed {
            self.write_row(&mut plan, placed);
        }
        let (step_of_cache, copies) = self.memory.open_plan();
        plan.copies = copies;
        for placed in &step.placed {
            self.sequences[placed.seq].scheduled += placed.num_tokens;
        }
        for seq in self.rows.iter().flatten() {
            self.sequences[*seq].told = self.memory.blocks(*seq).len();
        }
        self.merges.clear();
        self.plans += 1;
        self.counters.steps += 1;
        self.outs.push(Out { number: plan.number, step: step_of_cache, placed: step.placed });
        plan
    }

    fn write_row(&self, plan: &mut ModelPlan, placed: &Placed) {
        let state = &self.sequences[placed.seq];
        let end = placed.start + placed.num_tokens;
        plan.seqs.push(placed.seq);
        plan.rows.push(placed.row as i32);
        plan.num_tokens.push(placed.num_tokens as i32);
        for position in placed.start..end {
            let block = self.memory.blocks(placed.seq)[position / self.world.block_size];
            if position >= state.known.len() {
                let (number, index) = self.last_sample(placed.seq);
                plan.token_source.push([plan.token_ids.len() as i32, number as i32, index as i32]);
            }
            plan.token_ids.push(state.known.get(position).copied().unwrap_or(0));
            plan.positions.push(position as i32);
            plan.slot_mapping.push(slot(block, position, self.world.block_size));
        }
        plan.query_start.push(plan.token_ids.len() as i32);
        plan.seq_lens.push(end as i32);
        for &sampler in &placed.samplers {
            plan.sample.push(plan.token_ids.len() as i32 - 1);
            plan.sample_seqs.push(sampler);
            plan.sample_indptr.push(plan.sample.len() as i32);
        }
    }

    /// The newest plan out in which a sequence samples, and its place there.
    fn last_sample(&self, seq: usize) -> (u64, usize) {
        let of_plan = |out: &Out| out.samplers().position(|sampler| sampler == seq).map(|index| (out.number, index));
        self.outs.iter().rev().find_map(of_plan).expect("an unknown token is sampled by a plan out")
    }

    fn changes(&self, all_placed: &[Placed]) -> Vec<[i32; 4]> {
        let row_of = |seq: usize| self.sequences[seq].row.map(|row| row as i32);
        let is_told = |seq: usize| self.sequences[seq].told > 0;
        let entry =
            |seq: usize, index: usize| row_of(seq).map(|row| [0, row, index as i32, self.memory.blocks(seq)[index]]);
        let mut changes = Vec::new();
        let placed = all_placed.iter().map(|placed| placed.seq);
        let others = self.running().into_iter().filter(|&seq| all_placed.iter().all(|placed| placed.seq != seq));
        for seq in placed.chain(others) {
            let new = self.sequences[seq].told..self.memory.blocks(seq).len();
            changes.extend(new.filter_map(|index| entry(seq, index)));
        }
        for (at, &(seq, index, _)) in self.merges.iter().enumerate() {
            let is_last = !self.merges[at + 1..].iter().any(|&(later, place, _)| (later, place) == (seq, index));
            if is_last && is_told(seq) {
                changes.extend(entry(seq, index));
            }
        }
        for placed in all_placed.iter().filter(|placed| is_told(placed.seq)) {
            changes.extend(placed.copied.and_then(|index| entry(placed.seq, index)));
        }
        changes
    }

    /// Without a plan nothing else is told of the tables.
    pub(super) fn blank_free_rows(&mut self) {
        let width = self.table_width();
        for row in (0..self.rows.len()).filter(|&row| self.rows[row].is_none()) {
            self.block_tables[row * width..(row + 1) * width].fill(0);
        }
    }

    pub(super) fn tables_now(&self) -> Vec<i32> {
        let width = self.table_width();
        let mut tables = vec![0; self.rows.len() * width];
        for (row, seq) in self.rows.iter().enumerate() {
            let table = seq.map_or(&[][..], |seq| self.memory.blocks(seq));
            tables[row * width..row * width + table.len()].copy_from_slice(table);
        }
        tables
    }
}
