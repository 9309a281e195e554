//! The running batch: one record a row, and the rows in policy order.
//!
//! A record holds what a steady step reads and writes, so that the step runs over dense memory; everything else is in
//! the sequence.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::ids::SequenceId;
use crate::table::blocks_for;

/// What a step needs of a running sequence: one cache line.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "what a step branches on, beside its numbers")]
pub(crate) struct Runner {
    pub(crate) seq: SequenceId,
    /// The slot of token `computed`, while its block is in the table.
    pub(crate) next_slot: i64,
    /// Tokens whose KV is computed.
    pub(crate) computed: u32,
    /// Tokens known: prompt and outputs.
    pub(crate) known: u32,
    /// Blocks in the table.
    pub(crate) blocks: u32,
    /// Table entries that plans have listed, the one that is being made included.
    pub(crate) announced: u32,
    /// Outputs so far.
    pub(crate) emitted: u32,
    /// Blocks that it owns from its admission on, whatever it knows: 0 unless they are reserved for the worst case.
    pub(crate) worst_blocks: u32,
    /// Ends with `length` when it knows this many tokens.
    pub(crate) max_len: u32,
    /// A stop counts from this output on.
    pub(crate) min_tokens: u32,
    /// The most tokens that were ever computed.
    pub(crate) high_water: u32,
    pub(crate) last_token: i32,
    /// Publishes its blocks.
    pub(crate) publishes: bool,
    pub(crate) samples: bool,
    pub(crate) has_stops: bool,
    /// Over, and released by the next step.
    pub(crate) ended: bool,
}

impl Runner {
    /// It has emitted a token and lacks exactly the KV of its last one.
    #[inline]
    pub(crate) const fn is_decode(&self) -> bool {
        self.emitted > 0 && self.known - self.computed == 1
    }

    /// The blocks that it needs for all it knows, or owns for the worst case.
    pub(crate) fn target(&self, block_size: usize) -> usize {
        blocks_for(self.known as usize, block_size).max(self.worst_blocks as usize)
    }

    /// Tokens whose KV is not computed.
    #[inline]
    pub(crate) const fn lacking(&self) -> usize {
        (self.known - self.computed) as usize
    }
}

/// The rows of the batch.
#[derive(Debug)]
pub(crate) struct Rows {
    runners: Vec<Option<Runner>>,
    /// Rows in use, in policy order.
    pub(crate) order: Vec<u32>,
    free: BinaryHeap<Reverse<u32>>,
}

impl Rows {
    pub(crate) fn new(max_num_seqs: usize) -> Self {
        let rows = (0..).take(max_num_seqs);
        Self {
            runners: vec![None; max_num_seqs],
            order: Vec::with_capacity(max_num_seqs),
            free: rows.map(Reverse).collect(),
        }
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Gives `runner` the lowest free row, at `place` in the order.
    pub(crate) fn insert(&mut self, runner: Runner, place: usize) -> u32 {
        let Some(Reverse(row)) = self.free.pop() else { unreachable!("the caller saw a free row") };
        self.runners[row as usize] = Some(runner);
        self.order.insert(place, row);
        row
    }

    /// Takes the runner out of `row`, which the caller takes out of the order.
    pub(crate) fn vacate(&mut self, row: u32) {
        self.pad(row);
        self.free(row);
    }

    /// Takes the runner out of `row`, which nobody else is given until it is freed.
    pub(crate) fn pad(&mut self, row: u32) {
        if self.runners[row as usize].take().is_none() {
            unreachable!("row {row} is vacated twice");
        }
    }

    /// Lets `row`, from which the runner was taken, be given again.
    pub(crate) fn free(&mut self, row: u32) {
        self.free.push(Reverse(row));
    }

    #[inline]
    pub(crate) fn at(&self, row: u32) -> &Runner {
        match &self.runners[row as usize] {
            Some(runner) => runner,
            None => unreachable!("row {row} is in no use"),
        }
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, row: u32) -> &mut Runner {
        match &mut self.runners[row as usize] {
            Some(runner) => runner,
            None => unreachable!("row {row} is in no use"),
        }
    }

    /// Everybody in the batch, in the order of their rows.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Runner)> {
        (0..).zip(&self.runners).filter_map(|(row, runner)| runner.as_ref().map(|runner| (row, runner)))
    }

    /// Everybody in the batch, in policy order.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = &Runner> {
        self.order.iter().map(|&row| self.at(row))
    }
}

/// A length, which the model's longest bounds.
pub(crate) fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or_else(|_| unreachable!("{count} is beyond the longest sequence"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runner_fits_a_cache_line() {
        assert!(size_of::<Option<Runner>>() <= 72, "{}", size_of::<Option<Runner>>());
    }
}
