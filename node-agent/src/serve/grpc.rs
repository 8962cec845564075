//! `fathom.node.v1.NodeFacts`, health and reflection.
//! In: the newest state, a door. Out: the service. Never: facts to a caller that the door does not admit (health and
//! reflection tell nothing of the node); a queue: each stream takes the newest state when its client is ready for it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use node_agent_proto::v1::node_facts_server::{NodeFacts, NodeFactsServer};
use node_agent_proto::v1::{
    GetRequest, GetResponse, Heartbeat, WatchRequest, WatchResponse, watch_response::Event,
};
use node_agent_proto::{HEARTBEAT_MS, KEEPALIVE_MS, MAX_MESSAGE_BYTES};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status};

use super::token::Door;
use crate::metrics::{Metrics, OpenStream};
use crate::state::State;

const HEARTBEAT: Duration = Duration::from_millis(HEARTBEAT_MS);
/// Clients ping twice as often.
const KEEPALIVE: Duration = Duration::from_millis(2 * KEEPALIVE_MS);
const KEEPALIVE_PATIENCE: Duration = Duration::from_secs(20);
/// Calls on one connection at the same time.
const MAX_CALLS: u32 = 32;
/// Requests hold a position.
const MAX_REQUEST_BYTES: usize = 64 * 1024;
/// Streams end after this, so that tokens and certificates are looked at anew; clients resume.
const MAX_AGE: Duration = Duration::from_secs(30 * 60);
const MAX_AGE_GRACE: Duration = Duration::from_secs(5);

pub(crate) type States = watch::Receiver<Option<Arc<State>>>;

/// What the service is made of.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) states: States,
    pub(crate) door: Door,
    /// Ends the streams.
    pub(crate) stop: CancellationToken,
    pub(crate) metrics: Arc<Metrics>,
}

#[tonic::async_trait]
impl NodeFacts for Service {
    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        self.door.admit(request.metadata()).await?;
        let state = self.states.borrow().clone();
        let state = state.ok_or_else(|| Status::unavailable("the first facts are being read"))?;
        Ok(Response::new(GetResponse {
            position: Some(state.position()),
            observed: Some(state.observed()),
            facts: Some(state.all()),
        }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.door.admit(request.metadata()).await?;
        let follower = Follower {
            states: self.states.clone(),
            stop: self.stop.clone(),
            resume: request.into_inner().last_seen,
            sent: None,
            quiet_until: Instant::now(),
            _counted: self.metrics.stream(),
        };
        let stream = unfold(Some(follower), |follower| async {
            let mut follower = follower?;
            match follower.next().await {
                Some(message) => Some((Ok(message), Some(follower))),
                None => Some((Err(Status::unavailable("the agent is stopping")), None)),
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

/// One client's stream.
struct Follower {
    states: States,
    stop: CancellationToken,
    /// Where the client says it is, until the first message.
    resume: Option<node_agent_proto::v1::Position>,
    /// Number of the state that the client has.
    sent: Option<u64>,
    /// When a message is due in any case.
    quiet_until: Instant,
    _counted: OpenStream,
}

impl Follower {
    /// The next message; `None` when the agent stops.
    async fn next(&mut self) -> Option<WatchResponse> {
        loop {
            if let Some(message) = self.due() {
                self.quiet_until = Instant::now() + HEARTBEAT;
                return Some(message);
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return None,
                // The sender lives as long as the program.
                changed = self.states.changed() => changed.ok()?,
                () = sleep_until(self.quiet_until), if self.sent.is_some() => {}
            }
        }
    }

    fn due(&mut self) -> Option<WatchResponse> {
        let state = self.states.borrow_and_update().clone()?;
        let event = match self.sent {
            None => match self.resume.take().and_then(|position| state.resumes(&position)) {
                Some(known) => Event::Changes(state.changes_since(known)),
                None => Event::Snapshot(state.all()),
            },
            Some(sent) if state.matters_since(sent) => Event::Changes(state.changes_since(sent)),
            Some(_) if Instant::now() < self.quiet_until => return None,
            Some(sent) if state.sequence() > sent => Event::Changes(state.changes_since(sent)),
            Some(_) => Event::Heartbeat(Heartbeat {}),
        };
        self.sent = Some(state.sequence());
        let (position, observed) = (Some(state.position()), Some(state.observed()));
        Some(WatchResponse { position, observed, event: Some(event) })
    }
}

/// Serves connections until told to stop, and then until streams have ended.
pub(crate) async fn serve<I, C>(connections: I, service: Service) -> Result<(), tonic::transport::Error>
where
    I: Stream<Item = io::Result<C>>,
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let stop = service.stop.clone();
    let facts = NodeFactsServer::new(service)
        .max_decoding_message_size(MAX_REQUEST_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<NodeFactsServer<Service>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(node_agent_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1();
    let mut server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_PATIENCE))
        .max_concurrent_streams(MAX_CALLS)
        .max_connection_age(MAX_AGE)
        .max_connection_age_grace(MAX_AGE_GRACE);
    let mut router = server.add_service(facts).add_service(health_service);
    match reflection {
        Ok(reflection) => router = router.add_service(reflection),
        // Descriptors are part of the program.
        Err(error) => tracing::error!(%error, "no reflection"),
    }
    router.serve_with_incoming_shutdown(connections, stop.cancelled_owned()).await
}
