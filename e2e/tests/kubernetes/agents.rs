//! Who may ask a node agent, over what, and that new certificates interrupt nobody.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use e2e::kubernetes::api::{PODS, Patch, SECRETS};
use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, SYSTEM, Shape, agent_call, faults};
use serde_json::{Value, json};

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

/// A74: first the CA, then the certificate; what a new CA issued is shown only to those who have trusted it for a while.
#[test]
fn renewed_certificates_interrupt_no_call() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "certificates", Level::Restricted).unwrap();
    let address = agent_address(&kubernetes);
    let agents = faults::uids(&kubernetes, faults::AGENT).unwrap();
    let old = agent_call::served(&address).unwrap();
    let trusted = || agent_call::ca(&kubernetes).map(|pem| pem_count(&pem));
    let before = trusted().unwrap();

    let done = AtomicBool::new(false);
    let answered = std::thread::scope(|scope| {
        let caller = scope.spawn(|| call_until(&kubernetes, &address, &done));
        age(&kubernetes, "fathom-node-agent-ca", "/trusted/0/life", 300);
        restart_operator(&kubernetes);
        kubernetes.wait("a second CA", SOON, &[], || Ok((trusted()? == before + 1).then_some(()))).unwrap();
        assert_eq!(agent_call::served(&address).unwrap(), old, "the new CA issued at once");

        age(&kubernetes, "fathom-node-agent-ca", "/trusted/0/life", 2);
        age(&kubernetes, "fathom-node-agent-tls", "/life", 80);
        restart_operator(&kubernetes);
        // The kubelet takes up to a minute and a half to bring a changed Secret into a pod.
        kubernetes
            .wait("the agent to serve the new certificate", Duration::from_secs(120), &[], || {
                Ok((agent_call::served(&address)? != old).then_some(()))
            })
            .unwrap();
        done.store(true, Ordering::Relaxed);
        caller.join().unwrap()
    });
    assert!(answered > 50, "only {answered} calls");
    assert_eq!(faults::uids(&kubernetes, faults::AGENT).unwrap(), agents);
    let pods = kubernetes.api.list(PODS, SYSTEM, faults::AGENT).unwrap();
    assert_eq!(pods[0]["status"]["containerStatuses"][0]["restartCount"], 0);
    // The operator is connected again: a new object is planned on fresh facts.
    namespace.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
}

/// Asks the agent again and again, trusting what is published at the time; the number of answers.
fn call_until(kubernetes: &Kubernetes, address: &str, done: &AtomicBool) -> usize {
    let right = token(kubernetes, "fathom-operator", "fathom-node-agent");
    let mut answered = 0;
    while !done.load(Ordering::Relaxed) {
        let ca = agent_call::ca(kubernetes).unwrap();
        agent_call::get(address, &ca, Some(&right)).unwrap();
        answered += 1;
    }
    answered
}

/// Makes the operator believe that what this Secret holds was issued `days` earlier.
fn age(kubernetes: &Kubernetes, secret: &str, life: &str, days: i64) {
    let template = "go-template={{index .data \"state.json\" | base64decode}}";
    let text = kubernetes.kubectl(&["get", "secret", secret, "-n", SYSTEM, "-o", template]).unwrap();
    let mut state: Value = serde_json::from_str(&text).unwrap();
    let life = state.pointer_mut(life).unwrap();
    for end in ["begins", "ends"] {
        life[end] = (life[end].as_i64().unwrap() - days * 24 * 3_600).into();
    }
    let patch = json!({"stringData": {"state.json": state.to_string()}});
    kubernetes.api.patch(SECRETS, SYSTEM, secret, Patch::Merge, &patch).unwrap();
}

/// A leader looks at the certificates when it starts to lead.
fn restart_operator(kubernetes: &Kubernetes) {
    let before = faults::uids(kubernetes, faults::OPERATOR).unwrap();
    faults::kill(kubernetes, faults::OPERATOR).unwrap();
    faults::wait_replaced(kubernetes, faults::OPERATOR, &before).unwrap();
}

fn pem_count(pem: &[u8]) -> usize {
    String::from_utf8_lossy(pem).matches("BEGIN CERTIFICATE").count()
}
