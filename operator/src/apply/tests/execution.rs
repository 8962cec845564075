//! Passes against the API server of this process.

use serde_json::json;

use super::super::{ApplyContext, ApplyError, Given, Outcome, RecentPods, apply};
use super::api::{FakeApi, failure};
use super::scene::Scene;
use crate::live::Live;

async fn pass(api: &FakeApi, scene: &Scene, live: &Live) -> Result<Outcome, ApplyError> {
    let context =
        ApplyContext { client: api.client(), given: &Given::default(), recent: &RecentPods::default() };
    apply(&context, &scene.render(), live).await
}

async fn made(scene: &Scene) -> FakeApi {
    let api = FakeApi::default();
    let outcome = pass(&api, scene, &Live::default()).await.unwrap();
    assert_eq!(outcome, Outcome { writes: outcome.writes, ..Outcome::default() });
    api.calls();
    api
}

fn position(calls: &[String], start: &str) -> usize {
    calls.iter().position(|call| call.starts_with(start)).unwrap_or_else(|| panic!("{start} in {calls:?}"))
}

/// A47: what a pod names is confirmed before the pod is made.
#[tokio::test]
async fn needs_are_made_before_pods_and_all_is_counted() {
    let api = FakeApi::default();
    let outcome = pass(&api, &Scene::new(1), &Live::default()).await.unwrap();
    let calls = api.calls();
    assert!(calls[0].starts_with("POST controllerrevisions flash-"), "{calls:?}");
    let first_pod = position(&calls, "POST pods");
    for needed in
        ["POST configmaps flash-prefill-0", "POST resourceclaims flash-decode-0", "POST services flash"]
    {
        assert!(position(&calls, needed) < first_pod, "{needed} in {calls:?}");
    }
    assert!(position(&calls, "POST rolebindings") < position(&calls, "POST deployments"));
    let writes = calls.iter().filter(|call| !call.starts_with("GET")).count();
    assert_eq!(outcome, Outcome { writes: u32::try_from(writes).unwrap(), ..Outcome::default() });
    let record = api.live().revisions.remove(0);
    assert_eq!(record.content.number, 1);
}

/// A20: a second pass over the same makes no call, whatever else has touched the children meanwhile.
#[tokio::test]
async fn a_pass_over_what_is_there_makes_no_call() {
    let scene = Scene::new(2);
    let api = made(&scene).await;
    for object in api.store().objects.values_mut() {
        object["metadata"]["resourceVersion"] = json!("77");
        object["metadata"]["generation"] = json!(3);
        if object["kind"] == "Deployment" {
            object["status"] = json!({"observedGeneration": 3, "replicas": 1, "updatedReplicas": 1});
            object["spec"]["progressDeadlineSeconds"] = json!(600);
        }
    }
    let outcome = pass(&api, &scene, &api.live()).await.unwrap();
    assert_eq!(outcome, Outcome::default());
    assert_eq!(api.calls(), Vec::<String>::new());
}

#[tokio::test]
async fn a_change_is_forced_on_our_own_object_by_its_uid() {
    let mut scene = Scene::new(1);
    let api = made(&scene).await;
    scene.routers = 2;
    let outcome = pass(&api, &scene, &api.live()).await.unwrap();
    let calls = api.calls();
    // The Deployment was created: its fields are handed over to the apply first.
    assert_eq!(outcome.writes, 3);
    assert!(
        position(&calls, "PATCH deployments flash-router")
            < position(&calls, "FORCE deployments flash-router"),
        "{calls:?}"
    );
    position(&calls, "POST poddisruptionbudgets flash-router");

    scene.routers = 3;
    pass(&api, &scene, &api.live()).await.unwrap();
    // The Deployment's fields are the apply's by now; the budget was created by the pass before.
    let calls: Vec<_> = api.calls().into_iter().filter(|call| !call.starts_with("GET")).collect();
    assert_eq!(
        calls,
        [
            "FORCE deployments flash-router",
            "PATCH poddisruptionbudgets flash-router",
            "FORCE poddisruptionbudgets flash-router",
        ]
    );
}

