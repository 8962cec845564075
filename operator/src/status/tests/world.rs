//! The story's cluster as a reconcile might see it: everything runs and has answered, until a test changes that.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use engine_spec::NamedShape;
use fathom_crds::conditions::Reason;
use fathom_crds::inference_cluster::InferenceCluster;
use fathom_crds::{InferenceClusterSpec, InferenceClusterStatus};
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff;
use node_facts::NodeFacts;
use operator_plan::{Abilities, Enforcement, Mode, PlanInput, Planned, Surroundings};
use operator_render::{Desired, DesiredReplica};
use serde_json::{Value, json};

use crate::apply::Outcome;
use crate::gather::{Gathered, fixtures};
use crate::live::Live;
use crate::live::pod::LivePod;
use crate::question::{self, Answer};
use crate::status::{Effect, Intent, Observed, Rejection, status};

pub(super) struct World {
    pub(super) cluster: InferenceCluster,
    pub(super) facts: Vec<NodeFacts>,
    pub(super) planned: Planned,
    pub(super) enforcement: Enforcement,
    /// What is carried out where that is not the plan above.
    pub(super) recorded: Option<(InferenceClusterSpec, Planned)>,
    pub(super) refused: Option<(Reason, &'static str)>,
    pub(super) lacking: Option<&'static str>,
    pub(super) is_carried_out: bool,
    pub(super) live: Live,
    /// What the API server has of the pods in `live`.
    pods: Vec<Value>,
    pub(super) engines: BTreeMap<String, Value>,
    pub(super) offered: Option<BTreeMap<String, Vec<String>>>,
    pub(super) surroundings: Surroundings,
    pub(super) outcome: Outcome,
    pub(super) answers: bool,
    pub(super) rejections: Vec<Rejection>,
    pub(super) failure: Option<&'static str>,
    pub(super) before: InferenceClusterStatus,
}

pub(super) fn seconds(seconds: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(1_796_000_000 + seconds).unwrap()
}

fn read(example: &str) -> InferenceCluster {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/examples").join(example);
    let mut cluster = fathom_crds::read(&std::fs::read_to_string(path).unwrap()).unwrap();
    cluster.metadata.namespace = Some("team-a".to_owned());
    cluster.metadata.uid = Some("uid-1".to_owned());
    cluster.metadata.generation = Some(1);
    cluster
}

pub(super) fn plan(cluster: &InferenceCluster, facts: &[NodeFacts]) -> Planned {
    operator_plan::plan(&PlanInput {
        name: cluster.name(),
        spec: &cluster.spec,
        shape: &NamedShape::V4Flash.shape(),
        nodes: facts,
        weight_bytes: None,
        image: Some("fathom.dev/fathom-engine:0.1.0"),
        surroundings: &operator_plan::NO_SURROUNDINGS,
    })
}

impl World {
    /// The story's object in mode DRA; everything runs where it was planned, and answers.
    pub(super) fn story() -> Self {
        let cluster = read("story.yaml");
        let facts = vec![fathom_node_agent::scene::facts("story").unwrap()];
        let planned = plan(&cluster, &facts);
        assert!(planned.is_feasible());
        let uuids = facts[0].gpus.value().unwrap().iter().map(|gpu| gpu.uuid.clone()).collect();
        let mode = Mode::Dra { driver: "gpu.nvidia.com".into(), device_class: "gpu.nvidia.com".into() };
        let because = "resource.k8s.io/v1 is served, and gpu.nvidia.com offers GPUs".to_owned();
        let mut world = Self {
            offered: Some(BTreeMap::from([("story".to_owned(), uuids)])),
            enforcement: Enforcement {
                mode,
                because,
                bind_memory: true,
                memory_because: "the namespace permits it".to_owned(),
            },
            cluster,
            facts,
            planned,
            recorded: None,
            refused: None,
            lacking: None,
            is_carried_out: true,
            live: Live::default(),
            pods: Vec::new(),
            engines: BTreeMap::new(),
            surroundings: Surroundings::default(),
            outcome: Outcome::default(),
            answers: true,
            rejections: Vec::new(),
            failure: None,
            before: InferenceClusterStatus::default(),
        };
        world.run_everything();
        world
    }

    fn run_everything(&mut self) {
        let bound = json!({"state": "achieved"});
        for replica in self.planned.plan.replicas.clone() {
            let name = pod_name(&replica.name);
            self.put(engine_pod(&name, &replica.role.to_string(), &self.revision()));
            self.live.claims.push(Arc::new(claim(&name, replica.gpus.len()).into()));
            let info = json!({"role": replica.role, "binding": {"cpus": bound, "memory": bound}});
            self.engines.insert(name, info);
        }
        self.put(engine_pod("flash-router-5d9f-x2x9z", "router", ""));
        self.live.deployments.push(Arc::new(deployment(1, 1).into()));
    }

    pub(super) fn revision(&self) -> String {
        self.planned.plan.revision.clone()
    }

