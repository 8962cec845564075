//! What a client is told when a request cannot be served: status, OpenAI error body, when to come back.

use bytes::Bytes;
use serde_json::json;

/// One terminal verdict on a request. The first cause wins and keeps its true status on every hop.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{status} {code}: {message}")]
pub struct ApiError {
    pub status: u16,
    /// OpenAI's `type`: `invalid_request_error`, `rate_limit_error`, `server_error`.
    pub kind: &'static str,
    pub code: &'static str,
    pub message: String,
    /// The request field that is wrong.
    pub param: Option<String>,
    /// Seconds until another try makes sense.
    pub retry_after_s: Option<f64>,
}

impl ApiError {
    pub fn new(status: u16, kind: &'static str, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, code, message: message.into(), param: None, retry_after_s: None }
    }

    /// 400: `param` is wrong, and how.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        let error = Self::new(400, "invalid_request_error", "invalid_value", message);
        Self { param: Some(param.into()), ..error }
    }

    /// 400: the prompt, or prompt and answer, do not fit the context.
    pub fn context_length_exceeded(prompt_tokens: usize, context_tokens: u32) -> Self {
        let message = format!(
            "This model's maximum context length is {context_tokens} tokens. However, your messages resulted in \
             {prompt_tokens} tokens. Please reduce the length of the messages."
        );
        let error = Self::new(400, "invalid_request_error", "context_length_exceeded", message);
        Self { param: Some("messages".to_owned()), ..error }
    }

    /// 404: another model is served here.
    pub fn model_not_found(asked: &str, served: &str) -> Self {
        let message = format!("The model `{asked}` does not exist here; this endpoint serves `{served}`.");
        let error = Self::new(404, "invalid_request_error", "model_not_found", message);
        Self { param: Some("model".to_owned()), ..error }
    }

    /// 429: the queue is full; the backlog says for how long.
    pub fn queue_full(message: impl Into<String>, retry_after_s: f64) -> Self {
        let error = Self::new(429, "rate_limit_error", "queue_full", message);
        Self { retry_after_s: Some(retry_after_s), ..error }
    }

    /// 502: a peer that this request needed failed.
    pub fn bad_gateway(message: impl Into<String>) -> Self {
        Self::new(502, "server_error", "bad_gateway", message)
    }

    /// 503: not ready yet, or draining.
    pub fn unavailable(message: impl Into<String>) -> Self {
        let error = Self::new(503, "server_error", "unavailable", message);
        Self { retry_after_s: Some(1.0), ..error }
    }

    /// 504: the request's deadline passed.
    pub fn timed_out(message: impl Into<String>) -> Self {
        Self::new(504, "server_error", "timeout", message)
    }

    /// 500: a bug of ours; logs say more.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "server_error", "internal_error", message)
    }

    /// `{"error": {...}}`, one line.
    pub fn body(&self) -> Bytes {
        let body = json!({"error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.code,
        }});
        Bytes::from(body.to_string())
    }

    /// The same as one server-sent event, for a stream whose status line is gone: `code` is then the status.
    pub fn event(&self) -> Bytes {
        let body = json!({"error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.status,
        }});
        Bytes::from(format!("data: {body}\n\n"))
    }
}
