//! The whole loop, against an API server in this process, on a clock that stands still while anything can be done.

mod api;
mod world;

use std::collections::BTreeSet;

use serde_json::json;

use api::{Api, CLUSTERS};
use world::{NODE, Operator, after, cluster};

/// Long enough for everything that has begun.
const SETTLED: u64 = 60;
const HOUR: u64 = 3_600;

fn is(condition: (String, String), status: &str, reason: &str) -> bool {
    condition == (status.to_owned(), reason.to_owned())
}

/// A01: what is left out has its default, whatever else is in the namespace.
#[tokio::test(start_paused = true)]
async fn an_object_that_says_no_replicas_gets_one_beside_one_that_says_two() {
    let api = Api::new(NODE);
    api.put(cluster("silent", |_| {}));
    api.put(cluster("two", |spec| spec["decode"]["replicas"] = json!(2)));
    let operator = Operator::start(&api).await;
    after(SETTLED).await;
    assert_eq!(api.count("pods"), 3);
    for name in ["silent", "two"] {
        assert!(is(api.condition(name, "RolesReady"), "True", "AsExpected"), "{:?}", api.get(CLUSTERS, name));
    }
    assert_eq!(operator.passes().1, 0);
}

/// A02: it is told so on itself, once; its neighbour runs.
#[tokio::test(start_paused = true)]
async fn an_object_that_does_not_decode_is_told_so_once_and_holds_up_no_other() {
    let api = Api::new(NODE);
    api.put(cluster("bad", |spec| spec["placement"] = json!({"mode": "Quantum"})));
    let operator = Operator::start(&api).await;
    api.put(cluster("good", |_| {}));
    after(HOUR).await;
    assert!(is(api.condition("bad", "Accepted"), "False", "DecodeFailed"));
    assert!(is(api.condition("good", "RolesReady"), "True", "AsExpected"));
    let told = api.writes().into_iter().filter(|call| call.ends_with(" bad"));
    assert_eq!(told.collect::<Vec<_>>(), ["patch inferenceclusters/status bad"]);
    assert_eq!(operator.passes().1, 0);
}

/// A03: nothing is there yet, and nothing shall be: also for an operator that has just started.
#[tokio::test(start_paused = true)]
async fn an_object_at_zero_is_content_under_the_next_operator_too() {
    let api = Api::new(NODE);
    api.put(cluster("a", |spec| {
        spec["decode"]["replicas"] = json!(0);
        spec["router"] = json!({"replicas": 0});
    }));
    let first = Operator::start(&api).await;
    after(SETTLED).await;
    assert!(is(api.condition("a", "Ready"), "False", "ScaledToZero"), "{:?}", api.get(CLUSTERS, "a"));
    assert_eq!((api.count("pods"), first.passes().1), (0, 0));
    drop(first);
    api.calls();
    let second = Operator::start(&api).await;
    after(SETTLED).await;
    assert_eq!(api.writes(), [""; 0]);
    assert_eq!(second.passes(), (1, 0), "one look, and no retry");
}

/// A12, A24: a status carries no resource version, so that no writer of the spec is in its way, and no spec.
#[tokio::test(start_paused = true)]
async fn somebody_who_scales_while_a_status_is_written_causes_no_failure_and_keeps_his_number() {
    let api = Api::new(NODE);
    api.put(cluster("a", |spec| spec["decode"]["replicas"] = json!(0)));
    let operator = Operator::start(&api).await;
    after(SETTLED).await;
    api.calls();
    api.scale_before_status(&[2, 3, 4]);
    api.put(cluster("a", |spec| spec["decode"]["replicas"] = json!(1)));
    after(SETTLED).await;
    assert_eq!(api.count("pods"), 4);
    let object = api.get(CLUSTERS, "a").unwrap();
    assert_eq!(object["spec"]["decode"]["replicas"], 4);
    assert_eq!(object["status"]["observedGeneration"], object["metadata"]["generation"]);
    assert_eq!(operator.passes().1, 0);
    let own = api.writes().into_iter().filter(|call| call.contains(CLUSTERS)).collect::<BTreeSet<_>>();
    assert_eq!(own, BTreeSet::from(["patch inferenceclusters/status a".to_owned()]));
}

