//! Calls to a node agent as anybody in the cluster could make them: over TLS or not, with any token.

use std::time::Duration;

use anyhow::Context;
use node_agent_proto::v1::GetRequest;
use node_agent_proto::v1::node_facts_client::NodeFactsClient;
use node_agent_proto::{MAX_MESSAGE_BYTES, SERVER_NAME};
use tonic::Request;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::api::SECRETS;
use super::{Kubernetes, SYSTEM, run};

const PORT: u16 = 9443;
const ANSWER: Duration = Duration::from_secs(10);

/// Why there was no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// As gRPC names it: `PermissionDenied`. `Unavailable` for connections that did not come about.
    pub code: String,
    pub message: String,
}

/// Certificates that the operator has issued for its agents, as PEM.
///
/// # Errors
/// When there is no such Secret.
pub fn ca(kubernetes: &Kubernetes) -> anyhow::Result<Vec<u8>> {
    let args = [
        "get",
        "secret",
        "fathom-node-agent-tls",
        "-n",
        SYSTEM,
        "-o",
        "go-template={{index .data \"ca.crt\" | base64decode}}",
    ];
    kubernetes.api.get(SECRETS, SYSTEM, "fathom-node-agent-tls")?;
    kubernetes.kubectl(&args).map(String::into_bytes)
}

/// A CA that nobody has heard of.
///
/// # Errors
/// When it cannot be made.
pub fn another_ca() -> anyhow::Result<Vec<u8>> {
    let made = rcgen::generate_simple_self_signed(["stranger".to_owned()]).context("making a certificate")?;
    Ok(made.cert.pem().into_bytes())
}

/// The certificate that the agent at `address` shows, as PEM.
///
/// # Errors
/// When it shows none.
pub fn served(address: &str) -> anyhow::Result<String> {
    let place = format!("{address}:{PORT}");
    let args = ["s_client", "-connect", &place, "-servername", SERVER_NAME];
    let output = run("openssl", &args, Some(""))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let shown = text.split_once("-----BEGIN CERTIFICATE-----").context("no certificate was shown")?.1;
    Ok(shown.split("-----END").next().unwrap_or_default().trim().to_owned())
}

/// `Get` of the agent at `address`; the node that its facts are of.
///
/// # Errors
/// With the agent's refusal.
pub fn get(address: &str, ca: &[u8], token: Option<&str>) -> Result<String, Refused> {
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)).domain_name(SERVER_NAME);
    wait(async {
        let endpoint = endpoint("https", address)?.tls_config(tls).map_err(unreachable)?;
        call(endpoint.connect().await.map_err(unreachable)?, token).await
    })
}

/// The same without TLS.
///
/// # Errors
/// With what came instead of an answer.
pub fn get_plaintext(address: &str, token: &str) -> Result<String, Refused> {
    wait(async {
        let channel = endpoint("http", address)?.connect().await.map_err(unreachable)?;
        call(channel, Some(token)).await
    })
}

/// The health service, which asks for no token.
///
/// # Errors
/// When it does not serve.
pub fn health(address: &str, ca: &[u8]) -> Result<(), Refused> {
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)).domain_name(SERVER_NAME);
    wait(async {
        let endpoint = endpoint("https", address)?.tls_config(tls).map_err(unreachable)?;
        let mut client = HealthClient::new(endpoint.connect().await.map_err(unreachable)?);
        let answer = client.check(HealthCheckRequest::default()).await.map_err(refused)?.into_inner();
        let serving = answer.status == i32::from(ServingStatus::Serving);
        serving.then_some(()).ok_or_else(|| Refused { code: "Ok".to_owned(), message: format!("{answer:?}") })
    })
}

fn endpoint(scheme: &str, address: &str) -> Result<Endpoint, Refused> {
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}:{PORT}")).map_err(unreachable)?;
    Ok(endpoint.connect_timeout(ANSWER).timeout(ANSWER))
}

async fn call(channel: Channel, token: Option<&str>) -> Result<String, Refused> {
    let mut client = NodeFactsClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let mut request = Request::new(GetRequest {});
    if let Some(token) = token {
        let value = format!("Bearer {token}")
            .parse()
            .map_err(|error| Refused { code: "InvalidArgument".to_owned(), message: format!("{error}") })?;
        request.metadata_mut().insert("authorization", value);
    }
    let answer = client.get(request).await.map_err(refused)?.into_inner();
    Ok(answer.facts.map(|facts| facts.node).unwrap_or_default())
}

fn wait<T>(call: impl Future<Output = Result<T, Refused>>) -> Result<T, Refused> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(unreachable)?;
    runtime.block_on(call)
}

fn refused(status: tonic::Status) -> Refused {
    Refused { code: format!("{:?}", status.code()), message: status.message().to_owned() }
}

fn unreachable(error: impl std::error::Error) -> Refused {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    Refused { code: "Unavailable".to_owned(), message: format!("{error}{cause}") }
}
