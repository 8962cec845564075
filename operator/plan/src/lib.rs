//! From a spec and facts to a plan that explains itself: which node, NUMA node, GPUs, CPUs and bytes each replica gets.
//! In: [`PlanInput`]. Out: [`Planned`], a plan and the report of how it came about.
//! Never: I/O, a clock, randomness, a Kubernetes client. Same input, same plan, whatever the order of the facts.
//! An impossible spec is not an error: it is a plan that places nothing, and a report that says what is missing where.

mod admission;
mod check;
mod cpu_list;
mod enforcement;
mod engine_config;
mod gpus;
mod host_tier;
mod keep;
mod placement;
mod plan;
mod report;
mod revision;
mod rooms;
mod size;
mod surroundings;

pub use check::{Violation, check};
pub use cpu_list::cpu_list;
pub use enforcement::{Abilities, ClaimDriver, Enforcement, Mode, enforcement};
pub use engine_config::{engine_config, in_pod, named_shape, router_config};
pub use keep::has_own_cpus;
pub use plan::{ComputeDevice, DevicePool, Plan, PlanInput, PlannedGpu, QueueLimit, ReplicaPlan, plan};
pub use report::{
    HostCacheLimit, HostCacheReport, Planned, Refusal, RejectReason, Rejected, Report, SizeReport, gib,
    thousands,
};
pub use revision::{placement_inputs, revision};
pub use surroundings::{NO_SURROUNDINGS, NodeState, Present, STALE_AFTER_MS, Surroundings, Taint, Taken};
