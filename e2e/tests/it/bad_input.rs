//! What must be refused, with a sentence, and disturb nothing.

use std::process::Output;

use e2e::client::{self, Reply, StreamEnd};
use e2e::cluster::{Cluster, fathom, needle_object, root};
use e2e::needle::rows;
use serde_json::{Value, json};

#[test]
fn bad_bodies_get_4xx_and_the_next_request_is_answered() {
    let cluster = Cluster::start(|_| {}).unwrap();
    let row = &rows().unwrap()[0];
    let with = |field: &str, value: Value| {
        let mut body = row.body();
        body[field] = value;
        body.to_string().into_bytes()
    };
    let cases: Vec<(&str, Vec<u8>, u16, &str)> = vec![
        ("an empty body", Vec::new(), 400, ""),
        ("null", b"null".to_vec(), 400, ""),
        ("a number", b"42".to_vec(), 400, ""),
        ("cut JSON", br#"{"model": "needle", "messages": ["#.to_vec(), 400, ""),
        (
            "invalid UTF-8",
            b"{\"model\": \"needle\", \"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}"
                .to_vec(),
            400,
            "",
        ),
        ("deep nesting", [vec![b'['; 100_000], vec![b']'; 100_000]].concat(), 400, ""),
        ("messages of a wrong type", with("messages", json!("hello")), 400, "messages"),
        ("no messages", with("messages", json!([])), 400, "messages"),
        ("an unknown role", with("messages", json!([{"role": "wizard", "content": "x"}])), 400, ""),
        ("a negative temperature", with("temperature", json!(-0.1)), 400, "temperature"),
        ("a temperature of a wrong type", with("temperature", json!("hot")), 400, "temperature"),
        ("top_p above 1", with("top_p", json!(1.5)), 400, "top_p"),
        ("zero max_tokens", with("max_tokens", json!(0)), 400, "max_tokens"),
        ("an unknown model", with("model", json!("gpt-4")), 404, "gpt-4"),
        ("a stop of null", with("stop", json!([null])), 400, "stop"),
    ];
    for (what, body, status, named) in cases {
        let reply = client::chat(&cluster.endpoint, &body).unwrap_or_else(|e| panic!("{what}: {e:#}"));
        check_error(what, &reply, status, named);
        assert_eq!(client::content(&cluster.endpoint, &row.body()).unwrap(), row.expected, "after {what}");
    }
}

#[test]
fn a_prompt_over_the_context_is_refused_with_both_counts() {
    let cluster = Cluster::start(|spec| spec["model"]["contextTokens"] = json!(1024)).unwrap();
    let row = rows().unwrap().into_iter().find(|row| row.prompt_tokens > 4000).unwrap();
    let reply = client::chat(&cluster.endpoint, row.body().to_string().as_bytes()).unwrap();
    check_error("a long prompt", &reply, 400, "1024");
    assert_eq!(reply.body["error"]["code"], "context_length_exceeded");
    assert!(reply.body.to_string().contains(&row.prompt_tokens.to_string()), "{}", reply.body);
    match client::stream(&cluster.endpoint, &row.body(), |_| true).unwrap() {
        StreamEnd::Refused { status: 400, body } => assert!(body.contains("1024"), "{body}"),
        end => panic!("streamed: {end:?}"),
    }
}

#[test]
fn a_body_beyond_the_limit_is_refused() {
    let cluster = Cluster::start(|_| {}).unwrap();
    let body = client::greedy(&json!([{"role": "user", "content": "x".repeat(20 << 20)}]));
    // The server may answer before it has read everything, or close; either way it goes on serving.
    if let Ok(reply) = client::chat(&cluster.endpoint, body.to_string().as_bytes()) {
        check_error("20 MiB", &reply, 413, "");
    }
    let row = &rows().unwrap()[0];
    assert_eq!(client::content(&cluster.endpoint, &row.body()).unwrap(), row.expected);
}

fn check_error(what: &str, reply: &Reply, status: u16, named: &str) {
    assert_eq!(reply.status, status, "{what}: {}", reply.body);
    let message = reply.body["error"]["message"].as_str().unwrap_or_default();
    assert!(!message.is_empty() && message.contains(named), "{what}: {}", reply.body);
}

#[test]
fn a_typo_is_named_with_line_and_column() {
    let example = std::fs::read_to_string(root().join("crds/examples/needle-local.yaml")).unwrap();
    let output = up_text(&example.replace("contextTokens", "contextTokenz"));
    let line = example.lines().position(|l| l.contains("contextTokens")).unwrap() + 1;
    check_refusal(&output, &["contextTokenz", &format!("line {line}")]);
}

#[test]
fn gpus_that_do_not_exist_are_reported_by_the_plan() {
    let output = up(|spec| spec["prefill"]["gpus"] = json!(2));
    assert_ne!(output.status.code(), Some(0));
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("0 of 2 GPUs free"), "{text}");
}

#[test]
fn a_folder_without_a_checkpoint_is_refused() {
    let empty = tempfile::tempdir().unwrap();
    let path = empty.path().to_string_lossy().into_owned();
    let output = up(|spec| spec["model"]["source"]["hostPath"] = json!(path));
    check_refusal(&output, &["config.json"]);
}

#[test]
fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("cluster.yaml");
    std::fs::write(&file, needle_object(|_| {}).unwrap().to_string()).unwrap();
    let output = fathom(
        state.path(),
        &["local", "up", "-f", &file.to_string_lossy(), "--listen", &address, "--detach"],
    )
    .unwrap();
    check_refusal(&output, &[&address]);
}

fn up(edit: impl FnOnce(&mut Value)) -> Output {
    up_text(&needle_object(edit).unwrap().to_string())
}

fn up_text(text: &str) -> Output {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("cluster.yaml");
    std::fs::write(&file, text).unwrap();
    fathom(
        state.path(),
        &["local", "up", "-f", &file.to_string_lossy(), "--listen", "127.0.0.1:0", "--detach"],
    )
    .unwrap()
}

/// Exit code 2 and one line on stderr that contains all of `parts`.
fn check_refusal(output: &Output, parts: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    let last = message.trim_end().lines().last().unwrap_or_default();
    for part in parts {
        assert!(message.contains(part), "{part:?} is missing in {message}");
    }
    assert!(last.starts_with("fathom: "), "{message}");
}
