//! What engine pods say about themselves at `/server_info`: binding, admission, revision.
//! In: pods as they start and become ready. Out: their answers, by pod name.
//! Never: periodic polling. A pod is asked once per start of its container and once more when its readiness changes; a
//! pod that does not answer is asked again, later each time, and not for ever.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::lease::Standing;
use crate::live::pod::LivePod;

const TIMEOUT: Duration = Duration::from_secs(2);
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// A pod that has not answered so often is left alone until it changes: about half an hour.
const MAX_TRIES: u32 = 64;

/// Pods that are asked at the same time.
const MAX_ASKED: usize = 8;

/// A longer answer is no answer.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Restarts of the container, and whether the pod is ready.
type State = (i32, bool);

/// A question: the pod's uid, its state, where to ask.
type Due = (Arc<str>, State, IpAddr);

type Http = Client<HttpConnector, Empty<Bytes>>;

/// Answers of engine pods; bounded by the pods that exist.
#[derive(Debug, Default)]
pub struct Engines {
    asked: Mutex<BTreeMap<Arc<str>, Asked>>,
    work: Notify,
}

#[derive(Debug)]
struct Asked {
    name: String,
    owner: Arc<str>,
    address: IpAddr,
    /// Changes with each start and with readiness.
    state: State,
    answer: Option<Arc<Value>>,
    /// When to ask (again); `None`: nothing to ask.
    due: Option<Instant>,
    tries: u32,
}

impl Engines {
    /// A pod as it now is.
    pub fn pod(&self, pod: &LivePod) {
        let (uid, Some(owner)) = (&pod.uid, &pod.owner) else { return };
        let address = pod.address().filter(|_| pod.content.made_from.is_some() && !pod.ending);
        let mut asked = self.lock();
        let Some(address) = address else {
            asked.remove(uid);
            return;
        };
        let state = (pod.restarts(), pod.is_ready());
        if asked.get(uid).is_some_and(|entry| entry.state == state && entry.address == address) {
            return;
        }
        // Another start is another process: what the last one said is void.
        let same_start = |entry: &Asked| entry.state.0 == state.0 && entry.address == address;
        let answer = asked.remove(uid).filter(same_start).and_then(|entry| entry.answer);
        let (name, owner) = (pod.name().to_owned(), owner.clone());
        let due = Some(Instant::now());
        asked.insert(uid.clone(), Asked { name, owner, address, state, answer, due, tries: 0 });
        drop(asked);
        self.work.notify_one();
    }

    pub fn pod_gone(&self, pod: &LivePod) {
        self.lock().remove(&pod.uid);
    }

    /// Answers of one object's pods, by pod name.
    pub fn answers(&self, owner: &str) -> BTreeMap<String, Value> {
        let asked = self.lock();
        let own = asked.values().filter(|entry| &*entry.owner == owner);
        own.filter_map(|entry| Some((entry.name.clone(), entry.answer.as_deref()?.clone()))).collect()
    }

