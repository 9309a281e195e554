//! The states of one block, and every legal transition. Nothing else changes a state.
//!
//! ```text
//!            allocate                publish
//!   Blank ────────────▶ Held(n, _) ◀────────▶ Held(n, published)
//!     ▲                   │  │      unpublish         │   ▲
//!     │ unfence   release │  │ fence                  │   │ claim
//!   Fenced ◀──────────────┼──┘               release  ▼   │
//!     ▲       (count 0)   ▼                          Cached ──▶ Held(1, unpublished)   evict
//!     └───────────────  Blank ◀────────────────────────┘                              forget: Cached ▶ Blank
//! ```
//!
//! The enum is what callers see; the storage is one 32-bit word a block, so that sharing a table runs over dense
//! memory. An illegal transition is corruption and panics, in release builds too: a count is never repaired (L2).

use crate::ids::BlockId;

/// What a block is at one moment (law L1: exactly one of these).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Free, with nothing worth keeping.
    Blank,
    /// Free, but a step that may still touch it has not ended.
    Fenced,
    /// Published, and nobody holds it.
    Cached,
    /// `count` holders; findable if `published`.
    Held { count: u32, published: bool },
}

impl State {
    /// Whether it is published, whoever holds it.
    pub(crate) const fn is_findable(self) -> bool {
        matches!(self, Self::Cached | Self::Held { published: true, .. })
    }
}

/// What the release of one count led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// Others hold it.
    StillHeld,
    /// Nobody does, and it stays findable.
    ToCached,
    /// Nobody does, and it is blank.
    ToBlank,
}

const PUBLISHED: u32 = 1 << 31;
const FENCED: u32 = 1 << 30;
const COUNT: u32 = FENCED - 1;

fn decode(word: u32) -> State {
    match (word & PUBLISHED != 0, word & FENCED != 0, word & COUNT) {
        (false, false, 0) => State::Blank,
        (false, true, 0) => State::Fenced,
        (true, false, 0) => State::Cached,
        (published, false, count) => State::Held { count, published },
        _ => unreachable!("block word {word:#x} encodes no state"),
    }
}

/// Given out just now: one holder, not findable.
const SOLE: State = State::Held { count: 1, published: false };

/// Whether between one and `most` hold the block: one comparison, which a fence fails as well.
#[inline]
const fn is_held(word: u32, most: u32) -> bool {
    (word & !PUBLISHED).wrapping_sub(1) < most
}

#[inline]
const fn encode(state: State) -> u32 {
    match state {
        State::Blank => 0,
        State::Fenced => FENCED,
        State::Cached => PUBLISHED,
        State::Held { count, published } => count | if published { PUBLISHED } else { 0 },
    }
}

/// The states of all blocks; those never touched are blank and take no memory yet.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    words: Vec<u32>,
}

impl Slots {
    /// Room for `num_blocks`, not yet touched; `None` when the machine refuses it.
    pub(crate) fn with_room(num_blocks: usize) -> Option<Self> {
        let mut words = Vec::new();
        words.try_reserve_exact(num_blocks).ok()?;
        Some(Self { words })
    }

    #[inline]
    pub(crate) fn state(&self, block: BlockId) -> State {
        self.words.get(block.index()).map_or(State::Blank, |&word| decode(word))
    }

    /// How many hold `block`.
    #[inline]
    pub(crate) fn count(&self, block: BlockId) -> u32 {
        self.words.get(block.index()).map_or(0, |&word| word & COUNT)
    }

    #[inline]
    pub(crate) fn allocate(&mut self, block: BlockId) {
        if block.index() >= self.words.len() {
            self.extend_to(block);
        }
        self.exchange(block, "allocate", State::Blank, SOLE);
    }

    #[cold]
    fn extend_to(&mut self, block: BlockId) {
        self.words.resize(block.index() + 1, encode(State::Blank));
    }

    /// Counts a held block once more; true when it was cached and is claimed by this.
    #[inline]
    pub(crate) fn retain(&mut self, block: BlockId) -> bool {
        let word = &mut self.words[block.index()];
        let claimed = *word == PUBLISHED;
        if !claimed && !is_held(*word, COUNT - 1) {
            refuse(block, "retain", decode(*word));
        }
        *word += 1;
        claimed
    }

