//! Rules that hold for any machines and any wish.

use std::collections::BTreeSet;

use engine_spec::{NamedShape, Role};
use fathom_crds::InferenceCluster;
use node_facts::{LinkKind, Memory, NodeFacts, Reading};
use operator_plan::{NO_SURROUNDINGS, PlanInput, Planned, check, plan};
use proptest::prelude::*;

use crate::machines::{GIB, Numa, large, link, machine, needle, object};

fn planned(cluster: &InferenceCluster, nodes: &[NodeFacts]) -> Planned {
    let shape = NamedShape::from_model_name(&cluster.spec.model.name).unwrap().shape();
    let input = PlanInput {
        name: "t",
        spec: &cluster.spec,
        shape: &shape,
        nodes,
        weight_bytes: None,
        image: None,
        surroundings: &NO_SURROUNDINGS,
    };
    let planned = plan(&input);
    assert_eq!(check(&input, &planned.plan), Vec::new(), "{planned}");
    let refused_by_check =
        planned.report.refusals.iter().any(|refusal| refusal.message.contains("its check"));
    assert!(!refused_by_check, "{planned}");
    planned
}

fn numa() -> impl Strategy<Value = Numa> {
    (0u32..7, 8u64..120, 0u32..40, 0u64..120).prop_map(|(gpus, gpu_gib, cpus, memory_gib)| Numa {
        gpus,
        gpu_gib,
        cpus,
        memory_gib,
    })
}

fn machines() -> impl Strategy<Value = Vec<NodeFacts>> {
    let shape = prop::collection::vec(numa(), 1..4);
    prop::collection::vec((shape, any::<u8>()), 0..4).prop_map(|shapes| {
        let mut nodes = Vec::new();
        for (index, (shape, trouble)) in shapes.iter().enumerate() {
            let mut facts = machine(&format!("n{index}"), shape);
            spoil(&mut facts, *trouble);
            nodes.push(facts);
        }
        nodes
    })
}

/// Some machines do not say everything.
fn spoil(facts: &mut NodeFacts, trouble: u8) {
    match trouble {
        0..20 => facts.numa = Reading::Absent("no NUMA".to_owned()),
        20..30 => facts.numa = Reading::Failed("broken".to_owned()),
        30..40 => facts.gpus = Reading::Failed("driver".to_owned()),
        40..60 => facts.cgroup_memory_limit = Reading::Value(u64::from(trouble) * GIB / 2),
        60..70 => {
            if let Reading::Value(gpus) = &mut facts.gpus {
                gpus.iter_mut().step_by(2).for_each(|gpu| gpu.numa_node = Reading::Absent("-1".to_owned()));
            }
        }
        70..80 => {
            if let Reading::Value(numa) = &mut facts.numa {
                numa.values_mut().for_each(|node| node.memory = Reading::Failed("broken".to_owned()));
            }
        }
        80..90 => {
            if let Reading::Value(numa) = &mut facts.numa {
                let busy = Memory { total: 64 * GIB, free: 0, available: 30 * GIB };
                numa.values_mut().for_each(|node| node.memory = Reading::Value(busy));
            }
        }
        _ => {}
    }
}

fn role() -> impl Strategy<Value = String> {
    (0u32..4, 0u32..5, prop::option::of(1u32..20)).prop_map(|(replicas, gpus, cpus)| {
        let cpus = cpus.map_or_else(String::new, |cpus| format!(", cpus: {cpus}"));
        format!("{{replicas: {replicas}, gpus: {gpus}{cpus}}}")
    })
}

