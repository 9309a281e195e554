//! Handing requests over when a step could admit them is the same as handing them over when they arrive.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use octavo_sim::{Columns, Feeding, NamedPrefixes, Record, Rng, SimConfig, Status, Workload, simulate};

/// A number in `least ..= most`.
fn draw(rng: &mut Rng, least: u32, most: u32) -> u32 {
    least + u32::try_from(rng.bits() % u64::from(most - least + 1)).unwrap()
}

/// A crowd in a tiny world: prompts that share ids, lengths that outgrow the pool now and then.
fn crowd(rng: &mut Rng) -> Workload {
    let requests = draw(rng, 1, 24);
    let mut columns = Columns::default();
    let (mut indptr, mut ids) = (vec![0], Vec::new());
    for _ in 0..requests {
        columns.arrival_s.push(f64::from(draw(rng, 0, 6)));
        let prompt = draw(rng, 1, 18);
        columns.prompt_tokens.push(prompt);
        columns.output_tokens.push(draw(rng, 1, 9));
        for _ in 0..draw(rng, 0, prompt.div_ceil(4)) {
            ids.push(i64::from(draw(rng, 0, 1)));
        }
        indptr.push(ids.len());
    }
    columns.prefixes = NamedPrefixes::Blocks { block_tokens: 4, indptr, ids };
    Workload::new(columns).unwrap()
}

fn tiny(rng: &mut Rng) -> SimConfig {
    SimConfig {
        num_blocks: Some(u64::from(draw(rng, 2, 14))),
        block_size: u64::from(draw(rng, 1, 4)),
        max_num_seqs: u64::from(draw(rng, 1, 5)),
        max_num_batched_tokens: u64::from(draw(rng, 1, 16)),
        max_partial_prefills: u64::from(draw(rng, 1, 3)),
        long_prefill_threshold: u64::from(draw(rng, 0, 3)),
        watermark: f64::from(draw(rng, 0, 1)) * 0.3,
        prefix_caching: draw(rng, 0, 3) > 0,
        ..SimConfig::default()
    }
}

fn assert_same(lazy: &Record, eager: &Record, world: usize) {
    assert_eq!(lazy.pass_ends, eager.pass_ends, "world {world}");
    assert_eq!(lazy.runs, eager.runs, "world {world}");
    assert_eq!(lazy.requests, eager.requests, "world {world}");
    assert_eq!(lazy.counters, eager.counters, "world {world}");
}

#[test]
fn test_lazy_and_eager_feeding_give_the_same_run() {
    let mut rng = Rng::new(2, 0);
    let (mut preempted, mut found, mut ends) = (0, 0, [0; 3]);
    for world in 0..2_000 {
        let (workload, config) = (crowd(&mut rng), tiny(&mut rng));
        let run = |feeding| simulate(&config, &workload, feeding, &mut |_| true).unwrap();
        let lazy = run(Feeding::Lazy);
        assert_same(&lazy, &run(Feeding::Eager), world);
        preempted += lazy.counters.preemptions;
        found += lazy.counters.prefix_hit_tokens;
        for request in &lazy.requests {
            let kinds = [Status::Completed, Status::Rejected, Status::Capacity];
            let kind = kinds.iter().position(|&kind| kind == request.status).unwrap();
            ends[kind] += 1;
        }
    }
    // The worlds were no idle ones: everything that could tell the two apart has happened often.
    assert!(preempted > 500 && found > 500, "{preempted} preemptions, {found} tokens found");
    assert!(ends.iter().all(|&count| count > 100), "{ends:?}");
}
