//! A worker that does what a test says, over raw sockets, and remembers what reached it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::client::{find, header};

/// What happens to the next requests, until the test says otherwise.
#[derive(Debug, Clone)]
pub(super) enum Script {
    /// These bytes, head and all.
    Raw(Vec<u8>),
    /// A chunked answer, each piece written by itself.
    Pieces { content_type: &'static str, pieces: Vec<Vec<u8>>, end: End },
    /// No answer until the client leaves.
    Silence,
    /// The connection closes without an answer.
    Close,
    /// A chunked answer of this many bytes, as fast as the socket takes it.
    Flood(u64),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Clean,
    /// The connection closes within the body.
    Kill,
    /// Clean, when the test releases it; or never, if the client leaves first.
    WhenReleased,
}

#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

impl Seen {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }
}

#[derive(Debug)]
struct State {
    ready: AtomicBool,
    script: Mutex<Script>,
    info: Mutex<String>,
    seen: Mutex<Vec<Seen>>,
    left: AtomicUsize,
    written: AtomicU64,
    release: Semaphore,
}

pub(super) struct Mock {
    address: String,
    bound: SocketAddr,
    state: Arc<State>,
    server: JoinSet<()>,
}

impl Mock {
    pub(super) async fn start() -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    pub(super) async fn start_at(bound: SocketAddr) -> Self {
        let state = Arc::new(State {
            ready: AtomicBool::new(true),
            script: Mutex::new(Script::Raw(json_answer("{}"))),
            info: Mutex::new(String::from("{}")),
            seen: Mutex::default(),
            left: AtomicUsize::new(0),
            written: AtomicU64::new(0),
            release: Semaphore::new(0),
        });
        let mut mock = Self { address: String::new(), bound, state, server: JoinSet::new() };
        mock.come_back().await;
        mock
    }

    /// Listens, at the same address as before if there was one.
    pub(super) async fn come_back(&mut self) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.set_send_buffer_size(8192).unwrap();
        socket.bind(self.bound).unwrap();
        let listener = socket.listen(4096).unwrap();
        self.bound = listener.local_addr().unwrap();
        self.address = self.bound.to_string();
        self.server.spawn(serve(listener, Arc::clone(&self.state)));
    }

    /// As by `kill -9`: listener and connections are gone.
    pub(super) async fn die(&mut self) {
        self.server.shutdown().await;
    }

    pub(super) fn bound(&self) -> SocketAddr {
        self.bound
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn does(&self, script: Script) {
        *self.state.script.lock().unwrap() = script;
    }

    pub(super) fn answers(&self, raw: impl Into<Vec<u8>>) {
        self.does(Script::Raw(raw.into()));
    }

    pub(super) fn streams(&self, pieces: &[&str], end: End) {
        let pieces = pieces.iter().map(|piece| piece.as_bytes().to_vec()).collect();
        self.does(Script::Pieces { content_type: "text/event-stream", pieces, end });
    }

    pub(super) fn is_of_revision(&self, revision: &str) {
        *self.state.info.lock().unwrap() = serde_json::json!({"revision": revision}).to_string();
    }

    pub(super) fn reports(&self, admission: &serde_json::Value) {
        *self.state.info.lock().unwrap() = serde_json::json!({"admission": admission}).to_string();
    }

    pub(super) fn is_ready(&self, ready: bool) {
        self.state.ready.store(ready, Ordering::Relaxed);
    }

    pub(super) fn release(&self, streams: usize) {
        self.state.release.add_permits(streams);
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    pub(super) fn count(&self) -> usize {
        self.state.seen.lock().unwrap().len()
    }

    /// Requests whose client left before their answer was whole.
    pub(super) fn left(&self) -> usize {
        self.state.left.load(Ordering::Relaxed)
    }

    pub(super) fn written(&self) -> u64 {
        self.state.written.load(Ordering::Relaxed)
    }
}

pub(super) fn json_answer(body: &str) -> Vec<u8> {
    answer(200, "application/json", &[], body)
}

pub(super) fn answer(status: u16, content_type: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status} Whatever\r\ncontent-type: {content_type}\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    text.into_bytes()
}

