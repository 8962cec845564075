//! One request: which route, which workers, and what the client is told.
//! In: a request. Out: a response, always.
//! Never: a second try after a byte can have reached a decode; a 429 retried.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine_router::{NoWorker, Permit, RequestResult};
use http::header::{ALLOW, CONNECTION, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;

use super::answer::{self, Answer};
use super::bounds::Bounds;
use super::fleet::{NotPlaced, Peer, Placement};
use super::metrics::Outcome;
use super::record::Record;
use super::relay::{Begun, Relay};
use super::routes::{Route, route};
use super::socket::FlushSignal;
use super::upstream::{self, SendError};
use super::{Router, headers, status};
use crate::ApiError;

/// Decodes that are tried when no connection can be made.
const TRIES: usize = 2;

/// Of an error that is not JSON, so much is told to the client.
const ERROR_TEXT_BYTES: usize = 4096;
const ERROR_TEXT_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) async fn handle(
    router: Arc<Router>,
    flush: Arc<FlushSignal>,
    request: Request<Incoming>,
) -> Response<Answer> {
    let mut response = match route(request.method(), request.uri().path()) {
        Route::Generate => forward(&router, flush, request, Kind::Generate).await,
        Route::Ask => forward(&router, flush, request, Kind::Ask).await,
        Route::Alive => status::alive(),
        Route::Ready => status::ready(&router),
        Route::Metrics => status::metrics(&router),
        Route::ServerInfo => status::server_info(&router),
        Route::WrongMethod(allowed) => wrong_method(&router, &request, allowed),
        Route::Unknown => unknown(&router, &request),
    };
    if router.draining() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// What a forwarded request asks of the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A prompt to compute: admitted, with a prefill.
    Generate,
    Ask,
}

/// The head of a decode's answer, and what the request holds.
struct Answered {
    response: Response<Incoming>,
    decode: Arc<Peer>,
    permit: Option<Permit>,
}

/// An end without a decode's answer to pass on.
struct Failure {
    error: ApiError,
    outcome: Outcome,
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let outcome = Outcome::of_own_status(error.status);
        Self { error, outcome }
    }
}

async fn forward(
    router: &Arc<Router>,
    flush: Arc<FlushSignal>,
    request: Request<Incoming>,
    kind: Kind,
) -> Response<Answer> {
    let mut record = begin(router, &request);
    let mut bounds = Bounds::new(router.request_timeout, &router.cut);
    let answered = tokio::select! {
        biased;
        answered = ask_a_decode(router, &mut record, request, kind) => answered,
        ending = bounds.ending() => Err(Failure::from(ending.error())),
    };
    match answered {
        Ok(answered) => relay(router, answered, record, bounds, flush),
        Err(Failure { error, outcome }) => {
            record.ends(outcome);
            with_request_id(answer::error(&error), &record)
        }
    }
}

fn begin(router: &Arc<Router>, request: &Request<Incoming>) -> Record {
    let request_id = headers::request_id(request.headers()).unwrap_or_else(|| router.ids.make());
    Record::begin(router, request_id)
}

fn with_request_id(mut response: Response<Answer>, record: &Record) -> Response<Answer> {
    response.headers_mut().insert(headers::REQUEST_ID.clone(), record.request_id.clone());
    response
}

async fn ask_a_decode(
    router: &Router,
    record: &mut Record,
    request: Request<Incoming>,
    kind: Kind,
) -> Result<Answered, Failure> {
    if router.draining() {
        return Err(ApiError::unavailable("the router is shutting down").into());
    }
    let (head, body) = request.into_parts();
    let (body, _held) = router.bodies.read(body).await?;
    let mut unreachable = None;
    for _ in 0..TRIES {
        let placed = match place(router, kind, body.len() as u64) {
            Ok(placed) => placed,
            // The first decode was the only one: its failure is the better answer.
            Err(error) => return Err(unreachable.unwrap_or(error).into()),
        };
        record.sent_to(&placed.decode);
        match router.upstream.send(request_for(&head, body.clone(), &placed, record)).await {
            Ok(response) => return take_head(router, placed, response).await,
            Err(SendError::Connect(error)) => {
                unreachable =
                    Some(decode_failed(router, &placed.decode, RequestResult::ConnectFailed, &error));
            }
            Err(SendError::Broken(error)) => {
                return Err(decode_failed(router, &placed.decode, RequestResult::Broken, &error).into());
            }
        }
    }
    Err(unreachable.unwrap_or_else(|| ApiError::bad_gateway("no decode could be reached")).into())
}

/// The workers of one try.
struct Placed {
    decode: Arc<Peer>,
    prefill: Option<Arc<Peer>>,
    permit: Option<Permit>,
}

