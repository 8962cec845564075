//! Needle questions through router, decode and prefill: a wrong page, state or selection shows as a wrong answer.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use e2e::client;
use e2e::cluster::Cluster;
use e2e::needle::{Row, rows};
use serde_json::{Value, json};

/// Rows that the model itself gets wrong in an independent f32 forward (engine/testdata/needle/README.md).
const KNOWN_MISSES: [&str; 2] = ["131", "222"];
/// Further misses that rounding may cause.
const ALLOWED_MISSES: usize = 2;
const CLIENTS: usize = 4;

#[test]
fn all_230_rows_are_answered_with_the_default_index_keys() {
    check(&ask(|_| {}, rows().unwrap()));
}

#[test]
fn rows_up_to_5000_tokens_are_answered_with_fp8_index_keys() {
    check(&ask(|spec| spec["model"]["indexer"]["keyFormat"] = json!("fp8"), short_rows()));
}

#[test]
fn rows_up_to_5000_tokens_are_answered_with_bf16_index_keys() {
    check(&ask(|spec| spec["model"]["indexer"]["keyFormat"] = json!("bf16"), short_rows()));
}

#[test]
#[ignore = "several minutes: ./dev eval runs it"]
fn every_row_is_answered_with_every_index_key_format() {
    for format in ["bf16", "fp8", "fp4"] {
        println!("index keys {format}");
        check(&ask(|spec| spec["model"]["indexer"]["keyFormat"] = json!(format), rows().unwrap()));
    }
}

fn short_rows() -> Vec<Row> {
    rows().unwrap().into_iter().filter(|row| row.prompt_tokens <= 5000).collect()
}

/// Rows with what came back where it was not the right answer.
struct Outcome {
    asked: usize,
    misses: Vec<(Row, String)>,
}

/// Asks every row once, a few at a time, on a cluster that refuses none.
fn ask(edit: impl FnOnce(&mut Value), rows: Vec<Row>) -> Outcome {
    let cluster = Cluster::start(|spec| {
        spec["admission"] = json!({"timeToFirstToken": "600s"});
        edit(spec);
    })
    .unwrap();
    let next = AtomicUsize::new(0);
    let misses = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let answer = client::content(&cluster.endpoint, &row.body());
                    let answer = answer.unwrap_or_else(|error| format!("{error:#}"));
                    if answer != row.expected {
                        misses.lock().unwrap().push((row.clone(), answer));
                    }
                }
            });
        }
    });
    Outcome { asked: rows.len(), misses: misses.into_inner().unwrap() }
}

fn check(outcome: &Outcome) {
    println!("{} of {} right", outcome.asked - outcome.misses.len(), outcome.asked);
    for (row, answer) in &outcome.misses {
        println!(
            "  {} {} ({} tokens): {answer:?}, right: {:?}",
            row.id, row.kind, row.prompt_tokens, row.expected
        );
    }
    let new = outcome.misses.iter().filter(|(row, _)| !KNOWN_MISSES.contains(&row.id.as_str())).count();
    assert!(
        new <= ALLOWED_MISSES,
        "{new} misses beyond {KNOWN_MISSES:?}; at most {ALLOWED_MISSES} are allowed"
    );
}
