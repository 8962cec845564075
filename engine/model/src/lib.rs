//! The maths of DeepSeek V4: start reading at [`mod@model`].
//! In: a published checkpoint, ragged batches. Out: logits; cache pages and slots as bytes.
//! Never: a scheduler, a socket, a tokenizer.

mod attention;
pub mod batch;
mod block;
mod cache;
#[cfg(test)]
mod golden;
mod head;
mod hyper;
mod model;
mod moe;
mod mtp;
mod ragged;
mod runtime;
mod tap;
mod weights;
mod workspace;

pub use batch::{Logits, Page, Segment, Slot, Want};
pub use ragged::ForwardError;
pub use runtime::{ModelOptions, Runtime};
pub use weights::{LoadError, Progress, WeightStorage};
