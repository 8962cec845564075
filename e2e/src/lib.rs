//! Scenarios on the built programs.
