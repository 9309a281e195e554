//! Phase 4 of a step: who joins the batch, and whom a strictly better request may push out for it.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::{Batching, Policy};
use crate::ids::SequenceId;
use crate::sched::pass::{Pass, Share};
use crate::sched::rank::Rank;
use crate::sched::request::{Sequence, Status, make_room, quiet_until};
use crate::sched::rows::{Runner, small};
use crate::sched::state::State;
use crate::table::blocks_for;

/// What the queue's head needs to join.
struct Need {
    /// Rows: one for each sequence that it stands for.
    rows: usize,
    /// Tokens that it lacks behind its hit.
    lacking: usize,
    /// Blocks that it lacks behind its hit.
    blocks: usize,
    /// Blocks of its hit.
    hit: usize,
    rank: Rank,
}

impl Pass<'_> {
    /// Candidates in queue order, each whole or not at all; the first that does not fit holds the queue.
    pub(crate) fn admit(&mut self, share: Share) {
        let is_plain = self.num_prompts == 0 && !self.keeps_for_decodes();
        let (mut kept, mut incomplete) = if is_plain { (0, 0) } else { self.count_incomplete() };
        let mut newcomers = 0;
        let mut made_room = false;
        // Without a free row, and nobody to push out, the head need not even be looked up.
        while self.budget > 0 && (self.state.rows.num_free() > 0 || self.may_push_out()) {
            let Some(seq) = self.state.queue.peek() else { return };
            if self.state.sequences.live(seq).in_plans > 0 {
                return;
            }
            let need = self.need(seq);
            let chunk = need.lacking.min(self.budget).min(self.prompt_cap);
            let stays_incomplete = chunk < need.lacking;
            let may_join = match share {
                Share::Chunks => !stays_incomplete || incomplete < self.state.limits.max_partial_prefills,
                Share::Whole | Share::WholeAlone => !stays_incomplete,
            };
            if !may_join {
                return;
            }
            if !self.fits(&need, kept) {
                // What was taken from others may still be guarded by a step in flight: the head comes a step later.
                if made_room || !self.push_out(&need, kept, newcomers) {
                    return;
                }
                made_room = true;
                // Whoever was pushed out gave tokens back, and may have been incomplete.
                (kept, incomplete) = self.count_incomplete();
                continue;
            }
            made_room = false;
            let row = self.seat(seq, need.rows);
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
            self.place_chunk(row, chunk);
            if share == Share::WholeAlone {
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
        let rows = if self.state.leads(seq) { self.state.unended(sequence.request).count() } else { 1 };
        Need {
            rows,
            lacking: known - hit * cache.block_size(),
            blocks: blocks_for(known, cache.block_size()).max(worst_blocks) - hit,
            hit,
            rank: sequence.rank,
        }
    }

    /// Whether there are rows, and room for all of it beside the `kept` blocks that admitted prompts still lack.
    fn fits(&self, need: &Need, kept: usize) -> bool {
        let State { cache, rows, look_up, .. } = &*self.state;
        let claimed = cache.num_evictable(&look_up.hits.blocks);
        self.fits_into(need, kept + claimed, rows.num_free(), cache.available())
    }

    /// Whether it fits as soon as the plans that are out were committed.
    fn will_fit(&self, need: &Need, kept: usize) -> bool {
        let State { cache, rows, look_up, .. } = &*self.state;
        let claimed = cache.num_unheld(&look_up.hits.blocks);
        let (num_rows, num_blocks) = (rows.num_free() + rows.num_cooling(), cache.available() + cache.coming());
        self.fits_into(need, kept + claimed, num_rows, num_blocks)
    }

    fn fits_into(&self, need: &Need, kept: usize, num_rows: usize, num_blocks: usize) -> bool {
        let State { rows, limits, .. } = &*self.state;
        let watermark = if rows.order.is_empty() { 0 } else { limits.watermark };
        need.rows <= num_rows && need.blocks + kept + watermark <= num_blocks
    }

    /// Preempts as few running sequences of strictly worse classes as it takes for the head to fit, last in order first;
    /// false, with nothing changed, when all of them do not suffice, or when nobody needs to go because plans out keep what
    /// it lacks. The last `newcomers` joined in this step and stay.
    fn push_out(&mut self, need: &Need, kept: usize, newcomers: usize) -> bool {
        if !self.may_push_out() || self.will_fit(need, kept) {
            return false;
        }
        let Some(victims) = self.choose_victims(need, newcomers) else { return false };
        for row in victims {
            self.preempt(row);
        }
        self.state.rows.close_gaps();
        true
    }

    /// Whether the policy lets a strictly better request preempt.
    fn may_push_out(&self) -> bool {
        matches!(self.state.limits.policy, Policy::Priority | Policy::Edf)
    }

    fn choose_victims(&self, need: &Need, newcomers: usize) -> Option<Vec<u32>> {
        let State { cache, rows, sequences, limits, look_up, .. } = &*self.state;
        let seated = self.decision.placed.iter().rev().filter(|placed| placed.num_tokens > 0).take(newcomers);
        let seated: BTreeSet<u32> = seated.map(|placed| placed.row).collect();
        // Who stands before the head would, by aging, come back before it.
        let is_worse = |row: u32| {
            let rank = sequences.live(rows.at(row).seq).rank;
            rank.class > need.rank.class && rank > need.rank
        };
        let (mut freed, mut num_rows) = (0, rows.num_free() + rows.num_cooling());
        let coming = cache.available() + cache.coming();
        // What all of them could give at most, before anybody's blocks are counted.
        let (mut most_rows, mut most_blocks) = (num_rows, coming);
        let is_short = |rows: usize, blocks: usize| need.rows > rows || need.blocks > blocks;
        for &row in rows.order.iter().rev().filter(|&&row| is_worse(row)) {
            if !is_short(most_rows, most_blocks) {
                break;
            }
            let table = &sequences.live(rows.at(row).seq).table;
            most_rows += self.rows_of(row);
            // A copy's source may go with its target.
            most_blocks += 2 * table.len() + table.twins().len();
        }
        if is_short(most_rows, most_blocks) {
            return None;
        }
        let partly = self.partly_placed();
        let lack = |row: u32| {
            let prompt = if partly.contains(&row) { self.missing(row) } else { self.lack(row) };
            prompt + self.decode_needs(row)
        };
        let mut kept: usize = rows.order.iter().map(|&row| lack(row)).sum();
        let mut dropped = BTreeMap::new();
        let mut victims = Vec::new();
        for &row in rows.order.iter().rev().filter(|&&row| is_worse(row) && !seated.contains(&row)) {
            victims.push(row);
            kept -= lack(row);
            num_rows += self.rows_of(row);
            let table = &sequences.live(rows.at(row).seq).table;
            // A copy that this plan made for the row goes with it.
            let sources = table.blocks().iter().filter_map(|&block| cache.copies().owed_to(block)).map(|op| op.src);
            for block in table.held().chain(sources) {
                let gone = dropped.entry(block).or_insert(0);
                *gone += 1;
                freed += usize::from(*gone == cache.pool().slots().count(block));
            }
            let is_gone = |block| dropped.get(block).is_some_and(|&gone| gone == cache.pool().slots().count(*block));
            let claimed = look_up.hits.blocks.iter().filter(|block| is_gone(block)).count();
            let claimed = claimed + cache.num_unheld(&look_up.hits.blocks);
            let watermark = if victims.len() == rows.order.len() { 0 } else { limits.watermark };
            if need.rows <= num_rows && need.blocks + kept + watermark + claimed <= coming + freed {
                return Some(victims);
            }
        }
        None
    }

    /// The blocks that a prompt in progress still lacks; 0 for any other row.
    fn lack(&self, row: u32) -> usize {
        if self.state.rows.at(row).is_prompt() { self.missing(row) } else { 0 }
    }

    /// Where a prompt goes before the decodes, and what it loses to them comes back a step later only, it would be admitted
    /// and preempted for ever if it took the blocks that they need.
    fn keeps_for_decodes(&self) -> bool {
        self.state.limits.batching == Batching::Continuous && self.state.limits.inflight_steps > 1
    }

    /// The block that a decode needs in its next step, where it is kept.
    fn decode_needs(&self, row: u32) -> usize {
        let runner = self.state.rows.at(row);
        usize::from(self.keeps_for_decodes() && runner.may_decode() && self.needs_block(row))
    }

    fn missing(&self, row: u32) -> usize {
        let runner = self.state.rows.at(row);
        let target = runner.target(self.state.cache.block_size(), self.state.limits.is_worst_case());
        target.saturating_sub(runner.blocks as usize)
    }

    /// Prompts of this plan that it leaves one token of, and that will go on as decodes.
    fn partly_placed(&self) -> BTreeSet<u32> {
        let prompts = self.decision.placed[self.decision.num_decodes..].iter().filter(|placed| placed.num_tokens > 0);
        let left = prompts.filter(|placed| {
            let runner = self.state.rows.at(placed.row);
            placed.start + placed.num_tokens < runner.known && !runner.is_prompt()
        });
        left.map(|placed| placed.row).collect()
    }

    /// The rows that go with a row: those of the sequences that its own stands for.
    fn rows_of(&self, row: u32) -> usize {
        let runner = self.state.rows.at(row);
        let request = self.state.sequences.live(runner.seq).request;
        if runner.leads { self.state.unended(request).count() } else { 1 }
    }

    /// The blocks that prompts in the batch still lack, and how many of them this plan leaves incomplete.
    fn count_incomplete(&self) -> (usize, usize) {
        let State { rows, .. } = &*self.state;
        let prompts = rows.order.iter().copied().filter(|&row| rows.at(row).is_prompt());
        let prompts = prompts.chain(self.partly_placed());
        let decodes: usize = rows.order.iter().map(|&row| self.decode_needs(row)).sum();
        prompts.fold((decodes, 0), |(kept, incomplete), row| (kept + self.missing(row), incomplete + 1))
    }

    /// Looks up the queue's head, unless that was done and the findable blocks are the same.
    fn look_up(&mut self, seq: SequenceId) {
        let State { cache, sequences, look_up, .. } = &mut *self.state;
        let of = Some((seq, sequences.live(seq).tokens.len(), cache.prefix().version()));
        if look_up.of == of {
            return;
        }
        look_up.of = of;
        let Sequence { tokens, chain, identity, use_cache, .. } = sequences.live_mut(seq);
        let limit = if *use_cache { cache.hit_limit(tokens.len()) } else { 0 };
        cache.look_up(chain, tokens, identity, limit, &mut look_up.hits);
    }

    /// Moves the queue's head, whose hit was looked up, into the batch; claims the hit, and `num_rows` rows.
    fn seat(&mut self, seq: SequenceId, num_rows: usize) -> u32 {
        let (place, leads) = (self.state.place_in_order(seq), self.state.leads(seq));
        let State { cache, sequences, queue, rows, look_up, counters, limits, .. } = &mut *self.state;
        queue.remove(seq);
        look_up.of = None;
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
        let row = rows.reserve();
        rows.insert(row, runner_of(seq, sequence, computed, publishes, leads), place);
        sequence.status = Status::Running(row);
        if num_rows > 1 {
            self.seat_followers(seq);
        }
        row
    }

    /// Keeps a row for each of those that `seq` stands for.
    fn seat_followers(&mut self, seq: SequenceId) {
        let request = self.state.sequences.live(seq).request;
        let followers: Vec<SequenceId> = self.state.unended(request).filter(|&other| other != seq).collect();
        for follower in followers {
            let row = self.state.rows.reserve();
            self.state.sequences.live_mut(follower).status = Status::Following(Some(row));
        }
    }
}

fn runner_of(seq: SequenceId, sequence: &Sequence, computed: usize, publishes: bool, leads: bool) -> Runner {
    Runner {
        seq,
        slot: 0,
        computed: small(computed),
        scheduled: small(computed),
        known: small(sequence.tokens.len()),
        blocks: small(sequence.table.len()),
        announced: 0,
        prompt_len: small(sequence.prompt_len),
        max_len: small(sequence.max_len),
        quiet_until: quiet_until(sequence, computed),
        boundary: small(computed),
        last_token: sequence.tokens.last().copied().unwrap_or(0),
        pending: 0,
        in_plans: 0,
        publishes,
        recomputes: sequence.high_water > computed,
        ended: false,
        leads,
        shares_tail: false,
    }
}