    /// Changes the pod of a replica, or of the router.
    pub(super) fn pod(&mut self, start: &str, change: impl FnOnce(&mut Value)) {
        let pod = self.pods.iter_mut().find(|pod| name_of(pod).starts_with(start)).unwrap();
        let shown = self.live.pods.iter_mut().find(|shown| shown.name() == name_of(pod)).unwrap();
        change(pod);
        *shown = seen(pod);
    }

    fn put(&mut self, pod: Value) {
        self.live.pods.push(seen(&pod));
        self.pods.push(pod);
    }

    pub(super) fn router(&mut self, updated: i32, ready: i32) {
        self.live.deployments = vec![Arc::new(deployment(updated, ready).into())];
    }

    pub(super) fn status(&self) -> InferenceClusterStatus {
        self.status_at(0)
    }

    pub(super) fn status_at(&self, second: i64) -> InferenceClusterStatus {
        let mut cluster = self.cluster.clone();
        cluster.status = Some(self.before.clone());
        let gathered = Gathered {
            cluster: Arc::new(cluster),
            facts: self.facts.clone(),
            surroundings: self.surroundings.clone(),
            abilities: Abilities::default(),
            live: self.live.clone(),
            engines: self.engines.clone(),
            offered_gpus: self.offered.clone(),
        };
        let (spec, planned) = match &self.recorded {
            Some((spec, planned)) => (spec, planned),
            None => (&self.cluster.spec, &self.planned),
        };
        let desired = desired(planned);
        let effect = Effect {
            spec,
            planned,
            enforcement: &self.enforcement,
            desired: &desired,
            outcome: &self.outcome,
        };
        let revision = &planned.plan.revision;
        let answer = Answer {
            ok: self.answers,
            message: "503 Service Unavailable: no decode is ready".to_owned(),
            revision: revision.clone(),
            ready_set: question::ready_set(&self.live, revision),
        };
        let intent = match self.refused {
            Some((reason, message)) => Intent::Refused { reason, message },
            None => Intent::Planned {
                planned: &self.planned,
                enforcement: self.lacking.map_or(Ok(&self.enforcement), Err),
            },
        };
        let observed = Observed {
            gathered: &gathered,
            intent,
            effect: self.is_carried_out.then_some(effect),
            answered: Some(&answer),
            rejections: &self.rejections,
            failure: self.failure,
        };
        status(&observed, &self.before, seconds(second))
    }
}

/// What a person sees of the conditions.
pub(super) fn conditions(status: &InferenceClusterStatus) -> String {
    let lines = status.conditions.iter();
    lines.map(|c| format!("{} {} {}: {}\n", c.type_, c.status, c.reason, c.message)).collect()
}

pub(super) fn pod_name(replica: &str) -> String {
    format!("{replica}-ab12c")
}

fn name_of(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap()
}

fn seen(pod: &Value) -> Arc<LivePod> {
    fixtures::seen(&serde_json::from_value(pod.clone()).unwrap())
}

fn engine_pod(name: &str, role: &str, revision: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "team-a", "uid": format!("uid-{name}"),
            "labels": {"fathom.dev/role": role, "fathom.dev/revision": revision},
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
            "containerStatuses": [{
                "name": "engine", "image": "fathom.dev/fathom-engine:0.1.0", "imageID": "", "ready": true,
                "restartCount": 0, "state": {"running": {}},
            }],
        },
    })
}

fn claim(name: &str, gpus: usize) -> ResourceClaim {
    let device = |index| json!({"request": "gpus", "driver": "gpu.nvidia.com", "pool": "story", "device": format!("gpu-{index}")});
    let results: Vec<Value> = (0..gpus).map(device).collect();
    let claim = json!({
        "metadata": {"name": name, "namespace": "team-a"},
        "spec": {},
        "status": {"allocation": {"devices": {"results": results}}},
    });
    serde_json::from_value(claim).unwrap()
}

fn deployment(updated: i32, ready: i32) -> Deployment {
    let deployment = json!({
        "metadata": {"name": "flash-router", "generation": 2, "annotations": {"fathom.dev/applied": "h"}},
        "status": {
            "observedGeneration": 2, "replicas": 1, "updatedReplicas": updated, "readyReplicas": ready,
        },
    });
    serde_json::from_value(deployment).unwrap()
}

fn desired(planned: &Planned) -> Desired {
    let named = |name: String| ObjectMeta { name: Some(name), ..ObjectMeta::default() };
    let replicas = planned.plan.replicas.iter().map(|replica| DesiredReplica {
        replica: replica.name.clone(),
        config: k8s_openapi::api::core::v1::ConfigMap::default(),
        claim: None,
        pod: Pod { metadata: named(pod_name(&replica.name)), ..Pod::default() },
    });
    Desired {
        revision: ControllerRevision {
            metadata: named("flash-0123456789".to_owned()),
            ..ControllerRevision::default()
        },
        replicas: replicas.collect(),
        services: Vec::new(),
        router_config: None,
        router: Some(deployment(0, 0)),
        disruption_budget: None,
        network_policies: Vec::new(),
        service_account: None,
        role: None,
        role_binding: None,
    }
}
