//! Who sits in which row, and the tokens each has been given.

use crate::num::index;
use crate::record::{EmissionRun, Record};
use octavo_core::SequenceId;
use std::collections::BTreeMap;

/// One row of the batch: the request in it and its open run of passes with a token.
#[derive(Clone, Copy, Debug, Default)]
struct Seat {
    request: u32,
    emitted: u32,
    wanted: u32,
    run_first: u32,
    run_len: u32,
}

/// A request that the scheduler knows and that has not ended.
#[derive(Clone, Copy, Debug)]
struct Live {
    request: u32,
    row: Option<u32>,
    was_admitted: bool,
}

/// The requests that the scheduler knows, waiting or in rows.
#[derive(Debug)]
pub(crate) struct Batch {
    seats: Vec<Seat>,
    live: BTreeMap<SequenceId, Live>,
    running: usize,
}

/// What [`Batch::seat`] found.
pub(crate) struct Seated {
    pub(crate) request: u32,
    pub(crate) is_first_admission: bool,
    pub(crate) has_emitted: bool,
}

impl Batch {
    pub(crate) fn new(rows: usize) -> Self {
        Self { seats: vec![Seat::default(); rows], live: BTreeMap::new(), running: 0 }
    }

    pub(crate) fn free_rows(&self) -> usize {
        self.seats.len() - self.running
    }

    pub(crate) fn num_waiting(&self) -> usize {
        self.live.len() - self.running
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// The scheduler was given a request.
    pub(crate) fn wait(&mut self, seq: SequenceId, request: u32) {
        self.live.insert(seq, Live { request, row: None, was_admitted: false });
    }

    /// Puts a sequence that prefills into its row, unless it sits there already. `None`: unknown sequence.
    pub(crate) fn seat(&mut self, seq: SequenceId, row: u32, wanted: &[u32], record: &Record) -> Option<Seated> {
        let live = self.live.get_mut(&seq)?;
        let request = live.request;
        let is_first_admission = !live.was_admitted;
        let seat = self.seats.get_mut(index(row))?;
        if live.row.is_none() {
            live.row = Some(row);
            live.was_admitted = true;
            self.running += 1;
            let emitted = record.requests[index(request)].emitted;
            *seat = Seat { request, emitted, wanted: wanted[index(request)], ..Seat::default() };
        }
        Some(Seated { request, is_first_admission, has_emitted: seat.emitted > 0 })
    }

    /// The request in a row is given one token by a pass; whether that was its last.
    ///
    /// # Complexity
    /// O(1), without a look-up: this runs once a token.
    #[inline]
    pub(crate) fn emit(&mut self, row: u32, pass: u32, record: &mut Record) -> (u32, bool) {
        let seat = &mut self.seats[index(row)];
        if seat.run_len > 0 && seat.run_first + seat.run_len == pass {
            seat.run_len += 1;
        } else {
            close_run(seat, record);
            seat.run_first = pass;
            seat.run_len = 1;
        }
        seat.emitted += 1;
        (seat.request, seat.emitted == seat.wanted)
    }

    /// A sequence lost its row and waits again; its request.
    pub(crate) fn stand_up(&mut self, seq: SequenceId, record: &mut Record) -> Option<u32> {
        let live = self.live.get_mut(&seq)?;
        let request = live.request;
        if let Some(row) = live.row.take() {
            self.running -= 1;
            close_seat(&mut self.seats[index(row)], record);
        }
        Some(request)
    }

    /// A sequence has ended; its request, or `None` if that was known.
    pub(crate) fn leave(&mut self, seq: SequenceId, record: &mut Record) -> Option<u32> {
        let request = self.stand_up(seq, record)?;
        self.live.remove(&seq);
        Some(request)
    }
}

fn close_run(seat: &mut Seat, record: &mut Record) {
    if seat.run_len > 0 {
        let Seat { request, run_first: first, run_len: len, .. } = *seat;
        record.runs.push(EmissionRun { request, first, len });
        seat.run_len = 0;
    }
}

fn close_seat(seat: &mut Seat, record: &mut Record) {
    close_run(seat, record);
    record.requests[index(seat.request)].emitted = seat.emitted;
}
