//! Everything a scheduler holds, and the changes that more than one phase makes.

use std::collections::VecDeque;

use crate::arena::Arena;
use crate::cache::Cache;
use crate::config::{Limits, SchedulerConfig};
use crate::error::Error;
use crate::ids::{Handle, RequestId, SequenceId};
use crate::prefix::Hits;
use crate::sched::decision::Decision;
use crate::sched::outcome::Reason;
use crate::sched::queue::Queue;
use crate::sched::request::{Family, Sequence, Status};
use crate::sched::rows::Rows;
use crate::sched::stats::Counters;

/// What the next plan has to tell about what happened since the last one.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) ended: Vec<SequenceId>,
    pub(crate) vacated: Vec<u32>,
    /// Of rows that have not changed hands since: row, index.
    pub(crate) merged: Vec<(u32, u32)>,
}

/// Where the ends of sequences are on their way (CONTRACT §3.1).
///
/// ```text
///   end ─▶ to_release ─ step ─▶ blocks and row are free, told by the plan
///    └───▶ to_report ─ commit ─▶ told by the outcome ─▶ reported ─ step ─▶ the handle is stale
/// ```
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub(crate) to_release: Vec<SequenceId>,
    pub(crate) to_report: Vec<(SequenceId, Reason)>,
    pub(crate) reported: Vec<SequenceId>,
}

/// The last look-up of a queue's head that did not fit: it holds while the findable blocks are the same.
#[derive(Debug, Default)]
pub(crate) struct LookUp {
    pub(crate) of: Option<(SequenceId, u64)>,
    pub(crate) hits: Hits,
}

/// The state of a scheduler.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) limits: Limits,
    pub(crate) cache: Cache,
    pub(crate) requests: Arena<RequestId, Family>,
    pub(crate) sequences: Arena<SequenceId, Sequence>,
    pub(crate) queue: Queue,
    pub(crate) rows: Rows,
    pub(crate) ends: Ends,
    pub(crate) news: News,
    pub(crate) look_up: LookUp,
    /// Sequences that wait for `set_ready`.
    pub(crate) num_not_ready: usize,
    /// Plans that are out, oldest first.
    pub(crate) out: VecDeque<Decision>,
    /// Decisions whose memory is used again.
    pub(crate) spare: Vec<Decision>,
    /// Rows of finished members of the static batch that runs.
    pub(crate) padding: Vec<u32>,
    /// The newest `now`.
    pub(crate) now: Option<f64>,
    /// Counts the calls of `add`.
    pub(crate) added: u64,
    pub(crate) counters: Counters,
}

impl State {
    pub(crate) fn new(config: &SchedulerConfig) -> Result<Self, Error> {
        let limits = config.check()?;
        let cache = Cache::new(config.cache.check()?)?;
        Ok(Self {
            limits,
            cache,
            requests: Arena::new(),
            sequences: Arena::new(),
            queue: Queue::default(),
            num_not_ready: 0,
            rows: Rows::new(limits.max_num_seqs),
            ends: Ends::default(),
            news: News::default(),
            look_up: LookUp::default(),
            out: VecDeque::new(),
            spare: Vec::new(),
            padding: Vec::new(),
            now: None,
            added: 0,
            counters: Counters::default(),
        })
    }

    /// The sequences that a handle names.
    pub(crate) fn members(&self, handle: Handle) -> Result<Vec<SequenceId>, Error> {
        match handle {
            Handle::Request(request) => Ok(self.requests.get(request)?.sequences.clone()),
            Handle::Sequence(seq) => self.sequences.get(seq).map(|_| vec![seq]),
        }
    }

    /// Ends a sequence that has not ended: it is reported by the next outcome and released by the next step.
    pub(crate) fn end(&mut self, seq: SequenceId, reason: Reason) {
        let sequence = self.sequences.live_mut(seq);
        let row = match sequence.status {
            Status::Waiting => {
                self.queue.remove(seq);
                None
            }
            Status::NotReady => {
                self.num_not_ready -= 1;
                None
            }
            Status::Running(row) => {
                self.rows.at_mut(row).ended = true;
                Some(row)
            }
            Status::Ended { .. } => return,
        };
        sequence.status = Status::Ended { reason, row };
        self.ends.to_release.push(seq);
        self.ends.to_report.push((seq, reason));
        self.counters.finished += 1;
    }

    /// Frees the blocks of a sequence and its row, which the caller takes out of the order.
    pub(crate) fn evacuate(&mut self, seq: SequenceId, row: u32) {
        let sequence = self.sequences.live_mut(seq);
        self.cache.shrink(&mut sequence.table, 0);
        self.rows.vacate(row);
        self.news.vacated.push(row);
        self.news.merged.retain(|&(other, ..)| other != row);
    }

    /// Frees the blocks of a finished member of a static batch; its row stays, as padding.
    pub(crate) fn evacuate_to_padding(&mut self, seq: SequenceId, row: u32) {
        let sequence = self.sequences.live_mut(seq);
        self.cache.shrink(&mut sequence.table, 0);
        self.rows.pad(row);
        self.padding.push(row);
        self.news.vacated.push(row);
        self.news.merged.retain(|&(other, ..)| other != row);
    }

    /// The batch is over: its padding rows are free.
    pub(crate) fn drop_padding(&mut self) {
        for row in self.padding.drain(..) {
            self.rows.free(row);
        }
    }

    /// Forgets the sequences whose end was reported by an outcome.
    pub(crate) fn forget_reported(&mut self) {
        for seq in self.ends.reported.drain(..) {
            let Ok(sequence) = self.sequences.remove(seq) else { unreachable!("an ended sequence is forgotten once") };
            // One sequence a request: the request goes with it.
            if self.requests.remove(sequence.request).is_err() {
                unreachable!("a request outlives its sequences");
            }
        }
    }
}
