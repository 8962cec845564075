use expect_test::{Expect, expect};

use super::*;

const SMALL: &str = "\
apiVersion: fathom.dev/v1alpha1
kind: InferenceCluster
metadata:
  name: flash
spec:
  model:
    name: deepseek-v4-flash
    source: {hostPath: /models/flash}
  prefill: {replicas: 1, gpus: 4}
  decode: {gpus: 4}
";

#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "expectations are written inline")]
fn refused(from: &str, to: &str, expected: Expect) {
    assert!(SMALL.contains(from), "{from:?} is not in the small object");
    expected.assert_eq(&read(&SMALL.replacen(from, to, 1)).unwrap_err().to_string());
}

/// A01.
#[test]
fn a_small_object_gets_the_defaults_of_the_schema() {
    let cluster = read(SMALL).unwrap();
    assert_eq!(cluster.name(), "flash");
    assert_eq!(cluster.spec.decode.replicas, 1);
    assert_eq!(cluster.spec.router.replicas, 1);
    assert!(cluster.spec.network_policy.enabled);
}

#[test]
fn a_typo_is_named_with_line_and_column() {
    refused(
        "gpus: 4}\n  decode",
        "gpuz: 4}\n  decode",
        expect!["line 9, column 26: unknown field `gpuz`, expected one of replicas, gpus, cpus"],
    );
    refused(
        "spec:",
        "sepc:",
        expect![
            "line 5, column 1: unknown field `sepc`, expected one of apiVersion, kind, metadata, spec, status"
        ],
    );
    refused(
        "  model:",
        "  modle:",
        expect![
            "line 6, column 3: unknown field `modle`, expected one of model, runtime, prefill, decode, router, placement, hostCache, admission, rollout, networkPolicy, podTemplate"
        ],
    );
}

#[test]
fn a_wrong_type_or_value_says_what_was_expected() {
    refused("replicas: 1", "replicas: two", expect!["line 9, column 23: expected a whole number"]);
    refused("replicas: 1", "replicas: [1]", expect!["line 9, column 23: expected a single value"]);
    refused(
        "decode: {gpus: 4}",
        "decode: {gpus: 4}\n  placement: {mode: Quantum}",
        expect![
            "line 11, column 21: unknown variant `Quantum`, expected one of Auto, DRA, Kubelet, Soft, Unmanaged"
        ],
    );
    refused(
        "decode: {gpus: 4}",
        "decode: {gpus: 4}\n  hostCache: {mode: Size, size: 300 Gi}",
        expect![[
            r#"line 11, column 33: "300 Gi" is no byte count: write digits and an optional suffix, such as 300Gi, 1.5Ti or 128M"#
        ]],
    );
    refused(
        "decode: {gpus: 4}",
        "decode: {gpus: 4}\n  admission: {timeToFirstToken: soon}",
        expect![[
            r#"line 11, column 33: "soon" is no duration: write numbers with h, m, s or ms, such as 30s or 1m30s"#
        ]],
    );
    refused("  decode: {gpus: 4}\n", "", expect!["line 9, column 3: missing field `decode`"]);
    refused(
        "  decode: {gpus: 4}\n",
        "  decode: null\n",
        expect!["line 10, column 11: expected fields (`name: value`)"],
    );
}

#[test]
fn what_is_no_single_object_is_refused() {
    let message = |text: &str| read(text).unwrap_err().to_string();
    for text in ["", "   \n", "# only a comment\n", "---\n"] {
        assert_eq!(message(text), "the file is empty; expected one InferenceCluster", "{text:?}");
    }
    expect!["the file has several documents; expected one InferenceCluster"]
        .assert_eq(&message(&format!("{SMALL}---\n{SMALL}")));
    expect!["the file holds apiVersion apps/v1, kind Deployment; expected apiVersion fathom.dev/v1alpha1, kind InferenceCluster"].assert_eq(&message("kind: Deployment\napiVersion: apps/v1\n"));
    expect!["line 1, column 1: expected fields (`name: value`)"].assert_eq(&message("just words"));
    expect!["line 1, column 4: unclosed bracket '['"].assert_eq(&message("a: [1, 2"));
    expect!["line 1, column 1: expected fields (`name: value`)"].assert_eq(&message("- a\n- b\n"));
    expect!["the file has 1048577 bytes; an InferenceCluster has at most 1048576"]
        .assert_eq(&message(&"x".repeat(MAX_BYTES + 1)));
    expect![[r#"line 1, column 1: unexpected character: `\u{0}'"#]].assert_eq(&message("\u{0}\u{1}"));
}

#[test]
fn what_the_api_server_would_refuse_is_refused_together() {
    refused(
        "replicas: 1, gpus: 4",
        "replicas: -1, gpus: 65",
        expect!["spec.prefill.replicas is -1; at least 0; spec.prefill.gpus is 65; at most 64"],
    );
    refused(
        "name: flash",
        "name: 4flash",
        expect![
            "metadata.name must be a DNS label that starts with a letter and has at most 40 characters, because the children are named after it; found \"4flash\""
        ],
    );
    refused(
        "name: flash",
        "name: a234567890123456789012345678901234567890x",
        expect![
            "metadata.name must be a DNS label that starts with a letter and has at most 40 characters, because the children are named after it; found \"a234567890123456789012345678901234567890x\""
        ],
    );
    refused(
        "  name: flash",
        "  namespace: default",
        expect![
            "metadata.name must be a DNS label that starts with a letter and has at most 40 characters, because the children are named after it; found \"\""
        ],
    );
    refused(
        "{hostPath: /models/flash}",
        "{}",
        expect!["spec.model.source must have exactly one of hostPath, pvc, image, huggingFace"],
    );
    refused(
        "decode: {gpus: 4}",
        "decode: {gpus: 0}\n  runtime: {device: Cuda}",
        expect![
            "spec.runtime.device Cuda needs gpus above 0 for prefill and decode; device Auto computes on the CPU where gpus is 0"
        ],
    );
    refused(
        "decode: {gpus: 4}",
        "decode: {gpus: 4}\n  hostCache: {size: 1Gi}",
        expect!["spec.hostCache.size belongs to mode Size, and mode Size needs it"],
    );
    refused(
        "decode: {gpus: 4}",
        "decode: {gpus: 4, replicas: 0}",
        expect![
            "spec.decode.replicas is 0 while spec.prefill.replicas is not: a prefill without a decode serves nobody; to scale to zero set both to 0"
        ],
    );
}

#[test]
fn json_is_read_too() {
    let json = serde_json::to_string(&read(SMALL).unwrap()).unwrap();
    assert_eq!(read(&json).unwrap().name(), "flash");
}
