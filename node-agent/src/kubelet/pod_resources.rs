//! The kubelet's PodResources API over its unix socket.
//! Never: a wait without end; a connection to a kubelet that is no more: the socket file is new after each restart.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use node_facts::{Device, PodAllocation, Reading};
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::allocations;

/// `v1` of the kubelet's API, generated.
#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    unreachable_pub,
    reason = "generated code"
)]
pub(super) mod v1 {
    tonic::include_proto!("v1");
}

use v1::pod_resources_lister_client::PodResourcesListerClient;

/// The kubelet answers in milliseconds.
const PATIENCE: Duration = Duration::from_secs(3);
/// A dense node's answer passes gRPC's default of 4 MiB.
pub(super) const MAX_MESSAGE_BYTES: usize = 16 << 20;

#[derive(Debug, Clone)]
pub(super) struct Answers {
    pub(super) devices: Reading<Vec<Device>>,
    pub(super) pods: Reading<Vec<PodAllocation>>,
    /// What was cut.
    pub(super) note: Option<String>,
}

#[derive(Debug)]
pub(super) struct PodResources {
    socket: PathBuf,
    /// With the socket file's identity.
    connection: Option<((u64, u64), Channel)>,
}

#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error(
        "no socket {socket}: the kubelet is not running, or its folder is elsewhere (nodeAgent.kubeletDir)"
    )]
    NoSocket { socket: String },
    #[error("cannot look at {socket}: {kind}")]
    Unreadable { socket: String, kind: std::io::ErrorKind },
    #[error("cannot connect to {socket}: {reason}")]
    Connect { socket: String, reason: String },
    #[error("no answer on {socket} within {} s", PATIENCE.as_secs())]
    Silent { socket: String },
    #[error("this kubelet does not know {call}")]
    Unknown { call: &'static str },
    #[error("{call} failed ({code:?}): {message}")]
    Failed { call: &'static str, code: Code, message: String },
}

impl AskError {
    fn reading<T>(&self) -> Reading<T> {
        match self {
            AskError::NoSocket { .. } | AskError::Unknown { .. } => Reading::Absent(self.to_string()),
            AskError::Unreadable { .. }
            | AskError::Connect { .. }
            | AskError::Silent { .. }
            | AskError::Failed { .. } => Reading::Failed(self.to_string()),
        }
    }

    fn of(call: &'static str, status: &Status) -> Self {
        match status.code() {
            Code::Unimplemented => AskError::Unknown { call },
            code => AskError::Failed { call, code, message: status.message().to_owned() },
        }
    }
}

impl PodResources {
    pub(super) fn at(socket: PathBuf) -> Self {
        PodResources { socket, connection: None }
    }

    pub(super) async fn ask(&mut self) -> Answers {
        let channel = match self.connect().await {
            Ok(channel) => channel,
            Err(error) => {
                self.connection = None;
                return Answers { devices: error.reading(), pods: error.reading(), note: None };
            }
        };
        let mut client = PodResourcesListerClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let answers = timeout(PATIENCE, async {
            let pods = client.list(v1::ListPodResourcesRequest {}).await;
            let devices = client.get_allocatable_resources(v1::AllocatableResourcesRequest {}).await;
            (pods, devices)
        });
        let Ok((pods, devices)) = answers.await else {
            self.connection = None;
            let error = AskError::Silent { socket: self.name() };
            return Answers { devices: error.reading(), pods: error.reading(), note: None };
        };
        let pods = pods.map_err(|status| AskError::of("PodResources List", &status));
        let devices = devices.map_err(|status| AskError::of("GetAllocatableResources", &status));
        if matches!(pods, Err(AskError::Failed { code: Code::Unavailable, .. })) {
            self.connection = None;
        }
        let mut note = None;
        Answers {
            pods: match pods {
                Ok(answer) => Reading::Value(allocations::pods(answer.into_inner().pod_resources, &mut note)),
                Err(error) => error.reading(),
            },
            devices: match devices {
                Ok(answer) => Reading::Value(allocations::devices(answer.into_inner().devices, &mut note)),
                Err(error) => error.reading(),
            },
            note,
        }
    }

    async fn connect(&mut self) -> Result<Channel, AskError> {
        let socket = self.name();
        let identity = match std::fs::metadata(&self.socket) {
            Ok(file) => (file.ino(), file.ctime().unsigned_abs()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(AskError::NoSocket { socket });
            }
            Err(error) => return Err(AskError::Unreadable { socket, kind: error.kind() }),
        };
        if let Some((known, channel)) = &self.connection
            && *known == identity
        {
            return Ok(channel.clone());
        }
        let failed = |reason: String| AskError::Connect { socket: socket.clone(), reason };
        let endpoint =
            Endpoint::from_shared(format!("unix://{socket}")).map_err(|e| failed(e.to_string()))?;
        let channel = timeout(PATIENCE, endpoint.connect())
            .await
            .map_err(|_| AskError::Silent { socket: socket.clone() })?
            .map_err(|error| failed(cause(&error)))?;
        self.connection = Some((identity, channel.clone()));
        Ok(channel)
    }

    fn name(&self) -> String {
        self.socket.display().to_string()
    }
}

/// tonic's own text is "transport error".
fn cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
