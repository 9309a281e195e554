//! The cost model and the traces of the tests whose times are derived by hand.

use octavo_sim::{Columns, Combine, CostModel, Workload};

/// pass(T, K) = K / 1024 + T / 64 + 1 / 8 seconds: sums of these are exact binary fractions.
pub fn cost() -> CostModel {
    CostModel {
        weight_bytes: 0.0,
        kv_bytes_per_token: 1.0,
        bandwidth: 1024.0,
        flop_per_token: 1.0,
        peak_flops: 64.0,
        overhead: 0.125,
        combine: Combine::Sum,
    }
}

/// One request a row: arrival in seconds, prompt, output.
pub fn workload(rows: &[(f64, u32, u32)]) -> Workload {
    Workload::new(Columns {
        arrival_s: rows.iter().map(|row| row.0).collect(),
        prompt_tokens: rows.iter().map(|row| row.1).collect(),
        output_tokens: rows.iter().map(|row| row.2).collect(),
        ..Columns::default()
    })
    .unwrap()
}
