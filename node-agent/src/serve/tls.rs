//! TLS with a certificate that changes while the program runs.
//! In: a folder with tls.crt and tls.key, as a Secret volume shows it. Out: accepted connections.
//! Never: a restart for a new certificate, a connection ended by it; a handshake without an end, more handshakes than the
//! bound; a certificate without its key (a volume is changed as one, other folders may not be).

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

/// Secret volumes change within a minute or so; this is added to it.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const HANDSHAKE: Duration = Duration::from_secs(10);
/// One operator has one connection a replica.
const MAX_CONNECTIONS: usize = 64;
/// A certificate with its chain and a key have some KiB.
const MAX_FILE_BYTES: u64 = 256 * 1024;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error("cannot read {path}: {kind}")]
    Read { path: String, kind: io::ErrorKind },
    #[error("{path} has more than {MAX_FILE_BYTES} bytes, expected a certificate or key in PEM")]
    TooLarge { path: String },
    #[error("cannot understand {path}: {reason}")]
    Pem { path: String, reason: String },
    #[error("tls.crt and tls.key in {folder} do not belong together: {reason}")]
    Mismatch { folder: String, reason: String },
}

/// The certificate in use.
#[derive(Debug)]
pub(crate) struct Certificate {
    folder: PathBuf,
    provider: Arc<CryptoProvider>,
    current: RwLock<Option<Arc<CertifiedKey>>>,
}

impl Certificate {
    /// Nothing is loaded yet: handshakes fail until [`Certificate::keep_loading`] found something.
    pub(crate) fn in_folder(folder: PathBuf) -> Arc<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Arc::new(Certificate { folder, provider, current: RwLock::default() })
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.current.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Loads what is there and what comes; whoever runs this drops it. What cannot be used leaves the old in use.
    pub(crate) async fn keep_loading(self: Arc<Self>) {
        let mut seen = None;
        let mut ticks = interval(LOOK_EVERY);
        loop {
            ticks.tick().await;
            let now = identity(&self.folder);
            if now == seen {
                continue;
            }
            match load(&self.folder, &self.provider) {
                Ok(loaded) => {
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(loaded));
                    tracing::info!(folder = %self.folder.display(), "loaded the server's certificate");
                    seen = now;
                }
                // Half of a change: the next look sees the whole.
                Err(error) => tracing::debug!(%error, "no usable certificate"),
            }
        }
    }

    fn server(self: &Arc<Self>) -> Result<rustls::ServerConfig, rustls::Error> {
        let builder = rustls::ServerConfig::builder_with_provider(self.provider.clone());
        let mut server = builder
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        server.alpn_protocols = vec![b"h2".to_vec()];
        Ok(server)
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Changes with every change of a file: a Secret volume swaps a link, so the files behind are others.
fn identity(folder: &Path) -> Option<[(u64, i64, i64, u64); 2]> {
    let of = |name| {
        let file = std::fs::metadata(folder.join(name)).ok()?;
        Some((file.ino(), file.mtime(), file.mtime_nsec(), file.len()))
    };
    Some([of("tls.crt")?, of("tls.key")?])
}

fn load(folder: &Path, provider: &CryptoProvider) -> Result<CertifiedKey, CertificateError> {
    let (crt, key) = (folder.join("tls.crt"), folder.join("tls.key"));
    let pem = |path: &Path, reason: rustls::pki_types::pem::Error| CertificateError::Pem {
        path: path.display().to_string(),
        reason: reason.to_string(),
    };
    let chain = CertificateDer::pem_slice_iter(&read(&crt)?).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|reason| pem(&crt, reason))?;
    let private = PrivateKeyDer::from_pem_slice(&read(&key)?).map_err(|reason| pem(&key, reason))?;
    CertifiedKey::from_der(chain, private, provider).map_err(|error| CertificateError::Mismatch {
        folder: folder.display().to_string(),
        reason: error.to_string(),
    })
}

fn read(path: &Path) -> Result<Vec<u8>, CertificateError> {
    let name = || path.display().to_string();
    let failed = |error: io::Error| CertificateError::Read { path: name(), kind: error.kind() };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    io::Read::read_to_end(&mut io::Read::take(file, MAX_FILE_BYTES + 1), &mut bytes).map_err(failed)?;
    match bytes.len() as u64 {
        0..=MAX_FILE_BYTES => Ok(bytes),
        _ => Err(CertificateError::TooLarge { path: name() }),
    }
}

/// One connection; its place among the bounded number goes with it.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TlsStream<TcpStream>,
    _place: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) -> Self::ConnectInfo {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Accepts for ever; whoever runs this drops it. A caller without TLS, or whose trust is elsewhere, costs a log line.
pub(crate) async fn accept(
    listener: TcpListener,
    certificate: Arc<Certificate>,
    accepted: mpsc::Sender<io::Result<Connection>>,
) -> Result<(), rustls::Error> {
    let acceptor = TlsAcceptor::from(Arc::new(certificate.server()?));
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut handshakes = JoinSet::new();
    // Never closed.
    while let Ok(place) = places.clone().acquire_owned().await {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Too many open files, or a caller that went away; neither is helped by asking at once again.
                tracing::warn!(%error, "cannot accept a connection");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        while handshakes.try_join_next().is_some() {}
        let (acceptor, accepted) = (acceptor.clone(), accepted.clone());
        handshakes.spawn(async move {
            let _ = stream.set_nodelay(true);
            match timeout(HANDSHAKE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    // The server is gone when this fails.
                    let _ = accepted.send(Ok(Connection { stream, _place: place })).await;
                }
                Ok(Err(error)) => tracing::info!(%peer, %error, "refused a connection: no TLS handshake"),
                Err(_) => tracing::info!(%peer, "refused a connection: no TLS handshake in time"),
            }
        });
    }
    Ok(())
}
