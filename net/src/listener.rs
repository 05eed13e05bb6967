//! Listener: connections that come in, as the services want them.
//!
//! | what | why |
//! |---|---|
//! | no delay | a reply is as long as it is, and goes at once |
//! | TLS, with what the listener proves itself with now | certificates change while it runs |
//! | [authorities mended](crate::listener::authority), within TLS | clients name things there that are no hosts |
//! | [places](crate::listener::connection_limit): those that proved nothing leave first | nobody holds all of them for nothing |
//! | [limits](crate::listener::connection) | who says nothing, asks nothing or reads nothing takes no room for ever |
//! | large windows | a client fills a long line; what it may send unread stays bounded |
//! | pings answered, never counted | clients ping idle connections, and drop those that do not answer |

pub mod auth;
pub mod authority;
pub(crate) mod bill;
pub mod connection;
pub mod connection_info;
pub(crate) mod connection_limit;
pub mod memory_budget;
pub mod refusals;
pub(crate) mod stalled_calls;
pub mod stream_budget;

use crate::listener::authority::Mended;
use crate::listener::connection::{Connection, ConnectionLimits, Wire};
use crate::listener::connection_info::{CallLayer, ConnectionInfo};
use crate::listener::connection_limit::{Place, Places};
use crate::listener::refusals::{Refusal, Refusals};
use crate::wire::connect_error::is_certificate;
use crate::wire::tcp;
use crate::wire::tls::ServerTls;
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

/// What a client may send on all its streams before it is read, in windows of one stream. Streams that wait, such as those
/// of appends that find no room, would otherwise use it up, and nothing would come on the others, which is then taken
/// for a client that does not send.
pub const WINDOWS_PER_CONNECTION: u32 = 16;
/// The largest frame a client may send.
const FRAME_BYTES_MAX: u32 = 256 << 10;
/// After an error of accepting, such as too many open files, the next try waits for this time.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// As good as never.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
/// Who does not speak TLS has so long to take the answer that it should.
const LAST_WORD: Duration = Duration::from_secs(1);
/// That connections are refused is said at most so often.
const SAY_INTERVAL: Duration = Duration::from_secs(10);

/// How a listener takes connections.
///
/// ```
/// use chiplog_net::listener::Settings;
/// let mut settings = Settings::default();
/// settings.limits.connections = 100;
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Settings {
    /// What they may take.
    pub limits: ConnectionLimits,
    /// Default: none, plain bytes.
    pub tls: Option<Arc<ServerTls>>,
    /// Where what was refused is counted.
    pub refusals: Arc<Refusals>,
    /// How long what was sent may stay unacknowledged by the other side's kernel. None: as long as the system says.
    pub(crate) unacknowledged: Option<Duration>,
}

/// The connections that come in, ready for tonic's `serve_with_incoming`, with the default limits and without TLS.
/// Never ends and never fails: an error of accepting is logged, and it goes on after a moment.
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
pub fn incoming(listener: TcpListener) -> Incoming<Mended<Wire>> {
    incoming_with(listener, Settings::default())
}

/// The same with these settings. The server is [`server_with`] the same limits.
pub fn incoming_with(listener: TcpListener, settings: Settings) -> Incoming<Mended<Wire>> {
    Incoming::new(listener, settings, Mended::new)
}

/// The same with authorities as they come: for peers.
pub(crate) fn plain(listener: TcpListener, settings: Settings) -> Incoming<Wire> {
    Incoming::new(listener, settings, |wire| wire)
}

/// A server with the settings that go with [`incoming`]; services are added to it.
pub fn server() -> Server<Stack<CallLayer, Identity>> {
    server_with(&ConnectionLimits::default())
}

/// A server with these limits, for [`incoming_with`] the same.
pub fn server_with(limits: &ConnectionLimits) -> Server<Stack<CallLayer, Identity>> {
    Server::builder()
        .initial_stream_window_size(limits.window_bytes)
        .initial_connection_window_size(limits.window_bytes.saturating_mul(WINDOWS_PER_CONNECTION))
        .max_frame_size(FRAME_BYTES_MAX)
        .max_concurrent_streams(limits.streams)
        .http2_max_header_list_size(limits.header_bytes)
        .layer(CallLayer)
}

/// Connections as they come. Dropped, it listens no more.
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
    listener: TcpListener,
    limits: Arc<ConnectionLimits>,
    tls: Option<Arc<ServerTls>>,
    refusals: Arc<Refusals>,
    unacknowledged: Option<Duration>,
    places: Places,
    wrap: fn(Wire) -> T,
    /// Those that are still shaking hands. None: it came to nothing.
    handshakes: JoinSet<Option<Connection<T>>>,
    /// Accepting failed a moment ago.
    pause: Option<Pin<Box<Sleep>>>,
    /// When it was last said that connections are refused.
    said: Option<Instant>,
}

impl<T: Send + 'static> Incoming<T> {
    fn new(listener: TcpListener, settings: Settings, wrap: fn(Wire) -> T) -> Self {
        let Settings { limits, tls, refusals, unacknowledged } = settings;
        let places = Places::new(limits.connections, limits.connections_per_address);
        let limits = Arc::new(limits);
        let handshakes = JoinSet::new();
        Self {
            listener,
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

    /// A connection too many came from there.
    fn count(&mut self, limit: Refusal, remote: SocketAddr, what: &str) {
        let refused = self.refusals.count(limit);
        if self.said.is_none_or(|said| said.elapsed() >= SAY_INTERVAL) {
            self.said = Some(Instant::now());
            tracing::warn!(%remote, limit = limit.name(), refused, "too many connections: {what}");
        }
    }

    /// Takes one in, if there is a place for it. Some: it is ready.
    fn admit(&mut self, stream: TcpStream, remote: SocketAddr) -> Option<Connection<T>> {
        let place = match self.places.take(remote.ip()) {
            Ok((place, limit)) => {
                if let Some(limit) = limit {
                    self.count(limit, remote, "the oldest one that showed no token makes room");
                }
                place
            }
            Err(limit) => {
                self.count(limit, remote, "a new one is closed at once");
                return None;
            }
        };
        let unacknowledged = self.unacknowledged.map_or(Ok(()), |limit| tcp::give_up(&stream, limit));
        if let Err(error) = stream.set_nodelay(true).and(unacknowledged) {
            tracing::debug!(%error, "a connection ended before it began");
        }
        let deadline = Instant::now() + self.limits.handshake.min(FAR);
        let Some(tls) = &self.tls else {
            let arrival = ConnectionInfo::new(remote, false, None, place.seat());
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
                    let arrival = ConnectionInfo::new(remote, true, shown, place.seat());
                    let io = wrap(Wire::Tls(Box::new(stream)));
                    return Some(Connection::new(io, arrival, limits, refusals, deadline, place));
                }
                Ok(Err((error, stream))) => (error, Some(stream)),
                Err(_) => (io::Error::new(io::ErrorKind::TimedOut, "it took too long"), None),
            };
            let refused = refusals.count(Refusal::Handshake);
            // Who dials again does so often.
            match refused.is_power_of_two() {
                true if is_certificate(&why) => {
                    tracing::warn!(%remote, %why, refused, "a certificate was not taken: TLS did not come about")
                }
                true => tracing::info!(%remote, %why, refused, "TLS did not come about"),
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

/// Ends a connection so that what was said last arrives: bytes that nobody has read when it is closed would reset it, and
/// who sent them would not learn that TLS is wanted.
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
            match ready!(this.listener.poll_accept(context)) {
                Ok((stream, remote)) => {
                    if let Some(connection) = this.admit(stream, remote) {
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
