//! Asks an OpenAI chat endpoint, one question at a time, and waits when it says to wait.
//! In: a [`Question`]. Out: an [`Answer`] with the server's own count of prompt tokens, or why there is none.
//! Never: more than [`TRIES`] tries or the given time for one question; an answer read without a bound.
//! Answers are streamed: only so is the time to the first token known.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;

use super::Thinking;

/// Tries for one question that is refused or fails.
const TRIES: u32 = 30;

/// Tries for a question that fails by an error of the server or the connection, rather than being refused.
const FAILED_TRIES: u32 = 3;

/// A server that does not say when to come back is asked again after this.
const DEFAULT_WAIT: Duration = Duration::from_secs(1);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Largest answer that is read; a model that does not stop is cut by `max_tokens` far below.
const ANSWER_BYTES: u64 = 16 << 20;

/// So much of an error's body is shown.
const ERROR_CHARACTERS: usize = 300;

#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("--url: `{0}` is not an address: expected http://host:port or https://host")]
    Url(String),
    #[error("{url} cannot be asked: {cause}")]
    Unreachable { url: String, cause: String },
    #[error("{url} answered {status}: {message}")]
    Status { url: String, status: u16, message: String },
    #[error("{url} answered something else than expected: {what}")]
    Unexpected { url: String, what: String },
    #[error("{url} gave no answer in {tries} tries and {seconds} s; the last time: {cause}")]
    GaveUp { url: String, tries: u32, seconds: u64, cause: String },
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Question<'a> {
    pub(super) model: &'a str,
    pub(super) prompt: &'a str,
    pub(super) max_tokens: u32,
    pub(super) thinking: Thinking,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) content: String,
    pub(super) prompt_tokens: u64,
    pub(super) first_token: Duration,
}

#[derive(Debug)]
pub(super) struct Client {
    agent: ureq::Agent,
    /// Ends with `/v1`.
    base: String,
    authorization: Option<String>,
    timeout: Duration,
}

/// One try that brought no answer.
enum Failure {
    /// Come back after this; the server is busy.
    Refused {
        wait: Duration,
        cause: String,
    },
    /// The server or the connection failed.
    Failed {
        cause: String,
    },
    Final(ClientError),
}

impl Client {
    pub(super) fn new(url: &str, key: Option<&str>, timeout: Duration) -> Result<Self, ClientError> {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(timeout))
            .user_agent(concat!("fathom/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self {
            agent: config.new_agent(),
            base: base_of(url)?,
            authorization: key.map(|key| format!("Bearer {key}")),
            timeout,
        })
    }

    pub(super) fn base(&self) -> &str {
        &self.base
    }

    pub(super) fn first_model(&self) -> Result<String, ClientError> {
        let url = format!("{}/models", self.base);
        let mut request = self.agent.get(&url);
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let response = request.call().map_err(|error| not_reached(&url, &error))?;
        let (head, body) = response.into_parts();
        let text = read_text(body).map_err(|cause| ClientError::Unreachable { url: url.clone(), cause })?;
        if !head.status.is_success() {
            return Err(status_error(&url, head.status.as_u16(), &text));
        }
        let models: Models = serde_json::from_str(&text).map_err(|error| ClientError::Unexpected {
            url: url.clone(),
            what: format!("no list of models ({error})"),
        })?;
        let first = models.data.into_iter().next().map(|model| model.id);
        first.ok_or(ClientError::Unexpected { url, what: "an empty list of models".to_owned() })
    }

    /// Asks until there is an answer, the tries are used up, or the time is over.
    pub(super) fn ask(&self, question: &Question<'_>) -> Result<Answer, ClientError> {
        let started = Instant::now();
        let (mut tries, mut failed) = (0, 0);
        loop {
            tries += 1;
            let (wait, cause) = match self.try_once(question) {
                Ok(answer) => return Ok(answer),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Refused { wait, cause }) => (wait, cause),
                Err(Failure::Failed { cause }) => {
                    failed += 1;
                    (DEFAULT_WAIT, cause)
                }
            };
            let over = tries >= TRIES || failed >= FAILED_TRIES || started.elapsed() + wait > self.timeout;
            if over {
                let seconds = started.elapsed().as_secs();
                return Err(ClientError::GaveUp { url: self.base.clone(), tries, seconds, cause });
            }
            std::thread::sleep(wait);
        }
    }

    fn try_once(&self, question: &Question<'_>) -> Result<Answer, Failure> {
        let url = format!("{}/chat/completions", self.base);
        let mut request = self.agent.post(&url).header("content-type", "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let sent = Instant::now();
        let response =
            request.send(body_of(question)).map_err(|error| Failure::Failed { cause: error.to_string() })?;
        let (head, body) = response.into_parts();
        let status = head.status.as_u16();
        if !head.status.is_success() {
            let text = read_text(body).unwrap_or_default();
            return Err(refusal(&url, status, &head.headers, &text));
        }
        let stream = BufReader::new(body.into_with_config().limit(ANSWER_BYTES).reader());
        read_events(stream, sent).map_err(|error| match error {
            StreamError::Broken(cause) => Failure::Failed { cause },
            StreamError::Unexpected(what) => Failure::Final(ClientError::Unexpected { url, what }),
        })
    }
}

