//! Operations on tensors: what DeepSeek V4 is computed with.
//! In: slices of f32 and packed weights. Out: slices of f32.
//! Never: a model, a server, a file, an environment variable; threads other than those of the current rayon pool.
//! Every op has one file with its contract, a plain reference beside it, and tests of one against the other.

pub mod attention;
pub mod compress;
mod cpu;
pub mod embed;
pub mod format;
pub mod gate;
pub mod hyper;
pub mod index;
pub mod linear;
mod ops;
mod parallel;
pub mod rms_norm;
pub mod rope;
pub mod round;
pub mod row;
mod scratch;
mod vector;

pub use cpu::Cpu;
pub use ops::Ops;
pub use scratch::Scratch;
