//! What the supervisor tells people: lines, and one line of progress that a terminal shows in place.
//! What happens also goes to the supervisor's log; in the background only there.
//! Never: fails because nobody reads. A closed pipe must not end the supervisor.

use std::io::{IsTerminal, Write};

use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::cli::local::log::Log;

#[derive(Debug)]
pub(crate) struct Console {
    log: Log,
    open: bool,
    terminal: bool,
    progress: String,
}

impl Console {
    pub(crate) fn new(log: Log) -> Self {
        Self { log, open: true, terminal: std::io::stdout().is_terminal(), progress: String::new() }
    }

    pub(crate) fn say(&mut self, text: &str) {
        self.record(text);
        self.show(text);
    }

    /// For whoever reads now; the log has no use for it.
    pub(crate) fn show(&mut self, text: &str) {
        if self.open {
            self.end_progress();
            print(std::io::stdout().lock(), &format!("{text}\n"));
        }
    }

    /// What is the answer to "why not?": where errors go.
    pub(super) fn complain(&mut self, text: &str) {
        self.record(text);
        if self.open {
            self.end_progress();
            print(std::io::stderr().lock(), &format!("fathom: {text}\n"));
        }
    }

    /// For the log alone.
    pub(super) fn record(&self, text: &str) {
        let mut time = String::new();
        // Without a time a line is still worth writing.
        let _ = SystemTime.format_time(&mut Writer::new(&mut time));
        for line in text.lines() {
            self.log.write_line(&format!("{time} {line}"));
        }
    }

    /// Percentages are shown in steps of this: a terminal line changes in place, others are written one by one.
    pub(super) fn percent_step(&self) -> u8 {
        if self.terminal { 1 } else { 25 }
    }

    pub(super) fn progress(&mut self, text: String) {
        if !self.open || text == self.progress {
            return;
        }
        let shown = if self.terminal { format!("\r{text}\x1b[K") } else { format!("{text}\n") };
        print(std::io::stdout().lock(), &shown);
        self.progress = text;
    }

    fn end_progress(&mut self) {
        if self.terminal && !self.progress.is_empty() {
            print(std::io::stdout().lock(), "\n");
            self.progress.clear();
        }
    }

    /// From here on only the log is written.
    pub(crate) fn close(&mut self) {
        self.open = false;
    }
}

fn print(mut out: impl Write, text: &str) {
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
