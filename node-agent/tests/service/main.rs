//! The agent as its callers meet it: in this process, on ports of 127.0.0.1, with an API server that reviews tokens.

mod certificates;
mod facts;
mod refusals;
mod rig;