    #[inline]
    pub(crate) fn release(&mut self, block: BlockId) -> Released {
        let word = &mut self.words[block.index()];
        if !is_held(*word, COUNT) {
            refuse(block, "release", decode(*word));
        }
        *word -= 1;
        match *word {
            0 => Released::ToBlank,
            PUBLISHED => Released::ToCached,
            _ => Released::StillHeld,
        }
    }

    #[inline]
    pub(crate) fn publish(&mut self, block: BlockId) {
        let word = &mut self.words[block.index()];
        if *word & PUBLISHED != 0 || !is_held(*word, COUNT) {
            refuse(block, "publish", decode(*word));
        }
        *word |= PUBLISHED;
    }

    pub(crate) fn unpublish(&mut self, block: BlockId) {
        self.exchange(block, "unpublish", State::Held { count: 1, published: true }, SOLE);
    }

    /// As [`unpublish`](Self::unpublish), whoever else holds the block.
    pub(crate) fn withdraw(&mut self, block: BlockId) {
        let word = &mut self.words[block.index()];
        if *word & PUBLISHED == 0 || !is_held(*word, COUNT) {
            refuse(block, "withdraw", decode(*word));
        }
        *word &= !PUBLISHED;
    }

    #[inline]
    pub(crate) fn evict(&mut self, block: BlockId) {
        self.exchange(block, "evict", State::Cached, SOLE);
    }

    pub(crate) fn forget(&mut self, block: BlockId) {
        self.exchange(block, "forget", State::Cached, State::Blank);
    }

    pub(crate) fn fence(&mut self, block: BlockId) {
        self.exchange(block, "fence", State::Blank, State::Fenced);
    }

    pub(crate) fn unfence(&mut self, block: BlockId) {
        self.exchange(block, "unfence", State::Fenced, State::Blank);
    }

    #[inline]
    fn exchange(&mut self, block: BlockId, verb: &str, from: State, to: State) {
        let word = &mut self.words[block.index()];
        if *word != encode(from) {
            refuse(block, verb, decode(*word));
        }
        *word = encode(to);
    }
}

#[cold]
fn refuse(block: BlockId, verb: &str, state: State) -> ! {
    unreachable!("block {} cannot {verb} while it is {state:?}", block.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots_in(state: State) -> Slots {
        Slots { words: vec![encode(state)] }
    }

    #[test]
    fn every_state_survives_its_encoding() {
        for state in [
            State::Blank,
            State::Fenced,
            State::Cached,
            State::Held { count: 1, published: false },
            State::Held { count: COUNT, published: true },
        ] {
            assert_eq!(decode(encode(state)), state);
        }
    }

    #[test]
    fn illegal_transitions_panic() {
        type Verb = fn(&mut Slots, BlockId);
        let verbs: [(Verb, &[State]); 3] = [
            (|slots, block| _ = slots.release(block), &[State::Blank, State::Fenced, State::Cached]),
            (
                |slots, block| _ = slots.retain(block),
                &[State::Blank, State::Fenced, State::Held { count: COUNT, published: true }],
            ),
            (
                |slots, block| slots.evict(block),
                &[State::Blank, State::Fenced, State::Held { count: 1, published: true }],
            ),
        ];
        for (verb, states) in verbs {
            for &state in states {
                let outcome = std::panic::catch_unwind(|| verb(&mut slots_in(state), BlockId::new(0)));
                assert!(outcome.is_err(), "{state:?}");
            }
        }
    }

    #[test]
    fn release_leads_where_the_picture_says() {
        let block = BlockId::new(0);
        let cases = [
            (State::Held { count: 2, published: true }, Released::StillHeld, State::Held { count: 1, published: true }),
            (State::Held { count: 1, published: true }, Released::ToCached, State::Cached),
            (State::Held { count: 1, published: false }, Released::ToBlank, State::Blank),
        ];
        for (from, released, to) in cases {
            let mut slots = slots_in(from);
            assert_eq!((slots.release(block), slots.state(block)), (released, to));
        }
    }
}
