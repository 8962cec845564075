//! What Prometheus reads: made from the newest state at each scrape.
//! Out: `fathom_node_*`, `fathom_gpu_*`, and on request the names that dcgm-exporter gives, so that dashboards made for it
//! show something. Never: a series of a GPU that is gone, a zero where nothing was read.
//! Labels are uuids, indexes and NUMA nodes of what the machine has: their bound is NVML's.

use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use node_facts::{Gpu, GpuHealth, NodeFacts, Reading};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::serve::grpc::States;
use crate::source::nvml::Sensors;
use crate::state::State;

const MIB: f64 = 1_048_576.0;

/// The registry, and the one number that no state has.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    streams: Arc<AtomicI64>,
}

impl Metrics {
    pub(crate) fn new(states: States, dcgm_names: bool) -> Self {
        let streams = Arc::new(AtomicI64::new(0));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Scrape { states, dcgm_names, streams: streams.clone() }));
        Metrics { registry, streams }
    }

    /// Counts a stream for as long as the guard lives.
    pub(crate) fn stream(&self) -> OpenStream {
        self.streams.fetch_add(1, Ordering::Relaxed);
        OpenStream(self.streams.clone())
    }

    /// OpenMetrics.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // A String takes everything.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// One open stream.
#[derive(Debug)]
pub(crate) struct OpenStream(Arc<AtomicI64>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Scrape {
    states: States,
    dcgm_names: bool,
    streams: Arc<AtomicI64>,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let open = self.streams.load(Ordering::Relaxed);
        gauge(&mut encoder, "fathom_node_streams", "Open Watch streams", [Series::alone(float(open))])?;
        let Some(state) = self.states.borrow().clone() else { return Ok(()) };
        node(&mut encoder, &state)?;
        gpus(&mut encoder, &state)?;
        if self.dcgm_names { dcgm(&mut encoder, &state) } else { Ok(()) }
    }
}

