//! What would become of an object that is not stored: the same steps up to rendering, and nothing of it is kept.
//! Never: a promise in the ledger, a write.

use std::sync::{Arc, PoisonError};

use fathom_crds::InferenceCluster;

use super::Context;
use super::decide::{Wanted, decide};
use crate::gather::shelf::ObjectKey;
use crate::plan_service::{Planner, Preview, Refused};

impl Planner for Context {
    fn preview(&self, mut object: InferenceCluster) -> Result<Preview, Refused> {
        let namespace = object.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
        object.metadata.namespace = Some(namespace.clone());
        let stored = self.sources.stores.cluster(&ObjectKey::new(&namespace, object.name()));
        // The stored object of the name is who would be changed: its children, its room, its history.
        object.metadata.uid = stored.as_ref().and_then(|stored| stored.metadata.uid.clone());
        object.status = stored.and_then(|stored| stored.status.clone());
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let cluster = Arc::new(object);
        let (gathered, decision) = {
            let _alone = self.planning.lock().unwrap_or_else(PoisonError::into_inner);
            let gathered = self.sources.gather_for(Arc::clone(&cluster), &namespace, &uid);
            let offers = |node: &str, resource: &str| self.sources.offers(node, resource);
            let decision = decide(&gathered, &self.default_image, offers);
            (gathered, decision)
        };
        match decision.wanted {
            Wanted::Refused { reason, message } => Err(Refused { reason, message }),
            Wanted::Planned { planned, enforcement, image } => {
                let desired =
                    enforcement.as_ref().ok().filter(|_| planned.is_feasible()).map(|enforcement| {
                        self.render(&cluster, &cluster.spec, &planned, enforcement, &image)
                    });
                Ok(Preview { planned: *planned, enforcement, desired, live: gathered.live })
            }
        }
    }
}
