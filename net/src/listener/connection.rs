//! Connection: one connection of a client, with its time limits, over TLS or plain.
//!
//! ```text
//! socket ── Wire (TLS or not) ── [authorities rewritten] ── Connection: checks its timer whenever it waits
//! ```
//!
//! | from | to | limit |
//! |---|---|---|
//! | accepted | the whole HTTP/2 preface has arrived, or a byte that is not of it: HTTP/1 | `handshake` |
//! | no call is open | a call is let in | `idle`; [`UNUSED`] before the first |
//! | a piece of an answer was passed on | the next one can be sent | `slow_reader`, see [`calls`](crate::listener::stalled_calls) |
//! | nothing can be written | something can be written | `slow_reader`, or [`BLOCKED`] |
//!
//! Over HTTP/1, a client sends at most `header_bytes` that are not answered yet, or is disconnected: it holds no more memory than that.
//!
//! An unproven connection ends when its place is needed: [`places`](crate::listener::connection_limit).
//!
//! Invariant: a connection without progress wakes its own task.

use crate::listener::connection_info::ConnectionInfo;
use crate::listener::connection_limit::Place;
use crate::listener::stalled_calls::Verdict;
use crate::served::refusals::{Refusal, Refusals};
use chiplog::options;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

/// The first bytes of an HTTP/2 client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long writing may be blocked if slow readers have no limit.
const BLOCKED: Duration = Duration::from_secs(60);

options! {
    /// The limits of a listener's connections.
    ///
    /// ```
    /// use chiplog_net::listener::connection::ConnectionLimits;
    /// let limits = ConnectionLimits::default().connections(100).idle(None);
    /// ```
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ConnectionLimits {
        /// The limit of open connections, default 4,096. Above it, an unproven connection is closed: the oldest one of
        /// the address with most of them. If there is none, the new connection is closed at once.
        pub connections: usize,
        /// The limit of open connections from one address, default 1,024. An address is one of IPv4, or a network of
        /// IPv6 (64 bits). Above the limit, the address's oldest unproven connection is closed; if there is none, the
        /// new one.
        pub connections_per_address: usize,
        /// The limit of open calls on one connection, default 1,024. Further calls wait at the client; if the client
        /// does not wait, they are rejected (REFUSED_STREAM).
        pub streams: u32,
        /// The bytes that a client may send on one stream before they are read, default 128 KiB; on a connection,
        /// sixteen times as many.
        pub window_bytes: u32,
        /// The limit of one request's headers in bytes, plus 32 for each header, default 16 KiB. Above it: status 431.
        pub header_bytes: u32,
        /// The time limit of TLS and the HTTP/2 preface together, default 10 s. Then the connection is closed.
        pub handshake: Duration,
        /// How long a connection may have no open call, default 30 min; None: without limit. Then it is closed.
        pub idle: Option<Duration>,
        /// How long a client may read nothing of a pending answer, default 60 s; None: without limit. Then the call
        /// ends as DEADLINE_EXCEEDED; after the same time again the connection is closed.
        pub slow_reader: Option<Duration>,
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections: 4096,
            connections_per_address: 1024,
            streams: 1024,
            window_bytes: 128 << 10,
            header_bytes: 16 << 10,
            handshake: Duration::from_secs(10),
            idle: Some(Duration::from_secs(1800)),
            slow_reader: Some(Duration::from_secs(60)),
        }
    }
}

/// The bytes of a connection, within TLS if it is used.
///
/// ```
/// use chiplog_net::listener::connection::Wire;
/// let is_secret = |wire: &Wire| matches!(wire, Wire::Tls(_));
/// # let _ = is_secret;
/// ```
#[derive(Debug)]
pub enum Wire {
    /// Plain bytes.
    Plain(TcpStream),
    /// Within TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection with its limits. Reads and writes use its `T`. Made by [`listener`](crate::listener).
///
/// ```
/// use chiplog_net::listener::connection::{Connection, Wire};
/// use tonic::transport::server::Connected;
/// let from = |connection: &Connection<Wire>| connection.connect_info().remote();
/// # let _ = from;
/// ```
#[derive(Debug)]
pub struct Connection<T> {
    io: T,
    arrival: ConnectionInfo,
    limits: Arc<ConnectionLimits>,
    refusals: Arc<Refusals>,
    /// The time of the next check.
    look: Pin<Box<Sleep>>,
    /// The missing bytes of the preface.
    missing: usize,
    /// Over HTTP/1: the bytes that came since something was written. None: HTTP/2, or it is not known yet.
    unanswered: Option<usize>,
    /// Since when writing is blocked, if it is.
    blocked_since: Option<Instant>,
    ended: bool,
    place: Place,
}

impl<T> Connection<T> {
    /// Wraps an accepted connection, whose preface must arrive by `deadline`.
    pub(crate) fn new(
        io: T,
        arrival: ConnectionInfo,
        limits: Arc<ConnectionLimits>,
        refusals: Arc<Refusals>,
        deadline: Instant,
        place: Place,
    ) -> Self {
        let look = Box::pin(sleep_until(deadline));
        Self {
            io,
            arrival,
            limits,
            refusals,
            look,
            missing: PREFACE.len(),
            unanswered: None,
            blocked_since: None,
            ended: false,
            place,
        }
    }

