//! From a plan to Kubernetes objects.
//! In: [`RenderInput`]. Out: [`Desired`]. Never: I/O, decisions, failure: a plan leaves nothing open, render only spells.

mod desired;

pub use desired::{Desired, DesiredReplica, Neighbours, Owner, RenderInput};