#[tokio::test]
async fn a_stranger_of_the_same_name_is_left_alone_and_reported() {
    let api = FakeApi::default();
    let strangers = [("services", "flash", "Service"), ("configmaps", "", "ConfigMap")];
    let scene = Scene::new(1);
    let config = scene.render().replicas[0].config.metadata.name.clone().unwrap();
    for (plural, name, kind) in strangers {
        let name = if name.is_empty() { config.as_str() } else { name };
        let object = json!({"kind": kind, "metadata": {"name": name, "uid": "theirs"}});
        api.store().objects.insert((plural.to_owned(), name.to_owned()), object);
    }
    let before = api.store().objects.clone();
    let outcome = pass(&api, &scene, &Live::default()).await.unwrap();
    assert_eq!(outcome.taken_names, [format!("ConfigMap {config}"), "Service flash".to_owned()]);
    let calls = api.calls();
    assert!(!calls.iter().any(|call| call.starts_with("POST pods flash-prefill")), "{calls:?}");
    assert!(calls.iter().any(|call| call.starts_with("POST pods flash-decode")), "{calls:?}");
    for (key, object) in before {
        assert_eq!(api.store().objects[&key], object);
    }
}

#[tokio::test]
async fn children_of_an_earlier_object_of_this_name_are_waited_for() {
    let api = FakeApi::default();
    let owner = json!([{"kind": "InferenceCluster", "name": "flash", "uid": "earlier", "controller": true,
        "apiVersion": "fathom.dev/v1alpha1"}]);
    let service = json!({"kind": "Service", "apiVersion": "v1",
        "metadata": {"name": "flash", "uid": "old", "ownerReferences": owner}});
    api.store().objects.insert(("services".to_owned(), "flash".to_owned()), service);
    let outcome = pass(&api, &Scene::new(1), &Live::default()).await.unwrap();
    assert!(outcome.taken_names.is_empty());
    assert_eq!(outcome.waiting, ["Service flash of an earlier InferenceCluster of this name is ending"]);
}

/// A31: with a view that shows nothing yet, nothing is made twice and nothing is taken for a stranger's.
#[tokio::test]
async fn an_old_view_makes_nothing_twice() {
    let scene = Scene::new(1);
    let api = made(&scene).await;
    let before = api.store().objects.clone();
    let outcome = pass(&api, &scene, &Live::default()).await.unwrap();
    assert_eq!(outcome, Outcome::default());
    assert_eq!(api.store().objects, before);
}

/// A31: a name is not an identity.
#[tokio::test]
async fn a_delete_for_an_old_pod_does_not_hit_its_successor() {
    let api = made(&Scene::new(2)).await;
    let old_view = api.live();
    let name = old_view.pods.iter().map(|pod| pod.name().to_owned()).find(|n| n.contains("decode-1"));
    let key = ("pods".to_owned(), name.unwrap());
    api.store().objects.get_mut(&key).unwrap()["metadata"]["uid"] = json!("successor");
    let outcome = pass(&api, &Scene::new(1), &old_view).await.unwrap();
    assert!(api.store().objects.contains_key(&key));
    assert_eq!(outcome.waiting, [format!("Pod {} is another one by now", key.1)]);
}

#[tokio::test]
async fn a_pod_that_is_refused_is_reported_with_the_servers_sentence() {
    let api = FakeApi::default();
    let sentence = "violates PodSecurity \"restricted:latest\": hostPath volumes";
    api.store().faults.push(("POST pods flash-prefill", failure(403, "Forbidden", sentence)));
    api.store().faults.push(("POST pods flash-decode", failure(422, "Invalid", "spec.volumes: no")));
    let outcome = pass(&api, &Scene::new(1), &Live::default()).await.unwrap();
    let told: Vec<_> = outcome.refused.iter().map(|r| (r.message.as_str(), r.forbidden)).collect();
    assert_eq!(told, [("spec.volumes: no", false), (sentence, true)]);
    assert!(outcome.refused[1].child.starts_with("Pod flash-prefill-0-"));
}

#[tokio::test]
async fn a_namespace_that_is_ending_is_quiet() {
    let api = FakeApi::default();
    let mut ending = failure(403, "Forbidden", "unable to create new content in namespace serving");
    ending["details"] = json!({"causes": [{"reason": "NamespaceTerminating", "message": "", "field": ""}]});
    api.store().faults.push(("POST controllerrevisions", ending));
    let outcome = pass(&api, &Scene::new(1), &Live::default()).await.unwrap();
    let waiting = vec!["namespace serving is ending".to_owned()];
    assert_eq!(outcome, Outcome { waiting, ..Outcome::default() });
    assert_eq!(api.calls().len(), 1);
}

