//! Which statuses have been written, so that none is written twice: a definition older than this operator drops fields
//! that it does not know, and then what is stored never equals what was sent.
//! In: the status to be, the status as stored. Out: whether to write. Never: whole statuses kept (hashes do).

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fathom_crds::InferenceClusterStatus;

/// By object; bounded by the objects that exist.
#[derive(Debug, Default)]
pub struct Written {
    objects: Mutex<BTreeMap<Arc<str>, Entry>>,
}

#[derive(Debug)]
struct Entry {
    sent: u64,
    /// What the server made of it, once seen.
    kept_as: Option<u64>,
}

impl Written {
    /// Whether `wanted` must be written over `stored`. What was sent already is not sent again, unless somebody has changed
    /// what the server made of it.
    pub fn is_due(
        &self,
        uid: &str,
        wanted: &InferenceClusterStatus,
        stored: Option<&InferenceClusterStatus>,
    ) -> bool {
        if stored == Some(wanted) {
            return false;
        }
        let mut objects = self.lock();
        let Some(entry) = objects.get_mut(uid).filter(|entry| entry.sent == hash(wanted)) else {
            return true;
        };
        let stored = stored.map_or(0, hash);
        *entry.kept_as.get_or_insert(stored) != stored
    }

    pub fn sent(&self, uid: &str, status: &InferenceClusterStatus) {
        self.lock().insert(uid.into(), Entry { sent: hash(status), kept_as: None });
    }

    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Entry>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hash(status: &InferenceClusterStatus) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(status).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(endpoint: &str) -> InferenceClusterStatus {
        InferenceClusterStatus { endpoint: Some(endpoint.into()), ..InferenceClusterStatus::default() }
    }

    #[test]
    fn a14_what_the_server_keeps_otherwise_is_written_once_and_what_others_change_is_mended() {
        let written = Written::default();
        assert!(written.is_due("u", &status("wanted"), None));
        written.sent("u", &status("wanted"));
        assert!(!written.is_due("u", &status("wanted"), Some(&status("wanted"))));
        assert!(!written.is_due("u", &status("wanted"), Some(&status("pruned"))));
        assert!(!written.is_due("u", &status("wanted"), Some(&status("pruned"))));
        assert!(written.is_due("u", &status("wanted"), Some(&status("somebody's"))));
        assert!(written.is_due("u", &status("news"), Some(&status("pruned"))));
    }
}
