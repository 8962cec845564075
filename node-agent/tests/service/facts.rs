use node_agent_proto::v1::watch_response::Event;
use node_agent_proto::v1::{GetRequest, Position, WatchRequest};
use node_facts::Reading;
use tonic::Code;

use crate::rig::{Authority, Rig, next, until, with_token};

#[tokio::test]
async fn the_operator_gets_the_facts_of_the_node_with_their_age() {
    let authority = Authority::new();
    let rig = Rig::start(&authority).await;
    let answer =
        rig.client(&authority).await.get(with_token(GetRequest {}, "good")).await.unwrap().into_inner();
    let facts = node_agent_proto::facts(answer.facts.unwrap());
    assert_eq!(facts.node, "n1", "the flag, not the scene's host name");
    let scene = fathom_node_agent::scene::facts("story").unwrap();
    assert_eq!((&facts.gpus, &facts.numa, &facts.links), (&scene.gpus, &scene.numa, &scene.links));
    let kubelet = facts.kubelet.value().unwrap();
    assert!(matches!(&kubelet.pods, Reading::Absent(reason) if reason.contains("no socket")), "{kubelet:?}");
    assert!(answer.observed.unwrap().age_ms < 30_000);
}

#[tokio::test]
async fn a_stream_tells_changes_and_resumes_where_it_was() {
    let authority = Authority::new();
    let rig = Rig::start(&authority).await;
    let mut stream = rig.watch(&authority).await;
    let first = next(&mut stream).await.unwrap();
    let Some(Event::Snapshot(snapshot)) = first.event else { panic!("expected a snapshot") };
    let mut facts = node_agent_proto::facts(snapshot);
    drop(stream);

    rig.edit_nvml(|_| "devices: []\n".into());
    let gone = || async {
        let mut client = rig.client(&authority).await;
        let facts = client.get(with_token(GetRequest {}, "good")).await.unwrap().into_inner().facts;
        node_agent_proto::facts(facts.unwrap()).gpus == Reading::Value(vec![])
    };
    until("the GPUs are gone", gone).await;

    let resume = |position: Option<Position>| async {
        let request = WatchRequest { last_seen: position };
        let stream = rig.client(&authority).await.watch(with_token(request, "good")).await.unwrap();
        next(&mut stream.into_inner()).await.unwrap().event
    };
    let Some(Event::Changes(changes)) = resume(first.position.clone()).await else {
        panic!("expected changes only");
    };
    assert!(changes.gpus.is_some() && changes.numa.is_none() && changes.cpus.is_none());
    node_agent_proto::merge(&mut facts, changes);
    assert_eq!((facts.gpus, facts.links), (Reading::Value(vec![]), vec![]));

    let other_run = Position { instance: "another run".into(), ..first.position.unwrap() };
    assert!(matches!(resume(Some(other_run)).await, Some(Event::Snapshot(_))));
    assert!(matches!(resume(None).await, Some(Event::Snapshot(_))));
}

#[tokio::test]
async fn a_driver_that_comes_late_is_found_without_a_restart() {
    let authority = Authority::new();
    let rig = Rig::start(&authority).await;
    let mut devices = String::new();
    rig.edit_nvml(|text| {
        devices = text;
        "error: DriverNotLoaded\n".into()
    });
    // What was seen once is remembered, with its health unknown: an agent that never saw it begins anew.
    let failed = || async { rig.get("/readyz").await.contains("GPUs expected") };
    let unknown = || async { !rig.get("/metrics").await.contains("fathom_gpu_healthy{") };
    until("the health of the GPUs is unknown", unknown).await;
    assert!(!failed().await, "8 GPUs are still known");

    let late = Rig::without_certificate().await;
    late.edit_nvml(|_| "error: LibraryNotFound\n".into());
    late.install(authority.issue("fathom-node-agent"));
    late.until_ready().await;
    let mut stream = late.watch(&authority).await;
    next(&mut stream).await.unwrap();
    until("the missing GPUs are said", || async { late.get("/readyz").await.contains("GPUs expected: 8") })
        .await;
    late.edit_nvml(|_| devices.clone());
    let told = async {
        loop {
            let Some(Event::Changes(changes)) = next(&mut stream).await.unwrap().event else { continue };
            let gpus = changes.gpus.map(Reading::<Vec<node_facts::Gpu>>::from);
            if gpus.and_then(|gpus| gpus.value().map(Vec::len)) == Some(8) {
                return;
            }
        }
    };
    tokio::time::timeout(crate::rig::DEADLINE, told).await.expect("8 GPUs");
}

#[tokio::test]
async fn told_to_stop_the_agent_says_so_to_its_streams_and_ends() {
    let authority = Authority::new();
    let rig = Rig::start(&authority).await;
    let mut stream = rig.watch(&authority).await;
    next(&mut stream).await.unwrap();
    rig.ended().await.unwrap();
    let end = next(&mut stream).await.unwrap_err();
    assert_eq!((end.code(), end.message()), (Code::Unavailable, "the agent is stopping"));
}
