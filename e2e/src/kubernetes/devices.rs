//! The fake GPUs of a scene: which there are, one held by a stranger, one that vanishes.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::api::{CLAIMS, PODS};
use super::namespace::Namespace;
use super::{environment, images};
use crate::cluster::root;

/// Time for a pod to get a claimed GPU.
const HELD: Duration = Duration::from_secs(60);

/// UUIDs of a scene's GPUs on one NUMA node, from the scene's own files.
///
/// # Errors
/// When the scene cannot be read.
pub fn scene_gpus(scene: &str, numa_node: i64) -> anyhow::Result<BTreeSet<String>> {
    let folder = root().join("node-agent/testdata").join(scene);
    let text = std::fs::read_to_string(folder.join("nvml.yaml"))?;
    let nvml: Value = serde_saphyr::from_str(&text)?;
    let mut found = BTreeSet::new();
    for device in nvml["devices"].as_array().context("no devices")? {
        // NVML writes a domain of eight digits, sysfs one of four.
        let pci = device["pci"].as_str().context("no pci")?.to_lowercase();
        let address = pci.get(4..).context("a short pci address")?;
        let path = folder.join(format!("root/sys/bus/pci/devices/{address}/numa_node"));
        let node = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        if node.trim() == numa_node.to_string() {
            found.insert(device["uuid"].as_str().context("no uuid")?.to_owned());
        }
    }
    Ok(found)
}

/// The UUID of an allocated device, from the slices.
///
/// # Errors
/// When no slice has it.
pub fn uuid(slices: &[Value], result: &Value) -> anyhow::Result<String> {
    let same = |slice: &&Value| {
        slice["spec"]["driver"] == result["driver"] && slice["spec"]["pool"]["name"] == result["pool"]
    };
    let devices =
        slices.iter().filter(same).filter_map(|slice| slice["spec"]["devices"].as_array()).flatten();
    let device = devices.into_iter().find(|d| d["name"] == result["device"]);
    let uuid = device.and_then(|d| d["attributes"]["uuid"]["string"].as_str());
    uuid.map(str::to_owned).with_context(|| format!("no slice has {result}"))
}

/// A pod and a claim, both called `name`, that hold one GPU.
///
/// # Errors
/// When the GPU is not given to it.
pub fn hold(namespace: &Namespace<'_>, name: &str, gpu: &str) -> anyhow::Result<()> {
    let api = &namespace.kubernetes().api;
    let selector = format!("device.attributes[\"gpu.nvidia.com\"].?uuid.orValue(\"\") == \"{gpu}\"");
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {
            "deviceClassName": "gpu.nvidia.com", "selectors": [{"cel": {"expression": selector}}],
        }}]}},
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [{
                "name": "box", "image": "fathom.dev/box:1", "command": ["/bin/busybox", "sleep", "100000"],
                "resources": {"claims": [{"name": "gpu"}]},
            }],
        },
    });
    api.create(CLAIMS, &namespace.name, &claim)?;
    api.create(PODS, &namespace.name, &pod)?;
    namespace.wait(&format!("{name} to hold {gpu}"), HELD, || {
        let pod = api.get(PODS, &namespace.name, name)?;
        Ok((pod["status"]["phase"] == "Running").then_some(()))
    })
}

/// A GPU that the driver no longer offers; it does again when asked, or dropped.
#[derive(Debug)]
pub struct Vanished {
    worker: String,
    back: bool,
}

/// Takes a GPU out of its worker's slice.
///
/// # Errors
/// When no worker has it.
pub fn vanish(gpu: &str) -> anyhow::Result<Vanished> {
    for worker in images::workers()? {
        if environment::dev(&["gpus", &worker, "lose", gpu]).is_ok() {
            return Ok(Vanished { worker, back: false });
        }
    }
    anyhow::bail!("no worker offers {gpu}")
}

impl Vanished {
    /// Offers the GPU again.
    ///
    /// # Errors
    /// When the driver does not take it.
    pub fn bring_back(mut self) -> anyhow::Result<()> {
        ensure!(!self.back, "it is back already");
        self.back = true;
        environment::dev(&["gpus", &self.worker, "restore"])
    }
}

impl Drop for Vanished {
    fn drop(&mut self) {
        if !self.back
            && let Err(error) = environment::dev(&["gpus", &self.worker, "restore"])
        {
            eprintln!("bringing the GPUs of {} back: {error:#}", self.worker);
        }
    }
}
