//! What Prometheus reads of the operator.
//! In: counts from everywhere. Out: one text.
//! Never: series of objects that are gone (ready states are counted when scraped); labels whose values come from users.

pub mod calls;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};

use calls::Calls;

/// The media type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// `resource` is one of the kinds that this program knows, else `other`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CallLabels {
    pub(crate) verb: &'static str,
    pub(crate) resource: &'static str,
    pub(crate) code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WatchLabels {
    watch: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    ready: String,
}

const DONE: &str = "done";
const FAILED: &str = "failed";

type FloatGauge = Gauge<f64, AtomicU64>;

/// How a reconcile ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReconcileResult {
    Done,
    Failed,
}

/// What is read from its owner when scraped, so that it cannot drift.
#[derive(Debug, Clone, Default)]
pub struct Scrape {
    /// Age of the last sign of life of each watch.
    pub watches: Vec<(String, Duration)>,
    /// Objects by the status of their condition Ready: `True`, `False`, `Unknown`.
    pub ready: BTreeMap<String, i64>,
    pub queued: i64,
    pub running: i64,
    pub agents: i64,
    pub leading: bool,
}

/// All metrics of the process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub calls: Arc<Calls>,
    reconcile_seconds: Histogram,
    reconciles: Family<ResultLabel, Counter>,
    watch_events: Family<WatchLabels, Counter>,
    watch_restarts: Family<WatchLabels, Counter>,
    watch_age: Family<WatchLabels, FloatGauge>,
    objects: Family<StateLabels, Gauge>,
    queued: Gauge,
    running: Gauge,
    agents: Gauge,
    leading: Gauge,
    pub events_published: Counter,
    pub rejected_pods: Counter,
}

impl Metrics {
    pub fn new() -> Arc<Self> {
        let mut registry = Registry::with_prefix("fathom");
        let r = &mut registry;
        let seconds = Histogram::new(exponential_buckets(0.001, 2.0, 16));
        let took = "From taking an object up to its status";
        let reconcile_seconds = add(r, "operator_reconcile_seconds", took, seconds);
        let ended = "Reconciles by how they ended";
        let reconciles = add(r, "operator_reconciles", ended, Family::default());
        let calls = Family::default();
        let calls = add(r, "operator_api_calls", "Calls to the API server, without the Lease's", calls);
        let watch_events = add(r, "watch_events", "Events of each watch", Family::default());
        let restarts = "Errors after which a watch began anew";
        let watch_restarts = add(r, "watch_restarts", restarts, Family::default());
        let age = "Seconds since the last sign of life of each watch";
        let watch_age = add(r, "watch_last_event_age", age, Family::default());
        let objects = add(r, "inference_clusters", "Objects by condition Ready", Family::default());
        let queued = "Objects whose reconcile is due and has not begun";
        let queued = add(r, "operator_queue_depth", queued, Gauge::default());
        let running = add(r, "operator_reconciles_running", "Reconciles under way", Gauge::default());
        let agents = add(r, "operator_agents", "Node agents whose facts are fresh", Gauge::default());
        let leading = add(r, "operator_leading", "1 while this process holds the Lease", Gauge::default());
        let events_published = add(r, "operator_events", "Events written", Counter::default());
        let refused = "Pods that a kubelet refused";
        let rejected_pods = add(r, "operator_rejected_pods", refused, Counter::default());
        let metrics = Self {
            registry,
            calls: Arc::new(Calls::new(calls)),
            reconcile_seconds,
            reconciles,
            watch_events,
            watch_restarts,
            watch_age,
            objects,
            queued,
            running,
            agents,
            leading,
            events_published,
            rejected_pods,
        };
        for result in [DONE, FAILED] {
            drop(metrics.reconciles.get_or_create(&ResultLabel { result }));
        }
        Arc::new(metrics)
    }

    pub fn reconciled(&self, result: ReconcileResult, took: Duration) {
        let result = match result {
            ReconcileResult::Done => DONE,
            ReconcileResult::Failed => FAILED,
        };
        self.reconcile_seconds.observe(took.as_secs_f64());
        self.reconciles.get_or_create(&ResultLabel { result }).inc();
    }

    pub fn watch_event(&self, watch: &str) {
        self.watch_events.get_or_create(&WatchLabels { watch: watch.to_owned() }).inc();
    }

    pub fn watch_restarted(&self, watch: &str) {
        self.watch_restarts.get_or_create(&WatchLabels { watch: watch.to_owned() }).inc();
    }

    /// The text of a scrape.
    pub fn render(&self, scrape: &Scrape) -> String {
        for (watch, age) in &scrape.watches {
            self.watch_age.get_or_create(&WatchLabels { watch: watch.clone() }).set(age.as_secs_f64());
        }
        self.objects.clear();
        for (ready, count) in &scrape.ready {
            self.objects.get_or_create(&StateLabels { ready: ready.clone() }).set(*count);
        }
        self.queued.set(scrape.queued);
        self.running.set(scrape.running);
        self.agents.set(scrape.agents);
        self.leading.set(i64::from(scrape.leading));
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &self.registry) {
            // Writing to a String does not fail.
            tracing::error!(%error, "cannot write metrics");
        }
        text
    }
}

fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a70_states_that_no_object_is_in_any_more_have_no_series() {
        let metrics = Metrics::new();
        let ready = |state: &str| Scrape { ready: [(state.to_owned(), 1)].into(), ..Scrape::default() };
        assert!(metrics.render(&ready("False")).contains("fathom_inference_clusters{ready=\"False\"} 1"));
        let later = metrics.render(&ready("True"));
        assert!(later.contains("fathom_inference_clusters{ready=\"True\"} 1"));
        assert!(!later.contains("ready=\"False\""), "{later}");
        assert!(!metrics.render(&Scrape::default()).contains("ready=\""));
    }

    #[test]
    fn the_promised_names_are_there_from_the_start() {
        let metrics = Metrics::new();
        let watches = vec![("pods".to_owned(), Duration::from_millis(1500))];
        let text = metrics.render(&Scrape { watches, leading: true, ..Scrape::default() });
        for line in [
            "fathom_watch_last_event_age{watch=\"pods\"} 1.5",
            "fathom_operator_leading 1",
            "fathom_operator_reconciles_total{result=\"failed\"} 0",
            "fathom_operator_queue_depth 0",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
