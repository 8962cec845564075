//! Conditions: what each says, and since when.
//! In: verdicts of this reconcile, the conditions before. Out: the list as the status carries it.
//! Never: a time that moves while the status of a condition stays.

use fathom_crds::conditions::{ConditionType, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff;

/// Longest message that is kept; the API allows 32,768.
const MAX_MESSAGE_BYTES: usize = 2048;

/// What one condition says now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) kind: ConditionType,
    pub(super) state: State,
    pub(super) reason: Reason,
    /// A sentence that a person can act on.
    pub(super) message: String,
}

/// Status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    True,
    False,
    Unknown,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::True => "True",
            State::False => "False",
            State::Unknown => "Unknown",
        }
    }
}

impl Verdict {
    pub(super) fn new(kind: ConditionType, state: State, reason: Reason, message: impl Into<String>) -> Self {
        Self { kind, state, reason, message: message.into() }
    }

    pub(super) fn is_true(&self) -> bool {
        self.state == State::True
    }
}

/// The conditions after this reconcile, in the order of [`ConditionType::ALL`]; those that nobody spoke of stay.
pub(super) fn merge(
    before: &[Condition],
    verdicts: &[Verdict],
    generation: Option<i64>,
    now: jiff::Timestamp,
) -> Vec<Condition> {
    let mut conditions: Vec<Condition> = Vec::with_capacity(ConditionType::ALL.len());
    for kind in ConditionType::ALL {
        let name = kind.to_string();
        let old = before.iter().find(|condition| condition.type_ == name);
        match verdicts.iter().find(|verdict| verdict.kind == kind) {
            Some(verdict) => conditions.push(condition(verdict, old, generation, now)),
            None => conditions.extend(old.cloned()),
        }
    }
    conditions
}

fn condition(
    verdict: &Verdict,
    old: Option<&Condition>,
    generation: Option<i64>,
    now: jiff::Timestamp,
) -> Condition {
    let status = verdict.state.name();
    let since = old.filter(|old| old.status == status).map(|old| old.last_transition_time.clone());
    Condition {
        type_: verdict.kind.to_string(),
        status: status.to_owned(),
        reason: verdict.reason.to_string(),
        message: shortened(&verdict.message),
        observed_generation: generation,
        last_transition_time: since.unwrap_or_else(|| Time(whole_seconds(now))),
    }
}

/// The API keeps whole seconds; what is compared with it must be as short.
fn whole_seconds(now: jiff::Timestamp) -> jiff::Timestamp {
    jiff::Timestamp::from_second(now.as_second()).unwrap_or(now)
}

fn shortened(message: &str) -> String {
    if message.len() <= MAX_MESSAGE_BYTES {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(MAX_MESSAGE_BYTES);
    format!("{}...", &message[..end])
}
