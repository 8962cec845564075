//! Events: what changed about an object, for whoever reads `kubectl describe`.
//! In: conditions before and after. Out: one event a transition. Never: an event without a transition: they count as
//! writes; an error for the caller: a lost event is no reason to stop.

use std::fmt;

use fathom_crds::InferenceCluster;
use fathom_crds::conditions::{ConditionType, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource as _};
use prometheus_client::metrics::counter::Counter;

/// The API server takes no longer note.
const MAX_NOTE_BYTES: usize = 1024;

/// Writes events.
pub struct Events {
    recorder: Recorder,
    published: Counter,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    pub fn new(client: Client, pod_name: &str, published: Counter) -> Self {
        let reporter =
            Reporter { controller: "fathom.dev/operator".into(), instance: Some(pod_name.to_owned()) };
        Self { recorder: Recorder::new(client, reporter), published }
    }

    /// Tells the transitions of an object's conditions.
    pub async fn tell(&self, cluster: &InferenceCluster, before: &[Condition], after: &[Condition]) {
        let regarding = cluster.object_ref(&());
        for Transition { warning, reason, note } in transitions(before, after) {
            let event = Event {
                type_: if warning { EventType::Warning } else { EventType::Normal },
                reason,
                note: Some(note),
                action: "Reconcile".to_owned(),
                secondary: None,
            };
            match self.recorder.publish(&event, &regarding).await {
                Ok(()) => {
                    self.published.inc();
                }
                Err(error) => tracing::warn!(%error, "cannot write an event"),
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Transition {
    warning: bool,
    reason: String,
    note: String,
}

/// Conditions that are worth an event, with the status that is the good one.
const TOLD: [(ConditionType, &str); 5] = [
    (ConditionType::Accepted, "True"),
    (ConditionType::Planned, "True"),
    (ConditionType::PlacementSatisfied, "True"),
    (ConditionType::Degraded, "False"),
    (ConditionType::Ready, "True"),
];

/// A condition that turned bad, or bad for another reason, is a warning; one that turned good again, or Ready that turned
/// good for the first time, is news.
fn transitions(before: &[Condition], after: &[Condition]) -> Vec<Transition> {
    let mut found = Vec::new();
    for (kind, good) in TOLD {
        let name = kind.to_string();
        let of = |list: &[Condition]| list.iter().find(|condition| condition.type_ == name).cloned();
        let (old, Some(new)) = (of(before), of(after)) else { continue };
        let was_bad = old.as_ref().is_some_and(|old| old.status != good);
        let is_bad = new.status != good;
        let reason_changed = old.as_ref().is_none_or(|old| old.reason != new.reason);
        let status_changed = old.as_ref().is_none_or(|old| old.status != new.status);
        let known_cause = new.reason != Reason::AsExpected.to_string();
        // Ready waits for pods after each change: that is no warning, unless it says what is wrong.
        let warning = is_bad && new.status != "Unknown" && known_cause && (status_changed || reason_changed);
        let warning = warning && kind != ConditionType::Ready;
        let news = !is_bad && status_changed && (was_bad || kind == ConditionType::Ready);
        if warning || news {
            let reason = if news { name.clone() } else { new.reason.clone() };
            found.push(Transition { warning, reason, note: shortened(&format!("{name}: {}", new.message)) });
        }
    }
    found
}

fn shortened(text: &str) -> String {
    let mut end = text.len().min(MAX_NOTE_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(kind: &str, status: &str, reason: &str) -> Condition {
        serde_json::from_value(serde_json::json!({
            "type": kind, "status": status, "reason": reason, "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }))
        .unwrap()
    }

    #[test]
    fn a18_the_same_conditions_are_no_event() {
        let conditions =
            [condition("Planned", "False", "NotFeasible"), condition("Ready", "True", "AsExpected")];
        assert!(transitions(&conditions, &conditions).is_empty());
    }

    #[test]
    fn turning_bad_warns_once_and_turning_good_is_news() {
        let bad = [condition("Planned", "False", "NotFeasible")];
        let good = [condition("Planned", "True", "AsExpected")];
        let warned = transitions(&[], &bad);
        assert_eq!((warned.len(), warned[0].warning, warned[0].reason.as_str()), (1, true, "NotFeasible"));
        let other = transitions(&bad, &[condition("Planned", "False", "FactsStale")]);
        assert_eq!(other[0].reason, "FactsStale");
        let news = transitions(&bad, &good);
        assert_eq!((news.len(), news[0].warning, news[0].reason.as_str()), (1, false, "Planned"));
        assert!(transitions(&[], &good).is_empty(), "a good start is no event");
        let ready = transitions(&[], &[condition("Ready", "True", "AsExpected")]);
        assert_eq!(ready.len(), 1);
    }

    #[test]
    fn a_note_is_cut_between_characters() {
        assert!(shortened(&"é".repeat(2000)).len() <= MAX_NOTE_BYTES);
    }
}
