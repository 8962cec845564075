//! The operator: gather -> plan -> check -> render -> apply -> status, and the `fathom` command line.

pub mod agents;
pub mod apply;
pub mod backoff;
pub mod certificates;
pub mod chain;
pub mod config;
pub mod events;
pub mod gather;
pub mod http;
pub mod lease;
pub mod live;
pub mod metrics;
pub mod plan_service;
pub mod question;
pub mod reconcile;
pub mod run;
pub mod shape;
pub mod status;
