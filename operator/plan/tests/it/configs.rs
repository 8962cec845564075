//! What the engines of a plan are told.

use engine_spec::config::{EffortProfile, Thinking};
use engine_spec::{EngineConfig, IndexKeyFormat, NamedShape, Role};
use operator_plan::{
    Enforcement, Mode, NO_SURROUNDINGS, PlanInput, Planned, engine_config, in_pod, plan, router_config,
};

use crate::machines::{large, machine, needle};

fn planned(spec: &str) -> (fathom_crds::InferenceCluster, Planned) {
    let cluster = needle(spec);
    let nodes = [machine("n", &[large(2), large(2)])];
    let shape = NamedShape::Needle.shape();
    let planned = plan(&PlanInput {
        name: "t",
        spec: &cluster.spec,
        shape: &shape,
        nodes: &nodes,
        weight_bytes: None,
        image: None,
        surroundings: &NO_SURROUNDINGS,
    });
    assert!(planned.is_feasible(), "{planned}");
    (cluster, planned)
}

fn by(mode: Mode) -> Enforcement {
    Enforcement { mode, because: String::new(), bind_memory: true, memory_because: String::new() }
}

#[test]
fn an_engine_accepts_its_configuration_once_it_has_addresses() {
    let (cluster, planned) = planned("prefill: {gpus: 0}\n  decode: {gpus: 0}");
    for replica in &planned.plan.replicas {
        let mut config =
            engine_config(&planned, replica, &cluster.spec, &by(Mode::Soft { gpu_resource: None }), "/m");
        match config.role {
            Role::Prefill => config.listen.grpc = Some(([127, 0, 0, 1], 0).into()),
            _ => {
                config.peers.prefill =
                    vec![engine_spec::config::PrefillPeer { grpc: "a:1".into(), http: None }]
            }
        }
        EngineConfig::from_json(&serde_json::to_string(&config).unwrap()).unwrap();
        assert_eq!(config.revision, planned.plan.revision);
    }
    let mut router = router_config(&planned, &cluster.spec, 0);
    router.peers.decode = vec!["a:1".into()];
    EngineConfig::from_json(&serde_json::to_string(&router).unwrap()).unwrap();
    assert_eq!((router.name.as_str(), router.role), ("t-router-0", Role::Router));
}

#[test]
fn the_configuration_is_what_the_plan_and_the_object_say() {
    let spec = "prefill: {gpus: 2, cpus: 8}\n  decode: {gpus: 2}\n  \
                admission: {timeToFirstToken: 1m30s, maxQueuedRequests: 7, queueLimitTokens: 99}";
    let (mut cluster, planned) = planned(spec);
    cluster.spec.model.indexer.key_format = fathom_crds::inference_cluster::IndexKeyFormat::Bf16;
    cluster.spec.model.indexer.top_k = Some(128);
    cluster.spec.model.chat.thinking = fathom_crds::inference_cluster::Thinking::Off;
    cluster.spec.model.chat.effort_profile = fathom_crds::inference_cluster::EffortProfile::Preview;
    let prefill = engine_config(
        &planned,
        &planned.plan.replicas[0],
        &cluster.spec,
        &by(Mode::Soft { gpu_resource: None }),
        "/m",
    );
    assert_eq!(prefill.name, "t-prefill-0");
    assert_eq!(prefill.binding.cpus.as_deref(), Some("0-7"));
    assert_eq!((prefill.binding.memory_node, prefill.binding.threads), (Some(0), Some(8)));
    assert_eq!((prefill.model.index_keys, prefill.model.index_top_k), (IndexKeyFormat::Bf16, Some(128)));
    assert_eq!((prefill.chat.thinking, prefill.chat.effort_profile), (Thinking::Off, EffortProfile::Preview));
    let admission = prefill.admission;
    assert_eq!((admission.time_to_first_token_ms, admission.max_queued_requests), (90_000, 7));
    assert_eq!(admission.queue_limit_tokens, Some(99));
    let pools = prefill.pools.unwrap();
    let planned_pool = planned.plan.replicas[0].device_pool;
    assert_eq!((pools.kv_pages, pools.request_slots), (planned_pool.pages, planned_pool.slots));
}

