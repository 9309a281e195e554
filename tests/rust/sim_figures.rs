//! Closed loops, the parts of a wait, and how full the held memory is, derived by hand.
#![allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests panic, and these floats are exact")]

mod by_hand;

use by_hand::{cost, workload};
use octavo_sim::{
    Batching, Feeding, Plain, Promise, Record, Reserve, Schedule, SimConfig, Summary, Workload, simulate,
};
use std::num::NonZeroU32;

fn config(batching: Batching) -> SimConfig {
    SimConfig {
        schedule: Schedule { batching, ..Schedule::default() },
        cost: cost(),
        num_blocks: Some(64),
        block_size: 4,
        max_num_seqs: 2,
        max_num_batched_tokens: 8,
        ..SimConfig::default()
    }
}

fn run(config: &SimConfig, workload: &Workload) -> (Record, Summary) {
    let record = simulate(config, workload, Feeding::Lazy, &mut |_| true).unwrap();
    let summary = Summary::of(workload, &record, &Promise::default());
    (record, summary)
}

/// One user, three requests of 4 + 2, each sent when the one before has its last token: 196 + 149 units each.
#[test]
fn test_a_user_of_a_closed_loop_sends_the_next_when_the_last_has_ended() {
    let closed = workload(&[(0.0, 4, 2); 3]).in_closed_loop(NonZeroU32::MIN);
    let (record, summary) = run(&config(Batching::Mixed), &closed);
    assert_eq!(record.released.iter().map(|time| time * 1024.0).collect::<Vec<_>>(), [0.0, 345.0, 690.0]);
    assert_eq!(summary.e2e_s.max, summary.e2e_s.min);
    assert_eq!(summary.makespan_s * 1024.0, 1035.0);
    assert_eq!(summary.verdict, None);
}

#[test]
fn test_a_closed_loop_never_has_more_in_flight_than_users_and_loses_nobody() {
    for batching in Batching::ALL {
        let rows: Vec<(f64, u32, u32)> = (0..40).map(|i| (0.0, 1 + i * 7 % 11, 1 + i * 5 % 9)).collect();
        let closed = workload(&rows).in_closed_loop(NonZeroU32::new(3).unwrap());
        let (record, summary) = run(&config(batching), &closed);
        assert_eq!(summary.completed, 40);
        let ends: Vec<f64> = (0..40).map(|request| *record.token_times(request).last().unwrap()).collect();
        for (at, &arrival) in record.released.iter().enumerate() {
            let earlier = record.released.iter().zip(&ends).take(at);
            let in_flight = earlier.filter(|&(_, &end)| end > arrival).count();
            assert!(in_flight < 3, "{batching:?}: request {at} is number {}", in_flight + 1);
        }
    }
}

/// A prompt that can never fit ends at once, and its user goes on.
#[test]
fn test_a_refused_request_does_not_stop_its_user() {
    let closed = workload(&[(0.0, 300, 2), (0.0, 4, 2), (0.0, 300, 2), (0.0, 4, 2)]);
    let (_, summary) = run(&config(Batching::Chunked), &closed.in_closed_loop(NonZeroU32::MIN));
    assert_eq!((summary.completed, summary.rejected), (2, 2));
}

/// Two rows and 8 tokens a pass: A's prompt and the beginning of B's share a pass, C waits for a row. Whoever has tokens
/// in every pass from its admission on is not stalled, however its prompt is cut.
#[test]
fn test_parts_of_the_wait_add_up_to_the_bit() {
    let (record, summary) = run(&config(Batching::Chunked), &workload(&[(0.1, 6, 2), (0.1, 12, 1), (0.3, 9, 3)]));
    for (request, runs) in record.runs_by_request() {
        let entry = &record.requests[usize::try_from(request).unwrap()];
        let first = record.span(runs).unwrap().0;
        let ttft = first - [0.1, 0.1, 0.3][usize::try_from(request).unwrap()];
        let parts = entry.parts(ttft, runs[0].first);
        assert_eq!(parts.sum(), ttft);
        assert_eq!((parts.stall, parts.transfer), (0.0, 0.0));
        assert!(parts.queue >= 0.0 && parts.prefill > 0.0);
    }
    assert_eq!(Some(summary.ttft_parts_s.sum()), summary.ttft_s.mean);
}

