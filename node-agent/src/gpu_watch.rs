//! What to make of NVML's answers over time.
//! In: each answer. Out: the answer to report, how long to wait, and whether to give up.
//! Never: GPUs forgotten because NVML has trouble: what runs on them still does. Their last answers stay, their health is
//! unknown with the reason.
//! Trouble that only a new container ends: a reload of systemd takes the devices away from a running one, and NVML answers
//! "unknown" for ever.

use std::time::{Duration, Instant};

use crate::source::nvml::{Code, DeviceAnswers, Fault, NvmlAnswer, NvmlDevices};

const EVERY: Duration = Duration::from_secs(1);
/// A driver that is installed while the agent runs is found within this time.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How long "unknown" may last before a new container is tried.
const GIVE_UP_AFTER: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
pub(crate) struct GpuWatch {
    last_good: Option<NvmlDevices>,
    failing_since: Option<Instant>,
    failures: u32,
}

/// What follows from one answer.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) answer: NvmlAnswer,
    pub(crate) ask_again: Duration,
    /// Why this process should end, so that its pod gets a new container.
    pub(crate) give_up: Option<String>,
}

impl GpuWatch {
    pub(crate) fn note(&mut self, answer: NvmlAnswer, now: Instant) -> Seen {
        let fault = match trouble(&answer) {
            None => {
                *self = GpuWatch { last_good: answer.clone().ok(), ..GpuWatch::default() };
                return Seen { answer, ask_again: EVERY, give_up: None };
            }
            Some(fault) => fault,
        };
        let since = *self.failing_since.get_or_insert(now);
        let ask_again = (EVERY * (1 << self.failures.min(10))).min(LONGEST_WAIT);
        self.failures = self.failures.saturating_add(1);
        let Some(good) = &self.last_good else {
            return Seen { answer, ask_again, give_up: None };
        };
        let lost_access = fault.code == Code::Unknown && now.duration_since(since) >= GIVE_UP_AFTER;
        let give_up = lost_access.then(|| {
            format!("NVML answered before, and for {} s only: {fault}", now.duration_since(since).as_secs())
        });
        Seen { answer: Ok(remembered(good, &fault)), ask_again, give_up }
    }
}

/// NVML as a whole does not answer: it fails, or every device does.
fn trouble(answer: &NvmlAnswer) -> Option<Fault> {
    let devices = match answer {
        Ok(devices) => &devices.devices,
        Err(fault) => return Some(fault.clone()),
    };
    let mut faults = devices.iter().map(|device| device.uuid.as_ref().err());
    let first = faults.next()??;
    // Lost devices are an answer.
    (!first.device_is_lost() && faults.all(|fault| fault.is_some())).then(|| first.clone())
}

/// Who the GPUs are does not change; how they are is unknown.
fn remembered(good: &NvmlDevices, fault: &Fault) -> NvmlDevices {
    let devices = good.devices.iter().map(|device| DeviceAnswers {
        uncorrected_errors: Err(fault.clone()),
        sensors: crate::source::nvml::Sensors::failed(fault),
        ..device.clone()
    });
    NvmlDevices { devices: devices.collect(), pairs: good.pairs.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::nvml::Sensors;

    fn device(uuid: Result<&str, Code>) -> DeviceAnswers {
        let unsupported = || Err(Fault::from(Code::NotSupported));
        let mig = Err(Fault::from(Code::NotSupported));
        DeviceAnswers {
            uuid: uuid.map(str::to_owned).map_err(Fault::from),
            name: unsupported(),
            pci: unsupported(),
            memory: Ok(crate::source::nvml::DeviceMemory { total: 100, used: 1 }),
            mig,
            uncorrected_errors: Ok(0),
            sensors: Sensors::failed(&Fault::from(Code::NotSupported)),
        }
    }

    fn devices(uuids: &[Result<&str, Code>]) -> NvmlAnswer {
        Ok(NvmlDevices { devices: uuids.iter().map(|uuid| device(*uuid)).collect(), pairs: Vec::new() })
    }

    fn failed(code: Code) -> NvmlAnswer {
        Err(Fault::from(code))
    }

    #[test]
    fn a_driver_that_comes_late_is_found_within_half_a_minute() {
        let (mut watch, mut now) = (GpuWatch::default(), Instant::now());
        for _ in 0..100 {
            let seen = watch.note(failed(Code::LibraryNotFound), now);
            assert!(seen.ask_again >= EVERY && seen.ask_again <= LONGEST_WAIT && seen.give_up.is_none());
            assert_eq!(seen.answer.unwrap_err().code, Code::LibraryNotFound);
            now += seen.ask_again;
        }
        let seen = watch.note(devices(&[Ok("GPU-0"); 8]), now);
        assert_eq!((seen.answer.unwrap().devices.len(), seen.ask_again), (8, EVERY));
    }

    #[test]
    fn gpus_whose_driver_stops_answering_keep_their_names_and_lose_their_health() {
        for trouble in [failed(Code::Timeout), devices(&[Err(Code::Unknown), Err(Code::Unknown)])] {
            let (mut watch, now) = (GpuWatch::default(), Instant::now());
            watch.note(devices(&[Ok("GPU-0"), Ok("GPU-1")]), now);
            let seen = watch.note(trouble, now + EVERY);
            let remembered = seen.answer.unwrap().devices;
            assert_eq!(remembered.len(), 2);
            assert!(remembered.iter().all(|gpu| gpu.uuid.is_ok() && gpu.uncorrected_errors.is_err()));
            let seen = watch.note(devices(&[Ok("GPU-0")]), now + EVERY * 2);
            assert_eq!(seen.answer.unwrap().devices.len(), 1, "an answer is believed");
        }
    }

    #[test]
    fn only_unknown_errors_that_last_end_the_agent_and_only_one_that_saw_gpus() {
        let begin = Instant::now();
        let after = |good: bool, code: Code, seconds: u64| {
            let mut watch = GpuWatch::default();
            if good {
                watch.note(devices(&[Ok("GPU-0")]), begin);
            }
            watch.note(failed(code), begin);
            watch.note(failed(code), begin + Duration::from_secs(seconds)).give_up
        };
        assert_eq!(after(true, Code::Unknown, 299), None);
        assert!(after(true, Code::Unknown, 300).unwrap().contains("an internal driver error"));
        assert_eq!(after(true, Code::DriverNotLoaded, 3_000), None);
        assert_eq!(after(false, Code::Unknown, 3_000), None);
    }

    #[test]
    fn devices_that_are_all_lost_are_an_answer() {
        let (mut watch, now) = (GpuWatch::default(), Instant::now());
        watch.note(devices(&[Ok("GPU-0")]), now);
        let seen = watch.note(devices(&[Err(Code::GpuLost)]), now);
        assert!(seen.answer.unwrap().devices[0].uuid.is_err());
        assert!(watch.note(devices(&[]), now).answer.unwrap().devices.is_empty());
    }
}
