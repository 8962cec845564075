//! What a cluster adds: nodes that are kept away from, what others hold, replicas that stay.

use std::collections::BTreeMap;

use engine_spec::{ModelShape, NamedShape};
use fathom_crds::InferenceCluster;
use fathom_crds::conditions::Reason;
use node_facts::{GpuHealth, KubeletFacts, NodeFacts, Reading};
use operator_plan::{
    NodeState, PlanInput, Planned, Present, RejectReason, ReplicaPlan, Surroundings, Taint, Taken, check,
    placement_inputs, plan,
};

use crate::machines::{GIB, Numa, large, machine, needle, object};

const STORY: &str = "prefill: {gpus: 4}\n  decode: {gpus: 4}";

fn flash(spec: &str) -> InferenceCluster {
    object("deepseek-v4-flash", spec)
}

fn node() -> NodeState {
    NodeState { ready: true, facts_age_ms: Some(1000), ..NodeState::default() }
}

fn nodes(states: &[(&str, NodeState)]) -> Option<BTreeMap<String, NodeState>> {
    Some(states.iter().map(|(name, state)| ((*name).to_owned(), state.clone())).collect())
}

fn shape(cluster: &InferenceCluster) -> ModelShape {
    NamedShape::from_model_name(&cluster.spec.model.name).unwrap().shape()
}

fn planned(cluster: &InferenceCluster, facts: &[NodeFacts], surroundings: &Surroundings) -> Planned {
    let shape = shape(cluster);
    let input = PlanInput {
        name: "t",
        spec: &cluster.spec,
        shape: &shape,
        nodes: facts,
        weight_bytes: None,
        image: None,
        surroundings,
    };
    let planned = plan(&input);
    assert_eq!(check(&input, &planned.plan), Vec::new(), "{planned}");
    planned
}

/// The replicas as pods that run would show them.
fn running(cluster: &InferenceCluster, planned: &Planned) -> Vec<Present> {
    let present = |replica: &ReplicaPlan| Present {
        inputs: placement_inputs(&cluster.spec, replica.role == engine_spec::Role::Prefill),
        replica: replica.clone(),
        holds: true,
        untouched_bytes: 0,
    };
    planned.plan.replicas.iter().map(present).collect()
}

#[test]
fn a_node_is_kept_away_from_and_says_why() {
    let taint = Taint { key: "gpu".into(), value: "yes".into(), effect: "NoSchedule".into() };
    let cases = [
        ("not Ready", NodeState { ready: false, ..node() }, RejectReason::NotReady, "not Ready"),
        ("cordoned", NodeState { unschedulable: true, ..node() }, RejectReason::Cordoned, "cordoned"),
        ("tainted", NodeState { taints: vec![taint], ..node() }, RejectReason::Tainted, "gpu=yes:NoSchedule"),
        ("silent", NodeState { facts_age_ms: None, ..node() }, RejectReason::Unknown, "no node agent"),
        (
            "stale",
            NodeState { facts_age_ms: Some(200_000), ..node() },
            RejectReason::Stale,
            "older than 3 min",
        ),
        (
            "excluded",
            NodeState { excluded: Some("it refused".into()), ..node() },
            RejectReason::Excluded,
            "it refused",
        ),
    ];
    let facts = [machine("a", &[large(4), large(4)]), machine("b", &[large(4), large(4)])];
    for (what, state, reason, text) in cases {
        let surroundings =
            Surroundings { nodes: nodes(&[("a", state), ("b", node())]), ..Surroundings::default() };
        let planned = planned(&flash(STORY), &facts, &surroundings);
        assert!(planned.plan.replicas.iter().all(|replica| replica.node == "b"), "{what}: {planned}");
        let rejected = planned.report.rejected.iter().find(|rejected| rejected.node == "a").unwrap();
        assert!(rejected.reason == reason && rejected.message.contains(text), "{what}: {rejected:?}");
    }
}

