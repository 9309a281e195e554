//! Values of settings as they come from outside, and the readers that check them.
//!
//! What this module does not know: which settings there are.

use octavo_core::ConfigError;
use serde::Serialize;

/// The value of a setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// Nothing: the default applies.
    None,
    /// A switch.
    Switch(bool),
    /// A whole number.
    Whole(i64),
    /// A real number.
    Real(f64),
    /// A name.
    Name(String),
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("nothing"),
            Self::Switch(on) => write!(f, "{on}"),
            Self::Whole(number) => write!(f, "{number}"),
            Self::Real(number) => write!(f, "{number:?}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

fn real(name: &'static str, value: &Value, range: &str, is_in: fn(f64) -> bool) -> Result<f64, ConfigError> {
    let number = match value {
        Value::Real(number) => Some(*number),
        Value::Whole(number) => u64::try_from(*number).ok().map(crate::num::float),
        Value::None | Value::Switch(_) | Value::Name(_) => None,
    };
    let accepted = number.filter(|&number| number.is_finite() && is_in(number));
    accepted.ok_or_else(|| ConfigError::new(name, value, range))
}

pub(crate) fn at_least_zero(name: &'static str, value: &Value) -> Result<f64, ConfigError> {
    real(name, value, "a finite number ≥ 0", |number| number >= 0.0)
}

pub(crate) fn above_zero(name: &'static str, value: &Value) -> Result<f64, ConfigError> {
    real(name, value, "a finite number > 0", |number| number > 0.0)
}

pub(crate) fn watermark(value: &Value) -> Result<f64, ConfigError> {
    real("watermark", value, "0 ≤ watermark < 1", |share| (0.0..1.0).contains(&share))
}

pub(crate) fn whole(name: &'static str, value: &Value, least: u64, most: u64) -> Result<u64, ConfigError> {
    let number = match value {
        Value::Whole(number) => u64::try_from(*number).ok(),
        Value::None | Value::Switch(_) | Value::Real(_) | Value::Name(_) => None,
    };
    let accepted = number.filter(|number| (least..=most).contains(number));
    accepted.ok_or_else(|| ConfigError::new(name, value, format!("a whole number, {least} … {most}")))
}

/// The choice of this name; a choice without a value comes later.
pub(crate) fn choice<T: Copy>(
    name: &'static str,
    value: &Value,
    choices: &[(&str, Option<T>)],
) -> Result<T, ConfigError> {
    let known = choices.iter().find(|(choice, _)| matches!(value, Value::Name(n) if n == choice));
    match known {
        Some((_, Some(chosen))) => Ok(*chosen),
        Some((_, None)) => {
            let built: Vec<&str> = choices.iter().filter(|choice| choice.1.is_some()).map(|choice| choice.0).collect();
            let range = format!("{} for now; the others come later", built.join(", "));
            Err(ConfigError::new(name, value, range))
        }
        None => {
            let names: Vec<&str> = choices.iter().map(|(choice, _)| *choice).collect();
            Err(ConfigError::new(name, value, format!("one of {}", names.join(", "))))
        }
    }
}

pub(crate) fn only(name: &'static str, value: &Value, built: &str, later: &[&str]) -> Result<(), ConfigError> {
    let mut choices = vec![(built, Some(()))];
    choices.extend(later.iter().map(|&later| (later, None)));
    choice(name, value, &choices)
}

/// A switch.
pub(crate) fn switch(name: &'static str, value: &Value) -> Result<bool, ConfigError> {
    match value {
        Value::Switch(on) => Ok(*on),
        Value::None | Value::Whole(_) | Value::Real(_) | Value::Name(_) => {
            Err(ConfigError::new(name, value, "true or false"))
        }
    }
}
