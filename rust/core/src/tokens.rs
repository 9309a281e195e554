//! Token ids and the slots that hold their KV.

use crate::error::RequestError;
use crate::ids::BlockId;

/// Accepts non-negative token ids.
pub(crate) fn check(argument: &'static str, tokens: &[i32]) -> Result<(), RequestError> {
    // One pass without a branch: the sign bit of the union.
    if tokens.iter().fold(0, |union, token| union | token) >= 0 {
        return Ok(());
    }
    let at = tokens.iter().position(|&token| token < 0).unwrap_or(0);
    Err(RequestError::new(argument, format!("token {at} is {}, and ids are not negative", tokens[at])))
}

/// Writes the slots of the tokens from position `start` on, of the sequence that holds `blocks`, as many as `slots` has
/// room for.
pub(crate) fn write_slots(blocks: &[BlockId], block_size: usize, start: usize, slots: &mut [i64]) {
    let mut at = 0;
    while at < slots.len() {
        let (block, offset) = ((start + at) / block_size, (start + at) % block_size);
        let len = (block_size - offset).min(slots.len() - at);
        for (entry, number) in slots[at..at + len].iter_mut().zip(slot(blocks[block], block_size, offset)..) {
            *entry = number;
        }
        at += len;
    }
}

/// The slot of offset `offset` in `block`.
#[inline]
#[allow(clippy::cast_possible_wrap, reason = "a block is at most 256 tokens")]
pub(crate) fn slot(block: BlockId, block_size: usize, offset: usize) -> i64 {
    i64::from(block.get()) * block_size as i64 + offset as i64
}
