//! The node agent's program.

fn main() {}
