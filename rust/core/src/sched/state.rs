//! Everything a scheduler holds, and the changes that more than one phase makes.

use std::collections::VecDeque;

use crate::arena::Arena;
use crate::cache::Cache;
use crate::config::{Batching, Limits, SchedulerConfig};
use crate::error::Error;
use crate::ids::{Handle, RequestId, SequenceId};
use crate::pins::Pins;
use crate::prefix::Hits;
use crate::sched::decision::{Decision, Placed};
use crate::sched::outcome::Reason;
use crate::sched::queue::Queue;
use crate::sched::request::{Family, Sequence, Status};
use crate::sched::rows::Rows;
use crate::sched::stats::Counters;
use crate::table::blocks_for;

/// What the next plan has to tell about what happened since the last one.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Who joined the batch in a commit, or took over the row of another sequence of its request.
    pub(crate) joined: Vec<SequenceId>,
    pub(crate) preempted: Vec<SequenceId>,
    pub(crate) ended: Vec<SequenceId>,
    pub(crate) vacated: Vec<u32>,
    /// Of rows that have not changed hands since: row, index.
    pub(crate) merged: Vec<(u32, u32)>,
}

/// An end that no outcome has told yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub(crate) end: End,
    pub(crate) reason: Reason,
}

/// The end of a sequence in one of its turns: void when it was extended since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) seq: SequenceId,
    pub(crate) turn: u32,
}

/// Where the ends of sequences are on their way (CONTRACT §3.1).
///
/// ```text
///   end ─▶ to_release ─ step ─▶ blocks and row are free, told by the plan
///    └───▶ to_report ─ commit ─▶ told by the outcome ─▶ reported ─ step ─▶ the handle is stale
/// ```
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub(crate) to_release: Vec<End>,
    pub(crate) to_report: Vec<Report>,
    pub(crate) reported: Vec<End>,
}

/// The last look-up of a queue's head that did not fit: it holds while the findable blocks, and the tokens that it knows, are
/// the same.
#[derive(Debug, Default)]
pub(crate) struct LookUp {
    /// Who, how many tokens it knew, and the version of the index.
    pub(crate) of: Option<(SequenceId, usize, u64)>,
    pub(crate) hits: Hits,
}

/// The state of a scheduler.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) limits: Limits,
    pub(crate) cache: Cache,
    pub(crate) pins: Pins,
    pub(crate) requests: Arena<RequestId, Family>,
    pub(crate) sequences: Arena<SequenceId, Sequence>,
    pub(crate) queue: Queue,
    pub(crate) rows: Rows,
    pub(crate) ends: Ends,
    pub(crate) news: News,
    pub(crate) look_up: LookUp,
    /// Sequences that wait for `set_ready`.
    pub(crate) num_not_ready: usize,
    /// Plans that are out, oldest first.
    pub(crate) out: VecDeque<Decision>,
    /// Decisions whose memory is used again.
    pub(crate) spare: Vec<Decision>,
    /// The newest `now`.
    pub(crate) now: Option<f64>,
    /// Counts the calls of `add`.
    pub(crate) added: u64,
    pub(crate) counters: Counters,
}

impl State {
    pub(crate) fn new(config: &SchedulerConfig) -> Result<Self, Error> {
        let limits = config.check()?;
        let cache = Cache::new(config.cache.check()?)?;
        Ok(Self {
            limits,
            cache,
            pins: Pins::default(),
            requests: Arena::new(),
            sequences: Arena::new(),
            queue: Queue::default(),
            num_not_ready: 0,
            rows: Rows::new(limits.max_num_seqs),
            ends: Ends::default(),
            news: News::default(),
            look_up: LookUp::default(),
            out: VecDeque::new(),
            spare: Vec::new(),
            now: None,
            added: 0,
            counters: Counters::default(),
        })
    }

    /// The sequences that a handle names and that are not forgotten, in their order.
    pub(crate) fn members(&self, handle: Handle) -> Result<Vec<SequenceId>, Error> {
        match handle {
            Handle::Request(request) => {
                let all = self.requests.get(request)?.sequences.iter().copied();
                Ok(all.filter(|&seq| self.sequences.get(seq).is_ok()).collect())
            }
            Handle::Sequence(seq) => self.sequences.get(seq).map(|_| vec![seq]),
        }
    }

    /// The sequences of a request that have not ended, in their order.
    pub(crate) fn unended(&self, request: RequestId) -> impl Iterator<Item = SequenceId> {
        let all = self.requests.live(request).sequences.iter().copied();
        all.filter(|&seq| self.sequences.get(seq).is_ok_and(|sequence| !sequence.has_ended()))
    }

    /// Whether `seq` stands for other sequences of its request as well.
    pub(crate) fn leads(&self, seq: SequenceId) -> bool {
        let family = self.requests.live(self.sequences.live(seq).request);
        family.sequences.len() > 1 && !family.forked
    }

