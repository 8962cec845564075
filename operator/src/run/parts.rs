//! What the process is put together from.
//! In: [`Config`]. Out: the tasks. Never: work before a task is started.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::Client;
use operator_render::Neighbours;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::RunError;
use super::tasks::Tasks;
use crate::agents::{AgentSettings, Agents};
use crate::certificates::CertificateSettings;
use crate::config::Config;
use crate::events::Events;
use crate::gather::streams::{Lives, Watches};
use crate::gather::wake::Waker;
use crate::gather::{Sources, discovery};
use crate::http::{self, Probes};
use crate::lease::{self, LeaseSettings, Standing};
use crate::metrics::Metrics;
use crate::reconcile::budget::Budget;
use crate::reconcile::questions::Questions;
use crate::reconcile::queue::{Cause, Queue};
use crate::reconcile::written::Written;
use crate::reconcile::{Context, dispatch};

/// A new leader waits so long for the first reports of agents: after that, plans are made without those that are missing.
const SETTLE: Duration = Duration::from_secs(10);

/// Connections that must be there before a call fails.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A call that is no watch may be silent for so long.
const READ_TIMEOUT: Duration = Duration::from_secs(240);

/// Shared by the tasks.
pub(super) struct Parts {
    /// Writes only while this operator leads.
    client: Client,
    /// Also writes the Lease.
    lease_client: Client,
    metrics: Arc<Metrics>,
    sources: Arc<Sources>,
    queue: Arc<Queue>,
    waker: Arc<Waker>,
    lives: Arc<Lives>,
    context: Arc<Context>,
    standing: watch::Sender<Standing>,
    discovered: watch::Sender<bool>,
}

impl Parts {
    /// Makes everything; starts nothing but the agents' streams, which wait for certificates.
    pub(super) async fn new(config: &Config, tasks: &mut Tasks) -> Result<Self, RunError> {
        let mut settings = kube::Config::infer().await?;
        settings.connect_timeout = Some(CONNECT_TIMEOUT);
        settings.read_timeout = Some(READ_TIMEOUT);
        // Every call of ours has its own back-off; hidden retries would make a slow Lease look like a slow server.
        settings.default_retry = false;
        let bare = Client::try_from(settings)?;
        let metrics = Metrics::new();
        let (standing, _) = watch::channel(Standing::Waiting);
        let client = metrics.calls.counted(bare.clone(), Some(standing.subscribe()));
        let (agents, streams) = Agents::new(AgentSettings::new(config.agent_token_file.clone()));
        tasks.spawn("streams of node agents", streams);
        let sources = Arc::new(Sources {
            stores: Arc::default(),
            ledger: Arc::default(),
            engines: Arc::default(),
            agents,
            claims_served: AtomicBool::new(false),
        });
        let queue = Arc::new(Queue::default());
        let context = Arc::new(Context {
            client: client.clone(),
            sources: Arc::clone(&sources),
            questions: Arc::new(Questions::default()),
            budget: Budget::default(),
            written: Written::default(),
            events: Events::new(client.clone(), &config.pod_name, metrics.events_published.clone()),
            metrics: Arc::clone(&metrics),
            default_image: config.engine_image.clone(),
            neighbours: Neighbours { operator_namespace: config.namespace.clone() },
            planning: Mutex::new(()),
            recent: Mutex::new(BTreeMap::new()),
        });
        Ok(Self {
            client,
            lease_client: bare,
            metrics,
            waker: Arc::new(Waker {
                sources: Arc::clone(&sources),
                queue: Arc::clone(&queue),
                gone: forgetting(&context),
                agents_changed: Notify::new(),
            }),
            sources,
            queue,
            lives: Arc::default(),
            context,
            standing,
            discovered: watch::Sender::new(false),
        })
    }

    /// Starts what lasts as long as the process, whoever leads.
    pub(super) async fn start_lasting(
        &self,
        config: &Config,
        tasks: &mut Tasks,
        stop: &CancellationToken,
    ) -> Result<(), RunError> {
        let watches = Watches {
            client: self.client.clone(),
            stores: Arc::clone(&self.sources.stores),
            waker: Arc::clone(&self.waker),
            metrics: Arc::clone(&self.metrics),
            lives: Arc::clone(&self.lives),
            namespaces: config.namespaces(),
        };
        for (name, task) in watches.always(config.agent_namespace(), &config.agent_selector) {
            tasks.spawn(name, task);
        }
        let (sources, known) = (Arc::clone(&self.sources), self.discovered.clone());
        tasks.spawn("discovery", discovery::run(watches, sources, known, discovery::EVERY));
        let waker = Arc::clone(&self.waker);
        tasks.spawn("node agents", async move { waker.keep_agents().await });
        tasks.spawn("news of node agents", news_of_agents(Arc::clone(&self.waker)));
        tasks.spawn("questions to engines", self.questions_to_engines());
        tasks.spawn("questions to objects", self.questions_to_objects());
        self.start_servers(config, tasks, stop).await
    }

