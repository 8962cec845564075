//! Signs of life of watches: whether each has its first list, when it was last answered, when it last tried.
//! In: every request of a watch passes here. Out: readiness, liveness, ages. Never: a decision about restarting a watch.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::codegen::Service;

/// A watch that has not even tried for so long hangs: three rounds of its longest quiet time.
const HANGS_AFTER: Duration = Duration::from_secs(10 * 60);

/// All watches of the process; bounded by kinds times watched namespaces.
#[derive(Debug)]
pub struct Lives {
    all: Mutex<Vec<Arc<Life>>>,
    listed: watch::Sender<u64>,
}

impl Default for Lives {
    fn default() -> Self {
        Self { all: Mutex::default(), listed: watch::Sender::new(0) }
    }
}

impl Lives {
    pub fn add(&self, name: String) -> Arc<Life> {
        let life = Arc::new(Life {
            name,
            start: Instant::now(),
            answered_ms: AtomicU64::new(0),
            tried_ms: AtomicU64::new(0),
            has_list: AtomicBool::new(false),
            trouble: Mutex::new(None),
            listed: self.listed.clone(),
        });
        self.lock().push(Arc::clone(&life));
        life
    }

    /// Watches without their first list, with the error that keeps them from it.
    pub fn unlisted(&self) -> Vec<String> {
        let all = self.lock();
        let waiting = all.iter().filter(|life| !life.has_list.load(Ordering::Relaxed)).map(|life| {
            let trouble = life.trouble.lock().unwrap_or_else(PoisonError::into_inner);
            format!("{}: {}", life.name, trouble.as_deref().unwrap_or("the first list is under way"))
        });
        waiting.collect()
    }

    /// Waits until each watch that was added so far has its first list.
    pub async fn all_listed(&self) {
        let mut news = self.listed.subscribe();
        while !self.unlisted().is_empty() {
            // The sender lives in `self`.
            let _ = news.changed().await;
        }
    }

    /// Watches that hang.
    pub fn hanging(&self) -> Vec<String> {
        let all = self.lock();
        let late = all.iter().filter(|life| life.since(&life.tried_ms) > HANGS_AFTER).map(|life| {
            format!("{} has not moved for {} s", life.name, life.since(&life.tried_ms).as_secs())
        });
        late.collect()
    }

    /// Time since each watch was last answered.
    pub fn ages(&self) -> Vec<(String, Duration)> {
        self.lock().iter().map(|life| (life.name.clone(), life.since(&life.answered_ms))).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Life>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One watch.
#[derive(Debug)]
pub struct Life {
    name: String,
    start: Instant,
    answered_ms: AtomicU64,
    tried_ms: AtomicU64,
    has_list: AtomicBool,
    trouble: Mutex<Option<String>>,
    listed: watch::Sender<u64>,
}

impl Life {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A client whose requests count as signs of life of this watch.
    pub fn touching(self: &Arc<Self>, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        Client::new(Touching { client, life: Arc::clone(self) }, namespace)
    }

    pub(super) fn listed(&self) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if !self.has_list.swap(true, Ordering::Relaxed) {
            self.listed.send_modify(|count| *count += 1);
        }
    }

    /// Logs an error once until it changes or heals.
    pub(super) fn failed(&self, error: &str) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if trouble.as_deref() == Some(error) {
            tracing::debug!(watch = self.name, error, "still failing");
            return;
        }
        tracing::warn!(watch = self.name, error, "a watch failed; it begins anew after a pause");
        *trouble = Some(error.to_owned());
    }

    fn touch(&self, what: &AtomicU64) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        what.store(now, Ordering::Relaxed);
    }

    fn since(&self, what: &AtomicU64) -> Duration {
        self.start.elapsed().saturating_sub(Duration::from_millis(what.load(Ordering::Relaxed)))
    }
}

struct Touching {
    client: Client,
    life: Arc<Life>,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, kube::Error>> + Send>>;

impl Service<Request<Body>> for Touching {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), kube::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        let (client, life) = (self.client.clone(), Arc::clone(&self.life));
        life.touch(&life.tried_ms);
        Box::pin(async move {
            let answer = client.send(request).await;
            if answer.as_ref().is_ok_and(|response| response.status().is_success()) {
                life.touch(&life.answered_ms);
            }
            answer
        })
    }
}
