//! Certificates of the node agents, issued by the leading operator: a CA, and one server certificate for all agents.
//! In: two Secrets, the time. Out: the Secrets as they should be, what callers of agents trust, when to look again.
//! Never: the CA's key where agents can read it (it has a Secret of its own); a moment in which an agent's certificate is not
//! covered by what a caller trusts: a new CA joins the old one long before it issues anything.
//!
//! A CA is renewed at two thirds of its life and from then on trusted beside the old one, until that is over. The server's
//! certificate is renewed at two thirds of its own life, by the newest CA that has been trusted for a while, and never
//! outlives its CA. Secrets that somebody damaged are issued anew.

mod decide;
mod issue;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};

use decide::{AuthorityState, ServerState};

/// Shown to agents: `tls.crt`, `tls.key`, and `ca.crt` for whoever wants to look.
pub const TLS_SECRET: &str = "fathom-node-agent-tls";
/// The operator's own: `ca.crt` (all that is trusted), `ca.key` (of the newest), `state.json`.
pub const CA_SECRET: &str = "fathom-node-agent-ca";

const STATE: &str = "state.json";

/// Where certificates are kept and how long they hold.
#[derive(Debug, Clone)]
pub struct CertificateSettings {
    /// The operator's namespace.
    pub namespace: String,
    pub tls_secret: String,
    pub ca_secret: String,
    /// Who the Secrets go with; without one they stay when Fathom is uninstalled.
    pub owner: Option<OwnerReference>,
    pub ca_life: Duration,
    pub server_life: Duration,
    /// How long a new CA must have been trusted before it issues; callers learn of it within seconds.
    pub trusted_before_use: Duration,
}

impl CertificateSettings {
    pub fn new(namespace: String) -> Self {
        const DAY: Duration = Duration::from_secs(24 * 3_600);
        CertificateSettings {
            namespace,
            tls_secret: TLS_SECRET.to_owned(),
            ca_secret: CA_SECRET.to_owned(),
            owner: None,
            ca_life: 365 * DAY,
            server_life: 90 * DAY,
            trusted_before_use: DAY,
        }
    }
}

/// What holds after a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// All certificates to trust (PEM), for [`crate::agents::Agents::set_ca`].
    pub ca_pem: Vec<u8>,
    /// When something is due next.
    pub next_check: Duration,
    /// Secrets that were written.
    pub written: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("cannot {verb} Secret {name}")]
    Api {
        verb: &'static str,
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("Secret {name} changed meanwhile (another operator leads?); it is looked at again")]
    Conflict { name: String },
    #[error("cannot issue a certificate")]
    Issue(#[from] rcgen::Error),
    #[error("expected a time that fits a certificate, found {seconds} s since 1970")]
    Time { seconds: i64 },
}

/// Looks at both Secrets and issues what is missing, damaged or due. Only the leader calls this.
///
/// # Errors
/// What the API server refused. Nothing is half done that the next call would not mend.
pub async fn ensure(
    client: &kube::Client,
    settings: &CertificateSettings,
    now: Timestamp,
) -> Result<Issued, CertificateError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &settings.namespace);
    let mut written = Vec::new();

    let stored = get(&secrets, &settings.ca_secret).await?;
    let mut authority = stored.as_ref().and_then(read_authority);
    if let Some(renewed) = decide::authority(authority.as_ref(), settings, now)? {
        write(&secrets, settings, &settings.ca_secret, stored, authority_data(&renewed)).await?;
        written.push(settings.ca_secret.clone());
        authority = Some(renewed);
    }
    // It was there, or was made.
    let authority = authority.unwrap_or_default();

    let stored = get(&secrets, &settings.tls_secret).await?;
    let mut server = stored.as_ref().and_then(read_server);
    if let Some(renewed) = decide::server(server.as_ref(), &authority, settings, now)? {
        write(&secrets, settings, &settings.tls_secret, stored, server_data(&renewed)).await?;
        written.push(settings.tls_secret.clone());
        server = Some(renewed);
    }
    Ok(Issued {
        ca_pem: authority.bundle().into_bytes(),
        next_check: decide::next_check(&authority, server.as_ref(), settings, now),
        written,
    })
}

