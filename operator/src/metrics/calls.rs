//! Every call to the API server passes here: it is counted, and a write is refused while another operator may lead.
//! In: a client, the standing. Out: a client of the same abilities. Never: a label value from outside this file.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Method, Request, Response, StatusCode, Uri};
use kube::Client;
use kube::client::Body;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::sync::watch;
use tonic::codegen::Service;

use super::CallLabels;
use crate::lease::Standing;

/// Kinds that have a series of their own.
const RESOURCES: [&str; 22] = [
    "inferenceclusters",
    "pods",
    "services",
    "configmaps",
    "secrets",
    "serviceaccounts",
    "namespaces",
    "nodes",
    "deployments",
    "controllerrevisions",
    "poddisruptionbudgets",
    "networkpolicies",
    "roles",
    "rolebindings",
    "resourceclaims",
    "resourceslices",
    "events",
    "leases",
    "endpointslices",
    "tokenreviews",
    "deviceclasses",
    "persistentvolumeclaims",
];

/// Counts of calls by verb, kind and answer.
#[derive(Debug)]
pub struct Calls {
    counts: Family<CallLabels, Counter>,
}

impl Calls {
    pub(super) fn new(counts: Family<CallLabels, Counter>) -> Self {
        Self { counts }
    }

    /// A client whose calls are counted, and whose writes need the lead if `standing` is given.
    pub fn counted(self: &Arc<Self>, client: Client, standing: Option<watch::Receiver<Standing>>) -> Client {
        let namespace = client.default_namespace().to_owned();
        Client::new(Counted { client, calls: Arc::clone(self), standing }, namespace)
    }

    fn count(&self, verb: &'static str, resource: &'static str, code: &'static str) {
        self.counts.get_or_create(&CallLabels { verb, resource, code }).inc();
    }

    /// Calls so far with this verb, whatever the kind and the answer.
    pub fn total(&self, verb: &'static str) -> u64 {
        let codes = ["ok", "404", "409", "4xx", "5xx", "error", "notLeading"];
        let resources = RESOURCES.iter().copied().chain(["other"]);
        let labels = resources.flat_map(|resource| codes.map(|code| CallLabels { verb, resource, code }));
        labels.filter_map(|labels| self.counts.get(&labels).map(|counter| counter.get())).sum()
    }
}

/// A write was about to be sent without the lead.
#[derive(Debug, thiserror::Error)]
#[error("this operator does not hold the Lease (any more): {verb} {resource} was not sent")]
pub struct NotLeading {
    verb: &'static str,
    resource: &'static str,
}

struct Counted {
    client: Client,
    calls: Arc<Calls>,
    standing: Option<watch::Receiver<Standing>>,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, kube::Error>> + Send>>;

impl Service<Request<Body>> for Counted {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), kube::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        let (verb, resource) = described(request.method(), request.uri());
        let calls = Arc::clone(&self.calls);
        let writes = !matches!(verb, "get" | "list" | "watch");
        let leads = self.standing.as_ref().is_none_or(|standing| *standing.borrow() == Standing::Leading);
        if writes && !leads {
            calls.count(verb, resource, "notLeading");
            let refused = kube::Error::Service(Box::new(NotLeading { verb, resource }));
            return Box::pin(std::future::ready(Err(refused)));
        }
        let client = self.client.clone();
        Box::pin(async move {
            let answer = client.send(request).await;
            let code = match &answer {
                Ok(response) => code(response.status()),
                Err(_) => "error",
            };
            calls.count(verb, resource, code);
            answer
        })
    }
}

fn code(status: StatusCode) -> &'static str {
    match status.as_u16() {
        404 => "404",
        409 => "409",
        400..=499 => "4xx",
        500..=599 => "5xx",
        _ => "ok",
    }
}

/// Verb and kind of a request, as RBAC and the audit log name them.
fn described(method: &Method, uri: &Uri) -> (&'static str, &'static str) {
    let mut parts = uri.path().trim_matches('/').split('/');
    match parts.next() {
        Some("api") => drop(parts.next()),
        Some("apis") => drop(parts.nth(1)),
        _ => return ("get", "other"),
    }
    let mut rest: Vec<&str> = parts.collect();
    if rest.first() == Some(&"namespaces") && rest.len() > 2 {
        rest.drain(..2);
    }
    let known = |name: &&str| RESOURCES.iter().copied().find(|resource| resource == name);
    let resource = rest.first().and_then(known).unwrap_or("other");
    let query = uri.query().unwrap_or_default();
    let verb = match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ if query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1")) => "watch",
        _ if rest.len() > 1 => "get",
        _ => "list",
    };
    (verb, resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_named_as_the_audit_log_names_them() {
        let cases = [
            ("GET", "/api/v1/pods?labelSelector=a&limit=500", ("list", "pods")),
            ("GET", "/api/v1/namespaces/x/pods/y", ("get", "pods")),
            ("GET", "/api/v1/namespaces/x", ("get", "namespaces")),
            ("GET", "/api/v1/namespaces?watch=true&timeoutSeconds=200", ("watch", "namespaces")),
            ("PATCH", "/apis/apps/v1/namespaces/x/deployments/y?fieldManager=f", ("patch", "deployments")),
            (
                "PATCH",
                "/apis/fathom.dev/v1alpha1/namespaces/x/inferenceclusters/y/status",
                ("patch", "inferenceclusters"),
            ),
            ("POST", "/apis/events.k8s.io/v1/namespaces/x/events", ("create", "events")),
            ("GET", "/apis/resource.k8s.io/v1", ("list", "other")),
            ("GET", "/version", ("get", "other")),
            ("DELETE", "/apis/somebody.io/v1/namespaces/x/things/y", ("delete", "other")),
        ];
        for (method, uri, expected) in cases {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(described(&method, &uri.parse().unwrap()), expected, "{uri}");
        }
    }

    #[tokio::test]
    async fn without_the_lead_reads_pass_and_writes_are_not_sent() {
        use k8s_openapi::api::core::v1::Pod;
        use kube::Api;
        use kube::api::DeleteParams;

        let router = axum::Router::new().fallback(|| async {
            axum::Json(serde_json::json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}}))
        });
        let metrics = crate::metrics::Metrics::new();
        let (standing, receiver) = watch::channel(Standing::Waiting);
        let client = metrics.calls.counted(Client::new(router, "default"), Some(receiver));
        let pods: Api<Pod> = Api::default_namespaced(client);
        assert_eq!(pods.get("p").await.unwrap().metadata.name.as_deref(), Some("p"));
        let refused = pods.delete("p", &DeleteParams::default()).await.unwrap_err();
        assert!(format!("{refused:?}").contains("NotLeading"), "{refused:?}");
        standing.send_replace(Standing::Leading);
        pods.delete("p", &DeleteParams::default()).await.unwrap();
        assert_eq!((metrics.calls.total("get"), metrics.calls.total("delete")), (1, 2));
    }
}
