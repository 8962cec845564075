//! A client inside the cluster: a pod with a shell in a namespace of its own.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::api::PODS;
use super::namespace::Namespace;
use crate::needle::Row;

/// Time for the pod to start.
const START: Duration = Duration::from_secs(60);
/// Busybox with nc and wget, from a static binary.
const BOX: &str = "fathom.dev/box:1";

/// A running client.
#[derive(Debug)]
pub struct ClientPod<'n, 'k> {
    namespace: &'n Namespace<'k>,
    name: String,
}

impl<'n, 'k> ClientPod<'n, 'k> {
    /// # Errors
    /// When the pod does not start.
    pub fn start(namespace: &'n Namespace<'k>, name: &str) -> anyhow::Result<Self> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": false,
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [{
                    "name": "box", "image": BOX, "imagePullPolicy": "IfNotPresent",
                    "command": ["/bin/busybox", "sleep", "100000"],
                    "securityContext": {
                        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
                    },
                }],
            },
        });
        let kubernetes = namespace.kubernetes();
        kubernetes.api.create(PODS, &namespace.name, &pod)?;
        namespace.wait(&format!("pod {name} to run"), START, || {
            let pod = kubernetes.api.get(PODS, &namespace.name, name)?;
            Ok((pod["status"]["phase"] == "Running").then_some(()))
        })?;
        Ok(Self { namespace, name: name.to_owned() })
    }

    /// Runs a busybox applet in the pod; its output when it succeeds.
    ///
    /// # Errors
    /// With what it said.
    pub fn busybox(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut all = vec!["exec", "-n", &self.namespace.name, &self.name, "--", "/bin/busybox"];
        all.extend(args);
        self.namespace.kubernetes().kubectl(&all)
    }

    /// Asks one question of the needle model at `endpoint` (`http://needle.ns.svc`) and checks the answer.
    ///
    /// # Errors
    /// When there is no answer, or a wrong one.
    pub fn ask(&self, endpoint: &str, row: &Row) -> anyhow::Result<()> {
        let url = format!("{endpoint}/v1/chat/completions");
        let body = row.body().to_string();
        let header = "--header=content-type: application/json";
        // Not `-T`: with it this busybox's wget ends with a segmentation fault after it has looked the name up.
        let wget = ["timeout", "60", "/bin/busybox", "wget", "-q", "-O", "-", header, "--post-data"];
        let text = self.busybox(&[&wget[..], &[&body, &url]].concat())?;
        let answer: Value = serde_json::from_str(&text).with_context(|| format!("no JSON: {text:?}"))?;
        let content = answer["choices"][0]["message"]["content"].as_str();
        ensure!(content == Some(row.expected.as_str()), "expected {:?}, got {answer}", row.expected);
        Ok(())
    }

    /// Whether a TCP connection to `host:port` is possible.
    ///
    /// # Errors
    /// When the pod cannot be asked.
    pub fn reaches(&self, host: &str, port: u16) -> anyhow::Result<bool> {
        // A server that says nothing at the end of input is left after a while: it was reached (143: ended by timeout).
        let script = format!(
            "/bin/busybox timeout 6 /bin/busybox nc -w 3 {host} {port} </dev/null >/dev/null; \
             case $? in 0|124|143) echo open;; 1) echo closed;; *) echo $?;; esac"
        );
        match self.busybox(&["sh", "-c", &script])?.trim() {
            "open" => Ok(true),
            "closed" => Ok(false),
            other => bail!("nc said {other:?}"),
        }
    }
}