    /// Counts bytes that arrived.
    ///
    /// # Errors
    /// Over HTTP/1: they are more than a request's headers may have.
    fn came(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.missing > 0 && !bytes.is_empty() {
            let wanted = &PREFACE[PREFACE.len() - self.missing..];
            let common = wanted.len().min(bytes.len());
            if bytes[..common] == wanted[..common] {
                self.missing -= common;
            } else {
                (self.missing, self.unanswered) = (0, Some(0));
            }
            if self.missing == 0 {
                self.look.as_mut().reset(Instant::now());
            }
        }
        let Some(unanswered) = &mut self.unanswered else { return Ok(()) };
        *unanswered += bytes.len();
        if *unanswered > self.limits.header_bytes as usize {
            let remote = self.arrival.remote();
            self.refusals.count(Refusal::Handshake);
            tracing::info!(%remote, "closed a connection: the headers of a request over HTTP/1 are too large");
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the headers of a request are too large"));
        }
        Ok(())
    }

    /// Checks the limits; wakes the task for the next check.
    fn watch(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.place.poll_taken_away(context).is_ready() {
            return Err(timed_out(
                "closed to make room: too many connections, and this one is not authenticated",
            ));
        }
        while !self.ended && self.look.as_mut().poll(context).is_ready() {
            let remote = self.arrival.remote();
            if self.missing > 0 {
                self.refusals.count(Refusal::Handshake);
                tracing::info!(%remote, "closed a connection: no HTTP/2 preface was received in time");
                return Err(timed_out("no HTTP/2 preface was received in time"));
            }
            let now = Instant::now();
            let blocked_max = self.limits.slow_reader.unwrap_or(BLOCKED);
            if self.blocked_since.is_some_and(|since| now.duration_since(since) >= blocked_max) {
                self.refusals.count(Refusal::SlowReader);
                tracing::warn!(%remote, "closed a connection: the client reads nothing");
                return Err(timed_out("slow reader: the client reads nothing from the connection"));
            }
            let look = self.arrival.calls().look(now, self.limits.idle, self.limits.slow_reader);
            for _ in 0..look.cut {
                self.refusals.count(Refusal::SlowReader);
                tracing::warn!(%remote, "ended a call: the client reads nothing of the answer");
            }
            match look.verdict {
                Verdict::On(next) => self.look.as_mut().reset(next),
                Verdict::Idle => {
                    self.refusals.count(Refusal::Idle);
                    tracing::debug!(%remote, "closed an idle connection");
                    self.ended = true;
                }
                Verdict::Stuck => {
                    tracing::warn!(%remote, "closed a connection: the client reads nothing of an answer that was ended");
                    return Err(timed_out("slow reader: the client does not read the answer"));
                }
            }
        }
        Ok(())
    }
}

fn timed_out(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

impl<T: AsyncRead + Unpin> AsyncRead for Connection<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.io).poll_read(context, buffer);
        if read.is_pending() {
            this.watch(context)?;
            return if this.ended { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        this.came(&buffer.filled()[before..])?;
        read
    }
}

impl<T: AsyncWrite + Unpin> Connection<T> {
    /// Notes a write: the bytes that came before are answered, or are being answered.
    fn wrote(&mut self, done: &Poll<io::Result<usize>>) {
        if let (Poll::Ready(Ok(1..)), Some(unanswered)) = (done, &mut self.unanswered) {
            *unanswered = 0;
        }
    }

