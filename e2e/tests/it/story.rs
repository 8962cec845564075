//! The deployment that the product comes from, planned: every figure of the story is known before anything starts.

use std::process::Output;

use e2e::cluster::{fathom, root};
use serde_json::Value;

#[test]
fn the_story_is_placed_and_sized_as_it_should_have_been() {
    let output = plan(&["-f", "crds/examples/story.yaml", "--facts", "story", "-o", "json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let planned: Value = serde_json::from_slice(&output.stdout).unwrap();
    let replica = |role: &str| {
        let replicas = planned["plan"]["replicas"].as_array().unwrap();
        replicas.iter().find(|r| r["role"] == role).unwrap_or_else(|| panic!("no {role}: {planned}")).clone()
    };
    let (prefill, decode) = (replica("prefill"), replica("decode"));
    assert_eq!((prefill["numaNode"].as_u64(), decode["numaNode"].as_u64()), (Some(0), Some(1)));
    assert_eq!(prefill["gpus"].as_array().map(Vec::len), Some(4));
    let gib = |replica: &Value| replica["hostCacheBytes"].as_f64().unwrap() / f64::from(1 << 30);
    assert!((gib(&prefill) - 112.6).abs() < 0.1, "{}", gib(&prefill));
    assert!((gib(&decode) - 143.0).abs() < 0.1, "{}", gib(&decode));
}

#[test]
fn the_table_names_the_limits_and_how_they_were_derived() {
    let output = plan(&["-f", "crds/examples/story.yaml", "--facts", "story"]);
    let table = String::from_utf8_lossy(&output.stdout);
    for part in ["112.6 GiB", "143.0 GiB", "300", "NUMA node 0", "78,144", "3,300"] {
        assert!(table.contains(part), "{part:?} is missing in\n{table}");
    }
}

#[test]
fn an_impossible_spec_says_what_is_missing_where() {
    let output = plan(&["-f", "crds/examples/story.yaml", "--facts", "one-socket"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("of 4 GPUs"), "{text}");
}

fn plan(args: &[&str]) -> Output {
    let state = tempfile::tempdir().unwrap();
    let args: Vec<String> = std::iter::once("plan".to_owned())
        .chain(args.iter().map(|a| {
            if a.ends_with(".yaml") { root().join(a).to_string_lossy().into_owned() } else { (*a).to_owned() }
        }))
        .collect();
    fathom(state.path(), &args.iter().map(String::as_str).collect::<Vec<_>>()).unwrap()
}
