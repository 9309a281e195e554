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
    /// Tokens sampled behind the last of them: one, or one for each sequence of a request whose prompt this completes.
    pub num_samples: u32,
    /// It stands for all sequences of its request.
    pub(crate) leads: bool,
    /// Its last token fills a block.
    pub(crate) fills: bool,
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
    /// Who samples, where one that is placed stands for all sequences of its request; in the order of `placed`.
    pub(crate) families: Vec<SequenceId>,
    /// Tokens that plans out will sample.
    pub(crate) num_unknown: usize,
    /// Rows with table entries that no plan before has listed, and the first of these; in the order of `placed`, then rows
    /// that joined and are not placed.
    pub(crate) grown: Vec<(u32, u32)>,
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
    /// Listed table entries that were replaced: by commits since the plan before, and by copies in this step: row, index.
    pub(crate) replaced: Vec<(u32, u32)>,
    /// Source, target, tokens: to be copied before the forward pass.
    pub(crate) copies: Vec<[i32; 3]>,
    /// The step of the cache that lasts until the commit.
    pub(crate) step: u64,
}

impl Decision {
    pub(crate) fn clear(&mut self) {
        self.num_decodes = 0;
        self.num_tokens = 0;
        self.num_samples = 0;
        self.grown.clear();
        self.placed.clear();
        self.admitted.clear();
        self.resumed.clear();
        self.preempted.clear();
        self.ended.clear();
        self.vacated.clear();
        self.replaced.clear();
        self.copies.clear();
        self.families.clear();
        self.num_unknown = 0;
    }
}
