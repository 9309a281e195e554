//! The prefix index: which published block holds which tokens after which prefix.
//!
//! Every published block knows its parent, its tokens and its extra key. A look-up follows a chain of hashes from the
//! root and verifies each candidate by these three, so a hit is exact by induction whatever the hash does (law L5).
//! A block that has a findable child is never taken out (law L6). Tokens stay readable after a block was taken out,
//! until it is published again: a sequence may still hold it.
//!
//! ```text
//!   row of a block:   [ tag | parent | key | children | tokens … ]      one piece of memory, so that verifying a
//!                                                                       candidate touches two cache lines at most
//! ```

mod check;
mod keys;

use std::sync::Arc;

use self::keys::{Keys, Recent, hashed};
use crate::hash::ChainHasher;
use crate::identity::{BlockKey, Identity};
use crate::ids::BlockId;
use crate::index::TagIndex;
use crate::intern::{Interner, Symbol};

/// What stands before a block in its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parent {
    /// Nothing: it is the first block under this salt.
    Root(Symbol),
    /// The block of the tokens before.
    Block(BlockId),
}

/// A [`Parent`] in one word: a root is negative, a block is its id.
const ROOT: i32 = i32::MIN;

impl Parent {
    #[inline]
    const fn word(self) -> i32 {
        match self {
            Self::Root(salt) => salt.0.cast_signed() | ROOT,
            Self::Block(block) => block.get(),
        }
    }

    #[inline]
    fn of_word(word: i32) -> Self {
        match usize::try_from(word) {
            Ok(block) => Self::Block(BlockId::new(block)),
            Err(_) => Self::Root(Symbol((word ^ ROOT).cast_unsigned())),
        }
    }
}

/// What is kept of a published block beside its tokens, in the first words of its row.
#[derive(Clone, Copy, Debug)]
struct Record {
    tag: u32,
    parent: Parent,
    key: Symbol,
    children: u32,
}

/// Words before the tokens of a row, and the place of the last of them.
const HEAD: usize = 4;
const CHILDREN: usize = 3;

impl Record {
    #[inline]
    const fn words(self) -> [i32; HEAD] {
        [self.tag.cast_signed(), self.parent.word(), self.key.0.cast_signed(), self.children.cast_signed()]
    }

    #[inline]
    fn of_words([tag, parent, key, children]: [i32; HEAD]) -> Self {
        Self {
            tag: tag.cast_unsigned(),
            parent: Parent::of_word(parent),
            key: Symbol(key.cast_unsigned()),
            children: children.cast_unsigned(),
        }
    }
}

/// One full block of a sequence on its way into, or through, the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link<'a> {
    pub(crate) hash: u64,
    pub(crate) tokens: &'a [i32],
    pub(crate) key: &'a BlockKey<'a>,
}

/// The longest chain that a look-up found.
#[derive(Debug, Default)]
pub(crate) struct Hits {
    pub(crate) blocks: Vec<BlockId>,
    /// Candidates whose hash agreed and whose content did not.
    pub(crate) collisions: u64,
}

/// How many links are looked up at once, so that their cache misses overlap.
const BATCH: usize = 32;

/// The index over published blocks.
#[derive(Debug)]
pub(crate) struct Prefix {
    block_size: usize,
    hasher: ChainHasher,
    index: TagIndex,
    /// A row for each block that was ever published.
    rows: Vec<i32>,
    salts: Interner<Arc<[u8]>>,
    keys: Keys,
    version: u64,
}

impl Prefix {
    /// An empty index over blocks of `block_size`; `None` when the machine refuses the memory.
    pub(crate) fn new(num_blocks: usize, block_size: usize, hasher: ChainHasher) -> Option<Self> {
        let mut rows = Vec::new();
        rows.try_reserve_exact(num_blocks.checked_mul(HEAD + block_size)?).ok()?;
        let index = TagIndex::new(num_blocks);
        let (salts, keys) = (Interner::default(), Keys::default());
        Some(Self { block_size, hasher, index, rows, salts, keys, version: 0 })
    }

