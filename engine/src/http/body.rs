//! Reads a request body within its bounds: bytes of one body, bytes of all bodies in reading, time.
//! In: a body. Out: its bytes, or 408, 413, 503.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::ApiError;

/// The longest body.
pub const MAX_BODY_BYTES: usize = 16 << 20;

/// A client that sends slower than this is sent away.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The unit of the budget, so that its count fits a semaphore's permits.
const UNIT: usize = 1 << 10;

/// Bytes of all bodies that are held at once, from the first byte read until the prompt is made.
#[derive(Debug)]
pub struct Intake {
    units: Semaphore,
}

impl Default for Intake {
    fn default() -> Self {
        Self { units: Semaphore::new(512 << 20 >> UNIT.trailing_zeros()) }
    }
}

/// A body, and its share of the budget.
#[derive(Debug)]
pub struct Read<'a> {
    pub bytes: Bytes,
    _share: SemaphorePermit<'a>,
}

impl Intake {
    /// # Errors
    /// 413: longer than [`MAX_BODY_BYTES`]; 408: too slow; 400: the client broke off; 503: too many bodies at once.
    pub async fn read(&self, headers: &HeaderMap, body: Body) -> Result<Read<'_>, ApiError> {
        let told = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
        if told.is_some_and(|n| n > MAX_BODY_BYTES) {
            return Err(too_long());
        }
        let units = told.unwrap_or(MAX_BODY_BYTES).div_ceil(UNIT);
        let units = u32::try_from(units).expect("16 MiB are few units");
        let share = timeout(READ_TIMEOUT, self.units.acquire_many(units)).await;
        let Ok(Ok(share)) = share else {
            return Err(ApiError::unavailable("Too many request bodies at once. Please retry."));
        };
        match timeout(READ_TIMEOUT, collect(body, told)).await {
            Ok(bytes) => Ok(Read { bytes: bytes?, _share: share }),
            Err(_) => {
                let message = format!("The request body took longer than {} s.", READ_TIMEOUT.as_secs());
                Err(ApiError::new(408, "invalid_request_error", "request_timeout", message))
            }
        }
    }
}

async fn collect(mut body: Body, told: Option<usize>) -> Result<Bytes, ApiError> {
    let mut bytes = BytesMut::with_capacity(told.unwrap_or(0));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            ApiError::new(400, "invalid_request_error", "broken_body", "The request body broke off.")
        })?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > MAX_BODY_BYTES {
            return Err(too_long());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

fn too_long() -> ApiError {
    let message = format!("The request body is longer than {} MiB.", MAX_BODY_BYTES >> 20);
    ApiError::new(413, "invalid_request_error", "request_too_large", message)
}
