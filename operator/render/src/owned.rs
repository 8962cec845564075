//! Metadata of children: name, namespace, labels and the owner reference.
//! In: the owner. Out: `ObjectMeta`. Never: another namespace than the owner's, a child without its owner: this is the
//! only place where an `ObjectMeta` with a name is made, and it takes neither.

use std::collections::BTreeMap;

use engine_spec::Role;
use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use operator_plan::ReplicaPlan;
use serde::Serialize;

use crate::desired::{Owner, RenderInput};
use crate::digest;
use crate::names as n;

/// Labels or annotations.
pub(crate) type Texts = BTreeMap<String, String>;

/// Makes the metadata of one owner's children.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Children<'a> {
    owner: Owner<'a>,
}

impl<'a> Children<'a> {
    pub(crate) fn new(owner: Owner<'a>) -> Self {
        Self { owner }
    }

    pub(crate) fn namespace(&self) -> &'a str {
        self.owner.namespace
    }

    pub(crate) fn cluster(&self) -> &'a str {
        self.owner.name
    }

    /// Metadata of the child `name`.
    pub(crate) fn meta(&self, name: &str, labels: Texts) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.owner.namespace.to_owned()),
            labels: Some(labels),
            owner_references: Some(vec![OwnerReference {
                api_version: "fathom.dev/v1alpha1".to_owned(),
                kind: "InferenceCluster".to_owned(),
                name: self.owner.name.to_owned(),
                uid: self.owner.uid.to_owned(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        }
    }

    /// Labels of a child of no single pod.
    pub(crate) fn labels(&self, component: &str) -> Texts {
        texts([
            (n::LABEL_NAME, n::APP),
            (n::LABEL_INSTANCE, self.owner.name),
            (n::LABEL_COMPONENT, component),
            (n::LABEL_MANAGED_BY, n::MANAGER),
            (n::LABEL_CLUSTER, self.owner.name),
            (n::LABEL_OWNER_UID, self.owner.uid),
        ])
    }

    /// Selects everything of the owner.
    pub(crate) fn select_owner(&self) -> Texts {
        texts([(n::LABEL_OWNER_UID, self.owner.uid)])
    }

    /// Selects pods by what never changes: the owner's uid, and one label more.
    pub(crate) fn select(&self, label: &str, value: &str) -> Texts {
        texts([(n::LABEL_OWNER_UID, self.owner.uid), (label, value)])
    }
}

/// Labels of a replica's pod, claim and ConfigMap.
pub(crate) fn replica_labels(input: &RenderInput<'_>, entry: &ReplicaPlan, hash: &str) -> Texts {
    let role = entry.role.to_string();
    let mut labels = Children::new(input.owner).labels(&role);
    labels.extend(texts([
        (n::LABEL_ROLE, role.as_str()),
        (n::LABEL_REPLICA, entry.index.to_string().as_str()),
        (n::LABEL_REVISION, input.planned.plan.revision.as_str()),
        (n::LABEL_POD_HASH, hash),
    ]));
    if matches!(entry.role, Role::Decode | Role::Unified) {
        labels.insert(n::LABEL_OWNS_REQUESTS.to_owned(), "true".to_owned());
    }
    labels
}

pub(crate) fn texts<const N: usize>(pairs: [(&str, &str); N]) -> Texts {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

pub(crate) fn selector(labels: Texts) -> LabelSelector {
    LabelSelector { match_labels: Some(labels), ..LabelSelector::default() }
}

/// Writes the hash of the object as it is into its annotation. What has the same hash need not be sent again; what the
/// API server adds by default is never looked at.
pub(crate) fn sealed<K: Metadata<Ty = ObjectMeta> + Serialize>(mut object: K) -> K {
    let hash = digest::hash(&object, 16);
    let annotations = object.metadata_mut().annotations.get_or_insert_default();
    annotations.insert(n::ANNOTATION_APPLIED.to_owned(), hash);
    object
}

/// The hash that [`sealed`] wrote.
pub fn sealed_hash(meta: &ObjectMeta) -> Option<&str> {
    meta.annotations.as_ref()?.get(n::ANNOTATION_APPLIED).map(String::as_str)
}

/// Uid of the controlling InferenceCluster, if the object has one. Names do not tell: an object of the same name may
/// have been there before.
pub fn owner_uid(meta: &ObjectMeta) -> Option<&str> {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    let ours = owners.iter().find(|owner| {
        owner.controller == Some(true)
            && owner.kind == "InferenceCluster"
            && owner.api_version.starts_with("fathom.dev/")
    })?;
    Some(ours.uid.as_str())
}
