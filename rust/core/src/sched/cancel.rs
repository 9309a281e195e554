//! Plans whose forward pass failed (CONTRACT §3.3).

use crate::error::{Error, StateError};
use crate::sched::decision::Decision;
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
            state.unname(placed);
        }
    }
    for placed in void.iter().flat_map(|plan| &plan.placed) {
        match state.rows.get(placed.row) {
            Some(runner) if !runner.ended => {
                let seq = state.preempt(placed.row);
                state.news.preempted.push(seq);
                state.end_if_too_long(seq);
            }
            Some(_) => {}
            None => state.end_if_too_long(placed.seq),
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
