//! Plans as the planner makes them, written down by hand: these tests are about spelling, not about placing.

use engine_spec::Role;
use engine_spec::admission::SpeedSource;
use engine_spec::host_tier::gpu_replica_bytes;
use fathom_crds::InferenceCluster;
use operator_plan::{
    ComputeDevice, DevicePool, Enforcement, Mode, Plan, Planned, PlannedGpu, QueueLimit, ReplicaPlan, Report,
    SizeReport,
};
use operator_render::{Desired, Neighbours, Owner, RenderInput, render};

const GIB: u64 = 1 << 30;

/// Everything of one rendering, changeable.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    pub(crate) cluster: InferenceCluster,
    pub(crate) planned: Planned,
    pub(crate) enforcement: Enforcement,
    pub(crate) image: String,
}

impl Scene {
    pub(crate) fn render(&self) -> Desired {
        render(&RenderInput {
            owner: Owner {
                namespace: "serving",
                name: self.cluster.name(),
                uid: "0b7c4a52-30a5-4f5e-9d0c-8b8d0ab5f001",
            },
            spec: &self.cluster.spec,
            planned: &self.planned,
            enforcement: &self.enforcement,
            image: &self.image,
            neighbours: &Neighbours { operator_namespace: "fathom-system".to_owned() },
        })
    }

    pub(crate) fn pod_hashes(&self) -> Vec<String> {
        let names = self.render().replicas.into_iter().map(|replica| replica.pod.metadata.name.unwrap());
        names.collect()
    }
}

/// Two replicas of four GPUs, one on each NUMA node of one server.
pub(crate) fn story(mode: Mode) -> Scene {
    let cluster = read(include_str!("../../../../crds/examples/story.yaml"));
    let replicas =
        vec![on_gpus("flash-prefill-0", Role::Prefill, 0), on_gpus("flash-decode-0", Role::Decode, 1)];
    let sizes = [Role::Prefill, Role::Decode].map(|role| size(role, 4, 38 * GIB)).to_vec();
    Scene {
        planned: planned("flash", 131_072, replicas, sizes),
        enforcement: Enforcement {
            mode,
            because: "slices of gpu.nvidia.com exist".to_owned(),
            bind_memory: true,
            memory_because: String::new(),
        },
        cluster,
        image: "fathom.dev/fathom-engine:0.1.0".to_owned(),
    }
}

/// The needle model on CPUs: prefill and decode on one node.
pub(crate) fn needle() -> Scene {
    let cluster = read(include_str!("../../../../crds/examples/needle.yaml"));
    let replicas = vec![
        on_cpus("needle-prefill-0", Role::Prefill, &[0]),
        on_cpus("needle-decode-0", Role::Decode, &[1]),
    ];
    let sizes = [Role::Prefill, Role::Decode].map(|role| size(role, 0, 3 << 20)).to_vec();
    Scene {
        planned: planned("needle", 32_768, replicas, sizes),
        enforcement: Enforcement {
            mode: soft(),
            because: "the cluster offers neither claims nor aligned CPUs".to_owned(),
            bind_memory: false,
            memory_because: String::new(),
        },
        cluster,
        image: "fathom.dev/fathom-engine:0.1.0".to_owned(),
    }
}

/// The needle model in one process.
pub(crate) fn unified() -> Scene {
    let mut scene = needle();
    scene.cluster.spec.prefill = None;
    scene.planned.plan.replicas = vec![on_cpus("needle-unified-0", Role::Unified, &[0, 1])];
    scene.planned.report.sizes = vec![size(Role::Unified, 0, 3 << 20)];
    scene
}

pub(crate) fn dra() -> Mode {
    Mode::Dra { driver: "gpu.nvidia.com".to_owned(), device_class: "gpu.nvidia.com".to_owned() }
}

pub(crate) fn soft() -> Mode {
    Mode::Soft { gpu_resource: Some("nvidia.com/gpu".to_owned()) }
}

pub(crate) fn kubelet() -> Mode {
    Mode::Kubelet { gpu_resource: Some("nvidia.com/gpu".to_owned()) }
}

fn read(text: &str) -> InferenceCluster {
    fathom_crds::read(text).unwrap()
}

fn planned(name: &str, context_tokens: u32, replicas: Vec<ReplicaPlan>, sizes: Vec<SizeReport>) -> Planned {
    let queue_limit = QueueLimit {
        tokens: Some(78_144),
        given: false,
        requests: 32,
        time_to_first_token_ms: 30_000,
        prefill_tokens_per_second: Some(3_300.0),
        source: SpeedSource::Given,
        derivation: "0.8 x 3,300 tokens/s x 29.6 s".to_owned(),
    };
    let revision = "b3a9dceef6".to_owned();
    let plan = Plan { name: name.to_owned(), revision, context_tokens, replicas, routers: 1, queue_limit };
    Planned { plan, report: Report { sizes, ..Report::default() } }
}

pub(crate) fn on_gpus(name: &str, role: Role, numa: u32) -> ReplicaPlan {
    let gpu =
        |index: u32| PlannedGpu { index, uuid: format!("GPU-5f0e1a00-0000-0000-0000-00000000000{index}") };
    let host_cache_bytes = 100 * GIB;
    ReplicaPlan {
        name: name.to_owned(),
        role,
        index: 0,
        node: "n0".to_owned(),
        numa_node: Some(numa),
        device: ComputeDevice::Cuda,
        gpus: (numa * 4..numa * 4 + 4).map(gpu).collect(),
        cpus: (numa * 32..numa * 32 + 16).collect(),
        cpus_shared: false,
        memory_bytes: gpu_replica_bytes(4) + host_cache_bytes,
        memory_node: Some(numa),
        device_pool: DevicePool { pages: 40_173, slots: 64, bytes: 44 * GIB },
        host_cache_bytes,
        host_cache_limit: None,
    }
}

fn on_cpus(name: &str, role: Role, cpus: &[u32]) -> ReplicaPlan {
    ReplicaPlan {
        name: name.to_owned(),
        role,
        index: 0,
        node: "worker-1".to_owned(),
        numa_node: None,
        device: ComputeDevice::Cpu,
        gpus: Vec::new(),
        cpus: cpus.to_vec(),
        cpus_shared: false,
        memory_bytes: 480 << 20,
        memory_node: None,
        device_pool: DevicePool { pages: 512, slots: 64, bytes: 157 << 20 },
        host_cache_bytes: 0,
        host_cache_limit: None,
    }
}

fn size(role: Role, gpus: u32, weight_bytes_per_rank: u64) -> SizeReport {
    SizeReport {
        role,
        replicas: 1,
        gpus,
        weight_bytes_per_rank,
        gpu_memory_bytes: None,
        memory_bytes: 24 * GIB,
    }
}
