use expect_test::expect;

use super::canned::{now, pending, ready, unseen};
use super::*;

#[test]
fn a_ready_object_shows_its_address_conditions_and_pods() {
    expect![[r#"
        flash in namespace team-a: Ready
          address    http://flash.team-a.svc
          revision   3f2a9c01d4 (which was Ready)
          pods       prefill 1/1, decode 1/1, router 2/2
          placement  DRA, host cache 255.7 GiB

        CONDITION           STATUS  SINCE  REASON       MESSAGE
        Accepted            True    2d     AsExpected   the object is understood, and its names are free
        Planned             True    2d     AsExpected   2 engine replicas have their places
        PlacementSatisfied  False   45s    NotAchieved  flash-prefill-0 memory: EPERM: add CAP_SYS_NICE. The spec does not
                                                        require it, so these pods serve
        Progressing         False   2d     AsExpected   everything asked for is there
        RolesReady          True    2d     AsExpected   prefill 1/1, decode 1/1, router 2/2
        Routable            True    2d     AsExpected   revision 3f2a9c01d4 answers requests
        Degraded            False   2d     AsExpected   nothing works less well than planned
        Ready               True    2d     AsExpected   revision 3f2a9c01d4 answers requests

        REPLICA          WHERE      GPUS  CPUS   MEMORY     HOST CACHE  ACHIEVED
        flash-prefill-0  n1 NUMA 0  2     0-15   140.0 GiB  110.0 GiB   memory refused
        flash-decode-0   n1 NUMA 1  2     16-31  170.0 GiB  off         yes
    "#]].assert_eq(&text::text(&ready(), now()));
}

#[test]
fn an_object_that_fits_nowhere_says_so_and_that_a_change_was_not_seen_yet() {
    expect![[r#"
        flash in namespace team-a: not Ready: NotFeasible
          the operator has not looked at the latest change yet (generation 4, seen 3)
          pods       prefill 0/1, decode 0/1, router 0/1
          placement  -, host cache off

        CONDITION  STATUS  SINCE  REASON       MESSAGE
        Planned    False   2h     NotFeasible  decode needs 8 GPUs on one NUMA node, and no NUMA node has more than 4; 4
                                               places were looked at
        Ready      False   2h     NotFeasible  decode needs 8 GPUs on one NUMA node, and no NUMA node has more than 4; 4
                                               places were looked at
    "#]].assert_eq(&text::text(&pending(), now()));
}

#[test]
fn an_object_that_nobody_looked_at_says_so() {
    expect![[r#"
        flash in namespace team-a: no operator has reported on it yet
    "#]]
    .assert_eq(&text::text(&unseen(), now()));
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
