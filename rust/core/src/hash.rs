//! The chained 64-bit hash under which full blocks are looked up.
//!
//! `hash(block i) = mix(hash(block i - 1), H(tokens of block i; seed and the block's extra key))`, and `H` takes
//! a multiplication for four tokens. Only the mix waits for the block before, so the blocks of a prompt are hashed side by
//! side.
//!
//! A hash only says where to look: every hit is verified against the stored tokens (law L5), so neither a collision
//! nor a poor seed can give a wrong answer, only a slower one.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// What stands for a kind and a value of an extra key.
pub(crate) fn digest(kind: &[u8], value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, xxh3_64(kind))
}

/// Odd, with bits all over: the golden ratio.
const MIX: u64 = 0x9E37_79B9_7F4A_7C15;

/// Where the hash of a block begins. No two tokens look like this number or `MIX`, so neither factor of a product is zero
/// while there is no seed.
const START: u64 = 0xD6E8_FEB8_6659_FD93;

/// Two tokens in one word.
#[inline]
fn pair(low: i32, high: i32) -> u64 {
    u64::from(low.cast_unsigned()) | u64::from(high.cast_unsigned()) << 32
}

/// The product of two words, its halves folded: every bit of both reaches every bit.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the halves are what is wanted")]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The hash functions of one cache.
#[derive(Clone, Debug)]
pub(crate) struct ChainHasher {
    seed: u64,
    mask: u32,
}

impl ChainHasher {
    /// `bits` (1 ..= 64) is how much of each block's hash the index sees: fewer than 32 make collisions on purpose.
    pub(crate) fn new(seed: u64, bits: u32) -> Self {
        let shift = 32_u32.saturating_sub(bits.min(32));
        Self { seed, mask: u32::MAX << shift }
    }

    /// The start of the chain of everything under `salt`.
    pub(crate) fn root(&self, salt: &[u8]) -> u64 {
        xxh3_64_with_seed(salt, self.seed)
    }

    /// The next link: a full block of `tokens` after `parent`, under the canonical bytes of its extra `key`.
    #[inline]
    pub(crate) fn block(&self, parent: u64, tokens: &[i32], key: &[u8]) -> u64 {
        let seed = if key.is_empty() { self.seed } else { self.keyed(key) };
        let (fours, rest) = tokens.as_chunks();
        let content = fours.iter().fold(seed ^ START, |hash, &[a, b, c, d]| fold(hash ^ pair(a, b), MIX ^ pair(c, d)));
        let content = rest.iter().fold(content, |hash, &token| fold(hash ^ pair(token, 1), MIX));
        (parent.rotate_left(23) ^ content).wrapping_mul(MIX)
    }

    #[cold]
    fn keyed(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.seed)
    }

    /// The part of a block's hash that the index keeps.
    #[inline]
    pub(crate) const fn tag(&self, hash: u64) -> u32 {
        ((hash >> 32) as u32) & self.mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_depends_on_every_part() {
        let hasher = ChainHasher::new(0, 64);
        let root = hasher.root(b"");
        let base = hasher.block(root, &[1, 2], b"");
        assert_eq!(base, hasher.block(root, &[1, 2], b""));
        assert_ne!(base, hasher.block(root, &[2, 1], b""));
        assert_ne!(base, hasher.block(hasher.root(b"s"), &[1, 2], b""));
        assert_ne!(base, hasher.block(root, &[1, 2], b"k"));
        assert_ne!(hasher.block(base, &[3, 4], b""), hasher.block(hasher.block(root, &[3, 4], b""), &[1, 2], b""));
        let block = |tokens: &[i32]| hasher.block(root, tokens, b"");
        assert_ne!(block(&[0, 0, 1, 2]), block(&[0, 0, 3, 4]));
        assert_ne!(block(&[1, 2, 3, 4, 5, 6, 7, 8]), block(&[5, 6, 7, 8, 1, 2, 3, 4]));
        assert_ne!(base, ChainHasher::new(1, 64).block(root, &[1, 2], b""));
    }

    #[test]
    fn crippled_tag_has_few_values() {
        let hasher = ChainHasher::new(0, 8);
        let tags: std::collections::BTreeSet<u32> =
            (0..10_000).map(|token| hasher.tag(hasher.block(0, &[token], b""))).collect();
        assert_eq!(tags.len(), 256);
    }
}
