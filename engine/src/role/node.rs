//! The life of a computing process: listen, load, warm up, serve, drain, end.
//! In: routes, a loader. Out: a [`Node`], serving.
//! Never: readiness before a chunk has been computed and timed; a second of serving after the drain's time is over.
//! It listens before it loads, so that probes are answered at once and a port in use costs no loading time.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use engine_model::{Page, Segment, Slot, Want};
use engine_spec::shape::ShapeDifference;
use engine_spec::{EngineConfig, NamedShape, PAGE_TOKENS};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::ApiError;
use crate::binding::Report;
use crate::chat::Chat;
use crate::engine::{Engine, Settings};
use crate::grpc::contract::Identity;
use crate::http::server::{self, BindError};
use crate::pool::Pool;
use crate::process::Process;
use crate::schedule::Budget;
use crate::step::Step;

/// Answers that are cut by the end of the drain get this long to be written out.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Why a process could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum RoleError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("loading {path}: {reason}")]
    Load { path: String, reason: String },
    /// The operator looks for the first word.
    #[error("ModelMismatch: the checkpoint in {path} is not {shape}: {difference}")]
    Mismatch { path: String, shape: NamedShape, difference: ShapeDifference },
    #[error("the first chunk could not be computed: {0}")]
    WarmUp(String),
    #[error("configuration: {0}")]
    Config(String),
    #[error("{what}")]
    System { what: &'static str, source: std::io::Error },
    #[error("a part of the process failed: {0}")]
    Part(String),
    #[error("the engine stopped by itself; the log says why")]
    EngineStopped,
    #[error("{0}")]
    Router(String),
}

impl RoleError {
    /// Whether another start with the same input would fail the same way.
    pub fn is_lasting(&self) -> bool {
        !matches!(self, RoleError::EngineStopped | RoleError::Part(_))
    }
}

/// What a loader gives.
pub struct Loaded {
    pub step: Box<dyn Step>,
    pub chat: Chat,
    pub fingerprint: String,
    pub index_top_k: u32,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { step: _, chat: _, fingerprint, index_top_k } = self;
        f.debug_struct("Loaded").field("fingerprint", fingerprint).field("index_top_k", index_top_k).finish()
    }
}

impl Loaded {
    pub(super) fn identity(&self) -> Identity {
        Identity {
            fingerprint: self.fingerprint.clone(),
            tokenizer_hash: self.chat.tokenizer_hash().to_owned(),
            index_top_k: self.index_top_k,
        }
    }
}

/// Loads model and tokenizer, on a thread of its own.
pub type Loader = Box<dyn FnOnce(&EngineConfig, &Report) -> Result<Loaded, RoleError> + Send>;

/// A process that listens.
#[derive(Debug)]
pub struct Node {
    pub process: Arc<Process>,
    pub http: SocketAddr,
    pub grpc: Option<SocketAddr>,
    pub(super) tasks: JoinSet<Result<(), RoleError>>,
    pub(super) stop: CancellationToken,
}

impl Node {
    /// Binds and serves HTTP.
    pub(super) async fn listen(process: &Arc<Process>, router: Router) -> Result<Self, RoleError> {
        crate::binding::raise_file_limit();
        let listener = server::bind("listen.http", process.config.listen.http).await?;
        let http = local_addr(&listener)?;
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let serving = server::serve(listener, router, stop.clone());
        tasks.spawn(async move {
            serving.await;
            Ok(())
        });
        Ok(Self { process: Arc::clone(process), http, grpc: None, tasks, stop })
    }

    /// Says where it listens, as one line on stdout.
    ///
    /// # Errors
    /// Nobody reads stdout any more.
    fn announce(&self) -> Result<(), RoleError> {
        let line = json!({
            "event": "listening",
            "role": self.process.config.role,
            "http": self.http.to_string(),
            "grpc": self.grpc.map(|grpc| grpc.to_string()),
        });
        let mut stdout = std::io::stdout().lock();
        let what = "saying on stdout where it listens";
        writeln!(stdout, "{line}")
            .and_then(|()| stdout.flush())
            .map_err(|source| RoleError::System { what, source })
    }

    /// Says where it listens and serves until SIGTERM or SIGINT, then drains; a second signal ends the drain.
    ///
    /// # Errors
    /// A part of the process failed.
    pub async fn run_until_told(mut self) -> Result<(), RoleError> {
        let what = "handling signals";
        let listen = |kind| signal(kind).map_err(|source| RoleError::System { what, source });
        let (mut term, mut int) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        // Only now: whoever reads the line may send a signal at once.
        self.announce()?;
        let mut told = async || {
            tokio::select! {
                _ = term.recv() => "SIGTERM",
                _ = int.recv() => "SIGINT",
            }
        };
        tokio::select! {
            signal = told() => tracing::info!(signal, "draining"),
            error = self.failure() => return Err(error),
        }
        self.drain(told()).await;
        Ok(())
    }

    /// The first part that fails.
    pub async fn failure(&mut self) -> RoleError {
        while let Some(ended) = self.tasks.join_next().await {
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return error,
                Err(panic) => return RoleError::Part(panic.to_string()),
            }
        }
        std::future::pending().await
    }

    /// Refuses new requests, lets running ones end within the configured time or until `hurry`, ends the rest, stops.
    pub async fn drain<T>(&mut self, hurry: impl Future<Output = T>) {
        let process = &self.process;
        process.lifecycle.drain();
        process.requests.close();
        let time = Duration::from_millis(process.config.drain_timeout_ms);
        let ended = tokio::select! {
            ended = timeout(time, process.requests.wait()) => ended.is_ok(),
            _ = hurry => false,
        };
        if !ended {
            let left = process.requests.len();
            tracing::warn!(left, "ending what still runs");
        }
        if let Some(engine) = process.engine.get() {
            // A step may be long: who waits for it is cut instead of told.
            let stop = engine.stop(ApiError::unavailable("This server is shutting down."));
            let _ = timeout(LAST_WORDS, stop).await;
        }
        let _ = timeout(LAST_WORDS, process.requests.wait()).await;
        self.stop.cancel();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        let _ = timeout(server::GRACE + LAST_WORDS, ended).await;
    }
}

