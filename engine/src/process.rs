//! What every computing role has: configuration, phase, ledger, metrics, and the engine once it is loaded.
//! In: the configuration. Out: answers to probes and scrapes.
//! Never: requests; `http` and `grpc` serve those with it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use engine_spec::EngineConfig;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use crate::ApiError;
use crate::admission::Admission;
use crate::binding::{PagesByNode, Report};
use crate::engine::Engine;
use crate::grpc::peers::Peers;
use crate::lifecycle::{Lifecycle, Phase};
use crate::metrics::Metrics;

/// A step longer than this makes the process unready: requests behind it would wait too long.
const STALL: Duration = Duration::from_secs(30);

/// A step longer than this means that the thread hangs; a restart is the only cure.
const HANG: Duration = Duration::from_secs(600);

/// What computes; the only backend there is yet.
const DEVICE: &str = "cpu";

/// One process.
#[derive(Debug)]
pub struct Process {
    pub config: EngineConfig,
    pub lifecycle: Lifecycle,
    pub admission: Admission,
    pub metrics: Arc<Metrics>,
    /// Holds one token for each request that is being served.
    pub requests: TaskTracker,
    pub engine: OnceLock<Engine>,
    /// Of a decode.
    pub peers: OnceLock<Arc<Peers>>,
    pub binding: Report,
    /// Where its own memory lay when the model was loaded, or why that cannot be seen.
    pub pages: OnceLock<Result<PagesByNode, String>>,
}

impl Process {
    pub fn new(config: EngineConfig, binding: Report) -> Arc<Self> {
        let metrics = Metrics::new();
        metrics.binding(&binding);
        Arc::new(Self {
            lifecycle: Lifecycle::default(),
            admission: Admission::new(config.admission),
            metrics,
            requests: TaskTracker::new(),
            engine: OnceLock::new(),
            peers: OnceLock::new(),
            config,
            binding,
            pages: OnceLock::new(),
        })
    }

    /// # Errors
    /// 503 until the process is ready, when it drains, and while its engine does not move.
    pub fn check_ready(&self) -> Result<&Engine, ApiError> {
        self.lifecycle.check()?;
        let engine = self.engine.get().ok_or_else(|| ApiError::unavailable("Not ready yet."))?;
        let stalled = engine.stalled_for();
        if stalled > STALL {
            let message = format!("The engine has not finished a step for {} s.", stalled.as_secs());
            return Err(ApiError::unavailable(message));
        }
        Ok(engine)
    }

    /// # Errors
    /// 503 when only a restart helps.
    pub fn check_alive(&self) -> Result<(), ApiError> {
        match self.engine.get().map(Engine::stalled_for) {
            Some(stalled) if stalled > HANG => {
                Err(ApiError::unavailable(format!("The engine hangs since {} s.", stalled.as_secs())))
            }
            _ => Ok(()),
        }
    }

    /// The text of a scrape.
    pub fn scrape(&self) -> String {
        let pool = self.engine.get().map(|engine| engine.pool().usage());
        self.metrics.render(pool, &self.admission.state())
    }

    /// What this process is, for people and for the router.
    pub fn info(&self) -> Value {
        let config = &self.config;
        let admission = self.admission.state();
        let phase = match self.lifecycle.phase() {
            Phase::Starting(why) => format!("starting: {why}"),
            Phase::Ready => "ready".to_owned(),
            Phase::Draining => "draining".to_owned(),
        };
        let pools = self.engine.get().map(|engine| {
            let pool = engine.pool().usage();
            json!({
                "kvPages": pool.pages, "freeKvPages": pool.free_pages,
                "requestSlots": pool.slots, "freeRequestSlots": pool.free_slots,
            })
        });
        json!({
            "name": config.name,
            "role": config.role,
            "version": env!("CARGO_PKG_VERSION"),
            "revision": config.revision,
            "phase": phase,
            "model": config.model,
            "scheduler": config.scheduler,
            "pools": pools,
            "admission": {
                "limitTokens": admission.limit_tokens,
                "backlogTokens": admission.backlog_tokens,
                "queuedRequests": admission.queued,
                "prefillTokensPerSecond": admission.prefill_tokens_per_second,
            },
            "prefills": self.peers.get().map(|peers| peers.info()),
            "device": DEVICE,
            "binding": self.binding,
            "memoryByNode": self.pages.get().and_then(|pages| pages.as_ref().ok()),
            "memoryByNodeError": self.pages.get().and_then(|pages| pages.as_ref().err()),
        })
    }
}
