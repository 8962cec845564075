//! Chat completions: from a body to a prompt, through admission, to a stream of tokens and the answer made of it.
//! In: HTTP requests. Out: JSON, or server-sent events.
//! Never: the format of either (`crate::chat` has it), an unbounded buffer, a status line before the first token exists.
//! Everything that can go wrong before the first token is told with its true status; afterwards an error event is sent
//! and the connection breaks off without its proper end, so that parser and transport both see the failure.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures_util::stream::unfold;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use tokio::sync::Semaphore;

use super::body::Intake;
use super::record::Record;
use super::reply::RequestId;
use crate::ApiError;
use crate::chat::{Answer, Chat, ChatRequest, End};
use crate::engine::EventStream;
use crate::grpc::peers::Peers;
use crate::process::Process;
use crate::sample::Sampled;
use crate::sequence::{Event, Kind, Submission};

/// What the router is told, to correct its estimate.
pub const PROMPT_TOKENS: &str = "fathom-prompt-tokens";

/// How the router names the prefill it chose.
pub const PREFILL: &str = "fathom-prefill";

/// The API of a decode or unified process.
#[derive(Debug)]
pub struct Api {
    pub process: Arc<Process>,
    serving: OnceLock<Serving>,
    intake: Intake,
    /// Prompts made at once: they cost CPU time.
    makers: Arc<Semaphore>,
}

/// What is there once the model is loaded.
#[derive(Debug)]
pub struct Serving {
    pub chat: Arc<Chat>,
    pub source: Source,
}

/// Who computes prompts.
#[derive(Debug)]
pub enum Source {
    Here,
    Peers(Arc<Peers>),
}

impl Api {
    pub fn new(process: Arc<Process>) -> Arc<Self> {
        let makers = Arc::new(Semaphore::new(process.binding.threads.max(1)));
        Arc::new(Self { process, serving: OnceLock::new(), intake: Intake::default(), makers })
    }

    /// The model is loaded. Later calls change nothing.
    pub fn serve(&self, serving: Serving) {
        let _ = self.serving.set(serving);
    }

    fn serving(&self) -> Result<&Serving, ApiError> {
        self.process.check_ready()?;
        self.serving.get().ok_or_else(|| ApiError::unavailable("Not ready yet."))
    }

    /// Runs what costs CPU time off the threads that serve connections.
    async fn off_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Chat) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let chat = Arc::clone(&self.serving()?.chat);
        let place = Arc::clone(&self.makers).acquire_owned().await;
        let task = tokio::task::spawn_blocking(move || {
            let _place = place;
            work(&chat)
        });
        task.await.unwrap_or_else(|error| {
            tracing::error!(%error, "making a prompt failed");
            Err(ApiError::internal("The request could not be read."))
        })
    }
}

pub(super) async fn completions(
    State(api): State<Arc<Api>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let mut record = Record::new(&api.process, id.as_str());
    let mut prompt_tokens = None;
    let result = match begin(&api, &headers, body, &mut record, &mut prompt_tokens).await {
        Ok(started) => answer(started, record).await,
        Err(error) => {
            record.failed(&error);
            Err(error)
        }
    };
    let mut response = result.unwrap_or_else(IntoResponse::into_response);
    if let Some(tokens) = prompt_tokens {
        response.headers_mut().insert(PROMPT_TOKENS, HeaderValue::from(tokens));
    }
    response
}

/// A request whose first token exists.
struct Started {
    request: ChatRequest,
    events: EventStream,
    first: Sampled,
}

async fn begin(
    api: &Api,
    headers: &HeaderMap,
    body: Body,
    record: &mut Record,
    prompt_tokens: &mut Option<usize>,
) -> Result<Started, ApiError> {
    let process = &api.process;
    let deadline = Instant::now() + Duration::from_millis(process.config.request_timeout_ms);
    let serving = api.serving()?;
    let body = api.intake.read(headers, body).await?;
    let bytes = body.bytes.clone();
    let request = api.off_thread(move |chat| chat.prepare(&bytes)).await?;
    drop(body);
    let tokens = request.prompt.len();
    record.prompt(tokens);
    *prompt_tokens = Some(tokens);

    let submission = submission(process, serving, &request, deadline)?;
    let mut events = match &serving.source {
        Source::Here => {
            let permit = process.admission.admit(tokens as u64)?;
            process.check_ready()?.submit(Submission { permit: Some(permit), ..submission }).await?
        }
        Source::Peers(peers) => {
            let peer = peers.choose(headers.get(PREFILL))?;
            let permit = process.admission.admit(tokens as u64)?;
            let submission = Submission { kind: Kind::Filled, ..submission };
            peers.start(process, &peer, record.id(), submission, permit).await?
        }
    };
    match events.next().await {
        Event::Token(first) => Ok(Started { request, events, first }),
        Event::Failed(error) => Err(error),
        event => Err(unexpected(&event)),
    }
}

