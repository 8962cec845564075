//! Keeps the agents' certificates in order while this operator leads, and tells the agents' streams whom to trust.
//! In: the standing, the time. Out: Secrets, the CA. Never: a write while another operator leads.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;

use crate::agents::Agents;
use crate::backoff::Backoff;
use crate::certificates::{CertificateError, CertificateSettings, ensure, trusted};
use crate::chain::chain;
use crate::lease::Standing;

/// A Secret that somebody deleted or damaged is mended after at most so long.
const LOOK_EVERY: Duration = Duration::from_secs(300);

const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Looks whenever something is due, and when the standing changes.
pub(super) async fn keep(
    client: Client,
    settings: CertificateSettings,
    mut standing: watch::Receiver<Standing>,
    agents: Agents,
) {
    let mut failures = 0;
    loop {
        let leading = *standing.borrow_and_update() == Standing::Leading;
        let wait = match look(&client, &settings, leading).await {
            Ok((ca, wait)) => {
                failures = 0;
                if let Some(ca) = ca {
                    agents.set_ca(ca);
                }
                wait
            }
            Err(error) => {
                failures += 1;
                tracing::warn!(
                    error = chain(&error),
                    "the agents' certificates are not in order; trying again"
                );
                RETRY.delay(failures, &settings.namespace)
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            changed = standing.changed() => if changed.is_err() { return },
        }
    }
}

/// Whom to trust, and when to look again. Who does not lead only reads.
async fn look(
    client: &Client,
    settings: &CertificateSettings,
    leading: bool,
) -> Result<(Option<Vec<u8>>, Duration), CertificateError> {
    if !leading {
        return Ok((trusted(client, settings).await?, LOOK_EVERY));
    }
    let issued = ensure(client, settings, Timestamp::now()).await?;
    if !issued.written.is_empty() {
        tracing::info!(secrets = ?issued.written, "issued certificates of the node agents");
    }
    Ok((Some(issued.ca_pem), issued.next_check.min(LOOK_EVERY)))
}
