mod world;

use expect_test::{Expect, expect};
use fathom_crds::conditions::{ConditionType, Reason};
use fathom_crds::inference_cluster::{NumaMode, RolloutMode};
use serde_json::{Value, json};

use super::Rejection;
use super::tables::MAX_REJECTED;
use world::{World, conditions, plan};

/// The conditions of one situation, all of them.
#[track_caller]
fn says(world: &World, expected: &Expect) {
    expected.assert_eq(&conditions(&world.status()));
}

/// Only those conditions that differ from a world in which all is well.
#[track_caller]
fn differs(world: &World, expected: &Expect) {
    let well = conditions(&World::story().status());
    let now = conditions(&world.status());
    let lines = now.lines().filter(|line| !well.lines().any(|other| other == *line));
    expected.assert_eq(&lines.map(|line| format!("{line}\n")).collect::<String>());
}

fn not_ready(pod: &mut Value) {
    pod["status"]["conditions"][1]["status"] = json!("False");
    pod["status"]["containerStatuses"][0]["ready"] = json!(false);
}

/// A container that ended and waits to be started again.
fn crashed(pod: &mut Value, reason: &str, code: i32, message: &str) {
    not_ready(pod);
    let container = &mut pod["status"]["containerStatuses"][0];
    container["restartCount"] = json!(3);
    container["state"] = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}});
    container["lastState"] = json!({"terminated": {"reason": reason, "exitCode": code, "message": message}});
}

#[test]
fn all_is_well() {
    says(&World::story(), &expect![]);
}

#[test]
fn the_tables_say_where_everything_is_and_why() {
    let mut status = World::story().status();
    status.conditions.clear();
    expect![].assert_eq(&serde_json::to_string_pretty(&status).unwrap());
}

#[test]
fn the_same_situation_gives_the_same_status_whatever_the_time() {
    let mut world = World::story();
    let first = world.status_at(0);
    world.before = first.clone();
    assert_eq!(world.status_at(86_400), first);
}

#[test]
fn a_transition_moves_the_time_of_its_condition_and_of_no_other() {
    let mut world = World::story();
    world.before = world.status_at(0);
    world.pod("flash-decode", not_ready);
    let after = world.status_at(60);
    for (old, new) in world.before.conditions.iter().zip(&after.conditions) {
        let moved = old.last_transition_time != new.last_transition_time;
        assert_eq!(moved, old.status != new.status, "{new:?}");
    }
    let types: Vec<&str> = after.conditions.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!(types, ConditionType::ALL.map(|kind| kind.to_string()));
    assert!(after.conditions.iter().all(|condition| condition.observed_generation == Some(1)));
}

#[test]
fn last_good_inputs_move_only_when_ready() {
    let mut world = World::story();
    let good = world.status();
    assert_eq!(good.last_good_inputs.as_deref(), Some("flash-0123456789"));
    assert_eq!(good.last_good_revision, good.current_revision);
    world.pod("flash-decode", not_ready);
    world.before.last_good_inputs = Some("flash-earlier".to_owned());
    assert_eq!(world.status().last_good_inputs.as_deref(), Some("flash-earlier"));
    assert_eq!(world.status().current_inputs.as_deref(), Some("flash-0123456789"));
}

#[test]
fn refused_before_planning() {
    let mut world = World::story();
    world.refused = Some((Reason::UnknownShape, "the dimensions of model \"x\" are not known by name"));
    world.is_carried_out = false;
    world.live = crate::live::Live::default();
    says(&world, &expect![]);
}

#[test]
fn it_fits_nowhere() {
    let mut world = World::story();
    world.cluster.spec.decode.gpus = 8;
    world.planned = plan(&world.cluster, &world.facts);
    world.is_carried_out = false;
    world.live = crate::live::Live::default();
    says(&world, &expect![]);
}

#[test]
fn the_mode_asked_for_is_not_offered() {
    let mut world = World::story();
    world.lacking = Some("placement.mode is DRA, and this cluster has no ResourceSlices of GPUs");
    world.is_carried_out = false;
    world.live = crate::live::Live::default();
    differs(&world, &expect![]);
}

#[test]
fn a_foreign_object_has_the_name() {
    let mut world = World::story();
    world.outcome.taken_names = vec!["Service flash".to_owned(), "Service flash-decode".to_owned()];
    differs(&world, &expect![]);
}

#[test]
fn the_agents_are_silent() {
    let mut world = World::story();
    let state = operator_plan::NodeState { facts_age_ms: Some(90_000), ready: true, ..Default::default() };
    world.surroundings.nodes = Some([("story".to_owned(), state)].into());
    differs(&world, &expect![]);
}

#[test]
fn a_rollout_has_replaced_nothing_yet_and_the_old_pods_still_serve() {
    let mut world = World::story();
    for role in ["flash-prefill", "flash-decode"] {
        world.pod(role, |pod| {
            let name = pod["metadata"]["name"].as_str().unwrap().replace("ab12c", "old00");
            pod["metadata"]["name"] = json!(name);
            pod["metadata"]["labels"]["fathom.dev/revision"] = json!("0ld");
        });
    }
    world.outcome.waiting = vec!["pod flash-prefill-0-old00 is ending".to_owned()];
    differs(&world, &expect![]);
}

#[test]
fn pods_are_ready_and_no_question_was_answered_yet() {
    let mut world = World::story();
    world.answers = false;
    differs(&world, &expect![]);
}

#[test]
fn the_router_is_not_there() {
    let mut world = World::story();
    world.router(0, 0);
    differs(&world, &expect![]);
}

