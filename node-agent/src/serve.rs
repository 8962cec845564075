//! What the agent offers to others: facts over gRPC, and health and metrics over plain HTTP.

pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod tls;
pub(crate) mod token;
