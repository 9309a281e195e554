//! The phases of a step (CONTRACT §3.2), in the order that the batching asks for (PLANNER §2).
//!
//! ends ─▶ decodes ─▶ prompts in progress ─▶ admissions ─▶ a decision, or nothing. Deciding writes no arrays: the
//! simulator runs on decisions alone.

use crate::config::Batching;
use crate::error::{Error, RequestError};
use crate::ids::SequenceId;
use crate::sched::admit::Admission;
use crate::sched::pass::Pass;
use crate::sched::request::{Sequence, Status};
use crate::sched::state::State;
use crate::table::blocks_for;

/// Decides the next step; false when nothing can run.
///
/// # Errors
///
/// [`RequestError`] when `now` is not finite or goes back; nothing changes then.
pub(crate) fn decide(state: &mut State, now: f64) -> Result<bool, Error> {
    check_now(state.now, now)?;
    let is_first = state.now.replace(now).is_none();
    if !state.out.is_empty() {
        return Ok(false);
    }
    if is_first {
        date_requests(state, now);
    }
    release_ended(state);
    state.forget_reported();
    let (batching, prompt_cap) = (state.limits.batching, prompt_cap(state));
    let is_idle = state.rows.order.is_empty();
    let mut pass = Pass::new(state, prompt_cap);
    match batching {
        Batching::Chunked => {
            pass.place_decodes();
            if pass.num_prompts > 0 {
                pass.place_prompts();
            }
            pass.admit(Admission::Chunks);
        }
        Batching::Mixed => {
            pass.place_decodes();
            pass.admit(Admission::Whole);
        }
        Batching::Continuous => {
            pass.admit(Admission::WholeAlone);
            if pass.decision.placed.is_empty() {
                pass.place_decodes();
            }
        }
        Batching::Static if is_idle => pass.admit(Admission::Whole),
        Batching::Static => pass.place_decodes(),
    }
    Ok(pass.close())
}

fn check_now(last: Option<f64>, now: f64) -> Result<(), RequestError> {
    if !now.is_finite() {
        return Err(RequestError::new("now", format!("{now} is not a finite number of seconds")));
    }
    match last {
        Some(last) if now < last => {
            Err(RequestError::beyond("now", format!("{now} is before {last}: time goes back"), last, last - now))
        }
        _ => Ok(()),
    }
}

/// Requests that were added without an arrival before the first step arrive with it.
fn date_requests(state: &mut State, now: f64) {
    let is_undated = |&(_, sequence): &(_, &Sequence)| sequence.undated;
    let waiting: Vec<SequenceId> = state.sequences.iter().filter(is_undated).map(|(seq, _)| seq).collect();
    for seq in waiting {
        let sequence = state.sequences.live_mut(seq);
        if std::mem::take(&mut sequence.undated) {
            sequence.rank.arrival = now + 0.0;
            sequence.rank = state.limits.rank(sequence);
        }
    }
    let sequences = &state.sequences;
    state.queue.rerank(|seq| sequences.live(seq).rank);
}

/// The most tokens that one prompt may take in this step: what is configured, while another prompt waits.
fn prompt_cap(state: &State) -> usize {
    let cap = state.limits.prompt_cap;
    if cap == usize::MAX || state.limits.batching != Batching::Chunked {
        return usize::MAX;
    }
    let in_progress = state.rows.in_order().filter(|runner| !runner.is_decode()).count();
    if in_progress + state.queue.len() >= 2 { cap } else { usize::MAX }
}

/// Phase 1: what ended since the last step gives its blocks and its row back.
fn release_ended(state: &mut State) {
    if !state.ends.to_release.is_empty() {
        evacuate_ended(state);
    }
    // Also where the last member of a static batch went inside the step before, preempted or for lack of capacity.
    if state.rows.order.is_empty() {
        state.drop_padding();
    }
}

fn evacuate_ended(state: &mut State) {
    let rows = &state.rows;
    let order = state.rows.order.iter().copied().filter(|&row| !rows.at(row).ended).collect();
    state.rows.order = order;
    for seq in std::mem::take(&mut state.ends.to_release) {
        let sequence = state.sequences.live_mut(seq);
        if let Status::Ended { row: Some(row), reason } = sequence.status {
            sequence.status = Status::Ended { reason, row: None };
            if state.limits.batching == Batching::Static {
                state.evacuate_to_padding(seq, row);
            } else {
                state.evacuate(seq, row);
            }
        }
        state.news.ended.push(seq);
    }
}

impl Pass<'_> {
    /// Phase 2: every row that continues its output, in policy order.
    fn place_decodes(&mut self) {
        let block_size = self.state.cache.block_size();
        let mut at = 0;
        while at < self.state.rows.order.len() && self.budget > 0 {
            let row = self.state.rows.order[at];
            let runner = self.state.rows.at(row);
            if runner.is_decode() {
                if runner.computed as usize == runner.blocks as usize * block_size {
                    if !self.find_block(at) {
                        // Its row is gone: the next in order stands at the same place.
                        continue;
                    }
                    self.grow(row, 1);
                }
                self.place(row, 1);
            } else {
                self.num_prompts += 1;
            }
            at += 1;
        }
        self.decision.num_decodes = self.decision.placed.len();
    }

    /// Phase 3: prompts that are partly computed, in policy order.
    fn place_prompts(&mut self) {
        let block_size = self.state.cache.block_size();
        let mut at = 0;
        while at < self.state.rows.order.len() && self.budget > 0 {
            let row = self.state.rows.order[at];
            let runner = self.state.rows.at(row);
            if runner.is_decode() {
                at += 1;
                continue;
            }
            let own_room = runner.blocks as usize * block_size - runner.computed as usize;
            if own_room == 0 && !self.find_block(at) {
                // Its row is gone: the next in order stands at the same place.
                continue;
            }
            // The budget and the free blocks are those after any preemption.
            let runner = self.state.rows.at(row);
            let room = own_room + self.state.cache.available() * block_size;
            let chunk = runner.lacking().min(self.budget).min(self.prompt_cap).min(room);
            // A row that reserved for the worst case owns more than that already.
            let owned = runner.blocks as usize;
            let blocks = blocks_for(runner.computed as usize + chunk, block_size).max(owned) - owned;
            self.grow(row, blocks);
            self.place(row, chunk);
            at += 1;
        }
    }
}
