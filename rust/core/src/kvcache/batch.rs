//! Calls about many sequences at once: what one of them refuses leaves all of them unchanged.

use std::sync::Arc;

use super::KvCache;
use crate::cache::{Pending, Room, Tail};
use crate::error::{Error, RequestError, StateError};
use crate::identity::Identity;
use crate::ids::SequenceId;
use crate::tokens;

impl KvCache {
    /// [`open`](Self::open) for each of `prompts`, one after the other, all under one identity.
    ///
    /// # Errors
    ///
    /// [`RequestError`] for a negative token, naming `prompts[i]`; nothing was opened then.
    ///
    /// # Complexity
    ///
    /// O(tokens).
    pub fn open_many(&mut self, prompts: &[&[i32]], identity: &Identity) -> Result<Vec<SequenceId>, Error> {
        check_prompts(prompts)?;
        let identity = Arc::new(identity.clone());
        Ok(prompts.iter().map(|tokens| self.open_checked(tokens, &identity)).collect())
    }

    /// [`match_prefix`](Self::match_prefix) for each of `prompts`.
    ///
    /// # Errors
    ///
    /// [`RequestError`] for a negative token, naming `prompts[i]`.
    ///
    /// # Complexity
    ///
    /// O(tokens).
    pub fn match_many(&self, prompts: &[&[i32]], identity: &Identity) -> Result<Vec<usize>, Error> {
        check_prompts(prompts)?;
        Ok(prompts.iter().map(|tokens| self.match_checked(tokens, identity)).collect())
    }

    /// [`reserve`](Self::reserve) for each of `seqs`, one after the other; all of them or none.
    ///
    /// `needed` of [`Room::Short`] is what all of them need, `available` what there is before the first.
    ///
    /// # Errors
    ///
    /// A dead or foreign handle; [`RequestError`] when the lists differ in length or a sequence is named twice;
    /// [`StateError`] when a tail's content itself waits for a copy that was not taken.
    ///
    /// # Complexity
    ///
    /// O(n log n + new blocks) for n sequences.
    pub fn reserve_many(&mut self, seqs: &[SequenceId], num_tokens: &[usize]) -> Result<Room, Error> {
        self.check_seqs(seqs)?;
        check_length("num_tokens", num_tokens.len(), seqs.len())?;
        let (mut needed, mut pending) = (0_usize, Pending::default());
        for (&seq, &num_tokens) in seqs.iter().zip(num_tokens) {
            let need = self.need(seq, num_tokens, &pending)?;
            needed = needed.saturating_add(need.total());
            if let Some(Tail::Copy(src)) = need.tail {
                let sequence = self.sequences.live(seq);
                let (full, filled) =
                    (sequence.num_computed / self.block_size(), sequence.num_computed % self.block_size());
                pending.copy(sequence.table.blocks()[full], src, filled);
            }
        }
        let available = self.cache.available();
        if needed > available {
            return Ok(Room::Short { needed, available });
        }
        for (&seq, &num_tokens) in seqs.iter().zip(num_tokens) {
            match self.reserve(seq, num_tokens) {
                Ok(Room::Granted) => {}
                refused => unreachable!("a reservation was counted and is {refused:?}"),
            }
        }
        Ok(Room::Granted)
    }

    /// [`advance`](Self::advance) for each of `seqs`: `tokens` has those of one after the other, `counts` how many each.
    ///
    /// # Errors
    ///
    /// A dead or foreign handle; [`RequestError`] when the lists do not fit each other, a sequence is named twice or a
    /// token is negative; [`StateError`] beyond a reservation.
    ///
    /// # Complexity
    ///
    /// O(n log n + tokens) for n sequences.
    pub fn advance_many(&mut self, seqs: &[SequenceId], tokens: &[i32], counts: &[usize]) -> Result<(), Error> {
        self.check_seqs(seqs)?;
        check_length("counts", counts.len(), seqs.len())?;
        let total = counts.iter().fold(0_usize, |total, &count| total.saturating_add(count));
        if total != tokens.len() {
            let text = format!("the counts ask for {total} tokens, {} were given", tokens.len());
            return Err(RequestError::new("counts", text).into());
        }
        tokens::check("tokens", tokens)?;
        for (&seq, &count) in seqs.iter().zip(counts) {
            let sequence = self.sequences.live(seq);
            let room = sequence.reserved - sequence.num_computed;
            if count > room {
                let text = format!("{count} tokens of sequence {} were computed, {room} are reserved", seq.raw());
                return Err(StateError::new(text).into());
            }
        }
        let mut rest = tokens;
        for (&seq, &count) in seqs.iter().zip(counts) {
            let (own, others) = rest.split_at(count);
            self.advance_checked(seq, own);
            rest = others;
        }
        Ok(())
    }

    /// [`close`](Self::close) for each of `seqs`, in their order.
    ///
    /// # Errors
    ///
    /// A dead or foreign handle; [`RequestError`] when a sequence is named twice.
    ///
    /// # Complexity
    ///
    /// O(n log n + blocks) for n sequences.
    pub fn close_many(&mut self, seqs: &[SequenceId]) -> Result<(), Error> {
        self.check_seqs(seqs)?;
        seqs.iter().try_for_each(|&seq| self.close(seq))
    }

    /// All alive, and no two the same.
    fn check_seqs(&self, seqs: &[SequenceId]) -> Result<(), Error> {
        for &seq in seqs {
            self.sequences.get(seq)?;
        }
        let mut sorted = seqs.to_vec();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(RequestError::new("seqs", format!("sequence {} is named twice", pair[0].raw())).into()),
            None => Ok(()),
        }
    }
}

fn check_prompts(prompts: &[&[i32]]) -> Result<(), RequestError> {
    for (i, tokens) in prompts.iter().enumerate() {
        tokens::check("prompts", tokens).map_err(|error| RequestError::new(format!("prompts[{i}]"), error.reason))?;
    }
    Ok(())
}

fn check_length(argument: &'static str, given: usize, expected: usize) -> Result<(), RequestError> {
    if given == expected {
        return Ok(());
    }
    Err(RequestError::new(argument, format!("{given} values for {expected} sequences")))
}
