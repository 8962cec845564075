use super::super::fixtures::{engine_pod, refuse, replica, run, seen};
use super::*;

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("ns", name)
}

#[test]
fn a_promise_holds_until_the_pod_that_keeps_it_exists_and_is_then_counted_once() {
    let ledger = Ledger::default();
    ledger.promise("a", &key("a"), &[replica("a-decode-0", "n1")], false);
    let taken = ledger.taken_by_others("b");
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].untouched_bytes, taken[0].promised_bytes);
    assert!(ledger.taken_by_others("a").is_empty(), "one's own is no obstacle");
    let mut pod = engine_pod("a-decode-0", "a", "n1");
    ledger.pod(&seen(&pod));
    assert_eq!(ledger.taken_by_others("b").len(), 1);
    run(&mut pod, "10.0.0.1", 0, true);
    ledger.pod(&seen(&pod));
    let taken = ledger.taken_by_others("b");
    assert_eq!((taken.len(), taken[0].untouched_bytes), (1, 0), "a ready engine has touched its memory");
}

#[test]
fn a_moving_replica_holds_both_places_until_the_old_pod_is_gone() {
    let ledger = Ledger::default();
    let mut old = engine_pod("a-decode-0", "a", "n1");
    ledger.pod(&seen(&old));
    ledger.promise("a", &key("a"), &[replica("a-decode-0", "n2")], false);
    let nodes = |ledger: &Ledger| -> Vec<String> {
        let mut nodes: Vec<String> =
            ledger.taken_by_others("b").into_iter().map(|taken| taken.node).collect();
        nodes.sort();
        nodes
    };
    assert_eq!(nodes(&ledger), ["n1", "n2"]);
    let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
    old.metadata.deletion_timestamp = Some(time);
    assert!(!ledger.pod(&seen(&old)), "it still holds what it has");
    assert_eq!(nodes(&ledger), ["n1", "n2"]);
    assert!(ledger.present("a").is_empty(), "it does not stay");
    assert!(ledger.pod_gone(&seen(&old)), "room came free");
    assert_eq!(nodes(&ledger), ["n2"]);
}

#[test]
fn a_pod_that_has_failed_holds_nothing() {
    let ledger = Ledger::default();
    let mut pod = engine_pod("a-decode-0", "a", "n1");
    ledger.pod(&seen(&pod));
    assert_eq!(ledger.present("a").len(), 1);
    refuse(&mut pod, "TopologyAffinityError");
    assert!(ledger.pod(&seen(&pod)), "room came free");
    assert!(ledger.present("a").is_empty());
    assert!(ledger.taken_by_others("b").is_empty());
}

#[test]
fn objects_are_found_by_their_nodes_and_when_they_wait_for_room() {
    let ledger = Ledger::default();
    ledger.promise("a", &key("a"), &[replica("a-decode-0", "n1")], false);
    ledger.promise("b", &key("b"), &[], true);
    assert_eq!(ledger.on_node("n1"), [key("a")]);
    assert_eq!(ledger.waiting(), [key("b")]);
    ledger.promise("a", &key("a"), &[replica("a-decode-0", "n2")], false);
    assert!(ledger.on_node("n1").is_empty());
    ledger.promise("b", &key("b"), &[replica("b-decode-0", "n2")], false);
    assert!(ledger.waiting().is_empty());
    ledger.forget("a");
    ledger.forget("b");
    assert!(ledger.on_node("n2").is_empty());
}

#[test]
fn replicas_that_compute_on_the_cpu_leave_their_cpus_to_others_too() {
    let ledger = Ledger::default();
    ledger.promise("a", &key("a"), &[replica("a-decode-0", "n1")], false);
    assert!(ledger.taken_by_others("b")[0].cpus.is_empty());
    let mut with_gpus = replica("a-decode-0", "n1");
    with_gpus.device = operator_plan::ComputeDevice::Cuda;
    ledger.promise("a", &key("a"), &[with_gpus], false);
    assert_eq!(ledger.taken_by_others("b")[0].cpus, [0, 1]);
}
