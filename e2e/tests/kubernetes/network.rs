//! NetworkPolicies, enforced for real by kube-router (`e2e/cluster/netpol.sh`).

use e2e::kubernetes::api::PODS;
use e2e::kubernetes::client_pod::ClientPod;
use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, SYSTEM, Shape, faults, run};
use e2e::needle::rows;

use crate::READY;

#[test]
#[ignore = "slow: builds and starts kube-router"]
fn a_strangers_pod_reaches_the_router_and_nothing_else() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let output = run("./dev", &["cluster", "netpol"], None).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let served = Namespace::create(&kubernetes, "guarded", Level::Restricted).unwrap();
    let elsewhere = Namespace::create(&kubernetes, "stranger-net", Level::Restricted).unwrap();
    served.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    served.wait_ready("needle", READY).unwrap();
    let stranger = ClientPod::start(&elsewhere, "stranger").unwrap();
    stranger.ask(&format!("http://needle.{}.svc", served.name), &rows().unwrap()[0]).unwrap();

    let address = |namespace: &str, selector: &str| {
        let pods = kubernetes.api.list(PODS, namespace, selector).unwrap();
        pods[0]["status"]["podIP"].as_str().unwrap().to_owned()
    };
    let decode = address(&served.name, "fathom.dev/role=decode");
    let prefill = address(&served.name, "fathom.dev/role=prefill");
    let agent = address(SYSTEM, faults::AGENT);
    // 8000 of engines is open to scrapers, which by default is every pod; 9000 is between engines.
    for (who, host, port) in
        [("decode gRPC", &decode, 9000), ("prefill gRPC", &prefill, 9000), ("agent gRPC", &agent, 9443)]
    {
        assert!(!stranger.reaches(host, port).unwrap(), "a stranger reaches {who} at {host}:{port}");
    }
    let down = run("./dev", &["cluster", "netpol", "off"], None).unwrap();
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
}
