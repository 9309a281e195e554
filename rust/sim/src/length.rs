//! Lengths of prompts and answers that are made: one number, or a distribution.

use crate::num::float;
use crate::rng::Rng;
use octavo_core::ConfigError;

/// The longest prompt or answer.
pub const LONGEST: u32 = 1 << 30;

const RANGE: &str = "1 … 2^30, uniform:LEAST:MOST, or lognormal:MEAN:SIGMA[:LEAST:MOST]";

/// How long prompts or answers are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// All the same.
    Fixed(u32),
    /// Every whole number from the first to the second is as likely.
    Uniform(u32, u32),
    /// Log-normal, fractions cut off, held between two bounds.
    Lognormal {
        /// The mean before anything is cut off.
        mean: f64,
        /// The deviation of the logarithm.
        sigma: f64,
        /// No shorter than this.
        least: u32,
        /// No longer than this.
        most: u32,
    },
}

impl Length {
    /// Reads `500`, `uniform:10:500`, `lognormal:300:0.8` or `lognormal:300:0.8:10:2000`.
    ///
    /// # Errors
    /// [`ConfigError`] for `field` when the text is none of them, or a length is outside 1 … 2^30.
    pub fn parse(field: &'static str, text: &str) -> Result<Self, ConfigError> {
        let parsed = Self::read(text).filter(|length| length.is_possible());
        parsed.ok_or_else(|| ConfigError::new(field, format!("{text:?}"), RANGE))
    }

    /// Whether it can be drawn.
    ///
    /// # Errors
    /// [`ConfigError`] for `field` when a length is outside 1 … 2^30, or the bounds are the wrong way round.
    pub fn check(self, field: &'static str) -> Result<(), ConfigError> {
        if self.is_possible() { Ok(()) } else { Err(ConfigError::new(field, format!("{self:?}"), RANGE)) }
    }

    fn read(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(':').collect();
        let whole = |word: &str| word.parse::<u32>().ok();
        match *words.as_slice() {
            [length] => whole(length).map(Self::Fixed),
            ["uniform", least, most] => Some(Self::Uniform(whole(least)?, whole(most)?)),
            ["lognormal", mean, sigma] => {
                let (mean, sigma) = (mean.parse().ok()?, sigma.parse().ok()?);
                Some(Self::Lognormal { mean, sigma, least: 1, most: LONGEST })
            }
            ["lognormal", mean, sigma, least, most] => {
                let (mean, sigma) = (mean.parse().ok()?, sigma.parse().ok()?);
                Some(Self::Lognormal { mean, sigma, least: whole(least)?, most: whole(most)? })
            }
            _ => None,
        }
    }

    fn is_possible(self) -> bool {
        let between = |least: u32, most: u32| 1 <= least && least <= most && most <= LONGEST;
        match self {
            Self::Fixed(length) => between(length, length),
            Self::Uniform(least, most) => between(least, most),
            Self::Lognormal { mean, sigma, least, most } => {
                mean.is_finite() && mean > 0.0 && sigma.is_finite() && sigma >= 0.0 && between(least, most)
            }
        }
    }

    /// One length.
    pub fn draw(self, rng: &mut Rng) -> u32 {
        match self {
            Self::Fixed(length) => length,
            Self::Uniform(least, most) => {
                let choices = float(u64::from(most - least) + 1);
                whole(float(u64::from(least)) + rng.uniform() * choices, least, most)
            }
            Self::Lognormal { mean, sigma, least, most } => whole(rng.lognormal(mean, sigma), least, most),
        }
    }
}

/// The whole tokens of a drawn length, held to `least … most`.
pub(crate) fn whole(length: f64, least: u32, most: u32) -> u32 {
    let drawn = crate::num::floor(length).and_then(|tokens| u32::try_from(tokens).ok());
    drawn.unwrap_or(most).clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, Length};
    use crate::rng::Rng;

    #[test]
    fn test_lengths_are_read_as_they_are_written() -> Result<(), octavo_core::ConfigError> {
        let parse = |text: &str| Length::parse("input_len", text);
        assert_eq!(parse("500")?, Length::Fixed(500));
        assert_eq!(parse("uniform:10:500")?, Length::Uniform(10, 500));
        let open = Length::Lognormal { mean: 300.0, sigma: 0.8, least: 1, most: LONGEST };
        assert_eq!(parse("lognormal:300:0.8")?, open);
        let held = Length::Lognormal { mean: 300.0, sigma: 0.8, least: 10, most: 500 };
        assert_eq!(parse("lognormal:300:0.8:10:500")?, held);
        for wrong in [
            "",
            "0",
            "-4",
            "1.5",
            "1073741825",
            "uniform:5",
            "uniform:9:8",
            "uniform:0:8",
            "normal:3:1",
            "lognormal:-3:1",
            "lognormal:3:nan",
            "lognormal:inf:1",
            "lognormal:3:1:9:8",
            "lognormal:3:1:9",
        ] {
            assert_eq!(parse(wrong).err().map(|error| error.field), Some("input_len"), "{wrong}");
        }
        Ok(())
    }

    #[test]
    fn test_uniform_lengths_reach_both_ends_and_keep_their_mean() {
        let mut rng = Rng::new(5, 1);
        let drawn: Vec<u32> = (0..60_000).map(|_| Length::Uniform(3, 8).draw(&mut rng)).collect();
        for length in 3..=8 {
            // 10,000 ± 91 of each; four deviations.
            let times = drawn.iter().filter(|&&drawn| drawn == length).count();
            assert!((9_634..=10_366).contains(&times), "{times} times {length}");
        }
    }

    #[test]
    fn test_lognormal_lengths_are_held() {
        let mut rng = Rng::new(5, 1);
        let length = Length::Lognormal { mean: 120.0, sigma: 0.9, least: 10, most: 500 };
        let drawn: Vec<u32> = (0..10_000).map(|_| length.draw(&mut rng)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&10), Some(&500)));
    }
}
