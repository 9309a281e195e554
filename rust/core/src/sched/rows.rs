//! The running batch: one record a row, and the rows in policy order.
//!
//! A record holds what a steady step reads and writes, so that the step runs over dense memory; everything else is in
//! the sequence.
//!
//! ```text
//!   free ── insert / reserve ─▶ taken ── vacate ─▶ cooling, while plans out name it ─▶ free
//!                                 └───── pad ────▶ padding of a static batch ── drop_padding ─▶ (cooling ─▶) free
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::ids::SequenceId;
use crate::sched::decision::Placed;
use crate::table::blocks_for;

/// What a step needs of a running sequence: one cache line.
///
/// ```text
///   0 ───── computed ───── scheduled ─────── known ─── known + pending
///     committed     in plans out     to be placed    sampled by plans out
/// ```
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
#[allow(clippy::struct_excessive_bools, reason = "what a step branches on, beside its numbers")]
pub(crate) struct Runner {
    pub(crate) seq: SequenceId,
    /// The slot of token `scheduled - 1`.
    pub(crate) slot: i64,
    /// Tokens whose KV is computed, as far as plans were committed.
    pub(crate) computed: u32,
    /// Tokens that plans were made for.
    pub(crate) scheduled: u32,
    /// Tokens known: prompt and outputs.
    pub(crate) known: u32,
    /// Blocks in the table.
    pub(crate) blocks: u32,
    /// Table entries that plans have listed, the one that is being made included.
    pub(crate) announced: u32,
    /// Tokens of the prompt.
    pub(crate) prompt_len: u32,
    /// Ends with `length` when it knows this many tokens; the prompt's length when it samples nothing.
    pub(crate) max_len: u32,
    /// Below this length a token more is all that a commit has to note; 0 where each needs a closer look.
    pub(crate) quiet_until: u32,
    /// Where the block of token `scheduled - 1` ends.
    pub(crate) boundary: u32,
    pub(crate) last_token: i32,
    /// Tokens that plans out sample.
    pub(crate) pending: u8,
    /// Plans out that name it.
    pub(crate) in_plans: u8,
    /// Publishes its blocks.
    pub(crate) publishes: bool,
    /// Some of what it computes was computed before it was preempted.
    pub(crate) recomputes: bool,
    /// Over, and released by the next step.
    pub(crate) ended: bool,
    /// Stands for all sequences of its request, which fork when the prompt is complete.
    pub(crate) leads: bool,
    /// Its last block, which is not full, may be named by others.
    pub(crate) shares_tail: bool,
}

impl Runner {
    /// Tokens that it will know when all plans out are committed, if none of them is a stop.
    #[inline]
    pub(crate) const fn expected(&self) -> u32 {
        self.known + self.pending as u32
    }

    /// Tokens that no plan was made for.
    #[inline]
    pub(crate) const fn lacking(&self) -> u32 {
        self.expected() - self.scheduled
    }

    /// It samples behind its last token.
    #[inline]
    pub(crate) const fn samples(&self) -> bool {
        self.max_len > self.prompt_len
    }

    /// It has emitted a token, known or not, and lacks exactly the KV of its last one.
    #[inline]
    const fn continues(&self) -> bool {
        self.expected() > self.prompt_len && self.lacking() == 1
    }

    /// The next step may compute its last token.
    #[inline]
    pub(crate) const fn may_decode(&self) -> bool {
        self.continues() && self.expected() < self.max_len && !self.leads
    }

    /// Some of its prompt, or of what is to be computed again, is in no plan yet.
    #[inline]
    pub(crate) const fn is_prompt(&self) -> bool {
        self.lacking() > 0 && !self.continues()
    }

    /// The blocks that it needs for all it knows, or owns for the worst case.
    pub(crate) fn target(&self, block_size: usize, worst_case: bool) -> usize {
        let len = if worst_case { self.max_len.max(self.expected()) } else { self.expected() };
        blocks_for(len as usize, block_size)
    }
}

/// How far a run of decodes came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// The place in the order of the first row that was not looked at, or needs more.
    pub(crate) next: usize,
    /// Prompts in progress that were met.
    pub(crate) num_prompts: usize,
    /// Tokens placed that plans out will sample.
    pub(crate) num_unknown: usize,
}

