//! Connections: those of a client to its servers, shared by all its logs, producers and readers.
//!
//! ```text
//! calls of all logs ────────> one connection to each server
//! streams of all logs ──────> up to `connections_max` more; a stream joins the one with the fewest users
//! ```
//!
//! Invariants:
//! - The number of connections to a server does not grow with the logs, producers and readers of a client.
//! - A call waits behind no stream.
//! - A reader that stops reading holds up no other stream: each has a window of its own, and the connection's window
//!   is as large as HTTP/2 allows.
//! - A connection that failed gets no new user. It is closed when its last user has left.
//!
//! Must not know: logs, which server leads.

use crate::client::ClientOptions;
use crate::client::retry::deadline::FAR;
use chiplog::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tonic::transport::{Channel, Endpoint};

/// The default of HTTP/2 is 16 KiB, and each frame costs a system call.
const FRAME_BYTES: u32 = 256 << 10;
/// The largest window that HTTP/2 has.
const WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;

/// A connection to a server. Its users hold it; the last one that drops it closes it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) channel: Channel,
    address: String,
}

/// Whether others use a connection, too.
pub(crate) fn is_shared(connection: &Arc<Connection>) -> bool {
    Arc::strong_count(connection) > 1
}

/// The connections of a client and of those that were made of it. `Send + Sync`.
#[derive(Debug)]
pub(crate) struct Connections {
    /// Of the client that was connected first. The log's name in them does not count.
    options: ClientOptions,
    open: Mutex<Open>,
}

/// Those that have users, by the address of the server.
#[derive(Debug, Default)]
struct Open {
    calls: HashMap<String, Weak<Connection>>,
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
        let mut open = self.open();
        if let Some(connection) = open.calls.get(address).and_then(Weak::upgrade) {
            return Ok(connection);
        }
        let connection = self.make(address)?;
        open.calls.retain(|_, connection| connection.strong_count() > 0);
        open.calls.insert(address.to_owned(), Arc::downgrade(&connection));
        Ok(connection)
    }

    /// A connection for one stream to a server: a new one, or the one with the fewest users.
    ///
    /// # Errors
    /// `InvalidArgument`: the address is invalid.
    pub(crate) fn for_stream(&self, address: &str) -> Result<Arc<Connection>> {
        let mut open = self.open();
        open.streams.retain(|_, connections| {
            connections.retain(|connection| connection.strong_count() > 0);
            !connections.is_empty()
        });
        let used = open.streams.entry(address.to_owned()).or_default();
        if used.len() >= self.options.connections_max
            && let Some(connection) = used.iter().min_by_key(|c| c.strong_count()).and_then(Weak::upgrade)
        {
            return Ok(connection);
        }
        let connection = self.make(address)?;
        used.push(Arc::downgrade(&connection));
        Ok(connection)
    }

    /// Gives a connection that failed no new users.
    pub(crate) fn retire(&self, failed: &Arc<Connection>) {
        let mut open = self.open();
        let is_other = |connection: &Weak<Connection>| connection.as_ptr() != Arc::as_ptr(failed);
        if open.calls.get(&failed.address).is_some_and(|connection| !is_other(connection)) {
            open.calls.remove(&failed.address);
        }
        if let Some(used) = open.streams.get_mut(&failed.address) {
            used.retain(is_other);
        }
    }

    fn make(&self, address: &str) -> Result<Arc<Connection>> {
        let endpoint = endpoint(&self.options, address)?.initial_connection_window_size(WINDOW_BYTES_MAX);
        Ok(Arc::new(Connection { channel: endpoint.connect_lazy(), address: address.to_owned() }))
    }
}

/// A connection for one user alone, which is opened at its first use.
///
/// # Errors
/// `InvalidArgument`: the address is invalid.
pub(crate) fn separate(options: &ClientOptions, address: &str) -> Result<Channel> {
    endpoint(options, address).map(|endpoint| endpoint.connect_lazy())
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
        .initial_connection_window_size(options.window_bytes.saturating_mul(2))
        .http2_keep_alive_interval(options.keep_alive.min(FAR))
        .keep_alive_timeout(options.keep_alive.min(FAR))
        .keep_alive_while_idle(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "127.0.0.1:1";

    #[tokio::test]
    async fn streams_share_few_connections_evenly() {
        let connections = Connections::new(ClientOptions::default().connections_max(3));
        let streams: Vec<_> = (0..9).map(|_| connections.for_stream(SERVER).unwrap()).collect();
        let mut users: Vec<_> =
            streams.iter().map(|stream| (Arc::as_ptr(stream), Arc::strong_count(stream))).collect();
        users.sort_unstable();
        users.dedup();
        assert_eq!(users.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [3, 3, 3]);
        assert!(!Arc::ptr_eq(&streams[0], &connections.for_stream("127.0.0.1:2").unwrap()));
        let call = connections.for_calls(SERVER).unwrap();
        assert!(Arc::ptr_eq(&call, &connections.for_calls(SERVER).unwrap()));
        assert!(streams.iter().all(|stream| !Arc::ptr_eq(stream, &call)), "a call waits behind no stream");
    }

    #[tokio::test]
    async fn connection_that_failed_gets_no_new_user() {
        let connections = Connections::new(ClientOptions::default().connections_max(1));
        let failed = connections.for_stream(SERVER).unwrap();
        let same = connections.for_stream(SERVER).unwrap();
        assert!(Arc::ptr_eq(&failed, &same) && is_shared(&failed));
        connections.retire(&failed);
        let next = connections.for_stream(SERVER).unwrap();
        assert!(!Arc::ptr_eq(&failed, &next));
        // The others that meet the same failure leave the new one in its place.
        connections.retire(&same);
        assert!(Arc::ptr_eq(&next, &connections.for_stream(SERVER).unwrap()));
        let call = connections.for_calls(SERVER).unwrap();
        connections.retire(&call);
        assert!(!Arc::ptr_eq(&call, &connections.for_calls(SERVER).unwrap()));
    }

    #[tokio::test]
    async fn connection_without_users_is_closed() {
        let connections = Connections::new(ClientOptions::default());
        drop(connections.for_stream(SERVER).unwrap());
        drop(connections.for_stream("127.0.0.1:2").unwrap());
        assert_eq!(connections.open().streams.len(), 1, "the entry of the first server has gone");
    }
}
