//! Follower: a copy of a log in the caller's process. It does not vote, and no replica needs to know it: it connects to
//! any server, receives committed blocks as they are in the log, checks them, and stores them in the same format.
//!
//! ```text
//! Follower ── thread chiplog-follower: a runtime of its own
//!               sources.rs   which server: asks servers about themselves and picks the best; after a failure the next one
//!               task.rs      one stream at a time: Follow ──> FollowMessage::decode ──> FollowerLog::apply ──> files
//!          ── log(), reader() ──> the files, without a copy, like any log's
//!          ── host() ──> services: serves other followers and readers
//! ```
//!
//! Invariants:
//! - Stored blocks are consecutive: each stream starts behind the last stored block.
//! - Everything that a server sends is checked before it is stored; the follower leaves a server that sends anything
//!   else.
//! - Temporary errors are retried forever and shown. A permanent error stops the follower, once, and every waiting call
//!   returns it.
//! - Memory is bounded: one response at a time, and the stream's window.

mod counted_channel;
mod events;
mod options;
mod sources;
mod status;
mod task;

pub use events::FollowerEvent;
pub use options::FollowerOptions;
pub use status::FollowerStatus;

use crate::client::blocking::ServedObjects;
use crate::client::own_thread;
use crate::client::own_thread::{AtWork, For};
#[cfg(feature = "server")]
use crate::served::log_slot::LogSlot;
#[cfg(feature = "server")]
use crate::served::watched_vault::WatchedVault;
use crate::wire::address::check_host_port;
use crate::wire::ids::to_hex;
use crate::wire::protocol::{FEATURE_FOLLOW, FEATURE_FOLLOW_LOG, FEATURE_FOLLOW_PLACES};
use chiplog::{Error, ErrorKind, FollowerLog, Index, Log, LogId, Reader, Result, Start};
use events::Events;
use sources::Sources;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A copy of a log in this process, kept up to date from any server of its cluster, or from another follower. Cheap to
/// clone, `Send + Sync`. For synchronous and asynchronous code: its network work runs on its own thread. It ends when
/// [`close`](Self::close) is called or the last clone is dropped.
///
/// ```
/// use chiplog::Start;
/// use chiplog_net::follower::{Follower, FollowerOptions};
/// use std::time::Duration;
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/support/serve.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
/// # let (_dir, address) = runtime.block_on(serve())?;
/// # let client = chiplog_net::client::blocking::Client::connect([address.clone()], Default::default())?;
/// # let producer = client.producer(Default::default())?;
/// let index = producer.append(b"hello")?; // in another process
///
/// let dir = tempfile::tempdir()?;
/// let follower = Follower::open(dir.path(), [address], Start::First, FollowerOptions::default())?;
/// follower.wait_for(index, Duration::from_secs(30))?;
/// let mut reader = follower.reader(Start::First)?; // reads the local files, without a server
/// let record = reader.next_record()?.expect("wait_for has returned");
/// assert_eq!((record.index, record.data), (index, &b"hello"[..]));
/// follower.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Follower {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The state that the handles and the thread share.
#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    from: Start,
    options: FollowerOptions,
    /// None: nothing was received yet.
    followed: OnceLock<FollowerLog>,
    #[cfg(feature = "server")]
    host: Arc<LogSlot>,
    state: Mutex<State>,
    events: Events,
    /// Notified when the copy exists, or the follower has stopped.
    changed: Condvar,
    /// Held while a block is stored.
    storing: Mutex<()>,
    closing: watch::Sender<bool>,
}

/// The thread's state, which handles show.
#[derive(Debug, Default)]
struct State {
    server: Option<String>,
    connected_since: Option<Instant>,
    source_last: Index,
    fed: bool,
    last_error: Option<Error>,
    stopped: Option<Error>,
    connects: u64,
    jumps: u64,
    received_bytes: u64,
    received_records: u64,
}

/// Stops the follower when the thread ends for any reason, so that waiting calls return.
struct AtTheEnd(Arc<Shared>);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop(Error::new(ErrorKind::Poisoned, "the follower's thread panicked"));
        }
        self.0.end();
    }
}

