//! ConfigMaps with the configuration of engines and router.
//! In: a plan. Out: ConfigMaps that are never changed: an engine's is named like its pod, a router's by its content.
//! An engine's file is as old as its pod: a limit that changed since reaches the router at once and an engine when it is
//! replaced for another reason, for which no pod is restarted.

use engine_spec::EngineConfig;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use operator_plan::{Mode, ReplicaPlan, engine_config, in_pod, router_config};

use crate::desired::RenderInput;
use crate::owned::{Children, sealed};
use crate::pod::whole_cpus;
use crate::{digest, names};

/// The file of one engine.
pub(crate) fn engine(
    input: &RenderInput<'_>,
    children: &Children<'_>,
    entry: &ReplicaPlan,
    metadata: ObjectMeta,
) -> ConfigMap {
    let planned = input.planned;
    let config = engine_config(planned, entry, input.spec, input.enforcement, names::MODEL_PATH);
    let mut config = in_pod(config, &planned.plan, children.namespace());
    if let Mode::Kubelet { .. } = input.enforcement.mode {
        // The kubelet gives as many CPUs as are requested, whatever the plan counted on.
        config.binding.threads = Some(whole_cpus(input.spec, entry));
    }
    sealed(config_map(&config, metadata))
}

/// The file of all routers of an object.
pub(crate) fn router(input: &RenderInput<'_>, children: &Children<'_>) -> ConfigMap {
    let planned = input.planned;
    let name = names::router(&planned.plan.name);
    let config = EngineConfig { name: name.clone(), ..router_config(planned, input.spec, 0) };
    let mut config = in_pod(config, &planned.plan, children.namespace());
    if let Some(discovery) = &mut config.peers.discovery {
        // What is asked for, not what is placed at the moment: a plan without room must not take prefills away.
        let prefills = input.spec.prefill_replicas() > 0;
        discovery.prefill_service = prefills.then(|| names::prefill_service(children.cluster()));
    }
    let name = format!("{name}-{}", digest::hash(&config, 5));
    sealed(config_map(&config, children.meta(&name, children.labels("router"))))
}

fn config_map(config: &EngineConfig, metadata: ObjectMeta) -> ConfigMap {
    let json = serde_json::to_string_pretty(config).expect("plain structs with string keys serialise");
    ConfigMap {
        metadata,
        data: Some([(names::CONFIG_KEY.to_owned(), json)].into()),
        // The kubelet need not watch what cannot change.
        immutable: Some(true),
        ..ConfigMap::default()
    }
}
