//! The waiting sequences: a binary heap that knows where each of them stands, so that any can be taken out.

use crate::ids::{HandleId, SequenceId};
use crate::sched::rank::Rank;

/// An indexed binary heap, smallest rank first. Push, pop and remove are O(log n); none of them searches.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    heap: Vec<(Rank, SequenceId)>,
    /// Where each sequence stands, by the index of its handle.
    places: Vec<Option<u32>>,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// The first in order.
    pub(crate) fn peek(&self) -> Option<SequenceId> {
        self.heap.first().map(|&(_, seq)| seq)
    }

    pub(crate) fn push(&mut self, rank: Rank, seq: SequenceId) {
        let index = seq.key().index as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, None);
        }
        self.heap.push((rank, seq));
        self.rise(self.heap.len() - 1);
    }

    /// Takes `seq` out, wherever it stands; false when it does not wait.
    pub(crate) fn remove(&mut self, seq: SequenceId) -> bool {
        let place = self.places.get_mut(seq.key().index as usize).and_then(Option::take);
        let Some(place) = place.map(|place| place as usize) else {
            return false;
        };
        let last = self.heap.len() - 1;
        self.heap.swap(place, last);
        self.heap.truncate(last);
        if place < last {
            self.rise(place);
            self.sink(place);
        }
        true
    }

    /// Ranks everybody anew. O(n).
    pub(crate) fn rerank(&mut self, rank: impl Fn(SequenceId) -> Rank) {
        for (old, seq) in &mut self.heap {
            *old = rank(*seq);
        }
        for place in (0..self.heap.len()).rev() {
            self.sink(place);
        }
    }

    /// Everybody who waits, in no order that matters.
    pub(crate) fn iter(&self) -> impl Iterator<Item = SequenceId> {
        self.heap.iter().map(|&(_, seq)| seq)
    }

    /// Whether the heap is one, and knows where everybody stands. For the audit.
    pub(crate) fn is_sound(&self) -> bool {
        let ordered = (1..self.heap.len()).all(|place| self.heap[(place - 1) / 2].0 <= self.heap[place].0);
        let placed = self
            .heap
            .iter()
            .zip(0..)
            .all(|((_, seq), place)| self.places.get(seq.key().index as usize) == Some(&Some(place)));
        ordered && placed && self.places.iter().flatten().count() == self.heap.len()
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 && self.heap[place].0 < self.heap[(place - 1) / 2].0 {
            self.heap.swap(place, (place - 1) / 2);
            self.note(place);
            place = (place - 1) / 2;
        }
        self.note(place);
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let (left, right) = (2 * place + 1, 2 * place + 2);
            let mut least = place;
            for child in [left, right] {
                if child < self.heap.len() && self.heap[child].0 < self.heap[least].0 {
                    least = child;
                }
            }
            if least == place {
                return self.note(place);
            }
            self.heap.swap(place, least);
            self.note(place);
            place = least;
        }
    }

    fn note(&mut self, place: usize) {
        let index = self.heap[place].1.key().index as usize;
        self.places[index] = u32::try_from(place).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Key;

    fn seq(index: u32) -> SequenceId {
        SequenceId::from_key(Key { index, generation: 0 })
    }

    fn rank(order: u32) -> Rank {
        Rank { class: 0.0, key: 0.0, arrival: f64::from(order % 7), order: u64::from(order), index: 0 }
    }

    #[test]
    fn gives_the_order_of_ranks_whoever_was_taken_out() {
        let mut queue = Queue::default();
        for index in 0..200 {
            queue.push(rank(index), seq(index));
        }
        for index in (0..200).step_by(3) {
            assert!(queue.remove(seq(index)));
            assert!(!queue.remove(seq(index)));
            assert!(queue.is_sound());
        }
        let mut expected: Vec<u32> = (0..200).filter(|index| index % 3 != 0).collect();
        expected.sort_by_key(|&index| rank(index));
        let mut order = Vec::new();
        while let Some(first) = queue.peek() {
            order.push(first.key().index);
            queue.remove(first);
        }
        assert_eq!(order, expected);
    }

    #[test]
    fn rerank_orders_everybody_anew() {
        let mut queue = Queue::default();
        for index in 0..50 {
            queue.push(rank(index), seq(index));
        }
        queue.rerank(|seq| {
            let key = -f64::from(seq.key().index);
            Rank { class: 0.0, key, arrival: 0.0, order: 0, index: 0 }
        });
        assert!(queue.is_sound());
        assert_eq!(queue.peek(), Some(seq(49)));
    }
}
