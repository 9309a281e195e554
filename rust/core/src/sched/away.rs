//! A plan's results for sequences that lost their row while it was out.

use crate::ids::SequenceId;
use crate::sched::decision::Placed;
use crate::sched::outcome::{Outcome, Reason};
use crate::sched::request::Status;
use crate::sched::state::State;

/// What was sampled is accepted and becomes known, to be computed again, unless the sequence ended. `family` are those who
/// sampled where `placed` stood for all sequences of its request: each of them waits for itself from now on.
pub(crate) fn commit(
    state: &mut State,
    placed: &Placed,
    family: &[SequenceId],
    sampled: &[i32],
    outcome: &mut Outcome,
) {
    state.unname(placed);
    let Ok(sequence) = state.sequences.get_mut(placed.seq) else { return };
    if sequence.status != Status::Waiting {
        return;
    }
    let (start, end) =
        (placed.start as usize, ((placed.start + placed.num_tokens) as usize).min(sequence.tokens.len()));
    state.counters.recomputed_tokens += sequence.high_water.min(end).saturating_sub(start) as u64;
    sequence.high_water = sequence.high_water.max(end);
    let (high_water, prompt_len) = (sequence.high_water, sequence.prompt_len);
    if !placed.leads {
        if let Some(&token) = sampled.first() {
            accept(state, placed.seq, token, outcome);
        }
        return;
    }
    if sampled.is_empty() {
        return;
    }
    let request = sequence.request;
    state.requests.live_mut(request).forked = true;
    let followers: Vec<SequenceId> = state.unended(request).filter(|&seq| seq != placed.seq).collect();
    for seq in followers {
        let prompt = state.sequences.live(placed.seq).tokens[..prompt_len].to_vec();
        let follower = state.sequences.live_mut(seq);
        (follower.high_water, follower.tokens) = (high_water, prompt);
        state.put_into_queue(seq);
    }
    for (&seq, &token) in family.iter().zip(sampled) {
        if state.sequences.get(seq).is_ok_and(|sequence| !sequence.has_ended()) {
            accept(state, seq, token, outcome);
        }
    }
}

fn accept(state: &mut State, seq: SequenceId, token: i32, outcome: &mut Outcome) {
    let sequence = state.sequences.live_mut(seq);
    sequence.tokens.push(token);
    outcome.push(seq, token);
    if sequence.is_stop(token) {
        state.end(seq, Reason::Stop);
    } else if sequence.tokens.len() >= sequence.max_len {
        state.end(seq, Reason::Length);
    }
}

/// Who waits, was named by no other plan and knows more than the memory can hold has nothing to wait for.
pub(crate) fn end_too_long(state: &mut State, placed: &[Placed]) {
    for placed in placed {
        let Ok(sequence) = state.sequences.get(placed.seq) else { continue };
        let all: Vec<SequenceId> =
            if placed.leads { state.unended(sequence.request).collect() } else { vec![placed.seq] };
        for seq in all {
            state.end_if_too_long(seq);
        }
    }
}
