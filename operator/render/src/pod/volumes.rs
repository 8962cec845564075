//! Volumes of an engine pod: configuration, the model's files, shared memory between ranks.
//! Never: a volume that can be written, except shared memory; a size that the memory limit does not hold.

use engine_spec::host_tier::{CPU_SHM_BYTES, RANK_SHM_BYTES};
use fathom_crds::InferenceClusterSpec;
use fathom_crds::inference_cluster::ModelSource;
use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, HostPathVolumeSource, ImageVolumeSource,
    PersistentVolumeClaimVolumeSource, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use operator_plan::{ComputeDevice, ReplicaPlan};

use crate::names;

const SHM_VOLUME: &str = "shm";

/// The volumes of a pod whose ConfigMap has the name `config`.
pub(crate) fn volumes(spec: &InferenceClusterSpec, entry: &ReplicaPlan, config: &str) -> Vec<Volume> {
    let shm = shm_bytes(entry).map(|bytes| Volume {
        name: SHM_VOLUME.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: Some("Memory".to_owned()),
            size_limit: Some(Quantity(bytes.to_string())),
        }),
        ..Volume::default()
    });
    [config_volume(config)].into_iter().chain(model(&spec.model.source)).chain(shm).collect()
}

/// Where they are seen.
pub(crate) fn mounts(spec: &InferenceClusterSpec, entry: &ReplicaPlan) -> Vec<VolumeMount> {
    let shm = shm_bytes(entry).map(|_| mount(SHM_VOLUME, "/dev/shm", false));
    let source = &spec.model.source;
    let model = model(source).map(|_| VolumeMount {
        sub_path: source.pvc.as_ref().and_then(|pvc| folder(pvc.path.as_deref()?)),
        ..mount(names::MODEL_VOLUME, names::MODEL_PATH, true)
    });
    [config_mount()].into_iter().chain(model).chain(shm).collect()
}

pub(crate) fn config_volume(config: &str) -> Volume {
    Volume {
        name: names::CONFIG_VOLUME.to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: config.to_owned(),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }
}

pub(crate) fn config_mount() -> VolumeMount {
    mount(names::CONFIG_VOLUME, names::CONFIG_DIRECTORY, true)
}

/// None for a source that cannot be mounted: the planner has refused it.
fn model(source: &ModelSource) -> Option<Volume> {
    let volume = Volume { name: names::MODEL_VOLUME.to_owned(), ..Volume::default() };
    if let Some(path) = &source.host_path {
        // A folder that is not there is an error of this pod, not an empty folder made by the kubelet.
        let host_path = HostPathVolumeSource { path: path.clone(), type_: Some("Directory".to_owned()) };
        return Some(Volume { host_path: Some(host_path), ..volume });
    }
    if let Some(pvc) = &source.pvc {
        let claim =
            PersistentVolumeClaimVolumeSource { claim_name: pvc.claim_name.clone(), read_only: Some(true) };
        return Some(Volume { persistent_volume_claim: Some(claim), ..volume });
    }
    let image = source.image.as_ref()?;
    let image = ImageVolumeSource {
        reference: Some(image.reference.clone()),
        pull_policy: Some("IfNotPresent".to_owned()),
    };
    Some(Volume { image: Some(image), ..volume })
}

/// A folder inside a claim, as Kubernetes wants it: relative, nothing for the root.
fn folder(path: &str) -> Option<String> {
    let path = path.trim_matches('/');
    (!path.is_empty()).then(|| path.to_owned())
}

/// Ranks talk through shared memory, for which the default of 64 MiB is too little. The planner counts these bytes into
/// the memory limit with the same constants.
fn shm_bytes(entry: &ReplicaPlan) -> Option<u64> {
    let ranks = entry.gpus.len() as u64;
    (ranks > 0).then_some(match entry.device {
        ComputeDevice::Cuda => ranks * RANK_SHM_BYTES,
        ComputeDevice::Cpu => CPU_SHM_BYTES,
    })
}

fn mount(volume: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: volume.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(read_only),
        ..VolumeMount::default()
    }
}
