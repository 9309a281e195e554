//! Who comes before whom; who runs, waits, decodes.

use octavo_core::Policy;

use super::SchedulerModel;

impl SchedulerModel {
    pub(super) fn class(&self, seq: usize) -> f64 {
        let submitted = &self.request_of(seq).submitted;
        match (submitted.key, self.world.policy) {
            (Some(key), _) => key,
            (None, Policy::Priority) => submitted.priority as f64,
            (None, Policy::Sjf) => self.sequences[seq].queued_with as f64,
            (None, Policy::Edf) => submitted.deadline.unwrap_or(f64::INFINITY),
            (None, _) => 0.0,
        }
    }

    /// Sequences are numbered in the order of `add`, and of their index.
    fn order_key(&self, seq: usize) -> (f64, f64, usize) {
        let arrival = self.request_of(seq).arrival.expect("given before any ordering");
        let class = self.class(seq);
        let key = if class == f64::INFINITY { class } else { class + self.world.aging * arrival };
        (key, arrival, seq)
    }

    fn in_policy_order(&self, mut seqs: Vec<usize>) -> Vec<usize> {
        seqs.sort_by(|&left, &right| self.order_key(left).partial_cmp(&self.order_key(right)).expect("finite"));
        seqs
    }

    pub(super) fn is_behind(&self, seq: usize, other: usize) -> bool {
        self.order_key(seq) > self.order_key(other)
    }

    /// Those with a row, but for members that another one stands for.
    pub(super) fn running(&self) -> Vec<usize> {
        self.in_policy_order(self.rows.iter().flatten().copied().filter(|&seq| !self.is_follower(seq)).collect())
    }

    /// The queue.
    pub(super) fn waiting(&self) -> Vec<usize> {
        let waits = |&seq: &usize| {
            let state = &self.sequences[seq];
            state.end.is_none() && state.row.is_none() && !self.is_follower(seq) && self.request_of(seq).is_ready
        };
        self.in_policy_order((0..self.sequences.len()).filter(waits).collect())
    }

    /// Tokens that will be known and are in no plan yet.
    pub(super) fn lacking(&self, seq: usize) -> usize {
        self.expected(seq) - self.sequences[seq].scheduled
    }

    /// Whether it is the last sampled token alone that it lacks.
    fn lacks_a_sample(&self, seq: usize) -> bool {
        self.sequences[seq].emitted + self.pending(seq) > 0 && self.lacking(seq) == 1
    }

    pub(super) fn is_decode(&self, seq: usize) -> bool {
        let is_held_for_fork = !self.request_of(seq).is_forked && self.pending(seq) > 0;
        self.lacks_a_sample(seq) && self.expected(seq) < self.sequences[seq].max_len && !is_held_for_fork
    }

    pub(super) fn is_prompt(&self, seq: usize) -> bool {
        !self.lacks_a_sample(seq) && self.lacking(seq) > 0
    }
}
