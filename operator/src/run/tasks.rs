//! The tasks of the process, by name.
//! In: futures. Out: the name of the first that ends, however it ends. Never: a task that is forgotten.

use std::collections::BTreeMap;
use std::future::Future;

use tokio::task::{Id, JoinSet};

/// Tasks that are meant to last.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    set: JoinSet<()>,
    names: BTreeMap<Id, String>,
}

impl Tasks {
    pub(super) fn spawn(&mut self, name: impl Into<String>, task: impl Future<Output = ()> + Send + 'static) {
        let handle = self.set.spawn(task);
        self.names.insert(handle.id(), name.into());
    }

    /// The name of the next task that ends; a panic is logged. Never returns while there is none.
    pub(super) async fn ended(&mut self) -> String {
        let id = match self.set.join_next_with_id().await {
            Some(Ok((id, ()))) => id,
            Some(Err(error)) => {
                if error.is_panic() {
                    tracing::error!(%error, task = self.names.get(&error.id()), "a task panicked");
                }
                error.id()
            }
            None => return std::future::pending().await,
        };
        self.names.remove(&id).unwrap_or_default()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// Cuts all off and waits until they are gone.
    pub(super) async fn shutdown(&mut self) {
        self.set.shutdown().await;
        self.names.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a71_the_first_task_that_ends_or_panics_is_named() {
        let mut tasks = Tasks::default();
        tasks.spawn("lasting", std::future::pending());
        tasks.spawn("ending", async {});
        assert_eq!(tasks.ended().await, "ending");
        tasks.spawn("panicking", async { panic!("on purpose") });
        assert_eq!(tasks.ended().await, "panicking");
        tasks.shutdown().await;
        assert!(tasks.is_empty());
    }
}
