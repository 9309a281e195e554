//! The phases of a step (CONTRACT §3.2), in the order that the batching asks for (PLANNER §2).
//!
//! ends ─▶ decodes ─▶ prompts in progress ─▶ admissions ─▶ a decision, or nothing. Deciding writes no arrays: the
//! simulator runs on decisions alone. Plans may be out: a step goes on from what they will have computed.

use crate::config::Batching;
use crate::error::{Error, RequestError};
use crate::ids::SequenceId;
use crate::sched::pass::{Pass, Room, Share};
use crate::sched::request::{Sequence, Status};
use crate::sched::state::{End, State};
use crate::table::blocks_for;

/// Decides the next step; false when nothing can run.
///
/// # Errors
///
/// [`RequestError`] when `now` is not finite or goes back; nothing changes then.
pub(crate) fn decide(state: &mut State, now: f64) -> Result<bool, Error> {
    check_now(state.now, now)?;
    let is_first = state.now.replace(now).is_none();
    if state.out.len() >= state.limits.inflight_steps {
        return Ok(false);
    }
    if is_first {
        date_requests(state, now);
    }
    state.pins.begin_step(&mut state.cache);
    release_ended(state);
    state.forget_reported();
    let (batching, prompt_cap) = (state.limits.batching, prompt_cap(state));
    // Rows that plans out still name would be missing in a new static batch.
    let is_idle = state.rows.order.is_empty() && state.rows.num_cooling() == 0;
    let mut pass = Pass::new(state, prompt_cap);
    match batching {
        Batching::Chunked => {
            pass.place_decodes();
            if pass.num_prompts > 0 {
                pass.place_prompts(Share::Chunks);
            }
            pass.admit(Share::Chunks);
        }
        Batching::Mixed => {
            pass.place_decodes();
            if pass.num_prompts > 0 {
                pass.place_prompts(Share::Whole);
            }
            if !pass.holds {
                pass.admit(Share::Whole);
            }
        }
        Batching::Continuous => {
            pass.place_prompts(Share::WholeAlone);
            if pass.num_prompts == 0 {
                pass.admit(Share::WholeAlone);
                if pass.is_empty() {
                    pass.place_decodes();
                }
            }
        }
        Batching::Static if is_idle => pass.admit(Share::Whole),
        Batching::Static => {
            pass.place_prompts(Share::Whole);
            if pass.num_prompts == 0 {
                pass.place_decodes();
            }
        }
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
    let in_progress = state.rows.in_order().filter(|runner| runner.is_prompt()).count();
    if in_progress + state.queue.len() >= 2 { cap } else { usize::MAX }
}

/// Phase 1: what ended since the last step gives its blocks and its row back.
fn release_ended(state: &mut State) {
    if !state.ends.to_release.is_empty() {
        evacuate_ended(state);
    }
    // Also where the last member of a static batch went inside the step before, preempted or for lack of capacity.
    if state.rows.order.is_empty() {
        state.rows.drop_padding();
    }
}

fn evacuate_ended(state: &mut State) {
    let rows = &state.rows;
    let order = state.rows.order.iter().copied().filter(|&row| !rows.at(row).ended).collect();
    state.rows.order = order;
    for End { seq, turn } in std::mem::take(&mut state.ends.to_release) {
        let sequence = state.sequences.live_mut(seq);
        if sequence.turn != turn {
            continue;
        }
        sequence.released = true;
        if let Status::Ended { row: Some(row), reason } = sequence.status {
            sequence.status = Status::Ended { reason, row: None };
            state.evacuate(seq, row);
        }
        state.news.ended.push(seq);
    }
    state.forget_merges();
}

impl Pass<'_> {
    /// Phase 2: every row that continues its output, in policy order.
    fn place_decodes(&mut self) {
        let mut at = 0;
        while self.budget > 0 {
            at = self.place_run(at);
            let Some(&row) = self.state.rows.order.get(at).filter(|_| self.budget > 0) else { break };
            match self.find_slot(at) {
                Room::Found => {
                    self.place_decode(row);
                    at += 1;
                }
                Room::Later => at += 1,
                // Its row is gone: the next in order stands at the same place.
                Room::Gone => {}
            }
        }
        self.decision.num_decodes = self.decision.placed.len();
    }

    /// Phase 3: prompts that are partly computed, in policy order.
    fn place_prompts(&mut self, share: Share) {
        let (block_size, worst_case) = (self.state.cache.block_size(), self.state.limits.is_worst_case());
        let mut at = 0;
        while at < self.state.rows.order.len() && self.budget > 0 {
            let row = self.state.rows.order[at];
            let runner = *self.state.rows.at(row);
            let (start, owned, lacking) =
                (runner.scheduled as usize, runner.blocks as usize, runner.lacking() as usize);
            let target = runner.target(block_size, worst_case);
            let fits = share == Share::Chunks || lacking <= self.budget;
            self.num_prompts += usize::from(runner.is_prompt());
            self.holds |= runner.is_prompt() && !fits;
            if !runner.is_prompt() || !fits {
                at += 1;
                continue;
            }
            // A chunk takes what blocks there are, one at least; a whole prompt and the worst case take all they need.
            let takes_all = share != Share::Chunks || worst_case;
            let own_room = owned * block_size - start;
            let needed = if takes_all { target - owned.min(target) } else { usize::from(own_room == 0) };
            match self.find_blocks(at, needed) {
                Room::Found => {}
                // The one that was to run alone waits, or had to go: nobody runs in its stead.
                _ if share == Share::WholeAlone => return,
                Room::Later => {
                    at += 1;
                    continue;
                }
                Room::Gone => continue,
            }
            // The budget and the free blocks are those after any preemption.
            let mut chunk = lacking.min(self.budget);
            if share == Share::Chunks {
                chunk = chunk.min(self.prompt_cap);
            }
            let blocks = if takes_all {
                needed
            } else {
                chunk = chunk.min(own_room + self.state.cache.available() * block_size);
                blocks_for(start + chunk, block_size).max(owned) - owned
            };
            self.grow(row, blocks);
            self.place_chunk(row, chunk);
            at += 1;
            if share == Share::WholeAlone {
                return;
            }
        }
    }
}
