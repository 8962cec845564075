//! Passes a decode's answer on, piece by piece, and makes a failure within it plain to the client.
//! In: the decode's body. Out: the same bytes; after a failure an error event (in an event stream), then an error that
//! makes the server break the connection instead of ending the body.
//! Never: a piece kept back; the next piece asked for before the client's socket has room.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use engine_router::{Permit, RequestResult};
use http::HeaderMap;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::Router;
use super::bounds::{Bounds, Ending};
use super::fleet::Peer;
use super::headers;
use super::metrics::Outcome;
use super::record::Record;
use super::socket::FlushSignal;
use super::sse::SseTail;
use crate::ApiError;

/// A client gets this long to take the error event before the connection breaks.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(5);

/// Tells the server to break the connection.
#[derive(Debug, thiserror::Error)]
#[error("the answer was cut short")]
pub(super) struct RelayError;

#[derive(Debug)]
pub(super) struct Relay {
    router: Arc<Router>,
    decode: Arc<Peer>,
    state: State,
    permit: Option<Permit>,
    record: Record,
    bounds: Bounds,
    /// How the request ends if the answer passes whole.
    outcome: Outcome,
    events: Option<SseTail>,
    flush: Arc<FlushSignal>,
}

#[derive(Debug)]
enum State {
    Passing(Incoming),
    /// The error event is on its way.
    Closing,
    Ended,
}

/// What is known of an answer when its head has come.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) decode: Arc<Peer>,
    pub(super) permit: Option<Permit>,
    pub(super) record: Record,
    pub(super) bounds: Bounds,
    pub(super) outcome: Outcome,
    pub(super) flush: Arc<FlushSignal>,
}

impl Relay {
    pub(super) fn new(router: &Arc<Router>, begun: Begun, head: &HeaderMap, body: Incoming) -> Self {
        let Begun { decode, mut permit, record, bounds, outcome, flush } = begun;
        let events = headers::is_type(head, "text/event-stream").then(SseTail::default);
        if events.is_none() {
            // An answer of one piece has its head when all is computed.
            permit.iter_mut().for_each(Permit::computed);
        }
        let ended = body.is_end_stream();
        let state = State::Passing(body);
        let router = Arc::clone(router);
        let mut relay = Self { router, decode, state, permit, record, bounds, outcome, events, flush };
        if ended {
            relay.complete();
        }
        relay
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        match &mut self.state {
            State::Passing(body) => match Pin::new(body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.pass(&frame);
                    Poll::Ready(Some(Ok(frame)))
                }
                Poll::Ready(Some(Err(error))) => self.decode_broke(&error),
                Poll::Ready(None) => {
                    self.complete();
                    Poll::Ready(None)
                }
                Poll::Pending => match self.bounds.poll_ending(cx) {
                    Poll::Ready(ending) => self.must_end(ending),
                    Poll::Pending => Poll::Pending,
                },
            },
            State::Closing => self.poll_closing(cx),
            State::Ended => Poll::Ready(None),
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match &self.state {
            State::Passing(body) => body.size_hint(),
            State::Closing => SizeHint::default(),
            State::Ended => SizeHint::with_exact(0),
        }
    }

    fn pass(&mut self, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref()
            && !data.is_empty()
        {
            self.decode.answered_a_piece();
            self.permit.iter_mut().for_each(Permit::computed);
            self.events.iter_mut().for_each(|events| events.pass(data));
        }
        if let State::Passing(body) = &self.state
            && body.is_end_stream()
        {
            self.complete();
        }
    }

    fn complete(&mut self) {
        self.end(State::Ended, self.outcome);
    }

    fn decode_broke(&mut self, error: &hyper::Error) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        tracing::warn!(decode = self.decode.address(), %error, "the answer broke off");
        self.router.metrics.upstream_failed("decode", "broken");
        self.router.fleet.requested(&self.decode, RequestResult::Broken);
        let error = ApiError::bad_gateway("the engine's answer broke off; what came so far is incomplete");
        self.fail(&error, Outcome::Broken)
    }

    fn must_end(&mut self, ending: Ending) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        let outcome = match ending {
            Ending::Deadline(_) => Outcome::Timeout,
            Ending::Drain => Outcome::Drained,
        };
        self.fail(&ending.error(), outcome)
    }

    fn fail(&mut self, error: &ApiError, outcome: Outcome) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        let Some(events) = self.events.take() else {
            self.end(State::Ended, outcome);
            return Poll::Ready(Some(Err(RelayError)));
        };
        if events.is_complete() {
            // The client has everything; only the end of the body was missing.
            self.complete();
            return Poll::Ready(None);
        }
        // Dropping the body lets the decode know at once.
        self.end(State::Closing, outcome);
        self.bounds.restart(CLOSING_TIMEOUT);
        // Polled again for the rest, once the event has been buffered.
        Poll::Ready(Some(Ok(Frame::data(events.closing(error)))))
    }

    /// The server drops what it has buffered when a body fails, so the failure waits until the event has left.
    fn poll_closing(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        if self.flush.is_flushed_since_armed() || self.bounds.poll_deadline(cx).is_ready() {
            self.state = State::Ended;
            return Poll::Ready(Some(Err(RelayError)));
        }
        Poll::Pending
    }

    fn end(&mut self, state: State, outcome: Outcome) {
        self.state = state;
        self.permit = None;
        self.record.ends(outcome);
    }
}
