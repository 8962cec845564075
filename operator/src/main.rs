//! The operator's program.

use std::process::ExitCode;

use fathom_operator::{config, run};

fn main() -> ExitCode {
    let config = match config::Config::read() {
        Ok(config) => config,
        Err(error) => {
            // Help and version go to standard output, mistakes to standard error, as everywhere.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    run::main(config)
}
