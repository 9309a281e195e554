//! Traffic made from a seed: the festival sale, and plain arrivals with drawn lengths.
//!
//! Each kind of draw has its own stream of the seed, so that a change of one leaves the others alone.

use crate::length::{Length, whole};
use crate::rng::Rng;
use crate::workload::{Columns, NamedPrefixes, Workload};
use octavo_core::ConfigError;
use std::num::NonZeroU32;

const ARRIVALS: u64 = 0;
const PROMPTS: u64 = 1;
const OUTPUTS: u64 = 2;

/// The sale of a festival's tickets, answered by a bot.
///
/// One ordinary hour of 0.6 requests/s, then the sale opens and 6.0 requests/s arrive for ten minutes;
/// both are Poisson. Every prompt begins with the bot's instructions, 150 tokens that all requests share
/// (15 % of a prompt of 1,000); the rest is the visitor's: log-normal, mean 850, deviation of the
/// logarithm 0.25, held to 50 … 7,850. Answers are log-normal too, but skewed: mean 300, deviation 0.8,
/// held to 1 … 2,000. Fractions of a token are cut off.
#[derive(Clone, Copy, Debug)]
pub struct Festival {
    /// Requests per second before the sale opens.
    pub ordinary_rate: f64,
    /// When the sale opens, seconds.
    pub opens_s: f64,
    /// Requests per second from then on.
    pub sale_rate: f64,
    /// When the last visitor has come, seconds.
    pub closes_s: f64,
    /// Tokens of the bot's instructions.
    pub shared_tokens: u32,
}

impl Default for Festival {
    fn default() -> Self {
        Self { ordinary_rate: 0.6, opens_s: 3_600.0, sale_rate: 6.0, closes_s: 4_200.0, shared_tokens: 150 }
    }
}

impl Festival {
    /// The requests of the sale.
    ///
    /// # Complexity
    /// O(requests).
    #[must_use]
    pub fn workload(&self, seed: u64) -> Workload {
        let mut clock = Rng::new(seed, ARRIVALS);
        let mut arrival_s = Vec::new();
        poisson_until(&mut clock, self.ordinary_rate, 0.0, self.opens_s, &mut arrival_s);
        poisson_until(&mut clock, self.sale_rate, self.opens_s, self.closes_s, &mut arrival_s);
        let requests = arrival_s.len();
        let mut prompts = Rng::new(seed, PROMPTS);
        let mut outputs = Rng::new(seed, OUTPUTS);
        let prompt_tokens =
            (0..requests).map(|_| self.shared_tokens + whole(prompts.lognormal(850.0, 0.25), 50, 7_850)).collect();
        let output_tokens = (0..requests).map(|_| whole(outputs.lognormal(300.0, 0.8), 1, 2_000)).collect();
        let prefixes = NamedPrefixes::Shared { ids: vec![0; requests], tokens: vec![self.shared_tokens; requests] };
        let columns = Columns { arrival_s, prompt_tokens, output_tokens, prefixes };
        // Lengths are at least 1 and times at least 0 by construction.
        Workload::new(columns).unwrap_or_default()
    }
}

/// How made requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// At random.
    Open {
        /// Requests per second; infinite: all at 0.
        rate: f64,
        /// The shape of the gamma distribution of the time between two: 1 is Poisson, less comes in bursts, more is
        /// more even, infinite is a clock.
        burstiness: f64,
    },
    /// From this many users, each of whom sends the next one when the last has ended.
    Closed(NonZeroU32),
}

/// Requests whose arrivals and lengths are drawn; prompts share nothing.
#[derive(Clone, Copy, Debug)]
pub struct Plain {
    /// How many.
    pub num_requests: u32,
    /// When they come.
    pub arrivals: Arrivals,
    /// Tokens of a prompt.
    pub input_len: Length,
    /// Tokens of an output.
    pub output_len: Length,
}

impl Plain {
    /// Poisson arrivals of one length.
    #[must_use]
    pub const fn poisson(num_requests: u32, rate: f64, input_len: u32, output_len: u32) -> Self {
        Self {
            num_requests,
            arrivals: Arrivals::Open { rate, burstiness: 1.0 },
            input_len: Length::Fixed(input_len),
            output_len: Length::Fixed(output_len),
        }
    }

