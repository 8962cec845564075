//! Watches against an API server in this process that can refuse, break, compact and fall silent.

mod minutes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::{Value, json};

use super::*;
use crate::agents::{AgentSettings, Agents};
use crate::gather::Sources;
use crate::gather::kept::Stored;
use crate::gather::shelf::ObjectKey;
use crate::reconcile::queue::Queue;

/// What the server has, by plural.
#[derive(Default)]
struct Server {
    objects: BTreeMap<&'static str, Vec<Value>>,
    /// Events that a watch gets, one list a watch; after them silence, or the end if the last is null.
    events: BTreeMap<&'static str, Vec<Vec<Value>>>,
    forbidden: Vec<&'static str>,
    /// Kinds that are not defined.
    undefined: Vec<&'static str>,
    /// Connections of watches break after so long.
    broken_after: Option<Duration>,
    /// Whether `resource.k8s.io/v1` is served.
    claims: bool,
    requests: Vec<String>,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Server>>);

impl Fake {
    /// Lists or watches so far of kinds whose address ends so.
    fn requests(&self, plural: &str, watch: bool) -> usize {
        let server = self.0.lock().unwrap();
        let of_kind =
            |request: &&String| request.split('?').next().is_some_and(|path| path.ends_with(plural));
        server
            .requests
            .iter()
            .filter(of_kind)
            .filter(|request| request.contains("watch=true") == watch)
            .count()
    }
}

async fn answer(State(fake): State<Fake>, request: Request<Body>) -> Response {
    let mut server = fake.0.lock().unwrap();
    let uri = request.uri().to_string();
    server.requests.push(uri.clone());
    let plural = uri.split('?').next().unwrap().rsplit('/').next().unwrap().to_owned();
    let plural = if uri.contains("/fathom-system/") { "agents".to_owned() } else { plural };
    if uri == "/apis/resource.k8s.io/v1" {
        return claims_served(server.claims);
    }
    if server.forbidden.contains(&plural.as_str()) {
        let status = json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"});
        return (StatusCode::FORBIDDEN, axum::Json(status)).into_response();
    }
    if server.undefined.contains(&plural.as_str()) {
        let words = "the server could not find the requested resource";
        let status = json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": words});
        return (StatusCode::NOT_FOUND, axum::Json(status)).into_response();
    }
    if !uri.contains("watch=true") {
        let items = server.objects.get(plural.as_str()).cloned().unwrap_or_default();
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "100"}, "items": items});
        return axum::Json(list).into_response();
    }
    let events = server.events.get_mut(plural.as_str()).filter(|events| !events.is_empty());
    let mut events = events.map(|events| events.remove(0)).unwrap_or_default();
    let ends = events.pop_if(|last| last.is_null()).is_some();
    let lines = events.into_iter().map(|event| Ok::<_, std::io::Error>(format!("{event}\n")));
    let lines = stream::iter(lines.collect::<Vec<_>>());
    let body = match (ends, server.broken_after) {
        (true, _) => Body::from_stream(lines),
        (false, None) => Body::from_stream(lines.chain(stream::pending())),
        (false, Some(time)) => Body::from_stream(lines.chain(stream::once(breaks(time)))),
    };
    body.into_response()
}

async fn breaks(time: Duration) -> std::io::Result<String> {
    tokio::time::sleep(time).await;
    Err(std::io::Error::other("connection reset"))
}

fn claims_served(served: bool) -> Response {
    if !served {
        return (StatusCode::NOT_FOUND, "404 page not found\n").into_response();
    }
    let kind =
        |name: &str| json!({"name": name, "singularName": "", "namespaced": true, "kind": "K", "verbs": []});
    let resources = ["resourceclaims", "resourceslices"].map(kind);
    let list =
        json!({"kind": "APIResourceList", "groupVersion": "resource.k8s.io/v1", "resources": resources});
    axum::Json(list).into_response()
}

