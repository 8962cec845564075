//! A namespace of one test, with the pod-security level it asks for.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::api::{Answer, CHILDREN, CLUSTERS, NAMESPACES, PODS, Patch, Resource};
use super::{Kubernetes, objects};

/// Time for the namespace of an earlier run to go: its pods drain.
const GONE: Duration = Duration::from_secs(120);

/// What the namespace admits: the value of its enforce label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Restricted,
    Baseline,
    Privileged,
}

impl Level {
    fn label(self) -> &'static str {
        match self {
            Level::Restricted => "restricted",
            Level::Baseline => "baseline",
            Level::Privileged => "privileged",
        }
    }
}

/// Dropped, it is deleted: what it holds would be missing to the next test. With `FATHOM_KEEP=1` it stays after a failed
/// test to be looked at, and the next run deletes it first.
#[derive(Debug)]
pub struct Namespace<'k> {
    pub name: String,
    kubernetes: &'k Kubernetes,
}

/// A condition of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub status: String,
    pub reason: String,
    pub message: String,
    pub observed_generation: i64,
}

/// A pod, as much as tests ask of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodState {
    pub name: String,
    pub uid: String,
    pub restarts: u64,
    pub ready: bool,
    pub ending: bool,
    pub revision: String,
    pub role: String,
    pub node: String,
    /// Its IP, once it has one.
    pub address: String,
}

