//! The phases of a step (CONTRACT §3.2), over a small state of the pass that is being put together.
//!
//! ends ─▶ decodes ─▶ prompts in progress ─▶ admissions ─▶ a decision, or nothing. Deciding writes no arrays: the
//! simulator runs on decisions alone.

use crate::error::{Error, RequestError};
use crate::ids::SequenceId;
use crate::sched::decision::{Decision, Placed};
use crate::sched::outcome::Reason;
use crate::sched::request::{Sequence, Status};
use crate::sched::rows::Runner;
use crate::sched::state::State;
use crate::table::blocks_for;
use crate::tokens;

/// A step that is being put together.
struct Pass<'a> {
    state: &'a mut State,
    decision: Decision,
    /// Tokens that may still be placed.
    budget: usize,
    /// The most tokens that one prompt may take.
    prompt_cap: usize,
    /// Rows that are not decodes, of those that phase 2 saw.
    num_prompts: usize,
}

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
    let mut pass = Pass::new(state);
    pass.place_decodes();
    if pass.num_prompts > 0 {
        pass.place_prompts();
    }
    pass.admit();
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
    let waiting: Vec<SequenceId> = state.queue.iter().collect();
    for seq in waiting {
        let sequence = state.sequences.live_mut(seq);
        if std::mem::take(&mut sequence.undated) {
            sequence.rank.arrival = now + 0.0;
        }
    }
    let sequences = &state.sequences;
    state.queue.rerank(|seq| sequences.live(seq).rank);
}

/// The most tokens that one prompt may take in this step: what is configured, while another prompt waits.
fn prompt_cap(state: &State) -> usize {
    let cap = state.limits.prompt_cap;
    if cap == usize::MAX {
        return cap;
    }
    let in_progress = state.rows.in_order().filter(|runner| !runner.is_decode()).count();
    if in_progress + state.queue.len() >= 2 { cap } else { usize::MAX }
}

/// Phase 1: what ended since the last step gives its blocks and its row back.
fn release_ended(state: &mut State) {
    if state.ends.to_release.is_empty() {
        return;
    }
    let rows = &state.rows;
    let order = state.rows.order.iter().copied().filter(|&row| !rows.at(row).ended).collect();
    state.rows.order = order;
    for seq in std::mem::take(&mut state.ends.to_release) {
        let sequence = state.sequences.live_mut(seq);
        if let Status::Ended { row: row @ Some(_), reason } = sequence.status {
            sequence.status = Status::Ended { reason, row: None };
            if let Some(row) = row {
                state.evacuate(seq, row);
            }
        }
        state.news.ended.push(seq);
    }
}

