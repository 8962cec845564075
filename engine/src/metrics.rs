//! What Prometheus reads of an engine process.
//! In: counts from everywhere. Out: one text.
//! Never: labels from outside: every label value is written in this file, so the number of series is fixed.
//! Gauges of pools and admission are read from their owners when scraped, so they cannot drift.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};

use crate::admission::AdmissionState;
use crate::binding::Report;
use crate::pool::PoolUse;

/// The media type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How a request ended: exactly one for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    Ok,
    /// 4xx but 429.
    Invalid,
    /// 429.
    Refused,
    /// The client left.
    Cancelled,
    /// 500.
    Failed,
    /// 502.
    BadGateway,
    /// 503.
    Unavailable,
    /// 504.
    TimedOut,
}

impl Outcome {
    pub fn of_status(status: u16) -> Self {
        match status {
            200..=399 => Outcome::Ok,
            429 => Outcome::Refused,
            400..=499 => Outcome::Invalid,
            502 => Outcome::BadGateway,
            503 => Outcome::Unavailable,
            504 => Outcome::TimedOut,
            _ => Outcome::Failed,
        }
    }

    /// As label and log write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Invalid => "invalid",
            Outcome::Refused => "refused",
            Outcome::Cancelled => "cancelled",
            Outcome::Failed => "failed",
            Outcome::BadGateway => "bad_gateway",
            Outcome::Unavailable => "unavailable",
            Outcome::TimedOut => "timed_out",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PageLabels {
    pool: &'static str,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SlotLabels {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StandingLabel {
    standing: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BindingLabels {
    resource: &'static str,
    state: &'static str,
}

/// The prefills of a decode by what it knows of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeerCounts {
    pub paired: usize,
    pub other_revision: usize,
    pub unknown: usize,
}

const FREE: &str = "free";
const USED: &str = "used";

/// What the engine thread counts.
#[derive(Debug, Clone)]
pub struct EngineMetrics {
    pub running: Gauge,
    pub waiting: Gauge,
    pub retractions: Counter,
    pub prefill_tokens: Counter,
    pub generated_tokens: Counter,
    pub step_seconds: Histogram,
}

/// All metrics of a process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub engine: EngineMetrics,
    pub time_to_first_token: Histogram,
    pub inter_token: Histogram,
    pub request_seconds: Histogram,
    pub transferred_bytes: Counter,
    pub lookup_failures: Counter,
    peers: Family<StandingLabel, Gauge>,
    bindings: Family<BindingLabels, Gauge>,
    requests: Family<OutcomeLabel, Counter>,
    pages: Family<PageLabels, Gauge>,
    slots: Family<SlotLabels, Gauge>,
    backlog: Gauge,
    queued: Gauge,
    limit: Gauge,
    speed: Gauge<f64, std::sync::atomic::AtomicU64>,
}

impl Metrics {
    pub fn new() -> Arc<Self> {
        let mut registry = Registry::with_prefix("fathom");
        let r = &mut registry;
        let engine = EngineMetrics {
            running: add(r, "requests_running", "Sequences that hold a request slot", Gauge::default()),
            waiting: add(r, "requests_waiting", "Sequences that wait for a request slot", Gauge::default()),
            retractions: add(
                r,
                "retractions",
                "Sequences that lost their pages to older ones and were computed again",
                Counter::default(),
            ),
            prefill_tokens: add(r, "prefill_tokens", "Prompt tokens computed here", Counter::default()),
            generated_tokens: add(r, "generated_tokens", "Tokens sampled here", Counter::default()),
            step_seconds: add(r, "step_seconds", "Time of one step of the model", seconds(0.0001, 20)),
        };
        let time_to_first_token = seconds(0.001, 18);
        add(r, "time_to_first_token_seconds", "Request read to first token", time_to_first_token.clone());
        let inter_token = seconds(0.0001, 18);
        add(r, "inter_token_seconds", "Between two tokens of an answer", inter_token.clone());
        let request_seconds = seconds(0.001, 20);
        add(r, "request_seconds", "Request read to verdict", request_seconds.clone());
        let transferred = "Bytes of KV handed over or taken over";
        let transferred_bytes = add(r, "transferred_bytes", transferred, Counter::default());
        let lookups = "Times that prefills could not be looked up in DNS";
        let lookup_failures = add(r, "discovery_failures", lookups, Counter::default());
        let peers = add(r, "prefill_peers", "Prefills that a decode knows, by standing", Family::default());
        let bindings = add(r, "binding", "What became of a resource that is to be bound", Family::default());
        let requests = add(r, "requests", "Requests by how they ended", Family::default());
        let pages = add(r, "kv_pages", "Pages of full-history tokens", Family::default());
        let slots = add(r, "request_slots", "Slots of window rows and state", Family::default());
        let backlog = "Uncached prompt tokens admitted and not yet computed";
        let backlog = add(r, "admission_backlog_tokens", backlog, Gauge::default());
        let queued = "Requests admitted whose prompt is not yet computed";
        let queued = add(r, "admission_queued_requests", queued, Gauge::default());
        let limit = "Backlog beyond which requests are refused";
        let limit = add(r, "admission_limit_tokens", limit, Gauge::default());
        let speed = "Prompt tokens per second while busy, as admission sees it";
        let speed = add(r, "prefill_tokens_per_second", speed, Gauge::default());
        let metrics = Self {
            registry,
            engine,
            time_to_first_token,
            inter_token,
            request_seconds,
            transferred_bytes,
            lookup_failures,
            peers,
            bindings,
            requests,
            pages,
            slots,
            backlog,
            queued,
            limit,
            speed,
        };
        metrics.start_at_zero();
        Arc::new(metrics)
    }

