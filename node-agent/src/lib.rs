//! Reads the facts of this machine.
