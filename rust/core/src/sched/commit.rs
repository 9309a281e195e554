//! Taking a step's results: what was computed is published, what was sampled is accepted, and who is done ends.

use crate::error::{Error, RequestError, StateError};
use crate::prefix::Link;
use crate::sched::decision::Placed;
use crate::sched::outcome::{Outcome, Reason};
use crate::sched::request::Sequence;
use crate::sched::state::State;
use crate::tokens;

/// Commits plan `number` (CONTRACT §3.3).
///
/// # Errors
///
/// [`StateError`] when that plan is not the oldest that is out, [`RequestError`] when the tokens do not fit it; nothing
/// changes then.
pub(crate) fn commit(
    state: &mut State,
    number: u64,
    sampled: &[i32],
    counts: Option<&[i32]>,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    check(state, number, sampled, counts)?;
    let Some(decision) = state.out.pop_front() else { unreachable!("a plan is out") };
    state.cache.end_step(decision.step);
    state.counters.scheduled_tokens += decision.num_tokens as u64;
    outcome.clear();
    let mut sampled = sampled.iter().copied();
    for placed in &decision.placed {
        count_computed(state, placed);
        if placed.samples {
            let Some(token) = sampled.next() else { unreachable!("the tokens were counted") };
            accept(state, placed, token, outcome);
        }
    }
    for (seq, reason) in state.ends.to_report.drain(..) {
        outcome.finished.push(seq);
        outcome.reasons.push(reason);
        state.ends.reported.push(seq);
    }
    state.spare.push(decision);
    Ok(())
}

fn check(state: &State, number: u64, sampled: &[i32], counts: Option<&[i32]>) -> Result<(), Error> {
    let Some(oldest) = state.out.front() else {
        return Err(StateError::new(format!("plan {number} cannot be committed: no plan is out")).into());
    };
    if oldest.number != number {
        let text = format!("plan {number} cannot be committed: plan {} is the oldest that is out", oldest.number);
        return Err(StateError::new(text).into());
    }
    let expected = oldest.num_samples;
    if let Some(counts) = counts {
        check_length("counts", counts.len(), expected)?;
        if let Some(at) = counts.iter().position(|&count| count != 1) {
            let text = format!("count {at} is {}, and without drafts every count is 1", counts[at]);
            return Err(RequestError::new("counts", text).into());
        }
    }
    check_length("tokens", sampled.len(), expected)?;
    Ok(tokens::check("tokens", sampled)?)
}

#[allow(clippy::cast_precision_loss, reason = "lengths far below 2^53")]
fn check_length(argument: &'static str, given: usize, expected: usize) -> Result<(), RequestError> {
    if given == expected {
        return Ok(());
    }
    let text = format!("{given} were given, {expected} sequences sampled");
    Err(RequestError::beyond(argument, text, expected as f64, given as f64 - expected as f64))
}

/// The row's tokens are computed: blocks that they fill are published.
#[inline]
fn count_computed(state: &mut State, placed: &Placed) {
    let block_size = state.cache.block_size();
    let runner = state.rows.at_mut(placed.row);
    let end = placed.start + placed.num_tokens;
    if placed.start < runner.high_water {
        state.counters.recomputed_tokens += u64::from(runner.high_water.min(end) - placed.start);
    }
    runner.computed = end;
    runner.high_water = runner.high_water.max(end);
    runner.next_slot += 1;
    let (publishes, is_done) = (runner.publishes, !runner.samples && end == runner.known);
    // A decode fills a block when it leaves it; a chunk may fill several.
    let may_fill = placed.num_tokens > 1 || (end as usize).is_multiple_of(block_size);
    if may_fill && publishes {
        publish(state, placed, placed.start as usize / block_size, end as usize / block_size);
    }
    if may_fill {
        find_next_slot(state, placed.row);
    }
    if is_done {
        state.end(placed.seq, Reason::Length);
    }
}

/// Publishes the blocks `from .. to` of a sequence, in order.
fn publish(state: &mut State, placed: &Placed, from: usize, to: usize) {
    let block_size = state.cache.block_size();
    let Sequence { tokens, table, chain, identity, .. } = state.sequences.live_mut(placed.seq);
    state.cache.prefix().extend_chain(chain, &tokens[..to * block_size], identity);
    for block in from..to {
        let key = identity.key_of(block, block_size);
        let link = Link { hash: chain[block], tokens: &tokens[block * block_size..][..block_size], key: &key };
        if state.cache.publish(table, block, link, identity) {
            let Ok(index) = u32::try_from(block) else { unreachable!("an index is below the longest length") };
            state.news.merged.push((placed.row, index));
        }
    }
}

/// After a chunk, or at a block's end, the next slot lies wherever the table says, if it has the block already.
fn find_next_slot(state: &mut State, row: u32) {
    let block_size = state.cache.block_size();
    let runner = state.rows.at_mut(row);
    let (index, offset) = (runner.computed as usize / block_size, runner.computed as usize % block_size);
    if let Some(&block) = state.sequences.live(runner.seq).table.blocks().get(index) {
        runner.next_slot = tokens::slot(block, block_size, offset);
    }
}

/// Takes a sampled token, unless the sequence ended while the plan was out.
fn accept(state: &mut State, placed: &Placed, token: i32, outcome: &mut Outcome) {
    let runner = state.rows.at_mut(placed.row);
    if runner.ended {
        return;
    }
    let sequence = state.sequences.live_mut(placed.seq);
    sequence.tokens.push(token);
    runner.known += 1;
    runner.emitted += 1;
    runner.last_token = token;
    outcome.seqs.push(placed.seq);
    outcome.tokens.push(token);
    let Ok(end) = i32::try_from(outcome.tokens.len()) else { unreachable!("a step samples at most once a row") };
    outcome.indptr.push(end);
    let may_stop = runner.has_stops && runner.emitted >= runner.min_tokens;
    if may_stop && sequence.stop_token_ids.binary_search(&token).is_ok() {
        state.end(placed.seq, Reason::Stop);
    } else if runner.known >= runner.max_len {
        state.end(placed.seq, Reason::Length);
    }
}
