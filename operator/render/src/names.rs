//! Labels, annotations, ports and paths of the children: the only place where these strings exist.
//! Never: values that belong to one object.

/// `app.kubernetes.io/name` of everything that is ours.
pub const APP: &str = "fathom";
/// `app.kubernetes.io/managed-by` of every child: what the operator's watches select by.
pub const MANAGER: &str = "fathom";

pub const LABEL_NAME: &str = "app.kubernetes.io/name";
pub const LABEL_INSTANCE: &str = "app.kubernetes.io/instance";
pub const LABEL_COMPONENT: &str = "app.kubernetes.io/component";
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Name of the InferenceCluster.
pub const LABEL_CLUSTER: &str = "fathom.dev/cluster";
/// Uid of the InferenceCluster: what selectors go by.
pub const LABEL_OWNER_UID: &str = "fathom.dev/owner-uid";
/// `prefill`, `decode`, `unified` or `router`.
pub const LABEL_ROLE: &str = "fathom.dev/role";
/// Number of the replica within its role.
pub const LABEL_REPLICA: &str = "fathom.dev/replica";
/// What prefill and decode agree on.
pub const LABEL_REVISION: &str = "fathom.dev/revision";
pub const LABEL_POD_HASH: &str = "fathom.dev/pod-hash";
/// `"true"` on pods that own requests: decode and unified. The decode Service selects by it instead of by role: a
/// Service's selector is a list of equalities, so one over roles would have to change whenever an object goes from
/// decode to unified or back, and for as long as pods of both exist it would miss one kind.
pub const LABEL_OWNS_REQUESTS: &str = "fathom.dev/owns-requests";

/// JSON of the pod's plan entry.
pub const ANNOTATION_PLAN: &str = "fathom.dev/plan";
/// What of the spec placed the pod.
pub const ANNOTATION_INPUTS: &str = "fathom.dev/inputs";
/// JSON of the enforcement that the pod was made with.
pub const ANNOTATION_ENFORCEMENT: &str = "fathom.dev/enforcement";
/// Hash of the object as it was rendered.
pub const ANNOTATION_APPLIED: &str = "fathom.dev/applied";

pub const PORT_HTTP: &str = "http";
pub const PORT_GRPC: &str = "grpc";
/// Port of the Service that clients use.
pub const CLIENT_PORT: i32 = 80;

/// The container of every pod of ours.
pub const CONTAINER: &str = "engine";
/// Volume with the model's files.
pub const MODEL_VOLUME: &str = "model";
pub const MODEL_PATH: &str = "/model";
pub const CONFIG_VOLUME: &str = "config";
pub const CONFIG_DIRECTORY: &str = "/etc/fathom";
pub const CONFIG_KEY: &str = "config.json";

/// Key of the pod's claim in its own spec.
pub const CLAIM: &str = "gpus";

/// `flash-router`.
pub fn router(cluster: &str) -> String {
    format!("{cluster}-router")
}

/// `flash-prefill`: the headless Service.
pub fn prefill_service(cluster: &str) -> String {
    format!("{cluster}-prefill")
}

/// `flash-decode`: the headless Service of the pods that own requests, unified ones too.
pub fn decode_service(cluster: &str) -> String {
    format!("{cluster}-decode")
}