#[test]
fn the_selector_and_the_tolerations_of_the_object_are_honoured() {
    let zone = |zone: &str| NodeState { labels: BTreeMap::from([("zone".into(), zone.into())]), ..node() };
    let facts = [machine("a", &[large(4), large(4)]), machine("b", &[large(4), large(4)])];
    let surroundings =
        Surroundings { nodes: nodes(&[("a", zone("x")), ("b", zone("y"))]), ..Surroundings::default() };
    let cluster = flash(&format!("{STORY}\n  podTemplate: {{nodeSelector: {{zone: y}}}}"));
    let plan = planned(&cluster, &facts, &surroundings);
    assert!(plan.is_feasible() && plan.plan.replicas.iter().all(|replica| replica.node == "b"), "{plan}");

    let taint = Taint { key: "gpu".into(), value: "yes".into(), effect: "NoSchedule".into() };
    let tainted = NodeState { taints: vec![taint], ..node() };
    let surroundings = Surroundings { nodes: nodes(&[("a", tainted)]), ..Surroundings::default() };
    for tolerations in [
        "{key: gpu, operator: Exists}",
        "{key: gpu, value: \"yes\", effect: NoSchedule}",
        "{operator: Exists}",
    ] {
        let cluster = flash(&format!("{STORY}\n  podTemplate: {{tolerations: [{tolerations}]}}"));
        assert!(planned(&cluster, &facts[..1], &surroundings).is_feasible(), "{tolerations}");
    }
    for tolerations in ["{key: gpu, value: \"no\"}", "{key: gpu, operator: Exists, effect: NoExecute}"] {
        let cluster = flash(&format!("{STORY}\n  podTemplate: {{tolerations: [{tolerations}]}}"));
        assert!(!planned(&cluster, &facts[..1], &surroundings).is_feasible(), "{tolerations}");
    }
}

#[test]
fn when_all_facts_are_stale_the_refusal_says_so() {
    let stale = NodeState { facts_age_ms: Some(90_000), ..node() };
    let surroundings = Surroundings { nodes: nodes(&[("a", stale)]), ..Surroundings::default() };
    let planned = planned(&flash(STORY), &[machine("a", &[large(4), large(4)])], &surroundings);
    assert_eq!(planned.report.refusals[0].reason, Reason::FactsStale);
}

#[test]
fn what_runs_stays_whatever_happens_to_the_facts() {
    let cluster = flash(STORY);
    let facts = [machine("a", &[large(4), large(4)]), machine("b", &[large(4), large(4)])];
    let all = nodes(&[("a", node()), ("b", node())]);
    let first = planned(&cluster, &facts, &Surroundings { nodes: all.clone(), ..Surroundings::default() });
    let present = running(&cluster, &first);
    let mut noisy = facts.clone();
    let Reading::Value(numa) = &mut noisy[0].numa else { panic!() };
    let Some(Reading::Value(memory)) = numa.get_mut(&0).map(|numa| &mut numa.memory) else { panic!() };
    memory.available = 11 * GIB;
    let mut lost = facts.clone();
    let Reading::Value(gpus) = &mut lost[0].gpus else { panic!() };
    gpus[0].health = Reading::Value(GpuHealth::Lost { reason: "XID 79".into() });
    let cordoned = nodes(&[
        ("a", NodeState { unschedulable: true, facts_age_ms: Some(999_999), ..node() }),
        ("b", node()),
    ]);
    for (what, facts, nodes) in [
        ("less memory", &noisy[..], all.clone()),
        ("a lost GPU", &lost[..], all.clone()),
        ("no facts at all", &[], all.clone()),
        ("a cordoned node with stale facts", &facts[..], cordoned),
    ] {
        let again = planned(
            &cluster,
            facts,
            &Surroundings { nodes, present: present.clone(), ..Surroundings::default() },
        );
        assert_eq!(again.plan.replicas, first.plan.replicas, "{what}");
    }
    let gone = nodes(&[("b", node())]);
    let moved = planned(&cluster, &facts, &Surroundings { nodes: gone, present, ..Surroundings::default() });
    assert!(
        moved.plan.replicas.iter().all(|replica| replica.node == "b"),
        "a node that is gone holds nobody: {moved}"
    );
}