/// A pool of 4 blocks of 4, 4 tokens a pass. B is pushed out in the middle of its prompt and waits until A is done:
/// that is a stall, and no second time in the queue.
///
/// ```text
/// pass  A (3 + 13)   B (12 + 1)
/// 0     prompt 3     prompt 1/12
/// 1     decode 4     prompt 4/12
/// 2     decode 5     prompt 7/12
/// 3     decode 6     prompt 8/12      each owns two blocks of four
/// 4     decode 7     preempted
/// 13    ended        prompt 4/12, then 8/12 and 12/12
/// ```
#[test]
fn test_a_preemption_before_the_first_token_is_a_stall() {
    let config = SimConfig {
        num_blocks: Some(4),
        max_num_batched_tokens: 4,
        prefix_caching: false,
        ..config(Batching::Chunked)
    };
    let (record, summary) = run(&config, &workload(&[(0.0, 3, 13), (0.0, 12, 1)]));
    assert_eq!((summary.completed, record.requests[1].preemptions), (2, 1));
    let runs = record.runs_by_request().find(|(who, _)| *who == 1).unwrap().1;
    let ttft = record.span(runs).unwrap().0;
    let parts = record.requests[1].parts(ttft, runs[0].first);
    assert_eq!((parts.queue, parts.sum(), record.requests[1].prefill_passes), (0.0, ttft, 4 + 3));
    // The passes 4 … 12 ran without it.
    let stall = record.pass_ends[12] - record.pass_ends[3];
    assert!((parts.stall - stall).abs() < 1e-12, "{parts:?}, stalled {stall}");
    assert!((summary.ttft_parts_s.stall - stall / 2.0).abs() < 1e-12);
}

/// A (4 + 2) alone, blocks of 4. On demand: 4 of 4 slots for 196 units, 5 of 8 for 149. Reserved for the longest of the
/// trace, 12 tokens: 4 and 5 of 12.
#[test]
fn test_share_of_memory_with_tokens_is_what_slots_hold() {
    // The second request makes 12 tokens the longest; it comes when the first is gone, with a share of 11 of 12.
    let rows = [(0.0, 4, 2), (10.0, 11, 1)];
    let mut config = config(Batching::Mixed);
    let share = |config: &SimConfig| run(config, &workload(&rows)).1.kv_token_share;
    let last = 11.0 + 16.0 * 11.0 + 128.0;
    let tokens = 4.0 * 196.0 + 5.0 * 149.0 + 11.0 * last;
    let on_demand = tokens / (4.0 * 196.0 + 8.0 * 149.0 + 12.0 * last);
    assert!((share(&config) - on_demand).abs() < 1e-12);
    config.schedule.reserve = Reserve::WorstCase;
    assert!((share(&config) - tokens / (12.0 * (196.0 + 149.0 + last))).abs() < 1e-12);
}

/// Without sharing, what held blocks hold is what the sequences know, pass by pass; checked against the sum of K.
#[test]
fn test_tokens_in_memory_are_the_contexts_when_all_run() {
    let config = SimConfig { prefix_caching: false, max_num_seqs: 8, num_blocks: Some(128), ..config(Batching::Mixed) };
    let workload = Plain::poisson(8, f64::INFINITY, 9, 30).workload(0).unwrap();
    let (record, _) = run(&config, &workload);
    // All eight run in every pass: K is exactly what is held, and K · length sums to the same integral.
    let mut start = 0.0;
    let mut integral = 0.0;
    for (pass, &end) in (0..).zip(&record.pass_ends) {
        integral += 8.0 * f64::from(9 + pass) * (end - start);
        start = end;
    }
    assert!((record.counters.held_token_seconds - integral).abs() < 1e-9 * integral);
}
