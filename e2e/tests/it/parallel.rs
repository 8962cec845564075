//! Many requests at once, half of them given up: the others are answered as if alone, and nothing stays occupied.

use std::collections::BTreeMap;
use std::time::Duration;

use e2e::client::{self, StreamEnd};
use e2e::cluster::Cluster;
use e2e::needle::{Row, rows};
use e2e::wait_for;
use serde_json::json;

const REQUESTS: usize = 64;

/// What must be zero when nothing runs, on prefill and on decode.
const OCCUPIED: [&str; 4] = [
    r#"fathom_kv_pages{pool="device",state="used"}"#,
    r#"fathom_request_slots{state="used"}"#,
    "fathom_admission_backlog_tokens",
    "fathom_requests_running",
];

#[test]
fn cancelled_requests_hurt_no_other_and_leave_nothing_behind() {
    let cluster = Cluster::start(|spec| spec["admission"] = json!({"timeToFirstToken": "600s"})).unwrap();
    let rows = mixed_rows();
    let alone: Vec<String> =
        rows.iter().map(|row| client::content(&cluster.endpoint, &row.body()).unwrap()).collect();

    let mut answers = BTreeMap::new();
    std::thread::scope(|scope| {
        let handles: Vec<_> = rows
            .iter()
            .enumerate()
            .map(|(i, row)| {
                let endpoint = &cluster.endpoint;
                (
                    i,
                    scope.spawn(
                        move || if i % 2 == 0 { finish(endpoint, row) } else { give_up(endpoint, row, i) },
                    ),
                )
            })
            .collect();
        for (i, handle) in handles {
            answers.insert(i, handle.join().unwrap());
        }
    });

    for (i, answer) in &answers {
        if i % 2 == 0 {
            assert_eq!(answer.as_deref(), Some(alone[*i].as_str()), "row {} in company", rows[*i].id);
        }
    }
    for role in ["prefill", "decode"] {
        for series in OCCUPIED {
            wait_for(&format!("{series} of {role} to be 0"), Duration::from_secs(10), || {
                let value = cluster.metric(role, series).unwrap();
                assert!(value.is_some(), "{role} does not export {series}");
                (value == Some(0.0)).then_some(())
            })
            .unwrap();
        }
    }
}

/// 64 rows from 187 to about 4,500 tokens, short and long ones mixed.
fn mixed_rows() -> Vec<Row> {
    let rows: Vec<Row> =
        rows().unwrap().into_iter().filter(|row| row.prompt_tokens < 5000 && !row.thinking).collect();
    (0..REQUESTS).map(|i| rows[(i * 37) % rows.len()].clone()).collect()
}

fn finish(endpoint: &str, row: &Row) -> Option<String> {
    Some(client::content(endpoint, &row.body()).unwrap())
}

/// Streams and closes the connection: some before anything comes, some after the first, second, ... event.
fn give_up(endpoint: &str, row: &Row, i: usize) -> Option<String> {
    if i % 4 == 1 {
        abandon(endpoint, row, Duration::from_millis(7 * i as u64));
        return None;
    }
    let mut seen = 0;
    let end = client::stream(endpoint, &row.body(), |_| {
        seen += 1;
        seen < 1 + i % 3
    });
    assert!(matches!(end, Ok(StreamEnd::Cut | StreamEnd::Done)), "{end:?}");
    None
}

/// Sends the request on a raw connection and closes it after `after`, whatever the server does then.
fn abandon(endpoint: &str, row: &Row, after: Duration) {
    use std::io::{Read, Write};
    let address = endpoint.trim_start_matches("http://");
    let body = row.body().to_string();
    let mut connection = std::net::TcpStream::connect(address).unwrap();
    write!(
        connection,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    connection.set_read_timeout(Some(after)).unwrap();
    // An answer that comes before is as good a moment to leave as the timeout.
    let _ = connection.read(&mut [0; 1]);
}
