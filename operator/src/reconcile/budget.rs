//! How often a pod that failed for good is replaced, and where: a kubelet that refuses a pod refuses its replacement too.
//! In: the failed pods of an object. Out: nodes to keep away from, replicas to hold back, for how long.
//! Never: a replacement more than a handful of times; an entry of an object that is gone; I/O.
//! Kept in memory: after a restart the count begins anew, which costs a few pods at most.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::live::pod::LivePod;
use crate::status::Rejection;

/// A node that has refused a replica so often is not tried again for the same spec.
pub const MAX_TIMES: u32 = 5;

const DELAY: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(300));

/// Failed pods that are remembered by uid, so that each counts once.
const MAX_COUNTED: usize = 64;

/// Replicas of one object that may have entries.
const MAX_ENTRIES: usize = 1024;

/// Failures by object.
#[derive(Debug, Default)]
pub struct Budget {
    objects: Mutex<BTreeMap<Arc<str>, Failures>>,
}

#[derive(Debug, Default)]
struct Failures {
    generation: Option<i64>,
    counted: BTreeSet<String>,
    /// By replica and node.
    entries: BTreeMap<(String, String), Entry>,
}

#[derive(Debug)]
struct Entry {
    reason: String,
    message: String,
    times: u32,
    last: Instant,
    by_kubelet: bool,
}

/// What the failures of an object mean now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Nodes to keep away from, each with why.
    pub excluded: BTreeMap<String, String>,
    /// Replicas that get no new pod yet, each with why.
    pub held_back: BTreeMap<String, String>,
    pub rejections: Vec<Rejection>,
    /// When the next delay ends.
    pub again: Option<Duration>,
    /// Pods that a kubelet refused and that had not been counted.
    pub news: u32,
}