    /// Changes whenever a block becomes findable or stops being so.
    pub(crate) const fn version(&self) -> u64 {
        self.version
    }

    /// Appends to `chain` the hashes of the full blocks of `tokens` that it lacks. O(tokens), and O(log spans) for each span that
    /// touches a block.
    pub(crate) fn extend_chain(&self, chain: &mut Vec<u64>, tokens: &[i32], identity: &Identity) {
        let mut before = chain.last().copied();
        let blocks = tokens.chunks_exact(self.block_size).enumerate().skip(chain.len());
        chain.extend(blocks.map(|(block, part)| {
            let key = identity.key_of(block, self.block_size);
            let hash = self.next_hash(before, part, &key, identity);
            before = Some(hash);
            hash
        }));
    }

    /// The hash of a full block after the one with hash `before`; `None` is the root.
    #[inline]
    pub(crate) fn next_hash(
        &self,
        before: Option<u64>,
        tokens: &[i32],
        key: &BlockKey<'_>,
        identity: &Identity,
    ) -> u64 {
        let before = before.unwrap_or_else(|| self.hasher.root(identity.salt()));
        self.hasher.block(before, tokens, &hashed(key))
    }

    /// The longest chain of published blocks equal to the first `limit` blocks of `tokens`. `chain` has their hashes.
    /// O(limit), and O(log spans) for each span that touches a block; what was found replaces what is in `hits`.
    pub(crate) fn look_up(&self, chain: &[u64], tokens: &[i32], identity: &Identity, limit: usize, hits: &mut Hits) {
        hits.blocks.clear();
        hits.collisions = 0;
        let Some(salt) = self.salts.find_bytes(identity.salt()) else {
            return;
        };
        let (mut parent, mut recent) = (Parent::Root(salt), Recent::default());
        hits.blocks.reserve(limit);
        for (batch, hashes) in chain[..limit].chunks(BATCH).enumerate() {
            for &hash in hashes {
                self.index.touch(self.hasher.tag(hash));
            }
            let mut heads = [None; BATCH];
            for (head, &hash) in heads.iter_mut().zip(hashes) {
                *head = self.index.find(self.hasher.tag(hash), |_| true);
            }
            for &head in heads.iter().flatten() {
                self.touch(head);
            }
            for (offset, (&hash, head)) in hashes.iter().zip(heads).enumerate() {
                let block = batch * BATCH + offset;
                let Some(head) = head else { return };
                let Some(key) = self.keys.find(&identity.key_of(block, self.block_size), &mut recent) else {
                    return;
                };
                let part = &tokens[block * self.block_size..][..self.block_size];
                let found = if self.is_equal(head, parent, key, part) {
                    Some(head)
                } else {
                    self.find(parent, hash, key, part, &mut hits.collisions)
                };
                let Some(found) = found else { return };
                hits.blocks.push(found);
                parent = Parent::Block(found);
            }
        }
    }

    /// The published block equal to `link` after `parent`.
    pub(crate) fn twin(&self, parent: Parent, link: Link<'_>, collisions: &mut u64) -> Option<BlockId> {
        let key = self.keys.find(link.key, &mut Recent::default())?;
        self.find(parent, link.hash, key, link.tokens, collisions)
    }

    /// The root of everything published under the identity's salt, if there is anything.
    pub(crate) fn root(&self, identity: &Identity) -> Option<Parent> {
        self.salts.find_bytes(identity.salt()).map(Parent::Root)
    }

    /// Makes `block` findable as `link` after `parent`; `None` is the root of `identity`'s salt.
    pub(crate) fn insert(&mut self, block: BlockId, parent: Option<BlockId>, link: Link<'_>, identity: &Identity) {
        let parent = match parent {
            Some(parent) => {
                *self.children_mut(parent) += 1;
                Parent::Block(parent)
            }
            None => Parent::Root(self.salts.acquire_bytes(identity.salt())),
        };
        let (tag, key) = (self.hasher.tag(link.hash), self.keys.acquire(link.key));
        let (start, len) = (block.index() * self.row_len(), self.row_len());
        if start >= self.rows.len() {
            self.rows.resize(start + len, 0);
        }
        let (head, tokens) = self.rows[start..start + len].split_at_mut(HEAD);
        head.copy_from_slice(&Record { tag, parent, key, children: 0 }.words());
        tokens.copy_from_slice(link.tokens);
        self.index.insert(tag, block);
        self.version += 1;
    }

