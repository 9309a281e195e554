//! Refusals of the allocator's calls.

use octavo_core::{CacheConfig, Error, ExtraKey, Identity, KvCache, RequestError, Room, SequenceId, StateError};

/// A cache in a busy state: a shared tail, cached blocks, a copy not taken, a step open.
struct Busy {
    cache: KvCache,
    parent: SequenceId,
    child: SequenceId,
    closed: SequenceId,
}

fn busy() -> Busy {
    let config = CacheConfig { block_size: 2, ..CacheConfig::new(8) };
    let mut cache = KvCache::new(&config).unwrap();
    let public = Identity::default();
    let closed = cache.open(&[7, 7, 7], &public).unwrap();
    assert_eq!(cache.reserve(closed, 3).unwrap(), Room::Granted);
    cache.advance(closed, &[7, 7, 7]).unwrap();
    cache.close(closed).unwrap();
    let parent = cache.open(&[1, 2, 3], &public).unwrap();
    assert_eq!(cache.reserve(parent, 3).unwrap(), Room::Granted);
    cache.advance(parent, &[1, 2, 3]).unwrap();
    let child = cache.fork(parent).unwrap();
    cache.begin_step();
    assert_eq!(cache.reserve(child, 4).unwrap(), Room::Granted);
    Busy { cache, parent, child, closed }
}

impl Busy {
    /// All that can be read, and what the next calls would give.
    fn snapshot(&self) -> String {
        let Self { cache, parent, child, .. } = self;
        let read = |seq: SequenceId| {
            let table: Vec<i32> = cache.table(seq).unwrap().iter().map(|id| id.get()).collect();
            (table, cache.num_computed(seq).unwrap(), cache.num_reserved(seq).unwrap())
        };
        let hit = cache.match_prefix(&[7, 7, 7], &Identity::default()).unwrap();
        format!("{:?} {:?} {:?} {hit} {}", read(*parent), read(*child), cache.stats(), cache.draw())
    }

    /// Lets the rest of the state show itself: orders, copies, fences.
    fn epilogue(mut self) -> String {
        let copies = self.cache.take_ops().copies;
        self.cache.close(self.parent).unwrap();
        self.cache.close(self.child).unwrap();
        self.cache.end_step(1).unwrap();
        self.cache.audit().unwrap();
        let available = self.cache.stats().available as usize;
        let seq = self.cache.open(&[], &Identity::default()).unwrap();
        assert_eq!(self.cache.reserve(seq, available * 2).unwrap(), Room::Granted);
        let order: Vec<i32> = self.cache.table(seq).unwrap().iter().map(|id| id.get()).collect();
        format!("{copies:?} {order:?} {:?}", self.cache.stats())
    }
}

/// Calls `provoke` on a busy cache, twice; the state must be as if it had not been called.
fn refused<T>(provoke: impl Fn(&mut Busy) -> Result<T, Error>) -> Error {
    let mut state = busy();
    let before = state.snapshot();
    let Err(first) = provoke(&mut state) else { panic!("accepted") };
    let Err(second) = provoke(&mut state) else { panic!("accepted the second time") };
    assert_eq!(first, second);
    assert_eq!(state.snapshot(), before, "after {first}");
    state.cache.audit().unwrap();
    assert_eq!(state.epilogue(), busy().epilogue(), "after {first}");
    assert!(!first.to_string().is_empty());
    first
}

fn request_error(error: Error) -> RequestError {
    match error {
        Error::Request(error) => error,
        other => panic!("another error: {other}"),
    }
}

fn state_error(error: Error) -> StateError {
    match error {
        Error::State(error) => error,
        other => panic!("another error: {other}"),
    }
}

fn never_issued() -> SequenceId {
    SequenceId::from_raw((2 << 60) | 0x3039).unwrap()
}

/// Every call that takes a sequence, on the handle that `which` gives.
fn on_handle(which: impl Fn(&Busy) -> SequenceId + Copy) -> Vec<Error> {
    vec![
        refused(|state| state.cache.num_computed(which(state))),
        refused(|state| state.cache.num_reserved(which(state))),
        refused(|state| state.cache.reserve(which(state), 1)),
        refused(|state| state.cache.can_reserve(which(state), 1)),
        refused(|state| state.cache.advance(which(state), &[-1])),
        refused(|state| state.cache.truncate(which(state), 99)),
        refused(|state| state.cache.fork(which(state))),
        refused(|state| state.cache.close(which(state))),
        refused(|state| state.cache.table(which(state)).map(<[_]>::to_vec)),
        refused(|state| state.cache.csr(&[state.parent, which(state)], &[1])),
        refused(|state| state.cache.slots(&[state.parent, which(state)], &[0], &[1])),
    ]
}

#[test]
fn test_dead_handles_are_stale() {
    for error in on_handle(|state| state.closed) {
        let raw = busy().closed.raw();
        assert_eq!(error, Error::StaleHandle { handle: raw });
    }
}

#[test]
fn test_handles_never_issued_are_unknown() {
    for error in on_handle(|_| never_issued()) {
        assert_eq!(error, Error::UnknownHandle { handle: never_issued().raw() });
    }
}

#[test]
fn test_a_stale_handle_never_reaches_the_sequence_in_its_place() {
    let mut state = busy();
    let next = state.cache.open(&[1], &Identity::default()).unwrap();
    assert_ne!(next, state.closed);
    assert_eq!(state.cache.close(state.closed), Err(Error::StaleHandle { handle: state.closed.raw() }));
    assert!(state.cache.num_computed(next).is_ok());
}