impl Budget {
    /// Takes the pods of an object as they are now. A new generation of the spec begins anew.
    pub fn weigh(&self, uid: &str, generation: Option<i64>, live: &[Arc<LivePod>], now: Instant) -> Verdict {
        let mut objects = self.lock();
        let any_failed = live.iter().any(|pod| pod.has_ended());
        if !any_failed && !objects.contains_key(uid) {
            return Verdict::default();
        }
        let failures = objects.entry(uid.into()).or_default();
        if failures.generation != generation {
            *failures = Failures { generation, ..Failures::default() };
        }
        let mut verdict = Verdict::default();
        for pod in live {
            let Some(made_from) = &pod.content.made_from else { continue };
            let place = (made_from.entry.name.clone(), made_from.entry.node.clone());
            if pod.has_ended() {
                verdict.news += u32::from(failures.count(place, pod, now));
            } else if pod.has_started() && pod.is_ready() {
                failures.entries.retain(|(replica, _), _| *replica != place.0);
            }
        }
        if failures.entries.is_empty() && !any_failed {
            objects.remove(uid);
            return verdict;
        }
        failures.judge(now, &mut verdict);
        verdict
    }

    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Failures>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failures {
    /// Counts a failed pod once. Returns whether a kubelet refused it.
    fn count(&mut self, place: (String, String), pod: &LivePod, now: Instant) -> bool {
        let uid = pod.uid.to_string();
        if self.counted.contains(&uid) || self.entries.len() >= MAX_ENTRIES {
            return false;
        }
        if self.counted.len() >= MAX_COUNTED {
            self.counted.pop_first();
        }
        self.counted.insert(uid);
        let refused = pod.refused_by_kubelet();
        let (reason, message) = refused.unwrap_or_else(|| (pod.failure(), &pod.content.message));
        let (reason, message, by_kubelet) = (reason.to_owned(), message.to_owned(), refused.is_some());
        let times = self.entries.get(&place).map_or(0, |entry| entry.times) + 1;
        self.entries.insert(place, Entry { reason, message, times, last: now, by_kubelet });
        by_kubelet
    }

    /// Sentences without times: a status that changed every second would be written every second.
    fn judge(&self, now: Instant, verdict: &mut Verdict) {
        for ((replica, node), entry) in &self.entries {
            let given_up = entry.times >= MAX_TIMES;
            let until = entry.last + DELAY.delay(entry.times, replica);
            let waits = given_up || now < until;
            if entry.by_kubelet {
                let Entry { reason, message, times, .. } = entry;
                verdict.rejections.push(Rejection {
                    replica: replica.clone(),
                    node: node.clone(),
                    reason: reason.clone(),
                    message: message.clone(),
                    times: *times,
                    given_up,
                });
                if waits {
                    let why = format!("its kubelet refused {replica}: {reason}: {message}");
                    verdict.excluded.insert(node.clone(), why);
                }
            }
            if waits {
                let why = format!("its pod on {node} failed ({}); it gets another one later", entry.reason);
                // Another node may take what this one refused.
                if !entry.by_kubelet {
                    verdict.held_back.insert(replica.clone(), why);
                }
            }
            if waits && !given_up {
                let wait = until - now;
                verdict.again = Some(verdict.again.map_or(wait, |again| again.min(wait)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::fixtures::{engine_pod, refuse, run};

    fn refused(uid: &str, node: &str) -> Arc<LivePod> {
        let mut pod = engine_pod("flash-decode-0", "flash", node);
        pod.metadata.uid = Some(uid.to_owned());
        refuse(&mut pod, "TopologyAffinityError");
        Arc::new(pod.into())
    }

    #[test]
    fn a36_a_node_that_refuses_a_pod_is_kept_away_from_for_a_while_and_the_pod_counts_once() {
        let budget = Budget::default();
        let now = Instant::now();
        let pods = [refused("p1", "n1")];
        let verdict = budget.weigh("flash", Some(1), &pods, now);
        assert!(verdict.excluded["n1"].contains("TopologyAffinityError"));
        assert_eq!((verdict.rejections[0].times, verdict.news), (1, 1));
        let again = budget.weigh("flash", Some(1), &pods, now + Duration::from_secs(1));
        assert_eq!((again.rejections[0].times, again.news), (1, 0), "the same pod");
        let wait = again.again.unwrap();
        let later = budget.weigh("flash", Some(1), &pods, now + Duration::from_secs(1) + wait);
        assert!(later.excluded.is_empty() && later.again.is_none());
    }

    #[test]
    fn a37_replacements_come_later_and_later_and_end() {
        let budget = Budget::default();
        let mut now = Instant::now();
        let start = now;
        let mut made = 0;
        for second in 0..7200 {
            now = start + Duration::from_secs(second);
            let pods = [refused(&format!("p{made}"), "n1")];
            let verdict = budget.weigh("flash", Some(1), &pods, now);
            if verdict.excluded.is_empty() {
                made += 1;
            }
        }
        assert_eq!(made, MAX_TIMES - 1, "one pod at first, then so many more");
        let pods = [refused("p4", "n1")];
        let end = budget.weigh("flash", Some(1), &pods, now);
        assert!(end.rejections[0].given_up && end.again.is_none());
        let edited = budget.weigh("flash", Some(2), &pods, now);
        assert_eq!(edited.rejections[0].times, 1, "another spec may be tried");
    }

    #[test]
    fn a_replica_that_became_ready_there_clears_the_node() {
        let budget = Budget::default();
        let now = Instant::now();
        budget.weigh("flash", Some(1), &[refused("p1", "n1")], now);
        let mut pod = engine_pod("flash-decode-0", "flash", "n1");
        run(&mut pod, "10.0.0.1", 0, true);
        let verdict = budget.weigh("flash", Some(1), &[Arc::new(pod.into())], now);
        assert_eq!(verdict, Verdict::default());
        assert!(budget.lock().is_empty());
    }

    #[test]
    fn an_evicted_pod_holds_its_replica_back_and_blames_no_node() {
        let budget = Budget::default();
        let mut pod = engine_pod("flash-decode-0", "flash", "n1");
        refuse(&mut pod, "Evicted");
        let verdict = budget.weigh("flash", Some(1), &[Arc::new(pod.into())], Instant::now());
        assert!(verdict.excluded.is_empty() && verdict.rejections.is_empty());
        assert!(verdict.held_back.contains_key("flash-decode-0"));
    }
}
