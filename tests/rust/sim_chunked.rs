//! Token times of a small trace, derived by hand.
#![allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests panic, and these floats are exact")]

mod by_hand;

use by_hand::{cost, workload};
use octavo_sim::{Feeding, KvRead, Promise, Record, SimConfig, Status, Summary, Workload, simulate};

fn config() -> SimConfig {
    SimConfig {
        cost: cost(),
        num_blocks: Some(16),
        block_size: 4,
        max_num_seqs: 3,
        max_num_batched_tokens: 8,
        ..SimConfig::default()
    }
}

fn run(config: &SimConfig, workload: &Workload) -> Record {
    simulate(config, workload, Feeding::Lazy, &mut |_| true).unwrap()
}

/// Three requests: A and B arrive at 0, C in the very moment in which the second pass starts.
///
/// ```text
/// pass  starts      A (6 + 3)     B (5 + 2)     C (10 + 2)    T   K            length
/// 0     0           prompt 6/6    prompt 2/5    -             8   6+2     =  8  8/1024 + 8/64 + 1/8 = 0.2578125
/// 1     0.2578125   decode  7     prompt 5/5    prompt 4/10   8   7+5+4   = 16  0.015625  + 0.25    = 0.265625
/// 2     0.5234375   decode  8     decode  6     prompt 10/10  8   8+6+10  = 24  0.0234375 + 0.25    = 0.2734375
/// 3     0.796875    ended         ended         decode 11     1   11            11/1024 + 1/64 + 1/8
/// ```
#[test]
fn test_token_times_of_three_requests_are_those_by_hand() {
    let workload = workload(&[(0.0, 6, 3), (0.0, 5, 2), (0.257_812_5, 10, 2)]);
    let record = run(&config(), &workload);
    let ends = [0.257_812_5, 0.523_437_5, 0.796_875, 0.948_242_187_5];
    assert_eq!(record.pass_ends, ends);
    assert_eq!(record.token_times(0), ends[..3]);
    assert_eq!(record.token_times(1), ends[1..3]);
    assert_eq!(record.token_times(2), ends[2..]);

    let summary = Summary::of(&workload, &record, &Promise::default());
    assert_eq!((summary.completed, summary.passes, summary.preemptions), (3, 4, 0));
    // Passes 1, 2 and 3 decode 1, 2 and 1 of 3 rows; pass 0 decodes none and does not count.
    assert_eq!((summary.useful_slot_steps, summary.idle_slot_steps), (4, 5));
    assert_eq!(summary.padded_slot_steps, 0);
    // 8 + 8 + 8 + 1 tokens = (6 + 3 - 1) + (5 + 2 - 1) + (10 + 2 - 1).
    assert_eq!(record.counters.scheduled_tokens, 25);
    // Blocks of 4 held: 2+1, 2+2+1, 2+2+3, 3 of 16.
    assert_eq!(summary.kv_usage.peak, 7.0 / 16.0);
    let block_seconds = 3.0 * 0.257_812_5 + 5.0 * 0.265_625 + 7.0 * 0.273_437_5 + 3.0 * 0.151_367_187_5;
    assert_eq!(record.counters.held_block_seconds, block_seconds);
    // First tokens: A after 0.2578125, B after 0.5234375, C after 0.796875 - 0.2578125.
    assert_eq!(summary.ttft_s.max, Some(0.539_062_5));
    // All are admitted in the moment in which they arrive.
    let queued: Vec<f64> = record.requests.iter().map(|request| request.queue_s).collect();
    assert_eq!(queued, [0.0, 0.0, 0.0]);
    // B's prompt took passes 0 and 1, C's passes 1 and 2.
    let prefill: Vec<f64> = record.requests.iter().map(|request| request.prefill_s).collect();
    assert_eq!(prefill, [0.257_812_5, 0.523_437_5, 0.539_062_5]);
}

