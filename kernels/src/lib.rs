//! Operations on tensors: what DeepSeek V4 is computed with.
//! In: slices of f32 and packed weights. Out: slices of f32. Never: a model, a server, a file.
//! Every op has one file with its contract, a plain reference beside it, and tests of one against the other.

pub mod compress;
pub mod gate;
pub mod hyper;
pub mod rms_norm;
pub mod rope;
mod vector;
