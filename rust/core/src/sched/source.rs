//! Where the tokens come from that a plan computes before they are known (CONTRACT §3.5, `token_source`).

use crate::sched::decision::Decision;
use crate::sched::rows::Rows;

/// Where each row sampled last: the number of the plan, and the index in its `sample`.
#[derive(Debug)]
pub(crate) struct Sources {
    by_row: Vec<[i32; 2]>,
}

impl Sources {
    pub(crate) fn new(max_num_seqs: usize) -> Self {
        Self { by_row: vec![[0; 2]; max_num_seqs] }
    }

    /// Writes the source of each unknown token, in the order of the tokens, of which the decodes are first.
    pub(crate) fn write(&self, decision: &Decision, rows: &Rows, sources: &mut [[i32; 3]]) {
        let decodes = (0..).zip(&decision.placed[..decision.num_decodes]);
        let unknown = decodes.filter(|(_, placed)| placed.start >= rows.at(placed.row).known);
        for ((index, placed), source) in unknown.zip(sources) {
            let [plan, sample] = self.by_row[placed.row as usize];
            *source = [index, plan, sample];
        }
    }

    /// Notes where the rows of `decision` sample.
    pub(crate) fn note(&mut self, decision: &Decision) {
        let plan = low(decision.number);
        let mut index = 0;
        for placed in &decision.placed {
            if placed.num_samples > 0 {
                self.by_row[placed.row as usize] = [plan, index];
                index += placed.num_samples.cast_signed();
            }
        }
    }
}

/// A plan's number as `token_source` has it: its low 31 bits.
#[allow(clippy::cast_possible_truncation, reason = "few plans are out at once, so the low bits tell them apart")]
const fn low(number: u64) -> i32 {
    (number & 0x7fff_ffff) as i32
}
