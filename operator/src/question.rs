//! The question that makes an object Ready: one chat request of one token through its Service.
//! In: the address of the Service, who is ready. Out: [`Answer`]. Never: periodic; only when who could answer changed.

use std::net::SocketAddr;
use std::time::Duration;

use crate::live::Live;

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

/// A short hash over the ready engine pods of a revision and the ready router pods: who could answer.
pub fn ready_set(live: &Live, revision: &str) -> String {
    let _ = (live, revision);
    String::new()
}

/// Asks.
pub async fn ask(question: &Question) -> Answer {
    Answer {
        ok: false,
        message: "nobody asks yet".to_owned(),
        revision: question.revision.clone(),
        ready_set: question.ready_set.clone(),
    }
}
