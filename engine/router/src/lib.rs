//! Choice of decode and prefill.
