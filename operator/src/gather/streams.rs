//! Watches: each in a task of its own with a back-off of its own, so that one that is refused slows no other.
//! In: a client, the kinds. Out: full shelves, and what changed to whoever wakes objects.
//! Never: an end. A watch that is cut, refused, or quiet for longer than its server allows begins anew.

mod life;

use std::fmt::{self, Debug};
use std::sync::Arc;

use fathom_crds::InferenceCluster;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use super::kept::{self, Kept};
use super::shelf::{Change, Shelf};
use super::stores::Stores;
use super::wake::Waker;
use crate::chain::chain;
use crate::live::child::LiveChild;
use crate::live::pod::LivePod;
use crate::metrics::Metrics;

pub use life::{Life, Lives};

/// The server ends a watch after so long; below the 240 s after which some load balancers drop quiet connections without
/// telling. The client gives up 5 s later.
const WATCH_SECONDS: u32 = 200;

/// Objects of one page of a list.
const PAGE: u32 = 500;

/// Children of ours.
const OURS: &str = "app.kubernetes.io/managed-by=fathom";

/// A named task.
pub type Named = (String, BoxFuture<'static, ()>);

/// What watches need besides the kind.
#[derive(Clone)]
pub struct Watches {
    pub client: Client,
    pub stores: Arc<Stores>,
    pub waker: Arc<Waker>,
    pub metrics: Arc<Metrics>,
    pub lives: Arc<Lives>,
    /// Empty: all.
    pub namespaces: Vec<String>,
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watches").finish_non_exhaustive()
    }
}

/// What the watcher demands of an object.
trait Watched: Clone + DeserializeOwned + Debug + Send + Sync + 'static {}

impl<R: Clone + DeserializeOwned + Debug + Send + Sync + 'static> Watched for R {}

/// One watch, before it runs.
struct Spec {
    resource: &'static str,
    scope: Arc<str>,
    labels: Option<String>,
    life: Arc<Life>,
}

impl Watches {
    /// The watches that every cluster can serve.
    pub fn always(&self, agent_namespace: &str, agent_selector: &str) -> Vec<Named> {
        let mut all: Vec<Named> = Vec::new();
        for scope in &self.scopes() {
            all.push(self.clusters(scope));
            all.push(self.pods(scope));
            all.push(self.children::<Service, _>("services", scope, |s| &s.services));
            all.push(self.children::<Deployment, _>("deployments", scope, |s| &s.deployments));
            all.push(self.children::<ControllerRevision, _>("controllerrevisions", scope, |s| &s.revisions));
            let name = "poddisruptionbudgets";
            all.push(self.children::<PodDisruptionBudget, _>(name, scope, |s| &s.disruption_budgets));
            all.push(self.children::<NetworkPolicy, _>("networkpolicies", scope, |s| &s.network_policies));
            all.push(self.children::<ServiceAccount, _>("serviceaccounts", scope, |s| &s.service_accounts));
            all.push(self.children::<Role, _>("roles", scope, |s| &s.roles));
            all.push(self.children::<RoleBinding, _>("rolebindings", scope, |s| &s.role_bindings));
            // Metadata alone: they are named by their content.
            all.push(
                self.children::<PartialObjectMeta<ConfigMap>, _>("configmaps", scope, |s| &s.config_maps),
            );
        }
        all.push(self.nodes());
        all.push(self.agent_pods(agent_namespace, agent_selector));
        all.push(self.all_namespaces());
        all
    }

    /// The watches of `resource.k8s.io/v1`, once it is known to be served.
    pub fn claims(&self) -> Vec<Named> {
        let mut all = Vec::new();
        for scope in self.scopes() {
            let spec = self.spec("resourceclaims", &scope, None);
            let api: Api<ResourceClaim> = self.namespaced(&spec);
            all.push(self.follow(spec, api, LiveChild::from, |s| &s.claims, Waker::claim));
        }
        let spec = self.spec("resourceslices", &"".into(), None);
        let api = Api::all(spec.life.touching(self.client.clone()));
        all.push(self.follow(spec, api, kept::slice, |s| &s.slices, Waker::slice));
        all
    }

    fn scopes(&self) -> Vec<Arc<str>> {
        if self.namespaces.is_empty() {
            return vec!["".into()];
        }
        self.namespaces.iter().map(|name| name.as_str().into()).collect()
    }

    fn spec(&self, resource: &'static str, scope: &Arc<str>, labels: Option<&str>) -> Spec {
        let name = if scope.is_empty() { resource.to_owned() } else { format!("{resource}/{scope}") };
        Spec { resource, scope: scope.clone(), labels: labels.map(str::to_owned), life: self.lives.add(name) }
    }

