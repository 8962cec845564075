use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use k8s_openapi::api::core::v1::Pod;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;

/// A pod as JSON says it.
fn pod(name: &str, role: &str, ready: bool, restarts: i32) -> Arc<LivePod> {
    let pod = json!({
        "metadata": {
            "name": name, "uid": format!("uid-{name}"),
            "labels": {"fathom.dev/role": role, "fathom.dev/revision": if role == "router" { "" } else { "r1" }},
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
            "containerStatuses": [{
                "name": "engine", "image": "i", "imageID": "i", "ready": ready, "restartCount": restarts,
            }],
        },
    });
    Arc::new(serde_json::from_value::<Pod>(pod).unwrap().into())
}

fn live(pods: &[Arc<LivePod>]) -> Live {
    Live { pods: pods.to_vec(), ..Live::default() }
}

#[test]
fn who_could_answer_changes_with_readiness_and_restarts_and_with_nothing_else() {
    let all = [pod("d", "decode", true, 0), pod("p", "prefill", true, 0), pod("r", "router", true, 0)];
    let set = ready_set(&live(&all), "r1");
    let [d, p, r] = all.clone();
    assert_eq!(set, ready_set(&live(&[r.clone(), p.clone(), d.clone()]), "r1"), "order says nothing");
    assert_ne!(set, ready_set(&live(&[d.clone(), p.clone(), pod("r", "router", false, 0)]), "r1"));
    assert_ne!(set, ready_set(&live(&[pod("d", "decode", true, 1), p.clone(), r.clone()]), "r1"));
    assert_eq!(
        set,
        ready_set(&live(&[d, p, r, pod("x", "decode", false, 0)]), "r1"),
        "a pod that is not ready answers nobody"
    );
    assert_ne!(set, ready_set(&live(&all), "r2"), "pods of another revision do not count");
}

#[test]
fn a_question_is_due_when_somebody_new_could_answer_or_a_pause_after_a_failure_is_over() {
    let question = asked_at("127.0.0.1:80".parse().unwrap());
    let answer = |ok: bool, ready_set: &str| Answer {
        ok,
        message: String::new(),
        revision: "r1".to_owned(),
        ready_set: ready_set.to_owned(),
    };
    let seconds = Duration::from_secs;
    assert!(is_due(&question, None, 0, seconds(0)));
    assert!(!is_due(&question, Some(&answer(true, "set")), 0, seconds(10_000)), "never periodic");
    assert!(is_due(&question, Some(&answer(true, "other")), 0, seconds(0)));
    assert!(!is_due(&question, Some(&answer(false, "set")), 1, Duration::from_millis(900)));
    assert!(is_due(&question, Some(&answer(false, "set")), 1, seconds(1)));
    assert!(!is_due(&question, Some(&answer(false, "set")), 4, seconds(7)));
    assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
}

fn asked_at(address: SocketAddr) -> Question {
    Question {
        address,
        host: "flash.team-a.svc".to_owned(),
        model: "needle".to_owned(),
        revision: "r1".to_owned(),
        ready_set: "set".to_owned(),
        timeout: Duration::from_secs(5),
    }
}

/// A server on this machine that answers everything alike; it ends with the value.
struct Answering {
    address: SocketAddr,
    /// Host and body of each question.
    seen: Seen,
    _tasks: JoinSet<()>,
}

type Seen = Arc<Mutex<Vec<(String, Value)>>>;

async fn router_that_says(status: u16, body: &'static str) -> Answering {
    let seen: Seen = Arc::default();
    let handler = move |State(seen): State<Seen>, headers: HeaderMap, asked: String| async move {
        let host = headers["host"].to_str().unwrap().to_owned();
        seen.lock().unwrap().push((host, serde_json::from_str(&asked).unwrap()));
        (StatusCode::from_u16(status).unwrap(), body)
    };
    let app = Router::new().route("/v1/chat/completions", post(handler)).with_state(Arc::clone(&seen));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, app).await.unwrap() });
    Answering { address, seen, _tasks: tasks }
}

#[tokio::test]
async fn one_token_is_asked_for_under_the_name_that_clients_use() {
    let router = router_that_says(200, r#"{"choices": [{"message": {"content": "a"}}]}"#).await;
    let answer = ask(&asked_at(router.address)).await;
    assert!(answer.ok, "{answer:?}");
    assert_eq!((answer.revision.as_str(), answer.ready_set.as_str()), ("r1", "set"));
    let seen = router.seen.lock().unwrap();
    let [(host, asked)] = seen.as_slice() else { panic!("asked {} times", seen.len()) };
    assert_eq!((host.as_str(), &asked["max_tokens"]), ("flash.team-a.svc", &json!(1)));
    assert_eq!(asked["model"], "needle");
}

/// A15: a router that has no engine yet is not routable, whoever is ready.
#[tokio::test]
async fn what_went_wrong_is_said_in_the_words_of_whoever_refused() {
    let router = router_that_says(503, r#"{"error": {"message": "no decode is ready"}}"#).await;
    let answer = ask(&asked_at(router.address)).await;
    assert!(!answer.ok);
    assert_eq!(answer.message, "503 Service Unavailable: no decode is ready");
    let stranger = router_that_says(200, "<html>welcome</html>").await;
    let answer = ask(&asked_at(stranger.address)).await;
    assert!(!answer.ok && answer.message.contains("welcome"), "{answer:?}");
}

#[tokio::test]
async fn nobody_there_and_nobody_answering_are_told_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let silent = Question { timeout: Duration::from_millis(50), ..asked_at(address) };
    let answer = ask(&silent).await;
    assert!(!answer.ok && answer.message.starts_with("no answer within"), "{answer:?}");
    drop(listener);
    let answer = ask(&asked_at(address)).await;
    assert!(!answer.ok && answer.message.contains("cannot be reached"), "{answer:?}");
}
