//! Plans whose forward pass failed (CONTRACT §3.3).

use crate::error::{Error, StateError};
use crate::ids::SequenceId;
use crate::sched::decision::Decision;
use crate::sched::outcome::Reason;
use crate::sched::state::State;

/// Voids plan `number` and all newer ones: who is in them is preempted, and nothing of them is published.
///
/// # Errors
///
/// [`StateError`] when the plan is not out; nothing changes then.
pub(crate) fn cancel(state: &mut State, number: u64) -> Result<(), Error> {
    let Some(first) = state.out.iter().position(|plan| plan.number == number) else {
        return Err(StateError::new(format!("plan {number} cannot be cancelled: it is not out")).into());
    };
    let void: Vec<Decision> = state.out.drain(first..).collect();
    for placed in void.iter().flat_map(|plan| &plan.placed) {
        if let Some(runner) = state.rows.get_mut(placed.row) {
            runner.in_plans -= 1;
        } else {
            state.rows.cool(placed.row);
            if let Ok(sequence) = state.sequences.get_mut(placed.seq) {
                sequence.in_plans = sequence.in_plans.saturating_sub(1);
            }
        }
    }
    for placed in void.iter().flat_map(|plan| &plan.placed) {
        match state.rows.get(placed.row) {
            Some(runner) if !runner.ended => {
                let seq = state.preempt(placed.row);
                state.news.preempted.push(seq);
                end_if_too_long(state, seq);
            }
            Some(_) => {}
            None => end_if_too_long(state, placed.seq),
        }
    }
    state.rows.close_gaps();
    state.forget_merges();
    if let Some(plan) = void.first() {
        state.cache.void_steps(plan.step);
    }
    state.spare.extend(void);
    Ok(())
}

/// Ends who waited for the void plans only, and can never be computed again.
fn end_if_too_long(state: &mut State, seq: SequenceId) {
    if state.is_too_long(seq) {
        state.end(seq, Reason::Capacity);
    }
}
