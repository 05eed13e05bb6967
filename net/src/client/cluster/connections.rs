//! Connections: those of a client to its servers that all its logs share.
//!
//! ```text
//! calls of all logs ─────────────> one connection to each server
//! append streams of all logs ────> a few, each with at most 15 streams
//! a reader, a watch ─────────────> one of its own
//! ```
//!
//! Invariants:
//! - The number of connections for calls and appends follows the streams that are open, not the logs and producers.
//! - Streams that wait hold up no other stream: a server allows a connection the windows of 16 streams.
//! - A call waits behind no stream, and nothing but itself waits for a reader that stands still: a server ends the
//!   connection of a reader that does so for long.
//! - A connection on which nothing answers gets no new user. It is closed when its last user has left.
//!
//! Must not know: logs, which server leads.

use crate::client::ClientOptions;
use crate::client::retry::deadline::FAR;
use chiplog::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

/// The default of HTTP/2 is 16 KiB, and each frame costs a system call.
const FRAME_BYTES: u32 = 256 << 10;
/// Bounds of `window_bytes`. HTTP/2 allows no window above 2^31 - 1, and streams with a tiny one stall.
const WINDOW_BYTES: RangeInclusive<u32> = 64 << 10..=WINDOW_BYTES_MAX;
const WINDOW_BYTES_MAX: u32 = i32::MAX as u32;
/// Up to this number of streams, each has its own connection, so that they use several processors.
const SPREAD: usize = 4;
/// The most append streams of a connection: one less than a server allows windows.
const STREAMS_MAX: usize = 15;
/// A connection for calls that was not used for this long is closed when another one is made.
const UNUSED: Duration = Duration::from_secs(600);

/// A connection to a server. Its users hold it; the last one that drops it closes it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) channel: Channel,
    address: String,
    made: Instant,
}

/// Whether others use a connection, too.
fn is_shared(connection: &Arc<Connection>) -> bool {
    Arc::strong_count(connection) > 1
}

/// The connections of a client and of those that were made of it. `Send + Sync`.
#[derive(Debug)]
pub(crate) struct Connections {
    /// Of the client that was connected first. The log's name in them does not count.
    options: ClientOptions,
    open: Mutex<Open>,
}

/// By the address of the server.
#[derive(Debug, Default)]
struct Open {
    /// With the time of the last use.
    calls: HashMap<String, (Arc<Connection>, Instant)>,
    /// Those that have users.
    streams: HashMap<String, Vec<Weak<Connection>>>,
}

