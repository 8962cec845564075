//! Fathom on a real Kubernetes. Each test makes what it needs, in a namespace of its own, and can be run alone:
//! `./dev e2e NAME`. Those that take longer than a minute are marked "slow" and belong to `./dev test slow`.
//! README.md beside this file lists what must be shown, and by which test.
#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests; what they share included")]

mod agents;
mod binding;
mod changes;
mod command_line;
mod faults;
mod install;
mod model;
mod network;
mod overload;
mod ownership;
mod plan_mode;
mod rights;
mod rules;
mod workers;

use std::time::Duration;

/// A needle object that nothing disturbs is Ready within this time (images are on the node).
const READY: Duration = Duration::from_secs(120);
/// What takes one or two reconciles and no pod's start.
const SOON: Duration = Duration::from_secs(20);
