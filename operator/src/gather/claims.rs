//! GPUs that ResourceSlices offer, and those that strangers' claims hold.
//! In: slices and claims as watched. Out: uuids by node, [`Taken`], the driver. Never: claims of ours (their pods say what
//! they hold), devices without a uuid (they are no GPUs that a plan could name).

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::ResourceSlice;
use operator_plan::{ClaimDriver, Taken};

use super::kept::names_uuid;
use crate::live::claim::{GivenDevice, LiveClaim};

/// The drivers' devices that have a uuid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Offered {
    /// Each with its node and uuid.
    devices: BTreeMap<GivenDevice, (String, String)>,
}

impl Offered {
    pub fn new(slices: &[Arc<ResourceSlice>]) -> Self {
        let mut devices = BTreeMap::new();
        for slice in slices {
            let spec = &slice.spec;
            let Some(node) = &spec.node_name else { continue };
            for device in spec.devices.iter().flatten() {
                let mut attributes = device.attributes.iter().flatten();
                let uuid =
                    attributes.find(|(name, _)| names_uuid(name)).and_then(|(_, value)| value.string.clone());
                if let Some(uuid) = uuid {
                    let (driver, pool) = (spec.driver.as_str().into(), spec.pool.name.as_str().into());
                    let device = GivenDevice { driver, pool, name: device.name.as_str().into() };
                    devices.insert(device, (node.clone(), uuid));
                }
            }
        }
        Self { devices }
    }

    /// Uuids by node, sorted.
    pub fn by_node(&self) -> BTreeMap<String, Vec<String>> {
        let mut nodes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (node, uuid) in self.devices.values() {
            nodes.entry(node.clone()).or_default().push(uuid.clone());
        }
        nodes.values_mut().for_each(|uuids| uuids.sort());
        nodes
    }

    /// The driver of GPUs, whose class has its name: the well-known one before others.
    pub fn driver(&self) -> Option<ClaimDriver> {
        let drivers = || self.devices.keys().map(|device| &*device.driver);
        let known = drivers().find(|driver| *driver == "gpu.nvidia.com");
        known
            .or_else(|| drivers().next())
            .map(|driver| ClaimDriver { driver: driver.to_owned(), device_class: driver.to_owned() })
    }

    /// What claims of strangers hold: one entry a claim and node.
    pub fn taken_by_strangers(&self, claims: &[Arc<LiveClaim>]) -> Vec<Taken> {
        let mut taken = Vec::new();
        for claim in claims.iter().filter(|claim| claim.owner.is_none()) {
            let mut by_node: BTreeMap<&str, Vec<String>> = BTreeMap::new();
            for (node, uuid) in claim.devices().iter().filter_map(|device| self.find(device)) {
                by_node.entry(node).or_default().push(uuid.to_owned());
            }
            let by = format!("claim {}", claim.key);
            taken.extend(by_node.into_iter().map(|(node, gpus)| Taken {
                by: by.clone(),
                node: node.to_owned(),
                gpus,
                ..Taken::default()
            }));
        }
        taken
    }

    fn find(&self, device: &GivenDevice) -> Option<(&str, &str)> {
        self.devices.get(device).map(|(node, uuid)| (node.as_str(), uuid.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::resource::v1::ResourceClaim;
    use serde_json::json;

    use super::*;

    fn slice() -> Arc<ResourceSlice> {
        let device = |name: &str, uuid: &str| json!({"name": name, "attributes": {"uuid": {"string": uuid}}});
        let json = json!({
            "metadata": {"name": "s"},
            "spec": {
                "driver": "gpu.nvidia.com", "nodeName": "n1", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
                "devices": [device("gpu-0", "GPU-b"), device("gpu-1", "GPU-a"), {"name": "channel"}],
            },
        });
        Arc::new(serde_json::from_value(json).unwrap())
    }

    fn claim(labels: serde_json::Value, device: &str) -> Arc<LiveClaim> {
        let result = json!({"driver": "gpu.nvidia.com", "pool": "p", "device": device, "request": "r"});
        let json = json!({
            "metadata": {"name": "c", "namespace": "x", "labels": labels},
            "spec": {},
            "status": {"allocation": {"devices": {"results": [result]}}},
        });
        Arc::new(serde_json::from_value::<ResourceClaim>(json).unwrap().into())
    }

    #[test]
    fn a_strangers_claim_takes_the_gpu_that_its_device_is_and_ours_takes_nothing_twice() {
        let offered = Offered::new(&[slice()]);
        assert_eq!(offered.by_node()["n1"], ["GPU-a", "GPU-b"]);
        assert_eq!(offered.driver().unwrap().driver, "gpu.nvidia.com");
        let taken = offered.taken_by_strangers(&[claim(json!({}), "gpu-0")]);
        assert_eq!(taken.len(), 1);
        assert_eq!((taken[0].by.as_str(), taken[0].node.as_str()), ("claim x/c", "n1"));
        assert_eq!(taken[0].gpus, ["GPU-b"]);
        let ours = claim(json!({"fathom.dev/owner-uid": "u"}), "gpu-0");
        assert!(offered.taken_by_strangers(&[ours]).is_empty());
        assert!(offered.taken_by_strangers(&[claim(json!({}), "channel")]).is_empty());
    }
}
