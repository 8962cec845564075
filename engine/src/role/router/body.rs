//! Reads a request's body, whole, within bounds of size, time and memory.
//! In: the client's body. Out: its bytes, and the [`Held`] memory until they are dropped.
//! Never: more than [`LIMIT_BYTES`] of one request or [`TOTAL_BYTES`] of all.
//! A body that comes in one piece, as small ones do, is not copied.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};

use crate::ApiError;

/// Largest body of one request.
pub(super) const LIMIT_BYTES: u64 = 16 << 20;

/// Bodies of all requests together that have not been handed to a decode yet.
const TOTAL_BYTES: u64 = 1 << 30;

/// A body that is still coming after this long is given up.
const READ_TIMEOUT: Duration = Duration::from_mins(1);

/// Memory for bodies, shared by all requests.
#[derive(Debug)]
pub(super) struct Budget {
    used_bytes: Arc<AtomicU64>,
}

/// Memory that one body holds; given back on drop.
#[derive(Debug)]
pub(super) struct Held {
    used_bytes: Arc<AtomicU64>,
    bytes: u64,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self { used_bytes: Arc::new(AtomicU64::new(0)) }
    }

    /// # Errors
    /// 413 beyond [`LIMIT_BYTES`], 408 when it comes too slowly, 503 when other bodies fill the memory, 400 when the
    /// client broke off.
    pub(super) async fn read(&self, body: Incoming) -> Result<(Bytes, Held), ApiError> {
        if body.size_hint().lower() > LIMIT_BYTES {
            return Err(too_large());
        }
        tokio::time::timeout(READ_TIMEOUT, self.collect(body)).await.unwrap_or_else(|_| {
            let message = format!("the request body was not complete after {} s", READ_TIMEOUT.as_secs());
            Err(ApiError::new(408, "invalid_request_error", "request_timeout", message))
        })
    }

    async fn collect(&self, mut body: Incoming) -> Result<(Bytes, Held), ApiError> {
        let mut held = Held { used_bytes: Arc::clone(&self.used_bytes), bytes: 0 };
        let first = match next_piece(&mut body).await? {
            Some(first) => first,
            None => return Ok((Bytes::new(), held)),
        };
        held.grow(first.len() as u64)?;
        if body.is_end_stream() {
            return Ok((first, held));
        }
        let mut whole = BytesMut::from(first);
        while let Some(piece) = next_piece(&mut body).await? {
            held.grow(piece.len() as u64)?;
            whole.put(piece);
        }
        Ok((whole.freeze(), held))
    }
}

impl Held {
    fn grow(&mut self, bytes: u64) -> Result<(), ApiError> {
        self.bytes += bytes;
        let used = self.used_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if self.bytes > LIMIT_BYTES {
            return Err(too_large());
        }
        if used > TOTAL_BYTES {
            return Err(ApiError::unavailable(
                "too many large requests are being received; try again shortly",
            ));
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.used_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, ApiError> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            ApiError::new(
                400,
                "invalid_request_error",
                "incomplete_body",
                format!("the body broke off: {error}"),
            )
        })?;
        // Trailers are hop-by-hop here: skipped.
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

fn too_large() -> ApiError {
    let message = format!("the request body is larger than {LIMIT_BYTES} bytes");
    ApiError::new(413, "invalid_request_error", "request_too_large", message)
}
