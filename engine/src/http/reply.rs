//! Errors as responses, and the id that every response carries.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};

use crate::ApiError;

/// The header that names a request, on the way in and out.
pub const REQUEST_ID: &str = "x-request-id";

/// Longest id taken from a client; a longer one is replaced.
const MAX_ID_BYTES: usize = 128;

/// A label for logs and the client. Duplicates are harmless: nothing is looked up by it.
#[derive(Debug, Clone)]
pub struct RequestId(pub HeaderValue);

impl RequestId {
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or("-")
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status =
            http::StatusCode::from_u16(self.status).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, self.body()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_s {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
            let (whole, ms) = (seconds.ceil() as u32, (seconds * 1000.0).ceil() as u32);
            headers.insert(RETRY_AFTER, HeaderValue::from(whole));
            headers.insert("retry-after-ms", HeaderValue::from(ms));
        }
        if self.status == 503 {
            // The next connection may find a process that serves.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Takes the client's request id, or makes one, and sends it back.
pub(super) async fn name_request(mut request: Request, next: Next) -> Response {
    let given = request.headers().get(REQUEST_ID).filter(|id| {
        !id.is_empty() && id.len() <= MAX_ID_BYTES && id.as_bytes().iter().all(u8::is_ascii_graphic)
    });
    let id = match given {
        Some(id) => id.clone(),
        None => HeaderValue::from_str(&crate::random::hex_id())
            .expect("hexadecimal digits are a valid header value"),
    };
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = next.run(request).await;
    response.headers_mut().insert(REQUEST_ID, id);
    response
}
