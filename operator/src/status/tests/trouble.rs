//! Pods that do not do what they should.

use expect_test::expect;
use serde_json::{Value, json};

use super::super::Rejection;
use super::world::World;
use super::{crashed, differs, not_ready};

/// A16: with container, reason, exit code and count, and what the plan gave it.
#[test]
fn killed_for_memory() {
    let mut world = World::story();
    world.pod("flash-prefill", |pod| crashed(pod, "OOMKilled", 137, ""));
    differs(
        &world,
        &expect![[r#"
        Progressing False OutOfMemory: container engine of pod flash-prefill-0-ab12c ended (OOMKilled, exit code 137), restarted 3 times: it used more memory than it may. Its plan gives it 136.6 GiB: 112.6 GiB of host cache, the rest for itself; a smaller spec.hostCache or contextTokens leaves it more
        RolesReady False OutOfMemory: ready: prefill 0/1; container engine of pod flash-prefill-0-ab12c ended (OOMKilled, exit code 137), restarted 3 times: it used more memory than it may. Its plan gives it 136.6 GiB: 112.6 GiB of host cache, the rest for itself; a smaller spec.hostCache or contextTokens leaves it more
        Routable False NotRoutable: no prefill pod is ready
        Degraded True OutOfMemory: container engine of pod flash-prefill-0-ab12c ended (OOMKilled, exit code 137), restarted 3 times: it used more memory than it may. Its plan gives it 136.6 GiB: 112.6 GiB of host cache, the rest for itself; a smaller spec.hostCache or contextTokens leaves it more
        Ready False OutOfMemory: ready: prefill 0/1; container engine of pod flash-prefill-0-ab12c ended (OOMKilled, exit code 137), restarted 3 times: it used more memory than it may. Its plan gives it 136.6 GiB: 112.6 GiB of host cache, the rest for itself; a smaller spec.hostCache or contextTokens leaves it more
    "#]],
    );
}

/// A16.
#[test]
fn the_container_keeps_ending() {
    let mut world = World::story();
    let words = "loading\nconfiguration is refused: pools.kvPages is 0\n";
    world.pod("flash-decode", |pod| crashed(pod, "Error", 2, words));
    differs(
        &world,
        &expect![[r#"
        Progressing False CrashLoop: container engine of pod flash-decode-0-ab12c ended (Error, exit code 2), restarted 3 times. Its last words: configuration is refused: pools.kvPages is 0
        RolesReady False CrashLoop: ready: decode 0/1; container engine of pod flash-decode-0-ab12c ended (Error, exit code 2), restarted 3 times. Its last words: configuration is refused: pools.kvPages is 0
        Routable False NotRoutable: no decode pod is ready
        Degraded True CrashLoop: container engine of pod flash-decode-0-ab12c ended (Error, exit code 2), restarted 3 times. Its last words: configuration is refused: pools.kvPages is 0
        Ready False CrashLoop: ready: decode 0/1; container engine of pod flash-decode-0-ab12c ended (Error, exit code 2), restarted 3 times. Its last words: configuration is refused: pools.kvPages is 0
    "#]],
    );
}

#[test]
fn the_checkpoint_is_another_model() {
    let mut world = World::story();
    let words = "ModelMismatch: hidden_size is 7168, planned 4096";
    world.pod("flash-decode", |pod| crashed(pod, "Error", 2, words));
    differs(
        &world,
        &expect![[r#"
        Progressing False ModelMismatch: container engine of pod flash-decode-0-ab12c ended (Error, exit code 2), restarted 3 times. Its last words: ModelMismatch: hidden_size is 7168, planned 4096
        RolesReady False ModelMismatch: ready: decode 0/1; container engine of pod flash-decode-0-ab12c ended (Error, exit code 2), restarted 3 times. Its last words: ModelMismatch: hidden_size is 7168, planned 4096
        Routable False NotRoutable: no decode pod is ready
        Degraded True ModelMismatch: container engine of pod flash-decode-0-ab12c ended (Error, exit code 2), restarted 3 times. Its last words: ModelMismatch: hidden_size is 7168, planned 4096
        Ready False ModelMismatch: ready: decode 0/1; container engine of pod flash-decode-0-ab12c ended (Error, exit code 2), restarted 3 times. Its last words: ModelMismatch: hidden_size is 7168, planned 4096
    "#]],
    );
}

#[test]
fn a_pod_that_recovered_is_no_trouble() {
    let mut world = World::story();
    world.pod("flash-decode", |pod| {
        pod["status"]["containerStatuses"][0]["restartCount"] = json!(2);
        pod["status"]["containerStatuses"][0]["lastState"] =
            json!({"terminated": {"reason": "OOMKilled", "exitCode": 137}});
    });
    differs(&world, &expect![]);
}

#[test]
fn the_image_cannot_be_pulled() {
    let mut world = World::story();
    world.pod("flash-decode", |pod| {
        not_ready(pod);
        let message = "Back-off pulling image \"fathom.dev/fathom-engine:0.1.0\"";
        pod["status"]["containerStatuses"][0]["state"] =
            json!({"waiting": {"reason": "ImagePullBackOff", "message": message}});
    });
    differs(
        &world,
        &expect![[r#"
        Progressing False ImagePull: image fathom.dev/fathom-engine:0.1.0 of pod flash-decode-0-ab12c: ImagePullBackOff: Back-off pulling image "fathom.dev/fathom-engine:0.1.0"
        RolesReady False ImagePull: ready: decode 0/1; image fathom.dev/fathom-engine:0.1.0 of pod flash-decode-0-ab12c: ImagePullBackOff: Back-off pulling image "fathom.dev/fathom-engine:0.1.0"
        Routable False NotRoutable: no decode pod is ready
        Degraded True ImagePull: image fathom.dev/fathom-engine:0.1.0 of pod flash-decode-0-ab12c: ImagePullBackOff: Back-off pulling image "fathom.dev/fathom-engine:0.1.0"
        Ready False ImagePull: ready: decode 0/1; image fathom.dev/fathom-engine:0.1.0 of pod flash-decode-0-ab12c: ImagePullBackOff: Back-off pulling image "fathom.dev/fathom-engine:0.1.0"
    "#]],
    );
}

#[test]
fn a_claim_waits_for_its_gpus() {
    let mut world = World::story();
    let message = "0/1 nodes are available: 1 cannot allocate all claims.";
    world.pod("flash-decode", |pod| {
        not_ready(pod);
        pod["status"]["phase"] = json!("Pending");
        pod["status"]["containerStatuses"] = json!([]);
        pod["status"]["conditions"][0] =
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message});
    });
    let claim = world.live.claims.iter_mut().find(|claim| claim.name().starts_with("flash-decode"));
    std::sync::Arc::make_mut(claim.unwrap()).content.given = None;
    world.engines.remove("flash-decode-0-ab12c");
    differs(
        &world,
        &expect![[r#"
            PlacementSatisfied Unknown NotKnownYet: flash-decode-0 GPUs: the pod's ResourceClaim is not allocated yet (and 2 more)
            Progressing True ClaimPending: updated 3 of 3 pods, 2 ready; claim flash-decode-0-ab12c of GPUs GPU-429c64f2-5c55-568d-bc37-7d297b05093c, GPU-c9f54f55-25ab-595c-8d73-297b9521101b, GPU-a5c81ee2-0aac-57cc-bd0f-88a69b8bc15e, GPU-a41fcb97-0ae0-52ae-ac96-5059cdd879e8 on node story is not allocated: 0/1 nodes are available: 1 cannot allocate all claims
            RolesReady False ClaimPending: ready: decode 0/1; claim flash-decode-0-ab12c of GPUs GPU-429c64f2-5c55-568d-bc37-7d297b05093c, GPU-c9f54f55-25ab-595c-8d73-297b9521101b, GPU-a5c81ee2-0aac-57cc-bd0f-88a69b8bc15e, GPU-a41fcb97-0ae0-52ae-ac96-5059cdd879e8 on node story is not allocated: 0/1 nodes are available: 1 cannot allocate all claims
            Routable False NotRoutable: no decode pod is ready
            Ready False ClaimPending: ready: decode 0/1; claim flash-decode-0-ab12c of GPUs GPU-429c64f2-5c55-568d-bc37-7d297b05093c, GPU-c9f54f55-25ab-595c-8d73-297b9521101b, GPU-a5c81ee2-0aac-57cc-bd0f-88a69b8bc15e, GPU-a41fcb97-0ae0-52ae-ac96-5059cdd879e8 on node story is not allocated: 0/1 nodes are available: 1 cannot allocate all claims
        "#]],
    );
}

#[test]
fn a_gpu_vanished_under_a_running_pod() {
    let mut world = World::story();
    world.offered.as_mut().unwrap().get_mut("story").unwrap().remove(0);
    differs(
        &world,
        &expect![[r#"
        PlacementSatisfied False GpuLost: GPU GPU-fa6d93fc-5127-5601-b9fe-1202aa2541dc of pod flash-prefill-0-ab12c is no longer offered on node story: the pod stays as it is; look at the node, and delete the pod to have it planned anew
        Degraded True GpuLost: GPU GPU-fa6d93fc-5127-5601-b9fe-1202aa2541dc of pod flash-prefill-0-ab12c is no longer offered on node story: the pod stays as it is; look at the node, and delete the pod to have it planned anew
    "#]],
    );
}

#[test]
fn a_kubelet_rejects_the_topology_for_good() {
    let mut world = World::story();
    world.live.pods.remove(0);
    world.rejections = vec![Rejection {
        replica: "flash-prefill-0".to_owned(),
        node: "story".to_owned(),
        reason: "TopologyAffinityError".to_owned(),
        message: "Pod was rejected: Resources cannot be allocated with Topology locality".to_owned(),
        times: 5,
        given_up: true,
    }];
    differs(
        &world,
        &expect![[r#"
            PlacementSatisfied False TopologyRejected: the kubelet of node story rejected 5 pods of flash-prefill-0: TopologyAffinityError: Pod was rejected: Resources cannot be allocated with Topology locality; no further pod is tried until the spec or the node changes
            Progressing False TopologyRejected: the kubelet of node story rejected 5 pods of flash-prefill-0: TopologyAffinityError: Pod was rejected: Resources cannot be allocated with Topology locality; no further pod is tried until the spec or the node changes
            RolesReady False TopologyRejected: ready: prefill 0/1; the kubelet of node story rejected 5 pods of flash-prefill-0: TopologyAffinityError: Pod was rejected: Resources cannot be allocated with Topology locality; no further pod is tried until the spec or the node changes
            Routable False NotRoutable: no prefill pod is ready
            Degraded True TopologyRejected: the kubelet of node story rejected 5 pods of flash-prefill-0: TopologyAffinityError: Pod was rejected: Resources cannot be allocated with Topology locality; no further pod is tried until the spec or the node changes
            Ready False TopologyRejected: the kubelet of node story rejected 5 pods of flash-prefill-0: TopologyAffinityError: Pod was rejected: Resources cannot be allocated with Topology locality; no further pod is tried until the spec or the node changes
        "#]],
    );
}

#[test]
fn admission_refuses_a_pod() {
    let mut world = World::story();
    world.live.pods.remove(0);
    world.outcome.refused = vec![crate::apply::Refused {
        child: "Pod flash-prefill-0-ab12c".to_owned(),
        message: "pods is forbidden: violates PodSecurity \"restricted:latest\": hostPath volumes".to_owned(),
        forbidden: true,
    }];
    differs(
        &world,
        &expect![[r#"
            PlacementSatisfied Unknown NotKnownYet: 1 of 2 pods do not run yet
            Progressing False PodRefused: Pod flash-prefill-0-ab12c was refused: pods is forbidden: violates PodSecurity "restricted:latest": hostPath volumes
            RolesReady False PodRefused: ready: prefill 0/1; Pod flash-prefill-0-ab12c was refused: pods is forbidden: violates PodSecurity "restricted:latest": hostPath volumes
            Routable False NotRoutable: no prefill pod is ready
            Degraded True PodRefused: Pod flash-prefill-0-ab12c was refused: pods is forbidden: violates PodSecurity "restricted:latest": hostPath volumes
            Ready False PodRefused: Pod flash-prefill-0-ab12c was refused: pods is forbidden: violates PodSecurity "restricted:latest": hostPath volumes
        "#]],
    );
}

#[test]
fn the_cluster_drops_image_volumes() {
    let mut world = World::story();
    world.live.pods.remove(0);
    world.outcome.image_volume_dropped = vec!["flash-prefill-0-ab12c".to_owned()];
    differs(
        &world,
        &expect![[r#"
            PlacementSatisfied Unknown NotKnownYet: 1 of 2 pods do not run yet
            Progressing False ImageVolumeUnsupported: the API server dropped the image volume of pod flash-prefill-0-ab12c: turn on the feature gate ImageVolume of API server and kubelets, or use spec.model.source.pvc or hostPath
            RolesReady False ImageVolumeUnsupported: ready: prefill 0/1; the API server dropped the image volume of pod flash-prefill-0-ab12c: turn on the feature gate ImageVolume of API server and kubelets, or use spec.model.source.pvc or hostPath
            Routable False NotRoutable: no prefill pod is ready
            Degraded True ImageVolumeUnsupported: the API server dropped the image volume of pod flash-prefill-0-ab12c: turn on the feature gate ImageVolume of API server and kubelets, or use spec.model.source.pvc or hostPath
            Ready False ImageVolumeUnsupported: the API server dropped the image volume of pod flash-prefill-0-ab12c: turn on the feature gate ImageVolume of API server and kubelets, or use spec.model.source.pvc or hostPath
        "#]],
    );
}

/// A11: what lives is counted, not what was counted before.
#[test]
fn an_evicted_pod_is_missed_and_its_successor_counts_in_full() {
    let mut world = World::story();
    world.before = world.status();
    let mut running = Value::Null;
    world.pod("flash-decode", |pod| {
        running = pod["status"].clone();
        pod["status"] = json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"});
    });
    let evicted = world.status_at(60);
    assert_eq!(evicted.summary.as_ref().unwrap().decode, "0/1");
    assert!(evicted.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "False"));

    world.before = evicted;
    world.pod("flash-decode", |pod| {
        pod["metadata"]["uid"] = json!("uid-successor");
        pod["status"] = running;
    });
    differs(&world, &expect![]);
    assert_eq!(world.status().summary.unwrap().decode, "1/1");
}
