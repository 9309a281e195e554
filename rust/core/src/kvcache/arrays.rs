//! Block tables of many sequences as the flat arrays that kernels read.

use super::{KvCache, Sequence, small};
use crate::error::{Error, RequestError, StateError};
use crate::ids::SequenceId;
use crate::table::blocks_for;
use crate::tokens;

/// Tables in the compressed form that FlashInfer takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Csr {
    /// Where each sequence's blocks begin in `indices`; one more than there are sequences.
    pub indptr: Vec<i32>,
    /// Block ids.
    pub indices: Vec<i32>,
    /// Tokens in each sequence's last block, 1 ..= block size, 0 for a length of 0.
    pub last_page_len: Vec<i32>,
}

impl KvCache {
    /// The tables of `seqs` for `lens` tokens each, compressed.
    ///
    /// # Errors
    ///
    /// A dead or foreign handle; [`RequestError`] when the lists differ in length, or for more output than fits;
    /// [`StateError`] for a length beyond what is reserved.
    ///
    /// # Complexity
    ///
    /// O(output).
    pub fn csr(&self, seqs: &[SequenceId], lens: &[usize]) -> Result<Csr, Error> {
        let sequences = self.all(seqs)?;
        same_length("lens", lens.len(), seqs.len())?;
        let mut total = 0_usize;
        for (sequence, &len) in sequences.iter().zip(lens) {
            within_reservation(sequence, len)?;
            total = total.saturating_add(blocks_for(len, self.block_size()));
        }
        // Offsets are int32. The same sequence may be named many times, so no pool bounds them.
        let total = if total > i32::MAX as usize { usize::MAX } else { total };
        let mut csr = Csr { indptr: vec![0], indices: room("lens", total)?, ..Csr::default() };
        for (sequence, &len) in sequences.iter().zip(lens) {
            let blocks = blocks_for(len, self.block_size());
            csr.indices.extend(sequence.table.blocks()[..blocks].iter().map(|block| block.get()));
            csr.indptr.push(small(csr.indices.len()));
            csr.last_page_len.push(small(len - blocks.saturating_sub(1) * self.block_size()));
        }
        Ok(csr)
    }

    /// The slots of the tokens `start .. start + len` of each sequence, one after the other.
    ///
    /// # Errors
    ///
    /// Those of [`csr`](Self::csr).
    ///
    /// # Complexity
    ///
    /// O(output).
    pub fn slots(&self, seqs: &[SequenceId], starts: &[usize], lens: &[usize]) -> Result<Vec<i64>, Error> {
        let sequences = self.all(seqs)?;
        same_length("starts", starts.len(), seqs.len())?;
        same_length("lens", lens.len(), seqs.len())?;
        for (sequence, (&start, &len)) in sequences.iter().zip(starts.iter().zip(lens)) {
            within_reservation(sequence, start.saturating_add(len))?;
        }
        let total = lens.iter().fold(0_usize, |total, &len| total.saturating_add(len));
        let mut slots = room("lens", total)?;
        slots.resize(total, 0);
        let mut rest = slots.as_mut_slice();
        for (sequence, (&start, &len)) in sequences.iter().zip(starts.iter().zip(lens)) {
            let (own, others) = rest.split_at_mut(len);
            tokens::write_slots(sequence.table.blocks(), self.block_size(), start, own);
            rest = others;
        }
        Ok(slots)
    }

    fn all(&self, seqs: &[SequenceId]) -> Result<Vec<&Sequence>, Error> {
        seqs.iter().map(|&seq| self.sequences.get(seq)).collect()
    }
}

/// A vector with room for `len` values; what no memory holds is refused, and does not abort the process.
fn room<T>(argument: &'static str, len: usize) -> Result<Vec<T>, RequestError> {
    let mut values = Vec::new();
    match values.try_reserve_exact(len) {
        Ok(()) => Ok(values),
        Err(_) => Err(RequestError::new(argument, "more output than fits into memory, or into int32 offsets")),
    }
}

fn within_reservation(sequence: &Sequence, len: usize) -> Result<(), StateError> {
    if len <= sequence.reserved {
        return Ok(());
    }
    Err(StateError::new(format!("{len} tokens are beyond the {} that are reserved", sequence.reserved)))
}

fn same_length(argument: &'static str, given: usize, expected: usize) -> Result<(), RequestError> {
    if given == expected {
        return Ok(());
    }
    Err(RequestError::new(argument, format!("{given} values for {expected} sequences")))
}