impl Connections {
    pub(crate) fn new(options: ClientOptions) -> Arc<Self> {
        Arc::new(Self { options, open: Mutex::default() })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection for calls to a server, which is opened at its first use.
    ///
    /// # Errors
    /// `InvalidArgument`: the address is invalid.
    pub(crate) fn for_calls(&self, address: &str) -> Result<Arc<Connection>> {
        let (mut open, now) = (self.open(), Instant::now());
        if let Some((connection, used)) = open.calls.get_mut(address) {
            *used = now;
            return Ok(connection.clone());
        }
        let connection = self.make(address)?;
        open.calls.retain(|_, (_, used)| now.duration_since(*used) < UNUSED);
        open.calls.insert(address.to_owned(), (connection.clone(), now));
        Ok(connection)
    }

    /// A connection for one append stream to a server: the one with the fewest, or a new one.
    ///
    /// # Errors
    /// `InvalidArgument`: the address is invalid.
    pub(crate) fn for_appends(&self, address: &str) -> Result<Arc<Connection>> {
        let mut open = self.open();
        open.streams.retain(|_, connections| {
            connections.retain(|connection| connection.strong_count() > 0);
            !connections.is_empty()
        });
        let used = open.streams.entry(address.to_owned()).or_default();
        let least = used.iter().min_by_key(|connection| connection.strong_count());
        if used.len() >= SPREAD
            && let Some(connection) = least.filter(|c| c.strong_count() < STREAMS_MAX).and_then(Weak::upgrade)
        {
            return Ok(connection);
        }
        let connection = self.make(address)?;
        used.push(Arc::downgrade(&connection));
        Ok(connection)
    }

    /// Gives a connection on which nothing answers no new users.
    pub(crate) fn retire(&self, silent: &Arc<Connection>) {
        let mut open = self.open();
        if open.calls.get(&silent.address).is_some_and(|(connection, _)| Arc::ptr_eq(connection, silent)) {
            open.calls.remove(&silent.address);
        }
        if let Some(used) = open.streams.get_mut(&silent.address) {
            used.retain(|connection| connection.as_ptr() != Arc::as_ptr(silent));
        }
    }

    /// The same of one on which a short request had no answer, unless it may still be connecting.
    pub(crate) fn retire_made_before(&self, silent: &Arc<Connection>, asked: Instant) {
        let connecting = self.options.connect_timeout;
        if silent.made + connecting.min(FAR) <= asked {
            self.retire(silent);
        }
    }

    /// Whether a stream without appends is to end: others use its connection, or there are more connections than are wanted.
    pub(crate) fn is_to_end(&self, connection: &Arc<Connection>) -> bool {
        let many = || {
            self.open()
                .streams
                .get(&connection.address)
                .is_some_and(|used| used.iter().filter(|c| c.strong_count() > 0).count() > SPREAD)
        };
        is_shared(connection) || many()
    }

    fn make(&self, address: &str) -> Result<Arc<Connection>> {
        let channel = separate(&self.options, address)?;
        Ok(Arc::new(Connection { channel, address: address.to_owned(), made: Instant::now() }))
    }
}

/// A connection for one user alone, which is opened at its first use.
///
/// # Errors
/// `InvalidArgument`: the address is invalid.
pub(crate) fn separate(options: &ClientOptions, address: &str) -> Result<Channel> {
    endpoint(options, address).map(|endpoint| endpoint.connect_lazy())
}

/// # Errors
/// `InvalidArgument`: the option `window_bytes` is out of bounds.
pub(crate) fn check_window(bytes: u32) -> Result<()> {
    if WINDOW_BYTES.contains(&bytes) {
        return Ok(());
    }
    let (min, max) = (WINDOW_BYTES.start(), WINDOW_BYTES.end());
    let what = format!("option window_bytes is {bytes}; it must be from {min} to {max}");
    Err(Error::new(ErrorKind::InvalidArgument, what))
}

fn endpoint(options: &ClientOptions, address: &str) -> Result<Endpoint> {
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).map_err(|e| {
        Error::new(ErrorKind::InvalidArgument, format!("{address:?} is not a valid address: {e}"))
    })?;
    if let Some(tls) = &options.tls {
        endpoint = tls.apply(endpoint)?;
    }
    Ok(endpoint
        .connect_timeout(options.connect_timeout.min(FAR))
        .tcp_nodelay(true)
        .max_frame_size(FRAME_BYTES)
        .initial_stream_window_size(options.window_bytes)
        .initial_connection_window_size(options.window_bytes.saturating_mul(2).min(WINDOW_BYTES_MAX))
        .http2_keep_alive_interval(options.keep_alive.min(FAR))
        .keep_alive_timeout(options.keep_alive.min(FAR))
        .keep_alive_while_idle(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const SERVER: &str = "127.0.0.1:1";

    #[tokio::test]
    async fn append_streams_share_few_connections_evenly() {
        let connections = Connections::new(ClientOptions::default());
        let mut streams: Vec<_> = (0..60).map(|_| connections.for_appends(SERVER).unwrap()).collect();
        let users = |streams: &[Arc<Connection>]| {
            let counted = streams.iter().map(|stream| (Arc::as_ptr(stream), Arc::strong_count(stream)));
            counted.collect::<BTreeMap<_, _>>().into_values().collect::<Vec<_>>()
        };
        assert_eq!(users(&streams[..4]).len(), 4, "the first ones have a connection each");
        assert_eq!(users(&streams), [15, 15, 15, 15]);
        streams.push(connections.for_appends(SERVER).unwrap());
        assert_eq!(users(&streams).into_iter().filter(|users| *users == 1).count(), 1);
        assert!(connections.is_to_end(streams.last().unwrap()), "it is alone on a fifth connection");
        assert!(!Arc::ptr_eq(&streams[0], &connections.for_appends("127.0.0.1:2").unwrap()));
        let call = connections.for_calls(SERVER).unwrap();
        assert!(Arc::ptr_eq(&call, &connections.for_calls(SERVER).unwrap()));
        assert!(streams.iter().all(|stream| !Arc::ptr_eq(stream, &call)), "a call waits behind no stream");
    }

    #[tokio::test]
    async fn silent_connection_gets_no_new_user() {
        let connections = Connections::new(ClientOptions::default());
        let streams: Vec<_> = (0..8).map(|_| connections.for_appends(SERVER).unwrap()).collect();
        let silent = streams[0].clone();
        let same = streams[1..].iter().find(|stream| Arc::ptr_eq(stream, &silent)).unwrap();
        assert!(is_shared(&silent));
        connections.retire(&silent);
        let next = connections.for_appends(SERVER).unwrap();
        assert!(streams.iter().all(|stream| !Arc::ptr_eq(stream, &next)));
        // Others that meet the same silence leave the new one in its place.
        connections.retire(same);
        assert!(Arc::ptr_eq(&next, &connections.for_appends(SERVER).unwrap()));
        let call = connections.for_calls(SERVER).unwrap();
        connections.retire(&call);
        assert!(!Arc::ptr_eq(&call, &connections.for_calls(SERVER).unwrap()));
    }

    #[tokio::test(start_paused = true)]
    async fn connection_without_use_is_closed() {
        let connections = Connections::new(ClientOptions::default());
        drop(connections.for_appends(SERVER).unwrap());
        drop(connections.for_appends("127.0.0.1:2").unwrap());
        assert_eq!(connections.open().streams.len(), 1, "the entry of the first server has gone");
        drop(connections.for_calls(SERVER).unwrap());
        tokio::time::advance(UNUSED).await;
        drop(connections.for_calls("127.0.0.1:2").unwrap());
        assert_eq!(connections.open().calls.len(), 1);
    }
}
