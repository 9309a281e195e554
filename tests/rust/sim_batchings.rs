//! Token times of three requests under every batching, derived by hand.
#![allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests panic, and these floats are exact")]

mod by_hand;

use by_hand::{cost, workload};
use octavo_sim::{
    Batching, Feeding, KvRead, Policy, Promise, Record, Reserve, Schedule, SimConfig, Status, Summary, simulate,
};

/// One unit of time, seconds: pass(T, K) = K + 16 T + 128 units, and every time below is an exact binary fraction.
const UNIT: f64 = 1.0 / 1024.0;

/// One request each: arrival in units, prompt, output.
const A: (f64, u32, u32) = (0.0, 4, 2);
const B: (f64, u32, u32) = (0.0, 8, 4);
const C: (f64, u32, u32) = (128.0, 4, 3);

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

fn run(config: &SimConfig, rows: &[(f64, u32, u32)]) -> Record {
    let rows: Vec<_> = rows.iter().map(|&(arrival, prompt, output)| (arrival * UNIT, prompt, output)).collect();
    simulate(config, &workload(&rows), Feeding::Lazy, &mut |_| true).unwrap()
}

/// Asserts each request's token times, in units, and the slot-steps: useful, padded, idle.
fn assert_run(config: &SimConfig, times: [&[u32]; 3], slot_steps: [u64; 3]) {
    let record = run(config, &[A, B, C]);
    for (request, expected) in (0..).zip(times) {
        let expected: Vec<f64> = expected.iter().map(|&units| f64::from(units) * UNIT).collect();
        assert_eq!(record.token_times(request), expected, "request {request}");
    }
    let counters = record.counters;
    assert_eq!([counters.useful_slot_steps, counters.padded_slot_steps, counters.idle_slot_steps], slot_steps);
}

/// ```text
/// pass  starts  A (4 + 2)  B (8 + 4)  C (4 + 3)   T   K   K + 16 T + 128
/// 0     0       prompt 4                          4   4   196
/// 1     196     decode 5                          1   5   149
/// 2     345                prompt 8               8   8   264
/// 3     609                decode 9               1   9   153
/// 4     762                decode 10              1  10   154
/// 5     916                decode 11              1  11   155
/// 6     1071                          prompt 4    4   4   196
/// 7     1267                          decode 5    1   5   149
/// 8     1416                          decode 6    1   6   150
/// ```
#[test]
fn test_serial_runs_one_after_the_other() {
    let times: [&[u32]; 3] = [&[196, 345], &[609, 762, 916, 1071], &[1267, 1416, 1566]];
    // One row whatever --max-num-seqs says: nothing is idle while it decodes.
    assert_run(&config(Batching::Serial), times, [6, 0, 0]);
}

/// ```text
/// pass  starts  A (4 + 2)  B (8 + 4)  C (4 + 3)   T   K            K + 16 T + 128
/// 0     0       prompt 4   prompt 8   -          12   4 + 8 = 12   332
/// 1     332     decode 5   decode 9   waits       2   5 + 9 = 14   174
/// 2     506     padding 6  decode 10  waits       2   6 + 10       176
/// 3     682     padding 6  decode 11  waits       2   6 + 11       177
/// 4     859                           prompt 4    4   4            196
/// 5     1055                          decode 5    1   5            149
/// 6     1204                          decode 6    1   6            150
/// ```
#[test]
fn test_static_pads_to_the_longest_and_lets_nobody_join() {
    let times: [&[u32]; 3] = [&[332, 506], &[332, 506, 682, 859], &[1055, 1204, 1354]];
    // Useful: 2 + 1 + 1 + 0 + 1 + 1. Padded: passes 2 and 3. Idle: the empty row beside C, twice.
    assert_run(&config(Batching::Static), times, [6, 2, 2]);
}

