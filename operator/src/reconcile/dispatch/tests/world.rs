//! An operator without the process around it: watches, queue and reconciles are those of the process.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use node_facts::NodeFacts;
use operator_render::Neighbours;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::super::run;
use super::api::Api;
use crate::agents::{AgentSettings, Agents};
use crate::events::Events;
use crate::gather::Sources;
use crate::gather::kept::Kept as _;
use crate::gather::shelf::ObjectKey;
use crate::gather::streams::{Lives, Watches};
use crate::gather::wake::Waker;
use crate::lease::Standing;
use crate::metrics::{Metrics, Scrape};
use crate::reconcile::budget::Budget;
use crate::reconcile::queue::Queue;
use crate::reconcile::written::Written;
use crate::reconcile::{Context, reconcile};

/// The node that all objects share: the story's server.
pub(super) const NODE: &str = "n1";

/// An operator that has its first lists; dropped, it ends without a word.
pub(super) struct Operator {
    context: Arc<Context>,
    queue: Arc<Queue>,
    lives: Arc<Lives>,
    standing: watch::Sender<Standing>,
    tasks: JoinSet<()>,
}

impl Operator {
    /// One that reconciles what is due.
    pub(super) async fn start(api: &Api) -> Self {
        let mut operator = Self::looking(api).await;
        let (context, queue) = (Arc::clone(&operator.context), Arc::clone(&operator.queue));
        let (standing, lives) = (operator.standing.subscribe(), Arc::clone(&operator.lives));
        let ready = async move { lives.all_listed().await };
        operator.tasks.spawn(run(context, queue, standing, ready, CancellationToken::new()));
        operator
    }

    /// One that only looks.
    pub(super) async fn looking(api: &Api) -> Self {
        let context = context(api);
        let (queue, lives) = (Arc::<Queue>::default(), Arc::<Lives>::default());
        let forgetting = Arc::clone(&context);
        let waker = Waker {
            sources: Arc::clone(&context.sources),
            queue: Arc::clone(&queue),
            gone: Box::new(move |uid: &str| forgetting.forget(uid)),
            agents_changed: Default::default(),
        };
        let watches = Watches {
            client: context.client.clone(),
            stores: Arc::clone(&context.sources.stores),
            waker: Arc::new(waker),
            metrics: Arc::clone(&context.metrics),
            lives: Arc::clone(&lives),
            namespaces: Vec::new(),
        };
        let mut tasks = JoinSet::new();
        for (_, task) in watches.always("fathom-system", "app=agent") {
            tasks.spawn(task);
        }
        lives.all_listed().await;
        Self { context, queue, lives, standing: watch::Sender::new(Standing::Leading), tasks }
    }

    /// One pass over every object, so many at the same time.
    pub(super) async fn pass_over_all(&self, at_once: usize) {
        let all = self.context.sources.stores.clusters.all();
        let keys: Vec<ObjectKey> = all.iter().map(|stored| stored.key()).collect();
        let passes = keys.iter().map(|key| Box::pin(reconcile(&self.context, key)));
        let results: Vec<_> = stream::iter(passes).buffer_unordered(at_once).collect().await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }

    /// Passes so far that ended well, and those that failed.
    pub(super) fn passes(&self) -> (u64, u64) {
        let text = self.context.metrics.render(&Scrape::default());
        let count = |result: &str| {
            let start = format!("fathom_operator_reconciles_total{{result=\"{result}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&start)).unwrap().parse::<u64>().unwrap()
        };
        (count("done"), count("failed"))
    }
}

fn context(api: &Api) -> Arc<Context> {
    let metrics = Metrics::new();
    let client = metrics.calls.counted(api.client(), None);
    let (agents, _streams) = Agents::new(AgentSettings::new("/none".into()));
    let story = fathom_node_agent::scene::facts("story").unwrap();
    agents.report(&NodeFacts { node: NODE.to_owned(), ..story });
    Arc::new(Context {
        client: client.clone(),
        sources: Arc::new(Sources {
            stores: Arc::default(),
            ledger: Arc::default(),
            engines: Arc::default(),
            agents,
            claims_served: false.into(),
        }),
        questions: Arc::default(),
        budget: Budget::default(),
        written: Written::default(),
        events: Events::new(client, "operator-0", metrics.events_published.clone()),
        metrics,
        default_image: "engine:1".to_owned(),
        neighbours: Neighbours::default(),
        planning: Default::default(),
        recent: Default::default(),
    })
}

/// The smallest object: one process on the CPU that does both jobs, and a router.
pub(super) fn cluster(name: &str, edit: impl FnOnce(&mut Value)) -> Value {
    let mut spec = json!({
        "model": {"name": "needle", "source": {"image": {"reference": "needle:1"}}},
        "decode": {"gpus": 0},
    });
    edit(&mut spec);
    json!({
        "apiVersion": "fathom.dev/v1alpha1", "kind": "InferenceCluster",
        "metadata": {"name": name}, "spec": spec,
    })
}

/// Lets time pass; whatever is due meanwhile happens first.
pub(super) async fn after(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}
