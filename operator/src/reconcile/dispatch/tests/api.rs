//! An API server in this process: lists, watches, creates, applies, patches, deletes, and writes down every call.
//! The kubelet and the Deployment controller are part of it: a pod is ready as soon as it is there.
//! What it does not know of the real one: defaults, ownership of single fields, compaction, bookmarks.

mod server;

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{Method, Request, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::{Json, Router};
use futures_util::stream;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use server::{Key, Server, failure};

pub(super) const CLUSTERS: &str = "inferenceclusters";

/// Where all objects of the tests are.
const NAMESPACE: &str = "ns";

#[derive(Clone)]
pub(super) struct Api {
    server: Arc<Mutex<Server>>,
    news: watch::Sender<usize>,
}

impl Api {
    /// A cluster of one node.
    pub(super) fn new(node: &str) -> Self {
        let api = Self { server: Arc::default(), news: watch::Sender::new(0) };
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "status": ready});
        let key = ("nodes".to_owned(), String::new(), node.to_owned());
        api.lock().create(&key, object);
        api
    }

    pub(super) fn client(&self) -> Client {
        let router: Router = Router::new().fallback(answer).with_state(self.clone());
        Client::new(router, "default")
    }

    /// Calls since the last question, such as `patch inferenceclusters/status a`.
    pub(super) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().calls)
    }

    /// Writes since the last question.
    pub(super) fn writes(&self) -> Vec<String> {
        let reads = ["list ", "watch ", "get "];
        self.calls().into_iter().filter(|call| !reads.iter().any(|read| call.starts_with(read))).collect()
    }

    /// From now on calls that start so fail.
    pub(super) fn refuse(&self, start: &'static str, code: u16, reason: &str) {
        self.lock().refused.push((start, failure(code, reason, "no")));
    }

    /// Somebody scales an object each time its status is about to be patched, as often as there are numbers.
    pub(super) fn scale_before_status(&self, replicas: &[i32]) {
        self.lock().scaling = replicas.iter().rev().copied().collect();
    }

    /// A user's object, new or changed.
    pub(super) fn put(&self, object: Value) {
        let mut server = self.lock();
        let key = own(CLUSTERS, object["metadata"]["name"].as_str().unwrap());
        match server.objects.get(&key).cloned() {
            None => drop(server.create(&key, object)),
            Some(mut changed) => {
                changed["spec"] = object["spec"].clone();
                server.change(&key, changed);
            }
        }
        drop(server);
        self.tell();
    }

    /// What `kubectl delete` does to an object with a finalizer.
    pub(super) fn end(&self, name: &str) {
        let mut server = self.lock();
        let mut object = server.objects[&own(CLUSTERS, name)].clone();
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        server.store(&own(CLUSTERS, name), "MODIFIED", object);
        drop(server);
        self.tell();
    }

    /// Removes a child by hand.
    pub(super) fn remove(&self, plural: &str, name: &str) {
        let mut server = self.lock();
        let object = server.objects[&own(plural, name)].clone();
        server.store(&own(plural, name), "DELETED", object);
        drop(server);
        self.tell();
    }

    pub(super) fn get(&self, plural: &str, name: &str) -> Option<Value> {
        self.lock().objects.get(&own(plural, name)).cloned()
    }

    pub(super) fn count(&self, plural: &str) -> usize {
        self.lock().objects.keys().filter(|key| key.0 == plural).count()
    }

    /// A condition of an object: status and reason.
    pub(super) fn condition(&self, name: &str, kind: &str) -> (String, String) {
        let object = self.get(CLUSTERS, name).unwrap();
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default();
        let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"))
    }

    fn lock(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap()
    }

    fn tell(&self) {
        let now = self.lock().history.len();
        self.news.send_if_modified(|seen| std::mem::replace(seen, now) != now);
    }

    /// A watch: what is past `call.from`, then whatever comes, until its time is over.
    fn follow(&self, call: Call) -> Response {
        let end = Instant::now() + call.lasts;
        let (api, call, news) = (self.clone(), Arc::new(call), self.news.subscribe());
        let lines = stream::unfold((call.from, news), move |(mut seen, mut news)| {
            let (api, call) = (api.clone(), Arc::clone(&call));
            async move {
                loop {
                    let (events, now) = api.lock().since(seen, &call);
                    seen = now;
                    if !events.is_empty() {
                        return Some((Ok::<_, Infallible>(events), (seen, news)));
                    }
                    tokio::select! {
                        changed = news.changed() => changed.ok()?,
                        () = tokio::time::sleep_until(end) => return None,
                    }
                }
            }
        });
        Body::from_stream(lines).into_response()
    }
}

fn own(plural: &str, name: &str) -> Key {
    (plural.to_owned(), NAMESPACE.to_owned(), name.to_owned())
}

/// A request, understood.
struct Call {
    verb: &'static str,
    key: Key,
    is_status: bool,
    /// Only children of ours.
    is_ours: bool,
    from: usize,
    lasts: Duration,
}

impl Call {
    fn of(method: &Method, uri: &Uri, body: &Value) -> Self {
        let mut rest: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
        let prefix = if rest[0] == "api" { 2 } else { 3 };
        rest.drain(..prefix);
        let is_namespaced = rest.len() > 2 && rest[0] == "namespaces";
        let namespace = if is_namespaced { rest.drain(..2).nth(1).unwrap() } else { "" };
        let query = uri.query().unwrap_or_default();
        let verb = match *method {
            Method::POST => "create",
            Method::DELETE => "delete",
            Method::PATCH if query.contains("force=true") => "apply",
            Method::PATCH => "patch",
            _ if query.contains("watch=true") => "watch",
            _ if rest.len() > 1 => "get",
            _ => "list",
        };
        let number = |name: &str| {
            let text = query.split('&').find_map(|pair| pair.strip_prefix(name));
            text.and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        let name = rest.get(1).copied().or(body["metadata"]["name"].as_str()).unwrap_or_default();
        Self {
            verb,
            key: (rest[0].to_owned(), namespace.to_owned(), name.to_owned()),
            is_status: rest.get(2) == Some(&"status"),
            is_ours: query.contains("labelSelector="),
            from: number("resourceVersion="),
            lasts: Duration::from_secs(number("timeoutSeconds=") as u64),
        }
    }

    fn describe(&self) -> String {
        let part = if self.is_status { "/status" } else { "" };
        format!("{} {}{part} {}", self.verb, self.key.0, self.key.2).trim_end().to_owned()
    }

    /// Whether a list or watch shows an object.
    fn shows(&self, key: &Key, object: &Value) -> bool {
        let managed = &object["metadata"]["labels"]["app.kubernetes.io/managed-by"];
        key.0 == self.key.0
            && (self.key.1.is_empty() || key.1 == self.key.1)
            && (!self.is_ours || managed == "fathom")
    }
}

async fn answer(State(api): State<Api>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let bytes = to_bytes(body, 1 << 20).await.unwrap();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let call = Call::of(&parts.method, &parts.uri, &body);
    let answer = api.lock().answer(&call, body);
    api.tell();
    match answer {
        None => api.follow(call),
        Some(answer) => {
            let code = if answer["kind"] == "Status" { answer["code"].as_u64().unwrap() } else { 200 };
            (StatusCode::from_u16(code.try_into().unwrap()).unwrap(), Json(answer)).into_response()
        }
    }
}
