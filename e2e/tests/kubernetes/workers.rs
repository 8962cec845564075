//! What needs other workers than one of this machine's own CPUs: recorded machines, aligning kubelets.
//! Sorted last, so that a whole run changes its workers as seldom as possible.

mod dra;
mod exact_rights;
mod idle;
mod kubelet;
mod real_numa;
mod scenes;
