//! The agent as its callers meet it: in this process, on ports of 127.0.0.1, with an API server that reviews tokens.
#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests; what they share included")]

mod certificates;
mod facts;
mod refusals;
mod rig;
