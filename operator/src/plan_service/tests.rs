use std::path::Path;

use axum::http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use operator_plan::{Mode, PlanInput};
use operator_render::DesiredReplica;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;

fn pod(name: &str, revision: &str) -> Pod {
    let pod = json!({
        "metadata": {
            "name": name, "uid": name, "labels": {"fathom.dev/role": "decode", "fathom.dev/revision": revision},
        },
    });
    serde_json::from_value(pod).unwrap()
}

fn desired(pods: &[(&str, &str, &str)]) -> Desired {
    let replica = |(replica, name, revision): &(&str, &str, &str)| DesiredReplica {
        replica: (*replica).to_owned(),
        config: k8s_openapi::api::core::v1::ConfigMap::default(),
        claim: None,
        pod: pod(name, revision),
    };
    Desired {
        revision: k8s_openapi::api::apps::v1::ControllerRevision::default(),
        replicas: pods.iter().map(replica).collect(),
        services: Vec::new(),
        router_config: None,
        router: None,
        disruption_budget: None,
        network_policies: Vec::new(),
        service_account: None,
        role: None,
        role_binding: None,
    }
}

fn live(pods: &[(&str, &str)]) -> Live {
    Live {
        pods: pods.iter().map(|(name, revision)| Arc::new(pod(name, revision).into())).collect(),
        ..Live::default()
    }
}

#[test]
fn pods_are_kept_by_name_and_replaced_by_replica() {
    let desired = desired(&[
        ("f-prefill-0", "f-prefill-0-aaaaa", "r2"),
        ("f-decode-0", "f-decode-0-bbbbb", "r2"),
        ("f-decode-1", "f-decode-1-ccccc", "r2"),
    ]);
    let live = live(&[("f-prefill-0-aaaaa", "r2"), ("f-decode-0-old00", "r1"), ("f-decode-2-ddddd", "r1")]);
    let changes = changes(&desired, &live);
    assert_eq!(changes.kept, ["f-prefill-0-aaaaa"]);
    assert_eq!(changes.created, ["f-decode-1-ccccc"]);
    assert_eq!(changes.removed, ["f-decode-2-ddddd"]);
    let [replaced] = changes.replaced.as_slice() else { panic!("{changes:?}") };
    assert_eq!((replaced.pod.as_str(), replaced.by.as_str()), ("f-decode-0-old00", "f-decode-0-bbbbb"));
    assert_eq!(replaced.because, "the revision changes from r1 to r2");
}

/// Plans on the story's machine.
struct Story;

impl Planner for Story {
    fn preview(&self, object: InferenceCluster) -> Result<Preview, Refused> {
        if object.spec.model.name == "unknown" {
            return Err(Refused { reason: Reason::UnknownShape, message: "no such shape".to_owned() });
        }
        let planned = operator_plan::plan(&PlanInput {
            name: object.name(),
            spec: &object.spec,
            shape: &engine_spec::NamedShape::V4Flash.shape(),
            nodes: &[fathom_node_agent::scene::facts("story").unwrap()],
            weight_bytes: None,
            image: None,
            surroundings: &operator_plan::NO_SURROUNDINGS,
        });
        let enforcement = Enforcement {
            mode: Mode::Unmanaged,
            because: "a test".to_owned(),
            bind_memory: false,
            memory_because: "a test".to_owned(),
        };
        Ok(Preview { planned, enforcement: Ok(enforcement), desired: None, live: Live::default() })
    }
}

async fn ask(body: String) -> (StatusCode, Value) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, router(Arc::new(Story))).await.unwrap() });
    let request = Request::post(format!("http://{address}/plan")).body(Full::new(Bytes::from(body))).unwrap();
    let response = Client::builder(TokioExecutor::new()).build_http().request(request).await.unwrap();
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

fn story() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/examples/story.yaml");
    let cluster = fathom_crds::read(&std::fs::read_to_string(path).unwrap()).unwrap();
    serde_json::to_value(cluster).unwrap()
}

#[tokio::test]
async fn an_object_gets_its_plan_and_nothing_is_stored() {
    let (status, answer) = ask(story().to_string()).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let answer: PlanAnswer = serde_json::from_value(answer).unwrap();
    assert_eq!(answer.planned.plan.replicas.len(), 2);
    assert_eq!(answer.enforcement.unwrap().mode, Mode::Unmanaged);
}

#[tokio::test]
async fn what_cannot_be_planned_is_refused_with_the_reason() {
    let (status, answer) = ask("{".to_owned()).await;
    assert_eq!((status, &answer["error"]["reason"]), (StatusCode::BAD_REQUEST, &json!("DecodeFailed")));
    let mut object = story();
    object["spec"]["model"]["name"] = json!("unknown");
    let (status, answer) = ask(object.to_string()).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(answer["error"]["reason"], "UnknownShape");
    object["metadata"]["name"] = json!("Not_a_name");
    let (_, answer) = ask(object.to_string()).await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("metadata.name"), "{answer}");
}

#[tokio::test]
async fn a_body_that_is_too_large_is_not_read() {
    let (status, _) = ask(" ".repeat(MAX_BODY_BYTES + 1)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
}
