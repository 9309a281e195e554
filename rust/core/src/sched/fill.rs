//! Writing a decision out as the arrays that a model reads, and keeping the shared block tables in step (law L8).

use crate::error::ConfigError;
use crate::group::NUM_GROUPS;
use crate::sched::decision::{Decision, Placed};
use crate::sched::plan::{Arrays, Sizes, StepPlan};
use crate::sched::source::Sources;
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
    num_plans: u64,
    version: u64,
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
        Ok(Self { width, entries: vec![0; rows * width], used: vec![0; rows], num_plans: 0, version: 0 })
    }

    pub(crate) const fn width(&self) -> usize {
        self.width
    }

    /// The matrix of `group`, row after row.
    pub(crate) fn group(&self, group: usize) -> Option<&[i32]> {
        (group < NUM_GROUPS).then_some(&*self.entries)
    }

    /// How many plans they have followed.
    pub(crate) const fn num_plans(&self) -> u64 {
        self.num_plans
    }

    /// Differs whenever the entries may.
    pub(crate) const fn version(&self) -> u64 {
        self.version
    }

    fn set(&mut self, [_, row, index, block]: [i32; 4]) {
        let (row, index) = (row.cast_unsigned() as usize, index.cast_unsigned() as usize);
        self.entries[row * self.width + index] = block;
        self.used[row] = self.used[row].max(index + 1);
    }

    /// Zeroes the rows that were vacated.
    pub(crate) fn clear(&mut self, rows: &[u32]) {
        self.version += u64::from(!rows.is_empty());
        for row in rows.iter().map(|&row| row as usize) {
            self.entries[row * self.width..][..self.used[row]].fill(0);
            self.used[row] = 0;
        }
    }
}

/// Writes the newest decision into `plan` and `tables`. O(tokens + changes).
pub(crate) fn fill(state: &mut State, tables: &mut BlockTables, sources: &mut Sources, plan: &mut StepPlan) {
    let Some(decision) = state.out.pop_back() else { unreachable!("a step was just decided") };
    let new = decision.grown.iter().map(|&(row, first_new)| state.rows.at(row).blocks - first_new);
    let num_new = new.map(|count| count as usize).sum::<usize>();
    let sizes = Sizes {
        seqs: decision.placed.len(),
        decodes: decision.num_decodes,
        padded: decision.num_padded,
        tokens: decision.num_tokens,
        samples: decision.num_samples,
        unknown: decision.num_unknown,
        table_changes: num_new + decision.replaced.len(),
        copies: decision.copies.len(),
        admitted: decision.admitted.len(),
        resumed: decision.resumed.len(),
        preempted: decision.preempted.len(),
        ended: decision.ended.len(),
    };
    let mut arrays = plan.open(decision.number, sizes);
    write_batch(state, &decision, &mut arrays);
    write_changes(state, &decision, arrays.table_changes);
    arrays.copies.copy_from_slice(&decision.copies);
    if state.limits.inflight_steps > 1 {
        sources.write(&decision, &state.rows, arrays.token_source);
        for &mut [index, ..] in arrays.token_source.iter_mut() {
            arrays.token_ids[index.cast_unsigned() as usize] = 0;
        }
        sources.note(&decision);
    }
    for (list, seqs) in [
        (&mut arrays.admitted, &decision.admitted),
        (&mut arrays.resumed, &decision.resumed),
        (&mut arrays.preempted, &decision.preempted),
        (&mut arrays.ended, &decision.ended),
    ] {
        list.iter_mut().zip(seqs).for_each(|(entry, seq)| *entry = seq.raw());
    }
    tables.num_plans += 1;
    tables.version += 1;
    tables.clear(&decision.vacated);
    for &change in arrays.table_changes.iter() {
        tables.set(change);
    }
    state.out.push_back(decision);
}

fn write_batch(state: &State, decision: &Decision, arrays: &mut Arrays<'_>) {
    arrays.query_start[0] = 0;
    arrays.sample_indptr[0] = 0;
    write_decodes(state, decision, arrays);
    let (mut at, mut samples) = (decision.num_decodes, decision.num_decodes);
    let mut families = decision.families.iter();
    for (place, placed) in decision.placed.iter().enumerate().skip(decision.num_decodes) {
        let len = placed.num_tokens as usize;
        arrays.seqs[place] = placed.seq.raw();
        arrays.rows[place] = int(placed.row);
        arrays.num_tokens[place] = int(placed.num_tokens);
        arrays.seq_lens[place] = int(placed.start + placed.num_tokens);
        write_chunk(state, placed, at, arrays);
        at += len;
        arrays.query_start[place + 1] = index(at);
        for _ in 0..placed.num_samples {
            let seq = if placed.leads { families.next() } else { Some(&placed.seq) };
            arrays.sample[samples] = index(at - 1);
            arrays.sample_seqs[samples] = seq.map_or(0, |seq| seq.raw());
            samples += 1;
            arrays.sample_indptr[samples] = index(samples);
        }
    }
}

/// Decodes come first, compute one token each and all sample: in every array the place is the index.
fn write_decodes(state: &State, decision: &Decision, arrays: &mut Arrays<'_>) {
    let len = decision.num_decodes;
    let (seqs, rows) = (&mut arrays.seqs[..len], &mut arrays.rows[..len]);
    let (token_ids, positions) = (&mut arrays.token_ids[..len], &mut arrays.positions[..len]);
    let (slots, seq_lens) = (&mut arrays.slot_mapping[..len], &mut arrays.seq_lens[..len]);
    let flat = token_ids.iter_mut().zip(positions).zip(slots);
    let each = seqs.iter_mut().zip(rows).zip(seq_lens).zip(flat);
    for (placed, (((seq, row), seq_len), ((token, position), slot))) in decision.placed[..len].iter().zip(each) {
        let runner = state.rows.at(placed.row);
        *seq = placed.seq.raw();
        *row = int(placed.row);
        *token = runner.last_token;
        *position = int(placed.start);
        *slot = runner.slot;
        *seq_len = int(placed.start + 1);
    }
    arrays.num_tokens[..len].fill(1);
    arrays.sample_seqs[..len].copy_from_slice(&arrays.seqs[..len]);
    for (number, entry) in (0..).zip(&mut arrays.sample[..len]) {
        *entry = number;
    }
    for indptr in [&mut arrays.query_start, &mut arrays.sample_indptr] {
        for (number, entry) in (0..).zip(&mut indptr[..=len]) {
            *entry = number;
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

/// The new entries of the rows in the plan, of the rows that joined and are not in it, then the entries that were replaced.
fn write_changes(state: &State, decision: &Decision, changes: &mut [[i32; 4]]) {
    let mut changes = changes.iter_mut();
    for &(row, first_new) in &decision.grown {
        let runner = state.rows.at(row);
        let blocks = state.sequences.live(runner.seq).table.blocks();
        for (entry, change) in (first_new..runner.blocks).zip(changes.by_ref()) {
            *change = [0, int(row), int(entry), blocks[entry as usize].get()];
        }
    }
    for (&(row, entry), change) in decision.replaced.iter().zip(changes) {
        let blocks = state.sequences.live(state.rows.at(row).seq).table.blocks();
        *change = [0, int(row), int(entry), blocks[entry as usize].get()];
    }
}

const fn int(value: u32) -> i32 {
    value.cast_signed()
}

/// An index into arrays that the token budget bounds.
fn index(value: usize) -> i32 {
    i32::try_from(value).unwrap_or_else(|_| unreachable!("{value} is beyond every budget"))
}