/// Three rows. The batch waits for C, who comes at 128.
///
/// ```text
/// pass  starts  A (4 + 2)  B (8 + 4)  C (4 + 3)   T   K                K + 16 T + 128
/// 0     128     prompt 4   prompt 8   prompt 4   16   4 + 8 + 4 = 16   400
/// 1     528     decode 5   decode 9   decode 5    3   19               195
/// 2     723     padding 6  decode 10  decode 6    3   22               198
/// 3     921     padding 6  decode 11  padding 7   3   24               200
/// ```
#[test]
fn test_static_can_wait_for_a_full_batch() {
    let mut config = config(Batching::Static);
    config.max_num_seqs = 3;
    config.schedule.wait_for_full = true;
    let times: [&[u32]; 3] = [&[528, 723], &[528, 723, 921, 1121], &[528, 723, 921]];
    assert_run(&config, times, [6, 3, 0]);
}

/// With four rows nobody could fill the batch: it begins when the last one is there, also where a first full batch has
/// left somebody over.
#[test]
fn test_static_waits_for_nobody_who_never_comes() {
    let mut config = config(Batching::Static);
    config.schedule.wait_for_full = true;
    // Two rows: A and B are a full batch at once, and C is alone behind them.
    let times: [&[u32]; 3] = [&[332, 506], &[332, 506, 682, 859], &[1055, 1204, 1354]];
    assert_run(&config, times, [6, 2, 2]);
    config.max_num_seqs = 4;
    let record = run(&config, &[A, B, C]);
    // As with three rows, and a fourth that is idle in three passes with decodes.
    assert_eq!(record.token_times(0)[0], 528.0 * UNIT);
    assert_eq!(record.counters.idle_slot_steps, 3);
}

/// ```text
/// pass  starts  A (4 + 2)  B (8 + 4)  C (4 + 3)   T   K        K + 16 T + 128
/// 0     0       prompt 4   waits      -           4   4        196
/// 1     196     stalls     prompt 8   waits       8   8        264
/// 2     460     decode 5   decode 9   waits       2   14       174
/// 3     634     ended      stalls     prompt 4    4   4        196
/// 4     830                decode 10  decode 5    2   15       175
/// 5     1005               decode 11  decode 6    2   17       177
/// ```
#[test]
fn test_continuous_stalls_decodes_for_each_prompt() {
    let times: [&[u32]; 3] = [&[196, 634], &[460, 634, 1005, 1182], &[830, 1005, 1182]];
    // Passes 2, 4 and 5 decode two of two rows; the prompts' own passes do not count.
    assert_run(&config(Batching::Continuous), times, [6, 0, 0]);
}

/// ```text
/// pass  starts  A (4 + 2)  B (8 + 4)  C (4 + 3)   T   K             K + 16 T + 128
/// 0     0       prompt 4   prompt 8   -          12   12            332
/// 1     332     decode 5   decode 9   waits       2   14            174
/// 2     506     ended      decode 10  prompt 4    5   10 + 4 = 14   222
/// 3     728                decode 11  decode 5    2   16            176
/// 4     904                ended      decode 6    1   6             150
/// ```
#[test]
fn test_mixed_takes_whole_prompts_beside_the_decodes() {
    let times: [&[u32]; 3] = [&[332, 506], &[332, 506, 728, 904], &[728, 904, 1054]];
    // Idle: C's row while it prefills beside B's decode, and the empty row beside C's last.
    assert_run(&config(Batching::Mixed), times, [6, 0, 2]);
}

/// A budget of 8 tokens.
///
/// ```text
/// pass  starts  A (4 + 2)  B (8 + 4)    C (4 + 3)   T   K            K + 16 T + 128
/// 0     0       prompt 4   prompt 4/8   -           8   4 + 4 = 8    264
/// 1     264     decode 5   prompt 8/8   waits       5   5 + 8 = 13   221
/// 2     485     ended      decode 9     prompt 4    5   9 + 4 = 13   221
/// 3     706                decode 10    decode 5    2   15           175
/// 4     881                decode 11    decode 6    2   17           177
/// ```
#[test]
fn test_chunked_fills_the_budget_with_prompts() {
    let times: [&[u32]; 3] = [&[264, 485], &[485, 706, 881, 1058], &[706, 881, 1058]];
    // Idle: B's row in pass 1 and C's in pass 2, which prefill beside one decode.
    assert_run(&config(Batching::Chunked), times, [6, 0, 2]);
}

