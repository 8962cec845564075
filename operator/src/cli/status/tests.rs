use expect_test::expect;

use super::canned::{now, pending, ready, unseen};
use super::*;

#[test]
fn a_ready_object_shows_its_address_conditions_and_pods() {
    expect![].assert_eq(&text::text(&ready(), now()));
}

#[test]
fn an_object_that_fits_nowhere_says_so_and_that_a_change_was_not_seen_yet() {
    expect![].assert_eq(&text::text(&pending(), now()));
}

#[test]
fn an_object_that_nobody_looked_at_says_so() {
    expect![].assert_eq(&text::text(&unseen(), now()));
}

#[test]
fn programs_get_the_status_as_it_is_stored() {
    let value: serde_json::Value = serde_json::from_str(&json(&ready()).unwrap()).unwrap();
    assert_eq!(value["status"]["plan"]["replicas"][0]["achieved"]["memory"]["state"], "Refused");
    assert_eq!((&value["name"], &value["generation"]), (&"flash".into(), &3.into()));
}

#[test]
fn only_ready_true_counts_as_ready() {
    assert!(is_ready(&ready().status));
    assert!(!is_ready(&pending().status));
    assert!(!is_ready(&unseen().status));
}
