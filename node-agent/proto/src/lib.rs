//! The node agent's service.

/// `fathom.node.v1`, generated.
#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("fathom.node.v1");
}