pub(super) fn local_addr(listener: &TcpListener) -> Result<SocketAddr, RoleError> {
    listener.local_addr().map_err(|source| RoleError::System { what: "reading the bound address", source })
}

/// Runs the loader and the first chunk on a thread of its own.
pub(super) async fn load(process: &Arc<Process>, loader: Loader) -> Result<Loaded, RoleError> {
    if let Some(why) = process.binding.unmet() {
        return Err(stay_unready(process, why).await);
    }
    let (sender, receiver) = oneshot::channel();
    let process = Arc::clone(process);
    std::thread::Builder::new()
        .name("loader".to_owned())
        .spawn(move || {
            let result = loader(&process.config, &process.binding).and_then(|mut loaded| {
                process.lifecycle.starting("the first chunk is computed");
                warm_up(&process, &mut *loaded.step)?;
                see_pages(&process, &mut *loaded.step);
                Ok(loaded)
            });
            // Nobody waits any more when the process is told to stop while it loads.
            let _ = sender.send(result);
        })
        .map_err(|source| RoleError::System { what: "starting the loader", source })?;
    receiver.await.unwrap_or_else(|_| Err(RoleError::Part("the loader panicked".to_owned())))
}

/// Another start would find the same CPUs and nodes: the process stays, says why, and takes no memory for a model that
/// it may not serve from there.
async fn stay_unready(process: &Process, why: String) -> RoleError {
    tracing::error!(why, "not loading");
    process.lifecycle.starting(why.clone());
    process.lifecycle.draining().await;
    RoleError::Config(why)
}

/// Notes where the process's memory is. Where its node is required, the device pool is touched first: pages come into
/// being when somebody writes to them, and a node that cannot give them shall show now and not within a request.
fn see_pages(process: &Process, step: &mut dyn Step) {
    let binding = &process.config.binding;
    if binding.memory_required && binding.memory_node.is_some() {
        process.lifecycle.starting("the device pool is laid out");
        let zeros = vec![0; step.page_bytes()];
        let pages = process.config.pools.map_or(0, |pools| pools.kv_pages);
        (0..pages).for_each(|page| step.import_page(Page(page), &zeros));
    }
    let pages = crate::binding::pages_by_node();
    match &pages {
        Ok(pages) => tracing::info!(kib_by_node = ?pages.kib, "own memory by NUMA node"),
        Err(why) => tracing::debug!(why, "own memory by NUMA node is unknown"),
    }
    // Set once: a process loads once.
    let _ = process.pages.set(pages);
}

/// Computes one chunk twice, the first time to touch memory, and times the second: mu before any request.
fn warm_up(process: &Process, step: &mut dyn Step) -> Result<(), RoleError> {
    let config = &process.config;
    let tokens = config.scheduler.chunk_tokens.min(config.model.context_tokens) as usize;
    let pages: Vec<Page> =
        (0..tokens.div_ceil(PAGE_TOKENS)).filter_map(|p| u32::try_from(p).ok()).map(Page).collect();
    let vocab = step.vocab().max(1);
    // Any tokens: different ones, so that all experts are touched.
    let prompt: Vec<u32> = (0..tokens).filter_map(|t| u32::try_from(t % vocab).ok()).collect();
    let mut seconds = 0.0;
    for _ in 0..2 {
        step.reset_slot(Slot(0));
        let segment = Segment { slot: Slot(0), pages: &pages, start: 0, tokens: &prompt, want: Want::Last };
        let start = Instant::now();
        step.forward(&[segment]).map_err(|error| RoleError::WarmUp(error.to_string()))?;
        seconds = start.elapsed().as_secs_f64();
    }
    process.admission.measured(tokens, seconds.max(1e-6));
    let speed = process.admission.state();
    tracing::info!(
        tokens,
        seconds,
        tokens_per_second = speed.prefill_tokens_per_second,
        limit_tokens = speed.limit_tokens,
        "first chunk timed"
    );
    Ok(())
}

/// Starts the engine of a loaded process.
pub(super) fn start_engine(
    process: &Process,
    step: Box<dyn Step>,
    prefills: bool,
) -> Result<Engine, RoleError> {
    let config = &process.config;
    let pools = config.pools.ok_or_else(|| RoleError::Config("pools are missing".to_owned()))?;
    let scheduler = config.scheduler;
    let budget = Budget {
        step_tokens: scheduler.step_tokens as usize,
        chunk_tokens: scheduler.chunk_tokens as usize,
        // More than a step has tokens could not decode together.
        max_running: scheduler.max_running.min(scheduler.step_tokens) as usize,
    };
    let settings = Settings {
        budget,
        pool: Pool::new(pools.kv_pages, pools.request_slots),
        speed: prefills.then(|| process.admission.clone()),
        metrics: process.metrics.engine.clone(),
    };
    let engine = Engine::start(step, settings)
        .map_err(|source| RoleError::System { what: "starting the engine's thread", source })?;
    // Set once: a process loads once.
    let _ = process.engine.set(engine.clone());
    Ok(engine)
}

/// Ends with an error when the engine ends before the process is told to stop.
pub(super) async fn watch(process: &Process, engine: &Engine) -> Result<(), RoleError> {
    tokio::select! {
        () = process.lifecycle.draining() => Ok(()),
        () = engine.stopped() => Err(RoleError::EngineStopped),
    }
}
