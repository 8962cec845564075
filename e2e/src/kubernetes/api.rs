//! The Kubernetes API through `kubectl proxy`: plain HTTP on loopback, with kubectl's own credentials.
//! One process per handle, ended when dropped.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use ureq::http::Request;

use super::environment;

/// Where a kind lives in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource {
    /// `api/v1`, `apis/apps/v1`.
    pub api: &'static str,
    pub plural: &'static str,
}

/// Declares the resources that tests speak of.
macro_rules! resources {
    ($($name:ident = $api:literal $plural:literal;)*) => {
        $(pub const $name: Resource = Resource { api: $api, plural: $plural };)*
    };
}

resources! {
    CLUSTERS = "apis/fathom.dev/v1alpha1" "inferenceclusters";
    DEFINITIONS = "apis/apiextensions.k8s.io/v1" "customresourcedefinitions";
    PODS = "api/v1" "pods";
    NODES = "api/v1" "nodes";
    NAMESPACES = "api/v1" "namespaces";
    SERVICES = "api/v1" "services";
    SECRETS = "api/v1" "secrets";
    CONFIG_MAPS = "api/v1" "configmaps";
    SERVICE_ACCOUNTS = "api/v1" "serviceaccounts";
    PERSISTENT_VOLUME_CLAIMS = "api/v1" "persistentvolumeclaims";
    PERSISTENT_VOLUMES = "api/v1" "persistentvolumes";
    EVENTS = "apis/events.k8s.io/v1" "events";
    DEPLOYMENTS = "apis/apps/v1" "deployments";
    REPLICA_SETS = "apis/apps/v1" "replicasets";
    DAEMON_SETS = "apis/apps/v1" "daemonsets";
    REVISIONS = "apis/apps/v1" "controllerrevisions";
    BUDGETS = "apis/policy/v1" "poddisruptionbudgets";
    NETWORK_POLICIES = "apis/networking.k8s.io/v1" "networkpolicies";
    ROLES = "apis/rbac.authorization.k8s.io/v1" "roles";
    ROLE_BINDINGS = "apis/rbac.authorization.k8s.io/v1" "rolebindings";
    CLUSTER_ROLES = "apis/rbac.authorization.k8s.io/v1" "clusterroles";
    CLUSTER_ROLE_BINDINGS = "apis/rbac.authorization.k8s.io/v1" "clusterrolebindings";
    CLAIMS = "apis/resource.k8s.io/v1" "resourceclaims";
    SLICES = "apis/resource.k8s.io/v1" "resourceslices";
    LEASES = "apis/coordination.k8s.io/v1" "leases";
    ENDPOINT_SLICES = "apis/discovery.k8s.io/v1" "endpointslices";
}

/// Kinds that the operator makes for one object.
pub const CHILDREN: [Resource; 11] = [
    PODS,
    CLAIMS,
    CONFIG_MAPS,
    SERVICES,
    DEPLOYMENTS,
    BUDGETS,
    NETWORK_POLICIES,
    SERVICE_ACCOUNTS,
    ROLES,
    ROLE_BINDINGS,
    REVISIONS,
];

impl Resource {
    /// The path of one object, or of the collection when `name` is empty; `namespace` is empty for cluster scope.
    pub fn path(self, namespace: &str, name: &str) -> String {
        let mut path = format!("/{}", self.api);
        if !namespace.is_empty() {
            path += &format!("/namespaces/{namespace}");
        }
        path += &format!("/{}", self.plural);
        if !name.is_empty() {
            path += &format!("/{name}");
        }
        path
    }
}

/// An answer of the API server.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub text: String,
}

impl Answer {
    /// The body of a success.
    ///
    /// # Errors
    /// With the API server's sentence.
    pub fn object(&self) -> anyhow::Result<Value> {
        if !(200..300).contains(&self.status) {
            bail!("status {}: {}", self.status, self.sentence());
        }
        serde_json::from_str(&self.text).with_context(|| format!("no JSON: {:?}", self.text))
    }

    /// The API server's sentence about a refusal.
    pub fn sentence(&self) -> String {
        let parsed: Option<Value> = serde_json::from_str(&self.text).ok();
        let message = parsed.as_ref().and_then(|status| status["message"].as_str());
        message.unwrap_or(&self.text).to_owned()
    }
}

/// How a patch is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patch {
    Merge,
    Json,
    Strategic,
    Apply,
}

/// A running `kubectl proxy`.
#[derive(Debug)]
pub struct Api {
    proxy: Child,
    base: String,
    agent: ureq::Agent,
}

