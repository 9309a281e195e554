//! Who sits in which row, and the tokens each has been given.

use crate::num::index;
use crate::options::SimConfig;
use crate::record::{EmissionRun, Record};
use crate::workload::Workload;
use octavo_core::{Reserve, SequenceId};
use std::collections::BTreeMap;

/// One row of the batch: the request in it and its open run of passes with a token.
#[derive(Clone, Copy, Debug, Default)]
struct Seat {
    request: u32,
    emitted: u32,
    wanted: u32,
    run_first: u32,
    run_len: u32,
    /// Slots of its blocks that hold no token.
    unused: u32,
}

/// The finished members of a static batch, whose rows are computed all the same.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Padding {
    pub(crate) rows: u64,
    /// What their rows read: the prompt and output of each.
    pub(crate) kv_tokens: u64,
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
    padding: Padding,
    /// Slots of held blocks that hold no token, in all rows. A slot without a token is nobody else's either, so that
    /// the tokens in memory are held slots - these, whatever is shared.
    unused: u64,
    block_size: u32,
    /// Slots that an admission takes at least.
    reserved: u32,
}

/// What [`Batch::seat`] found.
pub(crate) struct Seated {
    pub(crate) request: u32,
    pub(crate) is_first_admission: bool,
    pub(crate) has_emitted: bool,
}

impl Batch {
    /// An empty batch for a configuration that the scheduler accepted.
    pub(crate) fn new(config: &SimConfig, workload: &Workload) -> Self {
        let rows = usize::try_from(config.max_num_seqs).unwrap_or(usize::MAX);
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let reserved = match config.schedule.reserve {
            Reserve::OnDemand => 0,
            Reserve::WorstCase => small(workload.longest().next_multiple_of(config.block_size)),
        };
        Self {
            seats: vec![Seat::default(); rows],
            live: BTreeMap::new(),
            running: 0,
            padding: Padding::default(),
            unused: 0,
            block_size: small(config.block_size),
            reserved,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.running == 0
    }

    /// Slots of held blocks that hold no token.
    pub(crate) fn unused(&self) -> u64 {
        self.unused
    }

    pub(crate) fn padding(&self) -> Padding {
        self.padding
    }

    /// A static batch begins: whoever padded the one before is gone.
    pub(crate) fn begin(&mut self) {
        self.padding = Padding::default();
    }

    /// A member of a static batch has finished, and pads.
    pub(crate) fn pad(&mut self, kv_tokens: u64) {
        self.padding.rows += 1;
        self.padding.kv_tokens += kv_tokens;
    }

    /// A row's blocks hold a context of `tokens` now.
    pub(crate) fn hold(&mut self, row: u32, tokens: u32) {
        let slots = tokens.next_multiple_of(self.block_size).max(self.reserved);
        let seat = &mut self.seats[index(row)];
        self.unused = self.unused - u64::from(seat.unused) + u64::from(slots - tokens);
        seat.unused = slots - tokens;
    }

    /// A row's context grows by one token, into a new block where its blocks are full; whether that takes a block, or
    /// fills one.
    #[inline]
    pub(crate) fn grow_by_one(&mut self, row: u32) -> bool {
        let seat = &mut self.seats[index(row)];
        let takes = seat.unused == 0;
        if takes {
            seat.unused = self.block_size;
            self.unused += u64::from(self.block_size);
        }
        seat.unused -= 1;
        self.unused -= 1;
        // A reservation has full blocks at any number of unused slots.
        takes || seat.unused == 0 || self.reserved > 0
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
    pub(crate) fn seat(&mut self, seq: SequenceId, row: u32, workload: &Workload, record: &Record) -> Option<Seated> {
        let live = self.live.get_mut(&seq)?;
        let request = live.request;
        let is_first_admission = !live.was_admitted;
        let seat = self.seats.get_mut(index(row))?;
        if live.row.is_none() {
            live.row = Some(row);
            live.was_admitted = true;
            self.running += 1;
            let wanted = workload.output_tokens()[index(request)];
            let emitted = record.requests[index(request)].emitted;
            *seat = Seat { request, emitted, wanted, ..Seat::default() };
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
            let seat = &mut self.seats[index(row)];
            self.unused -= u64::from(std::mem::take(&mut seat.unused));
            close_seat(seat, record);
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