    async fn start_servers(
        &self,
        config: &Config,
        tasks: &mut Tasks,
        stop: &CancellationToken,
    ) -> Result<(), RunError> {
        let probes = Arc::new(Probes {
            lives: Arc::clone(&self.lives),
            sources: Arc::clone(&self.sources),
            metrics: Arc::clone(&self.metrics),
            queue: Arc::clone(&self.queue),
            standing: self.standing.subscribe(),
            discovered: self.discovered.subscribe(),
        });
        let listener = listen(config.http).await?;
        let stopping = stop.clone();
        tasks.spawn("http", async move {
            if let Err(error) = http::serve(listener, probes, stopping).await {
                tracing::error!(%error, "the HTTP server failed");
            }
        });
        let listener = listen(config.plan_listen).await?;
        let (planner, stopping) = (Arc::clone(&self.context), stop.clone());
        tasks.spawn("plan service", async move {
            let app = crate::plan_service::router(planner);
            let server = axum::serve(listener, app).with_graceful_shutdown(stopping.cancelled_owned());
            if let Err(error) = server.await {
                tracing::error!(%error, "the plan service failed");
            }
        });
        Ok(())
    }

    /// The Lease, held until the stop.
    pub(super) fn lease(
        &self,
        config: &Config,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static {
        let settings = LeaseSettings {
            namespace: config.namespace.clone(),
            name: config.lease_name.clone(),
            identity: config.pod_name.clone(),
            duration: config.lease_duration(),
        };
        lease::hold(self.lease_client.clone(), settings, self.standing.clone(), stop)
    }

    /// Reconciles, once everything that they look at is there.
    pub(super) fn reconciling(&self, stop: CancellationToken) -> impl Future<Output = ()> + Send + 'static {
        let ready = settled(Arc::clone(&self.lives), self.discovered.subscribe(), Arc::clone(&self.sources));
        let (context, queue) = (Arc::clone(&self.context), Arc::clone(&self.queue));
        dispatch::run(context, queue, self.standing.subscribe(), ready, stop)
    }

    /// The agents' certificates: issued and renewed by the leader.
    pub(super) fn certificates(&self, config: &Config) -> impl Future<Output = ()> + Send + 'static {
        let settings = CertificateSettings {
            tls_secret: config.agent_tls_secret.clone(),
            ..CertificateSettings::new(config.namespace.clone())
        };
        let (standing, agents) = (self.standing.subscribe(), self.sources.agents.clone());
        super::certificates::keep(self.client.clone(), settings, standing, agents)
    }

    fn questions_to_engines(&self) -> impl Future<Output = ()> + Send + 'static {
        let (engines, waker) = (Arc::clone(&self.sources.engines), Arc::clone(&self.waker));
        let standing = self.standing.subscribe();
        async move { engines.run(standing, |owner| waker.engine(owner)).await }
    }

    fn questions_to_objects(&self) -> impl Future<Output = ()> + Send + 'static {
        let (questions, queue) = (Arc::clone(&self.context.questions), Arc::clone(&self.queue));
        async move { questions.run(|key| queue.wake(key, Cause::Surroundings)).await }
    }
}

/// What is kept of an object in memory goes with it.
fn forgetting(context: &Arc<Context>) -> Box<dyn Fn(&str) + Send + Sync> {
    let context = Arc::clone(context);
    Box::new(move |uid| context.forget(uid))
}

async fn listen(address: std::net::SocketAddr) -> Result<TcpListener, RunError> {
    TcpListener::bind(address).await.map_err(|source| RunError::Listen { address, source })
}

/// Until every watch has its first list, the kinds that are served are known, and the agents have had time to report.
async fn settled(lives: Arc<Lives>, mut discovered: watch::Receiver<bool>, sources: Arc<Sources>) {
    // The sender lives as long as the process.
    let _ = discovered.wait_for(|known| *known).await;
    lives.all_listed().await;
    let mut news = sources.agents.changed();
    let deadline = Instant::now() + SETTLE;
    loop {
        let expected = sources.stores.agent_pods.all().iter().filter(|pod| pod.is_ready()).count();
        let connected = sources.agents.connections().connected;
        if connected >= expected {
            break;
        }
        if tokio::time::timeout_at(deadline, news.changed()).await.is_err() {
            tracing::warn!(
                expected,
                connected,
                "not all node agents have reported; planning begins without the others"
            );
            break;
        }
    }
    tracing::info!(objects = sources.stores.clusters.len(), "everything is listed; reconciling begins");
}

/// Wakes whom news of agents concern.
async fn news_of_agents(waker: Arc<Waker>) {
    let agents = waker.sources.agents.clone();
    let mut news = agents.changed();
    let mut seen = *news.borrow_and_update();
    while news.changed().await.is_ok() {
        let now = *news.borrow_and_update();
        waker.facts(&agents.changed_since(seen));
        seen = now;
    }
}
