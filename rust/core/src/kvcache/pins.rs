//! Pins: cached blocks that are kept for prompts to come, whatever happens to the sequences.
//!
//! A pin holds a whole chain from its root, so releasing it tail first keeps children before their parents (L6).

use std::collections::BTreeMap;

use super::KvCache;
use crate::arena::Arena;
use crate::error::{Error, RequestError};
use crate::identity::Identity;
use crate::ids::{BlockId, PinId};
use crate::prefix::Hits;
use crate::table::Table;
use crate::tokens;

#[derive(Debug)]
struct Pin {
    table: Table,
    /// Its place among those that expire.
    due: Option<(u64, u64)>,
}

/// All pins, and when which of them expires.
#[derive(Debug)]
pub(super) struct Pins {
    arena: Arena<PinId, Pin>,
    /// By the number of the step and the order of `pin`.
    due: BTreeMap<(u64, u64), PinId>,
    made: u64,
}

impl Default for Pins {
    fn default() -> Self {
        Self { arena: Arena::new(), due: BTreeMap::new(), made: 0 }
    }
}

impl Pins {
    /// Every pinned block, once for each pin that holds it. For the audit.
    pub(super) fn blocks(&self) -> Vec<BlockId> {
        self.arena.iter().flat_map(|(_, pin)| pin.table.blocks().iter().copied()).collect()
    }
}

impl KvCache {
    /// Holds every full cached block of the prefix that `tokens` and it have in common; there may be none.
    ///
    /// With `expires = k` the pin is released by the k-th [`begin_step`](Self::begin_step) from now; its handle is
    /// stale then. Without, it lasts until [`unpin`](Self::unpin). It counts nothing as looked up.
    ///
    /// # Errors
    ///
    /// [`RequestError`] for a negative token, or a pin that expires at once.
    ///
    /// # Complexity
    ///
    /// O(tokens).
    pub fn pin(&mut self, tokens: &[i32], identity: &Identity, expires: Option<u64>) -> Result<PinId, Error> {
        tokens::check("tokens", tokens)?;
        if expires == Some(0) {
            return Err(RequestError::beyond("expires", "a pin lasts at least one step", 1.0, -1.0).into());
        }
        let (mut chain, mut hits, mut table) = (Vec::new(), Hits::default(), Table::default());
        self.cache.look_up(&mut chain, tokens, identity, tokens.len() / self.block_size(), &mut hits);
        self.cache.adopt(&mut table, &hits);
        let begun = self.cache.pool().fences().num_begun();
        let Pins { arena, due, made } = &mut self.pins;
        *made += 1;
        let place = expires.map(|steps| (begun.saturating_add(steps), *made));
        let id = arena.insert_with(|_| Pin { table, due: place });
        if let Some(place) = place {
            due.insert(place, id);
        }
        Ok(id)
    }

    /// Lets the blocks of a pin go, last first.
    ///
    /// # Errors
    ///
    /// A foreign handle, or a pin that was released or has expired.
    ///
    /// # Complexity
    ///
    /// O(blocks).
    pub fn unpin(&mut self, pin: PinId) -> Result<(), Error> {
        let mut pin = self.pins.arena.remove(pin)?;
        if let Some(place) = pin.due {
            self.pins.due.remove(&place);
        }
        self.cache.shrink(&mut pin.table, 0);
        Ok(())
    }

    /// Releases the pins that expire with the step that is about to begin.
    pub(super) fn release_expired(&mut self) {
        let next = self.cache.pool().fences().num_begun() + 1;
        while let Some((&(step, _), &pin)) = self.pins.due.first_key_value()
            && step <= next
        {
            if self.unpin(pin).is_err() {
                unreachable!("an expiring pin is alive");
            }
        }
    }
}
