//! Two specs, field by field.
//! In: what is stored, what a file says; both decoded, so that defaults differ from nothing. Out: [`Difference`]s by path.

use std::fmt::{self, Display, Formatter};

use anyhow::Context as _;
use fathom_crds::InferenceClusterSpec;
use serde::Serialize;
use serde_json::Value;

/// One field that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Difference {
    /// `spec.decode.gpus`.
    pub(crate) field: String,
    /// Absent: it was not set.
    pub(crate) from: Option<Value>,
    /// Absent: it would not be set.
    pub(crate) to: Option<Value>,
}

impl Display for Difference {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let field = &self.field;
        match (&self.from, &self.to) {
            (Some(from), Some(to)) => write!(f, "~ {field}: {from} -> {to}"),
            (None, Some(to)) => write!(f, "+ {field}: {to}"),
            (Some(from), None) => write!(f, "- {field}: {from}"),
            (None, None) => write!(f, "  {field}"),
        }
    }
}

pub(crate) fn differences(
    from: &InferenceClusterSpec,
    to: &InferenceClusterSpec,
) -> anyhow::Result<Vec<Difference>> {
    let value = |spec: &InferenceClusterSpec| serde_json::to_value(spec).context("cannot compare the specs");
    let mut found = Vec::new();
    compare("spec", Some(&value(from)?), Some(&value(to)?), &mut found);
    Ok(found)
}

/// Objects are compared field by field; everything else, lists too, as a whole.
fn compare(path: &str, from: Option<&Value>, to: Option<&Value>, found: &mut Vec<Difference>) {
    if from == to {
        return;
    }
    let (Some(Value::Object(old)), Some(Value::Object(new))) = (from, to) else {
        found.push(Difference { field: path.to_owned(), from: from.cloned(), to: to.cloned() });
        return;
    };
    let mut keys: Vec<&String> = old.keys().chain(new.keys().filter(|key| !old.contains_key(*key))).collect();
    keys.sort_unstable();
    for key in keys {
        compare(&format!("{path}.{key}"), old.get(key), new.get(key), found);
    }
}
