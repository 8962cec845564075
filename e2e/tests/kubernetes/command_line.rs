//! `kubectl fathom` on a live object.

use e2e::kubernetes::objects::needle;
use e2e::kubernetes::{Kubernetes, Level, Namespace, Shape, command_line};
use serde_json::{Value, json};

use crate::READY;

#[test]
fn status_explain_plan_and_diff_speak_of_the_live_object() {
    let kubernetes = Kubernetes::with_fathom(Shape::Plain).unwrap();
    let namespace = Namespace::create(&kubernetes, "cli", Level::Restricted).unwrap();
    namespace.apply(&needle("needle", |_| {}).unwrap()).unwrap();
    namespace.wait_ready("needle", READY).unwrap();
    let said = |args: &[&str]| {
        let mut all = args.to_vec();
        all.extend(["-n", &namespace.name]);
        command_line::fathom_ok(&all).unwrap()
    };
    let endpoint = format!("http://needle.{}.svc", namespace.name);
    for (args, parts) in [
        (&["status", "needle"][..], vec!["Ready", "1/1", endpoint.as_str()]),
        (&["explain", "needle"][..], vec!["needle-prefill-0", "needle-decode-0"]),
    ] {
        let text = said(args);
        for part in parts {
            assert!(text.contains(part), "{args:?}: {part:?} is missing in\n{text}");
        }
    }
    let parsed: Value = serde_json::from_str(&said(&["status", "needle", "-o", "json"])).unwrap();
    assert!(parsed.is_object(), "{parsed}");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("changed.yaml");
    let object = needle("needle", |spec| {
        spec["model"]["contextTokens"] = json!(16384);
    });
    std::fs::write(&file, object.unwrap().to_string()).unwrap();
    let file = file.to_string_lossy();
    let diff = said(&["diff", "-f", &file]);
    for part in ["contextTokens", "needle-decode-0"] {
        assert!(diff.contains(part), "{part:?} is missing in\n{diff}");
    }
    let plan = said(&["plan", "-f", &file, "--cluster"]);
    assert!(plan.contains("decode"), "{plan}");
    // Asking changes nothing.
    assert_eq!(namespace.cluster("needle").unwrap()["spec"]["model"]["contextTokens"], 32768);
}
