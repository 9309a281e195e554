//! Exact statistics of a sample in which a value may stand many times.
//!
//! Percentiles follow NumPy's `linear` rule (method 7 of Hyndman and Fan, *The American Statistician* 50,
//! 1996): the q-quantile of n sorted values stands at position (n - 1)·q, and between two values it is
//! interpolated. NumPy interpolates from the nearer end; so does this, digit for digit.

use crate::num::{count, float};
use serde::Serialize;

/// Mean, percentiles, extremes and size of a sample; all but `n` are `None` when it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// Sum / n.
    pub mean: Option<f64>,
    /// Half of the values are at or below this one.
    pub p50: Option<f64>,
    /// 90 % of the values are.
    pub p90: Option<f64>,
    /// 99 % of the values are.
    pub p99: Option<f64>,
    /// The smallest value.
    pub min: Option<f64>,
    /// The largest value.
    pub max: Option<f64>,
    /// How many values there are.
    pub n: u64,
}

impl Distribution {
    /// Of values that stand once each.
    ///
    /// # Complexity
    /// O(n log n).
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let n = count(sorted.len());
        let at = |rank: u64| usize::try_from(rank).ok().and_then(|rank| sorted.get(rank)).copied();
        Self::from_ranks(n, sorted.iter().sum(), &at)
    }

    /// Of values that stand `weight` times each.
    ///
    /// # Complexity
    /// O(k log k) in the pairs, whatever the weights: four million gaps between tokens are a hundred
    /// thousand pass lengths, each with the number of sequences that waited for it.
    #[must_use]
    pub fn of_weighted(mut pairs: Vec<(f64, u64)>) -> Self {
        pairs.retain(|&(_, weight)| weight > 0);
        pairs.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let mut below = 0;
        let mut sum = 0.0;
        let mut ends = Vec::with_capacity(pairs.len());
        for &(value, weight) in &pairs {
            below += weight;
            sum += value * float(weight);
            ends.push(below);
        }
        let at = |rank: u64| {
            let pair = ends.partition_point(|&end| end <= rank);
            pairs.get(pair).map(|&(value, _)| value)
        };
        Self::from_ranks(below, sum, &at)
    }

    fn from_ranks(n: u64, sum: f64, at: &dyn Fn(u64) -> Option<f64>) -> Self {
        if n == 0 {
            return Self::default();
        }
        Self {
            mean: Some(sum / float(n)),
            p50: percentile(n, 0.50, at),
            p90: percentile(n, 0.90, at),
            p99: percentile(n, 0.99, at),
            min: at(0),
            max: at(n - 1),
            n,
        }
    }
}

fn percentile(n: u64, quantile: f64, at: &dyn Fn(u64) -> Option<f64>) -> Option<f64> {
    let position = float(n - 1) * quantile;
    let rank = crate::num::floor(position)?;
    let low = at(rank)?;
    let high = at((rank + 1).min(n - 1))?;
    let part = position - float(rank);
    let distance = high - low;
    Some(if part >= 0.5 { high - distance * (1.0 - part) } else { low + distance * part })
}

#[cfg(test)]
mod tests {
    use super::Distribution;
    use crate::rng::Rng;

    #[test]
    fn test_percentiles_interpolate_between_neighbours() {
        // 0 … 10: the 90th percentile stands at position 9; of 1 … 4 the median is 2.5 and p90 at 2.7.
        let ten: Vec<f64> = (0..=10).map(f64::from).collect();
        assert_eq!(Distribution::of(&ten).p90, Some(9.0));
        let four = Distribution::of(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!(four.p50, Some(2.5));
        assert_eq!(four.p90, Some(4.0 - (1.0 - (3.0 * 0.9 - 2.0))));
        assert_eq!((four.min, four.max, four.mean, four.n), (Some(1.0), Some(4.0), Some(2.5), 4));
    }

    #[test]
    fn test_weights_stand_for_repeated_values() {
        let mut rng = Rng::new(3, 0);
        let pairs: Vec<(f64, u64)> = (0..50).map(|_| (rng.uniform(), rng.bits() % 4)).collect();
        let repeated: Vec<f64> = pairs.iter().flat_map(|&(value, weight)| (0..weight).map(move |_| value)).collect();
        let weighted = Distribution::of_weighted(pairs);
        let plain = Distribution::of(&repeated);
        assert_eq!(
            (weighted.p50, weighted.p90, weighted.p99, weighted.min, weighted.max, weighted.n),
            (plain.p50, plain.p90, plain.p99, plain.min, plain.max, plain.n)
        );
        let means = weighted.mean.zip(plain.mean);
        assert!(means.is_some_and(|(a, b)| (a - b).abs() < 1e-12));
    }

    #[test]
    fn test_nothing_has_no_statistics() {
        assert_eq!(Distribution::of(&[]), Distribution::default());
        assert_eq!(Distribution::of_weighted(vec![(1.0, 0)]), Distribution::default());
    }
}
