//! Short hashes over canonical JSON: keys sorted, so that the order of fields in a type is nobody's business.
//! In: anything that serialises. Out: hexadecimal digits of SHA-256.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// The first `digits` (even or odd, at most 64) of the hash of a value.
pub(crate) fn hash(value: &impl Serialize, digits: usize) -> String {
    let json = canonical(serde_json::to_value(value).expect("plain structs with string keys serialise"));
    let mut text =
        Sha256::digest(json.to_string().as_bytes()).iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("writing to a String cannot fail");
            text
        });
    text.truncate(digits);
    text
}

/// The same value with sorted keys.
pub(crate) fn canonical(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(String, Value)> = fields.into_iter().collect();
            fields.sort_by(|(a, _), (b, _)| a.cmp(b));
            let sorted: Map<String, Value> =
                fields.into_iter().map(|(key, value)| (key, canonical(value))).collect();
            Value::Object(sorted)
        }
        Value::Array(items) => Value::Array(items.into_iter().map(canonical).collect()),
        plain @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => plain,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_order_of_fields_does_not_matter_and_the_order_of_lists_does() {
        let hash = |value: Value| hash(&value, 10);
        assert_eq!(
            hash(json!({"a": 1, "b": {"c": 2, "d": 3}})),
            hash(json!({"b": {"d": 3, "c": 2}, "a": 1}))
        );
        assert_ne!(hash(json!([1, 2])), hash(json!([2, 1])));
        assert_eq!(hash(json!({})), "44136fa355");
    }
}
