use node_facts::{
    CgroupCpus, ClaimedDevice, ContainerAllocation, Device, HeldDevices, KubeletFacts, PodAllocation,
    PodCgroups,
};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::reading::NOT_SAID;

fn reading<T: Clone + std::fmt::Debug>(value: impl Strategy<Value = T>) -> impl Strategy<Value = Reading<T>> {
    prop_oneof![
        value.prop_map(Reading::Value),
        text().prop_map(Reading::Absent),
        text().prop_map(Reading::Failed)
    ]
}

fn text() -> impl Strategy<Value = String> {
    "[a-z0-9ü/.-]{0,9}"
}

fn numbers() -> impl Strategy<Value = Vec<u32>> {
    vec(any::<u32>(), 0..4)
}

fn memory() -> impl Strategy<Value = Memory> {
    any::<[u64; 3]>().prop_map(|[total, free, available]| Memory { total, free, available })
}

fn numa_node() -> impl Strategy<Value = NumaNode> {
    (reading(numbers()), reading(memory()), reading(numbers()))
        .prop_map(|(cpus, memory, distances)| NumaNode { cpus, memory, distances })
}

fn gpu() -> impl Strategy<Value = Gpu> {
    let health = prop_oneof![Just(GpuHealth::Healthy), text().prop_map(|reason| GpuHealth::Lost { reason })];
    let names = (text(), any::<u32>(), reading(text()), reading(text()));
    let mig = prop_oneof![Just(Mig::Off), Just(Mig::On)];
    let values =
        (reading(any::<u32>()), reading(any::<u64>()), reading(any::<u64>()), reading(mig), reading(health));
    (names, values).prop_map(|((uuid, index, name, pci), values)| {
        let (numa_node, memory_total, memory_used, mig, health) = values;
        Gpu { uuid, index, name, pci, numa_node, memory_total, memory_used, mig, health }
    })
}

fn link() -> impl Strategy<Value = GpuLink> {
    use LinkKind::{AcrossNuma, NvLink, SameHostBridge, SameNuma, SamePciSwitch};
    let kinds = prop::sample::select(vec![NvLink, SamePciSwitch, SameHostBridge, SameNuma, AcrossNuma]);
    (text(), text(), kinds).prop_map(|(a, b, kind)| GpuLink { a, b, kind })
}

fn container() -> impl Strategy<Value = ContainerAllocation> {
    let held = (text(), vec(text(), 0..3), numbers()).prop_map(|(resource, ids, numa)| HeldDevices {
        resource,
        ids,
        numa,
    });
    let claimed =
        (text(), text(), text(), text(), text()).prop_map(|(namespace, claim, driver, pool, device)| {
            ClaimedDevice { namespace, claim, driver, pool, device }
        });
    (text(), numbers(), vec(held, 0..3), vec(claimed, 0..3))
        .prop_map(|(name, cpus, devices, claims)| ContainerAllocation { name, cpus, devices, claims })
}

fn kubelet() -> impl Strategy<Value = KubeletFacts> {
    let device = (text(), text(), numbers()).prop_map(|(resource, id, numa)| Device { resource, id, numa });
    let pod = (text(), text(), vec(container(), 0..3))
        .prop_map(|(namespace, name, containers)| PodAllocation { namespace, name, containers });
    let cgroup = (text(), reading(numbers()), reading(numbers())).prop_map(|(id, cpus, mems)| CgroupCpus {
        id,
        cpus,
        mems,
    });
    let cgroups = (text(), vec(cgroup, 0..3)).prop_map(|(uid, containers)| PodCgroups { uid, containers });
    let policies = (reading(text()), reading(text()), reading(text()), reading(numbers()));
    let lists = (reading(vec(device, 0..3)), reading(vec(pod, 0..3)), reading(vec(cgroups, 0..3)));
    (policies, lists).prop_map(
        |((cpu_manager, topology_manager, memory_manager, reserved_cpus), (devices, pods, cgroups))| {
            KubeletFacts {
                cpu_manager,
                topology_manager,
                memory_manager,
                reserved_cpus,
                devices,
                pods,
                cgroups,
            }
        },
    )
}

fn any_facts() -> impl Strategy<Value = NodeFacts> {
    let machine = (
        text(),
        reading(btree_map(any::<u32>(), numa_node(), 0..3)),
        reading(numbers()),
        reading(memory()),
        reading(any::<u64>()),
    );
    let rest = (reading(vec(gpu(), 0..3)), vec(link(), 0..3), reading(kubelet()), vec(text(), 0..3));
    (machine, rest).prop_map(|((node, numa, cpus, memory, cgroup_memory_limit), rest)| {
        let (gpus, links, kubelet, notes) = rest;
        NodeFacts { node, numa, cpus, memory, cgroup_memory_limit, gpus, links, kubelet, notes }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn facts_survive_the_wire_exactly(before in any_facts()) {
        let bytes = sections(&before).encode_to_vec();
        let after = facts(v1::Facts::decode(&bytes[..]).unwrap());
        prop_assert_eq!(after, before);
    }

    #[test]
    fn any_bytes_are_facts_or_an_error(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(message) = v1::Facts::decode(&bytes[..]) {
            let _ = facts(message);
        }
    }

    #[test]
    fn merging_one_field_leaves_the_others(before in any_facts(), after in any_facts()) {
        let mut merged = before.clone();
        merge(&mut merged, v1::Facts { gpus: sections(&after).gpus, ..Default::default() });
        prop_assert_eq!(merged, NodeFacts { gpus: after.gpus, ..before });
    }
}

#[test]
fn what_another_version_does_not_say_is_unknown() {
    let gpu = v1::Gpu { uuid: "GPU-1".into(), mig: Some(v1::MigReading::default()), ..Default::default() };
    let gpus = v1::gpus_reading::Reading::Value(v1::Gpus { gpus: vec![gpu] });
    let link = v1::Link { kind: 77, ..Default::default() };
    let message = v1::Facts {
        node: "n".into(),
        gpus: Some(v1::GpusReading { reading: Some(gpus) }),
        links: Some(v1::Links { links: vec![link] }),
        ..Default::default()
    };
    let facts = facts(message);
    assert_eq!(facts.memory, Reading::Failed(NOT_SAID.into()));
    assert_eq!(facts.kubelet, Reading::Failed(NOT_SAID.into()));
    let gpu = &facts.gpus.value().unwrap()[0];
    assert_eq!(gpu.mig, Reading::Failed(NOT_SAID.into()));
    assert_eq!(gpu.memory_used, Reading::Failed(NOT_SAID.into()));
    assert_eq!(mig_from_wire(77), Reading::Failed(NOT_SAID.into()));
    assert!(facts.links.is_empty());
}
