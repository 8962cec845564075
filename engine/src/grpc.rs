//! Prefill as a service: what prefill serves, what decode calls, and what both check before they trust each other.
//! In: [`engine_proto`]'s messages. Out: the engine's own types.
//! Never: policy, HTTP.

pub mod assembly;
pub mod client;
pub mod contract;
pub mod lookup;
pub mod peers;
pub mod server;
pub mod verdict;

#[cfg(test)]
mod tests;
