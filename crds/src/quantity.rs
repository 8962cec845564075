//! Byte counts as Kubernetes writes them: `300Gi`, `1.5Ti`, `128M`, `1e3`.
//! In: text. Out: whole bytes, rounded up. Never: floating point, a silent zero.
//! Source: Kubernetes `resource.Quantity`; a suffix is binary (Ki..Ei), decimal (n, u, m, k..E) or an exponent.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// More significant digits than this are refused: 10^19 times the largest suffix still fits 128 bits.
const MAX_DIGITS: usize = 19;

/// Longest text that is looked at.
const MAX_LENGTH: usize = 64;

/// A number of bytes. Written and shown in its shortest exact form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity(u64);

impl Quantity {
    pub fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    pub fn bytes(self) -> u64 {
        self.0
    }
}

/// Why a text is no byte count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("{0:?} is no byte count: write digits and an optional suffix, such as 300Gi, 1.5Ti or 128M")]
    Syntax(String),
    #[error("{0:?} has more than {MAX_DIGITS} significant digits: use a suffix, such as 300Gi")]
    TooPrecise(String),
    #[error("{0:?} is larger than 2^64 bytes")]
    TooLarge(String),
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let syntax = || QuantityError::Syntax(text.chars().take(MAX_LENGTH).collect());
        if text.len() > MAX_LENGTH {
            return Err(syntax());
        }
        let unsigned = text.strip_prefix('+').unwrap_or(text);
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
            return Err(syntax());
        }
        let (power_of_two, power_of_ten) = multiplier(suffix).ok_or_else(syntax)?;
        let fraction = fraction.trim_end_matches('0');
        let digits = format!("{whole}{fraction}");
        let digits = digits.trim_start_matches('0');
        if digits.len() > MAX_DIGITS {
            return Err(QuantityError::TooPrecise(text.to_owned()));
        }
        let mantissa: u128 = if digits.is_empty() { 0 } else { digits.parse().map_err(|_| syntax())? };
        // `fraction` is at most MAX_LENGTH characters.
        let exponent = power_of_ten - i32::try_from(fraction.len()).map_err(|_| syntax())?;
        scale(mantissa << power_of_two, exponent)
            .and_then(|bytes| u64::try_from(bytes).ok())
            .map(Quantity)
            .ok_or_else(|| QuantityError::TooLarge(text.to_owned()))
    }
}

/// Powers of two and of ten that a suffix stands for.
fn multiplier(suffix: &str) -> Option<(u32, i32)> {
    Some(match suffix {
        "" => (0, 0),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        _ => {
            let digits = suffix.strip_prefix(['e', 'E'])?;
            let sign_free = digits.strip_prefix(['+', '-']).unwrap_or(digits);
            if sign_free.is_empty() || sign_free.len() > 3 || !sign_free.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            (0, digits.parse().ok()?)
        }
    })
}

/// `value * 10^exponent`, rounded up; nothing when it does not fit.
fn scale(value: u128, exponent: i32) -> Option<u128> {
    if value == 0 {
        return Some(0);
    }
    let power = 10u128.checked_pow(exponent.unsigned_abs());
    if exponent >= 0 { value.checked_mul(power?) } else { Some(power.map_or(1, |p| value.div_ceil(p))) }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        let steps = (self.0.trailing_zeros() / 10).min(6) as usize;
        if self.0 == 0 || steps == 0 {
            return write!(f, "{}", self.0);
        }
        write!(f, "{}{}", self.0 >> (10 * steps), binary[steps - 1])
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": MAX_LENGTH,
            "pattern": r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?$",
        })
    }
}

#[cfg(test)]
mod tests;