/// Two requests of one prompt token, 10 and 500 output tokens, in a batch of two; a third comes early and waits.
fn two_and_a_third(batching: Batching) -> (Record, Summary) {
    let rows = [(0.0, 1, 10), (0.0, 1, 500), (1.0, 1, 2)];
    let record = run(&config_of_a_large_pool(batching), &rows);
    let summary = Summary::of(&workload(&rows), &record, &Promise::default());
    (record, summary)
}

fn config_of_a_large_pool(batching: Batching) -> SimConfig {
    SimConfig { num_blocks: Some(1_000), ..config(batching) }
}

/// The pass that gave the third request its first token, counted from 1.
fn first_pass_of_the_third(record: &Record) -> u32 {
    record.runs_by_request().find(|(request, _)| *request == 2).unwrap().1[0].first + 1
}

#[test]
fn test_ten_tokens_beside_five_hundred() {
    // Static: one joint prompt pass, then 499 decode passes, the last 490 of which carry the finished one along.
    let (record, summary) = two_and_a_third(Batching::Static);
    assert_eq!(summary.padded_slot_steps, 490);
    assert_eq!(first_pass_of_the_third(&record), 501);
    // Mixed: the tenth token comes in pass 10, and the third takes the place in pass 11.
    let (record, summary) = two_and_a_third(Batching::Mixed);
    assert_eq!((summary.padded_slot_steps, first_pass_of_the_third(&record)), (0, 11));
    // Continuous: two prompt passes, so that the tenth token comes in pass 11 and the third's own prompt is pass 12.
    let (record, summary) = two_and_a_third(Batching::Continuous);
    assert_eq!((summary.padded_slot_steps, first_pass_of_the_third(&record)), (0, 12));
}

/// Whole blocks of 4: A's padding reads 8 tokens, not 6, and B's contexts of 10 and 11 read 12.
#[test]
fn test_padding_reads_whole_blocks_too() {
    let config = SimConfig { kv_read: KvRead::Blocks, ..config(Batching::Static) };
    let ends = run(&config, &[A, B]).pass_ends;
    // 4 + 8, then 8 + 12, then 8 + 12 twice.
    let lengths = [12.0 + 320.0, 20.0 + 160.0, 20.0 + 160.0, 20.0 + 160.0];
    let mut end = 0.0;
    let expected = lengths.map(|length| {
        end += length * UNIT;
        end
    });
    assert_eq!(ends, expected);
}

/// Shortest prompt first, one row: B is first since it comes alone, then C before A's long prompt.
#[test]
fn test_shortest_prompt_goes_first() {
    let mut config = config(Batching::Serial);
    config.schedule.policy = Policy::Sjf;
    let record = run(&config, &[(0.0, 8, 1), (1.0, 7, 1), (2.0, 4, 1)]);
    assert!(record.token_times(2)[0] < record.token_times(1)[0]);
    config.schedule.policy = Policy::Fcfs;
    let record = run(&config, &[(0.0, 8, 1), (1.0, 7, 1), (2.0, 4, 1)]);
    assert!(record.token_times(1)[0] < record.token_times(2)[0]);
}

/// The longest request has 12 tokens: each reserves 3 blocks, and a pool of 4 holds one at a time. A pool of 2 holds
/// none, and on demand it holds the two short ones.
#[test]
fn test_worst_case_reserves_for_the_longest() {
    let mut config = SimConfig { num_blocks: Some(4), ..config(Batching::Chunked) };
    config.schedule.reserve = Reserve::WorstCase;
    let record = run(&config, &[A, B, C]);
    assert!(record.token_times(1)[0] > record.token_times(0)[1], "B waits for A's blocks");
    assert_eq!(record.counters.peak_held_blocks, 3);
    assert_eq!(record.counters.preemptions, 0);
    let ends = |config: &SimConfig| run(config, &[A, B, C]).requests.iter().map(|r| r.status).collect::<Vec<_>>();
    config.num_blocks = Some(2);
    assert_eq!(ends(&config), [Status::Rejected; 3]);
    config.schedule.reserve = Reserve::OnDemand;
    assert_eq!(ends(&config), [Status::Completed, Status::Capacity, Status::Completed]);
}
