//! Watches over minutes, on a clock that stands still while anything can be done.

use std::time::Duration;

use serde_json::json;

use super::super::Lives;
use super::{Fake, World, cluster};
use crate::gather::shelf::ObjectKey;

async fn after(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// A65: the server takes a watch, and then neither sends nor closes.
#[tokio::test(start_paused = true)]
async fn a_watch_that_falls_silent_is_taken_up_again_within_four_minutes() {
    let world = World::start(Fake::default());
    after(1).await;
    let watches = world.watches.lives.ages().len();
    assert_eq!(world.fake.requests("", true), watches);
    after(239).await;
    assert_eq!(world.fake.requests("", true), 2 * watches);
    let ages = world.watches.lives.ages();
    assert!(ages.iter().all(|(_, age)| *age < Duration::from_secs(60)), "{ages:?}");
    after(3_600).await;
    assert!(world.watches.lives.hanging().is_empty());
}

/// A65: a watch that is only refused grows old and needs no restart; one that does nothing needs it.
#[tokio::test(start_paused = true)]
async fn a_watch_that_does_not_even_try_is_told_by_liveness_and_one_without_an_answer_by_its_age() {
    let fake = Fake::default();
    fake.0.lock().unwrap().forbidden.push("pods");
    let world = World::start(fake);
    let stuck = Lives::default();
    let _life = stuck.add("pods".to_owned());
    after(590).await;
    assert!(stuck.hanging().is_empty());
    after(70).await;
    assert!(stuck.hanging()[0].starts_with("pods has not moved for 66"), "{:?}", stuck.hanging());
    assert!(world.watches.lives.hanging().is_empty());
    let ages = world.watches.lives.ages();
    let old = ages.iter().filter(|(_, age)| *age >= Duration::from_secs(600)).map(|(name, _)| name.as_str());
    assert_eq!(old.collect::<Vec<_>>(), ["pods"]);
}

/// A66: all connections break every 20 s for ten minutes, and one kind is forbidden all the time.
#[tokio::test(start_paused = true)]
async fn watches_that_broke_together_go_on_within_one_pause_after_the_last_break() {
    let fake = Fake::default();
    fake.0.lock().unwrap().forbidden.push("poddisruptionbudgets");
    fake.0.lock().unwrap().broken_after = Some(Duration::from_secs(20));
    let world = World::start(fake);
    after(600).await;
    let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {
        "name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "101"}});
    world.fake.0.lock().unwrap().broken_after = None;
    world.fake.0.lock().unwrap().events.insert("pods", vec![vec![json!({"type": "ADDED", "object": pod})]]);
    // The last connections break after 20 s; the longest pause is 30 s, twice that at the worst of its dice.
    after(90).await;
    assert_eq!(world.watches.stores.pods.len(), 1);
    let unlisted = world.watches.lives.unlisted();
    assert!(unlisted.len() == 1 && unlisted[0].starts_with("poddisruptionbudgets: "), "{unlisted:?}");
    let before = world.fake.requests("", true);
    after(60).await;
    assert_eq!(world.fake.requests("", true), before, "they hold");
    assert!(!world.tasks.is_empty());
}

/// A07: without the definition the operator waits and says for what.
#[tokio::test(start_paused = true)]
async fn an_operator_whose_definition_comes_later_finds_it() {
    let fake = Fake::default();
    fake.0.lock().unwrap().undefined.push("inferenceclusters");
    let world = World::start(fake);
    after(600).await;
    let unlisted = world.watches.lives.unlisted();
    let told = |text: &String| {
        text.starts_with("inferenceclusters: ") && text.contains("could not find the requested resource")
    };
    assert!(unlisted.len() == 1 && told(&unlisted[0]), "{unlisted:?}");
    world.fake.0.lock().unwrap().undefined.clear();
    world.fake.0.lock().unwrap().objects.insert("inferenceclusters", vec![cluster("a", "Soft", 1)]);
    after(70).await;
    assert!(world.watches.lives.unlisted().is_empty());
    assert!(world.watches.stores.cluster(&ObjectKey::new("ns", "a")).is_some());
}
