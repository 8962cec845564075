//! Runs reconciles: those whose time has come, a bounded number at once, only while this operator leads.
//! In: the queue, the standing. Out: passes, their results in log and metrics.
//! Never: the end of the operator because of one object: a pass that panics is a bug of that pass, and is tried again later.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::queue::{Next, Queue};
use super::{Context, ReconcileError, reconcile};
use crate::chain::chain;
use crate::gather::shelf::ObjectKey;
use crate::lease::Standing;
use crate::metrics::ReconcileResult;

/// Passes at the same time.
pub const MAX_RUNNING: usize = 16;

/// A pass that takes longer is given up; no single call takes so long.
const PASS_TIMEOUT: Duration = Duration::from_secs(120);

/// How long passes under way may take after the stop.
const GRACE: Duration = Duration::from_secs(10);

/// A pass that ended, and how long it took.
type Done = (ObjectKey, Result<Next, Trouble>, Duration);

/// Which object a task is about, should it panic.
type Running = BTreeMap<Id, ObjectKey>;

enum Trouble {
    Reconcile(ReconcileError),
    TooLong,
}

/// Dispatches until the stop; then waits for the passes under way.
pub async fn run(
    context: Arc<Context>,
    queue: Arc<Queue>,
    mut standing: watch::Receiver<Standing>,
    ready: impl Future<Output = ()>,
    stop: CancellationToken,
) {
    let mut passes: JoinSet<Done> = JoinSet::new();
    let mut running = Running::new();
    let mut ready = std::pin::pin!(ready);
    let mut is_ready = false;
    loop {
        let leading = *standing.borrow_and_update() == Standing::Leading;
        let take = leading && is_ready && passes.len() < MAX_RUNNING;
        tokio::select! {
            () = stop.cancelled() => break,
            changed = standing.changed() => if changed.is_err() { break },
            () = &mut ready, if leading && !is_ready => is_ready = true,
            Some(ended) = passes.join_next_with_id() => end(&context, &queue, &mut running, ended),
            key = queue.next(), if take => {
                let context = Arc::clone(&context);
                let name = key.clone();
                let handle = passes.spawn(pass(context, name));
                running.insert(handle.id(), key);
            }
        }
    }
    let rest = async {
        while let Some(ended) = passes.join_next_with_id().await {
            end(&context, &queue, &mut running, ended);
        }
    };
    if tokio::time::timeout(GRACE, rest).await.is_err() {
        tracing::warn!(objects = passes.len(), "some reconciles did not end in time; they are cut off");
    }
}

async fn pass(context: Arc<Context>, key: ObjectKey) -> Done {
    let start = Instant::now();
    let result = match tokio::time::timeout(PASS_TIMEOUT, Box::pin(reconcile(&context, &key))).await {
        Ok(result) => result.map_err(Trouble::Reconcile),
        Err(_) => Err(Trouble::TooLong),
    };
    (key, result, start.elapsed())
}

/// Books the end of a pass.
fn end(context: &Context, queue: &Queue, running: &mut Running, ended: Result<(Id, Done), JoinError>) {
    let (key, result, took) = match ended {
        Ok((id, done)) => {
            running.remove(&id);
            done
        }
        Err(error) => {
            let Some(key) = running.remove(&error.id()) else { return };
            tracing::error!(object = %key, %error, "a reconcile ended by a bug; other objects go on");
            context.metrics.reconciled(ReconcileResult::Failed, Duration::ZERO);
            queue.done(&key, Next::Failed);
            return;
        }
    };
    let next = match result {
        Ok(next) => {
            tracing::debug!(object = %key, ?took, ?next, "reconciled");
            context.metrics.reconciled(ReconcileResult::Done, took);
            next
        }
        Err(trouble) => {
            let why = match &trouble {
                Trouble::Reconcile(error) => chain(error),
                Trouble::TooLong => format!("no end within {} s", PASS_TIMEOUT.as_secs()),
            };
            tracing::warn!(object = %key, error = why, "a reconcile failed; it is tried again later");
            context.metrics.reconciled(ReconcileResult::Failed, took);
            Next::Failed
        }
    };
    queue.done(&key, next);
}

#[cfg(test)]
mod tests;
