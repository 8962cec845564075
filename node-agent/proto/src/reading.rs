//! Readings: one message for each type of value, since protobuf knows no type parameters.

use node_facts::Reading;

use crate::v1;

/// Whoever sent nothing is of another version.
pub(crate) const NOT_SAID: &str = "the agent did not say (another version?)";

pub(crate) fn not_said<T>() -> Reading<T> {
    Reading::Failed(NOT_SAID.to_owned())
}

/// `message (its module) for type: to wire, from wire`. From wire gives a reading, since a value may be of a form that this
/// version does not know.
macro_rules! readings {
    ($($message:ident ($module:ident) for $rust:ty: $to:expr, $from:expr;)*) => {$(
        impl From<&Reading<$rust>> for v1::$message {
            fn from(reading: &Reading<$rust>) -> Self {
                use v1::$module::Reading as Wire;
                let to: fn(&$rust) -> _ = $to;
                let reading = match reading {
                    Reading::Value(value) => Wire::Value(to(value)),
                    Reading::Absent(reason) => Wire::Absent(reason.clone()),
                    Reading::Failed(reason) => Wire::Failed(reason.clone()),
                };
                v1::$message { reading: Some(reading) }
            }
        }

        impl From<v1::$message> for Reading<$rust> {
            fn from(message: v1::$message) -> Self {
                use v1::$module::Reading as Wire;
                let from: fn(_) -> Reading<$rust> = $from;
                match message.reading {
                    Some(Wire::Value(value)) => from(value),
                    Some(Wire::Absent(reason)) => Reading::Absent(reason),
                    Some(Wire::Failed(reason)) => Reading::Failed(reason),
                    None => $crate::reading::not_said(),
                }
            }
        }
    )*};
}

pub(crate) use readings;

/// A field that every sender of this version sets.
pub(crate) fn sent<M, T>(message: Option<M>) -> Reading<T>
where
    Reading<T>: From<M>,
{
    message.map_or_else(not_said, Reading::from)
}

readings! {
    NumbersReading(numbers_reading) for Vec<u32>:
        |numbers| v1::Numbers { numbers: numbers.clone() },
        |value: v1::Numbers| Reading::Value(value.numbers);
    BytesReading(bytes_reading) for u64: |bytes| *bytes, Reading::Value;
    NumberReading(number_reading) for u32: |number| *number, Reading::Value;
    TextReading(text_reading) for String: String::clone, Reading::Value;
}
