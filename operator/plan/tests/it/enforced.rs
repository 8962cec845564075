//! Who enforces a plan, in every mode that a cluster can be in.

use fathom_crds::InferenceCluster;
use operator_plan::{Abilities, ClaimDriver, enforcement};

use crate::machines::{needle, object};

fn abilities(text: &str) -> Abilities {
    let claims = || ClaimDriver { driver: "gpu.nvidia.com".into(), device_class: "gpu.nvidia.com".into() };
    Abilities {
        claims: text.contains("dra").then(claims),
        aligning_nodes: if text.contains("aligning") { vec!["n".into()] } else { Vec::new() },
        gpu_resource: text.contains("plugin").then(|| "nvidia.com/gpu".into()),
        forbids_memory_binding: text.contains("restricted").then(|| "restricted".into()),
    }
}

fn flash(placement: &str) -> InferenceCluster {
    object("deepseek-v4-flash", &format!("decode: {{gpus: 4}}\n  placement: {{{placement}}}"))
}

#[test]
fn auto_takes_the_first_that_the_cluster_allows_and_says_why() {
    for (cluster, expected, because) in [
        ("dra plugin aligning", "DRA", "slices of the DRA driver gpu.nvidia.com exist"),
        ("plugin aligning", "Kubelet", "kubelets align"),
        ("plugin", "Soft", "no kubelet aligns"),
        ("aligning", "Soft", "neither a DRA driver nor a device plugin"),
    ] {
        let chosen = enforcement(&flash("").spec, &abilities(cluster)).unwrap();
        assert_eq!(chosen.mode.name(), expected, "{cluster}");
        assert!(chosen.because.contains(because), "{cluster}: {}", chosen.because);
    }
    let on_cpu = enforcement(&needle("decode: {gpus: 0}").spec, &abilities("dra plugin aligning")).unwrap();
    assert_eq!(on_cpu.mode.name(), "Soft");
}

#[test]
fn a_mode_that_the_cluster_does_not_offer_is_refused_with_what_to_do() {
    for (placement, cluster, text) in [
        ("mode: DRA", "plugin", "install a DRA driver"),
        ("mode: Kubelet", "dra aligning", "install a device plugin"),
        ("mode: Kubelet", "plugin", "topologyManagerPolicy"),
        ("mode: Soft, memoryBinding: Required", "restricted", "enforce=privileged"),
    ] {
        let refused = enforcement(&flash(placement).spec, &abilities(cluster)).unwrap_err();
        assert!(refused.contains(text), "{placement}: {refused}");
    }
}

#[test]
fn memory_is_bound_where_the_namespace_allows_it() {
    for (placement, cluster, bound) in [
        ("", "dra", true),
        ("", "dra restricted", false),
        ("memoryBinding: Required", "dra", true),
        ("memoryBinding: \"Off\"", "dra", false),
        ("mode: Unmanaged, memoryBinding: Required", "", false),
    ] {
        let chosen = enforcement(&flash(placement).spec, &abilities(cluster)).unwrap();
        assert_eq!(chosen.bind_memory, bound, "{placement} on {cluster}");
        assert!(!chosen.memory_because.is_empty());
    }
}