    /// Asks whoever is due, while this operator leads; `heard` is told the owner of an answer that differs.
    pub async fn run(&self, mut standing: watch::Receiver<Standing>, heard: impl Fn(&str)) {
        let http: Http = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        let mut calls: JoinSet<(Arc<str>, State, Option<Value>)> = JoinSet::new();
        loop {
            let leading = *standing.borrow_and_update() == Standing::Leading;
            let mut wake = None;
            while leading && calls.len() < MAX_ASKED {
                match self.take(Instant::now()) {
                    Ok((uid, state, address)) => {
                        let http = http.clone();
                        calls.spawn(async move { (uid, state, ask(&http, address).await) });
                    }
                    Err(at) => {
                        wake = at;
                        break;
                    }
                }
            }
            let sleep = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(ended) = calls.join_next() => {
                    if let Ok((uid, state, answer)) = ended
                        && let Some(owner) = self.answered(&uid, state, answer, Instant::now())
                    {
                        heard(&owner);
                    }
                }
                () = self.work.notified() => {}
                () = sleep => {}
                changed = standing.changed() => if changed.is_err() { return },
            }
        }
    }

    /// A pod that is due, or when the next one is.
    fn take(&self, now: Instant) -> Result<Due, Option<Instant>> {
        let mut asked = self.lock();
        let first =
            asked.iter_mut().filter_map(|(uid, entry)| Some((entry.due?, uid, entry))).min_by_key(|e| e.0);
        match first {
            Some((due, uid, entry)) if due <= now => {
                entry.due = None;
                Ok((uid.clone(), entry.state, entry.address))
            }
            first => Err(first.map(|(due, ..)| due)),
        }
    }

    /// Keeps an answer. Returns the owner if it is news.
    fn answered(&self, uid: &str, state: State, answer: Option<Value>, now: Instant) -> Option<Arc<str>> {
        let mut asked = self.lock();
        let entry = asked.get_mut(uid).filter(|entry| entry.state == state)?;
        match answer {
            Some(answer) => {
                let news = entry.answer.as_deref() != Some(&answer);
                entry.answer = Some(Arc::new(answer));
                news.then(|| entry.owner.clone())
            }
            None => {
                entry.tries += 1;
                if entry.tries < MAX_TRIES {
                    entry.due = Some(now + RETRY.delay(entry.tries, uid));
                }
                None
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One question; `None` if there is no answer that can be read.
async fn ask(http: &Http, address: IpAddr) -> Option<Value> {
    let host = SocketAddr::new(address, engine_spec::config::CLUSTER_HTTP_PORT);
    let uri = format!("http://{host}/server_info").parse().ok()?;
    let call = async {
        let response = http.get(uri).await.ok()?;
        if !response.status().is_success() {
            return None;
        }
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await.ok()?;
        serde_json::from_slice(&body.to_bytes()).ok()
    };
    tokio::time::timeout(TIMEOUT, call).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(restarts: i32, ready: bool) -> LivePod {
        let mut pod = super::super::fixtures::engine_pod("flash-prefill-0", "uid-flash", "n1");
        super::super::fixtures::run(&mut pod, "10.0.0.7", restarts, ready);
        pod.into()
    }

    #[test]
    fn a_pod_is_asked_once_per_start_and_per_change_of_readiness() {
        let engines = Engines::default();
        let mut now = Instant::now() + Duration::from_secs(1);
        engines.pod(&pod(0, false));
        let (uid, state, address) = engines.take(now).unwrap();
        assert_eq!(address.to_string(), "10.0.0.7");
        let info = serde_json::json!({"binding": {}});
        let owner = engines.answered(&uid, state, Some(info.clone()), now);
        assert_eq!(owner.as_deref(), Some("uid-flash"));
        engines.pod(&pod(0, false));
        assert_eq!(engines.take(now), Err(None), "nothing changed");
        now += Duration::from_secs(1);
        engines.pod(&pod(0, true));
        let (uid, state, _) = engines.take(now).unwrap();
        assert_eq!(
            engines.answers("uid-flash").len(),
            1,
            "the last answer of the same process holds meanwhile"
        );
        assert_eq!(engines.answered(&uid, state, Some(info), now), None, "the same answer is no news");
        engines.pod(&pod(1, false));
        assert!(engines.answers("uid-flash").is_empty(), "another process has said nothing yet");
    }

    #[test]
    fn silence_is_asked_later_and_later_and_not_for_ever() {
        let engines = Engines::default();
        let mut now = Instant::now() + Duration::from_secs(1);
        engines.pod(&pod(0, false));
        let mut tries = 0;
        while tries < 1000 {
            match engines.take(now) {
                Ok((uid, state, _)) => {
                    tries += 1;
                    engines.answered(&uid, state, None, now);
                }
                Err(Some(at)) => now = at,
                Err(None) => break,
            }
        }
        assert_eq!(tries, MAX_TRIES);
    }
}
