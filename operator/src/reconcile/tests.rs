//! What is decided, from what is gathered.

use std::time::Duration;

use fathom_crds::conditions::Reason;
use node_facts::NodeFacts;
use operator_plan::{Abilities, Mode, NodeState, Present, Surroundings};
use operator_render::{Neighbours, Owner, RenderInput};

use super::decide::{Decision, Wanted, decide};
use super::*;
use crate::gather::fixtures::seen;
use crate::live::Live;

const IMAGE: &str = "engine:1";

/// The story's server, and its object.
fn gathered(edit: impl FnOnce(&mut InferenceCluster)) -> Gathered {
    let mut cluster = fathom_crds::read(include_str!("../../../crds/examples/story.yaml")).unwrap();
    cluster.metadata.namespace = Some("ns".into());
    cluster.metadata.uid = Some("uid".into());
    edit(&mut cluster);
    let facts: NodeFacts = fathom_node_agent::scene::facts("story").unwrap();
    let node = NodeState { ready: true, facts_age_ms: Some(0), ..NodeState::default() };
    let nodes = Some([(facts.node.clone(), node)].into());
    Gathered {
        cluster: Arc::new(cluster),
        facts: vec![facts],
        surroundings: Surroundings { nodes, ..Surroundings::default() },
        abilities: Abilities::default(),
        live: Live::default(),
        engines: BTreeMap::new(),
        offered_gpus: None,
    }
}

fn decided(gathered: &Gathered) -> Decision {
    decide(gathered, IMAGE, |_, _| true)
}

/// Lets what is decided run: its record and its pods.
fn run(gathered: &mut Gathered, number: i64) {
    let decision = decided(gathered);
    let carried = decision.carried.expect("something to carry out");
    let desired = operator_render::render(&RenderInput {
        owner: Owner { namespace: "ns", name: gathered.cluster.name(), uid: "uid" },
        spec: &carried.spec,
        planned: &carried.planned,
        enforcement: &carried.enforcement,
        image: &carried.image,
        neighbours: &Neighbours::default(),
    });
    let mut revision = desired.revision.clone();
    revision.revision = number;
    gathered.live.revisions.push(Arc::new(revision.into()));
    gathered.live.pods = desired.replicas.iter().map(|replica| seen(&replica.pod)).collect();
    let pods = gathered.live.pods.iter().filter_map(|pod| pod.present());
    gathered.surroundings.present = pods.map(|present| Present { holds: true, ..present }).collect();
}

fn edit(gathered: &mut Gathered, edit: impl FnOnce(&mut InferenceClusterSpec)) {
    edit(&mut Arc::make_mut(&mut gathered.cluster).spec);
}

#[test]
fn a_spec_that_fits_is_carried_out_with_the_operators_image_and_keeps_it() {
    let mut gathered = gathered(|_| {});
    let first = decided(&gathered).carried.unwrap();
    assert_eq!(first.image, IMAGE);
    run(&mut gathered, 1);
    let upgraded = decide(&gathered, "engine:2", |_, _| true).carried.unwrap();
    assert_eq!(upgraded.image, IMAGE, "an operator upgrade changes nothing");
    assert_eq!(upgraded.planned.plan.revision, first.planned.plan.revision);
    edit(&mut gathered, |spec| spec.model.context_tokens = Some(65_536));
    assert_eq!(decide(&gathered, "engine:2", |_, _| true).carried.unwrap().image, "engine:2");
}

#[test]
fn in_mode_plan_the_new_spec_is_planned_and_the_old_one_is_healed() {
    let mut gathered = gathered(|_| {});
    run(&mut gathered, 1);
    edit(&mut gathered, |spec| {
        spec.rollout.mode = fathom_crds::inference_cluster::RolloutMode::Plan;
        spec.model.context_tokens = Some(65_536);
    });
    let decision = decided(&gathered);
    let carried = decision.carried.as_ref().unwrap();
    assert_eq!(carried.spec.model.context_tokens, Some(131_072));
    let Wanted::Planned { planned, .. } = &decision.wanted else { panic!("{:?}", decision.wanted) };
    assert_eq!(planned.plan.context_tokens, 65_536);
    assert_ne!(planned.plan.revision, carried.planned.plan.revision);
}

#[test]
fn in_mode_plan_nothing_is_made_of_an_object_that_never_ran() {
    let gathered =
        gathered(|cluster| cluster.spec.rollout.mode = fathom_crds::inference_cluster::RolloutMode::Plan);
    let decision = decided(&gathered);
    assert!(decision.carried.is_none());
    assert!(matches!(&decision.wanted, Wanted::Planned { planned, .. } if planned.is_feasible()));
    assert!(!decision.waits_for_room());
}

