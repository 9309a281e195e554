//! What a block's identity holds beside its tokens: the salt of its root, and the extra keys that touch it.
//!
//! Every part is tagged by its place and length-prefixed, so that two different identities never meet, and a
//! malformed key is refused, never weakened (CONTRACT §2).

use std::sync::Arc;

use crate::error::RequestError;
use crate::hash::digest;

/// What an extra key says, apart from where: its kind and its value.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Label {
    kind: Box<str>,
    value: Box<[u8]>,
    /// Stands for both in hashes; whoever needs certainty compares them.
    digest: u64,
}

impl Label {
    pub(crate) const fn digest(&self) -> u64 {
        self.digest
    }
}

/// A span of tokens that carries something besides its token ids: an image, an adapter, a tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExtraKey {
    label: Arc<Label>,
    start: u64,
    /// `u64::MAX` runs to the end.
    end: u64,
}

impl ExtraKey {
    /// A key of `kind` and `value` over the tokens `start .. end`, or from `start` on.
    ///
    /// # Errors
    ///
    /// [`RequestError`] when the span is empty or reversed, or the kind is empty.
    pub fn new(start: u64, end: Option<u64>, kind: &str, value: &[u8]) -> Result<Self, RequestError> {
        if kind.is_empty() {
            return Err(RequestError::new("extra_keys", "the kind is empty"));
        }
        if end.is_some_and(|end| end <= start) {
            return Err(RequestError::new("extra_keys", format!("the span {start} .. {end:?} is empty or reversed")));
        }
        Ok(Self::over(start, end.unwrap_or(u64::MAX), kind, value))
    }

    fn over(start: u64, end: u64, kind: &str, value: &[u8]) -> Self {
        let digest = digest(kind.as_bytes(), value);
        Self { label: Arc::new(Label { kind: kind.into(), value: value.into(), digest }), start, end }
    }
}

/// A span as one block sees it.
///
/// That the block before is the same says where this one lies. So the span's start and where it ends in the block say
/// its offset in the span and the part of the block that it covers, and all blocks inside one long span agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touch<'a> {
    /// The span's place among its identity's.
    pub(crate) index: u32,
    pub(crate) label: &'a Arc<Label>,
    pub(crate) start: u64,
    /// Where the span ends in the block, 1 ..= block size.
    pub(crate) until: u32,
}

/// The extra key of one block: the spans that touch it, in canonical order. Most blocks have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockKey<'a> {
    pub(crate) touches: Vec<Touch<'a>>,
}

/// The salt and the extra keys of a prompt. The default is the public identity: neither.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    salt: Vec<u8>,
    /// In canonical order: by kind, value, start and end.
    keys: Vec<ExtraKey>,
    /// The places of `keys`, by where they start.
    by_start: Vec<u32>,
    /// A tree over `by_start`, root first at 1: how far the spans below each node reach.
    reach: Vec<u64>,
}

impl Identity {
    /// The identity of prompts under `salt` and `keys`, whose order and repetition do not matter.
    ///
    /// # Complexity
    ///
    /// O(n log n) for n keys.
    #[must_use]
    pub fn new(salt: &[u8], mut keys: Vec<ExtraKey>) -> Self {
        keys.sort();
        keys.dedup();
        let mut by_start: Vec<u32> = (0..).take(keys.len()).collect();
        by_start.sort_by_key(|&index| keys[index as usize].start);
        let leaves = keys.len().next_power_of_two();
        let mut reach = if keys.is_empty() { Vec::new() } else { vec![0; 2 * leaves] };
        for (leaf, &index) in by_start.iter().enumerate() {
            reach[leaves + leaf] = keys[index as usize].end;
        }
        for node in (1..reach.len() / 2).rev() {
            reach[node] = reach[2 * node].max(reach[2 * node + 1]);
        }
        Self { salt: salt.to_vec(), keys, by_start, reach }
    }

    /// The same identity for an adapter: its number, 8 bytes little-endian, over all tokens. 0 is no adapter.
    #[must_use]
    pub fn with_adapter(self, adapter: u64) -> Self {
        if adapter == 0 {
            return self;
        }
        let Self { salt, mut keys, .. } = self;
        keys.push(ExtraKey::over(0, u64::MAX, "adapter", &adapter.to_le_bytes()));
        Self::new(&salt, keys)
    }

