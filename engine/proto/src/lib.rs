//! Messages between the roles.
