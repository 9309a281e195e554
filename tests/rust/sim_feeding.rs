//! Handing requests over when a step could admit them is the same as handing them over when they arrive.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use octavo_sim::{
    Batching, Columns, Feeding, NamedPrefixes, Record, Reserve, Rng, Schedule, SimConfig, Status, Victim, Workload,
    simulate,
};

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

fn tiny(rng: &mut Rng, batching: Batching) -> SimConfig {
    let schedule = Schedule {
        batching,
        wait_for_full: draw(rng, 0, 1) > 0,
        reserve: if draw(rng, 0, 3) > 0 { Reserve::OnDemand } else { Reserve::WorstCase },
        victim: if draw(rng, 0, 1) > 0 { Victim::Latest } else { Victim::LeastComputed },
        ..Schedule::default()
    };
    SimConfig {
        schedule,
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
fn test_lazy_and_eager_feeding_give_the_same_run_under_every_batching() {
    for batching in Batching::ALL {
        let mut rng = Rng::new(2, 0);
        let (mut preempted, mut found, mut padded, mut ends) = (0, 0, 0, [0; 3]);
        for world in 0..600 {
            let (workload, config) = (crowd(&mut rng), tiny(&mut rng, batching));
            let run = |feeding| simulate(&config, &workload, feeding, &mut |_| true).unwrap();
            let lazy = run(Feeding::Lazy);
            assert_same(&lazy, &run(Feeding::Eager), world);
            preempted += lazy.counters.preemptions;
            found += lazy.counters.prefix_hit_tokens;
            padded += lazy.counters.padded_slot_steps;
            for request in &lazy.requests {
                let kinds = [Status::Completed, Status::Rejected, Status::Capacity];
                let kind = kinds.iter().position(|&kind| kind == request.status).unwrap();
                ends[kind] += 1;
            }
        }
        // The worlds were no idle ones: everything that could tell the two apart has happened often.
        let is_serial = batching == Batching::Serial;
        assert!((preempted > 100) != is_serial && found > 100, "{batching:?}: {preempted} preemptions, {found} found");
        assert!(ends.iter().all(|&count| count > 20), "{batching:?}: {ends:?}");
        assert_eq!(padded > 100, batching == Batching::Static);
    }
}
