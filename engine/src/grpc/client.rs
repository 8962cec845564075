//! Decode's side of the hand-over: a request's way through a prefill.
//! In: a reserved request and a [`Peer`]. Out: its events, from the first token on.
//! Never: a second try of a request that prefill has seen; a wait without an end.
//! A prefill that does not answer is noticed by its connection: refused or not made within a second, or silent for four.

use std::time::Instant;

use engine_proto::v1::prefill_event::Event as Message;
use engine_proto::v1::{self, PrefillRequest};
use tonic::{Request, Status, Streaming};

use super::assembly::Assembly;
use super::peers::{Peer, Peers, Standing};
use super::verdict::from_status;
use crate::ApiError;
use crate::admission::Permit;
use crate::engine::{Engine, EventStream};
use crate::process::Process;
use crate::sample::{Sampled, Sampling};
use crate::schedule::SequenceId;
use crate::sequence::{Event, Submission};

impl Peers {
    /// Reserves a seat, has the prompt computed, takes its KV over. The stream then begins with the first token.
    ///
    /// # Errors
    /// Prefill's own verdict; 502 when it fails or cannot be reached; the engine's verdict.
    pub async fn start(
        &self,
        process: &Process,
        peer: &Peer,
        request_id: &str,
        submission: Submission,
        permit: Permit,
    ) -> Result<EventStream, ApiError> {
        let engine = process.check_ready()?;
        let epoch = crate::random::number();
        let request = PrefillRequest {
            request_id: request_id.to_owned(),
            epoch,
            contract: Some(self.contract.clone()),
            tokens: submission.prompt.clone(),
            sampling: Some(sampling_message(&submission.sampling)),
            top_logprobs: submission.top,
        };
        let (deadline, tokens) = (submission.deadline, submission.prompt.len());
        let mut events = engine.submit(submission).await?;
        match events.next().await {
            Event::Seated => {}
            Event::Failed(error) => return Err(error),
            event => {
                tracing::error!(?event, "event out of place");
                return Err(ApiError::internal("The engine answered out of turn."));
            }
        }
        let mut take_over = TakeOver { peers: self, process, engine, peer, permit, tokens, epoch, deadline };
        let id = events.id();
        let first = tokio::select! {
            event = events.next() => match event {
                Event::Failed(error) => return Err(error),
                _ => return Err(ApiError::internal("The engine answered out of turn.")),
            },
            first = take_over.run(id, request) => first.inspect_err(|error| peer.failed(error))?,
        };
        engine.commit(id, first).await?;
        Ok(events)
    }
}

/// One hand-over under way.
struct TakeOver<'a> {
    peers: &'a Peers,
    process: &'a Process,
    engine: &'a Engine,
    peer: &'a Peer,
    permit: Permit,
    tokens: usize,
    epoch: u64,
    deadline: Instant,
}

impl TakeOver<'_> {
    async fn run(&mut self, id: SequenceId, request: PrefillRequest) -> Result<Sampled, ApiError> {
        let mut request = Request::new(request);
        request.set_timeout(self.deadline.saturating_duration_since(Instant::now()));
        let stream = self.peer.client.clone().prefill(request).await;
        let mut stream = stream.map_err(|status| self.ended(&status))?.into_inner();
        let contract = &self.peers.contract;
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let pages = engine_spec::memory::CacheFormat::pages_for(self.tokens);
        let mut assembly = Assembly::new(pages, size(contract.page_bytes), size(contract.slot_bytes));
        loop {
            match self.message(&mut stream).await? {
                Message::Accepted(accepted) => self.learn(accepted.prefill_tokens_per_second),
                Message::Progress(progress) => {
                    let left = (self.tokens as u64).saturating_sub(u64::from(progress.computed_tokens));
                    self.permit.remaining(left);
                }
                Message::Frame(frame) => {
                    let part = assembly.push(&frame).map_err(|error| self.broken(&error))?;
                    if let Some((part, bytes)) = part {
                        self.engine.fill(id, part, bytes).await?;
                    }
                }
                Message::Commit(commit) => {
                    assembly.finish(&commit, self.epoch).map_err(|error| self.broken(&error))?;
                    self.process.metrics.transferred_bytes.inc_by(assembly.bytes());
                    let first = commit.first.ok_or_else(|| self.broken(&"commit without a token"))?;
                    return self.first(first);
                }
            }
        }
    }

    async fn message(&self, stream: &mut Streaming<v1::PrefillEvent>) -> Result<Message, ApiError> {
        let message = stream.message().await.map_err(|status| self.ended(&status))?;
        let message = message.ok_or_else(|| self.broken(&"the stream ended before its commit"))?;
        message.event.ok_or_else(|| self.broken(&"a message of an unknown kind"))
    }

    /// A call that our own timer cut looks like a broken one.
    fn ended(&self, status: &Status) -> ApiError {
        match from_status(status, &self.peer.address) {
            error if error.status == 502 && Instant::now() >= self.deadline => {
                ApiError::timed_out("The request's deadline passed while its prompt was computed.")
            }
            error => error,
        }
    }

    /// The prefill's speed moved.
    fn learn(&self, tokens_per_second: f64) {
        if tokens_per_second.is_finite() && tokens_per_second > 0.0 {
            self.peer.stands(Standing::Paired { tokens_per_second });
            self.process.admission.told(self.peers.speed().unwrap_or(0.0));
        }
    }

    fn first(&self, token: v1::Token) -> Result<Sampled, ApiError> {
        if token.id >= self.peers.contract.vocab {
            return Err(self.broken(&"a first token outside of the vocabulary"));
        }
        let top = token.top.iter().map(|a| (a.id, a.logprob)).collect();
        Ok(Sampled { id: token.id, logprob: token.logprob, top })
    }

    fn broken(&self, why: &dyn std::fmt::Display) -> ApiError {
        tracing::error!(peer = self.peer.address, %why, "hand-over broken");
        ApiError::bad_gateway(format!("Prefill {} handed over a broken prompt.", self.peer.address))
    }
}

fn sampling_message(sampling: &Sampling) -> v1::Sampling {
    let Sampling { temperature, top_p, top_k, min_p, seed } = *sampling;
    v1::Sampling { temperature, top_p, top_k, min_p, seed }
}