fn wishes() -> impl Strategy<Value = InferenceCluster> {
    let cache = prop::sample::select(vec![
        "{}",
        "{mode: Off}",
        "{mode: Size, size: 40Gi}",
        "{mode: Ratio, ratio: 2}",
    ]);
    let numa = prop::sample::select(vec!["Required", "Preferred", "Off"]);
    let device = prop::sample::select(vec!["Auto", "Cpu"]);
    let model = prop::sample::select(vec!["needle", "deepseek-v4-flash"]);
    (model, role(), role(), cache, numa, device).prop_map(|(model, prefill, decode, cache, numa, device)| {
        let spec = format!(
            "prefill: {prefill}\n  decode: {decode}\n  hostCache: {cache}\n  placement: {{numa: {numa}}}\n  \
             runtime: {{device: {device}}}"
        );
        // A prefill without a decode is refused by the object itself.
        let spec = if decode.contains("replicas: 0") {
            spec.replace(&prefill, "{replicas: 0, gpus: 0}")
        } else {
            spec
        };
        object(model, &spec)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_plan_passes_the_check_and_says_why_if_it_is_empty(cluster in wishes(), nodes in machines()) {
        let planned = planned(&cluster, &nodes);
        let wanted = cluster.spec.prefill_replicas() + cluster.spec.decode.replicas;
        prop_assert_eq!(planned.is_feasible(), planned.plan.replicas.len() == wanted as usize);
        prop_assert_eq!(planned.plan.replicas.is_empty(), !planned.is_feasible() || wanted == 0);
        prop_assert!(planned.report.rejected.len() <= 32 && planned.report.notes.len() <= 32);
    }

    #[test]
    fn the_order_of_the_facts_does_not_matter(cluster in wishes(), nodes in machines(), turn in 0usize..4) {
        let first = planned(&cluster, &nodes);
        prop_assert_eq!(&first, &planned(&cluster, &nodes));
        let mut shuffled = nodes.clone();
        shuffled.rotate_left(turn.min(nodes.len()));
        for facts in &mut shuffled {
            if let Reading::Value(gpus) = &mut facts.gpus {
                gpus.reverse();
            }
        }
        prop_assert_eq!(first, planned(&cluster, &shuffled));
    }

    #[test]
    fn roles_share_a_numa_node_only_when_they_must(
        gpus in prop::collection::vec(0u32..9, 1..5),
        prefill in (1u32..5, 1u32..5),
        decode in (1u32..5, 1u32..5),
    ) {
        let numa: Vec<Numa> = gpus.iter().map(|gpus| large(*gpus)).collect();
        let spec = format!(
            "runtime: {{device: Cpu}}\n  prefill: {{replicas: {}, gpus: {}}}\n  decode: {{replicas: {}, gpus: {}}}",
            prefill.0, prefill.1, decode.0, decode.1
        );
        let planned = planned(&needle(&spec), &[machine("n", &numa)]);
        let wanted = [prefill, decode];
        prop_assert_eq!(planned.is_feasible(), possible(&gpus, wanted, true), "{}", planned);
        if planned.is_feasible() {
            let homes = |role: Role| -> BTreeSet<_> {
                planned.plan.replicas.iter().filter(|r| r.role == role).map(|r| r.numa_node).collect()
            };
            let apart = homes(Role::Prefill).is_disjoint(&homes(Role::Decode));
            prop_assert_eq!(apart, possible(&gpus, wanted, false), "{}", planned);
        }
    }
}

/// Whether (replicas, GPUs each) of two roles fit into rooms of so many GPUs: every way is tried.
fn possible(rooms: &[u32], wanted: [(u32, u32); 2], shared: bool) -> bool {
    let [(first, first_gpus), (second, second_gpus)] = wanted;
    let Some((room, rest)) = rooms.split_first() else { return first == 0 && second == 0 };
    (0..=first.min(room / first_gpus)).any(|a| {
        (0..=second.min((room - a * first_gpus) / second_gpus)).any(|b| {
            (shared || a == 0 || b == 0)
                && possible(rest, [(first - a, first_gpus), (second - b, second_gpus)], shared)
        })
    })
}

#[test]
fn the_closest_gpus_form_a_replica() {
    let mut facts = machine("n", &[large(4)]);
    for (a, b) in [(0, 2), (1, 3)] {
        link(&mut facts, a, b, LinkKind::NvLink);
    }
    for (a, b) in [(0, 1), (0, 3), (1, 2), (2, 3)] {
        link(&mut facts, a, b, LinkKind::SameNuma);
    }
    let planned = planned(&object("deepseek-v4-flash", "prefill: {gpus: 2}\n  decode: {gpus: 2}"), &[facts]);
    let gpus = |at: usize| planned.plan.replicas[at].gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>();
    assert_eq!((gpus(0), gpus(1)), (vec![0, 2], vec![1, 3]));
}

#[test]
fn a_cgroup_limit_is_shared_by_the_numa_nodes_and_named() {
    let mut facts = machine("n", &[large(4), large(4)]);
    facts.cgroup_memory_limit = Reading::Value(200 * GIB);
    let spec = "prefill: {gpus: 4}\n  decode: {gpus: 4}\n  hostCache: {mode: Size, size: 300Gi}";
    let planned = planned(&object("deepseek-v4-flash", spec), &[facts]);
    assert!(planned.is_feasible(), "{planned}");
    let message = &planned.report.host_cache[0].message;
    assert!(message.contains("cgroup") && message.contains("100.0 GiB in the cgroup"), "{message}");
}

#[test]
fn two_nodes_of_one_name_are_refused() {
    let nodes = [machine("n", &[large(0)]), machine("n", &[large(0)])];
    let planned = planned(&needle("decode: {gpus: 0}"), &nodes);
    assert!(planned.report.refusals[0].message.contains("reported twice"), "{planned}");
}

#[test]
fn no_facts_are_said_so() {
    let planned = planned(&needle("decode: {gpus: 0}"), &[]);
    assert!(planned.report.refusals[0].message.contains("no node has reported"), "{planned}");
}

#[test]
fn a_needle_pod_asks_for_at_most_512_mib() {
    let spec = "prefill: {gpus: 0}\n  decode: {gpus: 0}";
    let planned = planned(&needle(spec), &[machine("n", &[large(0)])]);
    for replica in &planned.plan.replicas {
        assert!(replica.memory_bytes <= 512 << 20, "{planned}");
        assert_eq!(replica.device_pool.slots, 64);
    }
}

#[test]
fn replicas_on_few_cpus_share_them() {
    let small = Numa { gpus: 0, gpu_gib: 0, cpus: 2, memory_gib: 8 };
    let planned = planned(&needle("prefill: {gpus: 0}\n  decode: {gpus: 0}"), &[machine("n", &[small])]);
    for replica in &planned.plan.replicas {
        assert_eq!((replica.cpus.as_slice(), replica.cpus_shared), (&[0, 1][..], true));
    }
}
