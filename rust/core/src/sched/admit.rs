//! Phase 4 of a step: who joins the batch, and whom a strictly better request may push out for it.

use std::collections::BTreeMap;

use crate::config::Policy;
use crate::ids::SequenceId;
use crate::sched::pass::Pass;
use crate::sched::request::{Sequence, Status};
use crate::sched::rows::{Runner, small};
use crate::sched::state::State;
use crate::table::blocks_for;

/// How much of a prompt a step may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// What the budget leaves.
    Chunks,
    /// All of it, or nothing.
    Whole,
    /// All of one, and of nobody else.
    WholeAlone,
}

/// What the queue's head needs to join.
struct Need {
    /// Tokens that it lacks behind its hit.
    lacking: usize,
    /// Blocks that it lacks behind its hit.
    blocks: usize,
    /// Blocks of its hit.
    hit: usize,
    /// Its class.
    class: f64,
}

impl Pass<'_> {
    /// Candidates in queue order, each whole or not at all; the first that does not fit holds the queue.
    pub(crate) fn admit(&mut self, admission: Admission) {
        let (mut kept, mut incomplete) = if self.num_prompts > 0 { self.count_incomplete() } else { (0, 0) };
        let mut newcomers = 0;
        let mut made_room_for = None;
        // Without a free row, and nobody to push out, the head need not even be looked up.
        while self.budget > 0 && (self.state.rows.has_free() || self.may_push_out()) {
            let Some(seq) = made_room_for.take().or_else(|| self.state.queue.peek()) else { return };
            let need = self.need(seq);
            let chunk = need.lacking.min(self.budget).min(self.prompt_cap);
            let stays_incomplete = chunk < need.lacking;
            let may_join = match admission {
                Admission::Chunks => !stays_incomplete || incomplete < self.state.limits.max_partial_prefills,
                Admission::Whole | Admission::WholeAlone => !stays_incomplete,
            };
            if !may_join {
                return;
            }
            if !self.fits(&need, kept) {
                if !self.push_out(&need, newcomers) {
                    return;
                }
                // Whoever was pushed out gave tokens back, may have been incomplete, and may by aging be the head now.
                made_room_for = Some(seq);
                (kept, incomplete) = self.count_incomplete();
                continue;
            }
            let row = self.seat(seq);
            newcomers += 1;
            let block_size = self.state.cache.block_size();
            let blocks = if self.state.limits.is_worst_case() {
                need.blocks
            } else {
                blocks_for(need.hit * block_size + chunk, block_size) - need.hit
            };
            self.grow(row, blocks);
            kept += need.blocks - blocks;
            incomplete += usize::from(stays_incomplete);
            self.place(row, chunk);
            if admission == Admission::WholeAlone {
                return;
            }
        }
    }

    /// What `seq`, the queue's head, needs, its hit looked up.
    fn need(&mut self, seq: SequenceId) -> Need {
        self.look_up(seq);
        let State { cache, sequences, limits, look_up, .. } = &*self.state;
        let sequence = sequences.live(seq);
        let (hit, known) = (look_up.hits.blocks.len(), sequence.tokens.len());
        let worst_blocks = limits.worst_blocks(sequence, cache.block_size());
        Need {
            lacking: known - hit * cache.block_size(),
            blocks: blocks_for(known, cache.block_size()).max(worst_blocks) - hit,
            hit,
            class: sequence.rank.class,
        }
    }

    /// Whether there is a row, and room for all of it beside the `kept` blocks that admitted prompts still lack.
    fn fits(&self, need: &Need, kept: usize) -> bool {
        let State { cache, rows, limits, look_up, .. } = &*self.state;
        let watermark = if rows.order.is_empty() { 0 } else { limits.watermark };
        let claimed = cache.num_unheld(&look_up.hits.blocks);
        rows.has_free() && need.blocks + kept + watermark + claimed <= cache.available()
    }

    /// Preempts as few running sequences of strictly worse classes as it takes for the head to fit, last in order first;
    /// false, with nothing changed, when all of them do not suffice. The last `newcomers` joined in this step and stay.
    fn push_out(&mut self, need: &Need, newcomers: usize) -> bool {
        if !self.may_push_out() {
            return false;
        }
        let Some(victims) = self.choose_victims(need, newcomers) else { return false };
        for row in victims {
            self.state.rows.order.retain(|&other| other != row);
            self.preempt(row);
        }
        true
    }

    /// Whether the policy lets a strictly better request preempt.
    fn may_push_out(&self) -> bool {
        matches!(self.state.limits.policy, Policy::Priority | Policy::Edf)
    }

    fn choose_victims(&self, need: &Need, newcomers: usize) -> Option<Vec<u32>> {
        let State { cache, rows, sequences, limits, look_up, .. } = &*self.state;
        let seated = self.decision.placed.iter().rev().filter(|placed| placed.num_tokens > 0).take(newcomers);
        let seated: Vec<u32> = seated.map(|placed| placed.row).collect();
        let block_size = cache.block_size();
        let lack = |row: u32| {
            let runner = rows.at(row);
            if runner.is_decode() { 0 } else { runner.target(block_size) - runner.blocks as usize }
        };
        let mut kept: usize = rows.order.iter().map(|&row| lack(row)).sum();
        let mut dropped = BTreeMap::new();
        let mut freed = 0;
        let mut victims = Vec::new();
        let is_worse = |row: u32| sequences.live(rows.at(row).seq).rank.class > need.class;
        for &row in rows.order.iter().rev().filter(|&&row| is_worse(row) && !seated.contains(&row)) {
            victims.push(row);
            kept -= lack(row);
            for &block in sequences.live(rows.at(row).seq).table.blocks() {
                let gone = dropped.entry(block).or_insert(0);
                *gone += 1;
                freed += usize::from(*gone == cache.pool().slots().count(block));
            }
            let is_gone = |block| dropped.get(block).is_some_and(|&gone| gone == cache.pool().slots().count(*block));
            let claimed = look_up.hits.blocks.iter().filter(|block| is_gone(block)).count();
            let claimed = claimed + cache.num_unheld(&look_up.hits.blocks);
            let watermark = if victims.len() == rows.order.len() { 0 } else { limits.watermark };
            if need.blocks + kept + watermark + claimed <= cache.available() + freed {
                return Some(victims);
            }
        }
        None
    }

    /// The blocks that prompts in the batch still lack, and how many of them this plan leaves incomplete.
    fn count_incomplete(&self) -> (usize, usize) {
        let block_size = self.state.cache.block_size();
        let (mut kept, mut incomplete) = (0, 0);
        for runner in self.state.rows.in_order().filter(|runner| !runner.is_decode()) {
            kept += runner.target(block_size) - runner.blocks as usize;
            incomplete += 1;
        }
        for placed in self.decision.placed.iter().filter(|placed| placed.num_tokens > 0) {
            let runner = self.state.rows.at(placed.row);
            incomplete -= usize::from(!runner.is_decode() && placed.start + placed.num_tokens == runner.known);
        }
        (kept, incomplete)
    }

    /// Looks up the queue's head, unless that was done and the findable blocks are the same.
    fn look_up(&mut self, seq: SequenceId) {
        let State { cache, sequences, look_up, .. } = &mut *self.state;
        let version = cache.prefix().version();
        if look_up.of == Some((seq, version)) {
            return;
        }
        look_up.of = Some((seq, version));
        let Sequence { tokens, chain, identity, use_cache, .. } = sequences.live_mut(seq);
        let limit = if *use_cache { cache.hit_limit(tokens.len()) } else { 0 };
        cache.look_up(chain, tokens, identity, limit, &mut look_up.hits);
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
        let worst_blocks = limits.worst_blocks(sequence, cache.block_size());
        let runner = Runner { worst_blocks: small(worst_blocks), ..runner_of(seq, sequence, computed, publishes) };
        let row = rows.insert(runner, place);
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
        worst_blocks: 0,
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
