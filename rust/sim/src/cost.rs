//! What one pass costs.
//!
//! A pass that runs T tokens and reads K tokens of KV cache takes
//!
//! ```text
//! pass(T, K) = combine( (W + K·k) / BW , T·f / F ) + h        combine = max (a roofline) or sum
//! ```
//!
//! with W the bytes of the weights, k the KV bytes of one token (2 · layers · KV heads · head size ·
//! bytes per value), BW the memory bandwidth, f the floating-point operations per token (2 · parameters),
//! F the effective FLOP/s and h a fixed overhead. The roofline is that of Williams, Waterman and Patterson
//! (*Communications of the ACM* 52, 2009): memory traffic and arithmetic overlap, so the slower one counts.
//!
//! What this module does not know: schedules, requests, time.

use crate::num::float;

/// How the memory time and the arithmetic time of a pass combine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Combine {
    /// They overlap perfectly: the larger one counts.
    #[default]
    Max,
    /// They do not overlap: both count.
    Sum,
}

impl Combine {
    /// The name in flags and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Max => "max",
            Self::Sum => "sum",
        }
    }
}

/// What a sequence's KV reads are counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvRead {
    /// The tokens of its context.
    #[default]
    Tokens,
    /// The whole blocks that hold its context.
    Blocks,
}

impl KvRead {
    /// The name in flags and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Blocks => "blocks",
        }
    }

    /// The tokens read for a sequence whose context after the pass is `context` tokens.
    #[must_use]
    pub const fn tokens(self, context: u64, block_size: u64) -> u64 {
        match self {
            Self::Tokens => context,
            Self::Blocks => context.div_ceil(block_size) * block_size,
        }
    }
}

/// The work of one pass: all that its cost depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassShape {
    /// T: tokens run through the model.
    pub tokens: u64,
    /// K: tokens of KV cache read.
    pub kv_tokens: u64,
}

/// The numbers of the formula.
///
/// # Example
///
/// ```
/// use octavo_sim::{CostModel, PassShape};
/// // A prompt of 1,000 tokens on the default model: 1,000 · 16 GFLOP / 150 TFLOP/s + 3 ms.
/// let seconds = CostModel::default().seconds(PassShape { tokens: 1_000, kv_tokens: 1_000 });
/// assert!((seconds - 0.1097).abs() < 0.0001);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// W, bytes.
    pub weight_bytes: f64,
    /// k, bytes.
    pub kv_bytes_per_token: f64,
    /// BW, bytes per second.
    pub bandwidth: f64,
    /// f, floating-point operations per token.
    pub flop_per_token: f64,
    /// F, effective floating-point operations per second.
    pub peak_flops: f64,
    /// h, seconds per pass.
    pub overhead: f64,
    /// How memory and arithmetic combine.
    pub combine: Combine,
}

impl Default for CostModel {
    /// An 8B model of 32 layers, 8 KV heads of 128, in bf16, on 2 TB/s and 150 TFLOP/s, 3 ms per pass.
    fn default() -> Self {
        Self {
            weight_bytes: 16e9,
            kv_bytes_per_token: 131_072.0,
            bandwidth: 2e12,
            flop_per_token: 16e9,
            peak_flops: 150e12,
            overhead: 0.003,
            combine: Combine::Max,
        }
    }
}

impl CostModel {
    /// The time to read the weights and the KV cache of a pass, in seconds.
    #[must_use]
    pub fn memory_seconds(&self, shape: PassShape) -> f64 {
        (self.weight_bytes + float(shape.kv_tokens) * self.kv_bytes_per_token) / self.bandwidth
    }

    /// The time of the arithmetic of a pass, in seconds.
    #[must_use]
    pub fn compute_seconds(&self, shape: PassShape) -> f64 {
        float(shape.tokens) * self.flop_per_token / self.peak_flops
    }

    /// The time of a pass, in seconds.
    ///
    /// # Complexity
    /// O(1): a dozen floating-point operations in a fixed order, the same on every machine.
    #[must_use]
    pub fn seconds(&self, shape: PassShape) -> f64 {
        let memory = self.memory_seconds(shape);
        let compute = self.compute_seconds(shape);
        let both = match self.combine {
            Combine::Max => memory.max(compute),
            Combine::Sum => memory + compute,
        };
        both + self.overhead
    }

    /// How many KV blocks fit beside the weights: `floor((memory - W - reserved) / (k · block_size))`.
    ///
    /// `None` where nothing fits or the numbers are not finite.
    #[must_use]
    pub fn num_blocks(&self, memory: f64, reserved: f64, block_size: u64) -> Option<u64> {
        let room = memory - self.weight_bytes - reserved;
        crate::num::floor(room / (self.kv_bytes_per_token * float(block_size))).filter(|&fit| fit > 0)
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "these floats are exact")]
mod tests {
    use super::{Combine, CostModel, KvRead, PassShape};

    fn milliseconds(seconds: f64) -> f64 {
        // One decimal, as the figures of the plan are printed.
        (seconds * 1e4).round() / 10.0
    }

    #[test]
    fn test_decode_pass_costs_what_the_plan_says() {
        // 328 sequences with 1,150 tokens of context each.
        let model = CostModel::default();
        let shape = PassShape { tokens: 328, kv_tokens: 328 * 1_150 };
        // (16e9 + 377,200 · 131,072) / 2e12 and 328 · 16e9 / 150e12, then the larger one + 3 ms.
        assert_eq!(milliseconds(model.memory_seconds(shape)), 32.7);
        assert_eq!(milliseconds(model.compute_seconds(shape)), 35.0);
        assert_eq!(milliseconds(model.seconds(shape)), 38.0);
    }

    #[test]
    fn test_prompt_pass_costs_what_the_plan_says() {
        let shape = PassShape { tokens: 1_000, kv_tokens: 1_000 };
        assert_eq!(milliseconds(CostModel::default().seconds(shape)), 109.7);
    }

    #[test]
    fn test_sum_adds_what_max_overlaps() {
        let shape = PassShape { tokens: 328, kv_tokens: 328 * 1_150 };
        let model = CostModel { combine: Combine::Sum, ..CostModel::default() };
        // 32.72 + 34.99 + 3 ms
        assert_eq!(milliseconds(model.seconds(shape)), 70.7);
    }

    #[test]
    fn test_single_stream_is_bound_by_the_weights() {
        // BW / W = 125 tokens/s without overhead and KV reads.
        let model = CostModel { overhead: 0.0, ..CostModel::default() };
        assert_eq!(1.0 / model.seconds(PassShape { tokens: 1, kv_tokens: 0 }), 125.0);
    }

    #[test]
    fn test_pool_holds_the_conversations_of_the_plan() {
        let model = CostModel::default();
        // A block of 1,300 tokens is one conversation of 1,000 + 300: 56e9 / (1,300 · 131,072) = 328.6.
        assert_eq!(model.num_blocks(80e9, 8e9, 1_300), Some(328));
        // 56e9 / (16 · 131,072) = 26,702.9.
        assert_eq!(model.num_blocks(80e9, 8e9, 16), Some(26_702));
        assert_eq!(model.num_blocks(24e9, 8e9, 16), None);
        assert_eq!(model.num_blocks(f64::NAN, 8e9, 16), None);
    }

    #[test]
    fn test_blocks_are_read_whole() {
        assert_eq!(KvRead::Tokens.tokens(17, 16), 17);
        assert_eq!(KvRead::Blocks.tokens(17, 16), 32);
        assert_eq!(KvRead::Blocks.tokens(16, 16), 16);
    }
}