    /// Ends a sequence that has not ended: it is reported by the next outcome and released by the next step.
    pub(crate) fn end(&mut self, seq: SequenceId, reason: Reason) {
        let sequence = self.sequences.live(seq);
        if sequence.has_ended() {
            return;
        }
        let row = match self.heir(seq) {
            Some(heir) => self.hand_over(seq, heir),
            None => self.leave(seq),
        };
        let sequence = self.sequences.live_mut(seq);
        sequence.status = Status::Ended { reason, row };
        let end = End { seq, turn: sequence.turn };
        self.ends.to_release.push(end);
        self.ends.to_report.push(Report { end, reason });
        self.counters.finished += 1;
    }

    /// Who takes over from `seq` if it ends now: the next one that it stands for.
    fn heir(&mut self, seq: SequenceId) -> Option<SequenceId> {
        let sequence = self.sequences.live(seq);
        if matches!(sequence.status, Status::Following(_)) || !self.leads(seq) {
            return None;
        }
        let (sequences, family) = (&self.sequences, self.requests.live_mut(sequence.request));
        let is_heir = |other: SequenceId| other != seq && sequences.get(other).is_ok_and(|other| !other.has_ended());
        // Whoever stands before the leader has ended: they are not walked past again.
        let mut others = family.sequences.iter().copied().enumerate().skip(family.leader);
        let (place, heir) = others.find(|&(_, other)| is_heir(other))?;
        family.leader = place;
        Some(heir)
    }

    /// Takes `seq` out of where it stands; returns the row that it keeps until the next step.
    fn leave(&mut self, seq: SequenceId) -> Option<u32> {
        match self.sequences.live(seq).status {
            Status::Waiting => {
                self.queue.remove(seq);
                None
            }
            Status::NotReady => {
                self.num_not_ready -= 1;
                None
            }
            Status::Running(row) => {
                self.settle(row);
                let runner = self.rows.at_mut(row);
                (runner.ended, runner.quiet_until) = (true, 0);
                Some(row)
            }
            Status::Following(row) | Status::Ended { row, .. } => row,
        }
    }

    /// `heir` takes over what `seq` has: its place, prompt, row and table. Returns the row that was kept for `heir`.
    fn hand_over(&mut self, seq: SequenceId, heir: SequenceId) -> Option<u32> {
        let sequence = self.sequences.live_mut(seq);
        let status = sequence.status;
        let (table, chain) = (std::mem::take(&mut sequence.table), std::mem::take(&mut sequence.chain));
        let tokens = std::mem::take(&mut sequence.tokens);
        let high_water = sequence.high_water;
        let in_plans = std::mem::take(&mut sequence.in_plans);
        let next = self.sequences.live_mut(heir);
        let kept = if let Status::Following(row) = next.status { row } else { None };
        (next.status, next.table, next.chain, next.tokens) = (status, table, chain, tokens);
        (next.high_water, next.in_plans) = (high_water, in_plans);
        match status {
            Status::Waiting => {
                self.queue.remove(seq);
                self.put_into_queue(heir);
            }
            Status::Running(row) => {
                next.was_admitted = true;
                self.rows.at_mut(row).seq = heir;
                self.news.joined.push(heir);
            }
            Status::NotReady | Status::Following(_) | Status::Ended { .. } => {}
        }
        let is_named = in_plans > 0 || matches!(status, Status::Running(row) if self.rows.at(row).in_plans > 0);
        let placed = self.out.iter_mut().filter(|_| is_named).flat_map(|plan| &mut plan.placed);
        placed.filter(|placed| placed.seq == seq).for_each(|placed| placed.seq = heir);
        kept
    }

    /// Gives the tokens that a row keeps for its sequence to it.
    pub(crate) fn settle(&mut self, row: u32) {
        let tokens = &mut self.sequences.live_mut(self.rows.at(row).seq).tokens;
        tokens.extend(self.rows.fresh(row, tokens.len()));
    }

    /// Prompt and accepted outputs of a sequence. Before the fork only the one that stands for the others has the prompt.
    pub(crate) fn tokens(&self, seq: SequenceId) -> Result<Vec<i32>, Error> {
        let sequence = self.sequences.get(seq)?;
        if sequence.tokens.is_empty() {
            let family = self.requests.live(sequence.request);
            let holder = self.sequences.get(family.sequences[family.leader])?;
            return Ok(holder.tokens[..sequence.prompt_len].to_vec());
        }
        let mut tokens = sequence.tokens.clone();
        if let Status::Running(row) = sequence.status {
            tokens.extend(self.rows.fresh(row, tokens.len()));
        }
        Ok(tokens)
    }

    /// Puts a sequence that waits into the queue, at its place in the order.
    pub(crate) fn put_into_queue(&mut self, seq: SequenceId) {
        let sequence = self.sequences.live_mut(seq);
        sequence.status = Status::Waiting;
        sequence.rank = self.limits.rank(sequence);
        self.queue.push(sequence.rank, seq);
    }

