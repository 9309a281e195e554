//! What a block's identity holds beside its tokens: the salt of its root, and the extra keys that touch it.
//!
//! Every part is tagged by its place and length-prefixed, so that two different identities never meet, and a
//! malformed key is refused, never weakened (CONTRACT §2).

use std::borrow::Cow;

use crate::error::RequestError;

/// A span of tokens that carries something besides its token ids: an image, an adapter, a tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExtraKey {
    kind: String,
    value: Vec<u8>,
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
        Ok(Self { kind: kind.to_owned(), value: value.to_vec(), start, end: end.unwrap_or(u64::MAX) })
    }

    /// Appends the canonical bytes of the part of this span that lies in `begin .. finish`, if any.
    fn write(&self, begin: u64, finish: u64, out: &mut Vec<u8>) {
        if self.end <= begin || self.start >= finish {
            return;
        }
        for part in [self.kind.as_bytes(), &self.value] {
            out.extend_from_slice(&(part.len() as u64).to_le_bytes());
            out.extend_from_slice(part);
        }
        let from = self.start.max(begin) - begin;
        let to = self.end.min(finish) - begin;
        for number in [begin.wrapping_sub(self.start), from, to] {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }
}

/// The salt and the extra keys of a prompt. The default is the public identity: neither.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    salt: Vec<u8>,
    keys: Vec<ExtraKey>,
}

impl Identity {
    /// The identity of prompts under `salt` and `keys`, whose order and repetition do not matter.
    #[must_use]
    pub fn new(salt: &[u8], mut keys: Vec<ExtraKey>) -> Self {
        keys.sort();
        keys.dedup();
        Self { salt: salt.to_vec(), keys }
    }

    /// The same identity for an adapter: its number, 8 bytes little-endian, over all tokens. 0 is no adapter.
    #[must_use]
    pub fn with_adapter(self, adapter: u64) -> Self {
        if adapter == 0 {
            return self;
        }
        let key =
            ExtraKey { kind: "adapter".to_owned(), value: adapter.to_le_bytes().to_vec(), start: 0, end: u64::MAX };
        let Self { salt, mut keys } = self;
        keys.push(key);
        Self::new(&salt, keys)
    }

    pub(crate) fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// The canonical bytes of the extra keys that touch block `block`; empty when none does. O(keys).
    pub(crate) fn key_of(&self, block: usize, block_size: usize) -> Cow<'static, [u8]> {
        if self.keys.is_empty() {
            return Cow::Borrowed(&[]);
        }
        let begin = (block * block_size) as u64;
        let mut bytes = Vec::new();
        for key in &self.keys {
            key.write(begin, begin + block_size as u64, &mut bytes);
        }
        Cow::Owned(bytes)
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
        assert!(!keys[0].is_empty() && !keys[1].is_empty() && keys[2].is_empty());
        assert_ne!(keys[0], keys[1]);
        let longer = Identity::new(b"", vec![key(2, Some(7), "img", b"A")]);
        assert_eq!(longer.key_of(0, 4), keys[0], "what differs later does not touch the first block");
        assert_ne!(longer.key_of(1, 4), keys[1]);
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