/// What to trust, for operators that do not lead; `None` before the first leader issued it.
///
/// # Errors
/// What the API server refused.
pub async fn trusted(
    client: &kube::Client,
    settings: &CertificateSettings,
) -> Result<Option<Vec<u8>>, CertificateError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &settings.namespace);
    let stored = get(&secrets, &settings.ca_secret).await?;
    Ok(stored.as_ref().and_then(read_authority).map(|authority| authority.bundle().into_bytes()))
}

async fn get(secrets: &Api<Secret>, name: &str) -> Result<Option<Secret>, CertificateError> {
    let failed =
        |source| CertificateError::Api { verb: "read", name: name.to_owned(), source: Box::new(source) };
    secrets.get_opt(name).await.map_err(failed)
}

/// Creates, or replaces exactly what was read.
async fn write(
    secrets: &Api<Secret>,
    settings: &CertificateSettings,
    name: &str,
    stored: Option<Secret>,
    data: BTreeMap<String, ByteString>,
) -> Result<(), CertificateError> {
    let kind = if data.contains_key("tls.crt") { "kubernetes.io/tls" } else { "Opaque" };
    let params = PostParams { field_manager: Some("fathom-operator".to_owned()), ..PostParams::default() };
    let (verb, result) = match stored {
        // The type cannot be changed; one of another type is somebody else's, and the server says so.
        Some(old) => {
            let secret = Secret { data: Some(data), string_data: None, ..old };
            ("replace", secrets.replace(name, &params, &secret).await)
        }
        None => {
            let labels =
                [("app.kubernetes.io/name", "fathom"), ("app.kubernetes.io/component", "node-agent")];
            let metadata = ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                owner_references: settings.owner.clone().map(|owner| vec![owner]),
                ..ObjectMeta::default()
            };
            let secret =
                Secret { metadata, data: Some(data), type_: Some(kind.to_owned()), ..Secret::default() };
            ("create", secrets.create(&params, &secret).await)
        }
    };
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {
            Err(CertificateError::Conflict { name: name.to_owned() })
        }
        Err(source) => Err(CertificateError::Api { verb, name: name.to_owned(), source: Box::new(source) }),
    }
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok()
}

/// Anything that does not read as it was written is as good as missing.
fn read_authority(secret: &Secret) -> Option<AuthorityState> {
    let state: AuthorityState = serde_json::from_str(&text(secret, STATE)?).ok()?;
    let intact = text(secret, "ca.crt")? == state.bundle();
    let state = AuthorityState { key: text(secret, "ca.key")?, ..state };
    (intact && state.is_intact()).then_some(state)
}

fn authority_data(state: &AuthorityState) -> BTreeMap<String, ByteString> {
    // The state is made of texts and numbers.
    let json = serde_json::to_string(state).unwrap_or_default();
    data([("ca.crt", state.bundle()), ("ca.key", state.key.clone()), (STATE, json)])
}

fn read_server(secret: &Secret) -> Option<ServerState> {
    let state: ServerState = serde_json::from_str(&text(secret, STATE)?).ok()?;
    let state = ServerState {
        certificate: text(secret, "tls.crt")?,
        key: text(secret, "tls.key")?,
        bundle: text(secret, "ca.crt")?,
        ..state
    };
    state.is_intact().then_some(state)
}

fn server_data(state: &ServerState) -> BTreeMap<String, ByteString> {
    let json = serde_json::to_string(state).unwrap_or_default();
    data([
        ("tls.crt", state.certificate.clone()),
        ("tls.key", state.key.clone()),
        ("ca.crt", state.bundle.clone()),
        (STATE, json),
    ])
}

fn data<const N: usize>(texts: [(&str, String); N]) -> BTreeMap<String, ByteString> {
    texts.map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))).into()
}

#[cfg(test)]
mod tests;
