//! What is done in which situation.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine_spec::Role;

use super::super::Given;
use super::super::child::name;
use super::super::steps::{Stage, Todo, steps};
use super::scene::{Scene, UID, ending, entry, live, pod};
use crate::gather::shelf::ObjectKey;
use crate::live::Live;

fn plan(scene: &Scene, live: &Live) -> Todo {
    steps(&scene.render(), live, &Given::default(), &BTreeMap::new())
}

/// Steps as text, hashes cut off, without the record of the inputs.
fn told(todo: &Todo) -> Vec<String> {
    let texts = todo.steps.iter().map(ToString::to_string);
    texts.filter(|text| !text.contains("ControllerRevision")).map(|text| without_hash(&text)).collect()
}

fn without_hash(text: &str) -> String {
    let engine = ["-prefill-", "-decode-", "-unified-"].iter().any(|role| text.contains(role));
    let router = text.contains("ConfigMap flash-router-");
    match text.rsplit_once('-') {
        Some((front, _)) if engine || router => front.to_owned(),
        _ => text.to_owned(),
    }
}

#[test]
fn nothing_is_done_when_nothing_differs() {
    let scene = Scene::new(2);
    assert_eq!(plan(&scene, &scene.live()), Todo::default());
}

#[test]
fn everything_is_made_in_the_order_in_which_it_is_needed() {
    let todo = plan(&Scene::new(1), &Live::default());
    assert_eq!(todo.waiting, Vec::<String>::new());
    assert_eq!(
        told(&todo),
        [
            "create NetworkPolicy flash-engine",
            "create NetworkPolicy flash-router",
            "create Service flash",
            "create Service flash-decode",
            "create Service flash-prefill",
            "create ServiceAccount flash-router",
            "create Role flash-router",
            "create RoleBinding flash-router",
            "create ConfigMap flash-router",
            "create Deployment flash-router",
            "create ConfigMap flash-prefill-0",
            "create ResourceClaim flash-prefill-0",
            "create Pod flash-prefill-0",
            "create ConfigMap flash-decode-0",
            "create ResourceClaim flash-decode-0",
            "create Pod flash-decode-0",
        ]
    );
    let stage = |start: &str| {
        let mut stages =
            todo.steps.iter().filter(|step| step.to_string().contains(start)).map(|step| step.stage);
        let first = stages.next().unwrap();
        assert!(stages.all(|stage| stage == first), "{start}");
        first
    };
    assert_eq!(stage("ControllerRevision"), Stage::Record);
    for needed in ["ConfigMap", "ResourceClaim", "ServiceAccount", "Role ", "Service ", "NetworkPolicy"] {
        assert_eq!(stage(needed), Stage::Prepare, "{needed}");
    }
    assert_eq!(stage("RoleBinding"), Stage::Start, "after its Role");
    assert_eq!(stage("Pod"), Stage::Start);
    assert_eq!(stage("Deployment"), Stage::Start);
}

#[test]
fn scaling_one_role_up_touches_nothing_else() {
    let todo = plan(&Scene::new(2), &Scene::new(1).live());
    assert_eq!(
        told(&todo),
        [
            "create ConfigMap flash-decode-1",
            "create ResourceClaim flash-decode-1",
            "create Pod flash-decode-1"
        ]
    );
}

#[test]
fn scaling_one_role_down_touches_nothing_else() {
    let todo = plan(&Scene::new(1), &Scene::new(2).live());
    assert_eq!(told(&todo), ["delete Pod flash-decode-1"]);
    let mut after = Scene::new(2).live();
    after.pods.pop();
    let todo = plan(&Scene::new(1), &after);
    assert_eq!(told(&todo), ["delete ConfigMap flash-decode-1", "delete ResourceClaim flash-decode-1"]);
}

#[test]
fn a_new_image_replaces_one_pod_of_each_role_and_then_waits_for_them() {
    let (old, new) = (Scene::new(2), Scene::new(2).with_image("engine:2"));
    let todo = plan(&new, &old.live());
    assert_eq!(
        told(&todo),
        ["apply Deployment flash-router", "delete Pod flash-prefill-0", "delete Pod flash-decode-0"]
    );

    let mut live = old.live();
    live.pods =
        live.pods.iter().enumerate().map(|(i, pod)| if i < 2 { ending(pod) } else { pod.clone() }).collect();
    let todo = plan(&new, &live);
    assert_eq!(told(&todo), ["apply Deployment flash-router"]);
    assert_eq!(todo.waiting.len(), 3);

    live.pods.drain(..2);
    let todo = plan(&new, &live);
    let pods: Vec<_> = told(&todo).into_iter().filter(|text| text.contains("Pod")).collect();
    assert_eq!(pods, ["create Pod flash-prefill-0", "create Pod flash-decode-0"]);
}

