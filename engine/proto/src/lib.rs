//! Messages between the roles: the prefill service that decode calls.
//! In: the `.proto` files of this crate. Out: their types, client and server stubs.
//! Never: behaviour; conversions to the engine's own types live in the engine, at the edge.

/// `fathom.engine.v1`, generated.
#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("fathom.engine.v1");
}

/// Raised when a message changes its meaning; a pair with different versions refuses each other.
pub const PROTOCOL_VERSION: u32 = 1;

/// Data bytes of one [`v1::Frame`] at most.
pub const MAX_FRAME_BYTES: usize = 1 << 20;
