//! Identifiers: dense block ids, and opaque handles that carry a kind and a generation.
//!
//! A handle is one positive 64-bit integer, so that it crosses into Python and into `int64` arrays as it is:
//!
//! ```text
//! bit 63: 0 | 60..63 kind (1 request, 2 sequence, 3 pin) | 32..60 generation | 0..32 index into the arena
//! ```
//!
//! The module deliberately does not know what a handle points at.

use std::num::NonZeroU32;

/// A physical block of KV memory, dense from 0: device block tables hold these numbers.
///
/// An id is not a number: it cannot be added, defaulted or made from an arbitrary integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(NonZeroU32);

impl BlockId {
    /// The block at `index`; the pool's size (at most 2^31 - 1) was checked when the pool was made.
    #[inline]
    pub(crate) fn new(index: usize) -> Self {
        let raw = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
        raw.map_or_else(|| unreachable!("block index {index} is beyond every pool"), Self)
    }

    /// The id as block tables hold it, `0 <= id <= 2^31 - 2`.
    #[inline]
    #[must_use]
    pub const fn get(self) -> i32 {
        (self.0.get() - 1).cast_signed()
    }

    #[inline]
    pub(crate) const fn index(self) -> usize {
        (self.0.get() - 1) as usize
    }
}

/// Where a handle points: an index into an arena and the generation of its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Key {
    pub(crate) const MAX_GENERATION: u32 = (1 << 28) - 1;

    const fn pack(self, kind: i64) -> i64 {
        (kind << 60) | ((self.generation as i64) << 32) | self.index as i64
    }

    fn unpack(raw: i64, kind: i64) -> Option<Self> {
        let generation = u32::try_from((raw >> 32) & i64::from(Self::MAX_GENERATION)).ok()?;
        let index = u32::try_from(raw & i64::from(u32::MAX)).ok()?;
        (raw >> 60 == kind).then_some(Self { index, generation })
    }
}

/// A handle that an [`Arena`](crate::arena::Arena) gives out.
pub trait HandleId: Copy {
    /// The handle of the tenant at `key`.
    fn from_key(key: Key) -> Self;
    /// The place it points at.
    fn key(self) -> Key;
    /// The handle as a positive integer.
    fn raw(self) -> i64;
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Key);

        impl $name {
            /// The handle as the positive integer that crosses the boundary.
            #[must_use]
            pub const fn raw(self) -> i64 {
                self.0.pack($kind)
            }

            /// Reads a handle back; `None` when `raw` is of another kind.
            ///
            /// Whether it is alive is found out by the call it is given to.
            #[must_use]
            pub fn from_raw(raw: i64) -> Option<Self> {
                Key::unpack(raw, $kind).map(Self)
            }
        }

        impl HandleId for $name {
            fn from_key(key: Key) -> Self {
                Self(key)
            }
            fn key(self) -> Key {
                self.0
            }
            fn raw(self) -> i64 {
                self.0.pack($kind)
            }
        }
    };
}

handle!(
    /// A request: a prompt, its limits, and its sequences.
    RequestId,
    1
);
handle!(
    /// One token stream.
    SequenceId,
    2
);

handle!(
    /// A pin: cached blocks that are kept whatever happens to the sequences.
    PinId,
    3
);

/// What [`abort`](crate::Scheduler::abort) and [`finish`](crate::Scheduler::finish) take: a request, or one of
/// its sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handle {
    /// All sequences of a request.
    Request(RequestId),
    /// One sequence.
    Sequence(SequenceId),
}

impl Handle {
    /// Reads a handle of either kind; `None` when `raw` is neither.
    #[must_use]
    pub fn from_raw(raw: i64) -> Option<Self> {
        let request = RequestId::from_raw(raw).map(Self::Request);
        request.or_else(|| SequenceId::from_raw(raw).map(Self::Sequence))
    }
}

impl From<RequestId> for Handle {
    fn from(id: RequestId) -> Self {
        Self::Request(id)
    }
}

impl From<SequenceId> for Handle {
    fn from(id: SequenceId) -> Self {
        Self::Sequence(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_round_trips_and_kinds_do_not_meet() {
        let key = Key { index: 7, generation: Key::MAX_GENERATION };
        let request = RequestId::from_key(key);
        assert!(request.raw() > 0);
        assert_eq!(RequestId::from_raw(request.raw()), Some(request));
        assert_eq!(SequenceId::from_raw(request.raw()), None);
        for junk in [0, -1, i64::MIN, i64::MAX, 42] {
            assert_eq!(Handle::from_raw(junk), None, "{junk}");
        }
    }

    #[test]
    fn block_id_keeps_its_index() {
        assert_eq!(BlockId::new(0).get(), 0);
        assert_eq!(BlockId::new((1 << 31) - 2).get(), i32::MAX - 1);
        assert_eq!(size_of::<Option<BlockId>>(), 4);
    }
}
