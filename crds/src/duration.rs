//! Durations as Kubernetes writes them: `30s`, `1m30s`, `500ms`.
//! In: text. Out: whole milliseconds. Never: floating point, rounding.
//! Source: Go `time.ParseDuration`, without the units below a millisecond and without signs.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest text that is looked at.
const MAX_LENGTH: usize = 32;

/// A length of time in whole milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(u64);

impl Duration {
    pub fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    pub fn millis(self) -> u64 {
        self.0
    }
}

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("{0:?} is no duration: write numbers with h, m, s or ms, such as 30s or 1m30s")]
    Syntax(String),
    #[error("{0:?} is finer than a millisecond")]
    TooFine(String),
    #[error("{0:?} is too long a time")]
    TooLarge(String),
}

impl FromStr for Duration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let syntax = || DurationError::Syntax(text.chars().take(MAX_LENGTH).collect());
        if text.is_empty() || text.len() > MAX_LENGTH {
            return Err(syntax());
        }
        let mut rest = text;
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(syntax)?;
            let (number, after) = rest.split_at(end);
            let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
            let (unit, after) = after.split_at(end);
            let unit_ms: u64 = match unit {
                "h" => 3_600_000,
                "m" => 60_000,
                "s" => 1000,
                "ms" => 1,
                _ => return Err(syntax()),
            };
            let part = millis(number, unit_ms).map_err(|kind| kind(text.to_owned()))?;
            total = total.checked_add(part).ok_or_else(|| DurationError::TooLarge(text.to_owned()))?;
            rest = after;
        }
        Ok(Duration(total))
    }
}

type Complaint = fn(String) -> DurationError;

/// `number` of a unit of `unit_ms` milliseconds.
fn millis(number: &str, unit_ms: u64) -> Result<u64, Complaint> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return Err(DurationError::Syntax);
    }
    // At most MAX_LENGTH - 1 digits: times the milliseconds of an hour that is below 2^127.
    let mantissa: u128 =
        format!("{whole}{fraction}").parse().map_err(|_| DurationError::TooLarge as Complaint)?;
    let product = mantissa * u128::from(unit_ms);
    let denominator = fraction.bytes().fold(1u128, |power, _| power * 10);
    if !product.is_multiple_of(denominator) {
        return Err(DurationError::TooFine);
    }
    u64::try_from(product / denominator).map_err(|_| DurationError::TooLarge as Complaint)
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let parts = [
            (self.0 / 3_600_000, "h"),
            (self.0 / 60_000 % 60, "m"),
            (self.0 / 1000 % 60, "s"),
            (self.0 % 1000, "ms"),
        ];
        parts.iter().filter(|(value, _)| *value > 0).try_for_each(|(value, unit)| write!(f, "{value}{unit}"))
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": MAX_LENGTH,
            "pattern": r"^([0-9]+(\.[0-9]+)?(h|m|s|ms))+$",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_exact() {
        for (text, expected) in [
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("1.5s", 1500),
            ("500ms", 500),
            ("2h", 7_200_000),
            ("1h0.5m", 3_630_000),
            ("0s", 0),
            ("0.001s", 1),
        ] {
            assert_eq!(text.parse::<Duration>().unwrap().millis(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in ["", "30", "s", "-1s", "1 s", "1d", "1.s", ".5s", "1.2.3s", "30S", "1µs", "1ns"] {
            assert!(matches!(text.parse::<Duration>(), Err(DurationError::Syntax(_))), "{text:?}");
        }
        assert!(matches!("0.5ms".parse::<Duration>(), Err(DurationError::TooFine(_))));
        assert!(matches!("99999999999999999999s".parse::<Duration>(), Err(DurationError::TooLarge(_))));
        assert!(matches!("9999999999999999h".parse::<Duration>(), Err(DurationError::TooLarge(_))));
    }

    proptest! {
        #[test]
        fn shown_and_read_again_is_the_same(millis in 0u64..1_000_000_000_000) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(duration.to_string().parse::<Duration>(), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in "[0-9.hms]{0,40}") {
            let _ = text.parse::<Duration>();
        }
    }
}
