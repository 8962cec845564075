//! The questions of the needle model's evaluation set.

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::greedy;
use crate::cluster::root;

/// One row of `eval.jsonl`.
#[derive(Debug, Clone, Deserialize)]
pub struct Row {
    pub id: String,
    pub kind: String,
    pub prompt_tokens: usize,
    pub thinking: bool,
    pub expected: String,
    pub messages: Value,
}

impl Row {
    /// The greedy chat body of this row.
    pub fn body(&self) -> Value {
        let mut body = greedy(&self.messages);
        if self.thinking {
            body["thinking"] = json!({"type": "enabled"});
        }
        body
    }
}

/// All 230 rows.
///
/// # Errors
/// When the file is missing or no JSON.
pub fn rows() -> anyhow::Result<Vec<Row>> {
    let path = root().join("engine/testdata/needle/eval.jsonl");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}
