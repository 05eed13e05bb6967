//! Gauges: what is open at a server now: connections of clients, and streams by purpose. And one counter: the bytes that
//! clients read.
//!
//! Invariant: each open object holds a guard, and is counted as long as the guard lives.
//!
//! Must not know: where the numbers are shown.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::Connected;

/// The kinds of open objects.
///
/// ```
/// assert_eq!(chiplog_net::served::gauges::Open::ALL.len(), 4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// Connections of clients.
    Connections,
    /// Streams that append, of all services, and calls that append to several logs.
    Appends,
    /// Streams that read, of all services.
    Reads,
    /// Streams that watch the state of the log, of all services.
    Watches,
}

impl Open {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Connections, Self::Appends, Self::Reads, Self::Watches];
}

/// The number of open objects of each kind. `Send + Sync`; one per server, in its
/// [`LogSlot`](crate::served::log_slot::LogSlot).
///
/// ```
/// use chiplog_net::served::gauges::{Gauges, Open};
/// let gauges = std::sync::Arc::new(Gauges::default());
/// let one = gauges.open(Open::Reads);
/// assert_eq!((gauges.count(Open::Reads), gauges.count(Open::Appends)), (1, 0));
/// drop(one);
/// assert_eq!(gauges.count(Open::Reads), 0);
/// ```
#[derive(Debug, Default)]
pub struct Gauges {
    counts: [AtomicU64; Open::ALL.len()],
    read_bytes: AtomicU64,
}

/// A guard of one open object.
///
/// ```
/// fn is_held_by_a_stream<T: Send + 'static>() {}
/// is_held_by_a_stream::<chiplog_net::served::gauges::Opened>();
/// ```
#[derive(Debug)]
pub struct Opened {
    gauges: Arc<Gauges>,
    what: Open,
}

impl Gauges {
    /// Counts one more, as long as the returned guard lives.
    pub fn open(self: &Arc<Self>, what: Open) -> Opened {
        self.counts[what as usize].fetch_add(1, Ordering::Relaxed);
        Opened { gauges: self.clone(), what }
    }

    /// Counts bytes of records that a client reads. Copies (`chiplog follow`) are counted elsewhere.
    ///
    /// ```
    /// let gauges = chiplog_net::served::gauges::Gauges::default();
    /// gauges.add_read_bytes(10);
    /// assert_eq!(gauges.read_bytes(), 10);
    /// ```
    pub fn add_read_bytes(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The bytes of records that clients read since the server was started.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// The number of open objects of this kind.
    pub fn count(&self, what: Open) -> u64 {
        self.counts[what as usize].load(Ordering::Relaxed)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.gauges.counts[self.what as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream or a connection that counts as open while it lives.
///
/// ```
/// # use chiplog_net::served::gauges::{Counted, Gauges, Open};
/// let gauges = std::sync::Arc::new(Gauges::default());
/// let stream = Counted::new(tokio_stream::empty::<()>(), &gauges, Open::Watches);
/// assert_eq!(gauges.count(Open::Watches), 1);
/// # drop(stream);
/// ```
#[derive(Debug)]
pub struct Counted<T> {
    inner: T,
    _opened: Opened,
}

impl<T> Counted<T> {
    /// Counts `inner` from now on.
    pub fn new(inner: T, gauges: &Arc<Gauges>, what: Open) -> Self {
        Self { inner, _opened: gauges.open(what) }
    }
}

/// Counts each incoming connection.
pub fn connections<T>(
    incoming: impl Stream<Item = io::Result<T>>,
    gauges: Arc<Gauges>,
) -> impl Stream<Item = io::Result<Counted<T>>> {
    incoming.map(move |connection| connection.map(|c| Counted::new(c, &gauges, Open::Connections)))
}

impl<T: Stream + Unpin> Stream for Counted<T> {
    type Item = T::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T::Item>> {
        Pin::new(&mut self.inner).poll_next(context)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

impl<T: Connected> Connected for Counted<T> {
    type ConnectInfo = T::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.inner.connect_info()
    }
}