/// A47: after an error on the claim there is no pod; the next pass makes both.
#[tokio::test]
async fn a_claim_that_could_not_be_made_keeps_its_pod_away_and_no_other() {
    let api = FakeApi::default();
    let scene = Scene::new(1);
    api.store().faults.push(("POST resourceclaims flash-decode", failure(500, "InternalError", "etcd")));
    let error = pass(&api, &scene, &Live::default()).await.unwrap_err();
    assert!(error.to_string().starts_with("creating ResourceClaim flash-decode-0-"), "{error}");
    let calls = api.calls();
    assert!(!calls.iter().any(|call| call.starts_with("POST pods flash-decode")), "{calls:?}");
    position(&calls, "POST pods flash-prefill");

    pass(&api, &scene, &api.live()).await.unwrap();
    let calls = api.calls();
    assert!(
        position(&calls, "POST resourceclaims flash-decode") < position(&calls, "POST pods flash-decode")
    );
}

#[tokio::test]
async fn a_pod_without_its_image_volume_is_taken_back_and_reported() {
    let api = FakeApi::default();
    api.store().drops_images = true;
    let outcome = pass(&api, &Scene::new(1), &Live::default()).await.unwrap();
    assert_eq!(outcome.image_volume_dropped.len(), 2);
    assert!(api.live().pods.is_empty());
}

/// A46: what we delete is not waited for beyond one pass, and a claim that a finalizer keeps holds up nothing else.
#[tokio::test]
async fn a_claim_that_cannot_end_holds_up_only_its_own_replica() {
    let scene = Scene::new(2);
    let api = made(&scene).await;
    for ((plural, name), object) in &mut api.store().objects {
        if plural == "resourceclaims" && name.contains("decode-1") {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
    }
    api.store().objects.retain(|(plural, _), _| plural != "pods");
    let outcome = pass(&api, &scene, &api.live()).await.unwrap();
    let pods: Vec<String> = api.calls().into_iter().filter(|call| call.contains(" pods ")).collect();
    assert_eq!(pods.len(), 2, "{pods:?}");
    assert!(!pods.iter().any(|call| call.contains("decode-1")), "{pods:?}");
    assert!(outcome.waiting[0].starts_with("ResourceClaim flash-decode-1-"), "{outcome:?}");
}

/// The caller keeps [`RecentPods`]; the view lags, and the plan has changed meanwhile.
#[tokio::test]
async fn a_pod_made_a_moment_ago_keeps_its_successor_away_until_it_is_gone() {
    let api = FakeApi::default();
    let (given, recent) = (Given::default(), RecentPods::default());
    let context = ApplyContext { client: api.client(), given: &given, recent: &recent };
    apply(&context, &Scene::new(1).render(), &Live::default()).await.unwrap();
    let mut lagging = api.live();
    let pods = std::mem::take(&mut lagging.pods);
    let next = Scene::new(1).with_image("engine:2");
    api.calls();
    let outcome = apply(&context, &next.render(), &lagging).await.unwrap();
    assert!(!api.calls().iter().any(|call| call.starts_with("POST pods")));
    assert!(outcome.taken_names.is_empty() && outcome.refused.is_empty(), "{outcome:?}");

    for pod in pods {
        api.store().objects.remove(&("pods".to_owned(), pod.name().to_owned()));
    }
    apply(&context, &next.render(), &lagging).await.unwrap();
    let calls = api.calls();
    assert_eq!(calls.iter().filter(|call| call.starts_with("POST pods")).count(), 2, "{calls:?}");
}

/// From any point where the operator ended, the next passes arrive at the same children.
#[tokio::test]
async fn an_operator_that_ended_anywhere_is_continued() {
    let scene = Scene::new(2);
    let whole = made(&scene).await.store().objects.keys().cloned().collect::<Vec<_>>();
    for kept in 0..whole.len() {
        let api = made(&scene).await;
        let gone: Vec<_> = whole.iter().skip(kept).cloned().collect();
        api.store().objects.retain(|key, _| !gone.contains(key));
        pass(&api, &scene, &api.live()).await.unwrap();
        assert_eq!(api.store().objects.keys().cloned().collect::<Vec<_>>(), whole, "{kept} kept");
        api.calls();
        let settled = api.live();
        let outcome = pass(&api, &scene, &settled).await.unwrap();
        assert_eq!((outcome.writes, api.calls().len()), (0, 0), "{kept} kept");
    }
}
