//! Nothing to do, nothing written.

use std::collections::BTreeSet;
use std::time::Duration;

use e2e::kubernetes::api::DEFINITIONS;
use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, Shape, audit};
use serde_json::{Value, json};

use crate::{READY, SOON};

const QUIET: Duration = Duration::from_secs(120);
/// The lease's holder writes it at most once in this time.
const RENEWAL: Duration = Duration::from_secs(5);

#[test]
#[ignore = "slow: twenty objects, then two minutes of nothing"]
fn twenty_idle_objects_cost_no_write_but_the_lease() {
    // A machine that looks large: its CPUs do not exist, so nothing is bound to them.
    let kubernetes = Kubernetes::with_fathom(Shape::Story).unwrap();
    let namespace = Namespace::create(&kubernetes, "idle", Level::Restricted).unwrap();
    let make = |name: &str, edit: &dyn Fn(&mut Value)| {
        let object = needle(name, |spec| {
            spec["placement"] = json!({"mode": "Unmanaged"});
            edit(spec);
        });
        namespace.apply(&object.unwrap()).unwrap();
    };
    for i in 0..12 {
        // Most of them in one engine pod: the real machine computes for all.
        make(&format!("ready-{i}"), &|spec| spec["prefill"]["replicas"] = json!(i32::from(i < 3)));
    }
    for i in 0..4 {
        make(&format!("pending-{i}"), &|spec| spec["decode"]["gpus"] = json!(64));
    }
    for i in 0..2 {
        make(&format!("plan-{i}"), &|spec| spec["rollout"] = json!({"mode": "Plan"}));
    }
    make("zero", &|spec| {
        for role in ["prefill", "decode", "router"] {
            spec[role]["replicas"] = json!(0);
        }
    });
    let shipped = kubernetes.api.get(DEFINITIONS, "", "inferenceclusters.fathom.dev").unwrap();
    crate::rules::store_quantum(&namespace, "quantum", &shipped);

    for i in 0..12 {
        namespace.wait_ready(&format!("ready-{i}"), READY * 3).unwrap();
    }
    for i in 0..4 {
        namespace.wait_condition(&format!("pending-{i}"), "Planned", "False", "NotFeasible", SOON).unwrap();
    }
    for i in 0..2 {
        namespace.wait_condition(&format!("plan-{i}"), "Progressing", "False", "PlanOnly", SOON).unwrap();
    }
    namespace.wait_condition("zero", "Ready", "False", "ScaledToZero", SOON).unwrap();
    namespace.wait_condition("quantum", "Accepted", "False", "DecodeFailed", SOON).unwrap();

    // The last transitions' events are written within moments.
    namespace.holds_for(Duration::from_secs(5), || Ok(None)).unwrap();
    let mark = audit::mark().unwrap();
    namespace.holds_for(QUIET, || Ok(None)).unwrap();
    let calls = audit::calls_since(mark, ":fathom-operator").unwrap();
    let (leases, others): (Vec<_>, Vec<_>) =
        calls.iter().filter(|call| call.writes()).partition(|call| call.resource == "leases");
    assert!(others.is_empty(), "{} writes, such as {:?}", others.len(), &others[..others.len().min(5)]);
    let names: BTreeSet<_> = leases.iter().map(|call| (&call.namespace, &call.name)).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    let most = QUIET.as_secs() / RENEWAL.as_secs() + 2;
    assert!(leases.len() as u64 <= most, "{} renewals", leases.len());
    println!("{} calls in {QUIET:?}, of which {} renew the lease", calls.len(), leases.len());
}
