//! The checker against a good plan that is broken in one place.

use engine_spec::NamedShape;
use fathom_crds::InferenceCluster;
use node_facts::{GpuHealth, NodeFacts, Reading};
use operator_plan::{NO_SURROUNDINGS, Plan, PlanInput, Violation, check, plan};

use crate::machines::{GIB, large, machine, object};

fn nodes() -> Vec<NodeFacts> {
    vec![machine("n", &[large(4), large(4)])]
}

fn cluster() -> InferenceCluster {
    object(
        "deepseek-v4-flash",
        "prefill: {gpus: 4, cpus: 16}\n  decode: {gpus: 4}\n  hostCache: {mode: Size, size: 100Gi}",
    )
}

/// Breaks the plan, or the facts under it, and expects to hear of it.
#[track_caller]
fn broken(breaks: impl FnOnce(&mut Plan, &mut Vec<NodeFacts>), expected: &str) {
    let (cluster, shape, mut nodes) = (cluster(), NamedShape::V4Flash.shape(), nodes());
    let input = PlanInput {
        name: "t",
        spec: &cluster.spec,
        shape: &shape,
        nodes: &nodes.clone(),
        weight_bytes: None,
        image: None,
        surroundings: &NO_SURROUNDINGS,
    };
    let planned = plan(&input);
    assert_eq!(check(&input, &planned.plan), Vec::new(), "{planned}");
    let mut plan = planned.plan;
    breaks(&mut plan, &mut nodes);
    let found = check(&PlanInput { nodes: &nodes, ..input }, &plan);
    let texts: Vec<String> = found.iter().map(Violation::to_string).collect();
    assert!(texts.iter().any(|text| text.contains(expected)), "{texts:#?}");
}

#[test]
fn a_gpu_given_twice_is_found() {
    broken(|plan, _| plan.replicas[1].gpus[0] = plan.replicas[0].gpus[0].clone(), "also given to another");
    broken(|plan, _| plan.replicas[0].gpus[1] = plan.replicas[0].gpus[0].clone(), "also given to another");
}

#[test]
fn a_gpu_of_another_numa_node_is_found() {
    broken(|plan, _| plan.replicas[1].gpus[0] = plan.replicas[0].gpus[0].clone(), "is not on NUMA node 1");
}

#[test]
fn a_gpu_that_cannot_be_used_is_found() {
    broken(
        |_, nodes| {
            let Reading::Value(gpus) = &mut nodes[0].gpus else { return };
            gpus[2].health = Reading::Value(GpuHealth::Lost { reason: "gone".to_owned() });
        },
        "or cannot be used",
    );
    broken(|plan, _| plan.replicas[0].gpus[0].uuid.push('x'), "is not on node n");
}

#[test]
fn a_missing_gpu_and_a_missing_replica_are_found() {
    broken(|plan, _| drop(plan.replicas[0].gpus.pop()), "has 3 GPUs; the spec asks for 4");
    broken(|plan, _| drop(plan.replicas.pop()), "decode has replicas []; the spec asks for 1");
    broken(|plan, _| plan.replicas[1].index = 1, "decode has replicas [1]");
}

#[test]
fn a_replica_on_an_unknown_node_is_found() {
    broken(|plan, _| "m".clone_into(&mut plan.replicas[0].node), "has no facts");
    broken(|_, nodes| nodes.push(nodes[0].clone()), "has no facts, or several");
}

#[test]
fn a_replica_over_two_numa_nodes_is_found() {
    broken(|plan, _| plan.replicas[0].numa_node = None, "spans NUMA nodes");
    broken(|plan, _| plan.replicas[0].memory_node = Some(1), "memory node 1 is not on NUMA node 0");
}

#[test]
fn cpus_of_others_or_of_nobody_are_found() {
    broken(|plan, _| plan.replicas[0].cpus.clear(), "has no CPU");
    broken(|plan, _| plan.replicas[0].cpus[0] = 64, "CPU 64 is not on its node");
    broken(
        |plan, _| {
            plan.replicas[1].numa_node = Some(0);
            plan.replicas[1].cpus = vec![0];
        },
        "CPU 0 is not on its node, or is another replica's own",
    );
}

#[test]
fn promised_memory_that_is_not_there_is_found() {
    broken(|plan, _| plan.replicas[0].memory_bytes = 300 * GIB, "promised 300.0 GiB, 256.0 GiB is available");
    broken(|_, nodes| nodes[0].cgroup_memory_limit = Reading::Value(GIB), "1.0 GiB is available");
}

#[test]
fn a_pool_that_does_not_fit_or_does_not_suffice_is_found() {
    broken(|plan, _| plan.replicas[0].device_pool.pages = 1, "does not hold one request");
    broken(|plan, _| plan.replicas[0].device_pool.bytes += 1, "other bytes than its pages");
    broken(|plan, _| plan.replicas[0].device_pool.slots = 0, "does not hold one request");
    broken(
        |_, nodes| {
            let Reading::Value(gpus) = &mut nodes[0].gpus else { return };
            gpus[0].memory_total = Reading::Value(80 * GIB);
        },
        "a rank takes",
    );
}

#[test]
fn a_host_tier_beyond_the_replica_is_found() {
    broken(|plan, _| plan.replicas[0].host_cache_bytes += 1, "not whole pages");
    broken(|plan, _| plan.replicas[0].memory_bytes = plan.replicas[0].host_cache_bytes, "not within");
}

#[test]
fn a_limit_of_zero_is_found() {
    broken(|plan, _| plan.queue_limit.tokens = Some(0), "0 tokens");
    broken(|plan, _| plan.queue_limit.requests = 0, "0 requests");
    broken(|plan, _| plan.queue_limit.time_to_first_token_ms = 0, "0 ms");
}
