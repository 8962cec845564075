//! The engine's program: reads its configuration, binds itself, runs its role.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use fathom_engine::chain::chain;
use fathom_engine::config::{self, Args};
use fathom_engine::{binding, last_words, role};
use tracing_subscriber::fmt::time::SystemTime;

/// Bad configuration, bad checkpoint, port in use: another start would end the same way.
const LASTING: u8 = 2;

fn main() -> ExitCode {
    let args = Args::parse();
    let config = match config::read(&args.config) {
        Ok(config) => config,
        Err(error) => return refuse(&error, LASTING),
    };
    if args.check_config {
        return match serde_json::to_string_pretty(&config) {
            Ok(text) => {
                use std::io::Write;
                // A reader that left has what it wanted.
                let _ = writeln!(std::io::stdout(), "{text}");
                ExitCode::SUCCESS
            }
            Err(error) => refuse(&error, LASTING),
        };
    }
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_timer(SystemTime)
        .with_max_level(args.log)
        .with_writer(std::io::stderr)
        .init();
    // Before any other thread exists: they inherit it.
    let binding = binding::bind(&config.binding);
    tracing::info!(name = config.name, role = %config.role, cpus = binding.cpus.line(), memory = binding.memory.line(),
        threads = binding.threads, version = env!("CARGO_PKG_VERSION"), "starting");
    let workers = binding.threads.clamp(1, 4);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return refuse(&error, 1),
    };
    let result = runtime.block_on(role::run(config, binding));
    // A checkpoint that is still loading does not keep the process.
    runtime.shutdown_timeout(Duration::from_millis(500));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refuse(&error, if error.is_lasting() { LASTING } else { 1 }),
    }
}

fn refuse(error: &dyn std::error::Error, code: u8) -> ExitCode {
    let line = format!("fathom-engine: {}", chain(error));
    eprintln!("{line}");
    last_words::write(Path::new(last_words::FILE), &line);
    ExitCode::from(code)
}