fn place(router: &Router, kind: Kind, body_bytes: u64) -> Result<Placed, ApiError> {
    let unavailable = |error: NoWorker| ApiError::unavailable(error.to_string());
    if kind == Kind::Ask {
        let decode = router.fleet.any_decode().map_err(unavailable)?;
        return Ok(Placed { decode, prefill: None, permit: None });
    }
    let placement = router.fleet.place(body_bytes).map_err(|error| match error {
        NotPlaced::NoWorker(error) => unavailable(error),
        NotPlaced::Refused(refusal) => ApiError::queue_full(refusal.to_string(), refusal.retry_after_s()),
    })?;
    let Placement { decode, prefill, reason, permit } = placement;
    let prefill_address = prefill.as_ref().map(|peer| peer.address());
    tracing::debug!(decode = decode.address(), prefill = prefill_address, %reason, "placed");
    Ok(Placed { decode, prefill, permit: Some(permit) })
}

fn request_for(head: &Parts, body: Bytes, placed: &Placed, record: &Record) -> Request<Full<Bytes>> {
    let prefill = placed.prefill.as_ref().map(|peer| peer.name_header());
    let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = head.method.clone();
    if let Some(authority) = placed.decode.http() {
        *request.uri_mut() = upstream::uri(authority, path);
    }
    *request.headers_mut() = headers::to_decode(&head.headers, prefill, &record.request_id);
    request
}

fn decode_failed(
    router: &Router,
    decode: &Arc<Peer>,
    result: RequestResult,
    error: &hyper_util::client::legacy::Error,
) -> ApiError {
    let address = decode.address();
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    tracing::warn!(decode = address, %error, cause, "a decode failed before it answered");
    router.fleet.requested(decode, result);
    let (kind, message) = match result {
        RequestResult::ConnectFailed => ("connect", "the engine cannot be reached; try again shortly"),
        RequestResult::Broken | RequestResult::Status(_) => {
            ("broken", "the engine closed the connection before it answered")
        }
    };
    router.metrics.upstream_failed("decode", kind);
    ApiError::bad_gateway(message)
}

/// Learns from the head of an answer, and turns an error that clients could not parse into one that they can.
async fn take_head(
    router: &Router,
    mut placed: Placed,
    response: Response<Incoming>,
) -> Result<Answered, Failure> {
    let status = response.status();
    judge(router, &placed, status);
    if let (Some(permit), Some(tokens)) = (&mut placed.permit, headers::prompt_tokens(response.headers())) {
        permit.prompt_tokens(tokens);
    }
    if status.is_server_error() && !headers::is_type(response.headers(), "application/json") {
        let error = readable_error(status, response.into_body()).await;
        return Err(Failure { error, outcome: Outcome::EngineError });
    }
    Ok(Answered { response, decode: placed.decode, permit: placed.permit })
}

/// 502 from a decode means that its prefill failed, so the prefill is to blame.
fn judge(router: &Router, placed: &Placed, status: StatusCode) {
    let peer = match &placed.prefill {
        Some(prefill) if status == StatusCode::BAD_GATEWAY => prefill,
        _ => &placed.decode,
    };
    router.fleet.requested(peer, RequestResult::Status(status.as_u16()));
    if status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE {
        router.metrics.upstream_failed(peer.role(), "status");
    }
}

async fn readable_error(status: StatusCode, body: Incoming) -> ApiError {
    let text = tokio::time::timeout(ERROR_TEXT_TIMEOUT, Limited::new(body, ERROR_TEXT_BYTES).collect()).await;
    let text = text.ok().and_then(Result::ok).map(|body| body.to_bytes());
    let text = String::from_utf8_lossy(text.as_deref().unwrap_or_default());
    let message = match text.trim() {
        "" => format!("the engine answered {status} without a reason"),
        text => text.to_owned(),
    };
    ApiError::new(status.as_u16(), "server_error", "engine_error", message)
}

fn relay(
    router: &Arc<Router>,
    answered: Answered,
    record: Record,
    bounds: Bounds,
    flush: Arc<FlushSignal>,
) -> Response<Answer> {
    let Answered { response, decode, permit } = answered;
    let (mut head, body) = response.into_parts();
    headers::to_client(&mut head.headers, &record.request_id);
    let outcome = Outcome::of_engine_status(head.status.as_u16());
    let begun = Begun { decode, permit, record, bounds, outcome, flush };
    let relay = Relay::new(router, begun, &head.headers, body);
    Response::from_parts(head, Answer::Relay(Box::new(relay)))
}

fn wrong_method(
    router: &Arc<Router>,
    request: &Request<Incoming>,
    allowed: &'static str,
) -> Response<Answer> {
    let message = format!("{} does not take this method; use {allowed}", request.uri().path());
    let error = ApiError::new(405, "invalid_request_error", "method_not_allowed", message);
    let mut response = refuse(router, request, &error);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

fn unknown(router: &Arc<Router>, request: &Request<Incoming>) -> Response<Answer> {
    let message = format!("there is nothing at {}", request.uri().path());
    refuse(router, request, &ApiError::new(404, "invalid_request_error", "not_found", message))
}

fn refuse(router: &Arc<Router>, request: &Request<Incoming>, error: &ApiError) -> Response<Answer> {
    let mut record = begin(router, request);
    record.ends(Outcome::of_own_status(error.status));
    with_request_id(answer::error(error), &record)
}
