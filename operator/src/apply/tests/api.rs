//! An API server in this process: stores objects, checks uids, writes down every call, and who created or applied what.
//! What it does not know of the real one: defaults, ownership of single fields, admission (faults stand in for it).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Client;
use kube::core::PartialObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::FIELD_MANAGER;
use super::scene::UID;
use crate::live::Live;
use crate::live::child::LiveChild;

/// Answers to calls that start with a text such as `POST pods`, each given once.
type Faults = Vec<(&'static str, Value)>;

#[derive(Debug, Default)]
pub(super) struct Store {
    /// By plural and name.
    pub(super) objects: BTreeMap<(String, String), Value>,
    pub(super) calls: Vec<String>,
    pub(super) faults: Faults,
    /// The server does not know image volumes.
    pub(super) drops_images: bool,
    uids: u32,
}

#[derive(Debug, Clone, Default)]
pub(super) struct FakeApi {
    store: Arc<Mutex<Store>>,
}

impl FakeApi {
    pub(super) fn client(&self) -> Client {
        let router: Router = Router::new().fallback(answer).with_state(self.clone());
        Client::new(router, "default")
    }

    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    /// Calls since the last question.
    pub(super) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.store().calls)
    }

    /// Children of our object, as watches would show them.
    pub(super) fn live(&self) -> Live {
        let store = self.store();
        Live {
            pods: seen::<Pod, _>(&store, "pods"),
            claims: seen::<ResourceClaim, _>(&store, "resourceclaims"),
            config_maps: seen::<PartialObjectMeta<ConfigMap>, _>(&store, "configmaps"),
            services: seen::<Service, _>(&store, "services"),
            deployments: seen::<Deployment, _>(&store, "deployments"),
            disruption_budgets: seen::<PodDisruptionBudget, _>(&store, "poddisruptionbudgets"),
            network_policies: seen::<NetworkPolicy, _>(&store, "networkpolicies"),
            service_accounts: seen::<ServiceAccount, _>(&store, "serviceaccounts"),
            roles: seen::<Role, _>(&store, "roles"),
            role_bindings: seen::<RoleBinding, _>(&store, "rolebindings"),
            revisions: seen::<ControllerRevision, _>(&store, "controllerrevisions"),
        }
    }
}

fn seen<K: DeserializeOwned, C>(store: &Store, plural: &str) -> Vec<Arc<LiveChild<C>>>
where
    LiveChild<C>: From<K>,
{
    let typed = |object: &Value| serde_json::from_value::<K>(object.clone()).unwrap();
    let ours = |object: &&Value| object["metadata"]["ownerReferences"][0]["uid"] == UID;
    let of_kind = store.objects.iter().filter(|((kind, _), _)| kind == plural).map(|(_, object)| object);
    of_kind.filter(ours).map(|object| Arc::new(LiveChild::from(typed(object)))).collect()
}

pub(super) fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": message})
}

async fn answer(State(api): State<FakeApi>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let bytes = to_bytes(body, 1 << 20).await.unwrap();
    let body: Value = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() };
    let path: Vec<&str> = parts.uri.path().split('/').collect();
    let namespace = path.iter().position(|part| *part == "namespaces").unwrap();
    let plural = path[namespace + 2].to_owned();
    let name = path.get(namespace + 3).map_or_else(
        || body["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        |name| (*name).to_owned(),
    );
    let force = parts.uri.query().unwrap_or_default().contains("force=true");
    let mut store = api.store();
    let verb = if parts.method == Method::PATCH && force { "FORCE" } else { parts.method.as_str() };
    let call = format!("{verb} {plural} {name}");
    store.calls.push(call.clone());
    if let Some(at) = store.faults.iter().position(|(start, _)| call.starts_with(start)) {
        return respond(store.faults.remove(at).1);
    }
    let key = (plural, name);
    respond(match parts.method {
        Method::GET => store.objects.get(&key).cloned().unwrap_or_else(not_found),
        Method::POST => store.create(key, body),
        Method::PATCH if force => store.apply(key, body),
        Method::PATCH => store.merge(&key, &body),
        Method::DELETE => store.delete(&key, &body),
        _ => failure(405, "MethodNotAllowed", "no"),
    })
}

fn respond(answer: Value) -> Response {
    let code = if answer["kind"] == "Status" { answer["code"].as_u64() } else { None };
    let code = code.and_then(|code| u16::try_from(code).ok()).unwrap_or(200);
    (StatusCode::from_u16(code).unwrap(), Json(answer)).into_response()
}

fn not_found() -> Value {
    failure(404, "NotFound", "not found")
}

impl Store {
    fn create(&mut self, key: (String, String), mut object: Value) -> Value {
        if self.objects.contains_key(&key) {
            return failure(409, "AlreadyExists", "there already");
        }
        if self.drops_images {
            for volume in object["spec"]["volumes"].as_array_mut().into_iter().flatten() {
                volume.as_object_mut().unwrap().remove("image");
            }
        }
        self.uids += 1;
        object["metadata"]["uid"] = json!(format!("uid-{}", self.uids));
        object["metadata"]["managedFields"] = json!([{"manager": FIELD_MANAGER, "operation": "Update"}]);
        self.objects.insert(key, object.clone());
        object
    }

    fn apply(&mut self, key: (String, String), mut object: Value) -> Value {
        let there = self.objects.get(&key).map(|there| there["metadata"]["uid"].clone());
        let asked = &object["metadata"]["uid"];
        match there {
            Some(uid) if asked.is_null() || *asked == uid => {
                object["metadata"]["uid"] = uid;
                object["metadata"]["managedFields"] = self.objects[&key]["metadata"]["managedFields"].clone();
                self.objects.insert(key, object.clone());
                object
            }
            _ => failure(409, "Conflict", "uid mismatch"),
        }
    }

    /// Only what we patch so: the ownership of fields.
    fn merge(&mut self, key: &(String, String), patch: &Value) -> Value {
        let Some(object) = self.objects.get_mut(key) else { return not_found() };
        let (there, asked) = (&mut object["metadata"], &patch["metadata"]);
        if there["uid"] != asked["uid"] {
            return failure(409, "Conflict", "uid mismatch");
        }
        there["managedFields"] = asked["managedFields"].clone();
        object.clone()
    }

    fn delete(&mut self, key: &(String, String), options: &Value) -> Value {
        let Some(object) = self.objects.get(key) else { return not_found() };
        if object["metadata"]["uid"] != options["preconditions"]["uid"] {
            return failure(409, "Conflict", "uid mismatch");
        }
        self.objects.remove(key).unwrap()
    }
}