    /// Where somebody of this rank stands in the order of the batch.
    pub(crate) fn place_in_order(&self, seq: SequenceId) -> usize {
        let (rows, sequences) = (&self.rows, &self.sequences);
        let rank = sequences.live(seq).rank;
        let rank_of = |row: u32| sequences.live(rows.at(row).seq).rank;
        match rows.order.last() {
            Some(&last) if rank < rank_of(last) => rows.order.partition_point(|&row| rank_of(row) < rank),
            _ => rows.order.len(),
        }
    }

    /// Takes row and blocks from a running sequence, whose row the caller takes out of the order, and puts it back into
    /// the queue; with it go the rows of those that it stands for.
    pub(crate) fn preempt(&mut self, row: u32) -> SequenceId {
        let runner = *self.rows.at(row);
        let seq = runner.seq;
        if runner.leads {
            self.take_rows_of_followers(seq);
        }
        self.settle(row);
        self.evacuate(seq, row);
        let sequence = self.sequences.live_mut(seq);
        sequence.high_water = sequence.high_water.max(runner.computed as usize);
        sequence.in_plans = runner.in_plans;
        self.counters.preemptions += 1;
        self.put_into_queue(seq);
        seq
    }

    /// Ends with `capacity`, in a step, whom the row stands for; the caller takes the row out of the order.
    pub(crate) fn expire(&mut self, row: u32) {
        let runner = *self.rows.at(row);
        let request = self.sequences.live(runner.seq).request;
        let all = if runner.leads { self.unended(request).collect() } else { vec![runner.seq] };
        if runner.leads {
            self.take_rows_of_followers(runner.seq);
        }
        self.settle(row);
        self.evacuate(runner.seq, row);
        for seq in all {
            self.end_now(seq);
        }
    }

    fn take_rows_of_followers(&mut self, seq: SequenceId) {
        let followers: Vec<SequenceId> = self.unended(self.sequences.live(seq).request).collect();
        for follower in followers {
            if let Status::Following(kept @ Some(_)) = &mut self.sequences.live_mut(follower).status
                && let Some(row) = kept.take()
            {
                self.rows.vacate(row);
            }
        }
    }

    /// Whether a sequence waits for nothing: it knows more tokens than the memory holds, and no plan out names it.
    pub(crate) fn is_too_long(&self, seq: SequenceId) -> bool {
        let Ok(sequence) = self.sequences.get(seq) else { return false };
        let blocks = blocks_for(sequence.tokens.len(), self.cache.block_size());
        sequence.status == Status::Waiting && sequence.in_plans == 0 && blocks > self.cache.usable()
    }

    /// Ends with `capacity`, outside a step, a sequence that waits for nothing.
    pub(crate) fn end_if_too_long(&mut self, seq: SequenceId) {
        if self.is_too_long(seq) {
            self.end(seq, Reason::Capacity);
        }
    }

    /// A plan that names a row in which nobody runs any more is not out any more.
    pub(crate) fn unname(&mut self, placed: &Placed) {
        self.rows.cool(placed.row);
        if let Ok(sequence) = self.sequences.get_mut(placed.seq) {
            sequence.in_plans = sequence.in_plans.saturating_sub(1);
        }
    }

    /// Ends with `capacity`, in a step, a sequence that has neither row nor blocks nor a place in the queue any more.
    pub(crate) fn end_now(&mut self, seq: SequenceId) {
        let reason = Reason::Capacity;
        let sequence = self.sequences.live_mut(seq);
        (sequence.status, sequence.released) = (Status::Ended { reason, row: None }, true);
        self.ends.to_report.push(Report { end: End { seq, turn: sequence.turn }, reason });
        self.news.ended.push(seq);
        self.counters.finished += 1;
    }

    /// Frees the blocks of a sequence and its row, which the caller takes out of the order, and whose merges it forgets.
    /// The row of a finished member of a static batch stays, as padding.
    pub(crate) fn evacuate(&mut self, seq: SequenceId, row: u32) {
        let sequence = self.sequences.live_mut(seq);
        self.cache.shrink(&mut sequence.table, 0);
        let is_member = self.limits.batching == Batching::Static && sequence.has_ended();
        if is_member {
            self.rows.pad(row);
        } else {
            self.rows.vacate(row);
        }
        self.news.vacated.push(row);
    }

    /// Forgets the merges in rows that were vacated, before these are given to others.
    pub(crate) fn forget_merges(&mut self) {
        let rows = &self.rows;
        self.news.merged.retain(|&(row, _)| rows.get(row).is_some());
    }

    /// Forgets the sequences whose end was reported by an outcome, and the requests that none are left of.
    pub(crate) fn forget_reported(&mut self) {
        for End { seq, turn } in self.ends.reported.drain(..) {
            if self.sequences.live(seq).turn != turn {
                continue;
            }
            let Ok(sequence) = self.sequences.remove(seq) else { unreachable!("an ended sequence is forgotten once") };
            let family = self.requests.live_mut(sequence.request);
            family.num_alive -= 1;
            if family.num_alive == 0 && self.requests.remove(sequence.request).is_err() {
                unreachable!("a request outlives its sequences");
            }
        }
    }
}
