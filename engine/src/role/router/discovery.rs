//! Follows the EndpointSlices of the two engine Services, and knows how current the roster is.
//! In: the Kubernetes API, with the pod's own ServiceAccount (get, list and watch of EndpointSlices in one namespace).
//! Out: rosters; a [`Seen`] for status and metrics.
//! Never: a worker taken away because the API is silent: the last known roster is used until a newer one comes.
//! List, then watch from there; whatever goes wrong begins again with a list, after a pause that grows. A watch is ended
//! after a while by either side, so that a connection that died in silence is noticed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine_spec::config::DiscoveryConfig;
use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use tokio::time::timeout;

use super::Router;
use super::roster::{Roster, SERVICE_LABEL};
use crate::chain::chain;

const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// The server ends a watch after this long.
const WATCH_SECONDS: u32 = 120;
/// And we, if it does not.
const WATCH_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);
/// Watches that end at once do not follow each other faster.
const BETWEEN_WATCHES: Duration = Duration::from_millis(500);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How the API is reached.
#[derive(Debug)]
pub(super) enum Access {
    /// As a pod does.
    InCluster,
    #[cfg(test)]
    At(Box<kube::Config>),
}

impl Access {
    fn config(&self) -> Result<kube::Config, DiscoveryError> {
        match self {
            Access::InCluster => Ok(kube::Config::incluster()?),
            #[cfg(test)]
            Access::At(config) => Ok((**config).clone()),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum DiscoveryError {
    #[error("this is no pod with a service account: peers.discovery works in a cluster only")]
    NoAccount(#[from] kube::config::InClusterError),
    #[error("asking the Kubernetes API for EndpointSlices")]
    Api(#[from] kube::Error),
    #[error("the Kubernetes API ended the watch of EndpointSlices: {0}")]
    Ended(String),
    #[error("the Kubernetes API did not answer in {} s", .0.as_secs())]
    Silent(Duration),
    #[error("the Kubernetes API gave a list of EndpointSlices without a version")]
    NoVersion,
}

/// How current the roster is.
#[derive(Debug)]
pub(super) struct Discovery {
    in_cluster: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Since when the roster is not known to be current, and why.
    stale: Option<(Instant, String)>,
    failures: u64,
}

/// What is seen of it from outside.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) source: &'static str,
    /// For how long the roster has not been current.
    pub(super) stale: Option<Duration>,
    pub(super) failures: u64,
}

impl Discovery {
    pub(super) fn new(in_cluster: bool) -> Self {
        let why = "the Kubernetes API has not answered yet";
        let stale = in_cluster.then(|| (Instant::now(), why.to_owned()));
        Self { in_cluster, state: Mutex::new(State { stale, failures: 0 }) }
    }

    pub(super) fn seen(&self) -> Seen {
        let state = self.lock();
        Seen {
            source: if self.in_cluster { "EndpointSlices" } else { "list" },
            stale: state.stale.as_ref().map(|(since, _)| since.elapsed()),
            failures: state.failures,
        }
    }

    /// Why the roster may not be current.
    pub(super) fn trouble(&self) -> Option<String> {
        self.lock().stale.as_ref().map(|(_, why)| why.clone())
    }

    fn synced(&self) {
        if self.lock().stale.take().is_some() {
            tracing::info!("the list of workers is current");
        }
    }

    fn lost(&self, why: String) {
        let mut state = self.lock();
        state.failures += 1;
        let since = state.stale.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        if state.stale.as_ref().is_none_or(|(_, before)| *before != why) {
            tracing::warn!(why, "the list of workers may not be current; the last known one is used");
        }
        state.stale = Some((since, why));
    }

    /// Every change is complete before the lock is given back.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the router's roster as the cluster's EndpointSlices have it; never ends.
pub(super) async fn follow(router: Arc<Router>, discovery: DiscoveryConfig, access: Access) {
    let mut pause = FIRST_PAUSE;
    loop {
        let Err(error) = session(&router, &discovery, &access, &mut pause).await;
        router.discovery.lost(chain(&error));
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// Lists and watches until something goes wrong.
async fn session(
    router: &Router,
    discovery: &DiscoveryConfig,
    access: &Access,
    pause: &mut Duration,
) -> Result<Infallible, DiscoveryError> {
    let client = Client::try_from(access.config()?)?;
    let slices = Slices { api: Api::namespaced(client, &discovery.namespace), selector: selector(discovery) };
    loop {
        let (mut known, mut version) = slices.list().await?;
        publish(router, discovery, &known);
        while slices.watch(router, discovery, &mut known, &mut version).await? == Ended::InTime {
            *pause = FIRST_PAUSE;
            tokio::time::sleep(BETWEEN_WATCHES).await;
        }
        tokio::time::sleep(BETWEEN_WATCHES).await;
    }
}

fn selector(discovery: &DiscoveryConfig) -> String {
    let services: Vec<&str> =
        discovery.prefill_service.iter().chain([&discovery.decode_service]).map(String::as_str).collect();
    format!("{SERVICE_LABEL} in ({})", services.join(","))
}

/// Slices by name: a slice holds up to a hundred endpoints of the two Services, so there are few.
type Known = BTreeMap<String, EndpointSlice>;

fn publish(router: &Router, discovery: &DiscoveryConfig, known: &Known) {
    let roster = Roster::found(known.values(), discovery);
    router.roster.send_if_modified(|before| {
        let differs = *before != roster;
        if differs {
            *before = roster;
        }
        differs
    });
    router.discovery.synced();
}

/// How a watch ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The next one goes on from there.
    InTime,
    /// What it began from is no longer known: list again.
    TooOld,
}

struct Slices {
    api: Api<EndpointSlice>,
    selector: String,
}

impl Slices {
    async fn list(&self) -> Result<(Known, String), DiscoveryError> {
        let params = ListParams::default().labels(&self.selector);
        let listed = timeout(LIST_TIMEOUT, self.api.list(&params)).await;
        let list = listed.map_err(|_| DiscoveryError::Silent(LIST_TIMEOUT))??;
        let version = list.metadata.resource_version.ok_or(DiscoveryError::NoVersion)?;
        Ok((list.items.into_iter().map(|slice| (name(&slice), slice)).collect(), version))
    }

    async fn watch(
        &self,
        router: &Router,
        discovery: &DiscoveryConfig,
        known: &mut Known,
        version: &mut String,
    ) -> Result<Ended, DiscoveryError> {
        let params = WatchParams::default().labels(&self.selector).timeout(WATCH_SECONDS);
        let watching = async {
            let mut events = self.api.watch(&params, version).await?.boxed();
            while let Some(event) = events.try_next().await? {
                match event {
                    WatchEvent::Added(slice) | WatchEvent::Modified(slice) => {
                        version_of(&slice, version);
                        known.insert(name(&slice), slice);
                    }
                    WatchEvent::Deleted(slice) => {
                        version_of(&slice, version);
                        known.remove(&name(&slice));
                    }
                    WatchEvent::Bookmark(bookmark) => {
                        *version = bookmark.metadata.resource_version;
                        continue;
                    }
                    WatchEvent::Error(status) if status.code == 410 => return Ok(Ended::TooOld),
                    WatchEvent::Error(status) => return Err(DiscoveryError::Ended(status.message)),
                }
                publish(router, discovery, known);
            }
            Ok(Ended::InTime)
        };
        timeout(WATCH_TIMEOUT, watching).await.unwrap_or(Err(DiscoveryError::Silent(WATCH_TIMEOUT)))
    }
}

fn name(slice: &EndpointSlice) -> String {
    slice.metadata.name.clone().unwrap_or_default()
}

fn version_of(slice: &EndpointSlice, version: &mut String) {
    if let Some(newer) = &slice.metadata.resource_version {
        version.clone_from(newer);
    }
}
