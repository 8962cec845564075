//! What Prometheus sees of the router.
//! In: ends of requests, failures of workers; gauges are set when somebody asks. Out: OpenMetrics text.
//! Never: a label whose values a client can choose.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::discovery::Seen;

type Labels<const N: usize> = [(&'static str, &'static str); N];

/// How a request ended, once for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Ok,
    /// 4xx, from here or from the decode, other than the two below.
    ClientError,
    /// Our 429.
    Refused,
    /// The decode's 429.
    EngineRefused,
    /// The decode's 5xx.
    EngineError,
    /// Our 503.
    Unavailable,
    /// The decode failed before its answer began.
    BadGateway,
    /// The decode failed within its answer.
    Broken,
    Timeout,
    /// Ended by the end of a drain.
    Drained,
    /// The client left first.
    ClientGone,
    /// A path or method that the router does not know.
    Unmatched,
}

impl Outcome {
    pub(super) const ALL: [Outcome; 12] = [
        Outcome::Ok,
        Outcome::ClientError,
        Outcome::Refused,
        Outcome::EngineRefused,
        Outcome::EngineError,
        Outcome::Unavailable,
        Outcome::BadGateway,
        Outcome::Broken,
        Outcome::Timeout,
        Outcome::Drained,
        Outcome::ClientGone,
        Outcome::Unmatched,
    ];

    pub(super) fn label(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::ClientError => "client_error",
            Outcome::Refused => "refused",
            Outcome::EngineRefused => "engine_refused",
            Outcome::EngineError => "engine_error",
            Outcome::Unavailable => "unavailable",
            Outcome::BadGateway => "bad_gateway",
            Outcome::Broken => "broken",
            Outcome::Timeout => "timeout",
            Outcome::Drained => "drained",
            Outcome::ClientGone => "client_gone",
            Outcome::Unmatched => "unmatched",
        }
    }

    /// Of an answer that passed with this status.
    pub(super) fn of_engine_status(status: u16) -> Self {
        match status {
            429 => Outcome::EngineRefused,
            500.. => Outcome::EngineError,
            400..=499 => Outcome::ClientError,
            _ => Outcome::Ok,
        }
    }

    /// Of an error of our own.
    pub(super) fn of_own_status(status: u16) -> Self {
        match status {
            404 | 405 => Outcome::Unmatched,
            429 => Outcome::Refused,
            502 => Outcome::BadGateway,
            504 => Outcome::Timeout,
            503 => Outcome::Unavailable,
            _ => Outcome::ClientError,
        }
    }
}

#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    requests: [Counter; Outcome::ALL.len()],
    upstream_failures: Family<Labels<2>, Counter>,
    workers: Family<Labels<2>, Gauge>,
    running: Gauge,
    backlog_tokens: Gauge,
    limit_tokens: Gauge,
    synced: Gauge,
    stale_seconds: Gauge,
    discovery_failures: Counter,
    unseated: Gauge,
}

/// What is true at the moment of a scrape.
#[derive(Debug, Clone)]
pub(super) struct Snapshot {
    pub(super) running: usize,
    pub(super) backlog_tokens: u64,
    /// `None` = unknown; the series then says -1, which is no limit that could be.
    pub(super) limit_tokens: Option<u64>,
    /// Role, state, number of workers.
    pub(super) workers: Vec<(&'static str, &'static str, usize)>,
    pub(super) discovery: Seen,
    /// Workers that found no seat.
    pub(super) unseated: usize,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::default();
        let requests = Family::<Labels<1>, Counter>::default();
        let metrics = Self {
            requests: Outcome::ALL
                .map(|outcome| requests.get_or_create(&[("outcome", outcome.label())]).clone()),
            upstream_failures: Family::default(),
            workers: Family::default(),
            running: Gauge::default(),
            backlog_tokens: Gauge::default(),
            limit_tokens: Gauge::default(),
            synced: Gauge::default(),
            stale_seconds: Gauge::default(),
            discovery_failures: Counter::default(),
            unseated: Gauge::default(),
            registry: Registry::default(),
        };
        registry.register("fathom_requests", "Requests by how they ended", requests);
        registry.register(
            "fathom_router_upstream_failures",
            "Failures of workers that requests met",
            metrics.upstream_failures.clone(),
        );
        registry.register("fathom_router_workers", "Workers by role and state", metrics.workers.clone());
        registry.register("fathom_requests_running", "Requests that have not ended", metrics.running.clone());
        registry.register(
            "fathom_admission_backlog_tokens",
            "Prompt tokens admitted and not yet computed, estimated",
            metrics.backlog_tokens.clone(),
        );
        registry.register(
            "fathom_admission_limit_tokens",
            "Backlog beyond which requests are refused; -1 while unknown",
            metrics.limit_tokens.clone(),
        );
        metrics.register_discovery(&mut registry);
        Self { registry, ..metrics }
    }

    fn register_discovery(&self, registry: &mut Registry) {
        let gauges = [
            (
                "synced",
                "1 while the list of workers is current, 0 while the last known one is used",
                &self.synced,
            ),
            ("stale_seconds", "How long the list of workers has not been current", &self.stale_seconds),
            ("unseated_workers", "Workers beyond those that a router can have", &self.unseated),
        ];
        for (name, help, gauge) in gauges {
            registry.register(format!("fathom_discovery_{name}"), help, gauge.clone());
        }
        let failures = self.discovery_failures.clone();
        registry.register("fathom_discovery_failures", "Times that the list of workers was lost", failures);
    }

    pub(super) fn ended(&self, outcome: Outcome) {
        self.requests[outcome as usize].inc();
    }

    pub(super) fn upstream_failed(&self, role: &'static str, kind: &'static str) {
        self.upstream_failures.get_or_create(&[("role", role), ("kind", kind)]).inc();
    }

    pub(super) fn text(&self, now: &Snapshot) -> String {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.running.set(gauge(now.running as u64));
        self.backlog_tokens.set(gauge(now.backlog_tokens));
        self.limit_tokens.set(now.limit_tokens.map_or(-1, gauge));
        self.synced.set(i64::from(now.discovery.stale.is_none()));
        self.stale_seconds.set(now.discovery.stale.map_or(0, |stale| gauge(stale.as_secs())));
        let counted = self.discovery_failures.get();
        self.discovery_failures.inc_by(now.discovery.failures.saturating_sub(counted));
        self.unseated.set(gauge(now.unseated as u64));
        for &(role, state, count) in &now.workers {
            self.workers.get_or_create(&[("role", role), ("state", state)]).set(gauge(count as u64));
        }
        let mut text = String::new();
        match encode(&mut text, &self.registry) {
            Ok(()) => text,
            Err(error) => {
                tracing::error!(%error, "metrics cannot be written");
                String::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_its_own_counter() {
        let metrics = Metrics::new();
        for (times, outcome) in Outcome::ALL.into_iter().enumerate() {
            (0..times).for_each(|_| metrics.ended(outcome));
        }
        let discovery = Seen { source: "list", stale: None, failures: 0 };
        let (workers, unseated) = (Vec::new(), 0);
        let now =
            Snapshot { running: 3, backlog_tokens: 7, limit_tokens: None, workers, discovery, unseated };
        let text = metrics.text(&now);
        for (times, outcome) in Outcome::ALL.into_iter().enumerate() {
            let line = format!("fathom_requests_total{{outcome=\"{}\"}} {times}\n", outcome.label());
            assert!(text.contains(&line), "{line} not in {text}");
        }
        assert!(text.contains("fathom_admission_limit_tokens -1\n"), "{text}");
    }
}
