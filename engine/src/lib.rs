//! The DeepSeek V4 runtime: API, admission, scheduler, roles.

pub mod api_error;
pub mod chat;
pub mod role;
pub mod sample;
pub mod step;

pub use api_error::ApiError;
