//! Numbers, the picture, and the model's own laws.

use super::super::picture::{self, Shown};
use super::SchedulerModel;

impl SchedulerModel {
    pub fn has_work(&self) -> bool {
        !self.outs.is_empty()
            || self.sequences.iter().any(|state| state.end.is_none())
            || self.ends.iter().any(|end| !end.is_reported)
    }

    pub fn is_alive(&self, seq: usize) -> bool {
        self.sequences[seq].end.is_none()
    }

    pub fn num_waiting(&self) -> usize {
        let waits = |seq: usize| {
            let state = &self.sequences[seq];
            state.end.is_none() && state.row.is_none() && !self.is_follower(seq)
        };
        (0..self.sequences.len()).filter(|&seq| waits(seq)).count()
    }

    /// Those with a row that have not ended, but for members that another one stands for.
    pub fn num_running(&self) -> usize {
        self.running().into_iter().filter(|&seq| self.sequences[seq].end.is_none()).count()
    }

    pub fn num_requests(&self) -> usize {
        (0..self.requests.len()).filter(|&request| self.members(request).is_ok()).count()
    }

    /// The plans that are out, oldest first.
    pub fn out_numbers(&self) -> Vec<u64> {
        self.outs.iter().map(|out| out.number).collect()
    }

    /// How many tokens the next commit takes.
    pub fn num_samplers(&self) -> usize {
        self.outs.first().map_or(0, |out| out.samplers().count())
    }

    /// How many plans were returned so far.
    pub fn num_plans(&self) -> u64 {
        self.plans
    }

    pub fn row_table(&self, row: usize) -> &[i32] {
        self.rows[row].map_or(&[], |seq| self.memory.blocks(seq))
    }

    pub fn draw(&self) -> String {
        let with_table = self.rows.iter().flatten().filter(|&&seq| self.memory.table(seq).is_some());
        let shown: Vec<Shown> = with_table
            .map(|&seq| Shown { table: self.memory.blocks(seq).to_vec(), num_tokens: self.sequences[seq].computed })
            .collect();
        picture::draw(self.pool(), &shown)
    }

    /// The model's own laws.
    pub fn check(&self) {
        self.memory.check();
        let tally = self.pool().tally();
        assert!(!self.outs.is_empty() || tally.fenced + tally.guarded == 0, "only a plan out holds blocks back");
        assert_eq!(self.pool().open_steps, self.outs.iter().map(|out| out.step).collect::<Vec<_>>());
        for (seq, state) in self.sequences.iter().enumerate() {
            let has_table = self.memory.table(seq).is_some();
            assert!(state.row.is_some() || !has_table, "only rows hold blocks");
            assert!(state.row.is_none_or(|row| self.rows[row] == Some(seq)), "rows know their sequences");
            assert!(state.computed <= state.scheduled || state.end.is_some());
            assert!(state.computed <= state.known.len());
            if state.end.is_none() && !self.is_follower(seq) {
                assert_eq!(state.row.is_some(), has_table, "whoever runs holds blocks");
                assert!(state.scheduled <= self.expected(seq));
                assert!(state.known.len() < state.max_len || state.max_len == self.prompt_len(seq));
            }
        }
    }

    fn prompt_len(&self, seq: usize) -> usize {
        self.sequences[seq].known.len() - self.sequences[seq].emitted
    }
}
