//! Who is asked the question that makes an object Ready, and when; asking takes up to half a minute and must not hold up
//! other objects.
//! In: questions as reconciles find them due. Out: the last answer of each object; a wake-up for each new one.
//! Never: a question whose answer is known; a failed one asked again at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::gather::shelf::ObjectKey;
use crate::question::{self, Answer, Question};

/// Questions under way at the same time.
const MAX_ASKED: usize = 16;

/// Questions and answers; bounded by the objects that exist.
#[derive(Debug, Default)]
pub struct Questions {
    objects: Mutex<BTreeMap<Arc<str>, Entry>>,
    work: Notify,
}

#[derive(Debug)]
struct Entry {
    key: ObjectKey,
    /// To be asked.
    waiting: Option<Question>,
    asking: bool,
    answer: Option<Answer>,
    failures: u32,
    answered_at: Instant,
}

impl Questions {
    /// What is known now; a question that is due is put on the list, and its answer wakes the object. The duration is
    /// when a failed one is due again.
    pub fn consider(
        &self,
        uid: &str,
        key: &ObjectKey,
        question: Option<Question>,
    ) -> (Option<Answer>, Option<Duration>) {
        let now = Instant::now();
        let mut objects = self.lock();
        let entry = objects.entry(uid.into()).or_insert_with(|| Entry {
            key: key.clone(),
            waiting: None,
            asking: false,
            answer: None,
            failures: 0,
            answered_at: now,
        });
        let Some(question) = question else {
            entry.waiting = None;
            return (entry.answer.clone(), None);
        };
        let since = now.duration_since(entry.answered_at);
        if !question::is_due(&question, entry.answer.as_ref(), entry.failures, since) {
            let failed = entry.answer.as_ref().is_some_and(|answer| !answer.ok);
            let again = failed.then(|| question::pause(entry.failures).saturating_sub(since));
            return (entry.answer.clone(), again);
        }
        entry.waiting = Some(question);
        let answer = entry.answer.clone();
        drop(objects);
        self.work.notify_one();
        (answer, None)
    }

    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// Asks until the end of the process; `heard` is told which object has an answer.
    pub async fn run(&self, heard: impl Fn(&ObjectKey)) {
        let mut calls: JoinSet<(Arc<str>, Answer)> = JoinSet::new();
        loop {
            while calls.len() < MAX_ASKED
                && let Some((uid, question)) = self.take()
            {
                calls.spawn(async move { (uid, question::ask(&question).await) });
            }
            tokio::select! {
                Some(ended) = calls.join_next() => match ended {
                    Ok((uid, answer)) => {
                        if let Some(key) = self.answered(&uid, answer, Instant::now()) {
                            heard(&key);
                        }
                    }
                    Err(error) => tracing::error!(%error, "a question ended by a bug"),
                },
                () = self.work.notified() => {}
            }
        }
    }

    fn take(&self) -> Option<(Arc<str>, Question)> {
        let mut objects = self.lock();
        let (uid, entry) = objects.iter_mut().find(|(_, entry)| entry.waiting.is_some() && !entry.asking)?;
        entry.asking = true;
        Some((uid.clone(), entry.waiting.take()?))
    }

    fn answered(&self, uid: &str, answer: Answer, now: Instant) -> Option<ObjectKey> {
        let mut objects = self.lock();
        let entry = objects.get_mut(uid)?;
        let same = |last: &Answer| last.revision == answer.revision && last.ready_set == answer.ready_set;
        let before = entry.answer.as_ref().filter(|last| same(last)).map_or(0, |_| entry.failures);
        entry.failures = if answer.ok { 0 } else { before + 1 };
        entry.asking = false;
        entry.answered_at = now;
        entry.answer = Some(answer);
        Some(entry.key.clone())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Entry>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(ready_set: &str) -> Question {
        Question {
            address: "127.0.0.1:80".parse().unwrap(),
            host: "h".into(),
            model: "m".into(),
            revision: "r".into(),
            ready_set: ready_set.into(),
            timeout: Duration::from_secs(1),
        }
    }

    fn answer(ok: bool, ready_set: &str) -> Answer {
        Answer { ok, message: String::new(), revision: "r".into(), ready_set: ready_set.into() }
    }

    #[test]
    fn a_question_is_asked_once_per_ready_set_and_a_failed_one_later_again() {
        let (questions, key) = (Questions::default(), ObjectKey::new("ns", "a"));
        questions.consider("u", &key, Some(question("1")));
        let (uid, _) = questions.take().unwrap();
        assert!(questions.take().is_none(), "one at a time");
        assert_eq!(questions.answered(&uid, answer(true, "1"), Instant::now()), Some(key.clone()));
        let (known, again) = questions.consider("u", &key, Some(question("1")));
        assert!(known.unwrap().ok && again.is_none() && questions.take().is_none());

        questions.consider("u", &key, Some(question("2")));
        let (uid, _) = questions.take().unwrap();
        questions.answered(&uid, answer(false, "2"), Instant::now());
        let (_, again) = questions.consider("u", &key, Some(question("2")));
        assert!(again.is_some_and(|again| again > Duration::ZERO) && questions.take().is_none());
        questions.answered(&uid, answer(false, "2"), Instant::now());
        let (_, later) = questions.consider("u", &key, Some(question("2")));
        assert!(later > again);
        questions.forget("u");
        assert!(questions.answered(&uid, answer(true, "2"), Instant::now()).is_none());
    }
}