    fn namespaced<K>(&self, spec: &Spec) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let client = spec.life.touching(self.client.clone());
        if spec.scope.is_empty() { Api::all(client) } else { Api::namespaced(client, &spec.scope) }
    }

    fn clusters(&self, scope: &Arc<str>) -> Named {
        let spec = self.spec("inferenceclusters", scope, None);
        let api: Api<DeserializeGuard<InferenceCluster>> = self.namespaced(&spec);
        self.follow(spec, api, kept::stored, |s| &s.clusters, Waker::cluster)
    }

    fn pods(&self, scope: &Arc<str>) -> Named {
        let spec = self.spec("pods", scope, Some(OURS));
        let api: Api<Pod> = self.namespaced(&spec);
        self.follow(spec, api, LivePod::from, |s| &s.pods, Waker::pod)
    }

    /// Children of kind `R`, but for pods.
    fn children<R, C>(
        &self,
        resource: &'static str,
        scope: &Arc<str>,
        shelf: fn(&Stores) -> &Shelf<LiveChild<C>>,
    ) -> Named
    where
        R: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Watched,
        LiveChild<C>: From<R> + Kept,
    {
        let spec = self.spec(resource, scope, Some(OURS));
        let api: Api<R> = self.namespaced(&spec);
        self.follow(spec, api, LiveChild::from, shelf, Waker::child)
    }

    fn nodes(&self) -> Named {
        let spec = self.spec("nodes", &"".into(), None);
        let api = Api::all(spec.life.touching(self.client.clone()));
        self.follow(spec, api, kept::node, |s| &s.nodes, Waker::node)
    }

    fn all_namespaces(&self) -> Named {
        let spec = self.spec("namespaces", &"".into(), None);
        let api = Api::all(spec.life.touching(self.client.clone()));
        self.follow(spec, api, kept::namespace, |s| &s.namespaces, Waker::namespace)
    }

    fn agent_pods(&self, namespace: &str, selector: &str) -> Named {
        let life = self.lives.add("agent pods".to_owned());
        let api: Api<Pod> = Api::namespaced(life.touching(self.client.clone()), namespace);
        let spec =
            Spec { resource: "agent pods", scope: namespace.into(), labels: Some(selector.to_owned()), life };
        self.follow(spec, api, LivePod::from, |s| &s.agent_pods, |w, _| w.agent_pod())
    }

    /// The task of a watch: keep what is read of each object, wake who is concerned.
    fn follow<R: Resource + Watched, K: Kept>(
        &self,
        spec: Spec,
        api: Api<R>,
        keep: fn(R) -> K,
        shelf: fn(&Stores) -> &Shelf<K>,
        wake: fn(&Waker, &Change<K>),
    ) -> Named {
        let this = self.clone();
        let name = spec.life.name().to_owned();
        let future = async move {
            let stream = watcher(api, config(&spec));
            let mut stream = std::pin::pin!(stream.default_backoff());
            while let Some(item) = stream.next().await {
                match item {
                    Ok(event) => {
                        this.metrics.watch_event(spec.resource);
                        let done = matches!(event, Event::InitDone);
                        let event = kept_event(event, keep);
                        for change in shelf(&this.stores).take(&spec.scope, event) {
                            wake(&this.waker, &change);
                        }
                        if done {
                            spec.life.listed();
                        }
                    }
                    Err(error) => failed(&this.metrics, &spec, &error),
                }
            }
        };
        (format!("watch of {name}"), Box::pin(future))
    }
}

fn config(spec: &Spec) -> watcher::Config {
    let config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE);
    match &spec.labels {
        Some(labels) => config.labels(labels),
        None => config,
    }
}

fn kept_event<R, K>(event: Event<R>, keep: fn(R) -> K) -> Event<K> {
    match event {
        Event::Apply(object) => Event::Apply(keep(object)),
        Event::Delete(object) => Event::Delete(keep(object)),
        Event::InitApply(object) => Event::InitApply(keep(object)),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    }
}

/// An error of a watch. Compacted history (410) heals by listing anew and is nobody's mistake.
fn failed(metrics: &Metrics, spec: &Spec, error: &watcher::Error) {
    if matches!(error, watcher::Error::WatchError(status) if status.code == 410) {
        tracing::info!(
            watch = spec.life.name(),
            "the server no longer has the history since the last event; listing anew"
        );
        return;
    }
    metrics.watch_restarted(spec.resource);
    spec.life.failed(&chain(error));
}

#[cfg(test)]
mod tests;