impl<'a> Pass<'a> {
    fn new(state: &'a mut State) -> Self {
        let mut decision = state.spare.pop().unwrap_or_default();
        decision.clear();
        let budget = state.limits.token_budget;
        let prompt_cap = prompt_cap(state);
        Self { state, decision, budget, prompt_cap, num_prompts: 0 }
    }

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
                        break;
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
            at += 1;
            if self.state.rows.at(row).is_decode() {
                continue;
            }
            let runner = self.state.rows.at(row);
            let own_room = runner.blocks as usize * block_size - runner.computed as usize;
            if own_room == 0 && !self.find_block(at - 1) {
                break;
            }
            // The budget and the free blocks are those after any preemption.
            let runner = self.state.rows.at(row);
            let room = own_room + self.state.cache.available() * block_size;
            let chunk = runner.lacking().min(self.budget).min(self.prompt_cap).min(room);
            let blocks = blocks_for(runner.computed as usize + chunk, block_size) - runner.blocks as usize;
            self.grow(row, blocks);
            self.place(row, chunk);
        }
    }

    /// Phase 4: candidates in queue order, each whole or not at all; the first that does not fit holds the queue.
    fn admit(&mut self) {
        let block_size = self.state.cache.block_size();
        let (mut kept, mut incomplete) = if self.num_prompts > 0 { self.count_incomplete() } else { (0, 0) };
        while self.budget > 0 && self.state.rows.has_free() {
            let Some(seq) = self.state.queue.peek() else {
                return;
            };
            self.look_up(seq);
            let hit = self.state.look_up.hits.blocks.len();
            let known = self.state.sequences.live(seq).tokens.len();
            let rest = blocks_for(known, block_size) - hit;
            let claimed = self.state.cache.num_unheld(&self.state.look_up.hits.blocks);
            let idle = self.state.rows.order.is_empty();
            let watermark = if idle { 0 } else { self.state.limits.watermark };
            if rest + kept + watermark + claimed > self.state.cache.available() {
                return;
            }
            let lacking = known - hit * block_size;
            let chunk = lacking.min(self.budget).min(self.prompt_cap);
            if chunk < lacking {
                if incomplete >= self.state.limits.max_partial_prefills {
                    return;
                }
                incomplete += 1;
            }
            let row = self.seat(seq);
            let blocks = blocks_for(hit * block_size + chunk, block_size) - hit;
            self.grow(row, blocks);
            kept += rest - blocks;
            self.place(row, chunk);
        }
    }

    /// The blocks that prompts in the batch still lack, and how many of them this plan leaves incomplete.
    fn count_incomplete(&self) -> (usize, usize) {
        let block_size = self.state.cache.block_size();
        let (mut kept, mut incomplete) = (0, 0);
        for runner in self.state.rows.in_order().filter(|runner| !runner.is_decode()) {
            kept += blocks_for(runner.known as usize, block_size) - runner.blocks as usize;
            incomplete += 1;
        }
        for placed in &self.decision.placed[self.decision.num_decodes..] {
            let known = self.state.rows.at(placed.row).known;
            incomplete -= usize::from(placed.num_tokens > 0 && placed.start + placed.num_tokens == known);
        }
        (kept, incomplete)
    }

    /// Completes the decision; false, with the plan's news kept for later, when it is empty.
    fn close(self) -> bool {
        let Self { state, mut decision, budget, .. } = self;
        let nothing =
            budget == state.limits.token_budget && decision.preempted.is_empty() && state.ends.to_report.is_empty();
        if nothing {
            state.spare.push(decision);
            return false;
        }
        if !decision.preempted.is_empty() {
            let decodes = &decision.placed[..decision.num_decodes];
            decision.num_decodes = decodes.iter().filter(|placed| placed.num_tokens > 0).count();
            decision.placed.retain(|placed| placed.num_tokens > 0);
        }
        decision.num_tokens = state.limits.token_budget - budget;
        decision.number = state.counters.plans;
        state.counters.plans += 1;
        std::mem::swap(&mut decision.ended, &mut state.news.ended);
        std::mem::swap(&mut decision.vacated, &mut state.news.vacated);
        std::mem::swap(&mut decision.merged, &mut state.news.merged);
        decision.step = state.cache.begin_step();
        state.out.push_back(decision);
        true
    }

    #[inline]
    fn place(&mut self, row: u32, num_tokens: usize) {
        let runner = self.state.rows.at_mut(row);
        let samples = runner.samples && num_tokens == runner.lacking();
        let first_new = std::mem::replace(&mut runner.announced, runner.blocks);
        self.budget -= num_tokens;
        self.decision.num_samples += usize::from(samples);
        self.decision.num_new_blocks += (runner.blocks - first_new) as usize;
        let (seq, start, num_tokens) = (runner.seq, runner.computed, small(num_tokens));
        self.decision.placed.push(Placed { seq, row, start, num_tokens, samples, first_new });
    }

    /// Adds new blocks, which are available, to a row's table.
    fn grow(&mut self, row: u32, blocks: usize) {
        if blocks == 0 {
            return;
        }
        let runner = self.state.rows.at_mut(row);
        let table = &mut self.state.sequences.live_mut(runner.seq).table;
        self.state.cache.grow(table, blocks);
        let block_size = self.state.cache.block_size();
        let (index, offset) = (runner.computed as usize / block_size, runner.computed as usize % block_size);
        runner.next_slot = tokens::slot(table.blocks()[index], block_size, offset);
        runner.blocks = small(table.len());
    }

    /// Sees to it that a block is available for the row at `at` in the order, preempting from the end. False when that
    /// row itself had to go.
    fn find_block(&mut self, at: usize) -> bool {
        while self.state.cache.available() == 0 {
            let Some(victim) = self.state.rows.order.pop() else { unreachable!("the requester is in the order") };
            let is_requester = self.state.rows.order.len() == at;
            if is_requester && at == 0 {
                self.expire(victim);
            } else {
                self.preempt(victim);
            }
            if is_requester {
                return false;
            }
        }
        true
    }

    /// The row's sequence is alone and cannot grow: it ends here.
    fn expire(&mut self, row: u32) {
        let seq = self.withdraw(row);
        self.end_now(seq);
    }

    /// Takes everything from the row, which the caller took out of the order, and puts its sequence back into the queue.
    fn preempt(&mut self, row: u32) {
        let runner = *self.state.rows.at(row);
        let seq = self.withdraw(row);
        self.decision.preempted.push(seq);
        self.state.counters.preemptions += 1;
        let sequence = self.state.sequences.live_mut(seq);
        sequence.high_water = runner.high_water as usize;
        sequence.status = Status::Waiting;
        if blocks_for(sequence.tokens.len(), self.state.cache.block_size()) > self.state.cache.num_blocks() {
            self.end_now(seq);
        } else {
            self.state.queue.push(sequence.rank, seq);
        }
    }

    /// Undoes the row's part in this plan and frees what it holds.
    fn withdraw(&mut self, row: u32) -> SequenceId {
        let runner = *self.state.rows.at(row);
        let placed = self.decision.placed.iter_mut().rev().find(|placed| placed.row == row && placed.num_tokens > 0);
        if let Some(placed) = placed {
            self.budget += placed.num_tokens as usize;
            self.decision.num_samples -= usize::from(placed.samples);
            self.decision.num_new_blocks -= (runner.announced - placed.first_new) as usize;
            placed.num_tokens = 0;
        }
        self.state.evacuate(runner.seq, row);
        runner.seq
    }

    /// Ends with `capacity` a sequence that has neither row nor blocks any more.
    fn end_now(&mut self, seq: SequenceId) {
        let reason = Reason::Capacity;
        self.state.sequences.live_mut(seq).status = Status::Ended { reason, row: None };
        self.state.ends.to_report.push((seq, reason));
        self.state.news.ended.push(seq);
        self.state.counters.finished += 1;
    }

    /// Looks up the queue's head, unless that was done and the findable blocks are the same.
    fn look_up(&mut self, seq: SequenceId) {
        let State { cache, sequences, look_up, .. } = &mut *self.state;
        let version = cache.prefix().version();
        if look_up.of == Some((seq, version)) {
            return;
        }
        look_up.of = Some((seq, version));
        look_up.hits.blocks.clear();
        look_up.hits.collisions = 0;
        let Sequence { tokens, chain, identity, use_cache, .. } = sequences.live_mut(seq);
        if *use_cache && cache.is_caching() {
            let limit = (tokens.len() - 1) / cache.block_size();
            cache.look_up(chain, tokens, identity, limit, &mut look_up.hits);
        }
    }

    /// Moves the queue's head, whose hit was looked up, into the batch; claims the hit.
    fn seat(&mut self, seq: SequenceId) -> u32 {
        let State { cache, sequences, queue, rows, look_up, counters, limits, .. } = &mut *self.state;
        queue.remove(seq);
        look_up.of = None;
        let rank = sequences.live(seq).rank;
        let place = match rows.order.last() {
            Some(&last) if rank < sequences.live(rows.at(last).seq).rank => {
                rows.order.partition_point(|&row| sequences.live(rows.at(row).seq).rank < rank)
            }
            _ => rows.order.len(),
        };
        let sequence = sequences.live_mut(seq);
        cache.adopt(&mut sequence.table, &look_up.hits);
        let computed = sequence.table.len() * cache.block_size();
        let publishes = sequence.use_cache && cache.is_caching();
        let (queries, hits) = if sequence.was_admitted {
            (&mut counters.resumed_queries, &mut counters.resumed_hits)
        } else {
            (&mut counters.prefix_queries, &mut counters.prefix_hits)
        };
        if publishes {
            *queries += sequence.tokens.len() as u64;
            *hits += computed as u64;
        }
        let list = if sequence.was_admitted { &mut self.decision.resumed } else { &mut self.decision.admitted };
        list.push(seq);
        sequence.was_admitted = true;
        make_room(sequence, cache.block_size(), limits.max_model_len);
        let row = rows.insert(runner_of(seq, sequence, computed, publishes), place);
        sequence.status = Status::Running(row);
        row
    }
}

