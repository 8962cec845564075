//! Steps against the API server.
//! In: steps. Out: what came of them. Never: a retry (the next pass is the retry), more than eight calls at once for one
//! object, a write to an object that is not ours.

use std::collections::BTreeSet;

use fail::fail_point;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::core::{DynamicObject, Status};
use kube::{Api, Client};
use operator_render::{owner_uid, sealed_hash};
use serde::Serialize;
use serde_json::{Value, json};

use super::child::{Child, Kind, Target};
use super::steps::{Action, Stage, Step, Todo};
use super::{ApplyError, FIELD_MANAGER, Outcome, RecentPods, Refused, ownership};

/// Calls in flight for one object.
const CONCURRENCY: usize = 8;

/// What came of one step.
#[derive(Debug)]
enum Done {
    /// So many writes were taken.
    Wrote(u32),
    /// Nothing had to be done.
    Nothing,
    /// Our view lags behind; an event will tell, and nobody has to be told.
    Unseen,
    Waits(String),
    Taken(String),
    Refused(Refused),
    /// The pod has come without its image volume and has been deleted again.
    VolumeDropped(String),
    /// Nothing can be made in a namespace that is ending.
    NamespaceEnds,
}

/// A step and what came of it.
type Ended<'s> = (&'s Step, Result<Done, ApplyError>);

/// Carries out the steps for one owner.
pub(crate) struct Executor<'a> {
    client: Client,
    namespace: &'a str,
    uid: &'a str,
    recent: &'a RecentPods,
}

impl<'a> Executor<'a> {
    pub(crate) fn new(client: Client, namespace: &'a str, uid: &'a str, recent: &'a RecentPods) -> Self {
        Self { client, namespace, uid, recent }
    }

    /// Stage after stage. A step that fails ends its line; the others go on, and the first failure is returned at the
    /// end.
    pub(crate) async fn run(&self, todo: Todo) -> Result<Outcome, ApplyError> {
        let Todo { mut steps, waiting, .. } = todo;
        let mut outcome = Outcome { waiting, ..Outcome::default() };
        let mut ended = BTreeSet::new();
        let mut failure = None;
        steps.sort_by_key(|step| step.stage);
        for stage in steps.chunk_by(|a, b| a.stage == b.stage) {
            before(stage.first().map(|step| step.stage));
            let open = stage.iter().filter(|step| !ended.contains(&step.line));
            let calls: Vec<BoxFuture<'_, Ended<'_>>> = open.map(|step| self.attempt(step)).collect();
            let results: Vec<Ended<'_>> = stream::iter(calls).buffer_unordered(CONCURRENCY).collect().await;
            for (step, result) in results {
                match result {
                    Ok(Done::NamespaceEnds) => {
                        outcome.waiting = vec![format!("namespace {} is ending", self.namespace)];
                        return Ok(outcome);
                    }
                    Ok(done) => {
                        if !note(&mut outcome, done) {
                            ended.insert(step.line.clone());
                        }
                    }
                    Err(error) => {
                        ended.insert(step.line.clone());
                        failure.get_or_insert(error);
                    }
                }
            }
        }
        sort(&mut outcome);
        failure.map_or(Ok(outcome), Err)
    }

