use std::time::{Duration, Instant};

use node_agent_proto::v1::watch_response::Event;

use crate::rig::{Authority, Rig, next, until};

#[tokio::test]
async fn the_agent_is_not_ready_before_its_certificate_and_then_is() {
    let rig = Rig::without_certificate().await;
    until("facts are there", || async { rig.get("/metrics").await.contains("fathom_node_facts_age") }).await;
    let answer = rig.get("/readyz").await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("no server certificate yet"), "{answer}");
    assert!(rig.get("/healthz").await.starts_with("HTTP/1.1 200"));
    let authority = Authority::new();
    assert!(rig.channel(&authority.pem).await.is_err());
    rig.install(authority.issue("fathom-node-agent"));
    rig.until_ready().await;
    rig.channel(&authority.pem).await.unwrap();
}

#[tokio::test]
async fn a_new_certificate_serves_new_connections_and_ends_no_stream() {
    let (old, new) = (Authority::new(), Authority::new());
    let rig = Rig::start(&old).await;
    let mut stream = rig.watch(&old).await;
    assert!(matches!(next(&mut stream).await.unwrap().event, Some(Event::Snapshot(_))));

    rig.install(new.issue("fathom-node-agent"));
    until("the new certificate serves", || async { rig.channel(&new.pem).await.is_ok() }).await;
    assert!(rig.channel(&old.pem).await.is_err());

    rig.edit_nvml(|_| "devices: []\n".into());
    assert!(matches!(next(&mut stream).await.unwrap().event, Some(Event::Changes(_))));
}

#[tokio::test]
async fn a_certificate_that_does_not_fit_its_key_leaves_the_old_in_use() {
    let authority = Authority::new();
    let rig = Rig::start(&authority).await;
    let (certificate, _) = authority.issue("fathom-node-agent");
    let (_, key) = authority.issue("fathom-node-agent");
    for bad in [(certificate, key), ("junk".into(), "junk".into())] {
        rig.install(bad);
        // The folder is looked at every two seconds.
        let installed = Instant::now();
        let still_serves = || async {
            rig.channel(&authority.pem).await.expect("the old one serves");
            installed.elapsed() > Duration::from_secs(3)
        };
        until("it was looked at", still_serves).await;
    }
    let other = Authority::new();
    rig.install(other.issue("fathom-node-agent"));
    until("the next good one serves", || async { rig.channel(&other.pem).await.is_ok() }).await;
}