/// Tokens that a row keeps beside its sequence, so that not every step touches that.
const RING: usize = 32;

/// The rows of the batch.
#[derive(Debug)]
pub(crate) struct Rows {
    runners: Vec<Option<Runner>>,
    /// The newest tokens of each row, each at its place in the sequence modulo the length: those that the sequence lacks.
    fresh: Vec<[i32; RING]>,
    /// Rows that run, in policy order.
    pub(crate) order: Vec<u32>,
    free: BinaryHeap<Reverse<u32>>,
    /// Rows that nobody runs in, and how many plans out name them.
    cooling: BTreeMap<u32, u8>,
    /// Rows of finished members of the static batch that runs.
    padding: BTreeSet<u32>,
}

impl Rows {
    pub(crate) fn new(max_num_seqs: usize) -> Self {
        let rows = (0..).take(max_num_seqs);
        Self {
            runners: vec![None; max_num_seqs],
            fresh: vec![[0; RING]; max_num_seqs],
            order: Vec::with_capacity(max_num_seqs),
            free: rows.map(Reverse).collect(),
            cooling: BTreeMap::new(),
            padding: BTreeSet::new(),
        }
    }

    pub(crate) fn num_free(&self) -> usize {
        self.free.len()
    }

    /// Rows that are free as soon as the plans that name them were committed.
    pub(crate) fn num_cooling(&self) -> usize {
        self.cooling.len()
    }

    pub(crate) fn num_padding(&self) -> usize {
        self.padding.len()
    }

    /// Takes the lowest free row, in which nobody runs yet.
    pub(crate) fn reserve(&mut self) -> u32 {
        let Some(Reverse(row)) = self.free.pop() else { unreachable!("the caller saw a free row") };
        row
    }

    /// Lets `runner` run in `row`, which was reserved, at `place` in the order.
    pub(crate) fn insert(&mut self, row: u32, runner: Runner, place: usize) {
        self.runners[row as usize] = Some(runner);
        self.order.insert(place, row);
    }

    /// Places the rows from `from` on in the order whose next token goes behind their last one, into the same block, until one
    /// needs more than that or `budget` tokens are placed.
    pub(crate) fn place_run(&mut self, from: usize, budget: usize, placed: &mut Vec<Placed>) -> Run {
        let (first, mut run) = (placed.len(), Run { next: self.order.len(), num_prompts: 0, num_unknown: 0 });
        for (place, &row) in self.order.iter().enumerate().skip(from) {
            let Some(runner) = &mut self.runners[row as usize] else { unreachable!("nobody runs in row {row}") };
            if !runner.may_decode() {
                run.num_prompts += usize::from(runner.is_prompt());
                continue;
            }
            let start = runner.scheduled;
            if start >= runner.boundary || runner.shares_tail || placed.len() - first == budget {
                run.next = place;
                break;
            }
            runner.slot += 1;
            runner.scheduled += 1;
            runner.in_plans += 1;
            run.num_unknown += usize::from(start >= runner.known);
            runner.pending += 1;
            let (seq, fills) = (runner.seq, runner.scheduled == runner.boundary);
            placed.push(Placed { seq, row, start, num_tokens: 1, num_samples: 1, leads: false, fills });
        }
        run
    }

    /// Notes that the first of `decodes` were computed and sampled `tokens`, as long as there is nothing else to do for them;
    /// returns how many.
    pub(crate) fn accept_run(&mut self, decodes: &[Placed], tokens: &[i32], block_size: usize) -> usize {
        // A token that fills a block is looked at, and gives the sequence what the row keeps: a ring of two blocks never runs
        // over.
        let is_short = block_size <= RING / 2;
        let both = decodes.iter().zip(tokens);
        let loud = both.enumerate().find_map(|(at, (placed, &token))| {
            let runner = self.runners[placed.row as usize].as_mut();
            let Some(runner) = runner.filter(|_| !placed.fills) else { return Some(at) };
            let ring = runner.known as usize % RING;
            if runner.known + 1 >= runner.quiet_until {
                return Some(at);
            }
            if ring == RING - 1 && !is_short {
                return Some(at);
            }
            runner.in_plans -= 1;
            runner.pending -= 1;
            runner.computed = placed.start + 1;
            runner.known += 1;
            runner.last_token = token;
            self.fresh[placed.row as usize][ring] = token;
            None
        });
        loud.unwrap_or(decodes.len())
    }