    /// The requests.
    ///
    /// # Errors
    /// [`ConfigError`] for a rate or burstiness that is not above 0, no requests, or a fixed length outside 1 … 2^30.
    ///
    /// # Complexity
    /// O(requests).
    pub fn workload(&self, seed: u64) -> Result<Workload, ConfigError> {
        if !(1..1 << 29).contains(&self.num_requests) {
            return Err(ConfigError::new("num_requests", self.num_requests, "1 … 2^29 - 1"));
        }
        for (field, length) in [("input_len", self.input_len), ("output_len", self.output_len)] {
            length.check(field)?;
        }
        let requests = crate::num::index(self.num_requests);
        let lengths = |length: Length, stream| {
            let mut rng = Rng::new(seed, stream);
            (0..requests).map(|_| length.draw(&mut rng)).collect()
        };
        let columns = Columns {
            arrival_s: match self.arrivals {
                Arrivals::Open { rate, burstiness } => open_arrivals(requests, rate, burstiness, seed)?,
                Arrivals::Closed(_) => vec![0.0; requests],
            },
            prompt_tokens: lengths(self.input_len, PROMPTS),
            output_tokens: lengths(self.output_len, OUTPUTS),
            prefixes: NamedPrefixes::None,
        };
        let made = Workload::new(columns);
        let made = made.map_err(|error| ConfigError::new("request_rate", error.index, error.to_string()))?;
        Ok(match self.arrivals {
            Arrivals::Open { .. } => made,
            Arrivals::Closed(users) => made.in_closed_loop(users),
        })
    }
}

/// Arrivals whose distances are drawn; the first one is at 0, as benchmark clients do it.
fn open_arrivals(requests: usize, rate: f64, burstiness: f64, seed: u64) -> Result<Vec<f64>, ConfigError> {
    for (field, value) in [("request_rate", rate), ("burstiness", burstiness)] {
        if value.is_nan() || value <= 0.0 {
            return Err(ConfigError::new(field, value, "above 0, or inf"));
        }
    }
    let mut rng = Rng::new(seed, ARRIVALS);
    let mut now = 0.0;
    let arrivals = (0..requests).map(|_| {
        let arrival = now;
        if rate.is_finite() {
            now += rng.interval(rate, burstiness);
        }
        arrival
    });
    Ok(arrivals.collect())
}

/// Poisson arrivals of a rate in `[from, until)`, appended to `arrivals`.
fn poisson_until(rng: &mut Rng, rate: f64, from: f64, until: f64, arrivals: &mut Vec<f64>) {
    let mut now = from + rng.exponential(rate);
    while now < until {
        arrivals.push(now);
        now += rng.exponential(rate);
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "these floats are exact")]
mod tests {
    use super::{Arrivals, Festival, Length, Plain};
    use crate::num::float;
    use octavo_core::ConfigError;

    #[test]
    fn test_festival_has_the_traffic_of_the_sale() {
        let sale = Festival::default().workload(0);
        let arrivals = sale.arrivals();
        let ordinary = arrivals.iter().filter(|&&t| t < 3_600.0).count();
        let rush = arrivals.len() - ordinary;
        // 0.6 · 3,600 = 2,160 ± 46 and 6.0 · 600 = 3,600 ± 60; four deviations.
        assert!((1_974..=2_346).contains(&ordinary), "{ordinary}");
        assert!((3_360..=3_840).contains(&rush), "{rush}");
        assert!(arrivals.is_sorted() && arrivals.iter().all(|&t| t < 4_200.0));
        let mean = |lengths: &[u32]| {
            let sum: u64 = lengths.iter().map(|&n| u64::from(n)).sum();
            crate::num::float(sum) / crate::num::float(lengths.len() as u64)
        };
        let prompt = mean(sale.prompt_tokens());
        let output = mean(sale.output_tokens());
        assert!((980.0..1_020.0).contains(&prompt), "{prompt}");
        assert!((280.0..310.0).contains(&output), "{output}");
        let mut sorted = sale.output_tokens().to_vec();
        sorted.sort_unstable();
        // Skewed: the median of a log-normal is mean · exp(-0.8²/2) = 218.
        assert!((205..=232).contains(&sorted[sorted.len() / 2]));
        assert_eq!(sale.prompt(0)[..150], sale.prompt(1)[..150]);
        assert_ne!(sale.prompt(0)[150], sale.prompt(1)[150]);
    }

    #[test]
    fn test_seed_decides_every_byte() {
        let hash = |seed| Festival::default().workload(seed).hash();
        assert_eq!(hash(0), hash(0));
        assert_ne!(hash(0), hash(1));
        assert_eq!(hash(0), GOLDEN_HASH);
    }

