//! The number formats of weights and cache rows, exactly: every code decodes to one f32, every f32 encodes to one code.
//! In: f32 or codes. Out: codes or f32.
//! Never: scales other than powers of two here (the f32 row scale of index keys lives in [`crate::row`]).
//! FP8 is e4m3fn: no infinity, the largest value is 448, the codes 0x7F and 0xFF are NaN. A scale byte is an exponent.
//! Source: OCP Microscaling Formats (MX) v1.0, OCP 8-bit Floating Point v1.0.

pub mod bf16;
pub mod e8m0;
pub mod fp4;
pub mod fp8;
pub(crate) mod unpack;

#[cfg(test)]
mod tests;
