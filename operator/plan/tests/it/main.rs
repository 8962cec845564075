//! Golden cases: `tests/golden/<case>/spec.yaml` planned on the scenes that `scenes` lists, compared with `plan.txt`.
//! `UPDATE_EXPECT=1` writes them anew; a case is small enough that its diff is read.

#![expect(clippy::unwrap_used, reason = "test code")]

mod checker;
mod configs;
mod enforced;
mod machines;
mod properties;
mod surroundings;

use std::path::Path;

use engine_spec::NamedShape;
use expect_test::expect_file;
use operator_plan::{NO_SURROUNDINGS, PlanInput, Planned};

fn planned(case: &Path) -> Planned {
    let cluster = fathom_crds::read(&std::fs::read_to_string(case.join("spec.yaml")).unwrap()).unwrap();
    let scenes = std::fs::read_to_string(case.join("scenes")).unwrap();
    let mut nodes: Vec<_> =
        scenes.split_whitespace().map(|scene| fathom_node_agent::scene::facts(scene).unwrap()).collect();
    for (index, node) in nodes.iter_mut().enumerate() {
        node.node = format!("n{index}");
    }
    let shape = NamedShape::from_model_name(&cluster.spec.model.name).unwrap().shape();
    operator_plan::plan(&PlanInput {
        name: cluster.name(),
        spec: &cluster.spec,
        shape: &shape,
        nodes: &nodes,
        weight_bytes: None,
        image: None,
        surroundings: &NO_SURROUNDINGS,
    })
}

#[track_caller]
fn check(case: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(case);
    let planned = planned(&folder);
    expect_file![folder.join("plan.txt")].assert_eq(&planned.to_string());
}

#[test]
fn the_story_gets_112_6_and_143_0_gib_on_one_numa_node_each() {
    check("story");
}

#[test]
fn too_few_gpus_say_how_many_are_where() {
    check("too_few_gpus");
}

#[test]
fn one_replica_too_many_says_who_took_the_place() {
    check("one_replica_too_many");
}

#[test]
fn gpus_that_are_too_small_say_how_large_they_must_be() {
    check("gpu_memory");
}

#[test]
fn a_model_that_cannot_be_split_so_says_the_numbers_that_can() {
    check("undividable");
}

#[test]
fn roles_share_a_numa_node_only_when_they_must() {
    check("shared_numa");
}

#[test]
fn pairs_of_gpus_stay_on_their_numa_node() {
    check("pairs");
}

#[test]
fn preferred_spans_numa_nodes_when_nothing_else_fits() {
    check("preferred_spans");
}

#[test]
fn lost_gpus_and_mig_are_left_out_with_their_reason() {
    check("lost_and_mig");
}

#[test]
fn a_gpu_on_an_unknown_numa_node_is_not_used() {
    check("unknown_numa");
}

#[test]
fn facts_that_could_not_be_read_are_never_zero() {
    check("broken");
}

#[test]
fn on_the_cpu_each_role_gets_a_numa_node() {
    check("cpu_two_numa");
}

#[test]
fn a_machine_without_numa_is_planned_as_one_node() {
    check("cpu_no_numa");
}

#[test]
fn device_cpu_holds_gpus_and_computes_without_them() {
    check("held_gpus");
}

#[test]
fn without_prefill_decode_does_both() {
    check("unified");
}

#[test]
fn the_users_own_numbers_win_and_are_reported_as_theirs() {
    check("own_numbers");
}

#[test]
fn zero_replicas_are_a_plan_that_runs_nothing() {
    check("scaled_to_zero");
}

#[test]
fn what_is_not_supported_yet_is_refused_by_name() {
    check("not_supported");
}

#[test]
fn a_host_tier_below_the_device_pool_is_off_with_the_reason() {
    check("cache_below_pool");
}

#[test]
fn every_case_has_its_test() {
    let source = include_str!("main.rs");
    for entry in Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").read_dir().unwrap() {
        let name = entry.unwrap().file_name();
        let name = name.to_str().unwrap();
        assert!(source.contains(&format!("check(\"{name}\")")), "{name}");
    }
}
