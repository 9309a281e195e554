//! The copies that copy-on-write owes, from the moment they are decided until their step has ended.
//!
//! ```text
//!   record ─▶ untaken ── take ─▶ taken, until its step ends ─▶ source released
//!                │                    (at once with no step open)
//!                └─ target freed ─▶ dropped, source released
//! ```
//!
//! Each copy holds one count on its source (law L2); the ledger only says which, the cache keeps the counts.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::BlockId;

/// The first `num_tokens` slots of `src` are to be copied to `dst` before the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyOp {
    pub(crate) src: BlockId,
    pub(crate) dst: BlockId,
    pub(crate) num_tokens: usize,
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
    /// The lengths of all copies from a block that still hold it.
    sources: BTreeMap<(BlockId, u64), usize>,
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
        self.sources.insert((op.src, self.made), op.num_tokens);
    }

    /// The untaken copy into `dst`. O(log n).
    pub(crate) fn owed_to(&self, dst: BlockId) -> Option<CopyOp> {
        let serial = self.targets.get(&dst)?;
        self.untaken.get(serial).map(|owed| owed.op)
    }

    /// Drops the untaken copy into `dst`, which was freed; returns its source, to be released.
    pub(crate) fn drop_target(&mut self, dst: BlockId) -> Option<BlockId> {
        let serial = self.targets.remove(&dst)?;
        let op = self.untaken.remove(&serial)?.op;
        self.sources.remove(&(op.src, serial));
        Some(op.src)
    }

    /// How many copies hold `src`, and the longest of them in tokens.
    pub(crate) fn owed_from(&self, src: BlockId) -> (u32, usize) {
        let lengths = self.sources.range((src, 0)..=(src, u64::MAX));
        lengths.fold((0, 0), |(count, longest), (_, &length)| (count + 1, longest.max(length)))
    }

    /// Takes all that is owed. `step_of` says until which open step a copy decided under a step holds its source;
    /// the sources of those that no step holds are returned as well, to be released in order.
    pub(crate) fn take(&mut self, step_of: impl Fn(Option<u64>) -> Option<u64>) -> (Vec<CopyOp>, Vec<BlockId>) {
        self.targets.clear();
        let (mut ops, mut free) = (Vec::with_capacity(self.untaken.len()), Vec::new());
        for (serial, Owed { op, step }) in std::mem::take(&mut self.untaken) {
            ops.push(op);
            if let Some(step) = step_of(step) {
                self.taken.push_back((step, serial, op));
            } else {
                self.sources.remove(&(op.src, serial));
                free.push(op.src);
            }
        }
        (ops, free)
    }

    /// The sources that only `step` held, in the order in which their copies were made.
    pub(crate) fn end(&mut self, step: u64) -> Vec<BlockId> {
        let mut ended = Vec::new();
        self.taken.retain(|&(until, serial, op)| {
            if until == step {
                ended.push((serial, op.src));
            }
            until != step
        });
        ended.sort_unstable();
        for &(serial, src) in &ended {
            self.sources.remove(&(src, serial));
        }
        ended.into_iter().map(|(_, src)| src).collect()
    }

    /// Every source, once for each copy that holds it. For the audit.
    pub(crate) fn sources(&self) -> impl Iterator<Item = BlockId> {
        self.sources.keys().map(|&(src, _)| src)
    }
}
