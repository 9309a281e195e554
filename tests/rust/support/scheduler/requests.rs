//! Calls between the steps: what they do to requests and their sequences.

use octavo_core::Reserve;

use super::super::cache::{Fault, check_tokens};
use super::super::names::Identity;
use super::{End, Ending, Request, SchedulerModel, Sequence, Submitted};

/// What a caller names: a request, or one of all sequences.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    Request(usize),
    Sequence(usize),
}

impl SchedulerModel {
    /// What `add` says to a request, without adding it.
    pub fn accepts(&self, submitted: &Submitted) -> Result<(), Fault> {
        let length = submitted.prompt.len();
        let usable = self.pool().usable();
        let refused = length == 0
            || length >= self.world.max_model_len
            || length.div_ceil(self.world.block_size) > usable
            || submitted.min_tokens > submitted.max_tokens
            || submitted.priority.unsigned_abs() > 1 << 53
            || submitted.n == 0
            || submitted.n > self.world.max_num_seqs
            || (submitted.n > 1 && self.world.reserve == Reserve::WorstCase)
            || self.worst_blocks(self.max_len(length, submitted.max_tokens)) > usable
            || [submitted.arrival, submitted.deadline, submitted.key].iter().flatten().any(|time| !time.is_finite());
        if refused {
            return Err(Fault::Request);
        }
        check_tokens(&submitted.prompt)?;
        check_tokens(&submitted.stop_token_ids)
    }

    fn max_len(&self, length: usize, max_tokens: usize) -> usize {
        length.saturating_add(max_tokens).min(self.world.max_model_len)
    }

    /// The number of the request. Its sequences have the next numbers.
    pub fn add(&mut self, submitted: &Submitted) -> Result<usize, Fault> {
        self.accepts(submitted)?;
        let request = self.requests.len();
        let first = self.sequences.len();
        self.requests.push(Request {
            submitted: submitted.clone(),
            arrival: submitted.arrival.or(self.now),
            members: (first..first + submitted.n).collect(),
            leader: first,
            is_forked: submitted.n == 1,
            is_ready: submitted.ready,
        });
        for _ in 0..submitted.n {
            self.sequences.push(Sequence {
                request,
                known: submitted.prompt.clone(),
                emitted: 0,
                min_tokens: submitted.min_tokens,
                max_len: self.max_len(submitted.prompt.len(), submitted.max_tokens),
                computed: 0,
                scheduled: 0,
                high_water: 0,
                row: None,
                told: 0,
                is_introduced: false,
                queued_with: submitted.prompt.len(),
                end: None,
                is_stale: false,
            });
        }
        Ok(request)
    }

    /// All of them or none; the index of the first that is refused.
    pub fn add_many(&mut self, all: &[Submitted]) -> Result<Vec<usize>, usize> {
        if let Some(index) = all.iter().position(|submitted| self.accepts(submitted).is_err()) {
            return Err(index);
        }
        Ok(all.iter().map(|submitted| self.add(submitted).expect("accepted")).collect())
    }

    /// The sequences of a request, as long as one of them is known.
    pub fn members(&self, request: usize) -> Result<&[usize], Fault> {
        let members = &self.requests.get(request).ok_or(Fault::Unknown)?.members;
        if members.iter().all(|&member| self.sequences[member].is_stale) { Err(Fault::Stale) } else { Ok(members) }
    }

    fn live(&self, seq: usize) -> Result<&Sequence, Fault> {
        match self.sequences.get(seq) {
            None => Err(Fault::Unknown),
            Some(sequence) if sequence.is_stale => Err(Fault::Stale),
            Some(sequence) => Ok(sequence),
        }
    }

    pub fn tokens(&self, seq: usize) -> Result<&[i32], Fault> {
        Ok(&self.live(seq)?.known)
    }

    pub fn set_ready(&mut self, request: usize) -> Result<(), Fault> {
        self.members(request)?;
        if !self.alive_members(request).is_empty() {
            self.requests[request].is_ready = true;
        }
        Ok(())
    }

    // ------------------------------------------------------------------ limits

    /// The blocks that a sequence of at most `max_len` tokens may come to need, if they are reserved for that case.
    fn worst_blocks(&self, max_len: usize) -> usize {
        match self.world.reserve {
            Reserve::OnDemand => 0,
            Reserve::WorstCase => max_len.div_ceil(self.world.block_size),
        }
    }

    /// The blocks that an admission finds for all that a sequence knows, or may know.
    pub(super) fn target(&self, seq: usize) -> usize {
        let state = &self.sequences[seq];
        state.known.len().div_ceil(self.world.block_size).max(self.worst_blocks(state.max_len))
    }

    // ------------------------------------------------------------------ ends

    pub fn end(&mut self, target: Target, ending: Ending) -> Result<(), Fault> {
        let seqs = match target {
            Target::Request(request) => self.members(request)?.to_vec(),
            Target::Sequence(seq) => self.live(seq).map(|_| vec![seq])?,
        };
        for seq in seqs {
            if self.sequences[seq].end.is_none() {
                self.note_end(seq, ending, false);
                self.replace_leader(seq);
            }
        }
        Ok(())
    }

