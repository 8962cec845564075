//! Which decode and which prefill serve a request, and whether it may come in at all.
//! In: what is known of each worker, the size of a body. Out: a [`policy::Choice`], a [`admission::Permit`] or a refusal.
//! Never: I/O, clocks, the contents of a request.
//! Everything here is driven from outside, so that a test can replay any order of events.

pub mod admission;
pub mod health;
pub mod policy;

pub use admission::{Demand, Ledger, Limits, Permit, Refusal};
pub use health::{Health, PollResult, RequestResult, WorkerState};
pub use policy::{Choice, NoWorker, Policy, WorkerView, check_usable};
