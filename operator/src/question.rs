//! The question that makes an object Ready: one chat request of one token through its Service.
//! In: the address of the Service, who is ready. Out: [`Answer`]. Never: periodic; only when who could answer changed, or
//! the last try failed.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use fathom_crds::InferenceCluster;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::live::Live;
use crate::live::child::{ClusterIp, find};
use crate::live::pod::{LivePod, ROUTER};
use crate::status::Effect;

/// An answer of one token is some hundred bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// What the router's Service listens on.
const SERVICE_PORT: u16 = 80;

/// One token takes milliseconds; a queue before it may take as long as an impatient client would wait.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// First pause after a failed question; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Longest pause between failed questions.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What came of one question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub ok: bool,
    /// For people: what came back, or why nothing did.
    pub message: String,
    /// The revision that was asked.
    pub revision: String,
    /// [`ready_set`] at that time.
    pub ready_set: String,
}

/// Where to ask, and as what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The Service's clusterIP and port 80.
    pub address: SocketAddr,
    /// `flash.team-a.svc`.
    pub host: String,
    /// Served model name.
    pub model: String,
    pub revision: String,
    pub ready_set: String,
    pub timeout: Duration,
}

/// The question that what is carried out can answer now; `None` while a role has no ready pod, or the Service no address.
pub fn question(cluster: &InferenceCluster, live: &Live, effect: &Effect<'_>) -> Option<Question> {
    let name = cluster.name();
    let plan = &effect.planned.plan;
    let ClusterIp(address) = find(&live.services, name)?.content;
    let address = SocketAddr::new(address?, SERVICE_PORT);
    let ready: Vec<&LivePod> = ready(live, &plan.revision).collect();
    let has = |role: &str| ready.iter().any(|pod| *pod.content.role == *role);
    let roles = plan.replicas.iter().map(|replica| replica.role.to_string());
    let all_there = roles.chain([ROUTER.to_owned()]).all(|role| has(&role));
    let can_answer = !plan.replicas.is_empty() && all_there;
    can_answer.then(|| Question {
        address,
        host: format!("{name}.{}.svc", cluster.metadata.namespace.as_deref().unwrap_or_default()),
        model: effect.spec.model.name.clone(),
        revision: plan.revision.clone(),
        ready_set: ready_set(live, &plan.revision),
        timeout: TIMEOUT,
    })
}

/// Whether a question adds something: nobody has answered it yet, or the last try failed and `since` is long enough ago.
pub fn is_due(question: &Question, last: Option<&Answer>, failures: u32, since: Duration) -> bool {
    match last {
        Some(last) if last.revision == question.revision && last.ready_set == question.ready_set => {
            !last.ok && since >= pause(failures)
        }
        _ => true,
    }
}

/// How long to wait after so many failed questions about the same pods.
pub fn pause(failures: u32) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1).min(16)));
    doubled.min(LONGEST_PAUSE)
}

/// A short hash over the ready engine pods of a revision and the ready router pods: who could answer. A pod whose
/// container was restarted counts as another.
pub fn ready_set(live: &Live, revision: &str) -> String {
    let mut names: Vec<String> =
        ready(live, revision).map(|pod| format!("{} {}", pod.uid, pod.restarts())).collect();
    names.sort_unstable();
    let digest = Sha256::digest(names.join("\n"));
    digest.iter().take(5).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn ready<'a>(live: &'a Live, revision: &'a str) -> impl Iterator<Item = &'a LivePod> {
    let belongs = move |pod: &&LivePod| pod.is_router() || *pod.content.revision == *revision;
    live.staying().filter(|pod| pod.is_ready()).filter(belongs)
}

/// Asks, and says what came of it. Gives up after the question's timeout.
pub async fn ask(question: &Question) -> Answer {
    let (ok, message) = match tokio::time::timeout(question.timeout, request(question)).await {
        Ok(Ok(message)) => (true, message),
        Ok(Err(message)) => (false, message),
        Err(_) => (false, format!("no answer within {} s", question.timeout.as_secs())),
    };
    Answer { ok, message, revision: question.revision.clone(), ready_set: question.ready_set.clone() }
}

async fn request(question: &Question) -> Result<String, String> {
    let body = json!({
        "model": question.model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 1,
        "temperature": 0,
    });
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("http://{}/v1/chat/completions", question.address))
        .header(header::HOST, &question.host)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body.to_string())))
        .map_err(|error| format!("cannot make the question: {error}"))?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let asked = client.request(request).await;
    let response =
        asked.map_err(|error| format!("{} cannot be reached: {}", question.address, cause(&error)))?;
    let status = response.status();
    let read = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
    let body = read.map_err(|error| format!("the answer broke off: {error}"))?.to_bytes();
    judge(status, &body)
}

/// An answer counts when it has a choice: what it says is the model's business.
fn judge(status: StatusCode, body: &[u8]) -> Result<String, String> {
    let said: Value = serde_json::from_slice(body).unwrap_or_default();
    if status == StatusCode::OK && said["choices"][0].is_object() {
        return Ok("answered".to_owned());
    }
    let message = said["error"]["message"].as_str().map(str::to_owned);
    let message =
        message.unwrap_or_else(|| String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned());
    Err(format!("{status}: {}", message.trim()))
}

/// The innermost error says what happened: `Connection refused`.
fn cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests;
