//! NetworkPolicies, enforced for real by kube-router (`e2e/cluster/netpol.sh`).

use std::time::Duration;

use e2e::kubernetes::api::PODS;
use e2e::kubernetes::client_pod::ClientPod;
use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, SYSTEM, Shape, faults, run};
use e2e::needle::rows;
use serde_json::json;

use crate::READY;

/// kube-router looks at all policies at least so often.
const ENFORCED: Duration = Duration::from_secs(90);

#[test]
#[ignore = "slow: builds and starts kube-router"]
fn a_strangers_pod_reaches_the_router_and_nothing_else() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let served = Namespace::create(&kubernetes, "guarded", Level::Restricted).unwrap();
    let elsewhere = Namespace::create(&kubernetes, "stranger-net", Level::Restricted).unwrap();
    let object = needle("needle", |spec| {
        spec["networkPolicy"] = json!({"scrapeFrom": {"podLabels": {"app": "scraper"}}});
    });
    served.apply(&object.unwrap()).unwrap();
    served.wait_ready("needle", READY).unwrap();
    let stranger = ClientPod::start(&elsewhere, "stranger").unwrap();
    let scraper = ClientPod::start(&elsewhere, "scraper").unwrap();

    let address = |namespace: &str, selector: &str| {
        let pods = kubernetes.api.list(PODS, namespace, selector).unwrap();
        pods[0]["status"]["podIP"].as_str().unwrap().to_owned()
    };
    let decode = address(&served.name, "fathom.dev/role=decode");
    let prefill = address(&served.name, "fathom.dev/role=prefill");
    let (agent, operator) = (address(SYSTEM, faults::AGENT), address(SYSTEM, faults::OPERATOR));
    let closed = [
        ("decode HTTP", &decode, 8000),
        ("prefill HTTP", &prefill, 8000),
        ("prefill gRPC", &prefill, 9000),
        ("agent gRPC", &agent, 9443),
        ("agent HTTP", &agent, 9101),
        ("operator HTTP", &operator, 8080),
    ];
    // Without enforcement all of it is open, so what closes it is the policies.
    for (who, host, port) in closed {
        assert!(stranger.reaches(host, port).unwrap(), "nobody listens: {who} at {host}:{port}");
    }

    let output = run("./dev", &["cluster", "netpol"], None).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for (who, host, port) in closed {
        let what = format!("a stranger to be kept from {who} at {host}:{port}");
        kubernetes
            .wait(&what, ENFORCED, &[&served.name], || Ok((!stranger.reaches(host, port)?).then_some(())))
            .unwrap();
    }
    assert!(scraper.reaches(&decode, 8000).unwrap(), "the scraper that the object names is kept out");
    assert!(!scraper.reaches(&prefill, 9000).unwrap(), "a scraper reaches what is between engines");
    // The router is open to all, and reaches its engines, which reach each other.
    stranger.ask(&format!("http://needle.{}.svc", served.name), &rows().unwrap()[0]).unwrap();
    // The operator still hears its agent: another object is planned and becomes Ready behind policies of its own.
    served.apply(&needle("second", |_| {}).unwrap()).unwrap();
    served.wait_ready("second", READY).unwrap();
    let down = run("./dev", &["cluster", "netpol", "off"], None).unwrap();
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
}
