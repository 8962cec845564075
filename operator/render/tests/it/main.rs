//! Cases of rendering: golden objects, and properties that hold between two renderings.

#![expect(clippy::unwrap_used, reason = "test code")]

mod golden;
mod scene;
mod security;
mod sizes;
mod stability;
