//! Listener: connections of clients, as the services want them.
//!
//! | what | why |
//! |---|---|
//! | no delay | a reply is as long as it is, and goes at once |
//! | [authorities mended](crate::authority) | clients name things there that are no hosts |
//! | large windows | a client fills a long line; what it may send unread stays bounded |
//! | pings answered, never counted | clients ping idle connections, and drop those that do not answer |

use crate::authority::Mended;
use std::io;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::{Stream, StreamExt as _, wrappers::TcpListenerStream};
use tonic::transport::Server;

/// What a client may send on one stream before it is read.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
/// What a client may send on all its streams before it is read.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// The largest frame a client may send.
const FRAME_BYTES_MAX: u32 = 256 << 10;
/// The most streams of one connection.
const STREAMS_MAX: u32 = 4096;
/// After an error of accepting, such as too many open files, the next try waits for this time.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The connections that come in, ready for tonic's `serve_with_incoming`. Never ends and never fails: an error of
/// accepting is logged, and it goes on after a moment.
///
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use chiplog_net::{host::Host, listener, logspec};
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// let service = logspec::LogspecService::new(Host::new(), logspec::Limits::default()).into_server();
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
pub fn incoming(listener: TcpListener) -> impl Stream<Item = io::Result<Mended<TcpStream>>> {
    plain(listener).map(|connection| connection.map(Mended::new))
}

/// The same with authorities as they come: for peers, and where TLS hides them.
pub fn plain(listener: TcpListener) -> impl Stream<Item = io::Result<TcpStream>> {
    TcpListenerStream::new(listener)
        .then(async |accepted| match accepted {
            Ok(stream) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "a connection ended before it began");
                }
                Some(Ok(stream))
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY).await;
                None
            }
        })
        .filter_map(|connection| connection)
}

/// A server with the settings that go with [`incoming`]; services are added to it.
pub fn server() -> Server {
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_concurrent_streams(STREAMS_MAX)
}
