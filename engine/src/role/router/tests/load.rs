//! Admission, back-pressure, and many streams at once.

use super::client::Connection;
use super::mock::{End, Script};
use super::*;

fn none(_: &mut EngineConfig) {}

#[tokio::test]
async fn a_full_backlog_is_429_with_the_time_to_come_back_and_opens_again() {
    let bench = Bench::start(1, |config| {
        config.admission.queue_limit_tokens = Some(1000);
        config.admission.prefill_tokens_per_second = Some(100.0);
    })
    .await;
    bench.decode().does(Script::Silence);
    let body = "x".repeat(3600);
    let mut first = Connection::open(bench.address).await;
    first.send_chat(&body).await;
    eventually(|| async { bench.decode().count() == 1 }).await;

    let refused = bench.chat(&body).await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("8")));
    assert_eq!(refused.header("retry-after-ms"), Some("8000"));
    assert_eq!(refused.json()["error"]["code"], "queue_full");
    assert_eq!(bench.decode().count(), 1, "a refused request must not reach the decode");
    assert!(bench.metric("fathom_requests_total{outcome=\"refused\"} 1").await);

    drop(first);
    bench.settles().await;
    bench.decode().answers(mock::json_answer("{}"));
    assert_eq!(bench.chat(&body).await.status, 200);
}

#[tokio::test]
async fn the_first_piece_of_a_stream_gives_its_backlog_back() {
    let bench = Bench::start(1, |config| config.admission.queue_limit_tokens = Some(1000)).await;
    bench.decode().streams(&["data: 1\n\n"], End::WhenReleased);
    let body = "x".repeat(3600);
    for _ in 0..5 {
        let mut connection = Connection::open(bench.address).await;
        connection.send_chat(&body).await;
        connection.read_head().await;
        connection.read_chunks(|body| body.ends_with(b"\n\n")).await;
        assert_eq!(bench.info().await["admission"]["backlogTokens"], 0);
    }
    bench.settles().await;
}

#[tokio::test]
async fn without_a_figure_the_decodes_limits_add_up_and_their_own_backlog_counts() {
    let bench = Bench::start(2, none).await;
    for decode in &bench.decodes {
        decode.reports(&serde_json::json!({
            "limitTokens": 500, "backlogTokens": 0, "prefillTokensPerSecond": 50.0,
        }));
        decode.does(Script::Silence);
    }
    eventually(|| async { bench.info().await["admission"]["limitTokens"] == 1000 }).await;
    assert_eq!(bench.info().await["admission"]["prefillTokensPerSecond"], 100.0);

    // An answer that is not streamed: its prompt may have been computed, and the decode says so at the next poll.
    let mut first = Connection::open(bench.address).await;
    first.send_chat(&"x".repeat(4000)).await;
    eventually(|| async { bench.decodes.iter().any(|decode| decode.count() == 1) }).await;
    eventually(|| async { bench.info().await["admission"]["backlogTokens"] == 0 }).await;
    assert_eq!(bench.info().await["running"], 1);
    drop(first);
    bench.settles().await;
}

#[tokio::test]
async fn waiting_requests_are_bounded_by_number_too() {
    let bench = Bench::start(1, |config| config.admission.max_queued_requests = 3).await;
    bench.decode().does(Script::Silence);
    let mut held = Vec::new();
    for count in 1..=3 {
        let mut connection = Connection::open(bench.address).await;
        connection.send_chat("{}").await;
        held.push(connection);
        eventually(|| async { bench.decode().count() == count }).await;
    }
    assert_eq!(bench.chat("{}").await.status, 429);
    drop(held);
    bench.settles().await;
}

/// S71
#[tokio::test]
async fn a_client_that_does_not_read_holds_the_decode_back() {
    const TOTAL: u64 = 1 << 30;
    const BOUND: u64 = 48 << 20;
    let bench = Bench::start(1, none).await;
    bench.decode().does(Script::Flood(TOTAL));
    let mut connection = Connection::open_narrow(bench.address).await;
    connection.send_chat("{}").await;
    // Standing still means: no byte more between two looks, after the first.
    let mut last = 0;
    eventually(|| {
        let written = bench.decode().written();
        let still = written > 0 && written == last;
        last = written;
        async move {
            tokio::time::sleep(Duration::from_millis(200)).await;
            still
        }
    })
    .await;
    assert!(bench.decode().written() < BOUND, "{} bytes were taken", bench.decode().written());
    drop(connection);
    eventually(|| async { bench.decode().left() == 1 }).await;
    bench.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_streams_run_at_once_within_bounded_memory_and_leave_nothing() {
    const STREAMS: usize = 2000;
    const BOUND_KIB: u64 = 300 << 10;
    crate::binding::raise_file_limit();
    let bench = Bench::start(2, |config| config.admission.max_queued_requests = 4000).await;
    bench.decodes.iter().for_each(|decode| decode.streams(&["data: 1\n\n"], End::WhenReleased));
    let before = resident_kib();
    let mut open = Vec::new();
    for _ in 0..STREAMS {
        let mut connection = Connection::open(bench.address).await;
        connection.send_chat("{}").await;
        open.push(connection);
    }
    for connection in &mut open {
        connection.read_head().await;
        connection.read_chunks(|body| body.ends_with(b"\n\n")).await;
    }
    assert!(bench.metric("fathom_requests_running 2000").await);
    // Mocks and clients live in this process too.
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < BOUND_KIB, "{grown} KiB for {STREAMS} streams");
    let counts: Vec<usize> = bench.decodes.iter().map(Mock::count).collect();
    assert_eq!(counts, [STREAMS / 2, STREAMS / 2], "load is spread");
    bench.decodes.iter().for_each(|decode| decode.release(STREAMS));
    for connection in &mut open {
        assert!(connection.read_chunks(|_| false).await.1);
    }
    bench.settles().await;
    assert!(bench.metric("fathom_requests_total{outcome=\"ok\"} 2000").await);
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
