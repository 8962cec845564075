//! What the API server stores, and what becomes of a request.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Call;

/// Plural, namespace, name.
pub(super) type Key = (String, String, String);

#[derive(Default)]
pub(super) struct Server {
    pub(super) objects: BTreeMap<Key, Value>,
    /// Every change since the start, as a watch shows it; its length is the resource version.
    pub(super) history: Vec<(Key, Value)>,
    pub(super) calls: Vec<String>,
    /// Answers to calls that start with a text such as `create pods`.
    pub(super) refused: Vec<(&'static str, Value)>,
    /// Replicas of decode that somebody else writes just before a status is patched, the last first.
    pub(super) scaling: Vec<i32>,
    uids: u32,
}

pub(super) fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": message})
}

fn not_found() -> Value {
    failure(404, "NotFound", "not found")
}

impl Server {
    /// The answer to anything but a watch.
    pub(super) fn answer(&mut self, call: &Call, body: Value) -> Option<Value> {
        let said = call.describe();
        let refused = self.refused.iter().find(|(start, _)| said.starts_with(start));
        let refused = refused.map(|(_, failure)| failure.clone());
        self.calls.push(said);
        if refused.is_some() {
            return refused;
        }
        Some(match call.verb {
            "watch" => return None,
            "list" => self.list(call),
            "get" => self.objects.get(&call.key).cloned().unwrap_or_else(not_found),
            "create" => self.create(&call.key, body),
            "apply" => self.apply(&call.key, body),
            "patch" => {
                self.scale(call);
                self.patch(&call.key, &body)
            }
            _ => self.delete(&call.key, &body),
        })
    }

    fn list(&self, call: &Call) -> Value {
        let shown = self.objects.iter().filter(|(key, object)| call.shows(key, object));
        let items: Vec<&Value> = shown.map(|(_, object)| object).collect();
        let version = self.history.len().to_string();
        json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items})
    }

    /// Lines for a watch that has seen so many changes, and how many there are.
    pub(super) fn since(&self, seen: usize, call: &Call) -> (String, usize) {
        let news = self.history.iter().skip(seen).filter(|(key, event)| call.shows(key, &event["object"]));
        (news.map(|(_, event)| format!("{event}\n")).collect(), self.history.len())
    }

    pub(super) fn create(&mut self, key: &Key, mut object: Value) -> Value {
        if self.objects.contains_key(key) {
            return failure(409, "AlreadyExists", "there already");
        }
        self.uids += 1;
        object["metadata"]["uid"] = json!(format!("uid-{}", self.uids));
        object["metadata"]["generation"] = json!(1);
        if !key.1.is_empty() {
            object["metadata"]["namespace"] = json!(key.1);
        }
        self.store(key, "ADDED", object);
        let made = self.objects[key].clone();
        self.run(key);
        made
    }

    fn apply(&mut self, key: &Key, object: Value) -> Value {
        let Some(there) = self.objects.get(key).cloned() else { return not_found() };
        if object["metadata"]["uid"] != there["metadata"]["uid"] {
            return failure(409, "Conflict", "uid mismatch");
        }
        let mut changed = object;
        changed["status"] = there["status"].clone();
        changed["metadata"]["generation"] = there["metadata"]["generation"].clone();
        self.change(key, changed);
        self.run(key);
        self.objects[key].clone()
    }

    /// A merge; one that changes nothing is no event.
    fn patch(&mut self, key: &Key, patch: &Value) -> Value {
        let Some(there) = self.objects.get(key).cloned() else { return not_found() };
        let version = &patch["metadata"]["resourceVersion"];
        if !version.is_null() && *version != there["metadata"]["resourceVersion"] {
            return failure(409, "Conflict", "the object has been modified");
        }
        let mut object = there.clone();
        json_patch::merge(&mut object, patch);
        if object != there {
            self.store(key, "MODIFIED", object);
        }
        self.objects[key].clone()
    }

    fn delete(&mut self, key: &Key, options: &Value) -> Value {
        let Some(object) = self.objects.get(key).cloned() else { return not_found() };
        if object["metadata"]["uid"] != options["preconditions"]["uid"] {
            return failure(409, "Conflict", "uid mismatch");
        }
        self.store(key, "DELETED", object.clone());
        object
    }

    /// Another spec: another generation.
    pub(super) fn change(&mut self, key: &Key, mut object: Value) {
        let generation = object["metadata"]["generation"].as_i64().unwrap();
        object["metadata"]["generation"] = json!(generation + 1);
        self.store(key, "MODIFIED", object);
    }

    fn scale(&mut self, call: &Call) {
        if call.is_status
            && let Some(replicas) = self.scaling.pop()
        {
            let mut object = self.objects[&call.key].clone();
            object["spec"]["decode"]["replicas"] = json!(replicas);
            self.change(&call.key, object);
        }
    }

    /// What kubelet and Deployment controller do, at once.
    fn run(&mut self, key: &Key) {
        let mut object = self.objects[key].clone();
        object["status"] = match key.0.as_str() {
            "pods" => json!({
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{
                    "name": "engine", "image": "i", "imageID": "i", "restartCount": 0, "ready": true,
                    "state": {"running": {}},
                }],
            }),
            "deployments" => {
                let replicas = &object["spec"]["replicas"];
                json!({
                    "observedGeneration": object["metadata"]["generation"], "replicas": replicas,
                    "updatedReplicas": replicas, "readyReplicas": replicas,
                })
            }
            _ => return,
        };
        self.store(key, "MODIFIED", object);
    }

    pub(super) fn store(&mut self, key: &Key, event: &str, mut object: Value) {
        object["metadata"]["resourceVersion"] = json!((self.history.len() + 1).to_string());
        self.history.push((key.clone(), json!({"type": event, "object": object})));
        if event == "DELETED" {
            self.objects.remove(key);
        } else {
            self.objects.insert(key.clone(), object);
        }
    }
}
