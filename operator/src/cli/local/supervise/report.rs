//! How the supervisor words what happens: for `state.json`, and for people.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use engine_spec::config::Role;

use super::machine::{Ending, KillReason, Limits, Notice, Phase, ProcessState};
use super::policy::RestartPolicy;
use super::{Supervisor, launch};
use crate::cli::local::ports;
use crate::cli::local::state::{ClusterState, ProcessIdentity, ProcessStatus};

impl Supervisor<'_> {
    pub(super) fn snapshot(&self) -> ClusterState {
        let processes: Vec<ProcessStatus> =
            (0..self.slots.len()).map(|process| self.process_status(process)).collect();
        ClusterState {
            name: self.folder.name.clone(),
            phase: self.machine.phase(),
            endpoint: self.endpoint(),
            model: self.slots.first().map(|slot| slot.config.model.name.clone()).unwrap_or_default(),
            message: self.complaint(),
            supervisor: ProcessIdentity::own(),
            stop_within_ms: u64::try_from(self.stop_within().as_millis()).unwrap_or(u64::MAX),
            processes,
        }
    }

    /// Stages end one after the other, the processes of a stage together.
    fn stop_within(&self) -> Duration {
        let mut longest: BTreeMap<u8, Duration> = BTreeMap::new();
        for slot in &self.slots {
            let grace = longest.entry(launch::stage(slot.config.role)).or_default();
            *grace = slot.grace().max(*grace);
        }
        longest.values().sum()
    }

    fn process_status(&self, process: usize) -> ProcessStatus {
        let slot = &self.slots[process];
        ProcessStatus {
            name: slot.name.clone(),
            role: slot.config.role,
            state: self.machine.state(process),
            pid: slot.running.as_ref().map(|running| running.pid),
            restarts: self.machine.restarts(process),
            http: slot.addresses.map(|at| at.http),
            grpc: slot.addresses.and_then(|at| at.grpc),
            last_exit: slot.last_exit.clone(),
            last_lines: slot.last_lines.clone(),
            dropped_log_lines: slot.log.dropped(),
        }
    }

    fn endpoint(&self) -> Option<String> {
        let router = self.slots.iter().find(|slot| slot.config.role == Role::Router)?;
        Some(format!("http://{}", ports::to_call(router.addresses?.http)))
    }

    fn complaint(&self) -> Option<String> {
        if let Some(Ending::StartFailed { process }) = self.machine.ended() {
            return Some(format!("{} during the start", self.exit_of(*process)));
        }
        let failed =
            (0..self.slots.len()).find(|process| self.machine.state(*process) == ProcessState::Failed)?;
        Some(format!("{}, too often: it stays down", self.exit_of(failed)))
    }

    /// "prefill-0 ended (exit code 2)"
    fn exit_of(&self, process: usize) -> String {
        let slot = &self.slots[process];
        format!("{} ended ({})", slot.name, slot.last_exit.as_deref().unwrap_or("unknown"))
    }

    fn last_words(&self, process: usize) -> String {
        let slot = &self.slots[process];
        let mut text = String::new();
        if slot.last_lines.is_empty() {
            text.push_str(" It said nothing.");
        } else {
            text.push_str(" Its last lines:\n");
            for line in &slot.last_lines {
                let _ = writeln!(text, "    {line}");
            }
            let _ = write!(text, "All of them: {}", self.folder.log_path(&slot.name).display());
        }
        text
    }

    pub(super) fn explain(&self, notice: Notice) -> String {
        let RestartPolicy { limit, window, .. } = Limits::default().restart;
        match notice {
            Notice::Restarting { process, delay } => format!(
                "{}; starting it again in {} s (at most {limit} times in {} minutes)",
                self.exit_of(process),
                delay.as_secs_f64(),
                window.as_secs() / 60,
            ),
            Notice::GivenUp { process } => format!(
                "{}, and that more than {limit} times in {} minutes: it stays down.{}",
                self.exit_of(process),
                window.as_secs() / 60,
                self.last_words(process),
            ),
            Notice::BackAgain { process } => format!("{} is ready again", self.slots[process].name),
            Notice::Draining { process } => format!("ending {}", self.slots[process].name),
        }
    }

    pub(super) fn explain_kill(&self, process: usize, reason: KillReason) -> String {
        let Limits { listen, silence, .. } = Limits::default();
        let name = &self.slots[process].name;
        match reason {
            KillReason::NeverListened => {
                format!("killing {name}: it did not listen within {} s", listen.as_secs())
            }
            KillReason::SilentWhileLoading => {
                format!("killing {name}: it loads and has said nothing for {} s", silence.as_secs())
            }
            KillReason::OverstayedDrain => format!("killing {name}: it did not end in its drain time"),
            KillReason::AskedTwice => format!("killing {name}"),
        }
    }

    pub(super) fn welcome(&mut self) {
        let endpoint = self.endpoint().unwrap_or_default();
        let model = self.slots.first().map_or("", |slot| slot.config.model.name.as_str());
        let hint = format!(
            "\nAsk it something:\n\n  \
             curl {endpoint}/v1/chat/completions -H 'content-type: application/json' \\\n    \
             -d '{{\"model\": \"{model}\", \"messages\": [{{\"role\": \"user\", \"content\": \"Hello!\"}}]}}'\n"
        );
        self.console.say(&format!("{} is ready: {endpoint}", self.folder.name));
        self.console.show(&hint);
    }

    pub(super) fn farewell(&self, ending: &Ending) -> String {
        let name = &self.folder.name;
        match ending {
            Ending::Asked => format!("{name} has ended"),
            Ending::Interrupted => format!("{name} was ended before it was ready"),
            Ending::StartFailed { process } => {
                format!("{name} did not start: {}.{}", self.exit_of(*process), self.last_words(*process))
            }
        }
    }

    /// One line while the first start goes on: `prefill-0 loads 40 % · decode-0 ready · router-0 waits`.
    pub(super) fn show_progress(&mut self) {
        if self.machine.phase() != Phase::Starting {
            return;
        }
        let step = self.console.percent_step();
        let one = |process: usize| {
            let slot = &self.slots[process];
            let doing = match (self.machine.state(process), slot.loaded_percent) {
                (ProcessState::Waiting, _) => "waits".to_owned(),
                (ProcessState::Starting, _) => "starts".to_owned(),
                (ProcessState::Loading, None) => "loads".to_owned(),
                (ProcessState::Loading, Some(percent)) => format!("loads {} %", percent / step * step),
                (ProcessState::Ready, _) => "ready".to_owned(),
                (
                    ProcessState::BackOff
                    | ProcessState::Failed
                    | ProcessState::Stopping
                    | ProcessState::Stopped,
                    _,
                ) => "down".to_owned(),
            };
            format!("{} {doing}", slot.name)
        };
        let line = (0..self.slots.len()).map(one).collect::<Vec<_>>().join(" · ");
        self.console.progress(line);
    }
}
