//! Listener: accepts connections and prepares them for the services.
//!
//! | part | reason |
//! |---|---|
//! | no delay | a reply is sent at once, whatever its size |
//! | TLS with the listener's current identity | certificates change while it runs |
//! | [authorities rewritten](crate::listener::authority), within TLS | some clients send invalid host names there |
//! | [places](crate::listener::connection_limit): unproven connections leave first | idle strangers cannot take all places |
//! | [limits](crate::listener::connection) | a client that sends no preface, makes no call or reads nothing is disconnected |
//! | large windows | one client can fill a long-distance connection; its unread bytes stay bounded |
//! | [plain HTTP](crate::listener::plain_http), HTTP/1 and HTTP/2 | objects of the log are for every program that can make a GET |
//! | pings answered, never counted | clients ping idle connections, and drop those that do not answer |

pub mod auth;
pub mod authority;
pub(crate) mod bill;
pub mod connection;
pub mod connection_info;
pub mod connection_limit;
pub mod memory_budget;
pub mod plain_http;
pub(crate) mod stalled_calls;
pub mod stream_budget;
pub mod tls;

use crate::listener::authority::CheckedAuthority;
use crate::listener::connection::{Connection, ConnectionLimits, Wire};
use crate::listener::connection_info::{CallLayer, ConnectionInfo, LogPort};
use crate::listener::connection_limit::{Place, Places};
use crate::listener::plain_http::PlainHttpLayer;
use crate::listener::tls::ServerTls;
use crate::served::refusals::{Refusal, Refusals};
use crate::wire::connect_error::is_certificate;
use crate::wire::tcp;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_stream::Stream;
use tonic::transport::Server;
use tower_layer::{Identity, Stack};

/// The bytes that a client may send on all its streams before they are read, in windows of one stream. Streams that
/// wait, such as appends without room, would otherwise use up the connection's window. The other streams would then
/// receive nothing, as if the client did not send.
pub const WINDOWS_PER_CONNECTION: u32 = 16;
/// The largest frame a client may send.
const FRAME_BYTES_MAX: u32 = 256 << 10;
/// The wait after an error of accepting, such as too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Practically never.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
/// The time for a client without TLS to receive the answer that TLS is required.
const LAST_WORD: Duration = Duration::from_secs(1);
/// The shortest interval between log messages about rejected connections.
const SAY_INTERVAL: Duration = Duration::from_secs(10);

/// Settings of a listener.
///
/// ```
/// use chiplog_net::listener::Settings;
/// let mut settings = Settings::default();
/// settings.limits.connections = 100;
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Settings {
    /// The limits of its connections.
    pub limits: ConnectionLimits,
    /// TLS settings; default: none, plain bytes.
    pub tls: Option<Arc<ServerTls>>,
    /// The counters of rejections.
    pub refusals: Arc<Refusals>,
    /// How long sent bytes may stay unacknowledged by the peer's kernel. None: the system's default.
    pub(crate) unacknowledged: Option<Duration>,
}

/// Accepts connections for tonic's `serve_with_incoming`, with the default limits and without TLS. Never ends and never
/// fails: an error of accepting is logged and retried after a moment.
///
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use chiplog_net::served::log_slot::LogSlot;
/// use chiplog_net::listener;
/// use chiplog_net::service::logspec;
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// let service = logspec::LogspecService::new(LogSlot::new(), logspec::Limits::default()).into_server();
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let serving = listener::server()
///     .add_service(service)
///     .serve_with_incoming_shutdown(listener::incoming(listener), async { drop(stopped.await) });
/// drop(stop);
/// serving.await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).map_err(|e| e.to_string())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn incoming(listener: TcpListener) -> Incoming<CheckedAuthority<Wire>> {
    incoming_with(listener, Settings::default())
}

/// As [`incoming`], with these settings. The server must be made by [`server_with`] with the same limits.
pub fn incoming_with(listener: TcpListener, settings: Settings) -> Incoming<CheckedAuthority<Wire>> {
    Incoming::new(listener, settings, CheckedAuthority::new)
}

/// Without rewriting authorities: for peers.
pub(crate) fn plain(listener: TcpListener, settings: Settings) -> Incoming<Wire> {
    Incoming::new(listener, settings, |wire| wire)
}

