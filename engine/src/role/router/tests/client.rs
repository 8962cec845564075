//! A client that sees the bytes: head, body without its framing, and whether the end was clean.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::PATIENCE;

#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) status: u16,
    head: String,
    pub(super) body: Vec<u8>,
    /// The body ended as its framing says, not by a broken connection.
    pub(super) complete: bool,
}

impl Exchange {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }
}

pub(super) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// One connection, one request at a time.
pub(super) struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Connection {
    pub(super) async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, unread: Vec::new() }
    }

    /// One that takes little at a time into the kernel.
    pub(super) async fn open_narrow(address: SocketAddr) -> Self {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(8192).unwrap();
        Self { stream: socket.connect(address).await.unwrap(), unread: Vec::new() }
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    pub(super) async fn send_chat(&mut self, body: &str) {
        self.send(&request("POST", "/v1/chat/completions", &[], body.as_bytes())).await;
    }

    /// Reads more; false at the end or when the connection broke.
    async fn fill(&mut self) -> bool {
        let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.unread)).await;
        read.expect("no byte came").is_ok_and(|count| count > 0)
    }

    pub(super) async fn read_head(&mut self) -> String {
        loop {
            if let Some(end) = find(&self.unread, b"\r\n\r\n") {
                let rest = self.unread.split_off(end + 4);
                let head = std::mem::replace(&mut self.unread, rest);
                return String::from_utf8(head).unwrap();
            }
            assert!(self.fill().await, "the connection ended within a head: {:?}", self.unread);
        }
    }

    /// Reads a chunked body until `enough` holds of what has come, or until its end.
    pub(super) async fn read_chunks(&mut self, enough: impl Fn(&[u8]) -> bool) -> (Vec<u8>, bool) {
        let mut body = Vec::new();
        while !enough(&body) {
            let Some(line_end) = find(&self.unread, b"\r\n") else {
                if self.fill().await {
                    continue;
                }
                return (body, false);
            };
            let size = std::str::from_utf8(&self.unread[..line_end]).unwrap();
            let size = usize::from_str_radix(size, 16).unwrap();
            let end = line_end + 2 + size + 2;
            while self.unread.len() < end {
                if !self.fill().await {
                    body.extend_from_slice(&self.unread[line_end + 2..]);
                    return (body, false);
                }
            }
            body.extend_from_slice(&self.unread[line_end + 2..end - 2]);
            self.unread.drain(..end);
            if size == 0 {
                return (body, true);
            }
        }
        (body, false)
    }

    pub(super) async fn read_exchange(&mut self) -> Exchange {
        let head = self.read_head().await;
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = header(&head, "content-length").map(|text| text.parse::<usize>().unwrap());
        let (body, complete) = match length {
            Some(length) => {
                while self.unread.len() < length && self.fill().await {}
                let taken = length.min(self.unread.len());
                let rest = self.unread.split_off(taken);
                (std::mem::replace(&mut self.unread, rest), taken == length)
            }
            None => self.read_chunks(|_| false).await,
        };
        Exchange { status, head, body, complete }
    }
}

pub(super) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: router.test\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    [text.as_bytes(), body].concat()
}

pub(super) async fn post(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Exchange {
    let mut connection = Connection::open(address).await;
    connection.send(&request("POST", path, headers, body)).await;
    connection.read_exchange().await
}

pub(super) async fn get(address: SocketAddr, path: &str) -> Exchange {
    let mut connection = Connection::open(address).await;
    connection.send(&request("GET", path, &[], b"")).await;
    connection.read_exchange().await
}

pub(super) fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}
