//! What would become of this object here? `kubectl fathom plan --cluster` and `diff` ask through a port-forward.
//! In: `POST /plan` with an InferenceCluster. Out: its plan, who enforces it, which pods would change.
//! Never: a write. It listens on the pod's loopback: whoever may forward a port to the operator may ask.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use fathom_crds::InferenceCluster;
use fathom_crds::conditions::Reason;
use k8s_openapi::api::core::v1::Pod;
use operator_plan::{Enforcement, Planned};
use operator_render::Desired;
use operator_render::names::LABEL_REVISION;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::live::Live;
use crate::live::child::label;
use crate::live::pod::LivePod;

/// The object may have 1.5 MiB in etcd; a spec has some KiB.
pub const MAX_BODY_BYTES: usize = 1 << 20;

/// Plans that are made at once: each takes a core.
const AT_ONCE: usize = 2;

/// Makes plans of objects that are not stored, from what the operator sees now.
pub trait Planner: Send + Sync + 'static {
    /// Everything but applying. Called outside the async runtime's threads.
    ///
    /// # Errors
    /// Why the object could not be planned at all.
    fn preview(&self, object: InferenceCluster) -> Result<Preview, Refused>;
}

/// A plan that is not carried out.
#[derive(Debug, Clone)]
pub struct Preview {
    pub planned: Planned,
    /// Or what the cluster lacks for the mode asked for.
    pub enforcement: Result<Enforcement, String>,
    /// What would be rendered; `None`: the spec fits nowhere.
    pub desired: Option<Desired>,
    /// The children of the stored object of the same name; nothing where there is none.
    pub live: Live,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub reason: Reason,
    pub message: String,
}

/// The answer of `POST /plan`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanAnswer {
    pub planned: Planned,
    /// Who would enforce it.
    pub enforcement: Option<Enforcement>,
    /// What the cluster lacks for the mode asked for.
    pub lacking: Option<String>,
    pub changes: Changes,
}

/// What applying would do to the engine pods. Routers are replaced one by one without an outage and not listed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Changes {
    pub kept: Vec<String>,
    pub created: Vec<String>,
    pub replaced: Vec<Replaced>,
    pub removed: Vec<String>,
}

/// A pod that another would take the place of: its requests end, its model is loaded anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Replaced {
    pub pod: String,
    pub by: String,
    /// Why a pod with the same name does not do.
    pub because: String,
}

/// The service.
pub fn router(planner: Arc<dyn Planner>) -> Router {
    let state = PlanService { planner, permits: Arc::new(Semaphore::new(AT_ONCE)) };
    Router::new().route("/plan", post(plan)).layer(DefaultBodyLimit::max(MAX_BODY_BYTES)).with_state(state)
}

#[derive(Clone)]
struct PlanService {
    planner: Arc<dyn Planner>,
    permits: Arc<Semaphore>,
}

async fn plan(State(service): State<PlanService>, body: String) -> Response {
    let object: InferenceCluster = match serde_json::from_str(&body) {
        Ok(object) => object,
        Err(error) => return refusal(StatusCode::BAD_REQUEST, Reason::DecodeFailed, &error.to_string()),
    };
    let broken = object.broken_rules();
    if !broken.is_empty() {
        return refusal(StatusCode::UNPROCESSABLE_ENTITY, Reason::DecodeFailed, &broken.join("; "));
    }
    let Ok(permit) = service.permits.acquire_owned().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let planner = service.planner;
    let previewed = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        planner.preview(object)
    });
    match previewed.await {
        Ok(Ok(preview)) => Json(answer(preview)).into_response(),
        Ok(Err(refused)) => refusal(StatusCode::UNPROCESSABLE_ENTITY, refused.reason, &refused.message),
        Err(error) => {
            tracing::error!(%error, "a plan could not be made");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

fn refusal(status: StatusCode, reason: Reason, message: &str) -> Response {
    (status, Json(json!({"error": {"reason": reason.to_string(), "message": message}}))).into_response()
}

fn answer(preview: Preview) -> PlanAnswer {
    let changes = preview.desired.as_ref().map(|desired| changes(desired, &preview.live));
    let (enforcement, lacking) = match preview.enforcement {
        Ok(enforcement) => (Some(enforcement), None),
        Err(lacking) => (None, Some(lacking)),
    };
    PlanAnswer { planned: preview.planned, enforcement, lacking, changes: changes.unwrap_or_default() }
}

/// What applying would do to the engine pods that are there: a pod is kept exactly when its name, which ends in the hash
/// of all that it is made from, stays.
fn changes(desired: &Desired, live: &Live) -> Changes {
    let mut changes = Changes::default();
    let engines = live.staying().filter(|pod| !pod.is_router());
    let mut left: Vec<&LivePod> = engines.collect();
    for wanted in &desired.replicas {
        let name = wanted.pod.metadata.name.as_deref().unwrap_or_default();
        let same = left.iter().position(|pod| pod.name() == name);
        // Two names of one replica differ in what follows its last dash only.
        let of_replica = |pod: &&LivePod| replica_of(pod) == wanted.replica;
        if let Some(index) = same {
            left.remove(index);
            changes.kept.push(name.to_owned());
        } else if let Some(index) = left.iter().position(of_replica) {
            let old = left.remove(index);
            changes.replaced.push(Replaced {
                pod: old.name().to_owned(),
                by: name.to_owned(),
                because: because(old, &wanted.pod),
            });
        } else {
            changes.created.push(name.to_owned());
        }
    }
    changes.removed = left.into_iter().map(|pod| pod.name().to_owned()).collect();
    changes
}

/// `flash-prefill-0` of `flash-prefill-0-ab12c`.
fn replica_of(pod: &LivePod) -> &str {
    let name = pod.name();
    name.rsplit_once('-').map_or(name, |(replica, _)| replica)
}

fn because(old: &LivePod, new: &Pod) -> String {
    let (was, will) = (&*old.content.revision, label(&new.metadata, LABEL_REVISION).unwrap_or_default());
    if was == will {
        return "its place, its resources or its pod template change".to_owned();
    }
    let shown = |revision| match revision {
        "" => "none",
        revision => revision,
    };
    format!("the revision changes from {} to {}", shown(was), shown(will))
}

#[cfg(test)]
mod tests;
