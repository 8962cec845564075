//! Who may ask a node agent, over what, and that new certificates interrupt nobody.

use std::time::Duration;

use e2e::kubernetes::api::{PODS, SECRETS};
use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, SYSTEM, Shape, agent_call, faults};

use crate::{READY, SOON};

fn agent_address(kubernetes: &Kubernetes) -> String {
    let pods = kubernetes.api.list(PODS, SYSTEM, faults::AGENT).unwrap();
    pods[0]["status"]["podIP"].as_str().unwrap().to_owned()
}

fn token(kubernetes: &Kubernetes, account: &str, audience: &str) -> String {
    let args = ["create", "token", account, "-n", SYSTEM, "--audience", audience];
    kubernetes.kubectl(&args).unwrap().trim().to_owned()
}

#[test]
fn an_agent_answers_the_operator_and_refuses_everybody_else_with_a_reason() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let address = agent_address(&kubernetes);
    let ca = agent_call::ca(&kubernetes).unwrap();
    let right = token(&kubernetes, "fathom-operator", "fathom-node-agent");
    let facts = agent_call::get(&address, &ca, Some(&right)).unwrap();
    assert!(!facts.is_empty());

    for (account, audience, code, words) in [
        ("fathom-operator", "somebody-else", "Unauthenticated", "audience"),
        ("fathom-node-agent", "fathom-node-agent", "PermissionDenied", "fathom-node-agent"),
        ("default", "fathom-node-agent", "PermissionDenied", "default"),
    ] {
        let wrong = token(&kubernetes, account, audience);
        let refused = agent_call::get(&address, &ca, Some(&wrong)).unwrap_err();
        assert_eq!(refused.code, code, "{account} for {audience}: {refused:?}");
        assert!(refused.message.contains(words), "{account} for {audience}: {refused:?}");
    }
    assert_eq!(agent_call::get(&address, &ca, None).unwrap_err().code, "Unauthenticated");
    assert_eq!(agent_call::get(&address, &ca, Some("no token")).unwrap_err().code, "Unauthenticated");
    assert!(agent_call::get_plaintext(&address, &right).is_err(), "plaintext was served");
    let stranger = agent_call::another_ca().unwrap();
    assert!(agent_call::get(&address, &stranger, Some(&right)).is_err(), "a strange CA was believed");
    // The right one is still served.
    agent_call::get(&address, &ca, Some(&right)).unwrap();
    agent_call::health(&address, &ca).unwrap();
}

/// The Secret vanishes: the leader makes another, agents load it without a restart, and no facts are missed for long.
#[test]
#[ignore = "slow: `./dev test slow`"]
fn new_certificates_are_taken_up_without_a_restart() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "certificates", Level::Restricted).unwrap();
    let address = agent_address(&kubernetes);
    let agents = faults::uids(&kubernetes, faults::AGENT).unwrap();
    let old = agent_call::ca(&kubernetes).unwrap();
    kubernetes.api.delete(SECRETS, SYSTEM, "fathom-node-agent-tls", None).unwrap();
    let right = token(&kubernetes, "fathom-operator", "fathom-node-agent");
    // The kubelet takes up to a minute to bring a changed Secret into a pod.
    kubernetes
        .wait("the agent to serve the new certificate", Duration::from_secs(150), &[], || {
            let new = agent_call::ca(&kubernetes)?;
            anyhow::ensure!(new != old, "the Secret is the old one");
            let facts = agent_call::get(&address, &new, Some(&right));
            Ok(facts.ok())
        })
        .unwrap();
    assert_eq!(faults::uids(&kubernetes, faults::AGENT).unwrap(), agents);
    let pods = kubernetes.api.list(PODS, SYSTEM, faults::AGENT).unwrap();
    assert_eq!(pods[0]["status"]["containerStatuses"][0]["restartCount"], 0);
    // The operator is connected again: a new object is planned on fresh facts.
    namespace.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    namespace.wait_condition("needle", "Planned", "True", "", SOON * 3).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
}