async fn serve(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted.unwrap();
                stream.set_nodelay(true).unwrap();
                connections.spawn(connection(stream, Arc::clone(&state)));
            }
            Some(ended) = connections.join_next() => ended.unwrap(),
        }
    }
}

async fn connection(mut stream: TcpStream, state: Arc<State>) {
    let mut unread = Vec::new();
    while let Some(seen) = read_request(&mut stream, &mut unread).await {
        let path = seen.head.split(' ').nth(1).unwrap();
        let kept = match path {
            "/readyz" => {
                let status = if state.ready.load(Ordering::Relaxed) { 200 } else { 503 };
                stream.write_all(&answer(status, "text/plain", &[], "x")).await.is_ok()
            }
            "/server_info" => {
                let info = state.info.lock().unwrap().clone();
                stream.write_all(&json_answer(&info)).await.is_ok()
            }
            _ => {
                let script = state.script.lock().unwrap().clone();
                state.seen.lock().unwrap().push(seen);
                play(&mut stream, script, &state).await
            }
        };
        if !kept {
            return;
        }
    }
}

async fn read_request(stream: &mut TcpStream, unread: &mut Vec<u8>) -> Option<Seen> {
    let mut expected = None;
    loop {
        if expected.is_none()
            && let Some(end) = find(unread, b"\r\n\r\n")
        {
            let head = String::from_utf8(unread[..end].to_vec()).unwrap();
            let length: usize = header(&head, "content-length").map_or(0, |text| text.parse().unwrap());
            expected = Some((head, end + 4, length));
        }
        if let Some((head, start, length)) = &expected
            && unread.len() >= start + length
        {
            let body = unread[*start..start + length].to_vec();
            let seen = Seen { head: head.clone(), body };
            unread.drain(..start + length);
            return Some(seen);
        }
        if stream.read_buf(unread).await.ok()? == 0 {
            return None;
        }
    }
}

/// Whether the connection can be used again.
async fn play(stream: &mut TcpStream, script: Script, state: &State) -> bool {
    match script {
        Script::Raw(bytes) => stream.write_all(&bytes).await.is_ok(),
        Script::Close => false,
        Script::Silence => {
            closed_by_client(stream).await;
            state.left.fetch_add(1, Ordering::Relaxed);
            false
        }
        Script::Pieces { content_type, pieces, end } => {
            write_head(stream, content_type).await;
            for piece in pieces {
                let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), &piece, b"\r\n"].concat();
                if stream.write_all(&chunk).await.is_err() {
                    state.left.fetch_add(1, Ordering::Relaxed);
                    return false;
                }
                tokio::task::yield_now().await;
            }
            finish(stream, end, state).await
        }
        Script::Flood(total) => {
            write_head(stream, "text/event-stream").await;
            let line = format!("data: {}\n\n", "x".repeat(1000));
            let chunk = format!("{:x}\r\n{line}\r\n", line.len());
            while state.written.load(Ordering::Relaxed) < total {
                if stream.write_all(chunk.as_bytes()).await.is_err() {
                    state.left.fetch_add(1, Ordering::Relaxed);
                    return false;
                }
                state.written.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            }
            stream.write_all(b"0\r\n\r\n").await.is_ok()
        }
    }
}

async fn write_head(stream: &mut TcpStream, content_type: &str) {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\nfathom-prompt-tokens: 10\r\n\
         transfer-encoding: chunked\r\n\r\n"
    );
    // A client that has left shows at the next write.
    let _ = stream.write_all(head.as_bytes()).await;
}

async fn finish(stream: &mut TcpStream, end: End, state: &State) -> bool {
    match end {
        End::Clean => {}
        End::Kill => return false,
        End::WhenReleased => tokio::select! {
            permit = state.release.acquire() => permit.unwrap().forget(),
            () = closed_by_client(stream) => {
                state.left.fetch_add(1, Ordering::Relaxed);
                return false;
            }
        },
    }
    stream.write_all(b"0\r\n\r\n").await.is_ok()
}

async fn closed_by_client(stream: &mut TcpStream) {
    let mut byte = [0];
    while stream.read(&mut byte).await.is_ok_and(|count| count > 0) {}
}
