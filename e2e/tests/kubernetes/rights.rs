//! An operator that serves one namespace, with rights there alone.

use std::collections::BTreeSet;

use e2e::kubernetes::audit::{self, Call};
use e2e::kubernetes::chart;
use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, Shape};

use crate::READY;

const OPERATOR: &str = "system:serviceaccount:fathom-system:fathom-operator";

/// In one namespace instead of all, the operator works with Roles there.
#[test]
fn a_namespaced_operator_serves_its_namespace_and_no_other() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let served = Namespace::create(&kubernetes, "served", Level::Restricted).unwrap();
    let other = Namespace::create(&kubernetes, "not-served", Level::Restricted).unwrap();
    let mark = audit::mark().unwrap();
    let value = format!("watchNamespaces={{{}}}", served.name);
    chart::upgrade(&kubernetes, &[&value]).unwrap();
    other.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    let uid = served.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    served.wait_ready("needle", READY).unwrap();
    served.delete_whole("needle", &uid, READY).unwrap();
    assert!(other.cluster("needle").unwrap()["status"].is_null());
    let calls = audit::calls_since(mark, OPERATOR).unwrap();
    let refused: BTreeSet<_> = calls.iter().filter(|c| c.code == 403).map(describe).collect();
    let foreign: BTreeSet<_> = calls.iter().filter(|c| c.namespace == other.name).map(describe).collect();
    chart::upgrade(&kubernetes, &[]).unwrap();
    assert!(refused.is_empty(), "{refused:?}");
    assert!(foreign.is_empty(), "{foreign:?}");
}

pub(crate) fn describe(call: &Call) -> String {
    format!("{} {}/{} in {:?}", call.verb, call.group, call.resource, call.namespace)
}
