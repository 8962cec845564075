//! What goes back to the client: a small body of our own, or a decode's answer as it comes.
//! In: [`ApiError`]s, JSON and text of our own. Out: responses of one body type.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderName, Response, StatusCode};
use hyper::body::{Body, Frame, SizeHint};

use super::relay::{Relay, RelayError};
use crate::ApiError;

/// Milliseconds beside `Retry-After`, which has only seconds; the SDKs read both.
static RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// A response body.
#[derive(Debug)]
pub(super) enum Answer {
    /// Ours, whole; `None` once it has been handed over.
    Own(Option<Bytes>),
    Relay(Box<Relay>),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = RelayError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        match &mut *self {
            Answer::Own(body) => Poll::Ready(body.take().map(|bytes| Ok(Frame::data(bytes)))),
            Answer::Relay(relay) => relay.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Answer::Own(body) => body.as_ref().is_none_or(Bytes::is_empty),
            Answer::Relay(relay) => relay.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Own(body) => SizeHint::with_exact(body.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Answer::Relay(relay) => relay.size_hint(),
        }
    }
}

pub(super) fn own(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Answer> {
    let mut response = Response::new(Answer::Own(Some(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

pub(super) fn json(status: StatusCode, value: &serde_json::Value) -> Response<Answer> {
    own(status, "application/json", Bytes::from(value.to_string()))
}

pub(super) fn error(error: &ApiError) -> Response<Answer> {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = own(status, "application/json", error.body());
    if let Some(seconds) = error.retry_after_s {
        // Rounded up: a client that comes back on the second must find the door open.
        let milliseconds = (seconds * 1000.0).ceil();
        let header = |value: f64| HeaderValue::from_str(&format!("{value:.0}"));
        let headers = [
            (RETRY_AFTER, header((milliseconds / 1000.0).ceil())),
            (RETRY_AFTER_MS.clone(), header(milliseconds)),
        ];
        for (name, value) in headers {
            if let Ok(value) = value {
                response.headers_mut().insert(name, value);
            }
        }
    }
    response
}
