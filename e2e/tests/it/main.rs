//! Scenarios on the built programs, one file each. A scenario starts what it needs and takes it down.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "these are tests; helpers included"
)]

mod answers;
mod bad_input;
mod chart;
mod kill;
mod openai_sdk;
mod parallel;
mod quickstart;
mod story;
mod tidy;