#[test]
fn a_revision_that_misses_its_gate_stops_with_the_first_pods() {
    let (old, new) = (Scene::new(2), Scene::new(2).with_image("engine:2"));
    let mut live = old.live();
    let desired = new.render();
    live.pods[0] = pod(&desired.replicas[0].pod, "Running", true);
    live.pods[1] = pod(&desired.replicas[1].pod, "Running", false);
    let todo = plan(&new, &live);
    assert!(!told(&todo).iter().any(|text| text.contains("Pod")), "{:?}", told(&todo));
    assert!(todo.waiting[0].contains("serves until newer pods are ready"), "{:?}", todo.waiting);

    live.pods[1] = pod(&desired.replicas[1].pod, "Running", true);
    assert!(told(&plan(&new, &live)).contains(&"delete Pod flash-decode-1".to_owned()));
}

/// The new decode of a change that also scales waits for a prefill of its revision, and the old ones must not wait for it.
#[test]
fn a_role_without_a_pod_of_the_new_revision_makes_its_first_whatever_the_other_waits_for() {
    let (old, new) = (Scene::new(1), Scene::new(2).with_image("engine:2"));
    let desired = new.render();
    let mut live = old.live();
    let deletes = |live: &Live| -> Vec<String> {
        told(&plan(&new, live)).into_iter().filter(|text| text.starts_with("delete Pod")).collect()
    };
    assert_eq!(deletes(&live), ["delete Pod flash-prefill-0"], "the missing decode is made in the same pass");
    live.pods.push(pod(&desired.replicas[2].pod, "Running", false));
    assert_eq!(deletes(&live), ["delete Pod flash-prefill-0"]);
    live.pods[0] = ending(&live.pods[0]);
    assert_eq!(deletes(&live), [""; 0]);
    live.pods[0] = pod(&desired.replicas[0].pod, "Running", true);
    assert_eq!(deletes(&live), [""; 0], "now the new decode can become ready");
    live.pods[2] = pod(&desired.replicas[2].pod, "Running", true);
    assert_eq!(deletes(&live), ["delete Pod flash-decode-0"]);
}

/// A29: a change that is taken back needs no hands, although the pods of the bad revision never became ready.
#[test]
fn pods_of_an_abandoned_revision_that_never_became_ready_go_at_once() {
    let (good, bad) = (Scene::new(2), Scene::new(2).with_image("no-such-image"));
    let mut live = good.live();
    let broken = bad.render();
    for (index, replica) in broken.replicas.iter().enumerate().take(2) {
        live.pods[index] = pod(&replica.pod, "Pending", false);
    }
    let pods: Vec<_> = told(&plan(&good, &live)).into_iter().filter(|text| text.contains("Pod")).collect();
    assert_eq!(pods, ["delete Pod flash-prefill-0", "delete Pod flash-decode-0"]);
}

/// A30: a second change in the middle of a first has one target.
#[test]
fn pods_of_the_change_before_are_as_old_as_any() {
    let mut live = Scene::new(2).live();
    let second = Scene::new(2).with_image("engine:2").render();
    live.pods[0] = pod(&second.replicas[0].pod, "Running", true);
    let third = Scene::new(2).with_image("engine:3");
    let pods: Vec<_> = told(&plan(&third, &live)).into_iter().filter(|text| text.contains("Pod")).collect();
    assert_eq!(pods, ["delete Pod flash-prefill-0", "delete Pod flash-decode-0"]);
}

#[test]
fn a_configmap_that_is_gone_comes_back_and_its_pod_stays() {
    let scene = Scene::new(1);
    let mut live = scene.live();
    live.config_maps.remove(1);
    assert_eq!(told(&plan(&scene, &live)), ["create ConfigMap flash-decode-0"]);
    live.claims.clear();
    live.services.remove(0);
    assert_eq!(
        told(&plan(&scene, &live)),
        [
            "create Service flash",
            "create ResourceClaim flash-prefill-0",
            "create ConfigMap flash-decode-0",
            "create ResourceClaim flash-decode-0",
        ]
    );
}

#[test]
fn a_configmap_left_by_an_earlier_pod_is_replaced_before_the_next_starts_and_not_before() {
    let mut scene = Scene::new(1);
    let live_before = scene.live();
    scene.first_token_ms = 20_000;
    let desired_pods = scene.render().replicas;
    assert_eq!(name(&desired_pods[0].pod.metadata), live_before.pods[0].name(), "the same pods");
    assert!(!told(&plan(&scene, &live_before)).iter().any(|text| text.contains("-0")));

    let mut live = live_before;
    live.pods.remove(0);
    let todo = plan(&scene, &live);
    let prefill: Vec<_> = told(&todo).into_iter().filter(|text| text.contains("prefill-0")).collect();
    assert_eq!(
        prefill,
        [
            "delete ConfigMap flash-prefill-0",
            "create ConfigMap flash-prefill-0",
            "create Pod flash-prefill-0"
        ]
    );
}

