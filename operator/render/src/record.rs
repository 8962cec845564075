//! What is kept of the past, and how it is read back: ControllerRevisions, and annotations of pods.
//! In: spec and image; live objects. Out: a ControllerRevision; [`Recorded`], [`Present`], [`Enforcement`].
//! Never: an error for what does not read: it was not ours, or is older than what we can read, and is left alone.

use fathom_crds::InferenceClusterSpec;
use fathom_crds::inference_cluster::RolloutSpec;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use operator_plan::{Enforcement, ReplicaPlan};
use serde::{Deserialize, Serialize};

use crate::desired::RenderInput;
use crate::digest;
use crate::names as n;
use crate::owned::Children;

/// Inputs of one moment: enough to make all children again.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// Without `rollout`.
    pub spec: InferenceClusterSpec,
    /// Resolved image of engine and router.
    pub image: String,
    /// Of the ControllerRevision.
    pub name: String,
    /// What prefill and decode agreed on.
    pub revision: String,
    /// Grows from one recorded change to the next.
    pub number: i64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Data {
    spec: InferenceClusterSpec,
    image: String,
}

impl Data {
    fn new(spec: &InferenceClusterSpec, image: &str) -> Self {
        Self { spec: lasting(spec), image: image.to_owned() }
    }

    /// `flash-<10 digits of the hash of the inputs>`.
    fn name(&self, cluster: &str) -> String {
        format!("{cluster}-{}", digest::hash(self, 10))
    }
}

/// A spec without what says only how to get there.
pub fn lasting(spec: &InferenceClusterSpec) -> InferenceClusterSpec {
    InferenceClusterSpec { rollout: RolloutSpec::default(), ..spec.clone() }
}

/// The ControllerRevision of the inputs. Its number is given when it is created: render knows no history.
pub(crate) fn record(input: &RenderInput<'_>, children: &Children<'_>) -> ControllerRevision {
    let data = Data::new(input.spec, input.image);
    let mut labels = children.labels("record");
    labels.insert(n::LABEL_REVISION.to_owned(), input.planned.plan.revision.clone());
    let json = serde_json::to_value(&data).expect("plain structs with string keys serialise");
    ControllerRevision {
        metadata: children.meta(&data.name(children.cluster()), labels),
        data: Some(RawExtension(digest::canonical(json))),
        revision: 0,
    }
}

/// Name of the ControllerRevision that these inputs have.
pub fn record_name(cluster: &str, spec: &InferenceClusterSpec, image: &str) -> String {
    Data::new(spec, image).name(cluster)
}

/// Turns what a ControllerRevision records into one text: as a tree in memory it takes ten times as much.
pub fn compact(revision: &mut ControllerRevision) {
    if let Some(RawExtension(data)) = &mut revision.data
        && !data.is_string()
    {
        *data = data.to_string().into();
    }
}

/// Reads a ControllerRevision back, compacted or not.
pub fn recorded(revision: &ControllerRevision) -> Option<Recorded> {
    let RawExtension(data) = revision.data.as_ref()?;
    let data = data.as_str().map_or_else(|| serde_json::from_value(data.clone()), serde_json::from_str);
    let Data { spec, image } = data.ok()?;
    let label = revision.metadata.labels.as_ref().and_then(|labels| labels.get(n::LABEL_REVISION));
    Some(Recorded {
        spec,
        image,
        name: revision.metadata.name.clone()?,
        revision: label.cloned().unwrap_or_default(),
        number: revision.revision,
    })
}

/// The image of an object: its own, or the one that it has had since its spec last changed, or the operator's. So a new
/// operator restarts nothing.
pub fn image_for(spec: &InferenceClusterSpec, newest: Option<&Recorded>, default: &str) -> String {
    let kept = || newest.filter(|newest| newest.spec == lasting(spec)).map(|newest| newest.image.clone());
    spec.runtime.image.clone().or_else(kept).unwrap_or_else(|| default.to_owned())
}

/// The plan entry that an engine pod was made from.
pub fn plan_entry(pod: &Pod) -> Option<ReplicaPlan> {
    serde_json::from_str(pod.metadata.annotations.as_ref()?.get(n::ANNOTATION_PLAN)?).ok()
}

/// The enforcement that an engine pod was made with.
pub fn enforced(pod: &Pod) -> Option<Enforcement> {
    let annotations = pod.metadata.annotations.as_ref()?;
    serde_json::from_str(annotations.get(n::ANNOTATION_ENFORCEMENT)?).ok()
}
