//! The closest connection of each pair of GPUs.
//! In: a sample, the NUMA nodes, the GPUs. Out: links by uuid in ascending order.
//! Never: a guess. A pair whose NVLink state could not be read is left out, since NVLink would be the closest.
//! NVLink first, then the bridges that both share, then their NUMA nodes; what NVML says of the PCI tree only where the
//! kernel does not show it (virtual machines).

use std::collections::BTreeMap;

use node_facts::{Gpu, GpuLink, LinkKind, NumaNode, Reading};

use super::pci::Chain;
use crate::collect::Sample;
use crate::source::nvml::{Ancestor, Code, PairAnswers};

pub(super) fn links(
    sample: &Sample,
    numa: &Reading<BTreeMap<u32, NumaNode>>,
    gpus: &Reading<Vec<Gpu>>,
) -> Vec<GpuLink> {
    let (Ok(answers), Reading::Value(gpus)) = (&sample.nvml, gpus) else {
        return Vec::new();
    };
    let one_node = matches!(numa, Reading::Absent(_));
    let mut links = Vec::new();
    for pair in &answers.pairs {
        let by_index = |index: usize| gpus.iter().find(|gpu| gpu.index as usize == index);
        let (Some(a), Some(b)) = (by_index(pair.a), by_index(pair.b)) else { continue };
        if let Some(kind) = link_kind(pair, a, b, sample, one_node) {
            let (a, b) = if a.uuid <= b.uuid { (a, b) } else { (b, a) };
            links.push(GpuLink { a: a.uuid.clone(), b: b.uuid.clone(), kind });
        }
    }
    links.sort_by(|x, y| (&x.a, &x.b).cmp(&(&y.a, &y.b)));
    links
}

fn link_kind(pair: &PairAnswers, a: &Gpu, b: &Gpu, sample: &Sample, one_node: bool) -> Option<LinkKind> {
    match &pair.nvlink {
        Ok(true) => return Some(LinkKind::NvLink),
        Ok(false) => {}
        // A GPU, or a library, that does not know the call has no NVLink.
        Err(fault) if matches!(fault.code, Code::NotSupported | Code::FunctionNotFound) => {}
        Err(_) => return None,
    }
    let chain = |gpu: &Gpu| Chain::of(sample.pci.get(gpu.pci.value()?)?.chain.value()?);
    if let (Some(a), Some(b)) = (chain(a), chain(b)) {
        if a.shares_switch(&b) {
            return Some(LinkKind::SamePciSwitch);
        }
        if a.host_bridge == b.host_bridge {
            return Some(LinkKind::SameHostBridge);
        }
    } else if let Ok(ancestor) = pair.ancestor {
        return Some(from_nvml(ancestor));
    }
    match (a.numa_node.value(), b.numa_node.value()) {
        (Some(a), Some(b)) if a == b => Some(LinkKind::SameNuma),
        (Some(_), Some(_)) => Some(LinkKind::AcrossNuma),
        _ if one_node => Some(LinkKind::SameNuma),
        _ => None,
    }
}

fn from_nvml(ancestor: Ancestor) -> LinkKind {
    match ancestor {
        Ancestor::Internal | Ancestor::Single | Ancestor::Multiple => LinkKind::SamePciSwitch,
        Ancestor::HostBridge => LinkKind::SameHostBridge,
        Ancestor::Node => LinkKind::SameNuma,
        Ancestor::System => LinkKind::AcrossNuma,
    }
}