#[test]
fn test_the_kind_of_a_handle_is_checked() {
    let state = busy();
    assert!(state.parent.raw() > 0);
    assert_eq!(SequenceId::from_raw(state.parent.raw()), Some(state.parent));
    assert_eq!(octavo_core::RequestId::from_raw(state.parent.raw()), None);
    for raw in [0, 1, -1, i64::MIN, i64::MAX, 3 << 60] {
        assert_eq!(SequenceId::from_raw(raw), None, "{raw}");
        assert_eq!(octavo_core::RequestId::from_raw(raw), None, "{raw}");
    }
}

#[test]
fn test_negative_tokens_are_refused() {
    let public = Identity::default();
    let errors = [
        refused(|state| state.cache.open(&[1, -1], &public)),
        refused(|state| state.cache.match_prefix(&[i32::MIN], &public)),
        refused(|state| state.cache.advance(state.child, &[-1])),
    ];
    for error in errors {
        assert_eq!(request_error(error).argument, "tokens");
    }
}

#[test]
fn test_advance_beyond_the_reservation_is_refused() {
    state_error(refused(|state| state.cache.advance(state.parent, &[1])));
    state_error(refused(|state| state.cache.advance(state.child, &[1, 1])));
}

#[test]
fn test_truncate_beyond_the_length_is_refused() {
    state_error(refused(|state| state.cache.truncate(state.parent, 4)));
    state_error(refused(|state| state.cache.truncate(state.child, usize::MAX)));
}

#[test]
fn test_a_full_pool_is_an_outcome() {
    let mut state = busy();
    let before = state.snapshot();
    for num_tokens in [40, 1 << 20, usize::MAX] {
        assert!(!state.cache.can_reserve(state.parent, num_tokens).unwrap());
        let room = state.cache.reserve(state.parent, num_tokens).unwrap();
        let Room::Short { needed, available } = room else { panic!("granted") };
        assert!(needed > available);
    }
    assert_eq!(state.snapshot(), before);
    assert_eq!(state.epilogue(), busy().epilogue());
}

#[test]
fn test_a_copy_over_an_untaken_copy_that_is_too_short_is_refused() {
    let provoke = |state: &mut Busy| {
        let grandchild = state.cache.fork(state.child).unwrap();
        let result = state.cache.reserve(grandchild, 5);
        state.cache.close(grandchild).unwrap();
        result
    };
    // The child's tail has one token that was copied and none computed since: the chain resolves.
    let mut state = busy();
    assert_eq!(provoke(&mut state).unwrap(), Room::Granted);
    let config = CacheConfig { block_size: 4, ..CacheConfig::new(8) };
    let mut cache = KvCache::new(&config).unwrap();
    let parent = cache.open(&[], &Identity::default()).unwrap();
    assert_eq!(cache.reserve(parent, 1).unwrap(), Room::Granted);
    cache.advance(parent, &[1]).unwrap();
    let child = cache.fork(parent).unwrap();
    assert_eq!(cache.reserve(child, 2).unwrap(), Room::Granted);
    cache.advance(child, &[2]).unwrap();
    let grandchild = cache.fork(child).unwrap();
    let before = (cache.draw(), cache.stats());
    let error = state_error(cache.reserve(grandchild, 3).unwrap_err());
    assert!(error.message.contains("take_ops"), "{error}");
    assert!(!cache.can_reserve(grandchild, 3).unwrap(), "it answers, and does not fail");
    assert_eq!((cache.draw(), cache.stats()), before);
    assert_eq!(cache.take_ops().copies, [[0, 1, 1]]);
    assert_eq!(cache.reserve(grandchild, 3).unwrap(), Room::Granted);
    assert_eq!(cache.take_ops().copies, [[1, 2, 2]]);
}

#[test]
fn test_lists_of_different_lengths_are_refused() {
    request_error(refused(|state| state.cache.csr(&[state.parent], &[])));
    request_error(refused(|state| state.cache.csr(&[state.parent], &[1, 1])));
    request_error(refused(|state| state.cache.slots(&[state.parent], &[0], &[])));
    request_error(refused(|state| state.cache.slots(&[state.parent], &[0, 0], &[1])));
}

#[test]
fn test_views_beyond_the_reservation_are_refused() {
    state_error(refused(|state| state.cache.csr(&[state.parent], &[4])));
    state_error(refused(|state| state.cache.csr(&[state.child], &[usize::MAX])));
    state_error(refused(|state| state.cache.slots(&[state.parent], &[3], &[1])));
    state_error(refused(|state| state.cache.slots(&[state.parent], &[usize::MAX], &[2])));
}

#[test]
fn test_steps_end_once_and_oldest_first() {
    state_error(refused(|state| state.cache.end_step(0)));
    state_error(refused(|state| state.cache.end_step(2)));
    state_error(refused(|state| state.cache.end_step(u64::MAX)));
}

#[test]
fn test_malformed_extra_keys_are_refused() {
    for (start, end, kind) in [(2, Some(2), "k"), (3, Some(1), "k"), (0, Some(0), "k"), (0, None, "")] {
        let error = ExtraKey::new(start, end, kind, b"v").unwrap_err();
        assert!(error.argument.starts_with("extra_keys"), "{error}");
    }
    assert!(ExtraKey::new(0, Some(1), "k", b"").is_ok());
}

#[test]
fn test_clear_refuses_while_anything_is_in_use() {
    let mut state = busy();
    let before = state.snapshot();
    assert!(!state.cache.clear());
    assert_eq!(state.snapshot(), before);
    assert_eq!(state.epilogue(), busy().epilogue());
}
