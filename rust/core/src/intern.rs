//! Byte strings as small counted numbers: the salts and extra keys of published blocks.
//!
//! An entry lives exactly as long as a published block refers to it, so the memory is bounded by the pool.

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
struct Entry {
    bytes: Arc<[u8]>,
    count: u32,
}

/// The strings in use. Every operation is O(log n) in their number.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    symbols: BTreeMap<Arc<[u8]>, Symbol>,
    entries: Vec<Option<Entry>>,
    vacant: Vec<u32>,
}

impl Interner {
    /// The symbol of `bytes`, if it is in use.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<Symbol> {
        if bytes.is_empty() { Some(Symbol::EMPTY) } else { self.symbols.get(bytes).copied() }
    }

    /// The symbol of `bytes`, counted once more.
    pub(crate) fn acquire(&mut self, bytes: &[u8]) -> Symbol {
        if let Some(symbol) = self.find(bytes) {
            if let Some(entry) = self.entry(symbol) {
                entry.count += 1;
            }
            return symbol;
        }
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(None);
            u32::try_from(self.entries.len() - 1).unwrap_or_else(|_| unreachable!("more strings than blocks"))
        });
        let bytes: Arc<[u8]> = bytes.into();
        self.entries[index as usize] = Some(Entry { bytes: Arc::clone(&bytes), count: 1 });
        self.symbols.insert(bytes, Symbol(index + 1));
        Symbol(index + 1)
    }

    /// Counts `symbol` once less; the last one forgets the string.
    pub(crate) fn release(&mut self, symbol: Symbol) {
        let Some(entry) = self.entry(symbol) else {
            return;
        };
        entry.count -= 1;
        if entry.count == 0 {
            let index = symbol.0 - 1;
            if let Some(entry) = self.entries[index as usize].take() {
                self.symbols.remove(&entry.bytes);
            }
            self.vacant.push(index);
        }
    }

    /// One more than the largest symbol ever in use.
    pub(crate) fn capacity(&self) -> usize {
        self.entries.len() + 1
    }

    /// The string behind a symbol in use.
    pub(crate) fn bytes(&self, symbol: Symbol) -> &[u8] {
        let entry = symbol.0.checked_sub(1).and_then(|index| self.entries[index as usize].as_ref());
        entry.map_or(&[], |entry| &entry.bytes)
    }

    /// Whether `counts`, by symbol, are the counts kept here. For the audit.
    pub(crate) fn agrees(&self, counts: &[u32]) -> bool {
        let kept = self.entries.iter().map(|entry| entry.as_ref().map_or(0, |entry| entry.count));
        kept.eq(counts[1..].iter().copied())
    }

    fn entry(&mut self, symbol: Symbol) -> Option<&mut Entry> {
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
        let mut interner = Interner::default();
        let a = interner.acquire(b"a");
        assert_eq!(interner.acquire(b"a"), a);
        assert_eq!(interner.acquire(b""), Symbol::EMPTY);
        interner.release(a);
        assert_eq!(interner.find(b"a"), Some(a));
        interner.release(a);
        interner.release(Symbol::EMPTY);
        assert_eq!(interner.find(b"a"), None);
        assert!(interner.agrees(&[0, 0]));
        assert_eq!(interner.acquire(b"b"), a, "the number is used again");
    }
}
