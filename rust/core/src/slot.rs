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

fn encode(state: State) -> u32 {
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

    pub(crate) fn allocate(&mut self, block: BlockId) {
        if block.index() >= self.words.len() {
            self.words.resize(block.index() + 1, encode(State::Blank));
        }
        self.transit(block, "allocate", |state| match state {
            State::Blank => Some(State::Held { count: 1, published: false }),
            _ => None,
        });
    }

    /// Counts a held block once more; true when it was cached and is claimed by this.
    #[inline]
    pub(crate) fn retain(&mut self, block: BlockId) -> bool {
        let word = &mut self.words[block.index()];
        let claimed = match decode(*word) {
            State::Held { count, .. } if count < COUNT => false,
            State::Cached => true,
            state => refuse(block, "retain", state),
        };
        *word += 1;
        claimed
    }

    #[inline]
    pub(crate) fn release(&mut self, block: BlockId) -> Released {
        let word = &mut self.words[block.index()];
        let released = match decode(*word) {
            State::Held { count: 1, published: true } => Released::ToCached,
            State::Held { count: 1, published: false } => Released::ToBlank,
            State::Held { .. } => Released::StillHeld,
            state => refuse(block, "release", state),
        };
        *word -= 1;
        released
    }

    pub(crate) fn publish(&mut self, block: BlockId) {
        self.transit(block, "publish", |state| match state {
            State::Held { count, published: false } => Some(State::Held { count, published: true }),
            _ => None,
        });
    }

    pub(crate) fn unpublish(&mut self, block: BlockId) {
        self.transit(block, "unpublish", |state| match state {
            State::Held { count: 1, published: true } => Some(State::Held { count: 1, published: false }),
            _ => None,
        });
    }

    /// As [`unpublish`](Self::unpublish), whoever else holds the block.
    pub(crate) fn withdraw(&mut self, block: BlockId) {
        self.transit(block, "withdraw", |state| match state {
            State::Held { count, published: true } => Some(State::Held { count, published: false }),
            _ => None,
        });
    }

    pub(crate) fn evict(&mut self, block: BlockId) {
        self.transit(block, "evict", |state| match state {
            State::Cached => Some(State::Held { count: 1, published: false }),
            _ => None,
        });
    }

    pub(crate) fn forget(&mut self, block: BlockId) {
        self.transit(block, "forget", |state| (state == State::Cached).then_some(State::Blank));
    }

    pub(crate) fn fence(&mut self, block: BlockId) {
        self.transit(block, "fence", |state| (state == State::Blank).then_some(State::Fenced));
    }

    pub(crate) fn unfence(&mut self, block: BlockId) {
        self.transit(block, "unfence", |state| (state == State::Fenced).then_some(State::Blank));
    }

    #[inline]
    fn transit(&mut self, block: BlockId, verb: &str, next: impl FnOnce(State) -> Option<State>) {
        let word = &mut self.words[block.index()];
        let state = decode(*word);
        *word = next(state).map_or_else(|| refuse(block, verb, state), encode);
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
            (|slots, block| _ = slots.retain(block), &[State::Blank, State::Fenced]),
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
