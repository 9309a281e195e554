//! Where a block's hash says it may be found: open addressing over (tag, block) pairs, linear probing.
//!
//! The 32-bit tag is the upper half of the block's chained hash and also decides the home place, so that looking,
//! moving and deleting touch this table alone. Deletion moves later entries back, which leaves no tombstones. Tags
//! may collide; the caller verifies every candidate.

use crate::ids::BlockId;

type Entry = Option<(u32, BlockId)>;

/// From tags to candidate blocks. All operations are O(1) expected at a load of at most 2/3.
#[derive(Debug)]
pub(crate) struct TagIndex {
    entries: Vec<Entry>,
    len: usize,
    /// The size at which `num_blocks` entries fit; it is never larger.
    full_size: usize,
}

const SMALLEST: usize = 64;

impl TagIndex {
    /// An empty index for at most `num_blocks` entries; it grows as they come.
    pub(crate) const fn new(num_blocks: usize) -> Self {
        Self { entries: Vec::new(), len: 0, full_size: num_blocks + num_blocks / 2 + 3 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The first candidate under `tag`, almost always the only one.
    #[inline]
    pub(crate) fn first(&self, tag: u32) -> Option<BlockId> {
        if self.entries.is_empty() {
            return None;
        }
        let mut place = self.home(tag);
        while let Some((other, block)) = self.entries[place] {
            if other == tag {
                return Some(block);
            }
            place = self.next(place);
        }
        None
    }

    /// The candidates under `tag`, in no order that matters.
    pub(crate) fn candidates(&self, tag: u32) -> impl Iterator<Item = BlockId> {
        let start = if self.entries.is_empty() { 0 } else { self.home(tag) };
        let (wrapped, first) = self.entries.split_at(start);
        let probed = first.iter().chain(wrapped).map_while(|&entry| entry);
        probed.filter(move |&(other, _)| other == tag).map(|(_, block)| block)
    }

    /// Adds `block` under `tag`.
    pub(crate) fn insert(&mut self, tag: u32, block: BlockId) {
        if (self.len + 1) * 3 > self.entries.len() * 2 {
            self.grow();
        }
        self.place(tag, block);
        self.len += 1;
    }

    /// Takes `block` out from under `tag`.
    pub(crate) fn remove(&mut self, tag: u32, block: BlockId) {
        let mut gap = self.home(tag);
        loop {
            match self.entries[gap] {
                Some(entry) if entry == (tag, block) => break,
                Some(_) => gap = self.next(gap),
                None => unreachable!("block {} is not in the index", block.get()),
            }
        }
        self.len -= 1;
        let mut probe = gap;
        loop {
            probe = self.next(probe);
            let Some((other, _)) = self.entries[probe] else {
                break;
            };
            // An entry moves back into the gap unless its home lies after the gap on its way.
            let (home, size) = (self.home(other), self.entries.len());
            let from_home = |place: usize| {
                if place < home { place + size - home } else { place - home }
            };
            if from_home(gap) < from_home(probe) {
                self.entries[gap] = self.entries[probe];
                gap = probe;
            }
        }
        self.entries[gap] = None;
    }

    /// Takes everything out.
    pub(crate) fn clear(&mut self) {
        self.entries.fill(None);
        self.len = 0;
    }

    /// The place where the probing for `tag` begins: the tag scaled to the size, so that any size serves.
    #[inline]
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.entries.len() as u64) >> 32) as usize
    }

    #[inline]
    fn next(&self, place: usize) -> usize {
        if place + 1 == self.entries.len() { 0 } else { place + 1 }
    }

    fn place(&mut self, tag: u32, block: BlockId) {
        let mut place = self.home(tag);
        while self.entries[place].is_some() {
            place = self.next(place);
        }
        self.entries[place] = Some((tag, block));
    }

    fn grow(&mut self) {
        let size = (self.entries.len() * 2).max(SMALLEST).min(self.full_size);
        let old = std::mem::replace(&mut self.entries, vec![None; size]);
        for (tag, block) in old.into_iter().flatten() {
            self.place(tag, block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_plain_list_also_when_tags_collide() {
        for spread in [u32::MAX, 0xFF00_0000, 0] {
            let mut index = TagIndex::new(200);
            let mut model: Vec<(u32, BlockId)> = Vec::new();
            let mut state = 7_u64;
            for _ in 0..5_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let tag = (state >> 32) as u32 & spread;
                if model.len() > 150 || (state & 1024 != 0 && !model.is_empty()) {
                    let (tag, block) = model.swap_remove((state >> 40) as usize % model.len());
                    index.remove(tag, block);
                } else {
                    let block = BlockId::new((state >> 33) as usize & 0xFFFF);
                    model.push((tag, block));
                    index.insert(tag, block);
                }
                let mut found: Vec<BlockId> = index.candidates(tag).collect();
                let mut expected: Vec<BlockId> =
                    model.iter().filter(|entry| entry.0 == tag).map(|entry| entry.1).collect();
                found.sort();
                expected.sort();
                assert_eq!(found, expected);
                assert_eq!(index.len(), model.len());
            }
        }
    }

    #[test]
    fn entry_takes_eight_bytes() {
        assert_eq!(size_of::<Entry>(), 8);
    }
}
