//! The DeepSeek V4 runtime: API, admission, scheduler, roles.

pub mod chat;
pub mod role;
pub mod sample;
pub mod step;
