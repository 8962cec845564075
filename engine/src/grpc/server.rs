//! Prefill's side of the hand-over: admits, computes, streams KV and the first token.
//! In: calls of decodes. Out: a stream per call; dropping it is the abort, and frees what the request held.
//! Never: a page of a request that is not asked for any more; more than a few parts in memory for each stream.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine_proto::MAX_FRAME_BYTES;
use engine_proto::v1::prefill_event::Event as Message;
use engine_proto::v1::prefill_server::Prefill;
use engine_proto::v1::{
    self, Accepted, Alternative, Commit, Contract, Frame, HelloRequest, HelloResponse, Pool, PrefillEvent,
    PrefillRequest, Progress, Token,
};
use futures_util::stream::{Stream, unfold};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::contract::{REVISION, differences};
use super::verdict::to_status;
use crate::ApiError;
use crate::engine::EventStream;
use crate::http::record::Record;
use crate::process::Process;
use crate::sample::{Sampled, Sampling};
use crate::sequence::{Event, Kind, Part, Submission};

/// Most alternatives of a token that the API knows.
const MAX_TOP: u32 = 20;

/// The service.
#[derive(Debug, Clone)]
pub struct PrefillService {
    process: Arc<Process>,
    /// Known once the model is loaded.
    loaded: Arc<OnceLock<Loaded>>,
}

/// What the service needs of the loaded model.
#[derive(Debug)]
pub struct Loaded {
    pub contract: Contract,
    pub eos: u32,
}

impl PrefillService {
    pub fn new(process: Arc<Process>, loaded: Arc<OnceLock<Loaded>>) -> Self {
        Self { process, loaded }
    }

    /// The two sides compute alike.
    fn pairs_with(&self, theirs: Option<&Contract>) -> Result<&Loaded, Status> {
        let waits = || to_status(&ApiError::unavailable("Prefill is loading."));
        let loaded = self.loaded.get().ok_or_else(waits)?;
        let theirs = theirs.ok_or_else(|| Status::invalid_argument("the contract is missing"))?;
        let differences = differences(&loaded.contract, theirs);
        if differences.is_empty() {
            Ok(loaded)
        } else {
            Err(Status::failed_precondition(differences.join("; ")))
        }
    }

    /// Says which revision this is; one of another is nothing to worry about while it is rolled out.
    fn refuse(&self, hello: &HelloRequest, mut status: Status) -> Status {
        let mine = &self.process.config.revision;
        if hello.contract.as_ref().is_some_and(|contract| contract.revision == *mine) {
            tracing::warn!(decode = hello.name, why = status.message(), "hello refused");
        } else {
            tracing::debug!(decode = hello.name, why = status.message(), "hello of another revision");
        }
        if let Ok(revision) = mine.parse() {
            status.metadata_mut().insert(REVISION, revision);
        }
        status
    }

    fn submission(
        &self,
        request: &PrefillRequest,
        eos: u32,
        deadline: Instant,
    ) -> Result<Submission, ApiError> {
        let context = self.process.config.model.context_tokens;
        let loaded = self.loaded.get().map_or(0, |l| l.contract.vocab);
        if request.tokens.is_empty() || request.tokens.iter().any(|token| *token >= loaded) {
            return Err(ApiError::invalid(
                "messages",
                "The prompt is empty or has tokens outside of the vocabulary.",
            ));
        }
        if request.tokens.len() >= context as usize {
            return Err(ApiError::context_length_exceeded(request.tokens.len(), context));
        }
        let sampling = request.sampling.unwrap_or_default();
        let v1::Sampling { temperature, top_p, top_k, min_p, seed } = sampling;
        Ok(Submission {
            prompt: request.tokens.clone(),
            max_tokens: 1,
            sampling: Sampling { temperature, top_p, top_k, min_p, seed },
            top: request.top_logprobs.min(MAX_TOP),
            eos,
            deadline,
            permit: None,
            kind: Kind::HandedOver,
        })
    }

    async fn begin(
        &self,
        request: PrefillRequest,
        eos: u32,
        deadline: Instant,
        mut record: Record,
    ) -> Result<HandOver, Status> {
        let begun = async {
            let engine = self.process.check_ready()?;
            let submission = self.submission(&request, eos, deadline)?;
            record.prompt(submission.prompt.len());
            let permit = self.process.admission.admit(submission.prompt.len() as u64)?;
            engine.submit(Submission { permit: Some(permit), ..submission }).await
        };
        match begun.await {
            Ok(events) => Ok(HandOver::new(events, request.epoch, &self.process, record)),
            Err(error) => {
                record.failed(&error);
                Err(to_status(&error))
            }
        }
    }
}

type Events = Pin<Box<dyn Stream<Item = Result<PrefillEvent, Status>> + Send>>;

