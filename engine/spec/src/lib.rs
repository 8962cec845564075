//! Facts about DeepSeek V4 that the planner and the engine share: dimensions, bytes, queue limits, configuration.
//! In: a checkpoint's `config.json` text, plan figures. Out: shapes, byte counts, [`EngineConfig`].
//! Never: I/O, clocks, environment, CUDA. Every number that sizes, admits, transfers or reports KV comes from here,
//! so that a planned size cannot be refused by the engine.

pub mod admission;
pub mod config;
pub mod host_tier;
pub mod memory;
pub mod shape;

pub use admission::queue_limit_tokens;
pub use config::{ConfigError, EngineConfig, Role};
pub use memory::{IndexKeyFormat, PAGE_TOKENS, Precision};
pub use shape::{LayerKind, ModelShape, NamedShape, ShapeError};
