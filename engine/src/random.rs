//! Numbers that nobody else has: request ids and epochs. Not secrets, and nothing of an answer depends on them.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Keys from the operating system, once; the counter makes every value another.
static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// 64 bits that differ between calls and between processes.
pub fn number() -> u64 {
    KEYS.hash_one((COUNT.fetch_add(1, Ordering::Relaxed), std::process::id()))
}

/// 32 hexadecimal digits.
pub fn hex_id() -> String {
    format!("{:016x}{:016x}", number(), number())
}

#[cfg(test)]
mod tests {
    #[test]
    fn ids_differ() {
        let ids: std::collections::BTreeSet<String> = (0..1000).map(|_| super::hex_id()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.len() == 32));
    }
}
