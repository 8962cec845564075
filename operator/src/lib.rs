//! The operator: gather -> plan -> check -> render -> apply -> status, and the `fathom` command line.

pub mod agents;
pub mod apply;
pub mod gather;
pub mod live;
pub mod plan_service;
pub mod question;
pub mod status;