fn submission(
    process: &Process,
    serving: &Serving,
    request: &ChatRequest,
    deadline: Instant,
) -> Result<Submission, ApiError> {
    let context = process.config.model.context_tokens;
    let prompt_tokens = request.prompt.len();
    // What does not fit the context does not fit the pools either and would wait for ever.
    let room = (context as usize).saturating_sub(prompt_tokens);
    let room = u32::try_from(room).unwrap_or(u32::MAX);
    if prompt_tokens == 0 {
        return Err(ApiError::invalid("messages", "The prompt is empty."));
    }
    if room == 0 {
        return Err(ApiError::context_length_exceeded(prompt_tokens, context));
    }
    Ok(Submission {
        prompt: request.prompt.clone(),
        max_tokens: request.max_tokens.clamp(1, room),
        sampling: request.sampling,
        top: request.logprobs.unwrap_or(0),
        eos: serving.chat.eos(),
        deadline,
        permit: None,
        kind: Kind::Local,
    })
}

async fn answer(started: Started, record: Record) -> Result<Response, ApiError> {
    let Started { request, events, first } = started;
    let answer = request.answer(format!("chatcmpl-{}", crate::random::hex_id()));
    let reply = Reply { events, first: Some(first), answer, record, state: Progress::Going };
    if request.stream { Ok(reply.stream()) } else { reply.whole().await }
}

/// An answer in the making.
struct Reply {
    events: EventStream,
    first: Option<Sampled>,
    answer: Answer,
    record: Record,
    state: Progress,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Going,
    /// The error event is out: break off.
    Broken,
    Over,
}

/// What one event of the engine makes of an answer.
enum Turn {
    More(Vec<Bytes>),
    Last(Vec<Bytes>),
    Failed(ApiError),
}

/// Ends a body without its proper end.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off")]
struct BrokenOff;

impl Reply {
    async fn turn(&mut self) -> Turn {
        let event = match self.first.take() {
            Some(token) => Event::Token(token),
            None => self.events.next().await,
        };
        match event {
            Event::Token(token) => {
                self.record.token();
                let pushed = self.answer.push(&token);
                let mut events = pushed.events;
                if !pushed.stopped {
                    return Turn::More(events);
                }
                events.extend(self.answer.finish(End::Stop));
                self.record.answered();
                Turn::Last(events)
            }
            Event::Finished => {
                let events = self.answer.finish(End::Length);
                self.record.answered();
                Turn::Last(events)
            }
            Event::Failed(error) => {
                self.record.failed(&error);
                Turn::Failed(error)
            }
            event => {
                let error = unexpected(&event);
                self.record.failed(&error);
                Turn::Failed(error)
            }
        }
    }

    async fn whole(mut self) -> Result<Response, ApiError> {
        loop {
            match self.turn().await {
                Turn::More(_) => {}
                Turn::Last(_) => return Ok(json(self.answer.body())),
                Turn::Failed(error) => return Err(error),
            }
        }
    }

    fn stream(self) -> Response {
        let chunks = unfold(self, |mut reply| async move { reply.chunk().await.map(|chunk| (chunk, reply)) });
        let mut response = Body::from_stream(chunks).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }

    async fn chunk(&mut self) -> Option<Result<Bytes, BrokenOff>> {
        loop {
            match self.state {
                Progress::Over => return None,
                Progress::Broken => {
                    self.state = Progress::Over;
                    // The connection writes the error event out when this body has nothing ready, and only then.
                    tokio::task::yield_now().await;
                    return Some(Err(BrokenOff));
                }
                Progress::Going => {}
            }
            let events = match self.turn().await {
                Turn::More(events) => events,
                Turn::Last(events) => {
                    self.state = Progress::Over;
                    events
                }
                Turn::Failed(error) => {
                    self.state = Progress::Broken;
                    vec![error.event()]
                }
            };
            if let Some(chunk) = joined(events) {
                return Some(Ok(chunk));
            }
        }
    }
}

fn joined(mut events: Vec<Bytes>) -> Option<Bytes> {
    match events.len() {
        0 => None,
        1 => events.pop(),
        _ => {
            let mut all = BytesMut::with_capacity(events.iter().map(Bytes::len).sum());
            events.iter().for_each(|event| all.extend_from_slice(event));
            Some(all.freeze())
        }
    }
}

fn unexpected(event: &Event) -> ApiError {
    tracing::error!(?event, "event out of place");
    ApiError::internal("The engine answered out of turn.")
}

pub(super) async fn models(State(api): State<Arc<Api>>) -> Result<Response, ApiError> {
    let serving = api.serving.get().ok_or_else(|| ApiError::unavailable("Not ready yet."))?;
    Ok(json(serving.chat.models()))
}

pub(super) async fn tokenize(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    convert(&api, &headers, body, Chat::tokenize).await
}

pub(super) async fn detokenize(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    convert(&api, &headers, body, Chat::detokenize).await
}

/// A whole body in, a whole body out.
async fn convert(
    api: &Api,
    headers: &HeaderMap,
    body: Body,
    work: fn(&Chat, &[u8]) -> Result<Bytes, ApiError>,
) -> Result<Response, ApiError> {
    let body = api.intake.read(headers, body).await?;
    let bytes = body.bytes.clone();
    api.off_thread(move |chat| work(chat, &bytes)).await.map(json)
}

fn json(body: Bytes) -> Response {
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}
