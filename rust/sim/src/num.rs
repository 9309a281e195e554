//! Conversions between the integers that are counted and the floats that are reported.
//!
//! Each conversion that could lose something has one place here, with the reason why it does not.

/// A count as a float. Counts of tokens, bytes and passes stay far below 2^53, where `f64` is exact.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "counts stay below 2^53, where every integer has an exact f64")]
pub const fn float(count: u64) -> f64 {
    count as f64
}

/// A length in memory as a count.
#[must_use]
pub const fn count(length: usize) -> u64 {
    length as u64
}

/// A dense 32-bit index as an index into memory.
#[must_use]
pub const fn index(dense: u32) -> usize {
    dense as usize
}

/// The whole number at or below a float, or `None` where the float is not in `0 … 2^53`.
#[must_use]
pub fn floor(value: f64) -> Option<u64> {
    let floored = libm::floor(value);
    if !(0.0..=9_007_199_254_740_992.0).contains(&floored) {
        return None;
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the value is whole and between 0 and 2^53, checked above"
    )]
    let whole = floored as u64;
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::floor;

    #[test]
    fn test_floor_refuses_what_is_no_count() {
        assert_eq!(floor(3.99), Some(3));
        assert_eq!(floor(0.0), Some(0));
        assert_eq!(floor(-0.5), None);
        assert_eq!(floor(f64::NAN), None);
        assert_eq!(floor(f64::INFINITY), None);
    }
}
