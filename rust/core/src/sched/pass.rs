//! A step that is being put together, and the moves that its phases are made of.

use crate::cache::{Pending, Tail};
use crate::config::Victim;
use crate::sched::decision::{Decision, Placed};
use crate::sched::rows::{Runner, small};
use crate::sched::state::State;
use crate::tokens;

/// How much of a prompt a step may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// What the budget leaves.
    Chunks,
    /// All of it, or nothing.
    Whole,
    /// All of one, and of nobody else.
    WholeAlone,
}

/// Whether a row has the blocks that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// They are available.
    Found,
    /// It waits: for blocks that a step in flight still guards, or for the plans that name it.
    Later,
    /// It had to go itself.
    Gone,
}

/// A step that is being put together.
pub(crate) struct Pass<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) decision: Decision,
    /// Tokens that may still be placed.
    pub(crate) budget: usize,
    /// The most tokens that one prompt may take.
    pub(crate) prompt_cap: usize,
    /// How often phases 2 and 3 met a prompt in progress.
    pub(crate) num_prompts: usize,
    /// A whole prompt in progress found too little budget: whoever joined would keep it from ever finding enough.
    pub(crate) holds: bool,
    /// Rows that wait for blocks which a step in flight still guards.
    num_waiting: usize,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(state: &'a mut State, prompt_cap: usize) -> Self {
        let mut decision = state.spare.pop().unwrap_or_default();
        decision.clear();
        let budget = state.limits.token_budget;
        Self { state, decision, budget, prompt_cap, num_prompts: 0, holds: false, num_waiting: 0 }
    }

    /// Whether nothing is placed.
    pub(crate) fn is_empty(&self) -> bool {
        self.budget == self.state.limits.token_budget
    }

    /// Completes the decision; false, with the plan's news kept for later, when there is nothing to run and to tell.
    pub(crate) fn close(self) -> bool {
        let is_empty = self.is_empty();
        let Self { state, mut decision, budget, .. } = self;
        state.news.preempted.append(&mut decision.preempted);
        // An end that was not reported is left to the commits of the plans that are out.
        let is_quiet = !state.out.is_empty() || state.ends.to_report.is_empty();
        if is_empty && state.news.preempted.is_empty() && is_quiet {
            state.spare.push(decision);
            return false;
        }
        if !state.news.preempted.is_empty() {
            let decodes = &decision.placed[..decision.num_decodes];
            decision.num_decodes = decodes.iter().filter(|placed| placed.num_tokens > 0).count();
            decision.placed.retain(|placed| placed.num_tokens > 0);
        }
        decision.num_tokens = state.limits.token_budget - budget;
        decision.num_padded = if decision.num_decodes > 0 { state.rows.num_padding() } else { 0 };
        decision.number = state.counters.plans;
        state.counters.plans += 1;
        if !state.news.joined.is_empty() {
            list_joined(state, &mut decision);
        }
        list_families(state, &mut decision);
        std::mem::swap(&mut decision.preempted, &mut state.news.preempted);
        std::mem::swap(&mut decision.ended, &mut state.news.ended);
        std::mem::swap(&mut decision.vacated, &mut state.news.vacated);
        state.news.merged.append(&mut decision.replaced);
        std::mem::swap(&mut decision.replaced, &mut state.news.merged);
        decision.step = state.cache.begin_step();
        let copies = state.cache.take_copies_for_newest().into_iter();
        decision.copies.extend(copies.map(|op| [op.src.get(), op.dst.get(), small(op.num_tokens).cast_signed()]));
        state.out.push_back(decision);
        true
    }

    /// Places the decodes from `from` on in the order that need no look at their table; returns where one needs it.
    pub(crate) fn place_run(&mut self, from: usize) -> usize {
        let placed = &mut self.decision.placed;
        let before = placed.len();
        let run = self.state.rows.place_run(from, self.budget, placed);
        let count = placed.len() - before;
        self.budget -= count;
        self.decision.num_samples += count;
        self.decision.num_unknown += run.num_unknown;
        self.num_prompts += run.num_prompts;
        run.next
    }

    /// Notes the entries of the row's table that no plan has listed.
    fn announce(&mut self, row: u32) {
        let runner = self.state.rows.at_mut(row);
        if runner.announced < runner.blocks {
            self.decision.grown.push((row, runner.announced));
            runner.announced = runner.blocks;
        }
    }

    /// Places the one token that a decode lacks; its slot is found.
    pub(crate) fn place_decode(&mut self, row: u32) {
        self.announce(row);
        let runner = self.state.rows.at_mut(row);
        let start = runner.scheduled;
        runner.scheduled += 1;
        runner.in_plans += 1;
        let fills = runner.scheduled == runner.boundary;
        self.decision.num_unknown += usize::from(start >= runner.known);
        // Who continues an output samples behind each of its tokens.
        runner.pending += 1;
        self.budget -= 1;
        self.decision.num_samples += 1;
        let (seq, leads) = (runner.seq, false);
        self.decision.placed.push(Placed { seq, row, start, num_tokens: 1, num_samples: 1, leads, fills });
    }

    /// Places the next `num_tokens` tokens of a prompt, whose blocks it has.
    pub(crate) fn place_chunk(&mut self, row: u32, num_tokens: usize) {
        let block_size = self.state.cache.block_size();
        let Runner { seq, scheduled: start, leads, .. } = *self.state.rows.at(row);
        let end = start + small(num_tokens);
        let last = end as usize - 1;
        let block = self.state.sequences.live(seq).table.blocks()[last / block_size];
        let request = self.state.sequences.live(seq).request;
        let runner = self.state.rows.at(row);
        let num_samples = match runner.samples() && end == runner.expected() {
            true if leads => self.state.unended(request).count(),
            completes => usize::from(completes),
        };
        self.announce(row);
        let runner = self.state.rows.at_mut(row);
        runner.scheduled = end;
        runner.in_plans += 1;
        runner.pending += u8::from(num_samples > 0);
        runner.slot = tokens::slot(block, block_size, last % block_size);
        runner.boundary = small((last / block_size + 1) * block_size);
        let fills = end == runner.boundary;
        self.budget -= num_tokens;
        self.decision.num_samples += num_samples;
        let (num_tokens, num_samples) = (small(num_tokens), small(num_samples));
        self.decision.placed.push(Placed { seq, row, start, num_tokens, num_samples, leads, fills });
    }

    /// Adds new blocks, which are available, to a row's table.
    pub(crate) fn grow(&mut self, row: u32, blocks: usize) {
        if blocks == 0 {
            return;
        }
        let runner = self.state.rows.at_mut(row);
        let table = &mut self.state.sequences.live_mut(runner.seq).table;
        self.state.cache.grow(table, blocks);
        runner.blocks = small(table.len());
    }

    /// Finds the slot of the next token of a decode at a block's end, or in a block that others name as well.
    pub(crate) fn find_slot(&mut self, at: usize) -> Room {
        let block_size = self.state.cache.block_size();
        let row = self.state.rows.order[at];
        loop {
            let runner = self.state.rows.at(row);
            let (index, filled) = (runner.scheduled as usize / block_size, runner.scheduled as usize % block_size);
            let (seq, lacks_block, tail) = (runner.seq, index == runner.blocks as usize, self.tail(row));
            let needed = usize::from(lacks_block || matches!(tail, Tail::Copy(_)));
            if self.state.cache.available() < needed {
                match self.make_room(at, needed) {
                    // Somebody went: the tail may be nobody else's now.
                    Room::Found => continue,
                    short => return short,
                }
            }
            if lacks_block {
                self.grow(row, 1);
            }
            let State { cache, sequences, rows, .. } = &mut *self.state;
            let (table, runner) = (&mut sequences.live_mut(seq).table, rows.at_mut(row));
            cache.make_writable(table, index, filled, tail);
            if matches!(tail, Tail::Copy(_)) && index < runner.announced as usize {
                self.decision.replaced.push((row, small(index)));
            }
            runner.shares_tail = false;
            runner.slot = tokens::slot(table.blocks()[index], block_size, filled);
            runner.boundary = small((index + 1) * block_size);
            return Room::Found;
        }
    }

    /// Whether the next token of a decode takes a block: at a block's end, or in one that must be copied first.
    pub(crate) fn needs_block(&self, row: u32) -> bool {
        let runner = self.state.rows.at(row);
        let lacks_block = runner.scheduled as usize == runner.blocks as usize * self.state.cache.block_size();
        lacks_block || matches!(self.tail(row), Tail::Copy(_))
    }

    /// What must happen to the last block of a row before its next token.
    fn tail(&self, row: u32) -> Tail {
        let Runner { seq, scheduled, shares_tail, .. } = *self.state.rows.at(row);
        if !shares_tail {
            return Tail::Writable;
        }
        let block_size = self.state.cache.block_size();
        let (index, filled) = (scheduled as usize / block_size, scheduled as usize % block_size);
        let block = self.state.sequences.live(seq).table.blocks()[index];
        let tail = self.state.cache.tail(block, filled, &Pending::default());
        tail.unwrap_or_else(|_| unreachable!("a block that waits for its copy is named by one table"))
    }

    /// Sees to it that `count` blocks are available for the row at `at` in the order, preempting those at it and behind it.
    pub(crate) fn find_blocks(&mut self, at: usize, count: usize) -> Room {
        while self.state.cache.available() < count {
            match self.make_room(at, count) {
                Room::Found => {}
                short => return short,
            }
        }
        Room::Found
    }

    /// One move towards `count` available blocks for the row at `at`, which are short. `Found` when there may be enough now.
    fn make_room(&mut self, at: usize, count: usize) -> Room {
        debug_assert!(self.state.cache.available() < count, "blocks are short");
        if self.state.cache.coming() > self.num_waiting {
            self.num_waiting += 1;
            return Room::Later;
        }
        let place = self.victim(at);
        let row = self.state.rows.order[place];
        if self.state.rows.order.len() == 1 {
            if self.let_twins_go(row) {
                return Room::Found;
            }
            if self.state.rows.at(row).in_plans > 0 {
                return Room::Later;
            }
            self.state.rows.order.clear();
            self.state.expire(row);
            self.state.forget_merges();
            return Room::Gone;
        }
        self.state.rows.order.remove(place);
        self.preempt(row);
        if place == at { Room::Gone } else { Room::Found }
    }

    /// The row's sequence is alone and cannot grow: the blocks that it holds for being equal to its own go, and it publishes
    /// nothing any more. False when there are none.
    fn let_twins_go(&mut self, row: u32) -> bool {
        let runner = self.state.rows.at_mut(row);
        let table = &mut self.state.sequences.live_mut(runner.seq).table;
        if table.twins().is_empty() {
            return false;
        }
        self.state.cache.abandon_twins(table);
        runner.publishes = false;
        true
    }

    /// Who of those from `at` on in the order loses its blocks; of equals the later one.
    fn victim(&self, at: usize) -> usize {
        let State { rows, sequences, limits, .. } = &*self.state;
        let candidates = at..rows.order.len();
        let victim = match limits.victim {
            Victim::Latest => candidates.last(),
            Victim::LeastComputed => candidates.rev().min_by_key(|&place| rows.at(rows.order[place]).computed),
            Victim::LowestClass => candidates.max_by(|&a, &b| {
                let class = |place: usize| sequences.live(rows.at(rows.order[place]).seq).rank.class;
                class(a).total_cmp(&class(b))
            }),
        };
        victim.unwrap_or_else(|| unreachable!("the requester is in the order"))
    }

    /// Takes everything from the row, which the caller takes out of the order, its part in this plan included, and puts its
    /// sequence back into the queue.
    pub(crate) fn preempt(&mut self, row: u32) {
        let placed = self.decision.placed.iter_mut().rev().find(|placed| placed.row == row && placed.num_tokens > 0);
        if let Some(placed) = placed {
            let runner = self.state.rows.at_mut(row);
            runner.in_plans -= 1;
            self.budget += placed.num_tokens as usize;
            self.decision.num_samples -= placed.num_samples as usize;
            self.decision.num_unknown -= usize::from(placed.start >= runner.known);
            placed.num_tokens = 0;
        }
        self.decision.grown.retain(|&(other, _)| other != row);
        self.decision.replaced.retain(|&(other, _)| other != row);
        let seq = self.state.preempt(row);
        self.state.forget_merges();
        self.decision.preempted.push(seq);
        if self.state.is_too_long(seq) {
            self.state.queue.remove(seq);
            self.state.end_now(seq);
        }
    }
}

/// Who joined since the last plan: told with those whom this one admits, and their tables in full.
fn list_joined(state: &mut State, decision: &mut Decision) {
    let mut joined = std::mem::take(&mut state.news.joined);
    joined.append(&mut decision.admitted);
    decision.admitted = joined;
    for at in 0..state.rows.order.len() {
        let row = state.rows.order[at];
        let runner = state.rows.at_mut(row);
        if runner.announced == 0 && runner.blocks > 0 {
            decision.grown.push((row, 0));
            runner.announced = runner.blocks;
        }
    }
}

/// Who samples where a request's prompt is completed.
fn list_families(state: &State, decision: &mut Decision) {
    let Decision { placed, families, num_decodes, .. } = decision;
    for placed in placed[*num_decodes..].iter().filter(|placed| placed.leads && placed.num_samples > 0) {
        families.extend(state.unended(state.sequences.live(placed.seq).request));
    }
}