    /// Boxed, so that the compiler can tell that a whole pass may move between threads.
    fn attempt<'s>(&'s self, step: &'s Step) -> BoxFuture<'s, Ended<'s>> {
        Box::pin(async move { (step, self.step(step).await) })
    }

    async fn step(&self, step: &Step) -> Result<Done, ApplyError> {
        match &step.action {
            Action::Create(pod) if pod.kind == Kind::Pod => self.create_pod(&step.line, pod).await,
            Action::Create(child) => {
                self.create(child).await.map(|made| made.map_or_else(|d| d, |_| Done::Wrote(1)))
            }
            Action::Apply { child, uid } => self.apply(child, uid).await,
            Action::Delete(target) => self.delete(target).await,
            Action::Expect { pod } => self.expect_gone(pod).await,
        }
    }

    /// POST: the answer, or what stands in the way.
    async fn create(&self, child: &Child) -> Result<Result<DynamicObject, Done>, ApplyError> {
        let object: DynamicObject = serde_json::from_value(child.object.clone())
            .map_err(|source| call("writing", child, kube::Error::SerdeError(source)))?;
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        match self.api(child.kind).create(&params, &object).await {
            Ok(answer) => Ok(Ok(answer)),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                self.standing(child).await.map(Err)
            }
            Err(error) => refusal(child, error).map(Err).map_err(|error| call("creating", child, error)),
        }
    }

    /// A pod, checked for what the API server has made of it.
    async fn create_pod(&self, replica: &str, pod: &Child) -> Result<Done, ApplyError> {
        fail_point!("apply::before_pod");
        let answer = match self.create(pod).await? {
            Ok(answer) => answer,
            Err(done) => return Ok(done),
        };
        fail_point!("apply::after_pod");
        self.recent.created(replica, &pod.name);
        if !has_lost_its_image(&pod.object, &answer.data) {
            return Ok(Done::Wrote(1));
        }
        self.delete(&Target::new(Kind::Pod, &answer.metadata)).await?;
        Ok(Done::VolumeDropped(pod.name.clone()))
    }

    /// What a name that is taken is taken by. An object of ours is as good as made, unless it was rendered differently:
    /// our view does not show it yet.
    async fn standing(&self, child: &Child) -> Result<Done, ApplyError> {
        let Some(there) = self.get(child.kind, &child.name).await? else { return Ok(Done::Unseen) };
        let meta = &there.metadata;
        if !self.is_ours(meta) {
            return Ok(self.not_ours(child, meta));
        }
        if meta.deletion_timestamp.is_some() {
            return Ok(Done::Waits(format!("{child} is ending")));
        }
        if child.kind.is_immutable() || sealed_hash(meta) == child.hash.as_deref() {
            return Ok(Done::Nothing);
        }
        self.apply(child, meta.uid.as_deref().unwrap_or_default()).await
    }

    /// Server-side apply over the object with this uid and no other.
    async fn apply(&self, child: &Child, uid: &str) -> Result<Done, ApplyError> {
        let before = match self.hand_over(child, uid).await? {
            Done::Wrote(writes) => writes,
            Done::Nothing => 0,
            blocked => return Ok(blocked),
        };
        let mut object = child.object.clone();
        object["metadata"]["uid"] = Value::from(uid);
        let params =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), force: true, ..Default::default() };
        let done = self.patch(child, &params, &Patch::Apply(&object)).await?;
        Ok(if let Done::Wrote(writes) = done { Done::Wrote(before + writes) } else { done })
    }

    /// Fields of an object that was created belong to whoever created it; those that an apply leaves out would stay.
    /// Before the first one they are handed over to it.
    async fn hand_over(&self, child: &Child, uid: &str) -> Result<Done, ApplyError> {
        let Some(there) = self.get(child.kind, &child.name).await? else { return Ok(Done::Unseen) };
        let Some(fields) = ownership::handed_over(there.metadata.managed_fields.as_deref()) else {
            return Ok(Done::Nothing);
        };
        let version = there.metadata.resource_version;
        let moved = json!({"metadata": {"uid": uid, "resourceVersion": version, "managedFields": fields}});
        self.patch(child, &PatchParams::default(), &Patch::Merge(moved)).await
    }

    async fn patch<P: Serialize + std::fmt::Debug + Sync>(
        &self,
        child: &Child,
        params: &PatchParams,
        patch: &Patch<P>,
    ) -> Result<Done, ApplyError> {
        match self.api(child.kind).patch(&child.name, params, patch).await {
            Ok(_) => Ok(Done::Wrote(1)),
            Err(error) => refusal(child, error).map_err(|error| call("applying", child, error)),
        }
    }

    async fn delete(&self, target: &Target) -> Result<Done, ApplyError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(target.uid.clone()), resource_version: None }),
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        match self.api(target.kind).delete(&target.name, &params).await {
            Ok(_) => Ok(Done::Wrote(1)),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Done::Nothing),
            Err(kube::Error::Api(status)) if status.is_conflict() => {
                Ok(Done::Waits(format!("{target} is another one by now")))
            }
            Err(kube::Error::Api(status)) if status.is_forbidden() => {
                Ok(Done::Refused(refused(target.to_string(), &status)))
            }
            Err(error) => Err(call("deleting", target, error)),
        }
    }

    async fn expect_gone(&self, pod: &str) -> Result<Done, ApplyError> {
        if self.get(Kind::Pod, pod).await?.is_some() {
            return Ok(Done::Unseen);
        }
        self.recent.forget(pod);
        Ok(Done::Nothing)
    }

    async fn get(&self, kind: Kind, name: &str) -> Result<Option<DynamicObject>, ApplyError> {
        self.api(kind)
            .get_opt(name)
            .await
            .map_err(|error| call("looking at", &format!("{kind} {name}"), error))
    }

    fn api(&self, kind: Kind) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), self.namespace, &kind.resource())
    }

    fn is_ours(&self, meta: &ObjectMeta) -> bool {
        owner_uid(meta) == Some(self.uid)
    }

    /// Children of an earlier object of the same name are being collected; anything else is somebody's.
    fn not_ours(&self, child: &Child, there: &ObjectMeta) -> Done {
        let controller = |owners: &Value| {
            let owners = owners.as_array().cloned().unwrap_or_default();
            let ours = |owner: &Value| owner["kind"] == "InferenceCluster" && owner["controller"] == true;
            owners.into_iter().find(ours).map(|owner| owner["name"].clone())
        };
        let before = there.owner_references.as_ref().and_then(|owners| controller(&json!(owners)));
        if before.is_some() && before == controller(&child.object["metadata"]["ownerReferences"]) {
            return Done::Waits(format!("{child} of an earlier InferenceCluster of this name is ending"));
        }
        Done::Taken(child.to_string())
    }
}

