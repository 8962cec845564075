//! The node agent's service `fathom.node.v1.NodeFacts`: messages, stubs, and conversions to and from facts.
//! In: the `.proto` file of this crate. Never: transport; a message that cannot be converted: what a peer of another
//! version says is unknown, and an unknown value is a failed reading.

mod convert;
mod kubelet;
mod reading;

pub use convert::{facts, merge, sections};

/// `fathom.node.v1`, generated.
#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("fathom.node.v1");
}

/// For reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The server's name in its certificate, whatever its address.
pub const SERVER_NAME: &str = "fathom-node-agent";

/// Largest message, both ways: a node of 500 pods, each with 200 CPUs of its own, is 2 MiB.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// A stream is never quiet for longer.
pub const HEARTBEAT_MS: u64 = 10_000;

/// Clients ping a quiet connection this often; servers refuse those who do so much more often.
pub const KEEPALIVE_MS: u64 = 30_000;