    pub(crate) fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// The extra key of block `block`. O(k log n) for k of n keys that touch it.
    #[inline]
    pub(crate) fn key_of(&self, block: usize, block_size: usize) -> BlockKey<'_> {
        let touches = if self.keys.is_empty() { Vec::new() } else { self.touches(block, block_size) };
        BlockKey { touches }
    }

    fn touches(&self, block: usize, block_size: usize) -> Vec<Touch<'_>> {
        let mut touches = Vec::new();
        let begin = (block * block_size) as u64;
        let finish = begin + block_size as u64;
        let started = self.by_start.partition_point(|&index| self.keys[index as usize].start < finish);
        self.collect(1, 0, self.reach.len() / 2, started, begin, &mut touches);
        touches.sort_unstable_by_key(|touch: &Touch<'_>| touch.index);
        for touch in &mut touches {
            let end = self.keys[touch.index as usize].end.min(finish);
            touch.until = u32::try_from(end - begin).unwrap_or_else(|_| unreachable!("a block is at most 256"));
        }
        touches
    }

    /// Collects those of the first `started` spans that reach past `begin`, among the `width` below `node`.
    fn collect<'a>(
        &'a self,
        node: usize,
        first: usize,
        width: usize,
        started: usize,
        begin: u64,
        touches: &mut Vec<Touch<'a>>,
    ) {
        if first >= started || self.reach[node] <= begin {
            return;
        }
        if width == 1 {
            let index = self.by_start[first];
            let ExtraKey { label, start, .. } = &self.keys[index as usize];
            touches.push(Touch { index, label, start: *start, until: 0 });
            return;
        }
        self.collect(2 * node, first, width / 2, started, begin, touches);
        self.collect(2 * node + 1, first + width / 2, width / 2, started, begin, touches);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(start: u64, end: Option<u64>, kind: &str, value: &[u8]) -> ExtraKey {
        ExtraKey::new(start, end, kind, value).unwrap_or_else(|error| unreachable!("{error}"))
    }

    #[test]
    fn parts_are_length_prefixed_so_that_keys_do_not_meet() {
        let a = Identity::new(b"", vec![key(0, None, "ab", b"c")]);
        let b = Identity::new(b"", vec![key(0, None, "a", b"bc")]);
        assert_ne!(a.key_of(0, 4), b.key_of(0, 4));
    }

    #[test]
    fn block_takes_only_spans_that_touch_it_with_offset_and_part() {
        let id = Identity::new(b"", vec![key(2, Some(6), "img", b"A")]);
        let keys: Vec<_> = (0..3).map(|block| id.key_of(block, 4)).collect();
        let touched: Vec<bool> = keys.iter().map(|key| !key.touches.is_empty()).collect();
        assert_eq!(touched, [true, true, false]);
        assert_ne!(keys[0], keys[1]);
        let longer = Identity::new(b"", vec![key(2, Some(7), "img", b"A")]);
        assert_eq!(longer.key_of(0, 4), keys[0], "what differs later does not touch the first block");
        assert_ne!(longer.key_of(1, 4), keys[1]);
    }

    #[test]
    fn touches_are_those_of_a_plain_scan() {
        let mut state = 3_u64;
        for count in 0..40 {
            let mut next = |bound: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) % bound
            };
            let span = |_| {
                let (start, len) = (next(30), next(9));
                key(start, (len > 0).then_some(start + len), if next(2) == 0 { "a" } else { "b" }, b"v")
            };
            let id = Identity::new(b"", (0..count).map(span).collect());
            for (block, begin) in (0..40).step_by(4).enumerate() {
                let finish = begin + 4;
                let is_touched = |key: &&ExtraKey| key.start < finish && key.end > begin;
                let plain: Vec<(u64, u64)> =
                    id.keys.iter().filter(is_touched).map(|key| (key.start, key.end.min(finish) - begin)).collect();
                let found = id.key_of(block, 4);
                let found: Vec<_> = found.touches.iter().map(|touch| (touch.start, u64::from(touch.until))).collect();
                assert_eq!(found, plain);
            }
        }
    }

    #[test]
    fn malformed_spans_are_refused() {
        assert!(ExtraKey::new(3, Some(3), "k", b"").is_err());
        assert!(ExtraKey::new(3, Some(1), "k", b"").is_err());
        assert!(ExtraKey::new(0, None, "", b"v").is_err());
    }

    #[test]
    fn adapter_is_an_ordinary_key() {
        let by_number = Identity::default().with_adapter(7);
        let by_key = Identity::new(b"", vec![key(0, None, "adapter", &7_u64.to_le_bytes())]);
        assert_eq!(by_number, by_key);
        assert_eq!(Identity::default().with_adapter(0), Identity::default());
    }
}
