//! Ranges and lengths of the schema, applied to a decoded object: the same numbers that the API server applies.
//! Never: a second list of limits; patterns (the types' own parsers are stricter).

use std::sync::LazyLock;

use serde_json::Value;

use crate::InferenceCluster;
use crate::inference_cluster::crd;

/// The schema of the spec. Made once: generating it takes longer than reading an object.
static SPEC: LazyLock<Value> = LazyLock::new(|| {
    let mut crd = serde_json::to_value(crd()).unwrap_or_default();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].take()
});

/// Everything outside its range or length, as `spec.prefill.replicas is -1; at least 0`.
pub(super) fn broken(cluster: &InferenceCluster) -> Vec<String> {
    let mut found = Vec::new();
    let object = serde_json::to_value(cluster).unwrap_or_default();
    walk(&SPEC, &object["spec"], "spec", &mut found);
    found
}

fn walk(schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    let number = |key: &str| schema[key].as_f64();
    match value {
        Value::Number(n) => {
            let actual = n.as_f64().unwrap_or(f64::NAN);
            if let Some(minimum) = number("minimum").filter(|m| actual < *m) {
                found.push(format!("{path} is {n}; at least {minimum}"));
            }
            if let Some(maximum) = number("maximum").filter(|m| actual > *m) {
                found.push(format!("{path} is {n}; at most {maximum}"));
            }
        }
        Value::String(text) => {
            // The API server counts characters.
            length(schema, ["minLength", "maxLength"], text.chars().count(), "characters", path, found);
        }
        Value::Array(items) => {
            length(schema, ["minItems", "maxItems"], items.len(), "items", path, found);
            for (index, item) in items.iter().enumerate() {
                walk(&schema["items"], item, &format!("{path}[{index}]"), found);
            }
        }
        Value::Object(fields) => {
            length(schema, ["minProperties", "maxProperties"], fields.len(), "entries", path, found);
            for (name, field) in fields {
                let known = &schema["properties"][name.as_str()];
                let schema = if known.is_null() { &schema["additionalProperties"] } else { known };
                walk(schema, field, &format!("{path}.{name}"), found);
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

fn length(schema: &Value, bounds: [&str; 2], actual: usize, of: &str, path: &str, found: &mut Vec<String>) {
    let actual = actual as u64;
    if let Some(minimum) = schema[bounds[0]].as_u64().filter(|m| actual < *m) {
        found.push(format!("{path} has {actual} {of}; at least {minimum}"));
    }
    if let Some(maximum) = schema[bounds[1]].as_u64().filter(|m| actual > *m) {
        found.push(format!("{path} has {actual} {of}; at most {maximum}"));
    }
}
