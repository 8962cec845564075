//! Steps for given children, and their execution against an API server in this process.

mod api;
mod execution;
mod scene;
mod step_table;
