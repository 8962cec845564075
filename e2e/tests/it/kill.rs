//! A killed process: the client is told within five seconds, the supervisor restarts it, the next request works.

use std::time::{Duration, Instant};

use e2e::client::{self, StreamEnd};
use e2e::cluster::Cluster;
use e2e::needle::{Row, rows};
use serde_json::json;

/// How long a client may be left without an answer or an error.
const VERDICT: Duration = Duration::from_secs(5);

#[test]
fn a_killed_prefill_gives_an_error_then_works_again() {
    for streamed in [false, true] {
        killed("prefill", streamed);
    }
}

#[test]
fn a_killed_decode_gives_an_error_then_works_again() {
    for streamed in [false, true] {
        killed("decode", streamed);
    }
}

/// A prompt of 24,000 tokens: its prefill takes far longer than it takes to kill a process.
fn long_row() -> Row {
    rows().unwrap().into_iter().max_by_key(|row| row.prompt_tokens).unwrap()
}

fn killed(role: &str, streamed: bool) {
    let cluster = Cluster::start(|spec| spec["admission"] = json!({"timeToFirstToken": "600s"})).unwrap();
    let endpoint = cluster.endpoint.clone();
    let row = long_row();
    let request = std::thread::spawn(move || verdict(&endpoint, &row, streamed));
    wait_for_backlog(&cluster);
    let process = cluster.kill(role).unwrap();
    let killed = Instant::now();
    let verdict = request.join().unwrap();
    assert!(
        killed.elapsed() < VERDICT,
        "{role}, streamed {streamed}: {verdict} after {:?}",
        killed.elapsed()
    );

    cluster.wait_restarted(role, process.restarts).unwrap();
    let short = &rows().unwrap()[0];
    assert_eq!(client::content(&cluster.endpoint, &short.body()).unwrap(), short.expected);
}

/// The request is being prefilled: the prefill says that prompt tokens wait or are computed.
fn wait_for_backlog(cluster: &Cluster) {
    e2e::wait_for("the request to reach prefill", Duration::from_secs(10), || {
        let backlog = cluster.metric("prefill", "fathom_admission_backlog_tokens").ok()??;
        (backlog > 0.0).then_some(())
    })
    .unwrap();
}

/// Sends the request and checks that what comes is a whole answer or a proper error.
fn verdict(endpoint: &str, row: &Row, streamed: bool) -> String {
    if !streamed {
        let reply = client::chat(endpoint, row.body().to_string().as_bytes()).unwrap();
        match reply.status {
            200 => assert_eq!(reply.body["choices"][0]["message"]["content"], json!(row.expected)),
            502 => assert!(reply.body["error"]["message"].is_string(), "{}", reply.body),
            status => panic!("status {status}: {}", reply.body),
        }
        return format!("status {}", reply.status);
    }
    let mut text = String::new();
    let end = client::stream(endpoint, &row.body(), |event| {
        text += event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        assert!(
            event["choices"][0]["finish_reason"].is_null() || text == row.expected,
            "a made-up end: {event}"
        );
        true
    })
    .unwrap();
    match &end {
        StreamEnd::Done => assert_eq!(text, row.expected),
        StreamEnd::Refused { status: 502, body } => assert!(body.contains("\"error\""), "{body}"),
        StreamEnd::Error { clean, .. } => {
            assert!(!clean, "an error event must be followed by a broken transport")
        }
        StreamEnd::Cut | StreamEnd::Refused { .. } => panic!("{end:?}"),
    }
    format!("{end:?}")
}
