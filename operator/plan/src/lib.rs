//! From a spec and facts to a plan that explains itself.