#[test]
fn scaling_a_role_moves_nobody_and_new_replicas_go_beside() {
    let facts = [machine("a", &[large(4), large(4)]), machine("b", &[large(4), large(4)])];
    let all = nodes(&[("a", node()), ("b", node())]);
    let one = flash(STORY);
    let first = planned(&one, &facts, &Surroundings { nodes: all.clone(), ..Surroundings::default() });
    let present = running(&one, &first);
    let two = flash("prefill: {gpus: 4}\n  decode: {gpus: 4, replicas: 3}");
    let more =
        planned(&two, &facts, &Surroundings { nodes: all.clone(), present, ..Surroundings::default() });
    assert_eq!(more.plan.replicas.len(), 4, "{more}");
    assert_eq!(more.plan.replicas[..2], first.plan.replicas[..]);
    assert!(more.plan.replicas[2..].iter().all(|replica| replica.node == "b"), "{more}");
    let present = running(&two, &more);
    let back = planned(&one, &facts, &Surroundings { nodes: all, present, ..Surroundings::default() });
    assert_eq!(back.plan.replicas, first.plan.replicas);
}

#[test]
fn a_change_that_concerns_a_role_moves_that_role_only() {
    let facts = [machine("a", &[large(4), large(4)]), machine("b", &[large(4), large(4)])];
    let all = nodes(&[("a", node()), ("b", node())]);
    let before = flash(STORY);
    let first = planned(&before, &facts, &Surroundings { nodes: all.clone(), ..Surroundings::default() });
    let after = flash("prefill: {gpus: 4}\n  decode: {gpus: 2}");
    let present = running(&before, &first);
    let again = planned(&after, &facts, &Surroundings { nodes: all, present, ..Surroundings::default() });
    assert_eq!(again.plan.replicas[0], first.plan.replicas[0]);
    assert_eq!(again.plan.replicas[1].gpus.len(), 2, "{again}");
}

#[test]
fn a_gpu_that_a_stranger_took_moves_who_waits_and_nobody_who_runs() {
    let cluster = flash(STORY);
    let facts = [machine("a", &[large(4), large(4)]), machine("b", &[large(4), large(4)])];
    let all = nodes(&[("a", node()), ("b", node())]);
    let first = planned(&cluster, &facts, &Surroundings { nodes: all.clone(), ..Surroundings::default() });
    let taken =
        Taken { by: "claim y/x".into(), node: "a".into(), gpus: vec!["GPU-a-1".into()], ..Taken::default() };
    for holds in [true, false] {
        let mut present = running(&cluster, &first);
        present.iter_mut().for_each(|present| present.holds = holds);
        let surroundings = Surroundings { nodes: all.clone(), taken: vec![taken.clone()], present };
        let again = planned(&cluster, &facts, &surroundings);
        assert_eq!(again.plan.replicas == first.plan.replicas, holds, "{again}");
        if !holds {
            assert_eq!(again.plan.replicas[0].node, "b", "prefill had GPU 1: {again}");
            assert_eq!(again.plan.replicas[1], first.plan.replicas[1], "decode had others");
        }
    }
}

#[test]
fn what_others_hold_is_named() {
    let taken = Taken {
        by: "b/big-decode-0".into(),
        node: "a".into(),
        numa_node: Some(1),
        gpus: vec!["GPU-a-4".into(), "GPU-a-5".into()],
        ..Taken::default()
    };
    let surroundings =
        Surroundings { nodes: nodes(&[("a", node())]), taken: vec![taken], ..Surroundings::default() };
    let planned = planned(&flash(STORY), &[machine("a", &[large(4), large(4)])], &surroundings);
    assert!(!planned.is_feasible());
    let rejected = planned.report.rejected.iter().find(|rejected| rejected.numa_node == Some(1)).unwrap();
    assert_eq!(
        rejected.message,
        "2 of 4 GPUs free; GPU 4 is taken by b/big-decode-0; GPU 5 is taken by b/big-decode-0"
    );
}

