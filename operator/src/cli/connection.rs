//! The way from the command line to a cluster: kubeconfig, namespace, objects, the operator's plan service.
//! In: the flags that kubectl has. Out: typed answers. Never: the operator's own rights: everything is asked as the user.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use fathom_crds::{InferenceCluster, InferenceClusterStatus};
use fathom_operator::plan_service::PlanAnswer;
use http::{Method, Request, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tokio::task::JoinSet;

/// Port of the plan service on the operator's loopback.
const PLAN_PORT: u16 = 8081;

/// A plan of 1,024 replicas stays far below.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Which cluster, and where in it.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ClusterArgs {
    /// Namespace of the object. Absent: that of the file, else of the context.
    #[arg(short, long, value_name = "NAMESPACE", help_heading = "Cluster")]
    namespace: Option<String>,
    /// File with the ways to clusters. Absent: as kubectl, from KUBECONFIG or ~/.kube/config.
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    kubeconfig: Option<PathBuf>,
    /// Context of that file.
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    context: Option<String>,
}

/// A cluster that answers as the user who asks.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

/// The part of an object that the operator writes, with what says whose it is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reported {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) generation: Option<i64>,
    pub(crate) status: InferenceClusterStatus,
}

/// Runs one command that talks to a cluster.
pub(crate) fn run<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the program's runtime")?.block_on(command)
}

impl ClusterArgs {
    /// `file` is the namespace that a given file names.
    pub(crate) async fn connect(&self, file: Option<&str>) -> anyhow::Result<Connection> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = match &self.kubeconfig {
            Some(path) => {
                let shown = path.display();
                let read = Kubeconfig::read_from(path).with_context(|| format!("cannot read {shown}"))?;
                Config::from_custom_kubeconfig(read, &options).await.with_context(|| format!("{shown}"))?
            }
            None if self.context.is_some() => {
                Config::from_kubeconfig(&options).await.context("kubeconfig")?
            }
            None => Config::infer()
                .await
                .context("no way to a cluster is known: set KUBECONFIG or --kubeconfig")?,
        };
        let namespace = match (&self.namespace, file) {
            (Some(asked), Some(file)) if asked != file => {
                bail!("the file says namespace {file:?}, --namespace says {asked:?}")
            }
            (Some(asked), _) => asked.clone(),
            (None, Some(file)) => file.to_owned(),
            (None, None) => config.default_namespace.clone(),
        };
        let client = Client::try_from(config).context("cannot make a client for the cluster")?;
        Ok(Connection { client, namespace })
    }
}

impl Connection {
    /// What the operator reported of an object. Its spec is not looked at: it may be newer than this program.
    pub(crate) async fn reported(&self, name: &str) -> anyhow::Result<Reported> {
        let kind = ApiResource::erase::<InferenceCluster>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, &kind);
        let object = api.get(name).await.map_err(|error| self.explained(name, error))?;
        let status = object.data.get("status").cloned().unwrap_or(Value::Object(serde_json::Map::default()));
        let status = serde_json::from_value(status).with_context(|| {
            format!("the status of {name} was written by another version of the operator")
        })?;
        Ok(Reported {
            name: name.to_owned(),
            namespace: self.namespace.clone(),
            generation: object.metadata.generation,
            status,
        })
    }

    /// The stored object; `None` where there is none.
    pub(crate) async fn stored(&self, name: &str) -> anyhow::Result<Option<InferenceCluster>> {
        let api: Api<InferenceCluster> = Api::namespaced(self.client.clone(), &self.namespace);
        api.get_opt(name).await.map_err(|error| self.explained(name, error))
    }

    fn explained(&self, name: &str, error: kube::Error) -> anyhow::Error {
        match &error {
            kube::Error::Api(status)
                if status.is_not_found() && status.message.contains("requested resource") =>
            {
                anyhow!("this cluster knows no InferenceClusters: is the chart installed?")
            }
            kube::Error::Api(status) if status.is_not_found() => {
                anyhow!("there is no InferenceCluster {name} in namespace {}", self.namespace)
            }
            kube::Error::Api(status) => anyhow!("{}", status.message),
            _ => anyhow::Error::new(error).context("the cluster does not answer"),
        }
    }

    /// What the operator would make of an object, asked through a port-forward to one of its pods.
    pub(crate) async fn ask_operator(
        &self,
        object: &InferenceCluster,
        operator_namespace: &str,
    ) -> anyhow::Result<PlanAnswer> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), operator_namespace);
        let pod = ready_operator(&api).await.with_context(|| format!("namespace {operator_namespace}"))?;
        let through = || format!("cannot forward a port to pod {pod} of namespace {operator_namespace}");
        let mut forwarder = api.portforward(&pod, &[PLAN_PORT]).await.with_context(through)?;
        let stream = forwarder.take_stream(PLAN_PORT).with_context(through)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.with_context(through)?;
        // Drives the connection while the answer comes; ends with this function.
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        let request = Request::builder()
            .method(Method::POST)
            .uri("/plan")
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(serde_json::to_vec(object)?)))?;
        let response = sender.send_request(request).await.with_context(through)?;
        let is_success = response.status().is_success();
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| anyhow!("the operator's answer broke off: {error}"))?.to_bytes();
        understood(is_success, &body)
    }
}

/// Any pod of the operator that is ready has what a plan needs.
async fn ready_operator(api: &Api<Pod>) -> anyhow::Result<String> {
    let selector = "app.kubernetes.io/name=fathom,app.kubernetes.io/component=operator";
    let pods = api.list(&ListParams::default().labels(selector)).await.map_err(|error| match error {
        kube::Error::Api(status) => anyhow!("{}", status.message),
        other => anyhow::Error::new(other).context("the cluster does not answer"),
    })?;
    let is_ready = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.into_iter().flatten().any(|it| it.type_ == "Ready" && it.status == "True")
    };
    let ready = pods.items.into_iter().find(is_ready).and_then(|pod| pod.metadata.name);
    ready.context("no pod of the operator is ready there; --operator-namespace says where it runs")
}

fn understood(is_success: bool, body: &[u8]) -> anyhow::Result<PlanAnswer> {
    if is_success {
        return serde_json::from_slice(body).context("the operator is of another version than this program");
    }
    let said: Value = serde_json::from_slice(body).unwrap_or_default();
    match said["error"]["message"].as_str() {
        Some(message) => bail!("{}: {message}", said["error"]["reason"].as_str().unwrap_or("refused")),
        None => {
            bail!("the operator could not plan: {}", String::from_utf8_lossy(&body[..body.len().min(200)]))
        }
    }
}
