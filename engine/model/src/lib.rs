//! The maths of DeepSeek V4.

pub mod batch;

pub use batch::{Logits, Page, Segment, Slot, Want};