#[tonic::async_trait]
impl Prefill for PrefillService {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        let hello = request.into_inner();
        let loaded =
            self.pairs_with(hello.contract.as_ref()).map_err(|status| self.refuse(&hello, status))?;
        self.process.check_ready().map_err(|error| to_status(&error))?;
        Ok(Response::new(HelloResponse {
            contract: Some(loaded.contract.clone()),
            name: self.process.config.name.clone(),
            prefill_tokens_per_second: self.process.admission.state().prefill_tokens_per_second,
        }))
    }

    type PrefillStream = Events;

    async fn prefill(&self, request: Request<PrefillRequest>) -> Result<Response<Events>, Status> {
        let most = Duration::from_millis(self.process.config.request_timeout_ms);
        let time = grpc_timeout(request.metadata()).map_or(most, |asked| asked.min(most));
        let deadline = Instant::now() + time;
        let request = request.into_inner();
        let eos = self.pairs_with(request.contract.as_ref())?.eos;
        let record = Record::new(&self.process, request.request_id.clone());
        let hand_over = self.begin(request, eos, deadline, record).await?;
        let messages = unfold(hand_over, |mut hand_over| async move {
            hand_over.next().await.map(|message| (message, hand_over))
        });
        Ok(Response::new(Box::pin(messages)))
    }
}

/// What a stream still has to say.
struct HandOver {
    events: EventStream,
    epoch: u64,
    process: Arc<Process>,
    record: Record,
    queue: VecDeque<Message>,
    checksum: crc32fast::Hasher,
    bytes: u64,
    pages: u32,
    first: Option<Sampled>,
    over: bool,
}

impl HandOver {
    fn new(events: EventStream, epoch: u64, process: &Arc<Process>, record: Record) -> Self {
        let accepted = Accepted {
            cached_tokens: 0,
            prefill_tokens_per_second: process.admission.state().prefill_tokens_per_second,
        };
        Self {
            events,
            epoch,
            process: Arc::clone(process),
            record,
            queue: VecDeque::from([Message::Accepted(accepted)]),
            checksum: crc32fast::Hasher::new(),
            bytes: 0,
            pages: 0,
            first: None,
            over: false,
        }
    }

    async fn next(&mut self) -> Option<Result<PrefillEvent, Status>> {
        loop {
            if let Some(message) = self.queue.pop_front() {
                return Some(Ok(PrefillEvent { event: Some(message) }));
            }
            if self.over {
                return None;
            }
            match self.events.next().await {
                Event::Computed(tokens) => {
                    let computed_tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
                    self.queue.push_back(Message::Progress(Progress { computed_tokens }));
                }
                Event::Data(part, bytes) => self.cut(part, &bytes),
                Event::Token(token) => {
                    self.record.token();
                    self.first = Some(token);
                }
                Event::Finished => self.commit(),
                Event::Failed(error) => {
                    self.over = true;
                    self.record.failed(&error);
                    return Some(Err(to_status(&error)));
                }
                Event::Seated => tracing::error!("event out of place"),
            }
        }
    }

    /// A part as frames; they share its memory.
    fn cut(&mut self, part: Part, bytes: &Bytes) {
        self.checksum.update(bytes);
        self.bytes += bytes.len() as u64;
        self.process.metrics.transferred_bytes.inc_by(bytes.len() as u64);
        let (pool, index) = match part {
            Part::Page(at) => (Pool::Page, u32::try_from(at).unwrap_or(u32::MAX)),
            Part::Slot => (Pool::Slot, 0),
        };
        self.pages += u32::from(pool == Pool::Page);
        for start in (0..bytes.len()).step_by(MAX_FRAME_BYTES) {
            let end = bytes.len().min(start + MAX_FRAME_BYTES);
            let frame =
                Frame { pool: pool.into(), index, offset: start as u64, data: bytes.slice(start..end) };
            self.queue.push_back(Message::Frame(frame));
        }
    }

    fn commit(&mut self) {
        self.over = true;
        self.record.answered();
        self.queue.push_back(Message::Commit(Commit {
            epoch: self.epoch,
            pages: self.pages,
            bytes: self.bytes,
            crc32: self.checksum.clone().finalize(),
            first: self.first.take().map(|token| Token {
                id: token.id,
                logprob: token.logprob,
                top: token.top.iter().map(|&(id, logprob)| Alternative { id, logprob }).collect(),
            }),
        }));
    }
}

/// `grpc-timeout`: up to eight digits and a unit.
/// Source: gRPC over HTTP/2, "Timeout".
fn grpc_timeout(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if number.len() > 8 || !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read_as_grpc_writes_them() {
        let read = |text: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().unwrap());
            grpc_timeout(&metadata)
        };
        assert_eq!(read("1500m"), Some(Duration::from_millis(1500)));
        assert_eq!(read("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for bad in ["", "S", "12", "123456789S", "-1S", "1é", "1.5S"] {
            let metadata: Result<tonic::metadata::AsciiMetadataValue, _> = bad.parse();
            assert!(metadata.is_err() || read(bad).is_none(), "{bad}");
        }
    }
}
