//! More than the queue takes, through the Service (A63), within the memory that a router is given (A76).

use std::collections::BTreeMap;

use e2e::client;
use e2e::kubernetes::api::{PODS, SERVICES};
use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, Shape, process};
use e2e::needle::rows;
use serde_json::json;

use crate::READY;

const QUEUE: usize = 4;

#[test]
fn every_request_of_a_burst_ends_served_or_refused_with_a_time_to_come_back() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "overload", Level::Restricted).unwrap();
    let object = needle("needle", |spec| spec["admission"] = json!({"maxQueuedRequests": QUEUE}));
    namespace.apply(&object.unwrap()).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let service = kubernetes.api.get(SERVICES, &namespace.name, "needle").unwrap();
    let endpoint = format!("http://{}", service["spec"]["clusterIP"].as_str().unwrap());
    let row =
        rows().unwrap().into_iter().filter(|row| row.prompt_tokens < 8000).max_by_key(|r| r.prompt_tokens);
    let row = row.unwrap();

    let replies = std::thread::scope(|scope| {
        let ask = || client::chat(&endpoint, row.body().to_string().as_bytes()).unwrap();
        let asked: Vec<_> = (0..10 * QUEUE).map(|_| scope.spawn(ask)).collect();
        asked.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let mut counts = BTreeMap::new();
    for reply in &replies {
        *counts.entry(reply.status).or_insert(0) += 1;
        match reply.status {
            200 => assert_eq!(reply.body["choices"][0]["message"]["content"], json!(row.expected)),
            429 | 503 => assert!(reply.retry_after.is_some(), "{reply:?}"),
            _ => panic!("{reply:?}"),
        }
    }
    println!("{counts:?}");
    assert!(counts.get(&200).is_some_and(|served| *served >= QUEUE), "{counts:?}");
    assert!(counts.contains_key(&429), "{counts:?}");

    let router = namespace.pods("fathom.dev/role=router").unwrap().remove(0);
    let peak = process::engine_status(&router.uid, "VmHWM").unwrap();
    let peak_kib: u64 = peak.trim_end_matches(" kB").parse().unwrap();
    let pod = kubernetes.api.get(PODS, &namespace.name, &router.name).unwrap();
    let limit = pod["spec"]["containers"][0]["resources"]["limits"]["memory"].as_str().unwrap().to_owned();
    let limit_kib: u64 = limit.trim_end_matches("Mi").parse::<u64>().unwrap() * 1024;
    println!("the router used at most {peak_kib} KiB of {limit}");
    assert!(peak_kib * 10 < limit_kib * 6, "{peak_kib} KiB of {limit}");
}
