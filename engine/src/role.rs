//! The loops of the roles; I/O lives here.
//! In: a configuration. Out: a process that listens, loads, serves, and ends when told to.

use engine_spec::{EngineConfig, Role};

use crate::binding::Report;
use crate::chain::chain;
use crate::step;

pub mod decode;
pub mod node;
pub mod prefill;
pub mod router;
pub mod unified;

pub use node::{Node, RoleError};

/// Runs the configured role until SIGTERM or SIGINT has drained it.
///
/// # Errors
/// [`RoleError`]: it could not listen, load or go on.
pub async fn run(config: EngineConfig, binding: Report) -> Result<(), RoleError> {
    let loader = Box::new(step::model::load);
    let node = match config.role {
        Role::Router => return run_router(config).await,
        Role::Prefill => prefill::start(config, binding, loader).await?,
        Role::Decode => decode::start(config, binding, loader).await?,
        Role::Unified => unified::start(config, binding, loader).await?,
    };
    node.run_until_told().await
}

async fn run_router(config: EngineConfig) -> Result<(), RoleError> {
    router::run(config).await.map_err(|error| RoleError::Router(chain(&error)))
}

#[cfg(test)]
mod tests;
