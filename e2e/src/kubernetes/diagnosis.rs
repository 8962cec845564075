//! What a person would look at first when a wait ran out: objects' conditions, pods, events, the operator's last words.

use std::fmt::Write;

use serde_json::Value;

use super::api::{CLUSTERS, EVENTS, PODS};
use super::{Kubernetes, SYSTEM};

/// Lines of each log that are shown.
const LOG_LINES: usize = 25;

/// The state of Fathom and of `namespaces`, for a failed test's output. Never an error: what cannot be read is said.
pub(super) fn describe(kubernetes: &Kubernetes, namespaces: &[&str]) -> String {
    let mut text = String::new();
    for namespace in namespaces.iter().copied().chain([SYSTEM]) {
        let _ = writeln!(text, "== namespace {namespace}");
        for (resource, line) in [(CLUSTERS, cluster as fn(&Value) -> String), (PODS, pod), (EVENTS, event)] {
            if namespace == SYSTEM && resource != PODS {
                continue;
            }
            match kubernetes.api.list(resource, namespace, "") {
                Ok(found) => {
                    for object in found.iter().rev().take(40).rev() {
                        let _ = writeln!(text, "{}", line(object));
                    }
                }
                Err(error) => {
                    let _ = writeln!(text, "{}: {error:#}", resource.plural);
                }
            }
        }
    }
    let _ = writeln!(text, "== operator's log\n{}", operator_log(kubernetes));
    text
}

fn cluster(object: &Value) -> String {
    let mut text = format!(
        "{} generation {} observed {}",
        object["metadata"]["name"], object["metadata"]["generation"], object["status"]["observedGeneration"]
    );
    for condition in object["status"]["conditions"].as_array().into_iter().flatten() {
        let _ = write!(
            text,
            "\n  {}={} {}: {}",
            word(&condition["type"]),
            word(&condition["status"]),
            word(&condition["reason"]),
            word(&condition["message"])
        );
    }
    text
}

fn pod(object: &Value) -> String {
    let status = &object["status"];
    let mut text = format!(
        "pod {} {} {} {}",
        word(&object["metadata"]["name"]),
        word(&status["phase"]),
        word(&status["reason"]),
        word(&object["spec"]["nodeName"])
    );
    for condition in status["conditions"].as_array().into_iter().flatten() {
        if condition["status"] == "False" {
            let _ = write!(text, "\n  {}: {}", word(&condition["type"]), word(&condition["message"]));
        }
    }
    for container in status["containerStatuses"].as_array().into_iter().flatten() {
        let _ = write!(
            text,
            "\n  {} restarts {} now {} before {}",
            word(&container["name"]),
            container["restartCount"],
            container["state"],
            container["lastState"]
        );
    }
    text
}

fn event(object: &Value) -> String {
    format!(
        "event {} {}/{}: {}",
        word(&object["reason"]),
        word(&object["regarding"]["kind"]),
        word(&object["regarding"]["name"]),
        word(&object["note"])
    )
}

fn operator_log(kubernetes: &Kubernetes) -> String {
    let selector = "app.kubernetes.io/name=fathom,app.kubernetes.io/component=operator";
    let pods = kubernetes.api.list(PODS, SYSTEM, selector).unwrap_or_default();
    let mut text = String::new();
    for pod in pods {
        let name = word(&pod["metadata"]["name"]);
        let path = format!("{}?tailLines={LOG_LINES}", PODS.path(SYSTEM, &format!("{name}/log")));
        let log = kubernetes.api.text(&path).unwrap_or_else(|error| format!("{error:#}"));
        let _ = writeln!(text, "-- {name}\n{log}");
    }
    text
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
