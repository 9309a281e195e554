//! Who runs in a step: the scheduling alone, without the arrays that a model reads.

use crate::ids::SequenceId;

/// One sequence's part in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Who.
    pub seq: SequenceId,
    /// Its row.
    pub row: u32,
    /// Tokens computed before this step.
    pub start: u32,
    /// Tokens that this step computes.
    pub num_tokens: u32,
    /// Whether a token is sampled behind the last of them.
    pub samples: bool,
    /// The first entry of its table that no plan before has listed.
    pub(crate) first_new: u32,
}

/// What a step runs, and what changed in the batch.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// Counts the plans of this scheduler from 0.
    pub number: u64,
    /// Who runs: decodes, then prompts in progress, then admissions.
    pub placed: Vec<Placed>,
    /// How many of `placed` are decodes.
    pub num_decodes: usize,
    /// Tokens in all.
    pub num_tokens: usize,
    /// Sequences that sample.
    pub num_samples: usize,
    /// Table entries that no plan before has listed.
    pub(crate) num_new_blocks: usize,
    /// Rows of finished members of a static batch, which a pass with decodes computes all the same.
    pub num_padded: usize,
    /// Who was admitted for the first time.
    pub admitted: Vec<SequenceId>,
    /// Who was admitted again after a preemption.
    pub resumed: Vec<SequenceId>,
    /// Who lost row and blocks.
    pub preempted: Vec<SequenceId>,
    /// Whose end took effect since the plan before.
    pub ended: Vec<SequenceId>,
    /// Rows that changed hands or were vacated since the plan before.
    pub(crate) vacated: Vec<u32>,
    /// Table entries that commits replaced since the plan before: row, index.
    pub(crate) merged: Vec<(u32, u32)>,
    /// The step of the cache that lasts until the commit.
    pub(crate) step: u64,
}

impl Decision {
    pub(crate) fn clear(&mut self) {
        self.num_decodes = 0;
        self.num_tokens = 0;
        self.num_samples = 0;
        self.num_new_blocks = 0;
        self.placed.clear();
        self.admitted.clear();
        self.resumed.clear();
        self.preempted.clear();
        self.ended.clear();
        self.vacated.clear();
        self.merged.clear();
    }
}