#[test]
fn killed_for_memory() {
    let mut world = World::story();
    world.pod("flash-prefill", |pod| crashed(pod, "OOMKilled", 137, ""));
    differs(&world, &expect![]);
}

#[test]
fn the_container_keeps_ending() {
    let mut world = World::story();
    let words = "loading\nconfiguration is refused: pools.kvPages is 0\n";
    world.pod("flash-decode", |pod| crashed(pod, "Error", 2, words));
    differs(&world, &expect![]);
}

#[test]
fn the_checkpoint_is_another_model() {
    let mut world = World::story();
    let words = "ModelMismatch: hidden_size is 7168, planned 4096";
    world.pod("flash-decode", |pod| crashed(pod, "Error", 2, words));
    differs(&world, &expect![]);
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
    differs(&world, &expect![]);
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
    let claim =
        world.live.claims.iter_mut().find(|claim| {
            claim.metadata.name.as_deref().is_some_and(|name| name.starts_with("flash-decode"))
        });
    std::sync::Arc::make_mut(claim.unwrap()).status = None;
    world.engines.remove("flash-decode-0-ab12c");
    differs(&world, &expect![]);
}

#[test]
fn a_gpu_vanished_under_a_running_pod() {
    let mut world = World::story();
    world.offered.as_mut().unwrap().get_mut("story").unwrap().remove(0);
    differs(&world, &expect![]);
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
    differs(&world, &expect![]);
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
    differs(&world, &expect![]);
}

#[test]
fn the_cluster_drops_image_volumes() {
    let mut world = World::story();
    world.live.pods.remove(0);
    world.outcome.image_volume_dropped = vec!["flash-prefill-0-ab12c".to_owned()];
    differs(&world, &expect![]);
}

#[test]
fn binding_was_refused_and_the_spec_prefers_it() {
    let mut world = World::story();
    world.cluster.spec.placement.numa = NumaMode::Preferred;
    let refused = json!({"state": "refused", "error": "EINVAL: CPUs 16-31 are not here"});
    world.engines.get_mut("flash-decode-0-ab12c").unwrap()["binding"]["cpus"] = refused;
    differs(&world, &expect![]);
}

#[test]
fn binding_was_refused_and_the_spec_requires_it() {
    let mut world = World::story();
    let refused = json!({"state": "refused", "error": "EPERM: add CAP_SYS_NICE"});
    world.engines.get_mut("flash-decode-0-ab12c").unwrap()["binding"]["memory"] = refused;
    world.pod("flash-decode", not_ready);
    differs(&world, &expect![]);
}

#[test]
fn mode_plan_before_anything_was_carried_out() {
    let mut world = World::story();
    world.cluster.spec.rollout.mode = RolloutMode::Plan;
    world.is_carried_out = false;
    world.live = crate::live::Live::default();
    differs(&world, &expect![]);
}

#[test]
fn mode_plan_with_an_impossible_new_spec_leaves_what_runs_ready() {
    let mut world = World::story();
    world.recorded = Some((world.cluster.spec.clone(), world.planned.clone()));
    world.cluster.spec.rollout.mode = RolloutMode::Plan;
    world.cluster.spec.decode.gpus = 16;
    world.planned = plan(&world.cluster, &world.facts);
    differs(&world, &expect![]);
}

#[test]
fn scaled_to_zero() {
    let mut world = World::story();
    world.cluster.spec.decode.replicas = 0;
    world.cluster.spec.prefill = None;
    world.planned = plan(&world.cluster, &world.facts);
    world.live.pods.clear();
    says(&world, &expect![]);
}

#[test]
fn a_call_failed_and_is_tried_again() {
    let mut world = World::story();
    world.failure = Some("cannot create Pod flash-decode-0-ab12c: the API server does not answer");
    differs(&world, &expect![]);
}

#[test]
fn an_operator_that_starts_believes_what_the_last_one_was_told() {
    let mut world = World::story();
    world.before = world.status();
    world.engines.clear();
    assert_eq!(world.status_at(60), world.before);
}

#[test]
fn at_most_32_rejected_places_are_listed_and_all_are_counted() {
    let mut world = World::story();
    let story = world.facts[0].clone();
    world.cluster.spec.decode.gpus = 16;
    world.facts =
        (0..100).map(|n| node_facts::NodeFacts { node: format!("n{n}"), ..story.clone() }).collect();
    world.planned = plan(&world.cluster, &world.facts);
    let table = world.status().plan.unwrap();
    assert_eq!(table.rejected.len(), MAX_REJECTED);
    assert!(table.rejected_total >= 100, "{}", table.rejected_total);
}

#[test]
fn no_condition_is_without_a_sentence() {
    let mut worlds = vec![World::story()];
    for change in 0..8 {
        let mut world = World::story();
        match change {
            0 => world.live = crate::live::Live::default(),
            1 => world.engines.clear(),
            2 => world.pod("flash-decode", |pod| crashed(pod, "", 0, "")),
            3 => world.pod("flash-router", not_ready),
            4 => world.lacking = Some("no DRA here"),
            5 => world.is_carried_out = false,
            6 => world.outcome.waiting = vec!["pod x is ending".to_owned()],
            _ => world.pod("flash-prefill", |pod| pod["status"] = json!({"phase": "Failed"})),
        }
        worlds.push(world);
    }
    for world in worlds {
        for condition in world.status().conditions {
            let message = condition.message.trim();
            assert!(
                !message.is_empty() && !message.contains("; ;") && !message.ends_with(':'),
                "{condition:?}"
            );
        }
    }
}