    const GOLDEN_HASH: &str = "e27dd267bf41f9c6";

    #[test]
    fn test_plain_traffic_keeps_its_rate_and_lengths() -> Result<(), ConfigError> {
        let plain = Plain::poisson(10_000, 4.0, 10, 3);
        let workload = plain.workload(0)?;
        assert_eq!(workload.len(), 10_000);
        assert_eq!(workload.arrivals()[0], 0.0);
        let last = workload.arrivals()[9_999];
        assert!((2_400.0..2_600.0).contains(&last), "{last}");
        let at_once = Plain::poisson(10_000, f64::INFINITY, 10, 3).workload(0)?;
        assert!(at_once.arrivals().iter().all(|&t| t == 0.0));
        Ok(())
    }

    #[test]
    fn test_plain_traffic_refuses_by_name() {
        let plain = Plain::poisson(1, 1.0, 1, 1);
        let field = |plain: Plain| plain.workload(0).err().map(|e| e.field);
        let open = |rate, burstiness| Plain { arrivals: Arrivals::Open { rate, burstiness }, ..plain };
        assert_eq!(field(open(0.0, 1.0)), Some("request_rate"));
        assert_eq!(field(open(f64::NAN, 1.0)), Some("request_rate"));
        assert_eq!(field(open(1.0, 0.0)), Some("burstiness"));
        assert_eq!(field(Plain { num_requests: 0, ..plain }), Some("num_requests"));
        assert_eq!(field(Plain { input_len: Length::Fixed(0), ..plain }), Some("input_len"));
        assert_eq!(field(Plain { output_len: Length::Uniform(3, 2), ..plain }), Some("output_len"));
    }

    /// Mean and squared coefficient of variation of the distances between arrivals.
    fn distances(burstiness: f64) -> Result<(f64, f64), ConfigError> {
        let arrivals = Arrivals::Open { rate: 4.0, burstiness };
        let workload = Plain { arrivals, ..Plain::poisson(100_001, 4.0, 1, 1) }.workload(3)?;
        let distances: Vec<f64> = workload.arrivals().windows(2).map(|pair| pair[1] - pair[0]).collect();
        let n = float(distances.len() as u64);
        let mean = distances.iter().sum::<f64>() / n;
        let variance = distances.iter().map(|d| (d - mean) * (d - mean)).sum::<f64>() / n;
        Ok((mean, variance / mean / mean))
    }

    #[test]
    fn test_burstiness_is_the_shape_of_the_distances() -> Result<(), ConfigError> {
        // A gamma distribution of shape b and mean 1/4 has the squared coefficient of variation 1/b.
        for (burstiness, tolerance) in [(0.25, 0.15), (0.5, 0.06), (1.0, 0.03), (2.5, 0.02), (9.0, 0.01)] {
            let (mean, variation) = distances(burstiness)?;
            assert!((mean - 0.25).abs() < 0.01, "{burstiness}: {mean}");
            assert!((variation - 1.0 / burstiness).abs() < tolerance, "{burstiness}: {variation}");
        }
        assert_eq!(distances(f64::INFINITY)?, (0.25, 0.0));
        Ok(())
    }

    #[test]
    fn test_closed_loop_tells_its_users_and_changes_the_hash() -> Result<(), ConfigError> {
        let plain = Plain::poisson(5, f64::INFINITY, 10, 3);
        let open = plain.workload(0)?;
        let closed = |users: u32| {
            let users = std::num::NonZeroU32::new(users).unwrap_or(std::num::NonZeroU32::MIN);
            Plain { arrivals: Arrivals::Closed(users), ..plain }.workload(0)
        };
        assert_eq!((open.concurrency(), closed(2)?.concurrency()), (None, Some(2)));
        assert_ne!(open.hash(), closed(2)?.hash());
        assert_ne!(closed(3)?.hash(), closed(2)?.hash());
        Ok(())
    }

    #[test]
    fn test_drawn_traffic_is_pinned_to_the_byte() -> Result<(), ConfigError> {
        let made = Plain {
            num_requests: 1_000,
            arrivals: Arrivals::Open { rate: 8.0, burstiness: 0.5 },
            input_len: Length::parse("input_len", "uniform:100:900")?,
            output_len: Length::parse("output_len", "lognormal:120:0.9:10:500")?,
        };
        assert_eq!(made.workload(0)?.hash(), GOLDEN_DRAWN);
        Ok(())
    }

    const GOLDEN_DRAWN: &str = "2c8e0cbcf1dff56f";
}
