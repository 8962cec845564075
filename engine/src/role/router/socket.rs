//! A client's socket: breaks when the client stops reading, and says when what was written has left.
//! In: a TCP stream. Out: the same, with a bound on how long a write may stand still, and a [`FlushSignal`].
//! The server flushes its socket only when its own buffer is empty, so a flush seen here means that every byte handed to
//! the server before has been given to the kernel.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// A client that has not taken a byte for this long is gone.
const STUCK_AFTER: Duration = Duration::from_mins(1);

const IDLE: u8 = 0;
const ARMED: u8 = 1;
const FLUSHED: u8 = 2;

/// Between a body and its connection, which the same task polls.
#[derive(Debug, Default)]
pub(super) struct FlushSignal(AtomicU8);

impl FlushSignal {
    /// Whether the socket has been flushed since this was first asked; the asker is polled again when it has.
    pub(super) fn is_flushed_since_armed(&self) -> bool {
        let armed = self.0.compare_exchange(IDLE, ARMED, Ordering::AcqRel, Ordering::Acquire);
        armed == Err(FLUSHED)
    }

    fn flushed(&self, cx: &Context<'_>) {
        if self.0.load(Ordering::Acquire) == ARMED {
            self.0.store(FLUSHED, Ordering::Release);
            cx.waker().wake_by_ref();
        }
    }
}

#[derive(Debug)]
pub(super) struct ClientSocket {
    stream: TcpStream,
    flush: Arc<FlushSignal>,
    /// Runs while a write stands still.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl ClientSocket {
    pub(super) fn new(stream: TcpStream, flush: Arc<FlushSignal>) -> Self {
        Self { stream, flush, stuck: None }
    }

    fn watch<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(tokio::time::sleep(STUCK_AFTER)));
        ready!(stuck.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client stopped reading")))
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        self.flush.flushed(cx);
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