    /// A series that appears only with its first event cannot be alarmed on.
    fn start_at_zero(&self) {
        use Outcome::{BadGateway, Cancelled, Failed, Invalid, Ok, Refused, TimedOut, Unavailable};
        for outcome in [Ok, Invalid, Refused, Cancelled, Failed, BadGateway, Unavailable, TimedOut] {
            drop(self.requests.get_or_create(&OutcomeLabel { outcome: outcome.as_str() }));
        }
    }

    /// Said once: a binding is made before anything else.
    pub fn binding(&self, report: &Report) {
        for (resource, bound) in report.resources() {
            self.bindings.get_or_create(&BindingLabels { resource, state: bound.state.as_str() }).set(1);
        }
    }

    pub fn peers(&self, counts: &PeerCounts) {
        let PeerCounts { paired, other_revision, unknown } = *counts;
        for (standing, count) in
            [("paired", paired), ("other_revision", other_revision), ("unknown", unknown)]
        {
            let gauge = self.peers.get_or_create(&StandingLabel { standing });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    pub fn ended(&self, outcome: Outcome) {
        self.requests.get_or_create(&OutcomeLabel { outcome: outcome.as_str() }).inc();
    }

    pub fn ended_so_far(&self, outcome: Outcome) -> u64 {
        self.requests.get_or_create(&OutcomeLabel { outcome: outcome.as_str() }).get()
    }

    /// The text of a scrape. `pool` is unknown until the model is loaded, and then absent.
    pub fn render(&self, pool: Option<PoolUse>, admission: &AdmissionState) -> String {
        if let Some(pool) = pool {
            let page = |state, n: u32| {
                self.pages.get_or_create(&PageLabels { pool: "device", state }).set(i64::from(n));
            };
            page(FREE, pool.free_pages);
            page(USED, pool.pages - pool.free_pages);
            let slot = |state, n: u32| {
                self.slots.get_or_create(&SlotLabels { state }).set(i64::from(n));
            };
            slot(FREE, pool.free_slots);
            slot(USED, pool.slots - pool.free_slots);
        }
        let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.backlog.set(count(admission.backlog_tokens));
        self.queued.set(i64::from(admission.queued));
        self.limit.set(count(admission.limit_tokens));
        self.speed.set(admission.prefill_tokens_per_second);
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

fn seconds(first: f64, buckets: u16) -> Histogram {
    Histogram::new(exponential_buckets(first, 2.0, buckets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_promised_names_are_there_from_the_start() {
        let pool = PoolUse { pages: 8, free_pages: 5, slots: 4, free_slots: 4 };
        let admission = AdmissionState {
            backlog_tokens: 7,
            queued: 1,
            limit_tokens: 100,
            prefill_tokens_per_second: 12.5,
        };
        let text = Metrics::new().render(Some(pool), &admission);
        for line in [
            "fathom_kv_pages{pool=\"device\",state=\"used\"} 3",
            "fathom_kv_pages{pool=\"device\",state=\"free\"} 5",
            "fathom_request_slots{state=\"free\"} 4",
            "fathom_admission_backlog_tokens 7",
            "fathom_admission_limit_tokens 100",
            "fathom_requests_total{outcome=\"ok\"} 0",
            "fathom_requests_total{outcome=\"timed_out\"} 0",
            "fathom_retractions_total 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
    }
}