#[test]
fn a_change_that_fits_nowhere_leaves_what_runs_and_waits_for_room() {
    let mut gathered = gathered(|_| {});
    run(&mut gathered, 1);
    edit(&mut gathered, |spec| spec.decode.replicas = 7);
    let decision = decided(&gathered);
    assert!(decision.waits_for_room());
    let carried = decision.carried.unwrap();
    assert_eq!(carried.spec.decode.replicas, 1);
    assert!(!carried.leave_engines);
    assert_eq!(carried.planned.plan.replicas.len(), 2);
}

#[test]
fn without_a_place_even_for_the_old_spec_engine_pods_are_left_alone() {
    let mut gathered = gathered(|_| {});
    run(&mut gathered, 1);
    gathered.surroundings.present.clear();
    gathered.surroundings.nodes.as_mut().unwrap().values_mut().for_each(|node| node.unschedulable = true);
    let carried = decided(&gathered).carried.unwrap();
    assert!(carried.leave_engines);
}

#[test]
fn what_this_version_cannot_do_is_refused_with_what_to_do() {
    let sgl = gathered(|c| c.spec.runtime.kind = fathom_crds::inference_cluster::RuntimeKind::SGLang);
    let hub = gathered(|cluster| {
        cluster.spec.model.source =
            serde_json::from_str(r#"{"huggingFace": {"repository": "a/b"}}"#).unwrap();
    });
    let unknown = gathered(|cluster| cluster.spec.model.name = "my-model".into());
    for (gathered, expected) in [
        (sgl, Reason::RuntimeNotSupported),
        (hub, Reason::SourceNotSupported),
        (unknown, Reason::UnknownShape),
    ] {
        let decision = decided(&gathered);
        assert!(
            matches!(&decision.wanted, Wanted::Refused { reason, message }
            if *reason == expected && message.contains("spec.")),
            "{:?}",
            decision.wanted
        );
        assert!(decision.carried.is_none());
    }
}

#[test]
fn a03_an_object_scaled_to_zero_is_carried_out_and_settled() {
    let gathered = gathered(|cluster| {
        cluster.spec.decode.replicas = 0;
        cluster.spec.prefill = None;
        cluster.spec.router.replicas = 0;
    });
    let decision = decided(&gathered);
    assert!(decision.carried.is_some_and(|carried| carried.planned.plan.replicas.is_empty()));
    assert_eq!(next(&Outcome::default(), [None, None]), Next::Settled);
}

#[test]
fn abilities_that_come_and_go_restart_nothing_and_another_mode_in_the_spec_does() {
    let mut gathered = gathered(|_| {});
    run(&mut gathered, 1);
    let before = decided(&gathered).carried.unwrap().enforcement;
    assert!(matches!(before.mode, Mode::Soft { .. }), "{before:?}");
    let driver = "gpu.nvidia.com".to_owned();
    gathered.abilities.claims =
        Some(operator_plan::ClaimDriver { driver: driver.clone(), device_class: driver.clone() });
    gathered.abilities.forbids_memory_binding = Some("restricted".into());
    let after = decided(&gathered).carried.unwrap().enforcement;
    assert_eq!((&after.mode, after.bind_memory), (&before.mode, before.bind_memory));
    edit(&mut gathered, |spec| {
        spec.placement.mode = fathom_crds::inference_cluster::PlacementMode::DRA;
    });
    assert!(matches!(decided(&gathered).carried.unwrap().enforcement.mode, Mode::Dra { .. }));
}

#[test]
fn a38_nothing_new_goes_to_a_node_whose_plugin_offers_no_gpus() {
    let mut gathered = gathered(|_| {});
    gathered.abilities.gpu_resource = Some("nvidia.com/gpu".into());
    let silent = decide(&gathered, IMAGE, |_, _| false);
    assert!(silent.waits_for_room());
    assert!(silent.carried.is_none());
    assert!(decide(&gathered, IMAGE, |_, _| true).carried.is_some());
    run(&mut gathered, 1);
    let carried = decide(&gathered, IMAGE, |_, _| false).carried.unwrap();
    assert_eq!(carried.planned.plan.replicas.len(), 2, "what runs stays");
}

#[test]
fn what_was_refused_is_tried_again_and_times_are_kept() {
    let refused = Outcome { taken_names: vec!["Service flash".into()], ..Outcome::default() };
    assert_eq!(next(&refused, [None, None]), Next::Failed);
    let (long, short) = (Duration::from_secs(9), Duration::from_secs(3));
    assert_eq!(next(&Outcome::default(), [Some(long), Some(short)]), Next::After(short));
}
