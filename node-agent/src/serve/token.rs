//! Who may ask: holders of a token for this agent that belongs to one service account.
//! In: the `authorization` of a call. Out: nothing, or a refusal with the reason.
//! Never: a token believed without asking the API server (TokenReview), or for longer than a minute after; more than the
//! bound of remembered tokens; a token in a log.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::Status;
use tonic::metadata::MetadataMap;

/// A token whose account was deleted works for this long at most.
const BELIEVED: Duration = Duration::from_secs(60);
/// A token that was refused may be valid a moment later (a clock, a cache of the API server).
const REFUSED: Duration = Duration::from_secs(5);
/// One operator has one token a replica; the rest are strangers' tries.
const MAX_REMEMBERED: usize = 1_024;
/// Real tokens have 1 to 2 KiB.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// Questions to the API server at the same time, whoever knocks.
const MAX_REVIEWS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(5);

/// The door.
#[derive(Debug, Clone)]
pub(crate) enum Door {
    /// Plaintext on loopback, for tests and demos: everybody on this machine.
    Open,
    Tokens(Arc<Tokens>),
}

impl Door {
    /// # Errors
    /// UNAUTHENTICATED without a valid token for this audience, PERMISSION_DENIED for another account's, UNAVAILABLE while the
    /// API server cannot be asked.
    pub(crate) async fn admit(&self, metadata: &MetadataMap) -> Result<(), Status> {
        match self {
            Door::Open => Ok(()),
            Door::Tokens(tokens) => tokens.check(bearer(metadata)?).await,
        }
    }
}

/// What was found out about tokens.
#[derive(Debug)]
pub(crate) struct Tokens {
    reviews: Api<TokenReview>,
    audience: String,
    /// `system:serviceaccount:NAMESPACE:NAME`.
    account: String,
    remembered: Mutex<BTreeMap<String, Verdict>>,
    asking: Semaphore,
}

#[derive(Debug, Clone)]
struct Verdict {
    until: Instant,
    verdict: Result<(), Refusal>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("the API server does not accept the token for audience {audience:?}: {reason}")]
    Invalid { audience: String, reason: String },
    #[error("expected a token of {expected}, found one of {found}")]
    OtherAccount { expected: String, found: String },
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        match &refusal {
            Refusal::Invalid { .. } => Status::unauthenticated(refusal.to_string()),
            Refusal::OtherAccount { .. } => Status::permission_denied(refusal.to_string()),
        }
    }
}

impl Tokens {
    /// `namespace` and `name` of the service account that may ask.
    pub(crate) fn new(client: kube::Client, audience: String, (namespace, name): (&str, &str)) -> Self {
        Tokens {
            reviews: Api::all(client),
            audience,
            account: format!("system:serviceaccount:{namespace}:{name}"),
            remembered: Mutex::default(),
            asking: Semaphore::new(MAX_REVIEWS),
        }
    }

    async fn check(&self, token: &str) -> Result<(), Status> {
        if let Some(verdict) = self.recall(token, Instant::now()) {
            return verdict.map_err(Status::from);
        }
        // Never closed.
        let _turn = self.asking.acquire().await;
        // Whoever waited for the same token's review finds it.
        if let Some(verdict) = self.recall(token, Instant::now()) {
            return verdict.map_err(Status::from);
        }
        let verdict = self.review(token).await?;
        if let Err(refusal) = &verdict {
            tracing::warn!(%refusal, "refused a caller");
        }
        self.remember(token, verdict.clone(), Instant::now());
        verdict.map_err(Status::from)
    }

    async fn review(&self, token: &str) -> Result<Result<(), Refusal>, Status> {
        let review = TokenReview {
            metadata: ObjectMeta::default(),
            spec: TokenReviewSpec {
                audiences: Some(vec![self.audience.clone()]),
                token: Some(token.to_owned()),
            },
            status: None,
        };
        let created = timeout(PATIENCE, self.reviews.create(&PostParams::default(), &review)).await;
        let failed = |reason: String| {
            tracing::warn!(reason, "cannot review a token");
            Status::unavailable(format!("cannot ask the API server about the token: {reason}"))
        };
        let review = match created {
            Ok(Ok(review)) => review,
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(_) => return Err(failed(format!("no answer within {} s", PATIENCE.as_secs()))),
        };
        Ok(self.judge(review.status.unwrap_or_default()))
    }

    fn judge(&self, status: TokenReviewStatus) -> Result<(), Refusal> {
        let audience = || self.audience.clone();
        if !status.authenticated.unwrap_or_default() {
            let reason = status.error.unwrap_or_else(|| "not authenticated".to_owned());
            return Err(Refusal::Invalid { audience: audience(), reason });
        }
        // A server that knows no audiences returns none; then the token may be meant for anybody.
        if !status.audiences.unwrap_or_default().contains(&self.audience) {
            let reason = "it is meant for another audience".to_owned();
            return Err(Refusal::Invalid { audience: audience(), reason });
        }
        let found = status.user.and_then(|user| user.username).unwrap_or_default();
        if found != self.account {
            return Err(Refusal::OtherAccount { expected: self.account.clone(), found });
        }
        Ok(())
    }

    fn recall(&self, token: &str, now: Instant) -> Option<Result<(), Refusal>> {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let known = remembered.get(token)?;
        (known.until > now).then(|| known.verdict.clone())
    }

    fn remember(&self, token: &str, verdict: Result<(), Refusal>, now: Instant) {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.retain(|_, known| known.until > now);
        if remembered.len() >= MAX_REMEMBERED {
            // Refusals first: whoever sends many tokens must not push out the one that is good.
            let victim = remembered.iter().min_by_key(|(_, known)| (known.verdict.is_ok(), known.until));
            if let Some(victim) = victim.map(|(token, _)| token.clone()) {
                remembered.remove(&victim);
            }
        }
        let until = now + if verdict.is_ok() { BELIEVED } else { REFUSED };
        remembered.insert(token.to_owned(), Verdict { until, verdict });
    }
}

fn bearer(metadata: &MetadataMap) -> Result<&str, Status> {
    let value = metadata.get("authorization").ok_or_else(|| {
        Status::unauthenticated("expected metadata authorization: Bearer TOKEN, found none")
    })?;
    let token = value.to_str().ok().and_then(|value| value.strip_prefix("Bearer ")).map(str::trim);
    match token {
        Some(token) if !token.is_empty() && token.len() <= MAX_TOKEN_BYTES => Ok(token),
        _ => Err(Status::unauthenticated(format!(
            "expected metadata authorization: Bearer TOKEN with 1 to {MAX_TOKEN_BYTES} bytes, found something else"
        ))),
    }
}

#[cfg(test)]
mod tests;
