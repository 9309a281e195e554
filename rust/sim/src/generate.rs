//! Traffic made from a seed: the festival sale, and plain arrivals of fixed lengths.
//!
//! Each kind of draw has its own stream of the seed, so that a change of one leaves the others alone.

use crate::rng::Rng;
use crate::workload::{Columns, NamedPrefixes, Workload};
use octavo_core::ConfigError;

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

/// Requests of one length that arrive at one rate.
#[derive(Clone, Copy, Debug)]
pub struct Plain {
    /// How many.
    pub num_requests: u32,
    /// Poisson arrivals per second; infinite: all at 0.
    pub request_rate: f64,
    /// Tokens of every prompt; prompts share nothing.
    pub input_len: u32,
    /// Tokens of every output.
    pub output_len: u32,
}

impl Plain {
    /// The requests.
    ///
    /// # Errors
    /// [`ConfigError`] for a rate that is not above 0, no requests, or a length outside 1 … 2^30.
    ///
    /// # Complexity
    /// O(requests).
    pub fn workload(&self, seed: u64) -> Result<Workload, ConfigError> {
        let rate = self.request_rate;
        if !(1..1 << 29).contains(&self.num_requests) {
            return Err(ConfigError::new("num_requests", self.num_requests, "1 … 2^29 - 1"));
        }
        if rate.is_nan() || rate <= 0.0 {
            return Err(ConfigError::new("request_rate", rate, "above 0, or inf"));
        }
        let lengths = [("input_len", self.input_len), ("output_len", self.output_len)];
        for (field, length) in lengths {
            if !(1..=1 << 30).contains(&length) {
                return Err(ConfigError::new(field, length, "1 … 2^30"));
            }
        }
        let mut rng = Rng::new(seed, ARRIVALS);
        let mut now = 0.0;
        let mut next = || {
            // The first one arrives at 0, as benchmark clients do it.
            let arrival = now;
            if rate.is_finite() {
                now += rng.exponential(rate);
            }
            arrival
        };
        let requests = crate::num::index(self.num_requests);
        let columns = Columns {
            arrival_s: (0..requests).map(|_| next()).collect(),
            prompt_tokens: vec![self.input_len; requests],
            output_tokens: vec![self.output_len; requests],
            prefixes: NamedPrefixes::None,
        };
        Workload::new(columns).map_err(|error| ConfigError::new("request_rate", rate, error.to_string()))
    }
}

/// Poisson arrivals of a rate in `[from, until)`, appended to `arrivals`.
fn poisson_until(rng: &mut Rng, rate: f64, from: f64, until: f64, arrivals: &mut Vec<f64>) {
    let mut now = from + rng.exponential(rate);
    while now < until {
        arrivals.push(now);
        now += rng.exponential(rate);
    }
}

/// The whole tokens of a drawn length, held to `least … most`.
fn whole(length: f64, least: u32, most: u32) -> u32 {
    let drawn = crate::num::floor(length).and_then(|tokens| u32::try_from(tokens).ok());
    drawn.unwrap_or(most).clamp(least, most)
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "these floats are exact")]
mod tests {
    use super::{Festival, Plain};
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
        let plain = Plain { num_requests: 10_000, request_rate: 4.0, input_len: 10, output_len: 3 };
        let workload = plain.workload(0)?;
        assert_eq!(workload.len(), 10_000);
        assert_eq!(workload.arrivals()[0], 0.0);
        let last = workload.arrivals()[9_999];
        assert!((2_400.0..2_600.0).contains(&last), "{last}");
        let at_once = Plain { request_rate: f64::INFINITY, ..plain }.workload(0)?;
        assert!(at_once.arrivals().iter().all(|&t| t == 0.0));
        Ok(())
    }

    #[test]
    fn test_plain_traffic_refuses_by_name() {
        let plain = Plain { num_requests: 1, request_rate: 1.0, input_len: 1, output_len: 1 };
        let field = |plain: Plain| plain.workload(0).err().map(|e| e.field);
        assert_eq!(field(Plain { request_rate: 0.0, ..plain }), Some("request_rate"));
        assert_eq!(field(Plain { request_rate: f64::NAN, ..plain }), Some("request_rate"));
        assert_eq!(field(Plain { num_requests: 0, ..plain }), Some("num_requests"));
        assert_eq!(field(Plain { input_len: 0, ..plain }), Some("input_len"));
        assert_eq!(field(Plain { output_len: 0, ..plain }), Some("output_len"));
    }
}