/// The watches of one operator.
struct World {
    fake: Fake,
    watches: Watches,
    queue: Arc<Queue>,
    sources: Arc<Sources>,
    tasks: tokio::task::JoinSet<()>,
}

impl World {
    fn start(fake: Fake) -> Self {
        let client = Client::new(Router::new().fallback(answer).with_state(fake.clone()), "default");
        let (agents, _streams) = Agents::new(AgentSettings::new("/none".into()));
        let sources = Arc::new(Sources {
            stores: Arc::default(),
            ledger: Arc::default(),
            engines: Arc::default(),
            agents,
            claims_served: false.into(),
        });
        let queue = Arc::new(Queue::default());
        let waker = Waker {
            sources: Arc::clone(&sources),
            queue: Arc::clone(&queue),
            gone: Box::new(|_| {}),
            agents_changed: Default::default(),
        };
        let watches = Watches {
            client,
            stores: Arc::clone(&sources.stores),
            waker: Arc::new(waker),
            metrics: Metrics::new(),
            lives: Arc::default(),
            namespaces: Vec::new(),
        };
        let mut tasks = tokio::task::JoinSet::new();
        for (_, task) in watches.always("fathom-system", "app=agent") {
            tasks.spawn(task);
        }
        Self { fake, watches, queue, sources, tasks }
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while !holds(self) {
            assert!(tokio::time::Instant::now() < deadline, "{what}: {:?}", self.watches.lives.unlisted());
            tokio::task::yield_now().await;
        }
    }
}

fn cluster(name: &str, mode: &str, version: u64) -> Value {
    json!({
        "apiVersion": "fathom.dev/v1alpha1", "kind": "InferenceCluster",
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "generation": 1,
            "resourceVersion": version.to_string()},
        "spec": {
            "model": {"name": "needle", "source": {"hostPath": "/m"}},
            "decode": {"gpus": 0}, "placement": {"mode": mode},
        },
    })
}

#[tokio::test]
async fn a02_an_object_that_does_not_decode_is_kept_as_such_and_the_others_go_on() {
    let fake = Fake::default();
    let clusters = vec![cluster("bad", "Quantum", 1), cluster("good", "Soft", 2)];
    fake.0.lock().unwrap().objects.insert("inferenceclusters", clusters);
    let world = World::start(fake);
    world.until("all lists", |world| world.watches.lives.unlisted().is_empty()).await;
    let clusters = &world.watches.stores.clusters;
    assert!(world.watches.stores.cluster(&ObjectKey::new("ns", "good")).is_some());
    match &*clusters.get(&ObjectKey::new("ns", "bad")).unwrap() {
        Stored::Undecodable { error, metadata } => {
            assert!(error.contains("Quantum"), "{error}");
            assert_eq!(metadata.uid.as_deref(), Some("uid-bad"));
        }
        Stored::Decoded(_) => panic!("decoded"),
    }
    assert_eq!(world.queue.depth().0, 2, "both are reconciled: one to its status alone");
    assert!(!world.tasks.is_empty());
}

#[tokio::test]
async fn a65_watches_end_before_load_balancers_cut_them() {
    let world = World::start(Fake::default());
    world.until("watches", |world| world.fake.requests("", true) >= 14).await;
    let server = world.fake.0.lock().unwrap();
    for request in server.requests.iter().filter(|request| request.contains("watch=true")) {
        let seconds = request.split('&').find_map(|pair| pair.strip_prefix("timeoutSeconds=")).unwrap();
        assert!(seconds.parse::<u32>().unwrap() < 240, "{request}");
    }
    drop(server);
    assert!(world.watches.lives.hanging().is_empty());
    assert!(world.watches.lives.ages().iter().all(|(_, age)| *age < Duration::from_secs(20)));
}

