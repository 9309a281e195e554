//! Texts of a run: the JSON report, the CSV of its requests, the CSV of its traffic.
//!
//! Floats are written with the fewest digits that read back as the same bits, so a report is the same bytes
//! for the same run, and a trace that was written and read again is the same trace.

use crate::error::Error;
use crate::metrics::Summary;
use crate::num::index;
use crate::options::{SimConfig, Value};
use crate::record::Record;
use crate::workload::{Prefixes, Workload};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::fmt::Write;

/// The columns of the CSV per request.
pub const REQUEST_COLUMNS: &str = "index,arrival_s,first_token_s,last_token_s,prompt_tokens,\
                                   output_tokens,preemptions,hit_tokens,status";

#[derive(Serialize)]
struct Report<'a> {
    config: Settings<'a>,
    workload: Traffic,
    summary: &'a Summary,
}

#[derive(Serialize)]
struct Traffic {
    requests: usize,
    hash: String,
}

/// Settings in their own order.
struct Settings<'a>(&'a [(&'static str, Value)]);

impl Serialize for Settings<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// The JSON report: `config`, `workload` and `summary`, keys in a fixed order, numbers unrounded.
///
/// Traffic is told by its hash, not by where it came from: a run and the replay of its exported trace give
/// the same bytes.
///
/// # Errors
/// As [`SimConfig::pool`].
///
/// # Complexity
/// O(requests), for the hash.
pub fn json(config: &SimConfig, workload: &Workload, summary: &Summary) -> Result<String, Error> {
    let mut settings = config.resolved(workload).entries()?;
    settings.push(("max_model_len", Value::Whole(workload.longest().cast_signed())));
    let traffic = Traffic { requests: workload.len(), hash: workload.hash() };
    let report = Report { config: Settings(&settings), workload: traffic, summary };
    let text = serde_json::to_string_pretty(&report);
    text.map_err(|error| Error::Conservation(format!("the report is no JSON: {error}")))
}

/// One line per request, in trace order, under [`REQUEST_COLUMNS`].
///
/// `output_tokens` are those emitted. Times without a token are empty.
///
/// # Complexity
/// O(requests + runs).
#[must_use]
pub fn requests_csv(workload: &Workload, record: &Record) -> String {
    let mut spans = vec![None; workload.len()];
    for (request, runs) in record.runs_by_request() {
        spans[index(request)] = record.span(runs);
    }
    let arrivals = if record.released.is_empty() { workload.arrivals() } else { &record.released };
    let mut text = String::with_capacity(64 * (workload.len() + 2));
    text.push_str(REQUEST_COLUMNS);
    text.push('\n');
    for (at, (request, span)) in record.requests.iter().zip(spans).enumerate() {
        let arrival = arrivals[at];
        let (first, last) =
            span.map_or_else(Default::default, |(first, last)| (format!("{first:?}"), format!("{last:?}")));
        let prompt = workload.prompt_tokens()[at];
        let (emitted, preemptions) = (request.emitted, request.preemptions);
        let (hits, status) = (request.hit_tokens, request.status.name());
        line(
            &mut text,
            format_args!("{at},{arrival:?},{first},{last},{prompt},{emitted},{preemptions},{hits},{status}"),
        );
    }
    text
}

/// The workload as a trace in our own CSV.
///
/// The columns are `arrival_s,prompt_tokens,output_tokens`, then `prefix_id,prefix_tokens` where prompts
/// share beginnings, or `hash_block_tokens,hash_ids` (ids between spaces) where they share chains of named
/// blocks. Names are written as their numbers, which give the same tokens as the names did.
///
/// # Complexity
/// O(requests + ids).
#[must_use]
pub fn trace_csv(workload: &Workload) -> String {
    let mut text = String::with_capacity(32 * (workload.len() + 2));
    text.push_str("arrival_s,prompt_tokens,output_tokens");
    text.push_str(match workload.prefixes() {
        Prefixes::None => "\n",
        Prefixes::Blocks { .. } => ",hash_block_tokens,hash_ids\n",
        Prefixes::Shared { .. } => ",prefix_id,prefix_tokens\n",
    });
    for (at, arrival) in workload.arrivals().iter().enumerate() {
        let (prompt, output) = (workload.prompt_tokens()[at], workload.output_tokens()[at]);
        match workload.prefixes() {
            Prefixes::None => line(&mut text, format_args!("{arrival:?},{prompt},{output}")),
            Prefixes::Blocks { block_tokens, indptr, ids } => {
                let named = &ids[indptr[at]..indptr[at + 1]];
                let words: Vec<String> = named.iter().map(u32::to_string).collect();
                let words = words.join(" ");
                line(&mut text, format_args!("{arrival:?},{prompt},{output},{block_tokens},{words}"));
            }
            Prefixes::Shared { tokens, .. } if tokens[at] == 0 => {
                line(&mut text, format_args!("{arrival:?},{prompt},{output},,"));
            }
            Prefixes::Shared { ids, tokens } => {
                let (id, shared) = (ids[at], tokens[at]);
                line(&mut text, format_args!("{arrival:?},{prompt},{output},{id},{shared}"));
            }
        }
    }
    text
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing into a string cannot fail.
    let _ = text.write_fmt(arguments);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::{json, requests_csv, trace_csv};
    use crate::metrics::{Promise, Summary};
    use crate::options::SimConfig;
    use crate::record::{EmissionRun, Record, RequestRecord, Status};
    use crate::workload::{Columns, NamedPrefixes, Workload};

    fn workload(prefixes: NamedPrefixes) -> Result<Workload, crate::WorkloadError> {
        Workload::new(Columns {
            arrival_s: vec![0.1 + 0.2, 1e-7],
            prompt_tokens: vec![10, 20],
            output_tokens: vec![2, 1],
            prefixes,
        })
    }

    fn record() -> Record {
        let completed = RequestRecord { status: Status::Completed, ..RequestRecord::default() };
        Record {
            pass_ends: vec![0.5, 0.75],
            runs: vec![EmissionRun { request: 0, first: 0, len: 2 }],
            requests: vec![
                RequestRecord { emitted: 2, preemptions: 1, hit_tokens: 8, ..completed },
                RequestRecord { status: Status::Rejected, ..RequestRecord::default() },
            ],
            ..Record::default()
        }
    }

    #[test]
    fn test_requests_are_listed_in_trace_order() -> Result<(), crate::WorkloadError> {
        let text = requests_csv(&workload(NamedPrefixes::None)?, &record());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "index,arrival_s,first_token_s,last_token_s,prompt_tokens,output_tokens,preemptions,\
                 hit_tokens,status",
                "0,0.30000000000000004,0.5,0.75,10,2,1,8,completed",
                "1,1e-7,,,20,0,0,0,rejected",
            ]
        );
        Ok(())
    }

    #[test]
    fn test_trace_is_written_to_the_last_bit() -> Result<(), crate::WorkloadError> {
        assert_eq!(
            trace_csv(&workload(NamedPrefixes::None)?),
            "arrival_s,prompt_tokens,output_tokens\n0.30000000000000004,10,2\n1e-7,20,1\n"
        );
        let blocks = NamedPrefixes::Blocks { block_tokens: 8, indptr: vec![0, 2, 4], ids: vec![70, 80, 70, 90] };
        assert_eq!(trace_csv(&workload(blocks)?).lines().nth(2), Some("1e-7,20,1,8,0 2"));
        let shared = NamedPrefixes::Shared { ids: vec![9, 9], tokens: vec![0, 5] };
        let text = trace_csv(&workload(shared)?);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines, ["0.30000000000000004,10,2,,", "1e-7,20,1,0,5"]);
        Ok(())
    }

    #[test]
    fn test_report_has_its_keys_in_order() -> Result<(), crate::Error> {
        let workload = workload(NamedPrefixes::None)?;
        let summary = Summary::of(&workload, &record(), &Promise::default());
        let text = json(&SimConfig::default(), &workload, &summary)?;
        let keys = [
            "config",
            "workload",
            "requests",
            "hash",
            "summary",
            "requests",
            "completed",
            "rejected",
            "makespan_s",
            "request_throughput",
            "output_token_throughput",
            "passes",
            "useful_slot_steps",
            "padded_slot_steps",
            "idle_slot_steps",
            "slot_utilization",
            "preemptions",
            "recomputed_tokens",
            "prefix_hit_tokens",
            "prefix_query_tokens",
            "kv_usage",
            "mean",
            "peak",
            "ttft_s",
            "mean",
            "p50",
            "p90",
            "p99",
            "min",
            "max",
            "n",
            "tpot_s",
            "itl_s",
            "e2e_s",
            "max_gap_s",
            "goodput",
            "attainment",
            "verdict",
        ];
        let mut rest = text.as_str();
        for key in keys {
            let at = rest.find(&format!("\"{key}\":"));
            assert!(at.is_some(), "{key} in {rest}");
            rest = &rest[at.unwrap_or(0)..];
        }
        assert_eq!(text, json(&SimConfig::default(), &workload, &summary)?);
        Ok(())
    }
}
