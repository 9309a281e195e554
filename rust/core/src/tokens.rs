//! Token ids and the slots that hold their KV.

use std::ops::Range;

use crate::error::RequestError;
use crate::ids::BlockId;

/// Accepts non-negative token ids.
pub(crate) fn check(argument: &'static str, tokens: &[i32]) -> Result<(), RequestError> {
    // One pass without a branch: the sign bit of the union.
    if tokens.iter().fold(0, |union, token| union | token) >= 0 {
        return Ok(());
    }
    let at = tokens.iter().position(|&token| token < 0).unwrap_or(0);
    Err(RequestError::new(
        argument,
        format!("token {at} is {}, and ids are not negative", tokens[at]),
    ))
}

/// Appends the slots of the tokens in `positions` of the sequence that holds `blocks`.
pub(crate) fn push_slots(
    blocks: &[BlockId],
    block_size: usize,
    positions: Range<usize>,
    slots: &mut Vec<i64>,
) {
    let mut at = positions.start;
    while at < positions.end {
        let (block, offset) = (at / block_size, at % block_size);
        let len = (block_size - offset).min(positions.end - at);
        let first = slot(blocks[block], block_size, offset);
        slots.extend((0..).map(|step| first + step).take(len));
        at += len;
    }
}

/// The slot of offset `offset` in `block`.
#[inline]
pub(crate) fn slot(block: BlockId, block_size: usize, offset: usize) -> i64 {
    i64::from(block.get()) * block_size as i64 + offset as i64
}