    pub(super) fn note_end(&mut self, seq: usize, ending: Ending, is_applied: bool) {
        self.sequences[seq].end = Some(ending);
        self.counters.finished += 1;
        self.ends.push(End { seq, ending, is_applied, is_reported: false, is_revoked: false });
    }

    /// Before the fork the next member alive takes over from a leader that ended.
    fn replace_leader(&mut self, old: usize) {
        let request = self.sequences[old].request;
        if self.requests[request].is_forked || self.requests[request].leader != old {
            return;
        }
        let Some(&new) = self.alive_members(request).first() else { return };
        self.requests[request].leader = new;
        let (was, reserved) = (self.sequences[old].clone(), self.sequences[new].row);
        let heir = &mut self.sequences[new];
        (heir.computed, heir.scheduled, heir.high_water) = (was.computed, was.scheduled, was.high_water);
        (heir.row, heir.told, heir.queued_with) = (was.row, was.told, was.queued_with);
        // Its own row, which it has no use for, goes with the old leader's end.
        self.sequences[old].row = reserved;
        for (seq, row) in [(new, was.row), (old, reserved)] {
            if let Some(row) = row {
                self.rows[row] = Some(seq);
            }
        }
        self.memory.hand_over(old, new);
        for placed in self.outs.iter_mut().flat_map(|out| &mut out.placed).filter(|placed| placed.seq == old) {
            placed.seq = new;
        }
        for merge in self.merges.iter_mut().filter(|merge| merge.0 == old) {
            merge.0 = new;
        }
        let turn = if was.row.is_some() { "turn: takes over a row" } else { "turn: takes over in the queue" };
        self.turns.add(turn, 1);
        if was.row.is_some() {
            self.join(new);
        }
    }

    /// Gives row and blocks back, the last block first; nothing where there is no row.
    pub(super) fn leave_row(&mut self, seq: usize) {
        if let Some(row) = self.sequences[seq].row.take() {
            self.rows[row] = None;
        }
        if self.memory.table(seq).is_some() {
            self.memory.close(seq);
        }
    }

    // ------------------------------------------------------------------ the next turn

    /// A conversation goes on where it ended.
    pub fn extend(&mut self, request: usize, tokens: &[i32], max_tokens: usize) -> Result<(), Fault> {
        let members = self.members(request)?;
        if members.len() > 1 || tokens.is_empty() {
            return Err(Fault::Request);
        }
        let seq = members[0];
        check_tokens(tokens)?;
        let is_released = self.ends.iter().any(|end| end.seq == seq && end.is_applied && !end.is_revoked);
        if self.sequences[seq].end.is_none() || is_released || self.is_named(seq) {
            return Err(Fault::State);
        }
        let length = self.sequences[seq].known.len() + tokens.len();
        let max_len = self.max_len(length, max_tokens);
        let usable = self.pool().usable();
        let blocks = length.div_ceil(self.world.block_size).max(self.worst_blocks(max_len));
        if length >= self.world.max_model_len || blocks > usable {
            return Err(Fault::Request);
        }
        for end in self.ends.iter_mut().filter(|end| end.seq == seq) {
            end.is_revoked = true;
        }
        let state = &mut self.sequences[seq];
        state.known.extend_from_slice(tokens);
        (state.emitted, state.min_tokens, state.max_len, state.end) = (0, 0, max_len, None);
        state.scheduled = state.computed;
        let turn = if state.row.is_some() { "turn: extended in its row" } else { "turn: extended in the queue" };
        if state.row.is_none() {
            state.queued_with = state.known.len();
        }
        self.turns.add(turn, 1);
        self.requests[request].submitted.max_tokens = max_tokens;
        self.requests[request].is_ready = true;
        Ok(())
    }

    // ------------------------------------------------------------------ the cache

    pub fn match_prefix(&self, tokens: &[i32], identity: &Identity) -> Result<usize, Fault> {
        check_tokens(tokens)?;
        if !self.world.prefix_caching {
            return Ok(0);
        }
        Ok(self.pool().hit(identity, tokens).len() * self.world.block_size)
    }

    pub fn pin(&mut self, tokens: &[i32], identity: &Identity, expires: Option<usize>) -> Result<usize, Fault> {
        check_tokens(tokens)?;
        if expires == Some(0) {
            return Err(Fault::Request);
        }
        Ok(self.memory.pin(identity, tokens, expires))
    }

    pub fn unpin(&mut self, pin: usize) -> Result<(), Fault> {
        if pin >= self.memory.num_pins_given() {
            return Err(Fault::Unknown);
        }
        if self.memory.unpin(pin) { Ok(()) } else { Err(Fault::Stale) }
    }

    pub fn clear(&mut self) -> bool {
        self.outs.is_empty() && self.memory.pool.clear()
    }
}
