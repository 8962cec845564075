//! From the text of a file to one checked [`InferenceCluster`].
//! In: YAML or JSON text. Out: the object, or one error that says where and what.
//! Never: file access; accepting what the API server would refuse (a relative `hostPath` is the one exception).
//! Unknown fields are mistakes, since a typo would otherwise be a silent default.

mod limits;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::{Error as YamlError, Location, MessageFormatter as _, UserMessageFormatter};

use crate::InferenceCluster;

/// Longest text that is looked at: far above any object, which the API server limits alike.
const MAX_BYTES: usize = 1 << 20;

const API_VERSION: &str = "fathom.dev/v1alpha1";
const KIND: &str = "InferenceCluster";

/// Why a text is no usable `InferenceCluster`.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("the file has {0} bytes; an InferenceCluster has at most {MAX_BYTES}")]
    TooLarge(usize),
    #[error("the file is empty; expected one InferenceCluster")]
    Empty,
    #[error("the file has several documents; expected one InferenceCluster")]
    SeveralDocuments,
    #[error("line {line}, column {column}: {message}")]
    At { line: u64, column: u64, message: String },
    #[error("{0}")]
    Yaml(String),
    #[error("the file holds {found}; expected apiVersion {API_VERSION}, kind {KIND}")]
    WrongKind { found: String },
    #[error("{}", .0.join("; "))]
    Refused(Vec<String>),
}

/// Reads one object.
///
/// # Errors
/// [`ReadError`]: a syntax error, an unknown field or a wrong type with line and column; another kind; or everything
/// that the API server would refuse, together.
pub fn read(text: &str) -> Result<InferenceCluster, ReadError> {
    if text.len() > MAX_BYTES {
        return Err(ReadError::TooLarge(text.len()));
    }
    let header: Option<Header> = parse(text)?;
    header.ok_or(ReadError::Empty)?.expect_ours()?;
    let Root { .. } = parse(text)?;
    let cluster: InferenceCluster = parse(text)?;
    let mut mistakes = limits::broken(&cluster);
    mistakes.extend(cluster.broken_rules());
    if mistakes.is_empty() { Ok(cluster) } else { Err(ReadError::Refused(mistakes)) }
}

/// What a document says it is, whatever else it holds.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    api_version: Option<String>,
    kind: Option<String>,
}

impl Header {
    fn expect_ours(self) -> Result<(), ReadError> {
        if self.api_version.as_deref() == Some(API_VERSION) && self.kind.as_deref() == Some(KIND) {
            return Ok(());
        }
        let word = |value: Option<String>| value.unwrap_or_else(|| "(none)".to_owned());
        let found = format!("apiVersion {}, kind {}", word(self.api_version), word(self.kind));
        Err(ReadError::WrongKind { found })
    }
}

/// The fields of the root, so that a typo there is named too.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "only the names of the fields matter")]
struct Root {
    api_version: IgnoredAny,
    kind: IgnoredAny,
    metadata: IgnoredAny,
    spec: IgnoredAny,
    #[serde(default)]
    status: IgnoredAny,
}

fn parse<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, ReadError> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| describe(&error))
}

fn describe(error: &YamlError) -> ReadError {
    match error {
        YamlError::Eof { .. } => return ReadError::Empty,
        YamlError::MultipleDocuments { .. } => return ReadError::SeveralDocuments,
        _ => {}
    }
    let message = match error {
        YamlError::InvalidScalar { ty, .. } => format!("expected {}", words(ty)),
        YamlError::Unexpected { expected: "string scalar", .. } => "expected a single value".to_owned(),
        YamlError::Unexpected { expected: "mapping start", .. } => {
            "expected fields (`name: value`)".to_owned()
        }
        other => UserMessageFormatter.format_message(other).replace('\n', " "),
    };
    match error.location() {
        Some(location) if location != Location::UNKNOWN => {
            ReadError::At { line: location.line(), column: location.column(), message }
        }
        _ => ReadError::Yaml(message),
    }
}

/// A Rust type in a user's words.
fn words(ty: &str) -> &str {
    match ty {
        "i32" | "i64" | "u32" | "u64" => "a whole number",
        "f64" => "a number",
        "bool" => "true or false",
        other => other,
    }
}

#[cfg(test)]
mod tests;
