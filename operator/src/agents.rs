//! The operator's side of the node agents: one stream of facts from each, kept open, and the newest facts of every node.
//! In: the agents' pods and the CA, as watches find them. Out: facts with their ages, and a counter that wakes reconciles.
//! Never: facts of a node taken from another node's agent; a wake-up for noise (see `NodeFacts::differs_materially`);
//! facts forgotten because an agent is gone, since running pods were placed by them: they only grow old.

mod store;
mod stream;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use node_facts::NodeFacts;
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};

use store::Store;

/// Kubernetes is made for 5,000 nodes at most; pods beyond are not dialled, with a log line.
pub const MAX_AGENTS: usize = 5_000;

/// Connections that are being made at the same time: a new leader meets all agents at once.
const DIALS: usize = 64;

/// How to reach agents.
#[derive(Debug, Clone)]
pub struct AgentSettings {
    /// Holds the token to show; read again for each connection, since the kubelet renews it.
    pub token_file: PathBuf,
    /// Wait after the first failure; doubles with each further one.
    pub first_retry: Duration,
    /// Longest wait; also how long a stream must have lasted for the next wait to be the first again.
    pub longest_retry: Duration,
}

impl AgentSettings {
    pub fn new(token_file: PathBuf) -> Self {
        AgentSettings {
            token_file,
            first_retry: Duration::from_millis(500),
            longest_retry: Duration::from_secs(30),
        }
    }
}

/// One agent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AgentPod {
    pub name: String,
    /// Node that the pod runs on: the facts are that node's, whatever the agent says.
    pub node: String,
    pub address: SocketAddr,
}

/// How many agents there are, and from how many facts arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    pub expected: usize,
    pub connected: usize,
}

/// Handle to all agents; clones are the same.
#[derive(Debug, Clone)]
pub struct Agents {
    pods: watch::Sender<Vec<AgentPod>>,
    ca: watch::Sender<Option<Arc<[u8]>>>,
    store: Arc<Mutex<Store>>,
    changed: watch::Sender<u64>,
}

impl Agents {
    /// The handle, and the work behind it: to be polled for as long as facts are wanted; dropping it closes all streams.
    pub fn new(settings: AgentSettings) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let agents = Agents {
            pods: watch::Sender::new(Vec::new()),
            ca: watch::Sender::new(None),
            store: Arc::new(Mutex::new(Store::default())),
            changed: watch::Sender::new(0),
        };
        let work = keep_streams(agents.clone(), Arc::new(settings));
        (agents, work)
    }

    /// The agents that there are now; streams to others end.
    pub fn set_pods(&self, mut pods: Vec<AgentPod>) {
        pods.sort();
        pods.dedup();
        if pods.len() > MAX_AGENTS {
            tracing::error!(
                pods = pods.len(),
                limit = MAX_AGENTS,
                "more node agents than nodes of any cluster; the rest is ignored"
            );
            pods.truncate(MAX_AGENTS);
        }
        self.pods.send_if_modified(|old| {
            let differs = *old != pods;
            *old = pods;
            differs
        });
    }

    /// Certificates (PEM, one or several) that agents' certificates must come from; holds for connections made from now on.
    /// Nothing is dialled before the first call.
    pub fn set_ca(&self, pem: Vec<u8>) {
        self.ca.send_if_modified(|old| {
            let differs = old.as_deref() != Some(&pem[..]);
            *old = Some(pem.into());
            differs
        });
    }

    /// The newest facts of each node whose agent has ever reported, by node, with their ages.
    pub fn snapshot(&self) -> Vec<(Arc<NodeFacts>, Duration)> {
        self.lock().snapshot(Instant::now())
    }

    /// A number that grows when facts change in a way that a plan may depend on, or when a node's facts become stale or
    /// fresh again.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Nodes whose facts changed, became stale or fresh since [`Agents::changed`] showed this number.
    pub fn changed_since(&self, count: u64) -> BTreeSet<String> {
        self.lock().changed_since(count)
    }

    pub fn connections(&self) -> Connections {
        Connections { expected: self.pods.borrow().len(), connected: self.lock().connected() }
    }

    /// Why agents do not answer, by pod name: those that should and do not.
    pub fn problems(&self) -> BTreeMap<String, String> {
        self.lock().problems()
    }

    /// Facts, as if the agent of their node had sent them.
    #[cfg(test)]
    pub(crate) fn report(&self, facts: &NodeFacts) {
        let address = SocketAddr::from(([127, 0, 0, 1], 9443));
        let pod = AgentPod { name: format!("agent-{}", facts.node), node: facts.node.clone(), address };
        self.update(|store| store.put(&pod, facts, Duration::ZERO, Instant::now()));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the store, and wakes whoever waits if that matters.
    fn update(&self, change: impl FnOnce(&mut Store)) {
        let mut store = self.lock();
        change(&mut store);
        let count = store.changes();
        self.changed.send_if_modified(|seen| std::mem::replace(seen, count) != count);
    }
}

/// Streams to the pods there are. A stream's task never ends by itself.
async fn keep_streams(agents: Agents, settings: Arc<AgentSettings>) {
    let mut wanted = agents.pods.subscribe();
    let dials = Arc::new(Semaphore::new(DIALS));
    let mut tasks: JoinSet<AgentPod> = JoinSet::new();
    let mut running: BTreeMap<AgentPod, AbortHandle> = BTreeMap::new();
    let mut ages = tokio::time::interval(store::AGE_CHECK);
    ages.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let pods = wanted.borrow_and_update().clone();
        running.retain(|pod, task| {
            let keep = pods.binary_search(pod).is_ok();
            if !keep {
                task.abort();
                agents.update(|store| store.forget_agent(pod));
            }
            keep
        });
        for pod in pods {
            running.entry(pod).or_insert_with_key(|pod| {
                agents.update(|store| store.expect_agent(pod));
                let (agents, settings, dials) = (agents.clone(), settings.clone(), dials.clone());
                tasks.spawn(stream::keep(pod.clone(), agents, settings, dials))
            });
        }
        tokio::select! {
            // The sender lives in `agents`.
            _ = wanted.changed() => {}
            _ = ages.tick() => agents.update(|store| store.note_ages(Instant::now())),
            Some(ended) = tasks.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    tracing::error!(%error, "the stream of a node agent ended by a bug; it is started again");
                    running.retain(|_, task| !task.is_finished());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
