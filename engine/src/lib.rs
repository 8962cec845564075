//! The DeepSeek V4 runtime: API, admission, scheduler, roles.
//! Start at [`role`] for the life of a process, at [`engine`] for the thread that computes, at [`schedule`] for what it
//! computes next, at [`chat`] for what a request means.

pub mod admission;
pub mod api_error;
pub mod binding;
pub mod chain;
pub mod chat;
pub mod config;
pub mod engine;
pub mod grpc;
pub mod http;
pub mod last_words;
pub mod lifecycle;
pub mod metrics;
pub mod pool;
pub mod process;
pub mod random;
pub mod role;
pub mod sample;
pub mod schedule;
pub mod sequence;
pub mod step;

#[cfg(test)]
mod rig;

pub use api_error::ApiError;
