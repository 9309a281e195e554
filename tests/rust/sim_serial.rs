//! One request at a time is the queue M/G/1, and its mean wait has a formula.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use octavo_sim::{
    Arrivals, Batching, Feeding, Length, PassShape, Plain, Promise, Schedule, SimConfig, Summary, simulate,
};

const PROMPT: u32 = 100;
const LONGEST: u32 = 19;
/// Requests, and how many of them make one batch mean.
const REQUESTS: u32 = 40_000;
const BATCH: usize = 1_000;

/// The time that a request of `output` tokens takes alone.
fn service(config: &SimConfig, output: u32) -> f64 {
    let pass = |tokens: u32, context: u32| {
        config.cost.seconds(PassShape { tokens: u64::from(tokens), kv_tokens: u64::from(context) })
    };
    (1..output).map(|emitted| pass(1, PROMPT + emitted)).sum::<f64>() + pass(PROMPT, PROMPT)
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = f64::from(u32::try_from(values.len()).unwrap());
    values.sum::<f64>() / n
}

/// Pollaczek and Khinchine: Poisson arrivals of rate λ at one server with service S and load ρ = λ E\[S\] wait
/// λ E\[S²\] / (2 (1 - ρ)) on average. Waits of neighbours are alike, so the error of their mean is that of the means of
/// batches long enough to forget each other (a busy period is some ten requests): four standard errors are allowed.
#[test]
fn test_serial_waits_as_long_as_the_theory_of_one_server_says() {
    let schedule = Schedule { batching: Batching::Serial, ..Schedule::default() };
    let config = SimConfig { schedule, prefix_caching: false, ..SimConfig::default() };
    let first = mean((1..=LONGEST).map(|output| service(&config, output)).collect::<Vec<_>>().into_iter());
    let second = mean((1..=LONGEST).map(|output| service(&config, output).powi(2)).collect::<Vec<_>>().into_iter());
    for load in [0.5, 0.8] {
        let rate = load / first;
        let theory = rate * second / (2.0 * (1.0 - load));
        let traffic = Plain {
            num_requests: REQUESTS,
            arrivals: Arrivals::Open { rate, burstiness: 1.0 },
            input_len: Length::Fixed(PROMPT),
            output_len: Length::Uniform(1, LONGEST),
        };
        let workload = traffic.workload(7).unwrap();
        let record = simulate(&config, &workload, Feeding::Lazy, &mut |_| true).unwrap();
        let waits: Vec<f64> = record.requests.iter().map(|request| request.queue_s).collect();
        let means: Vec<f64> = waits.chunks(BATCH).map(|batch| mean(batch.iter().copied())).collect();
        let waited = mean(means.iter().copied());
        let batches = f64::from(u32::try_from(means.len()).unwrap());
        let variance = means.iter().map(|m| (m - waited).powi(2)).sum::<f64>() / (batches - 1.0);
        let error = (variance / batches).sqrt();
        assert!((waited - theory).abs() < 4.0 * error, "load {load}: waited {waited}, theory {theory} ± {error}");
        // The allowance is no free pass.
        assert!(error < 0.1 * theory, "load {load}: {error} of {theory}");
        // Nobody is stalled, and what does not wait is the prompt's own pass.
        let parts = Summary::of(&workload, &record, &Promise::default()).ttft_parts_s;
        assert!((parts.queue - waited).abs() < 1e-9 && parts.stall.abs() < 1e-15);
        assert!((parts.prefill - config.cost.seconds(PassShape { tokens: 100, kv_tokens: 100 })).abs() < 1e-6);
    }
}
