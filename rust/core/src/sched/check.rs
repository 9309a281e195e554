//! The audit of a scheduler: the laws of its cache, and that its own parts agree.

use std::collections::BTreeMap;

use crate::audit::{self, Holder};
use crate::error::StateError;
use crate::ids::SequenceId;
use crate::sched::fill::BlockTables;
use crate::sched::request::{Sequence, Status};
use crate::sched::rows::Runner;
use crate::sched::state::State;

/// Checks every law on the whole state. O(state).
pub(crate) fn check(state: &State, tables: &BlockTables) -> Result<(), StateError> {
    let block_size = state.cache.block_size();
    let all: Vec<Vec<i32>> = state.rows.iter().map(|(row, runner)| known(state, row, runner)).collect();
    let holders: Vec<Holder<'_>> = state
        .rows
        .iter()
        .zip(&all)
        .map(|((_, runner), known)| {
            let sequence = state.sequences.live(runner.seq);
            let computed = runner.computed as usize;
            let tokens = runner.publishes.then(|| &known[..computed]);
            // A tail that others name as well is made writable by the step that writes it.
            let from = computed / block_size + usize::from(runner.shares_tail);
            Holder { table: &sequence.table, writes_from: Some(from), tokens }
        })
        .collect();
    audit::check(&state.cache, &holders, &state.pins.blocks())?;
    check_batch(state)?;
    check_rows(state)?;
    check_plans(state)?;
    check_queue(state)?;
    check_tables(state, tables)
}

/// The tokens of a row: those of its sequence, and those that it keeps for it.
fn known(state: &State, row: u32, runner: &Runner) -> Vec<i32> {
    let tokens = &state.sequences.live(runner.seq).tokens;
    tokens.iter().copied().chain(state.rows.fresh(row, tokens.len())).collect()
}

fn check_batch(state: &State) -> Result<(), StateError> {
    for (row, runner) in state.rows.iter() {
        let sequence = state.sequences.live(runner.seq);
        let at_home = match sequence.status {
            Status::Running(at) => at == row && !runner.ended,
            Status::Ended { row: at, .. } => at == Some(row) && runner.ended,
            Status::Waiting | Status::NotReady | Status::Following(_) => false,
        };
        let known = known(state, row, runner);
        if !at_home || !agrees(runner, sequence, &known) {
            return Err(StateError::law(2, format!("row {row} disagrees with its sequence {}", runner.seq.raw())));
        }
        if known.len() > state.limits.max_model_len {
            return Err(StateError::law(10, format!("sequence {} passes max_model_len", runner.seq.raw())));
        }
    }
    let ranks: Vec<_> = state.rows.in_order().map(|runner| state.sequences.live(runner.seq).rank).collect();
    let listed = ranks.len() == state.rows.iter().count();
    if !listed || ranks.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(StateError::law(13, "the batch is not in policy order"));
    }
    Ok(())
}

fn agrees(runner: &Runner, sequence: &Sequence, known: &[i32]) -> bool {
    runner.known as usize == known.len()
        && runner.blocks as usize == sequence.table.len()
        && runner.prompt_len as usize == sequence.prompt_len
        && runner.max_len as usize == sequence.max_len
        && known.last() == Some(&runner.last_token)
}

/// Every row is in one state, and those that are kept for sequences to come are theirs.
fn check_rows(state: &State) -> Result<(), StateError> {
    let kept = state.sequences.iter().filter_map(|(_, sequence)| match sequence.status {
        Status::Following(row) => row,
        // The row of one that never ran in it.
        Status::Ended { row, .. } => row.filter(|&row| state.rows.get(row).is_none()),
        Status::Waiting | Status::NotReady | Status::Running(_) => None,
    });
    let kept: Vec<u32> = kept.collect();
    if state.rows.is_sound(&kept) {
        return Ok(());
    }
    Err(StateError::law(10, "a row is given twice, or to nobody"))
}

/// What rows and sequences know of the plans out is what is in them.
fn check_plans(state: &State) -> Result<(), StateError> {
    let mut named = BTreeMap::<SequenceId, (u8, u32)>::new();
    for plan in &state.out {
        if plan.num_tokens > state.limits.token_budget || plan.placed.len() > state.limits.max_num_seqs {
            return Err(StateError::law(10, format!("plan {} passes its budget", plan.number)));
        }
        for placed in &plan.placed {
            let (plans, tokens) = named.entry(placed.seq).or_default();
            *plans += 1;
            *tokens += placed.num_tokens;
        }
    }
    if state.out.len() > state.limits.inflight_steps {
        return Err(StateError::law(10, format!("{} plans are out", state.out.len())));
    }
    for (_, runner) in state.rows.iter() {
        let (plans, tokens) = named.get(&runner.seq).copied().unwrap_or_default();
        let adds_up = runner.ended || runner.computed + tokens == runner.scheduled;
        if runner.in_plans != plans || !adds_up || runner.computed > runner.known {
            let text = format!("sequence {} is in {plans} plans with {tokens} tokens: {runner:?}", runner.seq.raw());
            return Err(StateError::law(2, text));
        }
    }
    let waiting = state.sequences.iter().filter(|(_, sequence)| sequence.status == Status::Waiting);
    for (seq, sequence) in waiting {
        let (plans, _) = named.get(&seq).copied().unwrap_or_default();
        if sequence.in_plans != plans {
            let text = format!("sequence {} waits for {} plans and is in {plans}", seq.raw(), sequence.in_plans);
            return Err(StateError::law(2, text));
        }
    }
    Ok(())
}

fn check_queue(state: &State) -> Result<(), StateError> {
    let waiting = state.sequences.iter().filter(|(_, sequence)| sequence.status == Status::Waiting).count();
    let all_wait = state.queue.iter().all(|seq| state.sequences.live(seq).status == Status::Waiting);
    let sound = state.queue.is_sound() && all_wait && waiting == state.queue.len();
    if sound { Ok(()) } else { Err(StateError::law(11, "a waiting sequence is not where the queue looks for it")) }
}

/// What plans have announced of a running row is what the shared tables show (L8), but for merges not announced yet.
/// Decisions that were never written out are shown nowhere.
fn check_tables(state: &State, tables: &BlockTables) -> Result<(), StateError> {
    if tables.num_plans() != state.counters.plans {
        return Ok(());
    }
    let Some(matrix) = tables.group(0) else { unreachable!("there is one group") };
    for (row, runner) in state.rows.iter() {
        let shown = &matrix[row as usize * tables.width()..][..runner.announced as usize];
        let table = state.sequences.live(runner.seq).table.blocks();
        for (index, (block, &shown)) in (0..).zip(table.iter().zip(shown)) {
            let pending = state.news.merged.contains(&(row, index));
            if block.get() != shown && !pending {
                return Err(StateError::law(
                    8,
                    format!("row {row} shows block {shown} at {index}, not {}", block.get()),
                ));
            }
        }
    }
    Ok(())
}
