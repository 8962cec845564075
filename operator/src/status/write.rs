//! The status on its way to the API server: as one patch of the status subresource, and only when it differs.
//! In: the object as last seen, the status to be. Out: whether a write was needed. Never: the spec, retries.
//! Absent fields are sent as null, so that the result does not depend on what was there.

use fathom_crds::conditions::{ConditionType, Reason};
use fathom_crds::{InferenceCluster, InferenceClusterStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use super::condition::{self, State, Verdict};

/// Who writes status; children have another manager.
const MANAGER: &str = "fathom-operator-status";

/// Fields that are left out when they are empty: a merge would keep their old value.
const OPTIONAL: [&str; 11] = [
    "observedGeneration",
    "summary",
    "plan",
    "hostCache",
    "queueLimit",
    "endpoint",
    "currentRevision",
    "lastGoodRevision",
    "currentInputs",
    "lastGoodInputs",
    "placement",
];

/// Why a status could not be written.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot write the status of InferenceCluster {namespace}/{name}: tried again with the next change or resync"
)]
pub struct WriteError {
    namespace: String,
    name: String,
    source: Box<kube::Error>,
}

/// Writes the status if it differs from the one that the object carries. An object that is gone is no error.
///
/// # Errors
/// Whatever the API server or the way to it says.
pub async fn write(
    client: &Client,
    cluster: &InferenceCluster,
    status: &InferenceClusterStatus,
) -> Result<bool, WriteError> {
    if cluster.status.as_ref() == Some(status) {
        return Ok(false);
    }
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name());
    send(&untyped(client, &namespace), &namespace, name, &patch(status)).await
}

/// Says of an object that does not decode into our types that it does not, through an untyped client. Everything else of
/// its status, and all its children, stay as they are.
///
/// # Errors
/// Whatever the API server or the way to it says.
pub async fn write_decode_failed(
    client: &Client,
    namespace: &str,
    name: &str,
    why: &str,
    now: jiff::Timestamp,
) -> Result<bool, WriteError> {
    let api = untyped(client, namespace);
    let object = match api.get(name).await {
        Ok(object) => object,
        Err(error) => return gone_or(error, namespace, name),
    };
    let before = object.data.get("status").and_then(|status| status.get("conditions"));
    let before: Vec<Condition> =
        before.and_then(|list| serde_json::from_value(list.clone()).ok()).unwrap_or_default();
    let message = format!(
        "the stored object is not readable by this version of the operator: {why}. Correct the field, or upgrade the operator"
    );
    let verdict = Verdict::new(ConditionType::Accepted, State::False, Reason::DecodeFailed, message);
    let after = condition::merge(&before, &[verdict], object.metadata.generation, now);
    if after == before {
        return Ok(false);
    }
    send(&api, namespace, name, &json!({"status": {"conditions": after}})).await
}

fn untyped(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<InferenceCluster>(&()))
}

/// The answer is not read as one of our types: it might not be one any more.
async fn send(
    api: &Api<DynamicObject>,
    namespace: &str,
    name: &str,
    patch: &Value,
) -> Result<bool, WriteError> {
    match api.patch_status(name, &PatchParams::apply(MANAGER), &Patch::Merge(patch)).await {
        Ok(_) => Ok(true),
        Err(error) => gone_or(error, namespace, name),
    }
}

/// The whole status. A uid beside it would be no precondition: this subresource ignores metadata (tried). An object that
/// takes the place of another of its name may carry the other's status for a moment, until its own first pass.
fn patch(status: &InferenceClusterStatus) -> Value {
    let mut status = json!(status);
    let with_nulls = |object: &mut Value, fields: &[&str]| {
        if let Value::Object(object) = object {
            for field in fields {
                object.entry(*field).or_insert(Value::Null);
            }
        }
    };
    with_nulls(&mut status, &OPTIONAL);
    with_nulls(&mut status["plan"], &["rejected", "notes"]);
    with_nulls(&mut status["queueLimit"], &["tokens"]);
    json!({"status": status})
}

fn gone_or(error: kube::Error, namespace: &str, name: &str) -> Result<bool, WriteError> {
    if matches!(&error, kube::Error::Api(status) if status.is_not_found()) {
        return Ok(false);
    }
    Err(WriteError { namespace: namespace.to_owned(), name: name.to_owned(), source: Box::new(error) })
}

#[cfg(test)]
mod tests {
    use fathom_crds::inference_cluster::{PlacementStatus, PlanStatus, QueueLimitStatus, SummaryStatus};

    use super::*;

    #[test]
    fn every_field_that_may_be_left_out_is_sent_as_null() {
        let text = || Some("x".to_owned());
        let full = InferenceClusterStatus {
            observed_generation: Some(1),
            conditions: Vec::new(),
            summary: Some(SummaryStatus::default()),
            plan: Some(PlanStatus {
                rejected: vec![fathom_crds::inference_cluster::RejectedStatus::default()],
                notes: vec!["note".to_owned()],
                ..PlanStatus::default()
            }),
            host_cache: vec![fathom_crds::inference_cluster::HostCacheStatus::default()],
            queue_limit: Some(QueueLimitStatus { tokens: Some(1), ..QueueLimitStatus::default() }),
            endpoint: text(),
            current_revision: text(),
            last_good_revision: text(),
            current_inputs: text(),
            last_good_inputs: text(),
            placement: Some(PlacementStatus::default()),
        };
        let sparse = InferenceClusterStatus {
            plan: Some(PlanStatus::default()),
            queue_limit: Some(QueueLimitStatus::default()),
            ..InferenceClusterStatus::default()
        };
        let (full, patch) = (json!(full), patch(&sparse));
        let keys = |value: &Value| {
            let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
            keys.sort_unstable();
            keys
        };
        assert_eq!(keys(&full), keys(&patch["status"]));
        assert_eq!(keys(&full["plan"]), keys(&patch["status"]["plan"]));
        assert_eq!(keys(&full["queueLimit"]), keys(&patch["status"]["queueLimit"]));
    }
}
