//! The children of one object as the watches last saw them.
//! Never: objects without the owner's uid.

pub mod child;
pub mod claim;
pub mod pod;

use std::sync::Arc;

use operator_render::RecordText;

use child::{ClusterIp, LiveChild, Mounted, Rollout};
use claim::LiveClaim;
use pod::LivePod;

/// Sorted by name, each kind.
#[derive(Debug, Clone, Default)]
pub struct Live {
    /// Of engines and of routers.
    pub pods: Vec<Arc<LivePod>>,
    pub claims: Vec<Arc<LiveClaim>>,
    pub config_maps: Vec<Arc<LiveChild<Mounted>>>,
    pub services: Vec<Arc<LiveChild<ClusterIp>>>,
    pub deployments: Vec<Arc<LiveChild<Rollout>>>,
    pub disruption_budgets: Vec<Arc<LiveChild>>,
    pub network_policies: Vec<Arc<LiveChild>>,
    pub service_accounts: Vec<Arc<LiveChild>>,
    pub roles: Vec<Arc<LiveChild>>,
    pub role_bindings: Vec<Arc<LiveChild>>,
    pub revisions: Vec<Arc<LiveChild<RecordText>>>,
}

impl Live {
    /// The pods that are not being deleted.
    pub fn staying(&self) -> impl Iterator<Item = &LivePod> {
        self.pods.iter().map(AsRef::as_ref).filter(|pod| !pod.ending)
    }
}
