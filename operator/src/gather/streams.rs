//! Watches: each in a task of its own with a back-off of its own, so that one that is refused slows no other.
//! In: a client, the kinds. Out: full shelves, and what changed to whoever wakes objects.
//! Never: an end. A watch that is cut, refused, or quiet for longer than its server allows begins anew.

mod life;

use std::fmt::{self, Debug};
use std::sync::Arc;

use fathom_crds::InferenceCluster;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::Stream;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use super::kept::{Kept, Stored};
use super::shelf::{Change, Shelf};
use super::stores::Stores;
use super::wake::Waker;
use crate::chain::chain;
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
        for scope in self.scopes() {
            all.push(self.clusters(&scope));
            all.push(self.children("pods", &scope, |s| &s.pods, Waker::pod));
            all.push(self.children("services", &scope, |s| &s.services, Waker::child));
            all.push(self.children("deployments", &scope, |s| &s.deployments, Waker::child));
            all.push(self.children("controllerrevisions", &scope, |s| &s.revisions, Waker::child));
            all.push(self.children("poddisruptionbudgets", &scope, |s| &s.disruption_budgets, Waker::child));
            all.push(self.children("networkpolicies", &scope, |s| &s.network_policies, Waker::child));
            all.push(self.children("serviceaccounts", &scope, |s| &s.service_accounts, Waker::child));
            all.push(self.children("roles", &scope, |s| &s.roles, Waker::child));
            all.push(self.children("rolebindings", &scope, |s| &s.role_bindings, Waker::child));
            all.push(self.config_maps(&scope));
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
            let api = self.namespaced(&spec);
            all.push(self.follow(spec, api, |s| &s.claims, Waker::claim));
        }
        let spec = self.spec("resourceslices", &"".into(), None);
        let api = Api::all(spec.life.touching(self.client.clone()));
        all.push(self.follow(spec, api, |s| &s.slices, Waker::slice));
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
        let stored = |guard: DeserializeGuard<InferenceCluster>| match guard.0 {
            Ok(cluster) => Stored::Decoded(Arc::new(cluster)),
            Err(invalid) => {
                Stored::Undecodable { metadata: Box::new(invalid.metadata), error: invalid.error }
            }
        };
        let stream = watcher(api, config(&spec));
        self.task(spec, stream, stored, |s| &s.clusters, Waker::cluster)
    }

    fn children<K>(
        &self,
        resource: &'static str,
        scope: &Arc<str>,
        shelf: fn(&Stores) -> &Shelf<K>,
        wake: fn(&Waker, &Change<K>),
    ) -> Named
    where
        K: Kept
            + Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        let spec = self.spec(resource, scope, Some(OURS));
        let api = self.namespaced(&spec);
        self.follow(spec, api, shelf, wake)
    }

    fn follow<K>(
        &self,
        spec: Spec,
        api: Api<K>,
        shelf: fn(&Stores) -> &Shelf<K>,
        wake: fn(&Waker, &Change<K>),
    ) -> Named
    where
        K: Kept + Resource + Clone + DeserializeOwned + Debug,
    {
        let stream = watcher(api, config(&spec));
        self.task(spec, stream, |object| object, shelf, wake)
    }

    /// Names only: other people's ConfigMaps are large, and ours are named by their content.
    fn config_maps(&self, scope: &Arc<str>) -> Named {
        let spec = self.spec("configmaps", scope, Some(OURS));
        let api: Api<PartialObjectMeta<ConfigMap>> = self.namespaced(&spec);
        self.follow(spec, api, |s| &s.config_maps, Waker::child)
    }

    fn nodes(&self) -> Named {
        let spec = self.spec("nodes", &"".into(), None);
        let api = Api::all(spec.life.touching(self.client.clone()));
        self.follow(spec, api, |s| &s.nodes, Waker::node)
    }

    fn all_namespaces(&self) -> Named {
        let spec = self.spec("namespaces", &"".into(), None);
        let api: Api<PartialObjectMeta<Namespace>> = Api::all(spec.life.touching(self.client.clone()));
        self.follow(spec, api, |s| &s.namespaces, Waker::namespace)
    }

    fn agent_pods(&self, namespace: &str, selector: &str) -> Named {
        let life = self.lives.add("agent pods".to_owned());
        let api = Api::namespaced(life.touching(self.client.clone()), namespace);
        let spec =
            Spec { resource: "agent pods", scope: namespace.into(), labels: Some(selector.to_owned()), life };
        self.follow(spec, api, |s| &s.agent_pods, |w, _| w.agent_pod())
    }

    /// The task of a watch: prune, keep, wake.
    fn task<R, K: Kept>(
        &self,
        spec: Spec,
        stream: impl Stream<Item = watcher::Result<Event<R>>> + Send + 'static,
        convert: impl Fn(R) -> K + Send + 'static,
        shelf: fn(&Stores) -> &Shelf<K>,
        wake: fn(&Waker, &Change<K>),
    ) -> Named
    where
        R: Send + 'static,
    {
        let this = self.clone();
        let name = spec.life.name().to_owned();
        let future = async move {
            let mut stream = std::pin::pin!(stream.default_backoff());
            while let Some(item) = stream.next().await {
                match item {
                    Ok(event) => {
                        this.metrics.watch_event(spec.resource);
                        let done = matches!(event, Event::InitDone);
                        let event = converted(event, &convert);
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

fn converted<R, K: Kept>(event: Event<R>, convert: &impl Fn(R) -> K) -> Event<K> {
    let keep = |object: R| {
        let mut kept = convert(object);
        kept.prune();
        kept
    };
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