/// Returns a server with settings that fit [`incoming`]; services are added to it.
pub fn server() -> Server<Layers> {
    server_with(&ConnectionLimits::default())
}

/// Returns a server with these limits, for [`incoming_with`] with the same ones.
pub fn server_with(limits: &ConnectionLimits) -> Server<Layers> {
    Server::builder()
        .accept_http1(true)
        .initial_stream_window_size(limits.window_bytes)
        .initial_connection_window_size(limits.window_bytes.saturating_mul(WINDOWS_PER_CONNECTION))
        .max_frame_size(FRAME_BYTES_MAX)
        .max_concurrent_streams(limits.streams)
        .http2_max_header_list_size(limits.header_bytes)
        .layer(PlainHttpLayer)
        .layer(CallLayer)
}

/// The layers of every server, the inner one first.
pub type Layers = Stack<CallLayer, Stack<PlainHttpLayer, Identity>>;

/// The stream of accepted connections. Dropping it stops listening.
///
/// ```
/// use chiplog_net::listener::{Incoming, incoming};
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let connections: Incoming<_> = incoming(tokio::net::TcpListener::bind("127.0.0.1:0").await?);
/// drop(connections);
/// # Ok::<(), std::io::Error>(()) })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Incoming<T> {
    listeners: Vec<(TcpListener, Option<Arc<LogPort>>)>,
    /// The listener that is asked first.
    next: usize,
    limits: Arc<ConnectionLimits>,
    tls: Option<Arc<ServerTls>>,
    refusals: Arc<Refusals>,
    unacknowledged: Option<Duration>,
    places: Places,
    wrap: fn(Wire) -> T,
    /// Handshakes in progress. None: the handshake failed.
    handshakes: JoinSet<Option<Connection<T>>>,
    /// Set for a moment after accepting failed.
    pause: Option<Pin<Box<Sleep>>>,
    /// When rejected connections were last logged.
    said: Option<Instant>,
}