/// One value with its labels.
struct Series {
    labels: Vec<(&'static str, String)>,
    value: f64,
}

impl Series {
    fn alone(value: f64) -> Self {
        Series { labels: Vec::new(), value }
    }
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl IntoIterator<Item = Series>,
) -> Result<(), Error> {
    let mut series = series.into_iter().peekable();
    if series.peek().is_none() {
        return Ok(());
    }
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for Series { labels, value } in series {
        if labels.is_empty() {
            metric.encode_gauge(&value)?;
        } else {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
    }
    Ok(())
}

fn node(encoder: &mut DescriptorEncoder<'_>, state: &State) -> Result<(), Error> {
    let age = state.observed.elapsed().as_secs_f64();
    gauge(encoder, "fathom_node_facts_age_seconds", "Age of the newest facts", [Series::alone(age)])?;
    let expected = state.gpus_on_bus.value().map(|count| Series::alone(count_as_float(*count)));
    gauge(encoder, "fathom_node_gpus_expected", "NVIDIA GPUs that the PCI bus shows", expected)?;
    let usable = state.facts.gpus.value().map_or(0, Vec::len);
    let usable = [Series::alone(count_as_float(usable))];
    gauge(encoder, "fathom_node_gpus_usable", "GPUs that NVML tells of", usable)?;
    let memory = |bytes: fn(&node_facts::Memory) -> u64| numa_memory(&state.facts, bytes);
    gauge(encoder, "fathom_node_memory_total_bytes", "Memory of a NUMA node", memory(|m| m.total))?;
    gauge(encoder, "fathom_node_memory_free_bytes", "Free memory of a NUMA node", memory(|m| m.free))?;
    let help = "Memory of a NUMA node that is free or holds only page cache";
    gauge(encoder, "fathom_node_memory_available_bytes", help, memory(|m| m.available))
}

/// A kernel without NUMA is one node, 0, as in its own counters.
fn numa_memory(facts: &NodeFacts, bytes: fn(&node_facts::Memory) -> u64) -> Vec<Series> {
    let series = |number: u32, memory: &Reading<node_facts::Memory>| {
        let value = large(bytes(memory.value()?));
        Some(Series { labels: vec![("numa_node", number.to_string())], value })
    };
    match facts.numa.value() {
        Some(nodes) => nodes.iter().filter_map(|(number, node)| series(*number, &node.memory)).collect(),
        None => series(0, &facts.memory).into_iter().collect(),
    }
}

fn gpus(encoder: &mut DescriptorEncoder<'_>, state: &State) -> Result<(), Error> {
    let facts = |value: fn(&Gpu) -> Option<f64>| {
        let series = move |gpu: &Gpu| Some(Series { labels: labels(gpu), value: value(gpu)? });
        known(state).filter_map(series).collect::<Vec<_>>()
    };
    let sensors = |value: fn(&Sensors) -> Option<f64>| {
        let series =
            |(gpu, sensors): (&Gpu, &Sensors)| Some(Series { labels: labels(gpu), value: value(sensors)? });
        sensed(state).filter_map(series).collect::<Vec<_>>()
    };
    gauge(encoder, "fathom_gpu_healthy", "1: work may be placed on it; 0: lost", facts(healthy))?;
    gauge(
        encoder,
        "fathom_gpu_memory_total_bytes",
        "Memory of the GPU",
        facts(|gpu| bytes(&gpu.memory_total)),
    )?;
    gauge(encoder, "fathom_gpu_memory_used_bytes", "Memory in use", facts(|gpu| bytes(&gpu.memory_used)))?;
    let celsius = |sensors: &Sensors| value(&sensors.temperature, 1.0);
    gauge(encoder, "fathom_gpu_temperature_celsius", "Temperature of the core", sensors(celsius))?;
    let watts = |sensors: &Sensors| value(&sensors.power_milliwatts, 1e-3);
    gauge(encoder, "fathom_gpu_power_watts", "Power drawn", sensors(watts))?;
    let busy = |sensors: &Sensors| value(&sensors.busy_percent, 1e-2);
    gauge(encoder, "fathom_gpu_busy_ratio", "Part of time in which a kernel ran", sensors(busy))?;
    let busy = |sensors: &Sensors| value(&sensors.memory_busy_percent, 1e-2);
    let help = "Part of time in which memory was read or written";
    gauge(encoder, "fathom_gpu_memory_busy_ratio", help, sensors(busy))
}

/// Names, units and labels of dcgm-exporter.
fn dcgm(encoder: &mut DescriptorEncoder<'_>, state: &State) -> Result<(), Error> {
    let node = &state.facts.node;
    let sensors = |value: fn(&Sensors) -> Option<f64>| {
        let series = |(gpu, sensors): (&Gpu, &Sensors)| {
            Some(Series { labels: dcgm_labels(gpu, node), value: value(sensors)? })
        };
        sensed(state).filter_map(series).collect::<Vec<_>>()
    };
    let facts = |value: fn(&Gpu) -> Option<f64>| {
        let series = |gpu: &Gpu| Some(Series { labels: dcgm_labels(gpu, node), value: value(gpu)? });
        known(state).filter_map(series).collect::<Vec<_>>()
    };
    let celsius = |sensors: &Sensors| value(&sensors.temperature, 1.0);
    gauge(encoder, "DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C)", sensors(celsius))?;
    let watts = |sensors: &Sensors| value(&sensors.power_milliwatts, 1e-3);
    gauge(encoder, "DCGM_FI_DEV_POWER_USAGE", "Power draw (in W)", sensors(watts))?;
    let busy = |sensors: &Sensors| value(&sensors.busy_percent, 1.0);
    gauge(encoder, "DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %)", sensors(busy))?;
    let busy = |sensors: &Sensors| value(&sensors.memory_busy_percent, 1.0);
    gauge(encoder, "DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %)", sensors(busy))?;
    let used = |gpu: &Gpu| Some(bytes(&gpu.memory_used)? / MIB);
    gauge(encoder, "DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB)", facts(used))?;
    let free = |gpu: &Gpu| Some((bytes(&gpu.memory_total)? - bytes(&gpu.memory_used)?) / MIB);
    gauge(encoder, "DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB)", facts(free))
}

fn known(state: &State) -> impl Iterator<Item = &Gpu> {
    state.facts.gpus.value().into_iter().flatten()
}

fn sensed(state: &State) -> impl Iterator<Item = (&Gpu, &Sensors)> {
    known(state).filter_map(|gpu| {
        let sensors = state.sensors.iter().find(|sensors| sensors.uuid == gpu.uuid)?;
        Some((gpu, &sensors.sensors))
    })
}

fn labels(gpu: &Gpu) -> Vec<(&'static str, String)> {
    vec![("uuid", gpu.uuid.clone()), ("gpu", gpu.index.to_string())]
}

fn dcgm_labels(gpu: &Gpu, node: &str) -> Vec<(&'static str, String)> {
    let text = |reading: &Reading<String>| reading.value().cloned().unwrap_or_default();
    vec![
        ("gpu", gpu.index.to_string()),
        ("UUID", gpu.uuid.clone()),
        ("pci_bus_id", text(&gpu.pci)),
        ("device", format!("nvidia{}", gpu.index)),
        ("modelName", text(&gpu.name)),
        ("Hostname", node.to_owned()),
    ]
}

fn healthy(gpu: &Gpu) -> Option<f64> {
    gpu.health.value().map(|health| match health {
        GpuHealth::Healthy => 1.0,
        GpuHealth::Lost { .. } => 0.0,
    })
}

fn value<E>(reading: &Result<u32, E>, unit: f64) -> Option<f64> {
    reading.as_ref().ok().map(|value| f64::from(*value) * unit)
}

fn bytes(reading: &Reading<u64>) -> Option<f64> {
    reading.value().copied().map(large)
}

/// Exact up to 8 PiB.
#[expect(clippy::cast_precision_loss, reason = "a metric is a float")]
fn large(bytes: u64) -> f64 {
    bytes as f64
}

fn count_as_float(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

fn float(count: i64) -> f64 {
    i32::try_from(count).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests;
