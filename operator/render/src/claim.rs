//! The ResourceClaim that names the planned GPUs, so that the scheduler gives exactly these.
//! In: a plan entry. Out: a claim in mode DRA, for replicas with GPUs. Never: an allocation (the scheduler's part).

use k8s_openapi::api::resource::v1::{
    CELDeviceSelector, DeviceClaim, DeviceRequest, DeviceSelector, ExactDeviceRequest, ResourceClaim,
    ResourceClaimSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use operator_plan::{Mode, ReplicaPlan};

use crate::desired::RenderInput;
use crate::names;
use crate::pod::has_claim;

/// The claim of one replica.
pub(crate) fn claim(
    input: &RenderInput<'_>,
    entry: &ReplicaPlan,
    metadata: ObjectMeta,
) -> Option<ResourceClaim> {
    let Mode::Dra { driver, device_class } = &input.enforcement.mode else { return None };
    if !has_claim(&input.enforcement.mode, entry) {
        return None;
    }
    let exactly = ExactDeviceRequest {
        device_class_name: device_class.clone(),
        allocation_mode: Some("ExactCount".to_owned()),
        count: i64::try_from(entry.gpus.len()).ok(),
        selectors: Some(vec![DeviceSelector {
            cel: Some(CELDeviceSelector { expression: these_gpus(driver, entry) }),
        }]),
        ..ExactDeviceRequest::default()
    };
    let request =
        DeviceRequest { name: names::CLAIM.to_owned(), exactly: Some(exactly), ..DeviceRequest::default() };
    let devices = DeviceClaim { requests: Some(vec![request]), ..DeviceClaim::default() };
    Some(ResourceClaim { metadata, spec: ResourceClaimSpec { devices: Some(devices) }, status: None })
}

/// An attribute that a device lacks is an error that stops scheduling, not "no match": hence the guard.
fn these_gpus(driver: &str, entry: &ReplicaPlan) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let driver = quoted(driver);
    let uuids: Vec<String> = entry.gpus.iter().map(|gpu| quoted(&gpu.uuid)).collect();
    format!(
        "\"uuid\" in device.attributes[{driver}] && device.attributes[{driver}].uuid in [{}]",
        uuids.join(", ")
    )
}