fn base_of(url: &str) -> Result<String, ClientError> {
    let trimmed = url.trim_end_matches('/');
    let parsed: Option<ureq::http::Uri> = trimmed.parse().ok();
    let usable = parsed.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some_and(|host| !host.is_empty())
            && uri.query().is_none()
    });
    if !usable {
        return Err(ClientError::Url(url.to_owned()));
    }
    Ok(if trimmed.ends_with("/v1") { trimmed.to_owned() } else { format!("{trimmed}/v1") })
}

fn body_of(question: &Question<'_>) -> String {
    let mut body = json!({
        "model": question.model,
        "messages": [{"role": "user", "content": question.prompt}],
        "temperature": 0,
        "max_tokens": question.max_tokens,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    match question.thinking {
        Thinking::On => body["thinking"] = json!({"type": "enabled"}),
        Thinking::Off => body["thinking"] = json!({"type": "disabled"}),
        Thinking::Default => {}
    }
    body.to_string()
}

fn not_reached(url: &str, error: &ureq::Error) -> ClientError {
    ClientError::Unreachable { url: url.to_owned(), cause: error.to_string() }
}

fn read_text(body: ureq::Body) -> Result<String, String> {
    body.into_with_config()
        .limit(ANSWER_BYTES)
        .lossy_utf8(true)
        .read_to_string()
        .map_err(|error| error.to_string())
}

fn refusal(url: &str, status: u16, headers: &ureq::http::HeaderMap, text: &str) -> Failure {
    let error = status_error(url, status, text);
    match status {
        429 | 503 => Failure::Refused { wait: wait_of(headers), cause: error.to_string() },
        500.. => Failure::Failed { cause: error.to_string() },
        _ => Failure::Final(error),
    }
}

fn status_error(url: &str, status: u16, text: &str) -> ClientError {
    let body: Option<ErrorBody> = serde_json::from_str(text).ok();
    let message = body.map_or_else(|| text.trim().to_owned(), |body| body.error.message);
    let message = message.chars().take(ERROR_CHARACTERS).collect();
    ClientError::Status { url: url.to_owned(), status, message }
}

/// `retry-after-ms`, or `Retry-After` in seconds; a date is not worth a parser here.
fn wait_of(headers: &ureq::http::HeaderMap) -> Duration {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms").map(|ms| ms / 1000.0).or_else(|| number("retry-after"));
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(DEFAULT_WAIT)
}

#[derive(Debug)]
enum StreamError {
    /// It ended before its end.
    Broken(String),
    Unexpected(String),
}

/// Reads the events of one answer.
fn read_events(stream: impl BufRead, sent: Instant) -> Result<Answer, StreamError> {
    let mut content = String::new();
    let (mut prompt_tokens, mut first_token) = (None, None);
    let mut lines = stream.take(ANSWER_BYTES).lines();
    loop {
        let line = lines
            .next()
            .ok_or_else(|| StreamError::Broken("the answer ended before its end marker".to_owned()))?
            .map_err(|error| StreamError::Broken(format!("the answer broke off: {error}")))?;
        let Some(data) = line.strip_prefix("data:") else { continue };
        let data = data.trim();
        if data == "[DONE]" {
            break;
        }
        let chunk: Chunk = serde_json::from_str(data)
            .map_err(|error| StreamError::Unexpected(format!("an event that is no chunk ({error})")))?;
        if let Some(error) = chunk.error {
            return Err(StreamError::Broken(error.message));
        }
        prompt_tokens = chunk.usage.map(|usage| usage.prompt_tokens).or(prompt_tokens);
        for delta in chunk.choices.unwrap_or_default().into_iter().map(|choice| choice.delta) {
            let text = delta.content.unwrap_or_default();
            let thought = delta.reasoning_content.or(delta.reasoning).unwrap_or_default();
            if !(text.is_empty() && thought.is_empty()) {
                first_token.get_or_insert_with(|| sent.elapsed());
            }
            content.push_str(&text);
        }
    }
    let prompt_tokens = prompt_tokens.ok_or_else(|| {
        StreamError::Unexpected("no usage.prompt_tokens, by which lengths are measured".to_owned())
    })?;
    Ok(Answer { content, prompt_tokens, first_token: first_token.unwrap_or_else(|| sent.elapsed()) })
}

#[derive(Debug, Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Debug, Deserialize)]
struct Model {
    id: String,
}

#[derive(Debug, Deserialize)]
struct Chunk {
    choices: Option<Vec<Choice>>,
    usage: Option<Usage>,
    error: Option<ErrorMessage>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
}

#[derive(Debug, Default, Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Usage {
    prompt_tokens: u64,
}

#[derive(Debug, Deserialize)]
struct ErrorBody {
    error: ErrorMessage,
}

#[derive(Debug, Deserialize)]
struct ErrorMessage {
    message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Answer, StreamError> {
        read_events(text.as_bytes(), Instant::now())
    }

    #[test]
    fn a_base_gets_v1_once_and_nonsense_is_refused() {
        for url in ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"] {
            assert_eq!(base_of(url).unwrap(), "http://h:1/v1");
        }
        assert_eq!(base_of("https://h/api").unwrap(), "https://h/api/v1");
        for url in ["", "h:1", "127.0.0.1:8000", "ftp://h", "http://", "http://h?x=1", "http://a b"] {
            assert!(base_of(url).is_err(), "{url}");
        }
    }

    #[test]
    fn content_usage_and_comments_are_told_apart() {
        let text = ": ping\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"usage\":null}\n\n\
                    data:{\"choices\":[{\"delta\":{\"content\":\"48\"}}]}\r\n\r\n\
                    data: {\"choices\":[{\"delta\":{\"content\":\"21\"},\"finish_reason\":\"stop\"}]}\n\n\
                    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":77}}\n\ndata: [DONE]\n\n";
        let answer = read(text).unwrap();
        assert_eq!((answer.content.as_str(), answer.prompt_tokens), ("4821", 77));
    }

    #[test]
    fn a_cut_or_failed_stream_is_no_answer() {
        let start =
            "data: {\"choices\":[{\"delta\":{\"content\":\"4821\"}}],\"usage\":{\"prompt_tokens\":7}}\n\n";
        assert!(matches!(read(start), Err(StreamError::Broken(_))));
        let failed = format!("{start}data: {{\"error\":{{\"message\":\"gone\",\"code\":502}}}}\n\n");
        assert!(matches!(read(&failed), Err(StreamError::Broken(cause)) if cause == "gone"));
        assert!(matches!(read("data: {\"choices\":[]}\n\ndata: [DONE]\n"), Err(StreamError::Unexpected(_))));
        assert!(matches!(read("data: nonsense\n"), Err(StreamError::Unexpected(_))));
    }

    #[test]
    fn the_wait_is_what_the_server_says() {
        let wait = |pairs: &[(&'static str, &str)]| {
            let pairs = pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            wait_of(&pairs.collect())
        };
        assert_eq!(wait(&[("retry-after", "3"), ("retry-after-ms", "2500")]), Duration::from_millis(2500));
        assert_eq!(wait(&[("retry-after", "3")]), Duration::from_secs(3));
        for nonsense in ["-1", "NaN", "inf", "1e300", "Wed, 21 Oct 2026 07:28:00 GMT"] {
            assert_eq!(wait(&[("retry-after", nonsense)]), DEFAULT_WAIT, "{nonsense}");
        }
    }
}