#[test]
fn a_pod_on_its_way_out_is_waited_for() {
    let scene = Scene::new(1);
    let mut live = scene.live();
    live.pods[1] = ending(&live.pods[1]);
    let todo = plan(&scene, &live);
    assert!(todo.steps.is_empty());
    assert_eq!(todo.waiting, [format!("pod {} is ending", live.pods[1].name())]);
}

#[test]
fn a_failed_pod_is_replaced_when_the_caller_lets_it() {
    let scene = Scene::new(1);
    let mut live = scene.live();
    live.pods[1] = pod(&scene.render().replicas[1].pod, "Failed", false);
    assert_eq!(told(&plan(&scene, &live)), ["delete Pod flash-decode-0"]);

    let why = "pod was rejected twice on n0; next try in 20 s".to_owned();
    let held_back = [("flash-decode-0".to_owned(), why.clone())].into();
    let given = Given { held_back, ..Given::default() };
    for pods in [live.pods.clone(), live.pods[..1].to_vec()] {
        let live = Live { pods, ..live.clone() };
        let todo = steps(&scene.render(), &live, &given, &BTreeMap::new());
        assert!(todo.steps.is_empty(), "{:?}", told(&todo));
        assert_eq!(todo.waiting.join("; "), why);
    }
}

#[test]
fn without_a_plan_engines_and_what_they_need_stay() {
    let mut scene = Scene::new(1);
    let live = scene.live();
    scene.replicas.clear();
    let given = Given { leave_engines: true, ..Given::default() };
    let todo = steps(&scene.render(), &live, &given, &BTreeMap::new());
    let engines: Vec<_> = told(&todo).into_iter().filter(|text| text.contains("-0")).collect();
    assert!(engines.is_empty(), "{engines:?}");
}

/// A31: a view that lags behind our own writes makes no second pod.
#[test]
fn a_pod_that_was_just_made_and_is_not_seen_must_be_gone_before_another_takes_its_place() {
    let scene = Scene::new(1).with_image("engine:2");
    let mut live = Scene::new(1).live();
    live.pods.pop();
    let recent = [("flash-decode-0".to_owned(), "flash-decode-0-00000".to_owned())].into();
    let todo = steps(&scene.render(), &live, &Given::default(), &recent);
    let line: Vec<_> = todo.steps.iter().filter(|step| step.line == "flash-decode-0").collect();
    assert_eq!(
        line.iter().filter(|step| step.to_string() == "expect no Pod flash-decode-0-00000").count(),
        1
    );
    let expect = line.iter().find(|step| step.to_string().starts_with("expect")).unwrap();
    let create = line.iter().find(|step| step.to_string().starts_with("create Pod")).unwrap();
    assert!(expect.stage < create.stage);
}

#[test]
fn pods_that_swap_places_do_not_wait_for_each_other() {
    let old = Scene::new(2);
    let mut new = Scene::new(2);
    new.replicas[1] = entry(Role::Decode, 0, 2);
    new.replicas[2] = entry(Role::Decode, 1, 1);
    let mut live = old.live();
    assert_eq!(told(&plan(&new, &live)), ["delete Pod flash-decode-0"]);
    live.pods.remove(1);
    let todo = plan(&new, &live);
    assert!(told(&todo).contains(&"delete Pod flash-decode-1".to_owned()), "{:?}", told(&todo));
    assert!(!told(&todo).iter().any(|text| text.starts_with("create Pod")), "{:?}", told(&todo));
}

#[test]
fn one_process_for_both_jobs_starts_when_those_for_one_are_gone() {
    let old = Scene::new(1);
    let mut new = Scene::new(1);
    new.cluster.spec.prefill = None;
    new.replicas = vec![entry(Role::Unified, 0, 1)];
    let mut live = old.live();
    live.pods = live.pods.iter().map(ending).collect();
    let todo = plan(&new, &live);
    assert!(!told(&todo).iter().any(|text| text.starts_with("create Pod")), "{:?}", told(&todo));
    live.pods.clear();
    let todo = plan(&new, &live);
    assert!(told(&todo).contains(&"create Pod flash-unified-0".to_owned()));
    assert!(told(&todo).contains(&"delete Service flash-prefill".to_owned()));
}

#[test]
fn without_routers_nothing_of_them_is_left() {
    let mut scene = Scene::new(1);
    let live = scene.live();
    scene.routers = 0;
    let todo = plan(&scene, &live);
    assert_eq!(
        told(&todo),
        [
            "delete Deployment flash-router",
            "delete RoleBinding flash-router",
            "delete Role flash-router",
            "delete ServiceAccount flash-router",
        ]
    );
    let live = Live { deployments: Vec::new(), ..live };
    assert!(told(&plan(&scene, &live)).contains(&"delete ConfigMap flash-router".to_owned()));
}

