//! Taking a step's results: what was computed is published, what was sampled is accepted, and who is done ends.

use crate::error::{Error, RequestError, StateError};
use crate::ids::SequenceId;
use crate::prefix::Link;
use crate::sched::away;
use crate::sched::decision::Placed;
use crate::sched::outcome::{Outcome, Reason};
use crate::sched::request::{Sequence, Status, make_room, quiet_until};
use crate::sched::rows::{Runner, small};
use crate::sched::state::{Report, State};
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
    let (mut sampled, mut families, mut rest) = (sampled, &*decision.families, &*decision.placed);
    let (mut num_decodes, mut num_away) = (decision.num_decodes, 0);
    outcome.make_room(decision.num_samples);
    while !rest.is_empty() {
        // Decodes for which there is nothing to do but to note the token go in one run.
        let run = state.rows.accept_run(&rest[..num_decodes], sampled, state.cache.block_size());
        outcome.extend(&rest[..run], &sampled[..run]);
        (rest, sampled) = (&rest[run..], &sampled[run..]);
        num_decodes = (num_decodes - run).saturating_sub(1);
        let Some((placed, others)) = rest.split_first() else { break };
        rest = others;
        let (own, others) = sampled.split_at(placed.num_samples as usize);
        sampled = others;
        let mut family: &[SequenceId] = &[];
        if placed.leads && placed.num_samples > 0 {
            (family, families) = families.split_at(own.len());
        }
        if state.rows.get(placed.row).is_none() {
            away::commit(state, placed, family, own, outcome);
            num_away += 1;
            continue;
        }
        count_computed(state, placed);
        match own {
            [] => {}
            &[token] if !placed.leads => accept_pending(state, placed.row, token, outcome),
            _ => fork(state, placed.row, family, own, outcome),
        }
    }
    if num_away > 0 {
        away::end_too_long(state, &decision.placed);
    }
    report(state, outcome);
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
    let runner = state.rows.at_mut(placed.row);
    runner.in_plans -= 1;
    let planned = placed.start + placed.num_tokens;
    // Behind a stop that was found while the plan was out, nothing was known.
    let end = planned.min(runner.known);
    runner.computed = runner.computed.max(end);
    let may_fill = placed.num_tokens > 1 || (placed.fills && end == planned);
    let (publishes, is_done) = (runner.publishes, !runner.samples() && end == runner.known);
    if runner.recomputes {
        count_recomputed(state, placed.row, placed.start, end);
    }
    if may_fill && publishes {
        state.settle(placed.row);
        publish(state, placed, end);
    }
    if is_done {
        end_all(state, placed);
    }
}

/// Counts what of `start .. end` was computed before.
fn count_recomputed(state: &mut State, row: u32, start: u32, end: u32) {
    let runner = state.rows.at_mut(row);
    let high_water = state.sequences.live(runner.seq).high_water;
    state.counters.recomputed_tokens += high_water.min(end as usize).saturating_sub(start as usize) as u64;
    runner.recomputes = high_water > end as usize;
    if !runner.ended {
        runner.quiet_until = quiet_until(state.sequences.live(runner.seq), end as usize);
    }
}

/// Publishes the blocks that end after token `placed.start` and not after `end`, in order.
fn publish(state: &mut State, placed: &Placed, end: u32) {
    let block_size = state.cache.block_size();
    let (from, to) = (placed.start as usize / block_size, end as usize / block_size);
    let Sequence { tokens, table, chain, identity, .. } = state.sequences.live_mut(placed.seq);
    state.cache.prefix().extend_chain(chain, &tokens[..to * block_size], identity);
    for block in from..to {
        let key = identity.key_of(block, block_size);
        let link = Link { hash: chain[block], tokens: &tokens[block * block_size..][..block_size], key: &key };
        if state.cache.publish(table, block, link, identity) {
            state.news.merged.push((placed.row, small(block)));
        }
    }
}

/// A prompt is computed that samples nothing: it is over, and so are all for which it stood.
fn end_all(state: &mut State, placed: &Placed) {
    let request = state.sequences.live(placed.seq).request;
    let all: Vec<SequenceId> = if placed.leads { state.unended(request).collect() } else { vec![placed.seq] };
    if placed.leads {
        state.requests.live_mut(request).forked = true;
    }
    for seq in all {
        state.end(seq, Reason::Length);
    }
}

/// A token that the row waited for; ignored if its sequence ended while the plan was out.
#[inline]
fn accept_pending(state: &mut State, row: u32, token: i32, outcome: &mut Outcome) {
    state.rows.at_mut(row).pending -= 1;
    accept(state, row, token, outcome);
}

#[inline]
fn accept(state: &mut State, row: u32, token: i32, outcome: &mut Outcome) {
    let runner = state.rows.at_mut(row);
    if runner.ended {
        return;
    }
    let seq = runner.seq;
    state.settle(row);
    let runner = state.rows.at_mut(row);
    let sequence = state.sequences.live_mut(seq);
    sequence.tokens.push(token);
    runner.known += 1;
    runner.last_token = token;
    outcome.push(seq, token);
    if sequence.is_stop(token) {
        state.end(seq, Reason::Stop);
    } else if runner.known >= runner.max_len {
        state.end(seq, Reason::Length);
    }
}

/// The prompt in `row` is computed: every sequence of its request goes on from it for itself, with the token that was
/// sampled for it.
fn fork(state: &mut State, row: u32, family: &[SequenceId], sampled: &[i32], outcome: &mut Outcome) {
    let block_size = state.cache.block_size();
    let runner = state.rows.at_mut(row);
    (runner.pending, runner.leads) = (0, false);
    let leader = runner.seq;
    let request = state.sequences.live(leader).request;
    state.requests.live_mut(request).forked = true;
    let alive: Vec<SequenceId> = state.unended(request).collect();
    let runner = state.rows.at_mut(row);
    runner.shares_tail = alive.len() > 1 && !(runner.computed as usize).is_multiple_of(block_size);
    let runner = *runner;
    for &seq in alive.iter().filter(|&&seq| seq != leader) {
        join(state, seq, runner);
    }
    for (&seq, &token) in family.iter().zip(sampled) {
        if let Ok(&Sequence { status: Status::Running(row), .. }) = state.sequences.get(seq) {
            accept(state, row, token, outcome);
        }
    }
}

/// Lets `seq` run in the row that was kept for it, with the same blocks as `like`.
fn join(state: &mut State, seq: SequenceId, like: Runner) {
    let place = state.place_in_order(seq);
    let State { cache, sequences, rows, news, limits, .. } = state;
    let leader = sequences.live(like.seq);
    let (table, chain) = (cache.share(&leader.table), leader.chain.clone());
    let tokens = leader.tokens[..leader.prompt_len].to_vec();
    let sequence = sequences.live_mut(seq);
    let Status::Following(Some(row)) = sequence.status else { unreachable!("a row was kept for each that forks") };
    (sequence.table, sequence.chain, sequence.tokens) = (table, chain, tokens);
    (sequence.status, sequence.was_admitted) = (Status::Running(row), true);
    make_room(sequence, cache.block_size(), limits.max_model_len);
    rows.insert(row, Runner { seq, announced: 0, in_plans: 0, ..like }, place);
    news.joined.push(seq);
}

/// Tells the ends that no outcome has told.
fn report(state: &mut State, outcome: &mut Outcome) {
    for Report { end, reason } in state.ends.to_report.drain(..) {
        outcome.finished.push(end.seq);
        outcome.reasons.push(reason);
        if state.sequences.live(end.seq).turn == end.turn {
            state.ends.reported.push(end);
        }
    }
}
