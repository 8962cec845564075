use expect_test::expect;

use super::text;
use crate::cli::status::canned::{pending, ready, unseen};

#[test]
fn every_choice_has_its_reason() {
    expect![].assert_eq(&text(&ready()));
}

#[test]
fn what_fits_nowhere_says_why_not_place_by_place() {
    expect![].assert_eq(&text(&pending()));
}

#[test]
fn nothing_to_explain_is_said_in_one_line() {
    expect![].assert_eq(&text(&unseen()));
}