#[test]
fn a_configmap_of_routers_stays_until_all_run_the_next() {
    let mut scene = Scene::new(1);
    let before = scene.render().router_config.unwrap();
    let mut live = scene.live();
    scene.cluster.spec.model.name = "another".to_owned();
    let after = live_after(&scene, &mut live);
    assert_ne!(before.metadata.name, after);
    let of_router = |live: &Live| -> Vec<String> {
        told(&plan(&scene, live)).into_iter().filter(|text| text.contains("ConfigMap flash-router")).collect()
    };
    assert_eq!(of_router(&live), ["delete ConfigMap flash-router"]);
    let mut rolling = (*live.deployments[0]).clone();
    rolling.content.updated = 0;
    live.deployments[0] = Arc::new(rolling);
    assert_eq!(of_router(&live), Vec::<String>::new());
}

/// Router and its ConfigMap as rendered now, beside what was there.
fn live_after(scene: &Scene, live_now: &mut Live) -> Option<String> {
    let desired = scene.render();
    let next = live(&desired);
    live_now.deployments = next.deployments;
    live_now.config_maps.extend(next.config_maps.into_iter().filter(|config| {
        Some(config.name()) == desired.router_config.as_ref().unwrap().metadata.name.as_deref()
    }));
    desired.router_config.unwrap().metadata.name
}

#[test]
fn the_last_five_recorded_changes_and_those_in_use_are_kept() {
    let scene = Scene::new(1);
    let mut live = scene.live();
    let current = (*live.revisions[0]).clone();
    let revision = |number: i64| {
        let mut revision = current.clone();
        revision.key = ObjectKey::new("serving", &format!("flash-{number}"));
        revision.content.number = number;
        Arc::new(revision)
    };
    live.revisions = (2..=9).map(revision).collect();
    let mut newest = current.clone();
    newest.content.number = 10;
    live.revisions.push(Arc::new(newest));
    let given = Given { kept_revisions: ["flash-3".to_owned()].into(), ..Given::default() };
    let todo = steps(&scene.render(), &live, &given, &BTreeMap::new());
    let gone: Vec<_> = todo.steps.iter().map(ToString::to_string).collect();
    assert_eq!(
        gone,
        [
            "delete ControllerRevision flash-5",
            "delete ControllerRevision flash-4",
            "delete ControllerRevision flash-2"
        ]
    );
}

#[test]
fn inputs_that_come_back_get_a_new_number() {
    let (scene, other) = (Scene::new(1), Scene::new(2));
    let mut live = scene.live();
    let mut later = other.live().revisions.remove(0);
    Arc::make_mut(&mut later).content.number = 2;
    live.revisions.push(later);
    let todo = plan(&scene, &live);
    let name = scene.render().revision.metadata.name.unwrap();
    let texts: Vec<_> = todo.steps.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [format!("delete ControllerRevision {name}"), format!("create ControllerRevision {name}")]
    );
    assert!(todo.steps[0].stage < todo.steps[1].stage);
    let super::super::steps::Action::Create(child) = &todo.steps[1].action else { panic!("creates") };
    assert_eq!(child.object["revision"], 3);
    assert_eq!(child.object["metadata"]["ownerReferences"][0]["uid"], UID);
}

/// Over all states of two decodes: a pod is never created beside another of its replica, nor on its GPU.
#[test]
fn no_state_of_two_replicas_makes_two_pods_of_one() {
    let (new, old) = (Scene::new(2).with_image("engine:2"), Scene::new(2));
    let (wanted, before) = (new.render(), old.render());
    let states = |index: usize| {
        let (new, old) = (&wanted.replicas[index].pod, &before.replicas[index].pod);
        let mut states = vec![Vec::new()];
        for rendered in [new, old] {
            for (phase, ready) in
                [("Running", true), ("Running", false), ("Failed", false), ("Pending", false)]
            {
                let pod = pod(rendered, phase, ready);
                states.extend([vec![ending(&pod)], vec![pod]]);
            }
        }
        states.push(vec![pod(new, "Running", true), ending(&pod(old, "Running", true))]);
        states
    };
    for first in states(1) {
        for second in states(2) {
            let mut live = new.live();
            live.pods.truncate(1);
            live.pods.extend(first.iter().chain(&second).cloned());
            let todo = plan(&new, &live);
            for (replica, there) in [("flash-decode-0", &first), ("flash-decode-1", &second)] {
                let starts = told(&todo).contains(&format!("create Pod {replica}"));
                assert_eq!(starts, there.is_empty(), "{replica} {there:?}");
            }
        }
    }
}
