//! A Kubernetes API that knows EndpointSlices only: a list, a watch, and outages.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::client::find;

/// Name and slice.
type Slices = Vec<(String, Value)>;

#[derive(Debug)]
struct State {
    /// Every change makes a new version: the number of changes.
    slices: watch::Sender<(u64, Slices)>,
    asked: Mutex<Vec<String>>,
}

pub(super) struct Api {
    bound: SocketAddr,
    state: Arc<State>,
    server: JoinSet<()>,
}

impl Api {
    pub(super) async fn start() -> Self {
        let state = State { slices: watch::Sender::new((1, Vec::new())), asked: Mutex::default() };
        let bound = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut api = Self { bound, state: Arc::new(state), server: JoinSet::new() };
        api.come_back().await;
        api
    }

    pub(super) async fn come_back(&mut self) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(self.bound).unwrap();
        let listener = socket.listen(64).unwrap();
        self.bound = listener.local_addr().unwrap();
        self.server.spawn(serve(listener, Arc::clone(&self.state)));
    }

    pub(super) async fn die(&mut self) {
        self.server.shutdown().await;
    }

    pub(super) fn config(&self) -> kube::Config {
        kube::Config::new(format!("http://{}", self.bound).parse().unwrap())
    }

    /// Paths that were asked for.
    pub(super) fn asked(&self) -> Vec<String> {
        self.state.asked.lock().unwrap().clone()
    }

    /// The endpoints of a Service from now on: address and whether it is ready.
    pub(super) fn has(&self, service: &str, endpoints: &[(SocketAddr, bool)]) {
        let endpoints = endpoints.iter().map(|(address, ready)| {
            json!({"addresses": [address.ip().to_string()], "conditions": {"ready": ready}})
        });
        let endpoints: Vec<Value> = endpoints.collect();
        let name = format!("{service}-abcde");
        self.state.slices.send_modify(|(version, slices)| {
            *version += 1;
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": name, "namespace": "ns", "resourceVersion": version.to_string(),
                    "labels": {"kubernetes.io/service-name": service}},
                "endpoints": endpoints,
            });
            slices.retain(|(known, _)| *known != name);
            slices.push((name, slice));
        });
    }
}

async fn serve(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                connections.spawn(connection(accepted.unwrap().0, Arc::clone(&state)));
            }
            Some(ended) = connections.join_next() => ended.unwrap(),
        }
    }
}

async fn connection(mut stream: TcpStream, state: Arc<State>) {
    let mut unread = Vec::new();
    loop {
        let Some(end) = find(&unread, b"\r\n\r\n") else {
            match stream.read_buf(&mut unread).await {
                Ok(1..) => continue,
                Ok(0) | Err(_) => return,
            }
        };
        let head = String::from_utf8(unread.drain(..end + 4).collect()).unwrap();
        let path = head.split(' ').nth(1).unwrap().to_owned();
        state.asked.lock().unwrap().push(path.clone());
        if path.contains("watch=") {
            // A watch ends with its connection.
            let _left = watch_slices(&mut stream, &state).await;
            return;
        }
        let (version, slices) = state.slices.borrow().clone();
        let items: Vec<Value> = slices.into_iter().map(|(_, slice)| slice).collect();
        let list = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList",
            "metadata": {"resourceVersion": version.to_string()}, "items": items,
        });
        if stream.write_all(&super::mock::json_answer(&list.to_string())).await.is_err() {
            return;
        }
    }
}

/// Every slice as it is now, and again whenever any changes.
async fn watch_slices(stream: &mut TcpStream, state: &State) -> std::io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let mut slices = state.slices.subscribe();
    slices.mark_changed();
    while slices.changed().await.is_ok() {
        let now = slices.borrow_and_update().1.clone();
        for (_, slice) in now {
            let line = format!("{}\n", json!({"type": "MODIFIED", "object": slice}));
            stream.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes()).await?;
        }
    }
    Ok(())
}