impl<'k> Namespace<'k> {
    /// `e2e-NAME`, empty.
    ///
    /// # Errors
    /// When one of an earlier run does not go.
    pub fn create(kubernetes: &'k Kubernetes, name: &str, level: Level) -> anyhow::Result<Self> {
        let name = format!("e2e-{name}");
        kubernetes.api.delete(NAMESPACES, "", &name, None)?;
        kubernetes.wait(&format!("namespace {name} of an earlier run to go"), GONE, &[&name], || {
            Ok(kubernetes.api.find(NAMESPACES, "", &name)?.is_none().then_some(()))
        })?;
        let object = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": level.label()}},
        });
        kubernetes.api.create(NAMESPACES, "", &object)?;
        // A pod needs the namespace's service account, which a controller makes.
        kubernetes.wait("the default service account", Duration::from_secs(20), &[], || {
            kubernetes.api.find(super::api::SERVICE_ACCOUNTS, &name, "default")
        })?;
        Ok(Self { name, kubernetes })
    }

    /// [`Kubernetes::wait`] with this namespace in the output of a failure.
    ///
    /// # Errors
    /// After `limit`.
    pub fn wait<T>(
        &self,
        what: &str,
        limit: Duration,
        check: impl FnMut() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        self.kubernetes.wait(what, limit, &[&self.name], check)
    }

    /// [`Kubernetes::holds_for`] likewise.
    ///
    /// # Errors
    /// With the first complaint.
    pub fn holds_for(
        &self,
        time: Duration,
        check: impl FnMut() -> anyhow::Result<Option<String>>,
    ) -> anyhow::Result<()> {
        self.kubernetes.holds_for(time, &[&self.name], check)
    }

    /// Applies an InferenceCluster; its uid.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub fn apply(&self, object: &Value) -> anyhow::Result<String> {
        let name = object["metadata"]["name"].as_str().context("the object has no name")?;
        let applied = self.try_apply(object)?.object().with_context(|| format!("applying {name}"))?;
        Ok(objects::uid(&applied))
    }

    /// Applies an InferenceCluster; the answer may be a refusal.
    ///
    /// # Errors
    /// When the API cannot be reached.
    pub fn try_apply(&self, object: &Value) -> anyhow::Result<Answer> {
        let name = object["metadata"]["name"].as_str().context("the object has no name")?;
        self.kubernetes.api.try_patch(CLUSTERS, &self.name, name, Patch::Apply, object)
    }

    /// Changes the spec of an InferenceCluster by a merge patch.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub fn change(&self, name: &str, spec: &Value) -> anyhow::Result<()> {
        self.kubernetes.api.patch(CLUSTERS, &self.name, name, Patch::Merge, &json!({"spec": spec})).map(drop)
    }

    /// # Errors
    /// When there is none.
    pub fn cluster(&self, name: &str) -> anyhow::Result<Value> {
        self.kubernetes.api.get(CLUSTERS, &self.name, name)
    }

    /// A condition that speaks of the object's newest generation.
    ///
    /// # Errors
    /// When there is no such object.
    pub fn condition(&self, name: &str, kind: &str) -> anyhow::Result<Option<Condition>> {
        let object = self.cluster(name)?;
        let generation = object["metadata"]["generation"].as_i64();
        Ok(objects::condition(&object, kind).filter(|c| Some(c.observed_generation) == generation))
    }

    /// Waits until condition `kind` has `status` for the newest generation, with `reason` unless that is empty.
    ///
    /// # Errors
    /// After `limit`.
    pub fn wait_condition(
        &self,
        name: &str,
        kind: &str,
        status: &str,
        reason: &str,
        limit: Duration,
    ) -> anyhow::Result<Condition> {
        self.wait(&format!("{name} to be {kind}={status} {reason}"), limit, || {
            let found = self.condition(name, kind)?;
            Ok(found.filter(|c| c.status == status && (reason.is_empty() || c.reason == reason)))
        })
    }

    /// Waits until the object is Ready.
    ///
    /// # Errors
    /// After `limit`.
    pub fn wait_ready(&self, name: &str, limit: Duration) -> anyhow::Result<()> {
        self.wait_condition(name, "Ready", "True", "", limit).map(drop)
    }

    /// The engine pods of an object by replica name (`needle-prefill-0`), those that end left out.
    ///
    /// # Errors
    /// When the list is refused.
    pub fn engines(&self, name: &str) -> anyhow::Result<BTreeMap<String, PodState>> {
        let pods = self.pods(&format!("fathom.dev/cluster={name}"))?;
        let engines = pods.into_iter().filter(|pod| pod.role != "router" && !pod.ending);
        Ok(engines.map(|pod| (objects::replica_of(&pod.name), pod)).collect())
    }

    /// Pods by label.
    ///
    /// # Errors
    /// When the list is refused.
    pub fn pods(&self, selector: &str) -> anyhow::Result<Vec<PodState>> {
        Ok(self.kubernetes.api.list(PODS, &self.name, selector)?.iter().map(objects::pod_state).collect())
    }

    /// `kind/name` of everything that the object with this uid owns.
    ///
    /// # Errors
    /// When a list is refused.
    pub fn owned(&self, uid: &str) -> anyhow::Result<Vec<String>> {
        let mut owned = Vec::new();
        for resource in CHILDREN {
            for child in self.kubernetes.api.list(resource, &self.name, "")? {
                if objects::is_owned_by(&child, uid) {
                    owned.push(format!(
                        "{}/{}",
                        resource.plural,
                        child["metadata"]["name"].as_str().unwrap_or_default()
                    ));
                }
            }
        }
        owned.sort();
        Ok(owned)
    }

    /// Deletes a child and waits until another with the same name (pods: of the same replica) is there and not ending.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn delete_and_see_return(
        &self,
        resource: Resource,
        name: &str,
        limit: Duration,
    ) -> anyhow::Result<Value> {
        let before = objects::uid(&self.kubernetes.api.get(resource, &self.name, name)?);
        ensure!(!before.is_empty(), "{} {name} has no uid", resource.plural);
        self.kubernetes.api.delete(resource, &self.name, name, None)?;
        self.wait(&format!("{} {name} to be back", resource.plural), limit, || {
            let found = self.kubernetes.api.find(resource, &self.name, name)?;
            Ok(found.filter(|o| objects::uid(o) != before && o["metadata"]["deletionTimestamp"].is_null()))
        })
    }

    /// Deletes an object and waits until nothing of it is left.
    ///
    /// # Errors
    /// With what is left after `limit`.
    pub fn delete_whole(&self, name: &str, uid: &str, limit: Duration) -> anyhow::Result<()> {
        self.kubernetes.api.delete(CLUSTERS, &self.name, name, None)?;
        let mut left = Vec::new();
        let gone = self.wait(&format!("everything of {name} to go"), limit, || {
            left = self.owned(uid)?;
            Ok(left.is_empty().then_some(()))
        });
        gone.with_context(|| format!("left: {left:?}"))
    }

    /// The cluster that this namespace lies in.
    pub fn kubernetes(&self) -> &'k Kubernetes {
        self.kubernetes
    }

    /// Deletes the namespace and waits until it is gone.
    ///
    /// # Errors
    /// When it stays.
    pub fn remove(self, limit: Duration) -> anyhow::Result<()> {
        self.kubernetes.api.delete(NAMESPACES, "", &self.name, None)?;
        self.wait("the namespace to go", limit, || {
            Ok(self.kubernetes.api.find(NAMESPACES, "", &self.name)?.is_none().then_some(()))
        })
    }

    /// The text of one metric series of a pod of this namespace, as `/metrics` prints it.
    ///
    /// # Errors
    /// When the pod does not answer or has no such series.
    pub fn metric(&self, pod: &str, port: u16, series: &str) -> anyhow::Result<f64> {
        let path = PODS.path(&self.name, &format!("{pod}:{port}/proxy/metrics"));
        let text = self.kubernetes.api.text(&path)?;
        let Some(value) = text.lines().find_map(|line| line.strip_prefix(series)) else {
            bail!("{pod} has no {series}");
        };
        value.trim().parse().with_context(|| format!("{series} is {value:?}"))
    }

    /// `/server_info` of an engine or router pod.
    ///
    /// # Errors
    /// When the pod does not answer.
    pub fn server_info(&self, pod: &str) -> anyhow::Result<Value> {
        let path = PODS.path(&self.name, &format!("{pod}:8000/proxy/server_info"));
        Ok(serde_json::from_str(&self.kubernetes.api.text(&path)?)?)
    }
}

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("FATHOM_KEEP").is_some() {
            eprintln!("namespace {} is left to be looked at", self.name);
        } else if let Err(error) = self.kubernetes.api.delete(NAMESPACES, "", &self.name, None) {
            eprintln!("deleting namespace {}: {error:#}", self.name);
        }
    }
}
