//! Where a block's hash says it may be found: open addressing over (tag, block) pairs, linear probing in order of tags.
//!
//! The 32-bit tag is the upper half of the block's chained hash and also decides the home place, so that looking,
//! moving and deleting touch this table alone. Home places rise with the tags, and so do the entries themselves: a
//! look-up ends at the first larger tag, and a deletion, which moves later entries back, at the first that is at home.
//! Tags may collide; the caller verifies every candidate.

use crate::ids::BlockId;

type Entry = Option<(u32, BlockId)>;

/// From tags to candidate blocks. All operations are O(1) expected at a load of at most 5/8.
#[derive(Debug)]
pub(crate) struct TagIndex {
    /// As many as there are home places, and what lies beyond the last.
    entries: Vec<Entry>,
    num_homes: usize,
    len: usize,
    /// The size at which `num_blocks` entries fit; it is never larger.
    full_size: usize,
}

const SMALLEST: usize = 64;

impl TagIndex {
    /// An empty index for at most `num_blocks` entries; it grows as they come.
    pub(crate) const fn new(num_blocks: usize) -> Self {
        Self { entries: Vec::new(), num_homes: 0, len: 0, full_size: num_blocks / 5 * 8 + 8 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The first candidate under `tag` that `accepts`, in no order that matters.
    #[inline]
    pub(crate) fn find(&self, tag: u32, mut accepts: impl FnMut(BlockId) -> bool) -> Option<BlockId> {
        let mut place = self.home(tag);
        while let Some(&Some((other, block))) = self.entries.get(place)
            && other <= tag
        {
            if other == tag && accepts(block) {
                return Some(block);
            }
            place += 1;
        }
        None
    }

    /// Brings the place where the probing for `tag` begins into the cache; changes nothing.
    #[inline]
    pub(crate) fn touch(&self, tag: u32) {
        std::hint::black_box(self.entries.get(self.home(tag)).is_some_and(Option::is_some));
    }

    /// Adds `block` under `tag`.
    pub(crate) fn insert(&mut self, tag: u32, block: BlockId) {
        if (self.len + 1) * 8 > self.num_homes * 5 {
            self.grow();
        }
        self.place(tag, block);
        self.len += 1;
    }

    /// Takes `block` out from under `tag`.
    pub(crate) fn remove(&mut self, tag: u32, block: BlockId) {
        let mut gap = self.home(tag);
        loop {
            match self.entries.get(gap) {
                Some(&Some((_, other))) if other == block => break,
                Some(Some(_)) => gap += 1,
                _ => unreachable!("block {} is not in the index", block.get()),
            }
        }
        self.len -= 1;
        while let Some(&Some(entry)) = self.entries.get(gap + 1)
            && self.home(entry.0) <= gap
        {
            self.entries[gap] = Some(entry);
            gap += 1;
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
        ((u64::from(tag) * self.num_homes as u64) >> 32) as usize
    }

    fn place(&mut self, tag: u32, block: BlockId) {
        let mut place = self.home(tag);
        while let Some(&Some((other, _))) = self.entries.get(place)
            && other < tag
        {
            place += 1;
        }
        let mut moved = Some((tag, block));
        for entry in &mut self.entries[place..] {
            moved = std::mem::replace(entry, moved);
            if moved.is_none() {
                return;
            }
        }
        self.entries.push(moved);
    }

    fn grow(&mut self) {
        self.num_homes = (self.num_homes * 2).max(SMALLEST).min(self.full_size);
        let old = std::mem::replace(&mut self.entries, vec![None; self.num_homes]);
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
                let mut found = Vec::new();
                let none = index.find(tag, |block| {
                    found.push(block);
                    false
                });
                assert_eq!(none, None);
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