/// What an error says about the object, or the error if it is not the object's.
fn refusal(child: &Child, error: kube::Error) -> Result<Done, kube::Error> {
    let kube::Error::Api(status) = error else { return Err(error) };
    match status.code {
        403 | 404 if ends_namespace(&status) => Ok(Done::NamespaceEnds),
        400 | 403 | 404 | 422 => Ok(Done::Refused(refused(child.to_string(), &status))),
        409 => Ok(Done::Waits(format!("{child} changed meanwhile: {}", status.message))),
        _ => Err(kube::Error::Api(status)),
    }
}

fn refused(child: String, status: &Status) -> Refused {
    Refused { child, message: status.message.clone(), forbidden: status.is_forbidden() }
}

/// The namespace is ending or gone; without a word about it, 404 means a kind that is not served.
fn ends_namespace(status: &Status) -> bool {
    let Some(details) = &status.details else { return false };
    let ending = details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating");
    ending || (status.is_not_found() && details.kind == "namespaces")
}

/// An API server that does not know image volumes drops them without a word.
fn has_lost_its_image(asked: &Value, answered: &Value) -> bool {
    let images = |pod: &Value| {
        let volumes = pod["spec"]["volumes"].as_array().cloned().unwrap_or_default();
        volumes.iter().filter(|volume| volume["image"].is_object()).count()
    };
    images(answered) < images(asked)
}

/// Adds a result; false if what depends on it has to wait.
fn note(outcome: &mut Outcome, done: Done) -> bool {
    match done {
        Done::Wrote(writes) => {
            outcome.writes += writes;
            return true;
        }
        Done::Nothing => return true,
        Done::Waits(sentence) => outcome.waiting.push(sentence),
        Done::Taken(name) => outcome.taken_names.push(name),
        Done::Refused(refused) => outcome.refused.push(refused),
        Done::VolumeDropped(pod) => {
            outcome.writes += 2;
            outcome.image_volume_dropped.push(pod);
        }
        Done::Unseen | Done::NamespaceEnds => {}
    }
    false
}

/// Calls end in any order; an outcome is the same whatever that was.
fn sort(outcome: &mut Outcome) {
    outcome.waiting.sort();
    outcome.waiting.dedup();
    outcome.taken_names.sort();
    outcome.refused.sort();
    outcome.image_volume_dropped.sort();
}

/// Places where a test ends the operator.
fn before(stage: Option<Stage>) {
    match stage {
        Some(Stage::Record) => fail_point!("apply::before_record"),
        Some(Stage::Prepare) => fail_point!("apply::before_prepare"),
        Some(Stage::Start) => fail_point!("apply::before_start"),
        Some(Stage::Sweep) => fail_point!("apply::before_sweep"),
        None => {}
    }
}

fn call(action: &'static str, child: &impl ToString, source: kube::Error) -> ApplyError {
    ApplyError::Call { action, child: child.to_string(), source: Box::new(source) }
}
