use super::*;

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("ns", name)
}

struct Play {
    queue: Queue,
    start: Instant,
}

impl Play {
    fn new() -> Self {
        Self { queue: Queue::default(), start: Instant::now() }
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    fn wake(&self, name: &str, cause: Cause, millis: u64) {
        self.queue.wake_at(&key(name), cause, self.at(millis));
    }

    fn take(&self, millis: u64) -> Option<String> {
        self.queue.take(self.at(millis)).ok().map(|key| key.name.to_string())
    }

    fn done(&self, name: &str, next: Next, millis: u64) {
        self.queue.done_at(&key(name), next, self.at(millis));
    }
}

#[test]
fn a_change_of_the_object_is_taken_at_once_and_others_are_gathered_for_a_moment() {
    let play = Play::new();
    play.wake("a", Cause::Surroundings, 0);
    play.wake("a", Cause::Surroundings, 60);
    assert_eq!(play.take(99), None);
    assert_eq!(
        play.take(100).as_deref(),
        Some("a"),
        "the first change sets the time, later ones do not move it"
    );
    play.wake("b", Cause::Surroundings, 100);
    play.wake("b", Cause::Object, 110);
    assert_eq!(play.take(110).as_deref(), Some("b"));
    assert_eq!(play.take(1000), None, "each once");
}

#[test]
fn an_object_never_runs_twice_at_once_and_a_change_meanwhile_is_not_lost() {
    let play = Play::new();
    play.wake("a", Cause::Object, 0);
    assert!(play.take(0).is_some());
    play.wake("a", Cause::Object, 10);
    play.wake("a", Cause::Surroundings, 20);
    assert_eq!(play.take(500), None, "it runs");
    play.done("a", Next::Settled, 600);
    assert!(play.take(600).is_some());
    play.done("a", Next::Settled, 700);
    assert_eq!(play.take(10 * 60 * 1000), None);
    assert!(play.take(15 * 60 * 1000 + 700).is_some(), "settled objects are looked at again");
}

#[test]
fn a18_an_object_that_always_fails_is_tried_less_than_sixty_times_an_hour() {
    let play = Play::new();
    play.wake("a", Cause::Object, 0);
    let mut passes = 0;
    for millis in (0..3_600_000).step_by(100) {
        if play.take(millis).is_some() {
            passes += 1;
            play.done("a", Next::Failed, millis);
        }
    }
    assert!((10..60).contains(&passes), "{passes}");
    play.wake("a", Cause::Object, 3_600_000);
    assert!(play.take(3_600_000).is_some(), "a change of the object does not wait for the back-off");
}

#[test]
fn a20_an_object_that_wakes_itself_slows_down() {
    let play = Play::new();
    play.wake("a", Cause::Object, 0);
    let mut passes = 0;
    for millis in (0..60_000).step_by(10) {
        if play.take(millis).is_some() {
            passes += 1;
            play.wake("a", Cause::Surroundings, millis);
            play.done("a", Next::Settled, millis);
        }
    }
    assert!((20..60).contains(&passes), "{passes}");
}

#[test]
fn what_is_forgotten_leaves_nothing_unless_it_was_woken_meanwhile() {
    let play = Play::new();
    play.wake("a", Cause::Object, 0);
    play.take(0).unwrap();
    play.done("a", Next::Forget, 0);
    assert!(play.queue.lock().entries.is_empty());
    play.wake("a", Cause::Object, 1);
    play.take(1).unwrap();
    play.wake("a", Cause::Object, 2);
    play.done("a", Next::Forget, 3);
    assert!(play.take(3).is_some(), "created anew under the same name");
}

#[tokio::test]
async fn a_waiter_is_told_of_an_earlier_time() {
    let queue = std::sync::Arc::new(Queue::default());
    queue.wake(&key("late"), Cause::Object);
    assert_eq!(queue.next().await, key("late"));
    queue.done(&key("late"), Next::After(Duration::from_secs(600)));
    let waiter = async { tokio::time::timeout(Duration::from_secs(20), queue.next()).await };
    let waker = async { queue.wake(&key("soon"), Cause::Object) };
    let (got, ()) = tokio::join!(waiter, waker);
    assert_eq!(got.unwrap(), key("soon"));
}
