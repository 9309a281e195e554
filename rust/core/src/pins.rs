//! Pins: cached blocks that are kept for prompts to come, whatever happens to the sequences.
//!
//! A pin holds a whole chain from its root, so releasing it tail first keeps children before their parents (L6).

use std::collections::BTreeMap;

use crate::arena::Arena;
use crate::cache::Cache;
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
pub(crate) struct Pins {
    arena: Arena<PinId, Pin>,
    /// By the number of the step and the order of `pin`.
    due: BTreeMap<(u64, u64), PinId>,
    made: u64,
    /// Steps so far, whatever the owner calls one.
    steps: u64,
}

impl Default for Pins {
    fn default() -> Self {
        Self { arena: Arena::new(), due: BTreeMap::new(), made: 0, steps: 0 }
    }
}

impl Pins {
    /// Every pinned block, once for each pin that holds it. For the audit.
    pub(crate) fn blocks(&self) -> Vec<BlockId> {
        self.arena.iter().flat_map(|(_, pin)| pin.table.blocks().iter().copied()).collect()
    }

    /// Holds every full cached block of the prefix that `tokens` and the cache have in common. O(tokens).
    pub(crate) fn pin(
        &mut self,
        cache: &mut Cache,
        tokens: &[i32],
        identity: &Identity,
        expires: Option<u64>,
    ) -> Result<PinId, Error> {
        tokens::check("tokens", tokens)?;
        if expires == Some(0) {
            return Err(RequestError::beyond("expires", "a pin lasts at least one step", 1.0, -1.0).into());
        }
        let (mut chain, mut hits, mut table) = (Vec::new(), Hits::default(), Table::default());
        cache.look_up(&mut chain, tokens, identity, tokens.len() / cache.block_size(), &mut hits);
        cache.adopt(&mut table, &hits);
        self.made += 1;
        let due = expires.map(|steps| (self.steps.saturating_add(steps), self.made));
        let id = self.arena.insert_with(|_| Pin { table, due });
        if let Some(due) = due {
            self.due.insert(due, id);
        }
        Ok(id)
    }

    /// Lets the blocks of a pin go, last first. O(blocks).
    pub(crate) fn unpin(&mut self, cache: &mut Cache, pin: PinId) -> Result<(), Error> {
        let mut pin = self.arena.remove(pin)?;
        if let Some(due) = pin.due {
            self.due.remove(&due);
        }
        cache.shrink(&mut pin.table, 0);
        Ok(())
    }

    /// A step is about to begin: the pins that expire with it are released.
    pub(crate) fn begin_step(&mut self, cache: &mut Cache) {
        self.steps += 1;
        while let Some((&(step, _), &pin)) = self.due.first_key_value()
            && step <= self.steps
        {
            if self.unpin(cache, pin).is_err() {
                unreachable!("an expiring pin is alive");
            }
        }
    }
}
