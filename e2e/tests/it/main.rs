//! Scenarios, one file each.
