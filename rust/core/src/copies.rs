//! The copies that copy-on-write owes, from the moment they are decided until their step has ended.
//!
//! ```text
//!   record ─▶ untaken ── take ─▶ taken, until its step ends ─▶ source released
//!                │                    (at once with no step open)
//!                └─ target blank, fenced or evicted ─▶ dropped, source released
//! ```
//!
//! A target that becomes cached stays findable, so its copy stays owed.
//! Each copy holds one count on its source (law L2); the ledger only says which, the cache keeps the counts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::BlockId;

/// The first `num_tokens` slots of `src` are to be copied to `dst` before the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyOp {
    pub(crate) src: BlockId,
    pub(crate) dst: BlockId,
    pub(crate) num_tokens: usize,
}

/// What `take` took.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) ops: Vec<CopyOp>,
    /// Sources that stay held until a step ends, and those that nothing holds for their copy any more.
    pub(crate) held: Vec<BlockId>,
    pub(crate) free: Vec<BlockId>,
}

#[derive(Debug)]
struct Owed {
    op: CopyOp,
    /// The newest step that was open when it was decided.
    step: Option<u64>,
}

/// All copies that are owed or in flight, in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct CopyLedger {
    made: u64,
    untaken: BTreeMap<u64, Owed>,
    targets: BTreeMap<BlockId, u64>,
    taken: VecDeque<(u64, u64, CopyOp)>,
    sources: Sources,
}

/// The copies that still hold their source.
#[derive(Debug, Default)]
struct Sources {
    /// How many hold a block.
    counts: BTreeMap<BlockId, u32>,
    /// Source, tokens and serial of each, so that a source's longest is its last.
    lengths: BTreeSet<(BlockId, usize, u64)>,
}

impl Sources {
    fn add(&mut self, op: CopyOp, serial: u64) {
        *self.counts.entry(op.src).or_default() += 1;
        self.lengths.insert((op.src, op.num_tokens, serial));
    }

    fn remove(&mut self, op: CopyOp, serial: u64) {
        let is_there = self.lengths.remove(&(op.src, op.num_tokens, serial));
        match self.counts.get_mut(&op.src) {
            Some(count) if is_there && *count > 1 => *count -= 1,
            Some(_) if is_there => _ = self.counts.remove(&op.src),
            _ => unreachable!("copy {serial} lets go of block {} twice", op.src.get()),
        }
    }
}

impl CopyLedger {
    /// How many copies were ever made.
    pub(crate) const fn num_made(&self) -> u64 {
        self.made
    }

    /// Records a copy, which belongs to `step`. O(log n).
    pub(crate) fn record(&mut self, op: CopyOp, step: Option<u64>) {
        self.made += 1;
        self.untaken.insert(self.made, Owed { op, step });
        self.targets.insert(op.dst, self.made);
        self.sources.add(op, self.made);
    }

    /// The untaken copy into `dst`. O(log n).
    pub(crate) fn owed_to(&self, dst: BlockId) -> Option<CopyOp> {
        let serial = self.targets.get(&dst)?;
        self.untaken.get(serial).map(|owed| owed.op)
    }

    /// Drops the untaken copy into `dst`, whose content nobody can reach any more; returns its source, to be released.
    /// O(log n).
    pub(crate) fn drop_target(&mut self, dst: BlockId) -> Option<BlockId> {
        let serial = self.targets.remove(&dst)?;
        let op = self.untaken.remove(&serial)?.op;
        self.sources.remove(op, serial);
        Some(op.src)
    }

    /// How many copies hold `src`, and the longest of them in tokens. O(log n).
    pub(crate) fn owed_from(&self, src: BlockId) -> (u32, usize) {
        let Some(&count) = self.sources.counts.get(&src) else { return (0, 0) };
        let longest = self.sources.lengths.range(..=(src, usize::MAX, u64::MAX)).next_back();
        (count, longest.map_or(0, |&(_, length, _)| length))
    }

    /// The untaken copies, oldest first. For the audit.
    pub(crate) fn owed(&self) -> impl Iterator<Item = CopyOp> {
        self.untaken.values().map(|owed| owed.op)
    }

    /// Takes all that is owed. `step_of` says until which open step a copy decided under a step holds its source;
    /// the sources of those that no step holds are returned as well, to be released in order.
    pub(crate) fn take(&mut self, step_of: impl Fn(Option<u64>) -> Option<u64>) -> Taken {
        self.targets.clear();
        let mut all = Taken { ops: Vec::with_capacity(self.untaken.len()), held: Vec::new(), free: Vec::new() };
        for (serial, Owed { op, step }) in std::mem::take(&mut self.untaken) {
            all.ops.push(op);
            if let Some(step) = step_of(step) {
                self.taken.push_back((step, serial, op));
                all.held.push(op.src);
            } else {
                self.sources.remove(op, serial);
                all.free.push(op.src);
            }
        }
        all
    }

    /// Whether nothing is owed. O(1).
    pub(crate) fn is_settled(&self) -> bool {
        self.untaken.is_empty()
    }

    /// The sources that only `step` held, in the order in which their copies were made.
    pub(crate) fn end(&mut self, step: u64) -> Vec<BlockId> {
        self.end_where(|until| until == step)
    }

    /// The sources that `step` and newer ones held, in the order in which their copies were made.
    pub(crate) fn end_from(&mut self, step: u64) -> Vec<BlockId> {
        self.end_where(|until| until >= step)
    }

    fn end_where(&mut self, has_ended: impl Fn(u64) -> bool) -> Vec<BlockId> {
        let mut ended = Vec::new();
        self.taken.retain(|&(until, serial, op)| {
            if has_ended(until) {
                ended.push((serial, op));
            }
            !has_ended(until)
        });
        ended.sort_unstable_by_key(|&(serial, _)| serial);
        for &(serial, op) in &ended {
            self.sources.remove(op, serial);
        }
        ended.into_iter().map(|(_, op)| op.src).collect()
    }

    /// Every source, once for each copy that holds it. For the audit.
    pub(crate) fn sources(&self) -> impl Iterator<Item = BlockId> {
        self.sources.lengths.iter().map(|&(src, ..)| src)
    }
}
