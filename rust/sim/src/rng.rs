//! Random draws that give the same bytes on every machine.
//!
//! The generator is xoshiro256++ (Blackman and Vigna, *Scrambled linear pseudorandom number generators*,
//! ACM TOMS 47, 2021), its state filled by `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014), both written
//! from the papers and pinned by golden vectors. Logarithms, square roots and cosines come from the
//! pure-Rust `libm`, never from the platform's library, whose last digits differ between systems.
//!
//! What this module does not know: what a draw is used for.

/// One stream of random numbers, fixed by a seed and a stream number.
///
/// Streams of one seed are independent, so that drawing one more length does not move any arrival.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

/// The next `SplitMix64` output; `state` moves on by the odd constant of the paper.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

impl Rng {
    /// The stream with number `stream` of a seed.
    ///
    /// # Example
    ///
    /// ```
    /// use octavo_sim::Rng;
    /// assert_eq!(Rng::new(7, 0).bits(), Rng::new(7, 0).bits());
    /// assert_ne!(Rng::new(7, 0).bits(), Rng::new(7, 1).bits());
    /// ```
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut of_stream = stream;
        let mut mixer = seed ^ split_mix(&mut of_stream);
        Self { state: [split_mix(&mut mixer), split_mix(&mut mixer), split_mix(&mut mixer), split_mix(&mut mixer)] }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let c = c ^ a;
        let d = d ^ b;
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// A number in `[0, 1)`, a multiple of 2^-53.
    pub fn uniform(&mut self) -> f64 {
        crate::num::float(self.bits() >> 11) * (1.0 / 9_007_199_254_740_992.0)
    }

    /// An exponential draw of the given rate (mean `1 / rate`), by inversion: `-ln(1 - u) / rate`.
    pub fn exponential(&mut self, rate: f64) -> f64 {
        -libm::log1p(-self.uniform()) / rate
    }

    /// A standard normal draw (Box and Muller 1958; the cosine branch, so one draw takes two uniforms).
    pub fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log1p(-self.uniform()));
        radius * libm::cos(core::f64::consts::TAU * self.uniform())
    }

    /// A gamma draw of this shape (above 0) and scale 1, by rejection (Marsaglia and Tsang, *A simple method for
    /// generating gamma variables*, ACM TOMS 26, 2000; below 1 by their boost of a draw of shape + 1).
    pub fn gamma(&mut self, shape: f64) -> f64 {
        let boost = if shape < 1.0 { libm::pow(1.0 - self.uniform(), 1.0 / shape) } else { 1.0 };
        let d = if shape < 1.0 { shape + 1.0 } else { shape } - 1.0 / 3.0;
        let c = 1.0 / libm::sqrt(9.0 * d);
        loop {
            let x = self.normal();
            let root = 1.0 + c * x;
            let v = root * root * root;
            // A cube at or below 0 has no logarithm: it is refused as well.
            if v > 0.0 && libm::log(1.0 - self.uniform()) < 0.5 * x * x + d - d * v + d * libm::log(v) {
                return boost * d * v;
            }
        }
    }

    /// The time to the next of arrivals at `rate` with this burstiness: a gamma draw with the mean 1 / rate, exponential
    /// for 1, no draw at all for infinity.
    pub fn interval(&mut self, rate: f64, burstiness: f64) -> f64 {
        if burstiness.is_infinite() {
            return 1.0 / rate;
        }
        if burstiness.total_cmp(&1.0).is_eq() {
            return self.exponential(rate);
        }
        self.gamma(burstiness) / (burstiness * rate)
    }

    /// A log-normal draw with this mean, `sigma` the deviation of its logarithm: `exp(ln m - s²/2 + s·z)`.
    pub fn lognormal(&mut self, mean: f64, sigma: f64) -> f64 {
        let centre = libm::log(mean) - sigma * sigma / 2.0;
        libm::exp(centre + sigma * self.normal())
    }
}

#[cfg(test)]
mod tests {
    use super::{Rng, split_mix};

    #[test]
    fn test_split_mix_gives_its_golden_vector() {
        let mut state = 1_234_567;
        let drawn: Vec<u64> = (0..5).map(|_| split_mix(&mut state)).collect();
        assert_eq!(
            drawn,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821,
            ]
        );
    }

    #[test]
    fn test_xoshiro_gives_its_golden_vector() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let drawn: Vec<u64> = (0..5).map(|_| rng.bits()).collect();
        // From state (1, 2, 3, 4): the first is rotl(1 + 4, 23) + 1 = 5·2^23 + 1.
        assert_eq!(drawn[0], 5 * (1 << 23) + 1);
        assert_eq!(
            drawn,
            [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386, 9_228_616_714_210_784_205,]
        );
    }

    #[test]
    fn test_draws_have_their_moments() {
        let mut rng = Rng::new(1, 0);
        let n = 200_000;
        let mean = |draw: &mut dyn FnMut() -> f64| (0..n).map(|_| draw()).sum::<f64>() / f64::from(n);
        let uniform = mean(&mut || rng.uniform());
        assert!((uniform - 0.5).abs() < 0.005, "{uniform}");
        let exponential = mean(&mut || rng.exponential(4.0));
        assert!((exponential - 0.25).abs() < 0.005, "{exponential}");
        let lognormal = mean(&mut || rng.lognormal(300.0, 0.8));
        assert!((lognormal - 300.0).abs() < 5.0, "{lognormal}");
        let square = mean(&mut || rng.normal().powi(2));
        assert!((square - 1.0).abs() < 0.02, "{square}");
    }

    #[test]
    fn test_draws_are_pinned_to_the_bit() {
        let mut rng = Rng::new(0, 0);
        let drawn = [
            rng.uniform().to_bits(),
            rng.exponential(0.6).to_bits(),
            rng.normal().to_bits(),
            rng.lognormal(300.0, 0.8).to_bits(),
        ];
        assert_eq!(drawn, GOLDEN_DRAWS);
    }

    const GOLDEN_DRAWS: [u64; 4] =
        [4_602_852_625_734_498_336, 4_612_898_906_541_138_025, 4_608_493_989_559_809_589, 4_649_592_840_515_884_645];
}
