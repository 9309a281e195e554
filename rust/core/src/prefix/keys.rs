//! The extra keys of published blocks: each label is stored once, and a block's key is a few small records.
//!
//! ```text
//!   key 7 = [ label 3, start 0, until 16 ]             most blocks of one adapter, or inside one image, share a key
//!           [ label 5, start 40, until 8 ]
//! ```
//!
//! A label is found by its digest and verified by its content, so two keys that differ never meet (law L5).

use std::cmp::Ordering;
use std::sync::Arc;

use crate::identity::{BlockKey, Label, Touch};
use crate::intern::{Interner, Symbol};

/// A label in the order of its digest.
#[derive(Clone, Debug)]
struct ByDigest(Arc<Label>);

impl Ord for ByDigest {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_content = || if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) };
        self.0.digest().cmp(&other.0.digest()).then_with(by_content)
    }
}

impl PartialOrd for ByDigest {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByDigest {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ByDigest {}

/// One span's part in a key: its label, its start, and where it ends in the block.
const RECORD: usize = 16;

/// The labels that the block before was touched by, so that a long span is looked up once.
#[derive(Debug, Default)]
pub(crate) struct Recent(Vec<(u32, Symbol)>);

/// The keys in use, each counted once for each block that has it.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    labels: Interner<ByDigest>,
    keys: Interner<Arc<[u8]>>,
}

impl Keys {
    /// The symbol of `key`, if it is in use. `recent` goes along with the blocks of one identity, in order.
    /// O(spans · log labels).
    #[inline]
    pub(crate) fn find(&self, key: &BlockKey<'_>, recent: &mut Recent) -> Option<Symbol> {
        if key.touches.is_empty() {
            recent.0.clear();
            return Some(Symbol::EMPTY);
        }
        self.find_touched(key, recent)
    }

    fn find_touched(&self, key: &BlockKey<'_>, recent: &mut Recent) -> Option<Symbol> {
        let mut before = std::mem::take(&mut recent.0).into_iter().peekable();
        let mut bytes = Vec::with_capacity(key.touches.len() * RECORD);
        for touch in &key.touches {
            while before.next_if(|&(index, _)| index < touch.index).is_some() {}
            let label = match before.next_if(|&(index, _)| index == touch.index) {
                Some((_, label)) => label,
                None => self.labels.find(&ByDigest(Arc::clone(touch.label)))?,
            };
            recent.0.push((touch.index, label));
            write(touch, label, &mut bytes);
        }
        self.keys.find_bytes(&bytes)
    }

    /// The symbol of `key`, counted once more.
    #[inline]
    pub(crate) fn acquire(&mut self, key: &BlockKey<'_>) -> Symbol {
        if key.touches.is_empty() { Symbol::EMPTY } else { self.acquire_touched(key) }
    }

    fn acquire_touched(&mut self, key: &BlockKey<'_>) -> Symbol {
        let mut bytes = Vec::with_capacity(key.touches.len() * RECORD);
        for touch in &key.touches {
            let label = ByDigest(Arc::clone(touch.label));
            let symbol = self.labels.acquire(&label, || label.clone());
            write(touch, symbol, &mut bytes);
        }
        self.keys.acquire_bytes(&bytes)
    }

    /// Counts `key` once less.
    #[inline]
    pub(crate) fn release(&mut self, key: Symbol) {
        if key == Symbol::EMPTY {
            return;
        }
        for (label, ..) in records(self.keys.bytes(key)) {
            self.labels.release(label);
        }
        self.keys.release(key);
    }

    /// What is hashed of a key in use.
    pub(crate) fn hashed(&self, key: Symbol) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (label, start, until) in records(self.keys.bytes(key)) {
            let digest = self.labels.value(label).map_or(0, |label| label.0.digest());
            hash_record(digest, start, until, &mut bytes);
        }
        bytes
    }

    /// Whether the counts are those of blocks with these `keys`. For the audit.
    pub(crate) fn agrees(&self, keys: impl Iterator<Item = Symbol>) -> bool {
        let mut counts = vec![0; self.keys.capacity()];
        let mut labels = vec![0; self.labels.capacity()];
        for key in keys {
            counts[key.0 as usize] += 1;
            for (label, ..) in records(self.keys.bytes(key)) {
                labels[label.0 as usize] += 1;
            }
        }
        self.keys.agrees(&counts) && self.labels.agrees(&labels)
    }
}

/// What is hashed of a key.
pub(crate) fn hashed(key: &BlockKey<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for touch in &key.touches {
        hash_record(touch.label.digest(), touch.start, touch.until, &mut bytes);
    }
    bytes
}

fn hash_record(digest: u64, start: u64, until: u32, bytes: &mut Vec<u8>) {
    for number in [digest, start, u64::from(until)] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
}

fn write(touch: &Touch<'_>, label: Symbol, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&touch.start.to_le_bytes());
    bytes.extend_from_slice(&label.0.to_le_bytes());
    bytes.extend_from_slice(&touch.until.to_le_bytes());
}

fn records(bytes: &[u8]) -> impl Iterator<Item = (Symbol, u64, u32)> {
    bytes.as_chunks::<RECORD>().0.iter().map(|record| {
        let number = u128::from_le_bytes(*record);
        let part = |shift: u32| u32::try_from((number >> shift) & u128::from(u32::MAX)).unwrap_or(0);
        (Symbol(part(64)), u64::from(part(0)) | u64::from(part(32)) << 32, part(96))
    })
}
