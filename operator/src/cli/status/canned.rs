//! A status as an operator wrote it, for tests of what is printed.

use crate::cli::connection::Reported;
use k8s_openapi::jiff;
use serde_json::{Value, json};

pub(in crate::cli) fn now() -> jiff::Timestamp {
    "2026-11-30T12:00:00Z".parse().unwrap()
}

fn condition(kind: &str, status: &str, since: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": kind, "status": status, "lastTransitionTime": since, "reason": reason, "message": message,
        "observedGeneration": 3,
    })
}

fn reported(generation: i64, status: Value) -> Reported {
    Reported {
        name: "flash".to_owned(),
        namespace: "team-a".to_owned(),
        generation: Some(generation),
        status: serde_json::from_value(status).unwrap(),
    }
}

/// Everything runs; prefill's memory could not be bound; a second node was looked at.
pub(in crate::cli) fn ready() -> Reported {
    let old = "2026-11-28T09:00:00Z";
    let well = |kind: &str, message: &str| condition(kind, "True", old, "AsExpected", message);
    let refused =
        "flash-prefill-0 memory: EPERM: add CAP_SYS_NICE. The spec does not require it, so these pods serve";
    let achieved = json!({"state": "Achieved"});
    reported(
        3,
        json!({
            "observedGeneration": 3,
            "conditions": [
                well("Accepted", "the object is understood, and its names are free"),
                well("Planned", "2 engine replicas have their places"),
                condition("PlacementSatisfied", "False", "2026-11-30T11:59:15Z", "NotAchieved", refused),
                condition("Progressing", "False", old, "AsExpected", "everything asked for is there"),
                well("RolesReady", "prefill 1/1, decode 1/1, router 2/2"),
                well("Routable", "revision 3f2a9c01d4 answers requests"),
                condition("Degraded", "False", old, "AsExpected", "nothing works less well than planned"),
                well("Ready", "revision 3f2a9c01d4 answers requests"),
            ],
            "summary": {
                "prefill": "1/1", "decode": "1/1", "router": "2/2", "placement": "DRA", "hostCache": "255.7 GiB",
            },
            "plan": {
                "replicas": [
                    {
                        "name": "flash-prefill-0", "node": "n1", "numaNode": 0, "gpus": ["GPU-a", "GPU-b"],
                        "cpus": "0-15", "memory": "140Gi", "claim": "flash-prefill-0-ab12c",
                        "achieved": {
                            "gpus": achieved, "cpus": achieved,
                            "memory": {"state": "Refused", "message": "EPERM: add CAP_SYS_NICE"},
                        },
                    },
                    {
                        "name": "flash-decode-0", "node": "n1", "numaNode": 1, "gpus": ["GPU-c", "GPU-d"],
                        "cpus": "16-31", "memory": "170Gi", "claim": "flash-decode-0-cd34e",
                        "achieved": {"gpus": achieved, "cpus": achieved, "memory": achieved},
                    },
                ],
                "rejected": [
                    {
                        "node": "n2", "numaNode": 0, "roles": ["prefill", "decode"], "reason": "TooFewGpus",
                        "message": "2 of 4 GPUs free",
                    },
                    {"node": "n3", "roles": ["prefill"], "reason": "Unknown", "message": "no facts of its GPUs"},
                ],
                "rejectedTotal": 40,
                "notes": ["n3: the facts are 90 s old"],
            },
            "hostCache": [
                {
                    "replica": "flash-prefill-0", "asked": "150Gi", "granted": "115343360Ki", "ratio": 2.56,
                    "limitedBy": "NumaHeadroom",
                    "message": "asked 150 GiB, granted 112.6 GiB: NUMA node 0 headroom, 80 % of (176.0 GiB available - 12.0 GiB reserve - 20.0 GiB own needs)",
                },
            ],
            "queueLimit": {
                "tokens": 78_144, "requests": 32,
                "derivation": "0.8 x 3,300 tokens/s (measured on 4 x RTX PRO 6000) x (30 s to the first token - 0.4 s fixed part)",
            },
            "endpoint": "http://flash.team-a.svc",
            "currentRevision": "3f2a9c01d4", "lastGoodRevision": "3f2a9c01d4",
            "currentInputs": "flash-3f2a9c01d4", "lastGoodInputs": "flash-3f2a9c01d4",
            "placement": {"mode": "DRA", "because": "resource.k8s.io/v1 is served, and gpu.nvidia.com offers GPUs", "memory": "bound, where the namespace permits it"},
        }),
    )
}

/// It fits nowhere, and a newer spec was not looked at yet.
pub(in crate::cli) fn pending() -> Reported {
    let since = "2026-11-30T10:00:00Z";
    let message =
        "decode needs 8 GPUs on one NUMA node, and no NUMA node has more than 4; 4 places were looked at";
    reported(
        4,
        json!({
            "observedGeneration": 3,
            "conditions": [
                condition("Planned", "False", since, "NotFeasible", message),
                condition("Ready", "False", since, "NotFeasible", message),
            ],
            "summary": {"prefill": "0/1", "decode": "0/1", "router": "0/1", "placement": "-", "hostCache": "off"},
            "plan": {
                "replicas": [],
                "rejected": [
                    {"node": "n1", "numaNode": 0, "roles": ["decode"], "reason": "TooFewGpus", "message": "4 of 8 GPUs"},
                ],
                "rejectedTotal": 1,
            },
        }),
    )
}

/// No operator has seen it.
pub(in crate::cli) fn unseen() -> Reported {
    reported(1, json!({}))
}