#[test]
fn promised_memory_counts_once_whether_it_is_touched_or_not() {
    let cluster = flash("prefill: {gpus: 4}\n  decode: {gpus: 4}\n  hostCache: {mode: Size, size: 300Gi}");
    let facts = [machine("a", &[large(4), large(4)])];
    let granted = |untouched: u64, available: u64| {
        let mut facts = facts.clone();
        let Reading::Value(numa) = &mut facts[0].numa else { panic!() };
        let Some(Reading::Value(memory)) = numa.get_mut(&0).map(|numa| &mut numa.memory) else { panic!() };
        memory.available = available;
        let other = Taken {
            by: "b/other".into(),
            node: "a".into(),
            numa_node: Some(0),
            promised_bytes: 100 * GIB,
            untouched_bytes: untouched,
            ..Taken::default()
        };
        let surroundings =
            Surroundings { nodes: nodes(&[("a", node())]), taken: vec![other], ..Surroundings::default() };
        planned(&cluster, &facts, &surroundings).plan.replicas[0].host_cache_bytes
    };
    let touched = granted(0, 156 * GIB);
    assert_eq!(granted(100 * GIB, 256 * GIB), touched);
    assert!(touched > 0 && touched < 120 * GIB, "{touched}");
}

#[test]
fn replicas_on_the_cpu_make_room_for_others() {
    let cluster = |replicas: u32| needle(&format!("decode: {{gpus: 0, replicas: {replicas}}}"));
    let numa = crate::machines::Numa { gpus: 0, gpu_gib: 0, cpus: 2, memory_gib: 16 };
    let facts = [machine("a", &[numa])];
    let all = nodes(&[("a", node())]);
    let first = planned(&cluster(1), &facts, &Surroundings { nodes: all.clone(), ..Surroundings::default() });
    let present = running(&cluster(1), &first);
    let more = planned(&cluster(3), &facts, &Surroundings { nodes: all, present, ..Surroundings::default() });
    assert_eq!(more.plan.replicas[0], first.plan.replicas[0]);
    assert!(
        more.plan.replicas[1..].iter().all(|replica| replica.cpus == [0, 1] && replica.cpus_shared),
        "{more}"
    );
}

#[test]
fn of_two_pods_of_a_replica_the_one_that_runs_counts() {
    let cluster = flash(STORY);
    let facts = [machine("a", &[large(4), large(4)])];
    let all = nodes(&[("a", node())]);
    let first = planned(&cluster, &facts, &Surroundings { nodes: all.clone(), ..Surroundings::default() });
    let mut present = running(&cluster, &first);
    let mut waiting = present[0].clone();
    waiting.holds = false;
    waiting.replica.memory_bytes += 1;
    present.insert(0, waiting);
    let again = planned(&cluster, &facts, &Surroundings { nodes: all, present, ..Surroundings::default() });
    assert_eq!(again.plan.replicas, first.plan.replicas);
}

/// Two machines whose kubelets each keep one of two CPUs for the system: a replica that needs a CPU of its own NUMA node
/// goes where there is one to give.
#[test]
fn cpus_that_a_kubelet_keeps_for_the_system_are_left_out() {
    let small = Numa { gpus: 4, gpu_gib: 96, cpus: 1, memory_gib: 256 };
    let mut facts = [machine("n1", &[small; 2]), machine("n2", &[small; 2])];
    for (facts, reserved) in facts.iter_mut().zip([1, 0]) {
        let unread = || Reading::Absent("not asked".to_owned());
        facts.kubelet = Reading::Value(KubeletFacts {
            cpu_manager: unread(),
            topology_manager: unread(),
            memory_manager: unread(),
            reserved_cpus: Reading::Value(vec![reserved]),
            devices: Reading::Absent("not asked".to_owned()),
            pods: Reading::Absent("not asked".to_owned()),
            cgroups: Reading::Absent("not asked".to_owned()),
        });
    }
    let cluster = flash("prefill: {gpus: 4, cpus: 1}\n  decode: {gpus: 4, cpus: 1}");
    let planned = planned(&cluster, &facts, &Surroundings::default());
    let places: Vec<_> =
        planned.plan.replicas.iter().map(|r| (r.node.as_str(), r.numa_node, r.cpus.as_slice())).collect();
    assert_eq!(places, [("n1", Some(0), &[0][..]), ("n2", Some(1), &[1][..])]);
}
