mod trouble;
mod world;

use expect_test::{Expect, expect, expect_file};
use fathom_crds::InferenceClusterStatus;
use fathom_crds::conditions::{ConditionType, Reason};
use fathom_crds::inference_cluster::{NumaMode, RolloutMode};
use serde_json::{Value, json};

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
    says(
        &World::story(),
        &expect![[r#"
            Accepted True AsExpected: the object is understood, and its names are free
            Planned True AsExpected: 2 engine replicas have their places
            PlacementSatisfied True AsExpected: GPUs, CPUs and memory are where the plan says (mode DRA)
            Progressing False AsExpected: everything asked for is there
            RolesReady True AsExpected: prefill 1/1, decode 1/1, router 1/1
            Routable True AsExpected: revision 68339eb670 answers requests
            Degraded False AsExpected: nothing works less well than planned
            Ready True AsExpected: revision 68339eb670 answers requests
        "#]],
    );
}

#[test]
fn the_tables_say_where_everything_is_and_why() {
    let mut status = World::story().status();
    status.conditions.clear();
    let json = serde_json::to_string_pretty(&status).unwrap() + "\n";
    expect_file!["tests/story.json"].assert_eq(&json);
}

/// A14.
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
    says(
        &world,
        &expect![[r#"
            Accepted False UnknownShape: the dimensions of model "x" are not known by name
            Planned Unknown UnknownShape: not planned, because the object was not accepted
            PlacementSatisfied Unknown NotKnownYet: nothing runs yet
            Progressing False UnknownShape: nothing is carried out; Accepted and Planned say why
            RolesReady False UnknownShape: nothing is carried out, so no pod is there
            Routable False NotRoutable: no pods are there that could answer
            Degraded False AsExpected: nothing works less well than planned
            Ready False UnknownShape: the dimensions of model "x" are not known by name
        "#]],
    );
}

#[test]
fn it_fits_nowhere() {
    let mut world = World::story();
    world.cluster.spec.decode.gpus = 8;
    world.planned = plan(&world.cluster, &world.facts);
    world.is_carried_out = false;
    world.live = crate::live::Live::default();
    says(
        &world,
        &expect![[r#"
            Accepted True AsExpected: the object is understood, and its names are free
            Planned False NotFeasible: prefill: 1 of 1 replicas fit; each needs 4 GPUs of 47.2 GiB on one NUMA node, 16 CPUs, 24.0 GiB of memory; decode: 0 of 1 replicas fit; each needs 8 GPUs of 27.4 GiB on one NUMA node, 16 CPUs, 44.0 GiB of memory; 3 places were looked at, status.plan.rejected says why not each
            PlacementSatisfied Unknown NotKnownYet: nothing runs yet
            Progressing False NotFeasible: nothing is carried out; Accepted and Planned say why
            RolesReady False NotFeasible: nothing is carried out, so no pod is there
            Routable False NotRoutable: no pods are there that could answer
            Degraded False AsExpected: nothing works less well than planned
            Ready False NotFeasible: prefill: 1 of 1 replicas fit; each needs 4 GPUs of 47.2 GiB on one NUMA node, 16 CPUs, 24.0 GiB of memory; decode: 0 of 1 replicas fit; each needs 8 GPUs of 27.4 GiB on one NUMA node, 16 CPUs, 44.0 GiB of memory; 3 places were looked at, status.plan.rejected says why not each
        "#]],
    );
}

#[test]
fn the_mode_asked_for_is_not_offered() {
    let mut world = World::story();
    world.lacking = Some("placement.mode is DRA, and this cluster has no ResourceSlices of GPUs");
    world.is_carried_out = false;
    world.live = crate::live::Live::default();
    differs(
        &world,
        &expect![[r#"
            Planned False ModeNotOffered: placement.mode is DRA, and this cluster has no ResourceSlices of GPUs
            PlacementSatisfied Unknown NotKnownYet: nothing runs yet
            Progressing False ModeNotOffered: nothing is carried out; Accepted and Planned say why
            RolesReady False ModeNotOffered: nothing is carried out, so no pod is there
            Routable False NotRoutable: no pods are there that could answer
            Ready False ModeNotOffered: placement.mode is DRA, and this cluster has no ResourceSlices of GPUs
        "#]],
    );
}

#[test]
fn a_foreign_object_has_the_name() {
    let mut world = World::story();
    world.outcome.taken_names = vec!["Service flash".to_owned(), "Service flash-decode".to_owned()];
    differs(
        &world,
        &expect![[r#"
            Accepted False NameTaken: taken by somebody else, and left alone: Service flash, Service flash-decode. Remove or rename what is there, or give this InferenceCluster another name
            Ready False NameTaken: taken by somebody else, and left alone: Service flash, Service flash-decode. Remove or rename what is there, or give this InferenceCluster another name
        "#]],
    );
}

#[test]
fn the_agents_are_silent() {
    let mut world = World::story();
    let state = operator_plan::NodeState { facts_age_ms: Some(90_000), ready: true, ..Default::default() };
    world.surroundings.nodes = Some([("story".to_owned(), state)].into());
    differs(
        &world,
        &expect![[r#"
        Planned True FactsStale: every replica has its place; the agents of story are silent: what runs there stays, nothing new is placed
    "#]],
    );
}

/// A10: whoever waits for Ready waits for the new pods.
#[test]
fn a_rollout_has_replaced_nothing_yet_and_the_old_pods_still_serve() {
    let mut world = World::story();
    world.before = world.status();
    for role in ["flash-prefill", "flash-decode"] {
        world.pod(role, |pod| {
            let name = pod["metadata"]["name"].as_str().unwrap().replace("ab12c", "old00");
            pod["metadata"]["name"] = json!(name);
            pod["metadata"]["labels"]["fathom.dev/revision"] = json!("0ld");
        });
    }
    world.outcome.waiting = vec!["pod flash-prefill-0-old00 is ending".to_owned()];
    differs(
        &world,
        &expect![[r#"
        PlacementSatisfied Unknown NotKnownYet: 2 of 2 pods do not run yet
        Progressing True Applying: updated 1 of 3 pods, 1 ready, 2 of an earlier revision or plan; pod flash-prefill-0-old00 is ending
        RolesReady False PodsNotReady: ready: prefill 0/1, decode 0/1; `kubectl describe pod` of the others says what they wait for
        Routable True Applying: pods of an earlier revision answer while new ones are made
        Ready False Applying: updated 1 of 3 pods, 1 ready, 2 of an earlier revision or plan; pod flash-prefill-0-old00 is ending
    "#]],
    );
}

/// A15: ready pods are not yet an answer.
#[test]
fn pods_are_ready_and_no_question_was_answered_yet() {
    let mut world = World::story();
    world.answers = false;
    differs(
        &world,
        &expect![[r#"
        Routable False NotRoutable: the last question failed: 503 Service Unavailable: no decode is ready
        Ready False NotRoutable: the last question failed: 503 Service Unavailable: no decode is ready
    "#]],
    );
}

#[test]
fn the_router_is_not_there() {
    let mut world = World::story();
    world.router(0, 0);
    differs(
        &world,
        &expect![[r#"
        Progressing True Applying: updated 2 of 3 pods, 2 ready, 1 of an earlier revision or plan
        RolesReady False PodsNotReady: ready: router 0/1; `kubectl describe pod` of the others says what they wait for
        Routable False NotRoutable: no router pod is ready
        Ready False Applying: updated 2 of 3 pods, 2 ready, 1 of an earlier revision or plan
    "#]],
    );
}

#[test]
fn binding_was_refused_and_the_spec_prefers_it() {
    let mut world = World::story();
    world.cluster.spec.placement.numa = NumaMode::Preferred;
    let refused = json!({"state": "refused", "error": "EINVAL: CPUs 16-31 are not here"});
    world.engines.get_mut("flash-decode-0-ab12c").unwrap()["binding"]["cpus"] = refused;
    differs(
        &world,
        &expect![[r#"
        PlacementSatisfied False NotAchieved: flash-decode-0 CPUs: EINVAL: CPUs 16-31 are not here. The spec does not require it, so these pods serve, perhaps more slowly than planned
    "#]],
    );
}

#[test]
fn binding_was_refused_and_the_spec_requires_it() {
    let mut world = World::story();
    let refused = json!({"state": "refused", "error": "EPERM: add CAP_SYS_NICE"});
    world.engines.get_mut("flash-decode-0-ab12c").unwrap()["binding"]["memory"] = refused;
    world.pod("flash-decode", not_ready);
    differs(
        &world,
        &expect![[r#"
            PlacementSatisfied False NotAchieved: flash-decode-0 memory: EPERM: add CAP_SYS_NICE. The spec requires it, so these pods stay not ready: free the place, or ask for Preferred
            Progressing False NotAchieved: pod flash-decode-0-ab12c could not bind its memory (EPERM: add CAP_SYS_NICE), which the spec requires
            RolesReady False NotAchieved: ready: decode 0/1; pod flash-decode-0-ab12c could not bind its memory (EPERM: add CAP_SYS_NICE), which the spec requires
            Routable False NotRoutable: no decode pod is ready
            Degraded True NotAchieved: pod flash-decode-0-ab12c could not bind its memory (EPERM: add CAP_SYS_NICE), which the spec requires
            Ready False NotAchieved: ready: decode 0/1; pod flash-decode-0-ab12c could not bind its memory (EPERM: add CAP_SYS_NICE), which the spec requires
        "#]],
    );
}

#[test]
fn mode_plan_before_anything_was_carried_out() {
    let mut world = World::story();
    world.cluster.spec.rollout.mode = RolloutMode::Plan;
    world.is_carried_out = false;
    world.live = crate::live::Live::default();
    differs(
        &world,
        &expect![[r#"
            PlacementSatisfied Unknown NotKnownYet: nothing runs yet
            Progressing False PlanOnly: rollout.mode is Plan: the plan is in the status, and nothing is carried out
            RolesReady False PlanOnly: nothing is carried out, so no pod is there
            Routable False NotRoutable: no pods are there that could answer
            Ready False PlanOnly: rollout.mode is Plan: nothing is carried out
        "#]],
    );
}

#[test]
fn mode_plan_with_an_impossible_new_spec_leaves_what_runs_ready() {
    let mut world = World::story();
    world.recorded = Some((world.cluster.spec.clone(), world.planned.clone()));
    world.cluster.spec.rollout.mode = RolloutMode::Plan;
    world.cluster.spec.decode.gpus = 16;
    world.planned = plan(&world.cluster, &world.facts);
    differs(
        &world,
        &expect![[r#"
        Planned False NotFeasible: decode: 8 output groups cannot be split over 16 GPUs; this model takes 1, 2, 4, 8
        Progressing False PlanOnly: rollout.mode is Plan: what runs is kept as it is, and the new plan is in the status
    "#]],
    );
}

#[test]
fn an_impossible_change_leaves_what_runs_and_says_so() {
    let mut world = World::story();
    world.before = world.status();
    world.cluster.spec.decode.gpus = 8;
    world.planned = plan(&world.cluster, &world.facts);
    differs(
        &world,
        &expect![[r#"
        Planned False NotFeasible: prefill: 1 of 1 replicas fit; each needs 4 GPUs of 47.2 GiB on one NUMA node, 16 CPUs, 24.0 GiB of memory; decode: 0 of 1 replicas fit; each needs 8 GPUs of 27.4 GiB on one NUMA node, 16 CPUs, 44.0 GiB of memory; 3 places were looked at, status.plan.rejected says why not each
        PlacementSatisfied Unknown NotKnownYet: what runs belongs to an earlier plan
        Progressing False NotFeasible: the spec fits nowhere, so what runs stays as it is; Planned says what is missing
        RolesReady False NotFeasible: ready, of an earlier plan: prefill 1/1, decode 1/1, router 1/1
        Routable True Applying: pods of an earlier plan answer
        Ready False NotFeasible: prefill: 1 of 1 replicas fit; each needs 4 GPUs of 47.2 GiB on one NUMA node, 16 CPUs, 24.0 GiB of memory; decode: 0 of 1 replicas fit; each needs 8 GPUs of 27.4 GiB on one NUMA node, 16 CPUs, 44.0 GiB of memory; 3 places were looked at, status.plan.rejected says why not each
    "#]],
    );
    let summary = world.status().summary.unwrap();
    assert_eq!((summary.prefill.as_str(), summary.decode.as_str()), ("1/1", "1/1"));
}

/// A03.
#[test]
fn scaled_to_zero() {
    let mut world = World::story();
    world.cluster.spec.decode.replicas = 0;
    world.cluster.spec.prefill = None;
    world.planned = plan(&world.cluster, &world.facts);
    world.live.pods.clear();
    says(
        &world,
        &expect![[r#"
            Accepted True AsExpected: the object is understood, and its names are free
            Planned True ScaledToZero: no replica asks for a place
            PlacementSatisfied True ScaledToZero: no pod needs a place
            Progressing False ScaledToZero: no engine pod is asked for
            RolesReady True ScaledToZero: no engine pod is asked for
            Routable False ScaledToZero: no engine pod is asked for
            Degraded False AsExpected: nothing works less well than planned
            Ready False ScaledToZero: no engine pod is asked for, so nothing can answer
        "#]],
    );
}

#[test]
fn a_call_failed_and_is_tried_again() {
    let mut world = World::story();
    world.failure = Some("cannot create Pod flash-decode-0-ab12c: the API server does not answer");
    differs(
        &world,
        &expect![[r#"
        Progressing True ApplyFailed: cannot create Pod flash-decode-0-ab12c: the API server does not answer; it is tried again
    "#]],
    );
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
    world.cluster.spec.decode.gpus = 8;
    world.facts =
        (0..100).map(|n| node_facts::NodeFacts { node: format!("n{n}"), ..story.clone() }).collect();
    world.planned = plan(&world.cluster, &world.facts);
    let table = world.status().plan.unwrap();
    assert_eq!(table.rejected.len(), MAX_REJECTED);
    assert!(table.rejected_total >= 100, "{}", table.rejected_total);
}

/// Pods that run are not placed anew; why they are where they are is told as long as they stay.
#[test]
fn the_reasons_of_a_decision_stay_as_long_as_what_was_decided() {
    let mut world = World::story();
    let small = node_facts::NodeFacts {
        node: "small".to_owned(),
        gpus: node_facts::Reading::Value(vec![]),
        ..world.facts[0].clone()
    };
    world.facts.push(small);
    world.planned = plan(&world.cluster, &world.facts);
    world.before = world.status();
    let told = world.before.plan.clone().unwrap();
    assert!(told.rejected.iter().any(|rejected| rejected.node == "small"), "{told:?}");

    world.planned.report.rejected.clear();
    world.planned.report.rejected_total = 0;
    world.planned.report.kept = u32::try_from(world.planned.plan.replicas.len()).unwrap();
    assert_eq!(world.status().plan.unwrap().rejected, told.rejected);
    // After a wish that fitted nowhere was taken back, its reasons are no reasons for what runs.
    let good = world.before.clone();
    world.before.plan.as_mut().unwrap().replicas.clear();
    assert_eq!(world.status().plan.unwrap().rejected, []);
    // Nor are those of a wish of mode Plan, unless it was to leave everything where it is.
    let only_shown = |before: &mut InferenceClusterStatus| {
        before.conditions[0].reason = Reason::PlanOnly.to_string();
    };
    world.before = good.clone();
    only_shown(&mut world.before);
    assert_eq!(world.status().plan.unwrap().rejected, told.rejected);
    world.before.plan.as_mut().unwrap().replicas[0].node = "small".to_owned();
    assert_eq!(world.status().plan.unwrap().rejected, []);
    world.before = good;
    // One of two is placed anew: only what was looked at for it counts.
    world.planned.report.kept = 1;
    assert_eq!(world.status().plan.unwrap().rejected_total, 0);
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