/// Blocks instead of tokens: pass 0 reads 8 + 4 tokens in whole blocks of 4, not 6 + 2.
#[test]
fn test_reading_whole_blocks_costs_more() {
    let config = SimConfig { kv_read: KvRead::Blocks, ..config() };
    let record = run(&config, &workload(&[(0.0, 6, 3), (0.0, 5, 2)]));
    assert_eq!(record.pass_ends[0], 12.0 / 1024.0 + 0.25);
}

/// ```text
/// pass  starts  A (3 + 1)    B (2 + 1)
/// 0     1       prompt 3/3   -           3/1024 + 3/64 + 1/8 = 0.1748046875
///       idle until B arrives at 5
/// 1     5       ended        prompt 2/2  2/1024 + 2/64 + 1/8 = 0.158203125
/// ```
#[test]
fn test_idle_time_is_jumped_over() {
    let record = run(&config(), &workload(&[(1.0, 3, 1), (5.0, 2, 1)]));
    assert_eq!(record.pass_ends, [1.174_804_687_5, 5.158_203_125]);
}

/// Rows: 1. B waits for A's row, which is free in the step after A's last token.
///
/// ```text
/// pass  A (4 + 2)    B (4 + 1)    length
/// 0     prompt 4/4   waits        4/1024 + 4/64 + 1/8 = 0.19140625
/// 1     decode 5     waits        5/1024 + 1/64 + 1/8 = 0.1455078125
/// 2     ended        prompt 4/4   0.19140625
/// ```
#[test]
fn test_a_row_is_free_in_the_step_after_the_last_token() {
    let config = SimConfig { max_num_seqs: 1, ..config() };
    let record = run(&config, &workload(&[(0.0, 4, 2), (0.0, 4, 1)]));
    assert_eq!(record.pass_ends, [0.191_406_25, 0.336_914_062_5, 0.528_320_312_5]);
    assert_eq!(record.requests[1].queue_s, 0.336_914_062_5);
}

/// What happens before a length shows must not depend on it.
#[test]
fn test_no_true_length_is_seen_before_it_is_reached() {
    let of = |output| run(&config(), &workload(&[(0.0, 6, output), (0.0, 5, 9), (0.0, 7, 20)]));
    let (short, long) = (of(4), of(12));
    let last = *short.token_times(0).last().unwrap();
    let same = short.pass_ends.iter().take_while(|&&end| end <= last).count();
    assert_eq!(short.pass_ends[..same], long.pass_ends[..same]);
    assert_ne!(short.pass_ends, long.pass_ends);
    assert_eq!(short.token_times(0), long.token_times(0)[..4]);
}

/// Pool: 4 blocks of 4. A prompt of 17 can never fit. 10 + 8 outgrow the pool: the last token is never fed,
/// so 16 tokens in the cache are 7 outputs, and the eighth would need room for a 17th.
#[test]
fn test_what_cannot_fit_is_rejected_or_ends_for_lack_of_capacity() {
    let config = SimConfig { num_blocks: Some(4), ..config() };
    let workload = workload(&[(0.0, 17, 1), (0.0, 10, 8), (0.0, 3, 2)]);
    let record = run(&config, &workload);
    let ends: Vec<Status> = record.requests.iter().map(|request| request.status).collect();
    assert_eq!(ends, [Status::Rejected, Status::Capacity, Status::Completed]);
    assert_eq!(record.requests[1].emitted, 7);
    let summary = Summary::of(&workload, &record, &Promise::default());
    assert_eq!((summary.requests, summary.completed, summary.rejected), (3, 1, 1));
}

#[test]
fn test_caller_can_stop_a_run() {
    let workload = workload(&[(0.0, 4, 3_000)]);
    let config = SimConfig { num_blocks: Some(1_000), ..config() };
    let mut told = 0;
    let stopped = simulate(&config, &workload, Feeding::Lazy, &mut |progress| {
        told += 1;
        assert_eq!((progress.requests, progress.ended), (1, 0));
        false
    });
    assert!(matches!(stopped, Err(octavo_sim::Error::Stopped)));
    assert_eq!(told, 1);
}

#[test]
fn test_no_requests_make_an_empty_record() {
    let record = run(&config(), &Workload::default());
    assert!(record.pass_ends.is_empty() && record.requests.is_empty());
}
