//! What is due, as a function of what there is and the time.
//! In: the stored states. Out: the states to store instead, if any. Never: I/O, a clock.
//! Lives are kept beside the certificates, bound to them by hashes: nothing here reads certificates.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{CertificateError, CertificateSettings, issue};

/// The shortest and longest time between looks.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3_600));

/// From when to when a certificate holds, in seconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Life {
    pub(super) begins: i64,
    pub(super) ends: i64,
}

impl Life {
    pub(super) fn starting(now: i64, length: Duration) -> Self {
        Life { begins: now, ends: now.saturating_add(seconds(length)) }
    }

    /// Two thirds are over.
    fn renewal(self) -> i64 {
        self.begins + (self.ends - self.begins) / 3 * 2
    }
}

/// One CA certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Trusted {
    pub(super) pem: String,
    pub(super) life: Life,
}

/// The CA's Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuthorityState {
    /// The newest first.
    pub(super) trusted: Vec<Trusted>,
    /// Of the key that belongs to the newest.
    pub(super) key_hash: String,
    /// Key of the one before, until the newest may issue.
    pub(super) old_key: Option<String>,
    /// In a field of its own in the Secret.
    #[serde(skip)]
    pub(super) key: String,
}

impl AuthorityState {
    pub(super) fn bundle(&self) -> String {
        self.trusted.iter().map(|trusted| trusted.pem.as_str()).collect()
    }

    pub(super) fn is_intact(&self) -> bool {
        !self.trusted.is_empty() && hash(&[&self.key]) == self.key_hash
    }

    /// Certificate and key that issue now: the newest once it has been trusted for long enough.
    fn issuer(&self, settings: &CertificateSettings, now: i64) -> Option<(&Trusted, &str)> {
        let newest = self.trusted.first()?;
        let old = self.trusted.get(1).zip(self.old_key.as_deref());
        let ready = now >= newest.life.begins.saturating_add(seconds(settings.trusted_before_use));
        match old {
            Some((old, key)) if !ready && old.life.ends > now => Some((old, key)),
            _ => Some((newest, &self.key)),
        }
    }
}

/// The agents' Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServerState {
    pub(super) life: Life,
    /// Of certificate and key together.
    pub(super) hash: String,
    /// Of the CA certificate that issued it.
    pub(super) issuer: String,
    #[serde(skip)]
    pub(super) certificate: String,
    #[serde(skip)]
    pub(super) key: String,
    /// What is trusted, for people.
    #[serde(skip)]
    pub(super) bundle: String,
}

impl ServerState {
    pub(super) fn is_intact(&self) -> bool {
        hash(&[&self.certificate, &self.key]) == self.hash
    }
}

/// The CA's state to store, if another is due.
pub(super) fn authority(
    stored: Option<&AuthorityState>,
    settings: &CertificateSettings,
    now: Timestamp,
) -> Result<Option<AuthorityState>, CertificateError> {
    let now = now.as_second();
    let newest = stored.and_then(|state| state.trusted.first());
    if newest.is_some_and(|newest| newest.life.begins <= now && now < newest.life.renewal()) {
        return Ok(stored.and_then(|state| forget_ended(state, now)));
    }
    let life = Life::starting(now, settings.ca_life);
    let (pem, key) = issue::authority(life)?;
    let mut trusted = vec![Trusted { pem, life }];
    let old = stored.iter().flat_map(|state| &state.trusted).filter(|old| old.life.ends > now);
    // One that ends later than the newest (its life was longer by settings since changed) is kept no longer than two are.
    trusted.extend(old.take(2).cloned());
    let old_holds = newest.is_some_and(|old| old.life.ends > now);
    let old_key = stored.filter(|_| old_holds).map(|state| state.key.clone());
    Ok(Some(AuthorityState { trusted, key_hash: hash(&[&key]), old_key, key }))
}

/// Certificates whose life is over are trusted no longer.
fn forget_ended(state: &AuthorityState, now: i64) -> Option<AuthorityState> {
    let mut next = state.clone();
    next.trusted.retain(|trusted| trusted.life.ends > now);
    if next.trusted.len() < 2 {
        next.old_key = None;
    }
    (next != *state).then_some(next)
}

/// The server's state to store, if another is due.
pub(super) fn server(
    stored: Option<&ServerState>,
    authority: &AuthorityState,
    settings: &CertificateSettings,
    now: Timestamp,
) -> Result<Option<ServerState>, CertificateError> {
    let now = now.as_second();
    let bundle = authority.bundle();
    if let Some(state) = stored {
        let life = state.life;
        let covered = authority.trusted.iter().any(|trusted| hash(&[&trusted.pem]) == state.issuer);
        if covered && life.begins <= now && now < life.renewal() {
            let renewed = ServerState { bundle, ..state.clone() };
            return Ok((renewed != *state).then_some(renewed));
        }
    }
    let Some((issuer, key)) = authority.issuer(settings, now) else { return Ok(None) };
    let mut life = Life::starting(now, settings.server_life);
    life.ends = life.ends.min(issuer.life.ends);
    let (certificate, key) = issue::server(&issuer.pem, key, life)?;
    let hash_of_both = hash(&[&certificate, &key]);
    Ok(Some(ServerState { life, hash: hash_of_both, issuer: hash(&[&issuer.pem]), certificate, key, bundle }))
}

/// Until the next renewal or end, within bounds: somebody may damage a Secret.
pub(super) fn next_check(
    authority: &AuthorityState,
    server: Option<&ServerState>,
    settings: &CertificateSettings,
    now: Timestamp,
) -> Duration {
    let now = now.as_second();
    let mut due: Vec<i64> = authority.trusted.iter().skip(1).map(|old| old.life.ends).collect();
    due.extend(authority.trusted.first().map(|newest| newest.life.renewal()));
    due.extend(server.map(|server| server.life.renewal()));
    let next = due.into_iter().filter(|&at| at > now).min().unwrap_or(now);
    let wait = Duration::from_secs(u64::try_from(next - now).unwrap_or(0));
    let (least, most) = LOOK_AGAIN;
    wait.clamp(least, most.min(settings.server_life).max(least))
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

fn hash(texts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for text in texts {
        hasher.update(text.len().to_le_bytes());
        hasher.update(text);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