/// What others have many of, or large ones, is asked for by our label alone.
#[tokio::test]
async fn a69_secrets_are_not_listed_and_configmaps_only_where_they_are_ours() {
    let world = World::start(Fake::default());
    world.until("all lists", |world| world.watches.lives.unlisted().is_empty()).await;
    let server = world.fake.0.lock().unwrap();
    let kind = |request: &String| request.split('?').next().unwrap().rsplit('/').next().unwrap().to_owned();
    let whole = server.requests.iter().filter(|request| !request.contains("labelSelector=")).map(kind);
    let few = ["inferenceclusters", "namespaces", "nodes"].map(str::to_owned);
    assert_eq!(whole.collect::<BTreeSet<_>>(), BTreeSet::from(few));
    let all: BTreeSet<String> = server.requests.iter().map(kind).collect();
    assert!(all.contains("configmaps") && !all.contains("secrets"), "{all:?}");
}

#[tokio::test]
async fn a66_a_watch_that_is_refused_slows_no_other_and_says_so() {
    let fake = Fake::default();
    fake.0.lock().unwrap().forbidden.push("poddisruptionbudgets");
    // A hundred broken connections of pods: each is taken up again at once, since each brought something.
    let broken = |i: u64| {
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {
            "name": format!("p{i}"), "namespace": "ns", "uid": format!("u{i}"), "resourceVersion": format!("{}", 101 + i)}});
        vec![json!({"type": "ADDED", "object": pod}), Value::Null]
    };
    fake.0.lock().unwrap().events.insert("pods", (0..100).map(broken).collect());
    let world = World::start(fake);
    world.until("pods", |world| world.watches.stores.pods.len() == 100).await;
    let unlisted = world.watches.lives.unlisted();
    assert_eq!(unlisted.len(), 1, "{unlisted:?}");
    assert!(
        unlisted[0].starts_with("poddisruptionbudgets: ") && unlisted[0].contains("403")
            || unlisted[0].contains("no")
    );
}

#[tokio::test]
async fn a68_compacted_history_is_listed_anew_without_an_error_or_a_wake_up() {
    let fake = Fake::default();
    let clusters = vec![cluster("a", "Soft", 1)];
    fake.0.lock().unwrap().objects.insert("inferenceclusters", clusters);
    let gone = json!({"type": "ERROR", "object": {
        "kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}});
    fake.0.lock().unwrap().events.insert("inferenceclusters", vec![vec![gone]]);
    let world = World::start(fake);
    let key = world.queue.next().await;
    world.queue.done(&key, crate::reconcile::queue::Next::Settled);
    world
        .until("a second list and watch", |world| {
            world.fake.requests("inferenceclusters", false) >= 2
                && world.fake.requests("inferenceclusters", true) >= 2
        })
        .await;
    assert_eq!(world.queue.depth().0, 0, "what is replayed wakes nobody");
    let text = world.watches.metrics.render(&crate::metrics::Scrape::default());
    assert!(!text.contains("fathom_watch_restarts_total{watch=\"inferenceclusters\"}"), "{text}");
}

#[tokio::test]
async fn a34_kinds_that_are_not_served_are_followed_once_they_are() {
    let mut world = World::start(Fake::default());
    let known = tokio::sync::watch::Sender::new(false);
    let (watches, sources) = (world.watches.clone(), Arc::clone(&world.sources));
    let every = Duration::from_millis(10);
    world.tasks.spawn(crate::gather::discovery::run(watches, sources, known.clone(), every));
    world.until("an answer", |_| *known.borrow()).await;
    assert!(!world.sources.claims_served.load(std::sync::atomic::Ordering::Relaxed));
    assert_eq!(world.fake.requests("resourceclaims", false), 0, "nothing is asked of what is not there");
    world.fake.0.lock().unwrap().claims = true;
    world
        .until("both lists", |world| {
            world.fake.requests("resourceclaims", false) == 1
                && world.fake.requests("resourceslices", false) == 1
        })
        .await;
    world.until("their events", |world| world.watches.lives.unlisted().is_empty()).await;
    assert!(world.sources.claims_served.load(std::sync::atomic::Ordering::Relaxed));
}