    /// The tokens of `row` behind its first `len`, as far as they were accepted in runs.
    pub(crate) fn fresh(&self, row: u32, len: usize) -> impl Iterator<Item = i32> {
        let ring = &self.fresh[row as usize];
        (len..self.at(row).known as usize).map(|place| ring[place % RING])
    }

    /// Takes the rows in which nobody runs any more out of the order.
    pub(crate) fn close_gaps(&mut self) {
        let runners = &self.runners;
        self.order.retain(|&row| runners[row as usize].is_some());
    }

    /// Takes the runner, if there is one, out of `row`, which the caller takes out of the order.
    pub(crate) fn vacate(&mut self, row: u32) {
        self.empty(row);
        self.free(row);
    }

    /// As [`vacate`](Self::vacate), but nobody else is given the row before the padding is dropped.
    pub(crate) fn pad(&mut self, row: u32) {
        self.empty(row);
        self.padding.insert(row);
    }

    /// The static batch is over.
    pub(crate) fn drop_padding(&mut self) {
        for row in std::mem::take(&mut self.padding) {
            self.free(row);
        }
    }

    fn empty(&mut self, row: u32) {
        if let Some(runner) = self.runners[row as usize].take()
            && runner.in_plans > 0
        {
            self.cooling.insert(row, runner.in_plans);
        }
    }

    fn free(&mut self, row: u32) {
        if !self.cooling.contains_key(&row) {
            self.free.push(Reverse(row));
        }
    }

    /// One of the plans that name `row`, in which nobody runs any more, is not out any more.
    pub(crate) fn cool(&mut self, row: u32) {
        match self.cooling.get_mut(&row) {
            Some(1) => {
                self.cooling.remove(&row);
                if !self.padding.contains(&row) {
                    self.free.push(Reverse(row));
                }
            }
            Some(plans) => *plans -= 1,
            None => unreachable!("row {row} is named by no plan"),
        }
    }

    #[inline]
    pub(crate) fn get(&self, row: u32) -> Option<&Runner> {
        self.runners[row as usize].as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, row: u32) -> Option<&mut Runner> {
        self.runners[row as usize].as_mut()
    }

    #[inline]
    pub(crate) fn at(&self, row: u32) -> &Runner {
        match &self.runners[row as usize] {
            Some(runner) => runner,
            None => unreachable!("nobody runs in row {row}"),
        }
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, row: u32) -> &mut Runner {
        match &mut self.runners[row as usize] {
            Some(runner) => runner,
            None => unreachable!("nobody runs in row {row}"),
        }
    }

    /// Everybody in the batch, in the order of their rows.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Runner)> {
        (0..).zip(&self.runners).filter_map(|(row, runner)| runner.as_ref().map(|runner| (row, runner)))
    }

    /// Everybody in the batch, in no order that matters, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Runner> {
        self.runners.iter_mut().flatten()
    }

    /// Everybody in the batch, in policy order.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = &Runner> {
        self.order.iter().map(|&row| self.at(row))
    }

    /// Whether every row is in exactly one state, `reserved` being those in which somebody will run. For the audit.
    pub(crate) fn is_sound(&self, reserved: &[u32]) -> bool {
        let mut seen = vec![0_u8; self.runners.len()];
        let running = self.iter().map(|(row, _)| row);
        let cooling = self.cooling.keys().copied().filter(|row| !self.padding.contains(row));
        let free = self.free.iter().map(|&Reverse(row)| row);
        let others = self.padding.iter().chain(reserved).copied();
        running.chain(cooling).chain(free).chain(others).for_each(|row| seen[row as usize] += 1);
        seen.iter().all(|&times| times == 1)
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
    fn runner_is_a_cache_line() {
        assert_eq!(size_of::<Option<Runner>>(), 64);
    }
}
