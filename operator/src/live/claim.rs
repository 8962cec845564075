//! What is kept of a ResourceClaim, ours or a stranger's: what it asks for, what it was given.
//! In: claims of a watch. Out: [`LiveClaim`]. Never: devices seen with admin access, which takes nothing.

use k8s_openapi::api::resource::v1::{AllocationResult, DeviceRequestAllocationResult, ResourceClaim};

use super::child::LiveChild;

/// A claim as it was last seen.
pub type LiveClaim = LiveChild<ClaimContent>;

/// Of a claim, what some step reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimContent {
    /// Of its first request.
    pub device_class: Option<Box<str>>,
    /// What the scheduler has given it; `None` until then.
    pub given: Option<Vec<GivenDevice>>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GivenDevice {
    pub driver: Box<str>,
    pub pool: Box<str>,
    pub name: Box<str>,
}

impl LiveClaim {
    /// Whether the scheduler has given it its devices.
    pub fn is_allocated(&self) -> bool {
        self.content.given.is_some()
    }

    pub fn devices(&self) -> &[GivenDevice] {
        self.content.given.as_deref().unwrap_or_default()
    }
}

impl From<ResourceClaim> for LiveClaim {
    fn from(claim: ResourceClaim) -> Self {
        let requests = claim.spec.devices.as_ref().and_then(|devices| devices.requests.as_ref());
        let first = requests.and_then(|requests| requests.first()?.exactly.as_ref());
        let content = ClaimContent {
            device_class: first.map(|request| request.device_class_name.as_str().into()),
            given: claim.status.and_then(|status| status.allocation).map(given),
        };
        Self::new(&claim.metadata, content)
    }
}

fn given(allocation: AllocationResult) -> Vec<GivenDevice> {
    let results = allocation.devices.and_then(|devices| devices.results).unwrap_or_default();
    let taking = results.into_iter().filter(|result| result.admin_access != Some(true));
    let device = |result: DeviceRequestAllocationResult| GivenDevice {
        driver: result.driver.into(),
        pool: result.pool.into(),
        name: result.device.into(),
    };
    taking.map(device).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_claim_holds_what_it_was_given_and_nothing_that_it_only_watches() {
        let claim = |status: Value| -> LiveClaim {
            let json = json!({"metadata": {"name": "c"}, "spec": {}, "status": status});
            serde_json::from_value::<ResourceClaim>(json).unwrap().into()
        };
        assert!(!claim(json!({})).is_allocated());
        let given = |device: &str, watches: bool| json!({"driver": "d", "pool": "p", "device": device, "request": "r", "adminAccess": watches});
        let results = json!([given("gpu-0", false), given("gpu-1", true)]);
        let claim = claim(json!({"allocation": {"devices": {"results": results}}}));
        assert!(claim.is_allocated());
        let names: Vec<&str> = claim.devices().iter().map(|device| &*device.name).collect();
        assert_eq!(names, ["gpu-0"]);
    }
}