/// A14: looked at again and again while the clock moves, and never written.
#[tokio::test(start_paused = true)]
async fn a_hundred_objects_at_rest_are_looked_at_for_an_hour_and_not_written_once() {
    let api = Api::new(NODE);
    for i in 0..100 {
        api.put(cluster(&format!("c{i}"), |spec| match i % 10 {
            0 => spec["decode"]["gpus"] = json!(64),
            1 => spec["rollout"] = json!({"mode": "Plan"}),
            2 => spec["decode"]["replicas"] = json!(0),
            _ => {}
        }));
    }
    let operator = Operator::start(&api).await;
    after(SETTLED).await;
    assert_eq!(api.count("pods"), 70);
    let before = operator.passes().0;
    api.calls();
    after(HOUR).await;
    assert_eq!(api.writes(), [""; 0]);
    assert!(operator.passes().0 >= before + 300, "{} after {before}", operator.passes().0);
}

/// A18: later and later, and an event only where something is news.
#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_succeed_is_tried_now_and_then_and_told_once() {
    for (code, reason) in [(500, "InternalError"), (403, "Forbidden")] {
        let api = Api::new(NODE);
        api.refuse("create pods", code, reason);
        api.put(cluster("a", |_| {}));
        let operator = Operator::start(&api).await;
        after(SETTLED).await;
        let events = |calls: Vec<String>| calls.iter().filter(|call| call.contains(" events ")).count();
        let at_first = events(api.writes());
        assert!(at_first <= 5, "{code}: {at_first} events");
        after(HOUR).await;
        assert_eq!(events(api.writes()), 0, "{code}");
        let (done, failed) = operator.passes();
        assert!((10..60).contains(&(done + failed)), "{code}: {done} and {failed} passes");
    }
}

/// A19: neither changes the object's generation.
#[tokio::test(start_paused = true)]
async fn a_child_removed_by_hand_comes_back_unless_its_owner_is_ending() {
    let api = Api::new(NODE);
    api.put(cluster("a", |_| {}));
    let _operator = Operator::start(&api).await;
    after(SETTLED).await;
    api.remove("services", "a");
    after(1).await;
    assert!(api.get("services", "a").is_some());
    after(SETTLED).await;
    api.end("a");
    after(1).await;
    api.calls();
    api.remove("services", "a");
    after(HOUR).await;
    assert!(api.get("services", "a").is_none());
    assert_eq!(api.writes(), [""; 0]);
}

/// A72: what an object costs is known, and is the same however many are reconciled at once.
#[tokio::test(start_paused = true)]
async fn the_calls_for_an_object_do_not_grow_with_what_runs_beside_it() {
    const OBJECTS: usize = 100;
    let mut costs = BTreeSet::new();
    for at_once in [1, 10, 60] {
        let api = Api::new(NODE);
        (0..OBJECTS).for_each(|i| api.put(cluster(&format!("c{i}"), |_| {})));
        let operator = Operator::looking(&api).await;
        api.calls();
        operator.pass_over_all(at_once).await;
        let of_objects = |call: &String| !call.starts_with("watch ") && !call.starts_with("list ");
        costs.insert(api.calls().iter().filter(|call| of_objects(call)).count());
        // The watches show what was made, and a second pass says that it runs.
        for _ in 0..2 {
            after(1).await;
            operator.pass_over_all(at_once).await;
        }
        after(1).await;
        api.calls();
        operator.pass_over_all(at_once).await;
        assert_eq!(api.calls(), [""; 0], "{at_once} at once");
    }
    assert_eq!(costs.len(), 1, "{costs:?}");
    assert!(costs.iter().all(|cost| *cost <= 30 * OBJECTS), "{costs:?}");
}
