//! `fathom` as its users meet it: a program, its output, its exit code, its files.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stdout, reason = "the fake engine has a line to print")]

mod bench;
mod fake_engine;
mod local;
mod plan;