const THREAD: &str = "chiplog-follower";
/// The tracing target of the error that ends a follower: a program that reports it in its own words turns that off.
const ENDED: &str = "chiplog_net::follower::ended";

impl Follower {
    /// Opens the copy in `dir`, or creates one there. `cluster`: servers, `host:port`. One that runs is enough; the
    /// follower learns the others from it. No leader is needed.
    ///
    /// `from` is where a new copy starts; it is ignored if there is a copy already. A copy starts with the block that
    /// holds that record, so it can start before the record. The server resolves [`Start::Last`], [`Start::Timestamp`]
    /// and [`Start::Next`] to a record.
    ///
    /// An existing copy is opened without a server. For a new one, this call waits for up to `options.open_timeout` for
    /// a server to return the state of the log. Blocks: must not be called on a runtime's thread.
    ///
    /// # Errors
    /// `InvalidArgument`: no server, or an invalid address or option; or `dir` holds a log that is not a copy.
    /// `Locked`, `Corrupt`, `Unsupported`, `Io`: the directory. For a new copy also `Discarded`, `OutOfRange`: there is
    /// no such record; `NotFound`: there is no log of the name in `options`; `Unavailable`, `Timeout`: no server answered; any
    /// error that a server returned; `Unsupported`: the servers have an earlier version that does not know this kind of start or
    /// feeds no copies of named logs, or a later version.
    pub fn open<S: Into<String>>(
        dir: impl AsRef<Path>,
        cluster: impl IntoIterator<Item = S>,
        from: Start,
        options: FollowerOptions,
    ) -> Result<Self> {
        let invalid = |what: String| Error::new(ErrorKind::InvalidArgument, what);
        let seeds: Vec<String> = cluster.into_iter().map(Into::into).collect();
        if seeds.is_empty() {
            return Err(invalid("no server address was given; a follower needs at least one".into()));
        }
        for seed in &seeds {
            check_host_port(seed).map_err(|e| invalid(e.to_string()))?;
        }
        options.check()?;
        let mut options = options;
        if options.served_objects {
            let objects = ServedObjects::new(seeds.clone(), options.client())?;
            options.files.vault = Some(Arc::new(objects));
        }
        #[cfg(feature = "server")]
        let host = LogSlot::new();
        #[cfg(feature = "server")]
        let options = watched(options, &host);
        let dir = dir.as_ref().to_path_buf();
        let there = match FollowerLog::open(&dir, options.files.clone()) {
            Ok(followed) => Some(followed),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let needs = match from {
            _ if is_named(&options.log) => FEATURE_FOLLOW_LOG,
            Start::Last(_) | Start::Timestamp(_) => FEATURE_FOLLOW_PLACES,
            _ => FEATURE_FOLLOW,
        };
        let sources = Sources::new(seeds, options.zone.clone(), options.client(), needs);
        #[cfg(feature = "server")]
        host.call(&options.log);
        #[cfg(feature = "server")]
        if options.served_objects {
            host.set_through_servers();
        }
        let shared = Arc::new(Shared {
            dir,
            from,
            options,
            followed: OnceLock::new(),
            #[cfg(feature = "server")]
            host,
            state: Mutex::default(),
            events: Events::default(),
            changed: Condvar::new(),
            storing: Mutex::default(),
            closing: watch::Sender::new(false),
        });
        if let Some(followed) = there {
            shared.begin(followed);
        }
        let failed = |e| Error::new(ErrorKind::Io, format!("cannot start the follower's thread: {e}"));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(16) // one for writes, others for name lookups
            .thread_name(THREAD)
            .thread_stack_size(own_thread::STACK_BYTES)
            .build()
            .map_err(failed)?;
        let run = {
            let shared = shared.clone();
            move || {
                let _at_work = AtWork::begin(For::Follower);
                let _at_the_end = AtTheEnd(shared.clone());
                runtime.block_on(task::run(shared, sources));
                runtime.shutdown_background(); // does not wait for a slow name lookup
            }
        };
        let thread = own_thread::builder(THREAD).spawn(run).map_err(failed)?;
        let follower = Self { inner: Arc::new(Inner { shared, thread: Mutex::new(Some(thread)) }) };
        follower.inner.shared.wait_for_copy()?;
        Ok(follower)
    }

    /// The copy: an ordinary handle for reading. Appends and commands fail as `NotLeader`.
    pub fn log(&self) -> &Log {
        match self.inner.shared.followed.get() {
            Some(followed) => followed.log(),
            None => unreachable!("a follower is returned only once its copy exists"),
        }
    }

    /// Returns a reader of the copy, as [`Log::reader`]: it returns slices of the local files, without a server. At the
    /// end it waits for new records. Once the follower is closed or has stopped, that wait fails as `Closed`;
    /// [`Self::status`] has the reason. At a jump its next record is `Discarded`: open a new reader at
    /// [`Start::First`].
    ///
    /// # Errors
    /// As [`Log::reader`].
    pub fn reader(&self, start: Start) -> Result<Reader> {
        self.log().reader(start)
    }

    /// Blocks until the copy has record `index`, or the record is known to be discarded.
    ///
    /// # Errors
    /// `Timeout`; `Closed`; the error that stopped the follower.
    pub fn wait_for(&self, index: Index, timeout: Duration) -> Result<()> {
        let waited = self.log().wait_for(index, timeout);
        waited.map_err(|error| match error.kind() {
            ErrorKind::Timeout => error,
            _ => self.inner.shared.state().stopped.clone().unwrap_or(error),
        })
    }

    /// Returns the follower's status. Never blocks.
    pub fn status(&self) -> FollowerStatus {
        let (first, last) = self.log().range().into_inner();
        let state = self.inner.shared.state();
        FollowerStatus {
            server: state.server.clone(),
            connected_since: state.connected_since,
            first,
            last,
            source_last: state.source_last.max(last),
            fed: state.fed,
            last_error: state.last_error.clone(),
            stopped: state.stopped.clone(),
            connects: state.connects,
            jumps: state.jumps,
            received_bytes: state.received_bytes,
            received_records: state.received_records,
        }
    }

    /// Returns the next event; blocks for up to `timeout`. Each event is returned once, to one of the clones. Up to
    /// 1,024 events wait to be taken; then the oldest are dropped.
    ///
    /// # Errors
    /// `Timeout`: there was no event. `Closed`: there will be no more events.
    pub fn next_event(&self, timeout: Duration) -> Result<FollowerEvent> {
        self.inner.shared.events.next(timeout)
    }

    /// Calls `hook` once there is an event, or no more will follow. If that is so already, `hook` runs at once;
    /// otherwise on the follower's thread, where it must not block. For event loops: see [`chiplog::Signal`]. A
    /// follower has one hook for all clones: a new one replaces it.
    ///
    /// ```
    /// # fn watch(follower: &chiplog_net::follower::Follower, signal: chiplog::Signal) {
    /// follower.on_event(move || signal.raise());
    /// # }
    /// ```
    pub fn on_event(&self, hook: impl FnOnce() + Send + 'static) {
        self.inner.shared.events.on_next(hook);
    }

    /// The copy for servers: services on this host serve other followers and readers.
    ///
    /// ```no_run
    /// # fn serve(follower: &chiplog_net::follower::Follower) -> tonic::transport::server::Router {
    /// use chiplog_net::service::follow::Follow;
    /// use chiplog_net::service::log::LogService;
    /// let host = follower.host();
    /// tonic::transport::Server::builder()
    ///     .add_service(Follow::new(host.clone()).into_service())
    ///     .add_service(LogService::new(host.clone()).into_service())
    /// # }
    /// ```
    #[cfg(feature = "server")]
    pub fn host(&self) -> &Arc<LogSlot> {
        &self.inner.shared.host
    }

    /// Stops following, makes received blocks durable, and unlocks the directory. Waits for no server. Blocks for the
    /// disk. May be called from any thread, and repeatedly. Readers can still read to the end of the copy.
    ///
    /// # Errors
    /// `Poisoned`: a write had failed.
    pub fn close(&self) -> Result<()> {
        self.inner.close();
        self.log().close()
    }
}

impl Inner {
    fn close(&self) {
        self.shared.closing.send_replace(true);
        if own_thread::works_for() == Some(For::Follower) {
            return; // called from a reader's or event hook, which has the last handle: the thread ends after the hook
        }
        // Held during the join, so that a second close waits as well.
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take()
            && thread.join().is_err()
        {
            tracing::error!(dir = %self.shared.dir.display(), "a follower's thread panicked");
        }
        // `Follower::close` returns the error, and the log shows it.
        let _ = self.shared.followed.get().map(FollowerLog::close);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The copy exists now.
    fn begin(&self, followed: FollowerLog) {
        #[cfg(feature = "server")]
        self.host.open(followed.log().clone());
        let _ = self.followed.set(followed);
        let _state = self.state();
        self.changed.notify_all();
    }

    /// Services that serve the copy report whether it is fed.
    fn serve_as_fed(&self, fed: bool) {
        #[cfg(feature = "server")]
        self.host.set_fed(fed);
        #[cfg(not(feature = "server"))]
        let _ = fed;
    }

    /// A permanent error occurred.
    fn stop(&self, error: Error) {
        tracing::error!(target: ENDED, dir = %self.dir.display(), %error, "a follower has ended");
        self.state().stopped = Some(error.clone());
        self.events.push(FollowerEvent::Stopped { error });
    }

    /// Stores nothing more after the block that is being stored.
    fn end(&self) {
        self.closing.send_replace(true);
        drop(self.storing.lock().unwrap_or_else(PoisonError::into_inner));
        #[cfg(feature = "server")]
        self.host.drain();
        self.serve_as_fed(false);
        if let Some(followed) = self.followed.get().cloned() {
            // Does not wait: a hook on one of the copy's own threads may hold the last handle and wait for this thread.
            let close = move || {
                if let Err(error) = followed.close() {
                    tracing::warn!(dir = %followed.log().path().display(), %error, "closing the copy failed");
                }
            };
            // If no thread can be started, the last handle closes the copy.
            let _ = own_thread::builder(THREAD).spawn(close);
        }
        let mut state = self.state();
        (state.server, state.connected_since, state.fed) = (None, None, false);
        let closed = || Error::new(ErrorKind::Closed, "the follower was closed");
        state.last_error.get_or_insert_with(closed);
        drop(state);
        self.changed.notify_all();
        self.events.end(); // a hook may read the follower's status
    }

    /// Waits until the copy exists.
    fn wait_for_copy(&self) -> Result<()> {
        let end = Instant::now().checked_add(self.options.open_timeout);
        let mut state = self.state();
        while self.followed.get().is_none() {
            if let Some(error) = &state.stopped {
                return Err(error.clone());
            }
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                let what = format!("no server answered within {:?}", self.options.open_timeout);
                let late = || Error::new(ErrorKind::Timeout, what);
                return Err(state.last_error.clone().unwrap_or_else(late));
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

/// The options, with a note at the host of how each request to the object store ends.
#[cfg(feature = "server")]
fn watched(mut options: FollowerOptions, host: &LogSlot) -> FollowerOptions {
    let vault = options.files.vault.take();
    options.files.vault =
        vault.map(|store| Arc::new(WatchedVault::new(store, host.store_health().clone())) as _);
    options
}

/// Whether this is the name of a named log, and not of the default log or of a group.
fn is_named(log: &str) -> bool {
    !log.is_empty() && log != "default" && !log.starts_with('_')
}

/// The error for another log at `place` than the wanted one.
fn other_log(place: &str, wanted: LogId, found: LogId) -> Error {
    let (wanted, found) = (to_hex(wanted.get()), to_hex(found.get()));
    Error::new(ErrorKind::Diverged, format!("{place} has log {found}, not log {wanted}"))
}
