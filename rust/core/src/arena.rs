//! Storage whose entries are reached by generational handles: a dead handle is told from a living one, and never
//! reaches somebody else's entry.
//!
//! A place whose generations are used up is retired, so that no handle is ever given out twice.

use std::marker::PhantomData;

use crate::error::Error;
use crate::ids::{HandleId, Key};

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    tenant: Option<T>,
}

/// Entries of type `T` under handles of type `I`.
#[derive(Debug)]
pub(crate) struct Arena<I, T> {
    places: Vec<Place<T>>,
    vacant: Vec<u32>,
    len: usize,
    kind: PhantomData<I>,
}

impl<I: HandleId, T> Arena<I, T> {
    pub(crate) const fn new() -> Self {
        Self { places: Vec::new(), vacant: Vec::new(), len: 0, kind: PhantomData }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Stores what `make` builds from the handle it will have. O(1).
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(I) -> T) -> I {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, tenant: None });
            u32::try_from(self.places.len() - 1).unwrap_or_else(|_| unreachable!("2^32 entries do not fit in memory"))
        });
        let place = &mut self.places[index as usize];
        let id = I::from_key(Key { index, generation: place.generation });
        place.tenant = Some(make(id));
        self.len += 1;
        id
    }

    /// Takes an entry out; its handle is stale from now on. O(1).
    pub(crate) fn remove(&mut self, id: I) -> Result<T, Error> {
        let index = self.find(id)?;
        let place = &mut self.places[index];
        let Some(tenant) = place.tenant.take() else { unreachable!("find returned a place without a tenant") };
        if place.generation < Key::MAX_GENERATION {
            place.generation += 1;
            self.vacant.push(id.key().index);
        }
        self.len -= 1;
        Ok(tenant)
    }

    pub(crate) fn get(&self, id: I) -> Result<&T, Error> {
        let index = self.find(id)?;
        Ok(self.at(index))
    }

    pub(crate) fn get_mut(&mut self, id: I) -> Result<&mut T, Error> {
        let index = self.find(id)?;
        Ok(self.at_mut(index))
    }

    /// The entry of a handle that the caller itself keeps alive.
    #[inline]
    pub(crate) fn live(&self, id: I) -> &T {
        self.at(id.key().index as usize)
    }

    /// As [`live`](Self::live), to change it.
    #[inline]
    pub(crate) fn live_mut(&mut self, id: I) -> &mut T {
        self.at_mut(id.key().index as usize)
    }

    /// All living entries, in the order of their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        self.places.iter().zip(0_u32..).filter_map(|(place, index)| {
            let id = I::from_key(Key { index, generation: place.generation });
            place.tenant.as_ref().map(|tenant| (id, tenant))
        })
    }

    fn find(&self, id: I) -> Result<usize, Error> {
        let Key { index, generation } = id.key();
        let unknown = Error::UnknownHandle { handle: id.raw() };
        let place = self.places.get(index as usize).ok_or(unknown.clone())?;
        match generation.cmp(&place.generation) {
            std::cmp::Ordering::Equal if place.tenant.is_some() => Ok(index as usize),
            std::cmp::Ordering::Less => Err(Error::StaleHandle { handle: id.raw() }),
            // Only a retired place has no tenant under its own generation once it was used.
            std::cmp::Ordering::Equal if generation == Key::MAX_GENERATION => {
                Err(Error::StaleHandle { handle: id.raw() })
            }
            std::cmp::Ordering::Equal | std::cmp::Ordering::Greater => Err(unknown),
        }
    }

    fn at(&self, index: usize) -> &T {
        match &self.places[index].tenant {
            Some(tenant) => tenant,
            None => unreachable!("place {index} is vacant though its handle is kept alive"),
        }
    }

    fn at_mut(&mut self, index: usize) -> &mut T {
        match &mut self.places[index].tenant {
            Some(tenant) => tenant,
            None => unreachable!("place {index} is vacant though its handle is kept alive"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SequenceId;

    #[test]
    fn dead_handle_is_stale_and_unknown_one_unknown() {
        let mut arena = Arena::<SequenceId, u8>::new();
        let a = arena.insert_with(|_| 1);
        assert_eq!(arena.remove(a), Ok(1));
        assert_eq!(arena.get(a), Err(Error::StaleHandle { handle: a.raw() }));
        let b = arena.insert_with(|_| 2);
        assert_ne!(a, b, "the place is the same, the generation is not");
        assert_eq!(arena.get(b), Ok(&2));
        let never = SequenceId::from_key(Key { index: 9, generation: 0 });
        assert_eq!(arena.get(never), Err(Error::UnknownHandle { handle: never.raw() }));
        let later = SequenceId::from_key(Key { index: 0, generation: 5 });
        assert_eq!(arena.remove(later), Err(Error::UnknownHandle { handle: later.raw() }));
    }

    #[test]
    fn place_is_retired_when_its_generations_are_used_up() {
        let mut arena = Arena::<SequenceId, u8>::new();
        let first = arena.insert_with(|_| 1);
        arena.places[0].generation = Key::MAX_GENERATION;
        let last = SequenceId::from_key(Key { index: 0, generation: Key::MAX_GENERATION });
        assert_eq!(arena.remove(last), Ok(1));
        assert_eq!(arena.get(last), Err(Error::StaleHandle { handle: last.raw() }));
        assert_eq!(arena.get(first), Err(Error::StaleHandle { handle: first.raw() }));
        assert_eq!(arena.insert_with(|_| 2).key().index, 1, "the used-up place is not given again");
    }
}
