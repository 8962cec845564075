//! Times and bytes: start budgets, shared memory, requests and limits.

use engine_spec::host_tier::{CPU_SHM_BYTES, RANK_SHM_BYTES, gpu_replica_bytes};
use k8s_openapi::api::core::v1::PodSpec;
use operator_plan::{ComputeDevice, Mode};

use crate::scene::{Scene, dra, kubelet, needle, soft, story};

fn first(scene: &Scene) -> PodSpec {
    scene.render().replicas.remove(0).pod.spec.unwrap()
}

fn start_seconds(pod: &PodSpec) -> i64 {
    let probe = pod.containers[0].startup_probe.clone().unwrap();
    i64::from(probe.failure_threshold.unwrap()) * i64::from(probe.period_seconds.unwrap())
}

/// A33: the time to load is part of the start, and liveness waits for it.
#[test]
fn a_start_may_take_as_long_as_loading_takes() {
    let mut scene = story(dra());
    scene.planned.report.sizes[0].weight_bytes_per_rank = 175_000_000_000;
    let at_a_gigabyte_a_second = 700;
    assert!(start_seconds(&first(&scene)) > 5 * at_a_gigabyte_a_second);
    assert!(first(&scene).containers[0].liveness_probe.clone().unwrap().initial_delay_seconds.is_none());
    assert_eq!(start_seconds(&first(&needle())), 300);
    scene.planned.report.sizes.clear();
    assert_eq!(start_seconds(&first(&scene)), 300);
}

/// A64: shared memory has a size, and the memory limit holds it.
#[test]
fn shared_memory_is_sized_and_within_the_limit() {
    for ranks in [1usize, 2, 8] {
        let mut scene = story(dra());
        let entry = &mut scene.planned.plan.replicas[0];
        let gpu = entry.gpus[0].clone();
        entry.gpus = vec![gpu; ranks];
        entry.memory_bytes = gpu_replica_bytes(ranks as u64);
        let pod = first(&scene);
        let shm = pod.volumes.as_ref().unwrap().iter().find_map(|volume| volume.empty_dir.clone()).unwrap();
        let bytes: u64 = shm.size_limit.unwrap().0.parse().unwrap();
        let limit = &pod.containers[0].resources.as_ref().unwrap().limits.as_ref().unwrap()["memory"];
        assert_eq!(shm.medium.as_deref(), Some("Memory"));
        assert_eq!(bytes, ranks as u64 * RANK_SHM_BYTES);
        assert!(bytes < limit.0.parse().unwrap());
        let mounts = pod.containers[0].volume_mounts.as_ref().unwrap();
        assert!(mounts.iter().any(|mount| mount.mount_path == "/dev/shm"));
    }
    assert!(first(&needle()).volumes.unwrap().iter().all(|volume| volume.empty_dir.is_none()));
}

#[test]
fn shared_memory_of_gpus_that_do_not_compute_is_that_of_a_cpu_process() {
    let mut scene = story(dra());
    scene.planned.plan.replicas[0].device = ComputeDevice::Cpu;
    let shm = first(&scene).volumes.unwrap().into_iter().find_map(|volume| volume.empty_dir).unwrap();
    assert_eq!(shm.size_limit.unwrap().0, CPU_SHM_BYTES.to_string());
}

#[test]
fn cpus_are_requested_by_mode() {
    let amounts = |scene: &Scene| {
        let resources = first(scene).containers[0].resources.clone().unwrap();
        let get = |amounts: Option<std::collections::BTreeMap<String, _>>, key: &str| {
            amounts
                .and_then(|amounts| amounts.get(key).cloned())
                .map(|amount: k8s_openapi::apimachinery::pkg::api::resource::Quantity| amount.0)
        };
        (get(resources.requests, "cpu"), get(resources.limits, "cpu"))
    };
    let some = |text: &str| Some(text.to_owned());
    for mode in [dra(), soft(), Mode::Unmanaged] {
        let mut scene = story(mode);
        assert_eq!(amounts(&scene), (some("16"), None));
        scene.cluster.spec.prefill.as_mut().unwrap().cpus = None;
        assert_eq!(amounts(&scene), (some("4"), None));
    }
    assert_eq!(amounts(&needle()), (some("100m"), None));
    let mut scene = story(kubelet());
    assert_eq!(amounts(&scene), (some("16"), some("16")));
    scene.cluster.spec.prefill.as_mut().unwrap().cpus = None;
    assert_eq!(amounts(&scene), (some("4"), some("4")));
    let mut scene = needle();
    scene.enforcement.mode = kubelet();
    assert_eq!(amounts(&scene), (some("1"), some("1")));
}

#[test]
fn a_pod_has_time_to_drain_and_to_free_its_memory() {
    assert_eq!(first(&needle()).termination_grace_period_seconds, Some(60));
}
