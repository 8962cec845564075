use expect_test::expect;

use super::text;
use crate::cli::status::canned::{pending, ready, unseen};

#[test]
fn every_choice_has_its_reason() {
    expect![[r#"
        flash in namespace team-a: Ready
          address    http://flash.team-a.svc
          revision   3f2a9c01d4 (which was Ready)
          pods       prefill 1/1, decode 1/1, router 2/2
          placement  DRA, host cache 255.7 GiB

        What to look at
          PlacementSatisfied is False (NotAchieved): flash-prefill-0 memory: EPERM: add CAP_SYS_NICE. The spec does not require it, so these pods serve

        Who enforces the placement: DRA
          resource.k8s.io/v1 is served, and gpu.nvidia.com offers GPUs
          memory: bound, where the namespace permits it

        Where the pods are planned
          flash-prefill-0 on n1, NUMA node 0
            GPUs GPU-a, GPU-b
            CPUs 0-15, memory 140.0 GiB
            claim flash-prefill-0-ab12c
            found: GPUs as planned; CPUs as planned; memory not as planned (EPERM: add CAP_SYS_NICE)
          flash-decode-0 on n1, NUMA node 1
            GPUs GPU-c, GPU-d
            CPUs 16-31, memory 170.0 GiB
            claim flash-decode-0-cd34e
            found: GPUs as planned; CPUs as planned; memory as planned

        Why not elsewhere
        PLACE      FOR              REASON      WHY NOT
        n2 NUMA 0  prefill, decode  TooFewGpus  2 of 4 GPUs free
        n3         prefill          Unknown     no facts of its GPUs
        and 38 more places

        Host cache
          flash-prefill-0: asked 150 GiB, granted 112.6 GiB: NUMA node 0 headroom, 80 % of (176.0 GiB available - 12.0 GiB reserve - 20.0 GiB own needs) = ratio 2.56

        Queue limit of one prefill: 78,144 tokens, 32 requests
          0.8 x 3,300 tokens/s (measured on 4 x RTX PRO 6000) x (30 s to the first token - 0.4 s fixed part)

        Besides
          n3: the facts are 90 s old
    "#]].assert_eq(&text(&ready()));
}

#[test]
fn what_fits_nowhere_says_why_not_place_by_place() {
    expect![[r#"
        flash in namespace team-a: not Ready: NotFeasible
          the operator has not looked at the latest change yet (generation 4, seen 3)
          pods       prefill 0/1, decode 0/1, router 0/1
          placement  -, host cache off

        What to look at
          Planned is False (NotFeasible): decode needs 8 GPUs on one NUMA node, and no NUMA node has more than 4; 4 places were looked at
          Ready is False (NotFeasible): decode needs 8 GPUs on one NUMA node, and no NUMA node has more than 4; 4 places were looked at

        Where the pods are planned
          nowhere

        Why not elsewhere
        PLACE      FOR     REASON      WHY NOT
        n1 NUMA 0  decode  TooFewGpus  4 of 8 GPUs
    "#]].assert_eq(&text(&pending()));
}

#[test]
fn nothing_to_explain_is_said_in_one_line() {
    expect![[r#"
        flash in namespace team-a: no operator has reported on it yet
    "#]]
    .assert_eq(&text(&unseen()));
}
