//! Writing a decision out as the arrays that a model reads, and keeping the shared block tables in step (law L8).

use crate::error::ConfigError;
use crate::group::NUM_GROUPS;
use crate::ids::SequenceId;
use crate::sched::decision::{Decision, Placed};
use crate::sched::plan::{Arrays, Sizes, StepPlan};
use crate::sched::rows::Runner;
use crate::sched::state::State;
use crate::table::blocks_for;
use crate::tokens;

/// Every row's block table as one matrix a group: unused entries 0.
#[derive(Debug)]
pub(crate) struct BlockTables {
    width: usize,
    entries: Vec<i32>,
    /// Entries of each row that may be non-zero.
    used: Vec<usize>,
}

impl BlockTables {
    pub(crate) fn new(rows: usize, max_model_len: usize, block_size: usize) -> Result<Self, ConfigError> {
        let width = blocks_for(max_model_len, block_size);
        // Asked for first, so that a machine that refuses gives an error; zeroed pages are not touched yet.
        let fits = Vec::<i32>::new().try_reserve_exact(rows.saturating_mul(width)).is_ok();
        if !fits {
            let range = format!("tables of {rows} rows x {width} blocks must fit into memory");
            return Err(ConfigError::new("max_model_len", max_model_len, range));
        }
        Ok(Self { width, entries: vec![0; rows * width], used: vec![0; rows] })
    }

    pub(crate) const fn width(&self) -> usize {
        self.width
    }

    /// The matrix of `group`, row after row.
    pub(crate) fn group(&self, group: usize) -> Option<&[i32]> {
        (group < NUM_GROUPS).then_some(&*self.entries)
    }

    fn set(&mut self, [_, row, index, block]: [i32; 4]) {
        let (row, index) = (row.cast_unsigned() as usize, index.cast_unsigned() as usize);
        self.entries[row * self.width + index] = block;
        self.used[row] = self.used[row].max(index + 1);
    }

    /// Zeroes the rows that were vacated.
    pub(crate) fn clear(&mut self, rows: &[u32]) {
        for row in rows.iter().map(|&row| row as usize) {
            self.entries[row * self.width..][..self.used[row]].fill(0);
            self.used[row] = 0;
        }
    }
}

/// Writes the newest decision into `plan` and `tables`. O(tokens + changes).
pub(crate) fn fill(state: &mut State, tables: &mut BlockTables, plan: &mut StepPlan) {
    let Some(decision) = state.out.pop_back() else { unreachable!("a step was just decided") };
    let is_current = |&&(row, seq, index): &&(u32, SequenceId, u32)| {
        state.rows.get(row).is_some_and(|runner| runner.seq == seq && index < runner.announced)
    };
    let mut merged: Vec<_> = decision.merged.iter().filter(is_current).copied().collect();
    keep_last(&mut merged);
    let grown: usize = decision.placed.iter().map(|placed| unannounced(state.rows.at(placed.row))).sum();
    let sizes = Sizes {
        seqs: decision.placed.len(),
        tokens: decision.num_tokens,
        samples: decision.num_samples,
        table_changes: grown + merged.len(),
        admitted: decision.admitted.len(),
        resumed: decision.resumed.len(),
        preempted: decision.preempted.len(),
        ended: decision.ended.len(),
    };
    let mut arrays = plan.open(decision.number, decision.num_decodes, sizes);
    write_batch(state, &decision, &mut arrays);
    write_changes(state, &decision, &merged, &mut arrays);
    for (list, seqs) in [
        (&mut arrays.admitted, &decision.admitted),
        (&mut arrays.resumed, &decision.resumed),
        (&mut arrays.preempted, &decision.preempted),
        (&mut arrays.ended, &decision.ended),
    ] {
        list.iter_mut().zip(seqs).for_each(|(entry, seq)| *entry = seq.raw());
    }
    tables.clear(&decision.vacated);
    for &change in arrays.table_changes.iter() {
        tables.set(change);
    }
    state.out.push_back(decision);
}

/// Of several changes of one entry only the last is told.
fn keep_last(merged: &mut Vec<(u32, SequenceId, u32)>) {
    let mut seen = std::collections::BTreeSet::new();
    let mut kept: Vec<_> = merged.drain(..).rev().filter(|&(row, _, index)| seen.insert((row, index))).collect();
    kept.reverse();
    *merged = kept;
}

const fn unannounced(runner: &Runner) -> usize {
    (runner.blocks - runner.announced) as usize
}

fn write_batch(state: &State, decision: &Decision, arrays: &mut Arrays<'_>) {
    let (mut at, mut samples) = (0, 0);
    arrays.query_start[0] = 0;
    arrays.sample_indptr[0] = 0;
    for (place, placed) in decision.placed.iter().enumerate() {
        let len = placed.num_tokens as usize;
        arrays.seqs[place] = placed.seq.raw();
        arrays.rows[place] = int(placed.row);
        arrays.num_tokens[place] = int(placed.num_tokens);
        arrays.seq_lens[place] = int(placed.start + placed.num_tokens);
        if len == 1 && place < decision.num_decodes {
            let runner = state.rows.at(placed.row);
            arrays.token_ids[at] = runner.last_token;
            arrays.positions[at] = int(placed.start);
            arrays.slot_mapping[at] = runner.next_slot;
        } else {
            write_chunk(state, placed, at, arrays);
        }
        at += len;
        arrays.query_start[place + 1] = index(at);
        if placed.samples {
            arrays.sample[samples] = index(at - 1);
            arrays.sample_seqs[samples] = placed.seq.raw();
            samples += 1;
            arrays.sample_indptr[samples] = index(samples);
        }
    }
}

fn write_chunk(state: &State, placed: &Placed, at: usize, arrays: &mut Arrays<'_>) {
    let (start, len) = (placed.start as usize, placed.num_tokens as usize);
    let sequence = state.sequences.live(placed.seq);
    arrays.token_ids[at..at + len].copy_from_slice(&sequence.tokens[start..start + len]);
    for (position, number) in arrays.positions[at..at + len].iter_mut().zip(int(placed.start)..) {
        *position = number;
    }
    let slots = &mut arrays.slot_mapping[at..at + len];
    tokens::write_slots(sequence.table.blocks(), state.cache.block_size(), start, slots);
}

/// New entries of the rows in the plan, then entries that commits replaced. Each is listed once: what is new in a table
/// is listed as it is now, merged or not.
fn write_changes(state: &mut State, decision: &Decision, merged: &[(u32, SequenceId, u32)], arrays: &mut Arrays<'_>) {
    let mut changes = arrays.table_changes.iter_mut();
    for placed in &decision.placed {
        let runner = state.rows.at_mut(placed.row);
        let new = runner.announced as usize..runner.blocks as usize;
        if new.is_empty() {
            continue;
        }
        runner.announced = runner.blocks;
        let blocks = state.sequences.live(placed.seq).table.blocks();
        for (entry, change) in new.zip(changes.by_ref()) {
            *change = [0, int(placed.row), index(entry), blocks[entry].get()];
        }
    }
    for (&(row, seq, entry), change) in merged.iter().zip(changes) {
        let block = state.sequences.live(seq).table.blocks()[entry as usize];
        *change = [0, int(row), int(entry), block.get()];
    }
}

const fn int(value: u32) -> i32 {
    value.cast_signed()
}

/// An index into arrays that the token budget bounds.
fn index(value: usize) -> i32 {
    i32::try_from(value).unwrap_or_else(|_| unreachable!("{value} is beyond every budget"))
}
