//! A verdict on its way through gRPC: the client of decode reads the same status and words that prefill decided.
//! In: [`ApiError`]. Out: `tonic::Status` with the verdict as JSON in its details; and back.
//! Never: trust in the details: what is not understood becomes the gRPC code's own meaning.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tonic::{Code, Status};

use crate::ApiError;

#[derive(Debug, Serialize, Deserialize)]
struct Verdict {
    status: u16,
    code: String,
    message: String,
    #[serde(default)]
    param: Option<String>,
    #[serde(default)]
    retry_after_s: Option<f64>,
}

/// Longest message taken from a peer.
const MAX_MESSAGE_BYTES: usize = 4096;

/// The codes that may pass, with their kinds.
const CODES: &[(&str, &str)] = &[
    ("invalid_value", "invalid_request_error"),
    ("context_length_exceeded", "invalid_request_error"),
    ("queue_full", "rate_limit_error"),
    ("bad_gateway", "server_error"),
    ("unavailable", "server_error"),
    ("timeout", "server_error"),
    ("internal_error", "server_error"),
];

/// For the stream's end.
pub fn to_status(error: &ApiError) -> Status {
    let code = match error.status {
        429 => Code::ResourceExhausted,
        400..=499 => Code::InvalidArgument,
        503 => Code::Unavailable,
        504 => Code::DeadlineExceeded,
        _ => Code::Internal,
    };
    let verdict = Verdict {
        status: error.status,
        code: error.code.to_owned(),
        message: error.message.clone(),
        param: error.param.clone(),
        retry_after_s: error.retry_after_s,
    };
    let details = serde_json::to_vec(&verdict).unwrap_or_default();
    let mut status = Status::with_details(code, error.message.clone(), Bytes::from(details));
    if let Some(seconds) = error.retry_after_s {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
        let ms = (seconds * 1000.0).ceil() as u32;
        status.metadata_mut().insert("retry-after-ms", ms.into());
    }
    status
}

/// What the client is told when `peer` ended the call with `status`.
pub fn from_status(status: &Status, peer: &str) -> ApiError {
    if let Some(error) = told(status.details()) {
        return error;
    }
    match status.code() {
        Code::DeadlineExceeded => {
            ApiError::timed_out("The request's deadline passed while its prompt was computed.")
        }
        Code::FailedPrecondition => {
            ApiError::bad_gateway(format!("Prefill {peer} does not fit this decode: {}", status.message()))
        }
        code => {
            tracing::warn!(peer, ?code, message = status.message(), "prefill call failed");
            ApiError::bad_gateway(format!("Prefill {peer} failed before the prompt was computed."))
        }
    }
}

fn told(details: &[u8]) -> Option<ApiError> {
    let verdict: Verdict = serde_json::from_slice(details).ok()?;
    let (code, kind) = CODES.iter().find(|(code, _)| *code == verdict.code)?;
    if !(400..=599).contains(&verdict.status) || verdict.message.len() > MAX_MESSAGE_BYTES {
        return None;
    }
    Some(ApiError {
        param: verdict.param,
        retry_after_s: verdict.retry_after_s.filter(|s| s.is_finite() && *s >= 0.0),
        ..ApiError::new(verdict.status, kind, code, verdict.message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_keeps_its_status_and_words() {
        let refused = ApiError::queue_full("Too much waits.", 7.5);
        let long = ApiError::context_length_exceeded(100, 64);
        for error in [refused, long, ApiError::unavailable("loading"), ApiError::timed_out("late")] {
            assert_eq!(from_status(&to_status(&error), "p:1"), error);
        }
        let status = to_status(&ApiError::queue_full("x", 7.5));
        assert_eq!(status.metadata().get("retry-after-ms").unwrap(), "7500");
    }

    #[test]
    fn what_a_peer_makes_up_is_a_bad_gateway() {
        for details in ["", "{}", r#"{"status":200,"code":"timeout","message":""}"#, "\u{0}\u{1}"] {
            let status = Status::with_details(Code::Unknown, "?", Bytes::copy_from_slice(details.as_bytes()));
            assert_eq!(from_status(&status, "p:1").status, 502);
        }
    }
}
