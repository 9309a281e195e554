//! The pass that a decision makes: its tokens, its KV reads, who is done after it.

use crate::batch::Batch;
use crate::cost::PassShape;
use crate::error::Error;
use crate::num::{count, index};
use crate::options::SimConfig;
use crate::record::Record;
use crate::workload::Workload;
use octavo_core::{Decision, Placed, SequenceId};

/// The pass that is being made; its vectors are reused.
#[derive(Default)]
pub(crate) struct Pass {
    pub(crate) number: u64,
    pub(crate) num_placed: usize,
    /// What it costs, padding included.
    pub(crate) shape: PassShape,
    pub(crate) num_decodes: u64,
    pub(crate) num_padded: u64,
    /// Whether the held blocks can be others than in the pass before.
    pub(crate) moves_blocks: bool,
    /// Whether those of the pass behind it can be: a full block may turn out to be one that is there already.
    pub(crate) fills_blocks: bool,
    /// One token for each row that samples.
    pub(crate) tokens: Vec<i32>,
    /// Who has all of its tokens now.
    pub(crate) done: Vec<SequenceId>,
    /// Who works towards its first token.
    pub(crate) prefilling: Vec<u32>,
}

/// Reads a decision without changing it.
pub(crate) struct Observer<'a> {
    pub(crate) config: &'a SimConfig,
    pub(crate) workload: &'a Workload,
    pub(crate) start_s: f64,
}

impl Observer<'_> {
    /// T, K and the tokens of the pass that a decision makes.
    pub(crate) fn shape(
        &self,
        decision: &Decision,
        batch: &mut Batch,
        record: &mut Record,
        pass: &mut Pass,
    ) -> Result<(), Error> {
        pass.number = decision.number;
        pass.num_placed = decision.placed.len();
        pass.num_decodes = count(decision.num_decodes);
        pass.num_padded = count(decision.num_padded);
        pass.tokens.clear();
        pass.done.clear();
        pass.prefilling.clear();
        let this_pass = number_of(record);
        let mut shape = PassShape::default();
        let (decodes, prefills) = decision.placed.split_at(decision.num_decodes);
        let changes = !(prefills.is_empty() && decision.ended.is_empty() && decision.preempted.is_empty());
        pass.moves_blocks = pass.fills_blocks || changes;
        pass.fills_blocks = !prefills.is_empty();
        for placed in decodes {
            self.add(placed, &mut shape);
            if batch.grow_by_one(placed.row) {
                pass.moves_blocks = true;
                pass.fills_blocks = true;
            }
            emit(placed, this_pass, batch, record, pass);
        }
        if !prefills.is_empty() {
            batch.begin();
        }
        for placed in prefills {
            self.add(placed, &mut shape);
            self.prefill(placed, batch, record, pass)?;
            if placed.num_samples > 0 {
                emit(placed, this_pass, batch, record, pass);
            }
        }
        if pass.num_padded > 0 {
            let padding = batch.padding();
            if padding.rows != pass.num_padded {
                let told = format!("{} rows of padding, {} members have finished", pass.num_padded, padding.rows);
                return Err(Error::Conservation(told));
            }
            shape.tokens += padding.rows;
            shape.kv_tokens += padding.kv_tokens;
        }
        pass.shape = shape;
        Ok(())
    }

    #[inline]
    fn add(&self, placed: &Placed, shape: &mut PassShape) {
        let context = u64::from(placed.start) + u64::from(placed.num_tokens);
        shape.tokens += u64::from(placed.num_tokens);
        shape.kv_tokens += self.config.kv_read.tokens(context, self.config.block_size);
    }

    /// A row that prefills: newly given, or in progress.
    fn prefill(&self, placed: &Placed, batch: &mut Batch, record: &mut Record, pass: &mut Pass) -> Result<(), Error> {
        let seated = batch.seat(placed.seq, placed.row, self.workload, record);
        let Some(seated) = seated else {
            return Err(Error::Conservation("a plan names a sequence that nobody added".to_owned()));
        };
        batch.hold(placed.row, placed.start + placed.num_tokens);
        let this_pass = number_of(record);
        let arrival = record.arrival(seated.request, self.workload);
        let request = &mut record.requests[index(seated.request)];
        if seated.is_first_admission {
            request.queue_s = self.start_s - arrival;
            request.hit_tokens = placed.start;
            request.admitted_pass = this_pass;
        }
        if !seated.has_emitted {
            pass.prefilling.push(seated.request);
        }
        Ok(())
    }
}

/// The number of the pass that is being made. 2^32 passes would be years of work.
fn number_of(record: &Record) -> u32 {
    u32::try_from(record.pass_ends.len()).unwrap_or(u32::MAX)
}

#[inline]
fn emit(placed: &Placed, this_pass: u32, batch: &mut Batch, record: &mut Record, pass: &mut Pass) {
    let (request, is_last) = batch.emit(placed.row, this_pass, record);
    pass.tokens.push(Workload::own_token(request));
    if is_last {
        pass.done.push(placed.seq);
    }
}