impl<T: Send + 'static> Incoming<T> {
    fn new(listener: TcpListener, settings: Settings, wrap: fn(Wire) -> T) -> Self {
        let Settings { limits, tls, refusals, unacknowledged } = settings;
        let places = Places::new(limits.connections, limits.connections_per_address);
        let limits = Arc::new(limits);
        let handshakes = JoinSet::new();
        Self {
            listeners: vec![(listener, None)],
            next: 0,
            limits,
            tls,
            refusals,
            unacknowledged,
            places,
            wrap,
            handshakes,
            pause: None,
            said: None,
        }
    }

    /// Accepts connections at this listener as well, within the same limits: calls of `logspec.Log` on them are about this
    /// named log. Clients are redirected to the listener's port at the server that leads the log, so all servers need the
    /// same one.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use chiplog_net::listener::incoming;
    /// let clients = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    /// let orders = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    /// let connections = incoming(clients).with_log_port(orders, "orders")?;
    /// # drop(connections);
    /// # Ok::<(), std::io::Error>(()) })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// The listener's address cannot be read.
    pub fn with_log_port(mut self, listener: TcpListener, log: &str) -> io::Result<Self> {
        let port = listener.local_addr()?.port();
        self.listeners.push((listener, Some(Arc::new(LogPort { log: log.to_owned(), port }))));
        Ok(self)
    }

    /// Accepts a connection at one of the listeners, and asks the one after it first next time.
    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr, usize)>> {
        for n in (0..self.listeners.len()).map(|n| (self.next + n) % self.listeners.len()) {
            if let Poll::Ready(accepted) = self.listeners[n].0.poll_accept(context) {
                self.next = n + 1;
                return Poll::Ready(accepted.map(|(stream, remote)| (stream, remote, n)));
            }
        }
        Poll::Pending
    }

    /// Counts a connection above a limit from this address.
    fn count(&mut self, limit: Refusal, remote: SocketAddr, what: &str) {
        let refused = self.refusals.count(limit);
        if self.said.is_none_or(|said| said.elapsed() >= SAY_INTERVAL) {
            self.said = Some(Instant::now());
            tracing::warn!(%remote, limit = limit.name(), refused, "too many connections: {what}");
        }
    }

    /// Accepts a connection, if there is a place for it. Some: it is ready.
    fn admit(
        &mut self,
        stream: TcpStream,
        remote: SocketAddr,
        port: Option<Arc<LogPort>>,
    ) -> Option<Connection<T>> {
        let place = match self.places.take(remote.ip()) {
            Ok((place, limit)) => {
                if let Some(limit) = limit {
                    self.count(limit, remote, "closed the oldest connection that is not authenticated");
                }
                place
            }
            Err(limit) => {
                self.count(limit, remote, "closed the new connection");
                return None;
            }
        };
        let unacknowledged = self.unacknowledged.map_or(Ok(()), |limit| tcp::give_up(&stream, limit));
        if let Err(error) = stream.set_nodelay(true).and(unacknowledged) {
            tracing::debug!(%error, "a connection ended before it was accepted");
        }
        let deadline = Instant::now() + self.limits.handshake.min(FAR);
        let Some(tls) = &self.tls else {
            let arrival = ConnectionInfo::new(remote, false, None, place.seat(), port);
            return Some(self.connection(Wire::Plain(stream), arrival, deadline, place));
        };
        let acceptor = TlsAcceptor::from(tls.current());
        let (limits, refusals, wrap) = (self.limits.clone(), self.refusals.clone(), self.wrap);
        self.handshakes.spawn(async move {
            let accepting = acceptor.accept(stream).into_fallible();
            let accepted = tokio::select! {
                () = poll_fn(|context| place.poll_taken_away(context)) => return None,
                accepted = timeout_at(deadline, accepting) => accepted,
            };
            let (why, left) = match accepted {
                Ok(Ok(stream)) => {
                    let shown = stream.get_ref().1.peer_certificates().and_then(|all| all.first());
                    let shown = shown.map(|c| c.clone().into_owned());
                    let arrival = ConnectionInfo::new(remote, true, shown, place.seat(), port);
                    let io = wrap(Wire::Tls(Box::new(stream)));
                    return Some(Connection::new(io, arrival, limits, refusals, deadline, place));
                }
                Ok(Err((error, stream))) => (error, Some(stream)),
                Err(_) => (io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long"), None),
            };
            let refused = refusals.count(Refusal::Handshake);
            // A client that failed retries often: log at powers of two.
            match refused.is_power_of_two() {
                true if is_certificate(&why) => {
                    tracing::warn!(%remote, %why, refused, "TLS handshake failed: a certificate was rejected")
                }
                true => tracing::info!(%remote, %why, refused, "TLS handshake failed"),
                false => {}
            }
            if let Some(stream) = left {
                let _ = timeout_at(deadline.min(Instant::now() + LAST_WORD), hang_up(stream)).await;
            }
            None
        });
        None
    }

    fn connection(
        &self,
        wire: Wire,
        arrival: ConnectionInfo,
        deadline: Instant,
        place: Place,
    ) -> Connection<T> {
        let (limits, refusals) = (self.limits.clone(), self.refusals.clone());
        Connection::new((self.wrap)(wire), arrival, limits, refusals, deadline, place)
    }
}

/// Closes a connection so that the last answer arrives: unread bytes at the close would reset it, and the client would
/// not learn that TLS is required.
async fn hang_up(mut stream: TcpStream) {
    let mut rest = [0; 1024];
    if stream.shutdown().await.is_ok() {
        while let Ok(1..) = stream.read(&mut rest).await {}
    }
}

impl<T: Send + Unpin + 'static> Stream for Incoming<T> {
    type Item = io::Result<Connection<T>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            match this.handshakes.poll_join_next(context) {
                Poll::Ready(Some(Ok(Some(connection)))) => return Poll::Ready(Some(Ok(connection))),
                Poll::Ready(Some(_)) => continue,
                Poll::Ready(None) | Poll::Pending => {}
            }
            if let Some(pause) = &mut this.pause {
                ready!(pause.as_mut().poll(context));
                this.pause = None;
            }
            match ready!(this.poll_accept(context)) {
                Ok((stream, remote, n)) => {
                    let port = this.listeners[n].1.clone();
                    if let Some(connection) = this.admit(stream, remote, port) {
                        return Poll::Ready(Some(Ok(connection)));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    this.pause = Some(Box::pin(sleep(ACCEPT_RETRY)));
                }
            }
        }
    }
}
