//! The loops of the roles; I/O lives here.

pub mod router;
