use std::time::Instant;

use tokio::sync::watch;

use super::*;
use crate::state::{GpuSensors, Observation};

fn observation(gpus: usize) -> Observation {
    let mut facts = crate::scene::facts("story").unwrap();
    let Reading::Value(all) = &mut facts.gpus else { panic!("no GPUs") };
    all.truncate(gpus);
    let sensors = Sensors {
        temperature: Ok(41),
        power_milliwatts: Ok(95_500),
        busy_percent: Ok(50),
        memory_busy_percent: Err(crate::source::nvml::Fault::from(crate::source::nvml::Code::NotSupported)),
    };
    let sensors = all.iter().map(|gpu| GpuSensors { uuid: gpu.uuid.clone(), sensors: sensors.clone() });
    let sensors = sensors.collect();
    Observation { facts, sensors, gpus_on_bus: Reading::Value(8), at: Instant::now(), unix_ms: 0 }
}

fn state(gpus: usize) -> Option<Arc<State>> {
    Some(Arc::new(State::first("run".into(), observation(gpus))))
}

#[test]
fn every_gpu_has_its_series_and_they_vanish_with_it() {
    let (states, newest) = watch::channel(state(8));
    let metrics = Metrics::new(newest, false);
    let count =
        |name: &str| metrics.text().lines().filter(|line| line.starts_with(&format!("{name}{{"))).count();
    assert_eq!((count("fathom_gpu_temperature_celsius"), count("fathom_gpu_memory_used_bytes")), (8, 8));
    let series = metrics.text().lines().count();
    for _ in 0..20 {
        states.send_replace(state(7));
        assert_eq!((count("fathom_gpu_temperature_celsius"), count("fathom_gpu_healthy")), (7, 7));
        states.send_replace(state(8));
    }
    assert_eq!(metrics.text().lines().count(), series);
}

#[test]
fn values_have_the_units_of_their_names_and_nothing_stands_for_what_was_not_read() {
    let (_states, newest) = watch::channel(state(1));
    let text = Metrics::new(newest, false).text();
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(line("fathom_gpu_power_watts{").ends_with(" 95.5"), "{text}");
    assert!(line("fathom_gpu_busy_ratio{").ends_with(" 0.5"), "{text}");
    assert!(
        line("fathom_node_gpus_expected").ends_with(" 8") || text.contains("fathom_node_gpus_expected 8.0")
    );
    assert!(text.contains("fathom_node_memory_total_bytes{numa_node=\"1\"} 240000000000"), "{text}");
    assert!(!text.contains("fathom_gpu_memory_busy_ratio"), "{text}");
    assert!(!text.contains("DCGM"), "{text}");
    assert!(text.ends_with("# EOF\n"), "{text}");
}

#[test]
fn dashboards_of_dcgm_exporter_find_their_names_and_labels_when_asked_for() {
    let (_states, newest) = watch::channel(state(1));
    let text = Metrics::new(newest, true).text();
    let line = text.lines().find(|line| line.starts_with("DCGM_FI_DEV_GPU_TEMP{")).unwrap();
    for label in ["gpu=\"0\"", "UUID=\"GPU-", "modelName=\"NVIDIA", "Hostname=\"", "device=\"nvidia0\""] {
        assert!(line.contains(label), "{line}");
    }
    assert!(line.ends_with(" 41.0") || line.ends_with(" 41"), "{line}");
}

#[test]
fn open_streams_are_counted_and_before_the_first_facts_there_is_nothing_else() {
    let (_states, newest) = watch::channel(None);
    let metrics = Metrics::new(newest, true);
    let open = [metrics.stream(), metrics.stream()];
    assert!(metrics.text().contains("fathom_node_streams 2"), "{}", metrics.text());
    drop(open);
    assert!(metrics.text().contains("fathom_node_streams 0"), "{}", metrics.text());
    assert!(!metrics.text().contains("fathom_node_facts_age"));
}