/// Outputs that a sequence has memory for when it is admitted, so that a steady step allocates nothing.
const OUTPUT_ROOM: usize = 1_024;

fn make_room(sequence: &mut Sequence, block_size: usize, max_model_len: usize) {
    let tokens = sequence.max_len.min(sequence.tokens.len() + OUTPUT_ROOM).min(max_model_len);
    let blocks = blocks_for(tokens, block_size);
    sequence.tokens.reserve_exact(tokens.saturating_sub(sequence.tokens.len()));
    sequence.chain.reserve_exact(blocks.saturating_sub(sequence.chain.len()));
    sequence.table.make_room(blocks);
}

fn runner_of(seq: SequenceId, sequence: &Sequence, computed: usize, publishes: bool) -> Runner {
    Runner {
        seq,
        next_slot: 0,
        computed: small(computed),
        known: small(sequence.tokens.len()),
        blocks: small(sequence.table.len()),
        announced: 0,
        emitted: small(sequence.tokens.len() - sequence.prompt_len),
        max_len: small(sequence.max_len),
        min_tokens: small(sequence.min_tokens),
        high_water: small(sequence.high_water),
        last_token: sequence.tokens.last().copied().unwrap_or(0),
        publishes,
        samples: sequence.samples,
        has_stops: !sequence.stop_token_ids.is_empty(),
        ended: false,
    }
}

/// A length, which the model's longest bounds.
fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or_else(|_| unreachable!("{count} is beyond the longest sequence"))
}
