//! Values as small counted numbers: the salts and extra keys of published blocks, and the labels of those keys.
//!
//! An entry lives exactly as long as a published block refers to it, so the memory is bounded by the pool.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A number that stands for one byte string while somebody counts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Symbol(pub(crate) u32);

impl Symbol {
    /// The empty string, which is always there and is not counted.
    pub(crate) const EMPTY: Self = Self(0);
}

#[derive(Debug)]
struct Entry<K> {
    value: K,
    count: u32,
}

/// The values in use, as cheap clones of `K`. Every operation is O(log n) in their number.
#[derive(Debug)]
pub(crate) struct Interner<K> {
    symbols: BTreeMap<K, Symbol>,
    entries: Vec<Option<Entry<K>>>,
    vacant: Vec<u32>,
}

impl<K> Default for Interner<K> {
    fn default() -> Self {
        Self { symbols: BTreeMap::new(), entries: Vec::new(), vacant: Vec::new() }
    }
}

impl Interner<Arc<[u8]>> {
    /// The symbol of `bytes`, if it is in use.
    pub(crate) fn find_bytes(&self, bytes: &[u8]) -> Option<Symbol> {
        if bytes.is_empty() { Some(Symbol::EMPTY) } else { self.find(bytes) }
    }

    /// The symbol of `bytes`, counted once more.
    pub(crate) fn acquire_bytes(&mut self, bytes: &[u8]) -> Symbol {
        if bytes.is_empty() { Symbol::EMPTY } else { self.acquire(bytes, || bytes.into()) }
    }

    /// The string behind a symbol in use.
    pub(crate) fn bytes(&self, symbol: Symbol) -> &[u8] {
        self.value(symbol).map_or(&[], |bytes| bytes)
    }
}

impl<K: Ord + Clone> Interner<K> {
    /// The symbol of `value`, if it is in use.
    pub(crate) fn find<Q: Ord + ?Sized>(&self, value: &Q) -> Option<Symbol>
    where
        K: Borrow<Q>,
    {
        self.symbols.get(value).copied()
    }

    /// The symbol of `value`, which `own` makes a clone of, counted once more.
    pub(crate) fn acquire<Q: Ord + ?Sized>(&mut self, value: &Q, own: impl FnOnce() -> K) -> Symbol
    where
        K: Borrow<Q>,
    {
        if let Some(symbol) = self.find(value) {
            if let Some(entry) = self.entry(symbol) {
                entry.count += 1;
            }
            return symbol;
        }
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(None);
            u32::try_from(self.entries.len() - 1).unwrap_or_else(|_| unreachable!("more values than blocks"))
        });
        let value = own();
        self.entries[index as usize] = Some(Entry { value: value.clone(), count: 1 });
        self.symbols.insert(value, Symbol(index + 1));
        Symbol(index + 1)
    }

    /// Counts `symbol` once less; the last one forgets the value.
    pub(crate) fn release(&mut self, symbol: Symbol) {
        let Some(entry) = self.entry(symbol) else {
            return;
        };
        entry.count -= 1;
        if entry.count == 0 {
            let index = symbol.0 - 1;
            if let Some(entry) = self.entries[index as usize].take() {
                self.symbols.remove(&entry.value);
            }
            self.vacant.push(index);
        }
    }

    /// One more than the largest symbol ever in use.
    pub(crate) fn capacity(&self) -> usize {
        self.entries.len() + 1
    }

    /// The value behind a symbol in use; `None` for the empty one.
    pub(crate) fn value(&self, symbol: Symbol) -> Option<&K> {
        let index = symbol.0.checked_sub(1)? as usize;
        self.entries[index].as_ref().map(|entry| &entry.value)
    }

    /// Whether `counts`, by symbol, are the counts kept here. For the audit.
    pub(crate) fn agrees(&self, counts: &[u32]) -> bool {
        let kept = self.entries.iter().map(|entry| entry.as_ref().map_or(0, |entry| entry.count));
        kept.eq(counts[1..].iter().copied())
    }

    fn entry(&mut self, symbol: Symbol) -> Option<&mut Entry<K>> {
        let index = symbol.0.checked_sub(1)? as usize;
        match &mut self.entries[index] {
            Some(entry) => Some(entry),
            None => unreachable!("symbol {index} is used after its last release"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_lives_as_long_as_it_is_counted() {
        let mut interner = Interner::<Arc<[u8]>>::default();
        let a = interner.acquire_bytes(b"a");
        assert_eq!(interner.acquire_bytes(b"a"), a);
        assert_eq!(interner.acquire_bytes(b""), Symbol::EMPTY);
        interner.release(a);
        assert_eq!(interner.find_bytes(b"a"), Some(a));
        interner.release(a);
        interner.release(Symbol::EMPTY);
        assert_eq!(interner.find_bytes(b"a"), None);
        assert!(interner.agrees(&[0, 0]));
        assert_eq!(interner.acquire_bytes(b"b"), a, "the number is used again");
    }
}
