//! The audit of a scheduler: the laws of its cache, and that its own parts agree.

use crate::audit::{self, Holder};
use crate::error::StateError;
use crate::sched::fill::BlockTables;
use crate::sched::request::{Sequence, Status};
use crate::sched::rows::Runner;
use crate::sched::state::State;

/// Checks every law on the whole state. O(state).
pub(crate) fn check(state: &State, tables: &BlockTables) -> Result<(), StateError> {
    let block_size = state.cache.block_size();
    let holders: Vec<Holder<'_>> = state
        .rows
        .iter()
        .map(|(_, runner)| {
            let sequence = state.sequences.live(runner.seq);
            let computed = runner.computed as usize;
            let tokens = runner.publishes.then(|| &sequence.tokens[..computed]);
            Holder { table: &sequence.table, writes_from: Some(computed / block_size), tokens }
        })
        .collect();
    audit::check(&state.cache, &holders, &[])?;
    check_batch(state)?;
    check_queue(state)?;
    check_tables(state, tables)
}

fn check_batch(state: &State) -> Result<(), StateError> {
    for (row, runner) in state.rows.iter() {
        let sequence = state.sequences.live(runner.seq);
        let at_home = match sequence.status {
            Status::Running(at) => at == row && !runner.ended,
            Status::Ended { row: at, .. } => at == Some(row) && runner.ended,
            Status::Waiting | Status::NotReady => false,
        };
        if !at_home || !agrees(runner, sequence) {
            return Err(StateError::law(2, format!("row {row} disagrees with its sequence {}", runner.seq.raw())));
        }
        if sequence.tokens.len() > state.limits.max_model_len {
            return Err(StateError::law(10, format!("sequence {} passes max_model_len", runner.seq.raw())));
        }
    }
    let ranks: Vec<_> = state.rows.in_order().map(|runner| state.sequences.live(runner.seq).rank).collect();
    let listed = ranks.len() == state.rows.iter().count();
    if !listed || ranks.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(StateError::law(13, "the batch is not in policy order"));
    }
    let over = state.out.iter().any(|plan| plan.num_tokens > state.limits.token_budget);
    if over || ranks.len() > state.limits.max_num_seqs {
        return Err(StateError::law(10, "a plan passes its budget"));
    }
    Ok(())
}

fn agrees(runner: &Runner, sequence: &Sequence) -> bool {
    let known = runner.known as usize;
    known == sequence.tokens.len()
        && runner.blocks as usize == sequence.table.len()
        && runner.emitted as usize == known - sequence.prompt_len
        && sequence.tokens.last() == Some(&runner.last_token)
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
