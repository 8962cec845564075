//! What is kept of the past, and how it is read back: ControllerRevisions, and annotations of pods.
//! In: spec and image; live objects. Out: a ControllerRevision; [`Recorded`], [`ReplicaPlan`], [`Enforcement`].
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

/// What a ControllerRevision records, as text: read, it takes ten times the memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordText {
    /// Grows from one recorded change to the next.
    pub number: i64,
    revision: Box<str>,
    data: Box<str>,
}

impl RecordText {
    pub fn of(revision: &ControllerRevision) -> Self {
        let label = revision.metadata.labels.as_ref().and_then(|labels| labels.get(n::LABEL_REVISION));
        let data = revision.data.as_ref().map(|RawExtension(data)| data.to_string());
        Self {
            number: revision.revision,
            revision: label.map_or("", String::as_str).into(),
            data: data.unwrap_or_default().into(),
        }
    }

    /// Reads back what the ControllerRevision `name` records.
    pub fn read(&self, name: &str) -> Option<Recorded> {
        let Data { spec, image } = serde_json::from_str(&self.data).ok()?;
        let (name, revision) = (name.to_owned(), self.revision.to_string());
        Some(Recorded { spec, image, name, revision, number: self.number })
    }
}

/// Reads a ControllerRevision back.
pub fn recorded(revision: &ControllerRevision) -> Option<Recorded> {
    RecordText::of(revision).read(revision.metadata.name.as_deref()?)
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
