//! Kinds that a cluster may or may not have: claims of `resource.k8s.io/v1`.
//! In: the API server, asked every minute. Out: their watches, once they are there. Never: a crash because they are not.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Sources;
use super::streams::Watches;

pub const EVERY: Duration = Duration::from_secs(60);

/// A first question that gets no answer is asked again sooner: nothing is planned before it is answered.
const FIRST: Duration = Duration::from_secs(2);

const GROUP: &str = "resource.k8s.io/v1";

/// Looks every so often until claims are served, then follows them. `known` becomes true with the first answer.
pub async fn run(watches: Watches, sources: Arc<Sources>, known: watch::Sender<bool>, every: Duration) {
    let mut said = false;
    loop {
        match claims_are_served(&watches.client).await {
            Ok(true) => break,
            Ok(false) => {
                if !said {
                    tracing::info!("{GROUP} is not served; placement by DRA is off until it is");
                    said = true;
                }
                known.send_replace(true);
            }
            Err(error) => tracing::warn!(%error, "cannot ask which kinds are served; asking again"),
        }
        tokio::time::sleep(if *known.borrow() { every } else { FIRST.min(every) }).await;
    }
    tracing::info!("{GROUP} is served; following claims and slices");
    let mut tasks = JoinSet::new();
    for (name, task) in watches.claims() {
        tasks.spawn(async move {
            task.await;
            name
        });
    }
    sources.claims_served.store(true, Ordering::Relaxed);
    known.send_replace(true);
    // Watches never end; one that does ends this task, and so the process.
    let _ = tasks.join_next().await;
}

/// Whether the group and its kinds are there. Asked by name: a list of all groups is long, and one broken aggregated
/// API would spoil it.
async fn claims_are_served(client: &Client) -> kube::Result<bool> {
    match client.list_api_group_resources(GROUP).await {
        Ok(list) => {
            let has = |name: &str| list.resources.iter().any(|resource| resource.name == name);
            Ok(has("resourceclaims") && has("resourceslices"))
        }
        // An unknown group is answered in plain words, without a reason that could be compared.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}