    /// Returns the result of a write. While it waits, checks the limits: a client that reads nothing blocks everything.
    fn watched<R>(&mut self, context: &mut Context<'_>, done: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if done.is_ready() {
            self.blocked_since = None;
            return done;
        }
        self.blocked_since.get_or_insert_with(Instant::now);
        self.watch(context)?;
        if self.ended {
            // A read would return the end of the connection, but a task that waits to write does not read.
            return Poll::Ready(Err(timed_out("the connection was idle")));
        }
        done
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Connection<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.io).poll_write(context, bytes);
        this.wrote(&done);
        this.watched(context, done)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.io).poll_write_vectored(context, slices);
        this.wrote(&done);
        this.watched(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.io).poll_flush(context);
        this.watched(context, done)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.io).poll_shutdown(context);
        this.watched(context, done)
    }
}

impl<T> Connected for Connection<T> {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        self.arrival.clone()
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_read(context, buffer),
            Self::Tls(io) => Pin::new(io).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write(context, bytes),
            Self::Tls(io) => Pin::new(io).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write_vectored(context, slices),
            Self::Tls(io) => Pin::new(io).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(io) => io.is_write_vectored(),
            Self::Tls(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_flush(context),
            Self::Tls(io) => Pin::new(io).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_shutdown(context),
            Self::Tls(io) => Pin::new(io).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::connection_limit::Places;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    fn connection(io: DuplexStream, limits: ConnectionLimits) -> (Connection<DuplexStream>, Arc<Refusals>) {
        let remote = ([127, 0, 0, 1], 1).into();
        let (place, _) = Places::new(1, 1).take([127, 0, 0, 1].into()).unwrap();
        let refusals = Arc::<Refusals>::default();
        let arrival = ConnectionInfo::new(remote, false, None, place.seat(), None);
        let deadline = Instant::now() + limits.handshake;
        let connection = Connection::new(io, arrival, limits.into(), refusals.clone(), deadline, place);
        (connection, refusals)
    }

    /// A client sent pings and read none of the answers. HTTP/2 then waited for room to write, and in that state
    /// neither reads nor checks a timer: the connection stayed open forever.
    #[tokio::test(start_paused = true)]
    async fn client_that_reads_nothing_is_disconnected() {
        for (idle, reason) in [(None, Refusal::SlowReader), (Some(Duration::from_secs(5)), Refusal::Idle)] {
            let limits = ConnectionLimits::default().idle(idle);
            let (mut client, server) = tokio::io::duplex(64);
            let (mut server, refusals) = connection(server, limits);
            client.write_all(&[b'x'; 24]).await.unwrap();
            server.read_exact(&mut [0; 24]).await.unwrap();
            let begun = Instant::now();
            let error = server.write_all(&[7; 1000]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(begun.elapsed() <= BLOCKED * 2, "{:?}", begun.elapsed());
            assert_eq!(refusals.read(reason), 1);
            drop(client);
        }
    }

    /// A request over HTTP/1 that is shorter than a preface was cut off after the time for a preface.
    #[tokio::test(start_paused = true)]
    async fn http1_needs_no_preface_and_has_a_limit_of_bytes() {
        for first in [&b"GET"[..], b"PRI * HTTP/1.1\r\n"] {
            let limits = ConnectionLimits::default().header_bytes(100).handshake(Duration::from_secs(1));
            let (mut client, server) = tokio::io::duplex(64);
            let (mut server, refusals) = connection(server, limits.idle(None));
            client.write_all(first).await.unwrap();
            server.read_exact(&mut vec![0; first.len()]).await.unwrap();
            let mut buffer = [0; 64];
            let silent = tokio::time::timeout(Duration::from_secs(5), server.read(&mut buffer)).await;
            assert!(silent.is_err(), "{silent:?}");
            // An answer makes room for the next request.
            for _ in 0..3 {
                client.write_all(&[b'x'; 60]).await.unwrap();
                server.read_exact(&mut buffer[..60]).await.unwrap();
                server.write_all(b"answer").await.unwrap();
            }
            client.write_all(&[b'x'; 64]).await.unwrap();
            server.read_exact(&mut buffer).await.unwrap();
            client.write_all(&[b'x'; 64]).await.unwrap();
            let error = server.read(&mut buffer).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert_eq!(refusals.read(Refusal::Handshake), 1);
        }
    }
}
