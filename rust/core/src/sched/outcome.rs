//! What a commit led to.

use crate::ids::SequenceId;
use crate::sched::decision::Placed;

/// Why a sequence ended.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// A stop token.
    Stop = 0,
    /// `max_tokens`, or the longest length of the model.
    Length = 1,
    /// The memory cannot hold it.
    Capacity = 2,
    /// Aborted.
    Aborted = 3,
    /// Ended by the engine.
    Finished = 4,
    /// Never run.
    Rejected = 5,
}

/// What was accepted and who ended (CONTRACT §3.3). A caller may hand the same one to every commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Whose tokens were accepted, in plan order.
    pub seqs: Vec<SequenceId>,
    /// Where each one's tokens begin in `tokens`; one more than there are sequences.
    pub indptr: Vec<i32>,
    /// The accepted tokens.
    pub tokens: Vec<i32>,
    /// Who ended since the last outcome, in the order in which they did.
    pub finished: Vec<SequenceId>,
    /// Why each of them ended.
    pub reasons: Vec<Reason>,
}

impl Outcome {
    pub(crate) fn make_room(&mut self, samples: usize) {
        self.seqs.reserve(samples);
        self.tokens.reserve(samples);
        self.indptr.reserve(samples);
    }

    /// One token for each of `placed`.
    pub(crate) fn extend(&mut self, placed: &[Placed], tokens: &[i32]) {
        let before = small(self.tokens.len());
        self.indptr.extend((before + 1..).zip(tokens).map(|(end, _)| end));
        self.seqs.extend(placed.iter().map(|placed| placed.seq));
        self.tokens.extend_from_slice(tokens);
    }

    pub(crate) fn push(&mut self, seq: SequenceId, token: i32) {
        self.seqs.push(seq);
        self.tokens.push(token);
        self.indptr.push(small(self.tokens.len()));
    }

    pub(crate) fn clear(&mut self) {
        self.seqs.clear();
        self.indptr.clear();
        self.indptr.push(0);
        self.tokens.clear();
        self.finished.clear();
        self.reasons.clear();
    }
}

/// A number of tokens of one step, each in a row of its own.
fn small(count: usize) -> i32 {
    i32::try_from(count).unwrap_or_else(|_| unreachable!("a step samples once for each row at most"))
}
