//! What must be the same before and after a run: requests, tokens and blocks.

use crate::error::Error;
use crate::record::{Record, Status};
use crate::workload::Workload;
use octavo_core::Scheduler;

/// Checks a finished run.
///
/// # Errors
/// [`Error::Conservation`] says what was lost: a defect of Octavo, never of the input.
///
/// # Complexity
/// O(requests + runs + blocks).
pub(crate) fn check(scheduler: &Scheduler, workload: &Workload, record: &Record) -> Result<(), Error> {
    scheduler.audit().map_err(|broken| Error::Conservation(broken.to_string()))?;
    blocks(scheduler)?;
    requests(workload, record)?;
    tokens(scheduler, workload, record)
}

fn refuse(what: String) -> Result<(), Error> {
    Err(Error::Conservation(what))
}

/// Every block can be given out again once every request has ended.
fn blocks(scheduler: &Scheduler) -> Result<(), Error> {
    let cache = scheduler.stats();
    if cache.available == cache.usable {
        return Ok(());
    }
    refuse(format!("{} of {} blocks are available at the end", cache.available, cache.usable))
}

/// Every request has ended, and no completed one lacks a token or has one too many.
fn requests(workload: &Workload, record: &Record) -> Result<(), Error> {
    let wanted = workload.output_tokens();
    for (at, (request, &wanted)) in record.requests.iter().zip(wanted).enumerate() {
        let whole = match request.status {
            Status::Unfinished => false,
            Status::Completed => request.emitted == wanted,
            Status::Rejected => request.emitted == 0,
            Status::Capacity => request.emitted < wanted,
        };
        if !whole {
            let status = request.status.name();
            return refuse(format!("request {at}: {status} after {} of {wanted} tokens", request.emitted));
        }
    }
    Ok(())
}

/// The emissions of the passes are those of the requests; and every token that a request needed was computed
/// or found: p prompt and o output tokens need p + o - 1, the last one is never fed.
fn tokens(scheduler: &Scheduler, workload: &Workload, record: &Record) -> Result<(), Error> {
    let in_runs: u64 = record.runs.iter().map(|run| u64::from(run.len)).sum();
    let emitted: u64 = record.requests.iter().map(|request| u64::from(request.emitted)).sum();
    if in_runs != emitted {
        return refuse(format!("{in_runs} tokens in the passes, {emitted} in the requests"));
    }
    let stats = scheduler.stats();
    let computed = record.counters.scheduled_tokens;
    if stats.scheduled_tokens != computed {
        return refuse(format!("{computed} tokens in the passes, {} planned", stats.scheduled_tokens));
    }
    // A preempted sequence may find more than it had computed: then the sum is a bound only.
    let needed: u64 = record
        .requests
        .iter()
        .enumerate()
        .filter(|(_, request)| request.emitted > 0)
        .map(|(at, request)| u64::from(workload.prompt_tokens()[at]) + u64::from(request.emitted) - 1)
        .sum();
    let found = stats.prefix_hits;
    if stats.preemptions == 0 && computed + found != needed {
        return refuse(format!("{computed} tokens computed, {found} found, {needed} needed"));
    }
    Ok(())
}