    /// Makes `block`, which has no findable child, unfindable.
    pub(crate) fn remove(&mut self, block: BlockId) {
        let Record { tag, parent, key, children } = self.record(block);
        if children != 0 {
            unreachable!("block {} is taken out before its {children} children (L6)", block.get());
        }
        self.index.remove(tag, block);
        self.version += 1;
        self.keys.release(key);
        match parent {
            Parent::Root(salt) => self.salts.release(salt),
            Parent::Block(parent) => *self.children_mut(parent) -= 1,
        }
    }

    /// [`remove`](Self::remove) for each of `blocks`, in order.
    pub(crate) fn remove_many(&mut self, blocks: &[BlockId]) {
        for batch in blocks.chunks(BATCH) {
            // Rows and places in the index are touched first, so that their cache misses overlap.
            let mut tags = [0; BATCH];
            for (tag, &block) in tags.iter_mut().zip(batch) {
                *tag = self.record(block).tag;
            }
            for &tag in &tags[..batch.len()] {
                self.index.touch(tag);
            }
            for &block in batch {
                self.remove(block);
            }
        }
    }

    /// Makes every block unfindable. O(pool).
    pub(crate) fn forget_all(&mut self) {
        self.index.clear();
        let row_len = self.row_len();
        self.rows.chunks_exact_mut(row_len).for_each(|row| row[CHILDREN] = 0);
        self.salts = Interner::default();
        self.keys = Keys::default();
        self.version += 1;
    }

    pub(crate) fn has_children(&self, block: BlockId) -> bool {
        self.record(block).children > 0
    }

    /// The parent of a published block, unless it is a root.
    pub(crate) fn parent(&self, block: BlockId) -> Option<BlockId> {
        match self.record(block).parent {
            Parent::Root(_) => None,
            Parent::Block(parent) => Some(parent),
        }
    }

    /// The tokens of a block that was published by its present holder.
    pub(crate) fn tokens(&self, block: BlockId) -> &[i32] {
        &self.row(block)[HEAD..]
    }

    #[inline]
    const fn row_len(&self) -> usize {
        HEAD + self.block_size
    }

    #[inline]
    fn row(&self, block: BlockId) -> &[i32] {
        &self.rows[block.index() * self.row_len()..][..self.row_len()]
    }

    /// Brings the row of `block` into the cache; changes nothing.
    #[inline]
    fn touch(&self, block: BlockId) {
        let row = self.row(block);
        std::hint::black_box((row.first().copied(), row.last().copied()));
    }

    #[inline]
    fn record(&self, block: BlockId) -> Record {
        let Some(words) = self.row(block).first_chunk() else { unreachable!("a row has a head") };
        Record::of_words(*words)
    }

    #[inline]
    fn children_mut(&mut self, block: BlockId) -> &mut i32 {
        let place = block.index() * self.row_len() + CHILDREN;
        &mut self.rows[place]
    }

    #[inline]
    fn is_equal(&self, block: BlockId, parent: Parent, key: Symbol, tokens: &[i32]) -> bool {
        let Some((&[_, before, symbol, _], own)) = self.row(block).split_first_chunk() else { return false };
        before == parent.word() && symbol == key.0.cast_signed() && own == tokens
    }

    fn find(&self, parent: Parent, hash: u64, key: Symbol, tokens: &[i32], collisions: &mut u64) -> Option<BlockId> {
        self.index.find(self.hasher.tag(hash), |candidate| {
            let is_equal = self.is_equal(candidate, parent, key, tokens);
            *collisions += u64::from(!is_equal);
            is_equal
        })
    }
}