impl Api {
    /// # Errors
    /// When `kubectl proxy` does not start.
    pub fn connect() -> anyhow::Result<Self> {
        let mut proxy = Command::new("kubectl")
            .args(["proxy", "--port=0"])
            .envs(environment::variables()?.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .context("starting kubectl proxy")?;
        let mut line = String::new();
        let pipe = proxy.stdout.take().context("kubectl proxy has no output")?;
        BufReader::new(pipe).read_line(&mut line)?;
        // "Starting to serve on 127.0.0.1:41325"
        let address = line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
        ensure!(address.contains(':'), "kubectl proxy said {line:?}");
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(30)))
            .build()
            .into();
        Ok(Self { proxy, base: format!("http://{address}"), agent })
    }

    /// One request; any status is an answer.
    ///
    /// # Errors
    /// When the proxy cannot be reached.
    pub fn request(&self, method: &str, path: &str, kind: &str, body: String) -> anyhow::Result<Answer> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("content-type", kind)
            .header("accept", "application/json");
        let sent = if body.is_empty() {
            self.agent.run(request.body(())?)
        } else {
            self.agent.run(request.body(body)?)
        };
        let mut answer = sent.with_context(|| format!("{method} {path}"))?;
        let text = answer.body_mut().with_config().limit(64 << 20).read_to_string()?;
        Ok(Answer { status: answer.status().as_u16(), text })
    }

    /// The text at `path`, such as logs or the metrics of a pod through the API server's proxy.
    ///
    /// # Errors
    /// When the status is no success.
    pub fn text(&self, path: &str) -> anyhow::Result<String> {
        let answer = self.request("GET", path, "application/json", String::new())?;
        ensure!((200..300).contains(&answer.status), "GET {path}: {}: {}", answer.status, answer.sentence());
        Ok(answer.text)
    }

    /// One object, or `None` when there is none.
    ///
    /// # Errors
    /// For every status but success and 404.
    pub fn find(&self, resource: Resource, namespace: &str, name: &str) -> anyhow::Result<Option<Value>> {
        let answer =
            self.request("GET", &resource.path(namespace, name), "application/json", String::new())?;
        if answer.status == 404 { Ok(None) } else { answer.object().map(Some) }
    }

    /// One object that must exist.
    ///
    /// # Errors
    /// When it does not.
    pub fn get(&self, resource: Resource, namespace: &str, name: &str) -> anyhow::Result<Value> {
        self.find(resource, namespace, name)?
            .with_context(|| format!("no {} {namespace}/{name}", resource.plural))
    }

    /// The objects that match a label selector; the empty namespace means all.
    ///
    /// # Errors
    /// When the list is refused.
    pub fn list(&self, resource: Resource, namespace: &str, selector: &str) -> anyhow::Result<Vec<Value>> {
        let path = format!(
            "{}?labelSelector={}",
            resource.path(namespace, ""),
            selector.replace('=', "%3D").replace(',', "%2C")
        );
        let mut list = self.request("GET", &path, "application/json", String::new())?.object()?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            other => bail!("{path}: items are {other}"),
        }
    }

    /// Creates; the answer may be a refusal.
    ///
    /// # Errors
    /// When the proxy cannot be reached.
    pub fn try_create(&self, resource: Resource, namespace: &str, object: &Value) -> anyhow::Result<Answer> {
        self.request("POST", &resource.path(namespace, ""), "application/json", object.to_string())
    }

    /// # Errors
    /// When it is refused.
    pub fn create(&self, resource: Resource, namespace: &str, object: &Value) -> anyhow::Result<Value> {
        self.try_create(resource, namespace, object)?
            .object()
            .with_context(|| format!("creating {}", resource.plural))
    }

    /// Patches; the answer may be a refusal. `name` may carry a subresource: `needle/status`.
    ///
    /// # Errors
    /// When the proxy cannot be reached.
    pub fn try_patch(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        how: Patch,
        patch: &Value,
    ) -> anyhow::Result<Answer> {
        let (kind, query) = match how {
            Patch::Merge => ("application/merge-patch+json", ""),
            Patch::Json => ("application/json-patch+json", ""),
            Patch::Strategic => ("application/strategic-merge-patch+json", ""),
            Patch::Apply => ("application/apply-patch+yaml", "?fieldManager=e2e&force=true"),
        };
        self.request("PATCH", &format!("{}{query}", resource.path(namespace, name)), kind, patch.to_string())
    }

    /// # Errors
    /// When it is refused.
    pub fn patch(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        how: Patch,
        patch: &Value,
    ) -> anyhow::Result<Value> {
        self.try_patch(resource, namespace, name, how, patch)?
            .object()
            .with_context(|| format!("patching {} {namespace}/{name}", resource.plural))
    }

    /// Deletes in the background; nothing there is fine. `grace` in seconds; `None`: the object's own.
    ///
    /// # Errors
    /// When it is refused.
    pub fn delete(
        &self,
        resource: Resource,
        namespace: &str,
        name: &str,
        grace: Option<u32>,
    ) -> anyhow::Result<()> {
        let mut path = format!("{}?propagationPolicy=Background", resource.path(namespace, name));
        if let Some(seconds) = grace {
            path += &format!("&gracePeriodSeconds={seconds}");
        }
        let answer = self.request("DELETE", &path, "application/json", String::new())?;
        if answer.status == 404 { Ok(()) } else { answer.object().map(drop) }
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        // Both fail only when the process is gone already.
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
    }
}
