//! The account of one request: counted once, logged once, however it ends.
//! In: what happens to it. Out: one outcome in the metrics, one log line.
//! Never: prompts, answers or keys.
//! A record that is dropped without a verdict belongs to a client that left.

use std::sync::Arc;
use std::time::Instant;

use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::ApiError;
use crate::metrics::Outcome;
use crate::process::Process;

/// Lives as long as the request is served; the drain waits for it.
#[derive(Debug)]
pub struct Record {
    process: Arc<Process>,
    id: String,
    start: Instant,
    last_token: Option<Instant>,
    first_token_s: Option<f64>,
    prompt_tokens: usize,
    answer_tokens: usize,
    verdict: Option<(Outcome, Option<ApiError>)>,
    _token: TaskTrackerToken,
}

impl Record {
    pub fn new(process: &Arc<Process>, id: impl Into<String>) -> Self {
        Self {
            process: Arc::clone(process),
            id: id.into(),
            start: Instant::now(),
            last_token: None,
            first_token_s: None,
            prompt_tokens: 0,
            answer_tokens: 0,
            verdict: None,
            _token: process.requests.token(),
        }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn prompt(&mut self, tokens: usize) {
        self.prompt_tokens = tokens;
    }

    /// One more token of the answer is there.
    pub fn token(&mut self) {
        let now = Instant::now();
        self.answer_tokens += 1;
        match self.last_token.replace(now) {
            None => {
                let seconds = (now - self.start).as_secs_f64();
                self.first_token_s = Some(seconds);
                self.process.metrics.time_to_first_token.observe(seconds);
            }
            Some(last) => self.process.metrics.inter_token.observe((now - last).as_secs_f64()),
        }
    }

    pub fn answered(&mut self) {
        self.conclude(Outcome::Ok, None);
    }

    pub fn failed(&mut self, error: &ApiError) {
        self.conclude(Outcome::of_status(error.status), Some(error.clone()));
    }

    /// The first verdict stays.
    fn conclude(&mut self, outcome: Outcome, error: Option<ApiError>) {
        self.verdict.get_or_insert((outcome, error));
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let (outcome, error) = self.verdict.take().unwrap_or((Outcome::Cancelled, None));
        let seconds = self.start.elapsed().as_secs_f64();
        self.process.metrics.ended(outcome);
        self.process.metrics.request_seconds.observe(seconds);
        let status = error.as_ref().map(|e| e.status);
        // A client's own words may be in a 4xx message: its code says enough.
        let cause = error.as_ref().map(|e| if e.status < 500 { e.code } else { e.message.as_str() });
        tracing::info!(
            request = self.id,
            outcome = outcome.as_str(),
            status,
            cause,
            prompt_tokens = self.prompt_tokens,
            answer_tokens = self.answer_tokens,
            first_token_s = self.first_token_s,
            seconds,
            "request"
        );
    }
}
