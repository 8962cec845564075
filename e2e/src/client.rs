//! A plain HTTP client of the chat API: what a program without an SDK does.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

/// An answer as it came: status, headers that matter, JSON body.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub retry_after: Option<String>,
    pub body: Value,
}

/// A chat body for greedy decoding without thinking.
pub fn greedy(messages: &Value) -> Value {
    json!({"model": "needle", "messages": messages, "temperature": 0, "thinking": {"type": "disabled"}})
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(300)))
        .build()
        .into()
}

/// Posts a chat body, which need not be valid.
///
/// # Errors
/// When the connection fails or the answer is no JSON.
pub fn chat(endpoint: &str, body: &[u8]) -> anyhow::Result<Reply> {
    let mut answer = agent()
        .post(format!("{endpoint}/v1/chat/completions"))
        .header("content-type", "application/json")
        .send(body)?;
    let text = answer.body_mut().read_to_string()?;
    let retry_after = answer.headers().get("retry-after").and_then(|v| v.to_str().ok()).map(str::to_owned);
    let body = serde_json::from_str(&text).with_context(|| format!("no JSON in the answer: {text:?}"))?;
    Ok(Reply { status: answer.status().as_u16(), retry_after, body })
}

/// The content of a non-streamed answer.
///
/// # Errors
/// With the error body when the status is not 200.
pub fn content(endpoint: &str, body: &Value) -> anyhow::Result<String> {
    let reply = chat(endpoint, body.to_string().as_bytes())?;
    if reply.status != 200 {
        bail!("status {}: {}", reply.status, reply.body);
    }
    Ok(reply.body["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned())
}

/// How a stream ended.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEnd {
    /// With `[DONE]`.
    Done,
    /// With an error event; whether the transport then ended cleanly.
    Error { event: Value, clean: bool },
    /// The transport ended without either.
    Cut,
    /// The status was not 200.
    Refused { status: u16, body: String },
}

/// Streams a chat answer. `on_event` sees every event and stops reading by returning false, which closes the
/// connection.
///
/// # Errors
/// When the connection cannot be made.
pub fn stream(
    endpoint: &str,
    body: &Value,
    mut on_event: impl FnMut(&Value) -> bool,
) -> anyhow::Result<StreamEnd> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let mut answer = agent()
        .post(format!("{endpoint}/v1/chat/completions"))
        .header("content-type", "application/json")
        .send(body.to_string())?;
    if answer.status() != 200 {
        let status = answer.status().as_u16();
        return Ok(StreamEnd::Refused { status, body: answer.body_mut().read_to_string()? });
    }
    let mut error = None;
    for line in BufReader::new(answer.into_body().into_reader()).lines() {
        let Ok(line) = line else {
            return Ok(error.map_or(StreamEnd::Cut, |event| StreamEnd::Error { event, clean: false }));
        };
        match line.strip_prefix("data: ") {
            None => {}
            Some("[DONE]") => return Ok(StreamEnd::Done),
            Some(data) => {
                let event: Value = serde_json::from_str(data).context("an event is no JSON")?;
                if event.get("error").is_some() {
                    error = Some(event);
                } else if !on_event(&event) {
                    return Ok(StreamEnd::Cut);
                }
            }
        }
    }
    Ok(error.map_or(StreamEnd::Cut, |event| StreamEnd::Error { event, clean: true }))
}