#[test]
fn in_pods_every_role_finds_its_peers_and_is_accepted_as_it_is() {
    let (cluster, planned) = planned("prefill: {gpus: 0}\n  decode: {gpus: 0}");
    let engines = planned.plan.replicas.iter();
    let engines = engines.map(|replica| {
        engine_config(&planned, replica, &cluster.spec, &by(Mode::Soft { gpu_resource: None }), "/model")
    });
    for config in engines.chain([router_config(&planned, &cluster.spec, 0)]) {
        let config = in_pod(config, &planned.plan, "ns");
        let config = EngineConfig::from_json(&serde_json::to_string(&config).unwrap()).unwrap();
        assert_eq!(config.listen.http.to_string(), "0.0.0.0:8000");
        assert_eq!(config.listen.grpc.is_some(), config.role == Role::Prefill);
        assert_eq!(config.model.shape, (config.role != Role::Router).then_some(NamedShape::Needle));
        assert_eq!(config.peers.discovery.is_some(), config.role != Role::Prefill);
        if let Some(discovery) = config.peers.discovery {
            assert_eq!(discovery.prefill_service.as_deref(), Some("t-prefill"));
            assert_eq!((discovery.decode_service.as_str(), discovery.namespace.as_str()), ("t-decode", "ns"));
        }
    }
}

#[test]
fn the_router_of_unified_engines_looks_for_no_prefills() {
    let (cluster, planned) = planned("prefill: {gpus: 0, replicas: 0}\n  decode: {gpus: 0}");
    let router = in_pod(router_config(&planned, &cluster.spec, 0), &planned.plan, "ns");
    assert_eq!(router.peers.discovery.unwrap().prefill_service, None);
}

#[test]
fn the_engine_binds_what_nobody_else_does() {
    let binding = |placement: &str, enforcement: &Enforcement| {
        let (cluster, planned) = planned(&format!("decode: {{gpus: 0}}\n  placement: {placement}"));
        engine_config(&planned, &planned.plan.replicas[0], &cluster.spec, enforcement, "/m").binding
    };
    let soft = by(Mode::Soft { gpu_resource: None });
    let claimed = by(Mode::Dra { driver: "d".into(), device_class: "c".into() });
    for enforcement in [&soft, &claimed] {
        let bound = binding("{}", enforcement);
        assert!(bound.cpus.is_some() && bound.cpus_required && !bound.memory_required);
        assert_eq!(bound.memory_node, Some(0));
    }
    assert!(!binding("{numa: Preferred}", &soft).cpus_required);
    assert!(binding("{memoryBinding: Required}", &soft).memory_required);
    assert_eq!(binding("{numa: Off}", &soft).memory_node, None);
    let not_allowed = Enforcement { bind_memory: false, ..soft };
    let bound = binding("{}", &not_allowed);
    assert!(bound.cpus.is_some() && bound.memory_node.is_none());
    let kubelet = binding("{}", &by(Mode::Kubelet { gpu_resource: None }));
    assert!(kubelet.cpus.is_none() && kubelet.memory_node.is_none() && kubelet.threads.is_some());
    assert_eq!(binding("{}", &by(Mode::Unmanaged)), engine_spec::config::BindingConfig::default());
}

#[test]
fn the_revision_follows_what_the_roles_must_agree_on_and_nothing_else() {
    let revision = |spec: &str| planned(spec).1.plan.revision;
    let one = revision("decode: {gpus: 0}");
    assert_eq!(one.len(), 10);
    assert_eq!(
        revision("decode: {gpus: 0, replicas: 2}\n  prefill: {gpus: 0}\n  hostCache: {mode: Off}"),
        one
    );
    assert_ne!(revision("decode: {gpus: 0}\n  runtime: {device: Cpu}"), one);
}
