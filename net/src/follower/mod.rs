//! Follower: a copy of a log in the caller's process. It does not vote and nobody has to know it: it dials out to any
//! server, takes what is committed, block by block as it stands in the log, checks it and keeps it in the same format.
//!
//! ```text
//! Follower ── thread chiplog-follower: a runtime of its own
//!               sources.rs   which server: asked about themselves, best first; whoever fails, another one next
//!               task.rs      one stream after the other: Follow ──> FollowMessage::decode ──> FollowerLog::apply ──> files
//!          ── log(), reader() ──> the files, without a copy, as any log's
//!          ── host() ──> services: other followers and readers can be served from here
//! ```
//!
//! Invariants:
//! - What is stored follows what was stored before, block by block: another stream begins behind the last one.
//! - What a server sends is checked before it is stored; a server that sends anything else is left.
//! - What passes is tried again for ever, and shown; what does not pass ends the follower, once, and all who wait hear why.
//! - Nothing grows: one response at a time is held, besides the stream's window.

mod events;
mod heard;
mod options;
mod sources;
mod status;
mod task;

pub use events::FollowerEvent;
pub use options::FollowerOptions;
pub use status::FollowerStatus;

use crate::client::own_thread;
use crate::client::own_thread::{AtWork, For};
use crate::served::log_slot::LogSlot;
use crate::wire::address::check_host_port;
use crate::wire::ids::to_hex;
use crate::wire::protocol::{FEATURE_FOLLOW, FEATURE_FOLLOW_PLACES};
use chiplog::{Error, ErrorKind, FollowerLog, Index, Log, LogId, Reader, Result, Start};
use events::Events;
use sources::Sources;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A copy of a log in this process, kept up to date from any server of its cluster, or from another follower. Cheap to
/// clone, `Send + Sync`; for synchronous and asynchronous code: its network has a thread of its own. It is closed when
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
/// let index = producer.append(b"hello")?; // somewhere else
///
/// let dir = tempfile::tempdir()?;
/// let follower = Follower::open(dir.path(), [address], Start::First, FollowerOptions::default())?;
/// follower.wait_for(index, Duration::from_secs(30))?;
/// let mut reader = follower.reader(Start::First)?; // of the files here: no server is asked
/// let record = reader.next_record()?.expect("it was waited for");
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

/// What the handle and the thread share.
#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    from: Start,
    options: FollowerOptions,
    /// None: nothing has come yet.
    followed: OnceLock<FollowerLog>,
    host: Arc<LogSlot>,
    state: Mutex<State>,
    events: Events,
    /// Told when the copy is there, or will not be.
    changed: Condvar,
    /// Held while something is stored.
    storing: Mutex<()>,
    closing: watch::Sender<bool>,
}

/// What the thread knows and handles show.
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

/// Whatever the thread ends by: all who wait hear of it.
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

impl Follower {
    /// Goes on with the copy in `dir`, or begins one there. `cluster`: servers, `host:port`; one that runs is enough, the
    /// others are learnt from it. No leader is needed.
    ///
    /// `from` says where a new copy begins, and means nothing to one that is there. It begins with the block that holds that
    /// record, which can begin before it. The server that feeds it says which record [`Start::Last`], [`Start::Timestamp`]
    /// and [`Start::Next`] are.
    ///
    /// A copy that is there is opened without a server. For a new one, this waits for a server to say where the log
    /// stands, for at most `options.open_timeout`. Blocks: not to be called on a runtime's thread.
    ///
    /// # Errors
    /// `InvalidArgument`: no server, or no address; an option; a log that is no copy in `dir`. `Locked`,
    /// `Corrupt`, `Unsupported`, `Io`: the directory. For a new copy also `Discarded`, `OutOfRange`: there is no such
    /// record; `Unavailable`, `Timeout`: no server answered, and whatever one refused with; `Unsupported`: the servers are of
    /// an earlier version, which knows no such start, or of a later one.
    pub fn open<S: Into<String>>(
        dir: impl AsRef<Path>,
        cluster: impl IntoIterator<Item = S>,
        from: Start,
        options: FollowerOptions,
    ) -> Result<Self> {
        let invalid = |what: String| Error::new(ErrorKind::InvalidArgument, what);
        let seeds: Vec<String> = cluster.into_iter().map(Into::into).collect();
        if seeds.is_empty() {
            return Err(invalid("a follower needs the address of a server".into()));
        }
        for seed in &seeds {
            check_host_port(seed).map_err(|e| invalid(e.to_string()))?;
        }
        options.check()?;
        let dir = dir.as_ref().to_path_buf();
        let there = match FollowerLog::open(&dir, options.files.clone()) {
            Ok(followed) => Some(followed),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let needs = match from {
            Start::Last(_) | Start::Timestamp(_) => FEATURE_FOLLOW_PLACES,
            _ => FEATURE_FOLLOW,
        };
        let sources = Sources::new(seeds, options.zone.clone(), options.client(), needs);
        let shared = Arc::new(Shared {
            dir,
            from,
            options,
            followed: OnceLock::new(),
            host: LogSlot::new(),
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
            .max_blocking_threads(16) // one writes; names are looked up
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
                runtime.shutdown_background(); // a name that is looked up for long holds up nothing
            }
        };
        let thread = own_thread::builder(THREAD).spawn(run).map_err(failed)?;
        let follower = Self { inner: Arc::new(Inner { shared, thread: Mutex::new(Some(thread)) }) };
        follower.inner.shared.wait_for_copy()?;
        Ok(follower)
    }

    /// The copy: an ordinary handle, to read from. Appends and commands are refused as `NotLeader`.
    pub fn log(&self) -> &Log {
        match self.inner.shared.followed.get() {
            Some(followed) => followed.log(),
            None => unreachable!("a follower is handed out once its copy is there"),
        }
    }

    /// A reader of what is here, as [`Log::reader`]: slices of the files, no server is asked. At the tail it waits for what
    /// comes; once the follower was closed or has ended by itself that wait is `Closed`, and [`Self::status`] says why. When
    /// it meets a jump, its next record is `Discarded`: go on with a new one at [`Start::First`].
    ///
    /// # Errors
    /// As [`Log::reader`].
    pub fn reader(&self, start: Start) -> Result<Reader> {
        self.log().reader(start)
    }

    /// Waits until record `index` is here, or is known to be discarded.
    ///
    /// # Errors
    /// `Timeout`; `Closed`; why the follower has ended by itself.
    pub fn wait_for(&self, index: Index, timeout: Duration) -> Result<()> {
        let waited = self.log().wait_for(index, timeout);
        waited.map_err(|error| match error.kind() {
            ErrorKind::Timeout => error,
            _ => self.inner.shared.state().stopped.clone().unwrap_or(error),
        })
    }

    /// How it stands. Never waits.
    pub fn status(&self) -> FollowerStatus {
        let info = self.log().info();
        let state = self.inner.shared.state();
        FollowerStatus {
            server: state.server.clone(),
            connected_since: state.connected_since,
            first: info.first,
            last: info.last,
            source_last: state.source_last.max(info.last),
            fed: state.fed,
            last_error: state.last_error.clone(),
            stopped: state.stopped.clone(),
            connects: state.connects,
            jumps: state.jumps,
            received_bytes: state.received_bytes,
            received_records: state.received_records,
        }
    }

    /// What has happened since this was last asked, one event after the other; waits for one. Each event is given once,
    /// whichever clone asks; of those that nobody takes the newest 1,024 are kept.
    ///
    /// # Errors
    /// `Timeout`: nothing happened. `Closed`: nothing will any more.
    pub fn next_event(&self, timeout: Duration) -> Result<FollowerEvent> {
        self.inner.shared.events.next(timeout)
    }

    /// Calls `hook` once there is an event to be taken, or will be none any more: at once if so already, else on the
    /// follower's thread, where it must not block. For event loops: see [`chiplog::Signal`]. A follower has one hook, of
    /// whichever clone: a new one takes the place of the last.
    ///
    /// ```
    /// # fn watch(follower: &chiplog_net::follower::Follower, signal: chiplog::Signal) {
    /// follower.on_event(move || signal.raise());
    /// # }
    /// ```
    pub fn on_event(&self, hook: impl FnOnce() + Send + 'static) {
        self.inner.shared.events.on_next(hook);
    }

    /// The copy as servers want it: whoever serves this host's services feeds other followers, and readers.
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
    pub fn host(&self) -> &Arc<LogSlot> {
        &self.inner.shared.host
    }

    /// Ends following, makes durable what was taken, and lets the directory go. Prompt: no server is waited for. Blocks
    /// for the disk; may be called from any thread, and again. Readers go on to the end of what is here.
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
            return; // a hook of a reader, or of events, has the last handle: the end comes after it
        }
        // Held meanwhile, so that whoever closes a second time waits as well.
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take()
            && thread.join().is_err()
        {
            tracing::error!(dir = %self.shared.dir.display(), "a follower's thread panicked");
        }
        // Said where it is asked for: by `Follower::close`, and in the log.
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

    /// The copy is there.
    fn begin(&self, followed: FollowerLog) {
        self.host.open(followed.log().clone());
        let _ = self.followed.set(followed);
        let _state = self.state();
        self.changed.notify_all();
    }

    /// What does not pass has happened.
    fn stop(&self, error: Error) {
        tracing::error!(dir = %self.dir.display(), %error, "a follower has ended");
        self.state().stopped = Some(error.clone());
        self.events.push(FollowerEvent::Stopped { error });
    }

    /// Nothing is taken any more, once what is being stored is.
    fn end(&self) {
        self.closing.send_replace(true);
        drop(self.storing.lock().unwrap_or_else(PoisonError::into_inner));
        self.host.drain();
        self.host.set_fed(false);
        if let Some(followed) = self.followed.get().cloned() {
            // Not waited for here: a hook on one of the copy's own threads may have the last handle, and wait for this one.
            let close = move || {
                if let Err(error) = followed.close() {
                    tracing::warn!(dir = %followed.log().path().display(), %error, "a copy was not closed in order");
                }
            };
            // Without a thread to be had, the last handle closes it.
            let _ = own_thread::builder(THREAD).spawn(close);
        }
        let mut state = self.state();
        (state.server, state.connected_since, state.fed) = (None, None, false);
        let closed = || Error::new(ErrorKind::Closed, "the follower was closed");
        state.last_error.get_or_insert_with(closed);
        drop(state);
        self.changed.notify_all();
        self.events.end(); // a hook may ask how the follower stands
    }

    /// Waits until the copy is there.
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

/// There is another log at `place` than the one that is wanted.
fn other_log(place: &str, wanted: LogId, found: LogId) -> Error {
    let (wanted, found) = (to_hex(wanted.get()), to_hex(found.get()));
    Error::new(ErrorKind::Diverged, format!("{place} has log {found}, and log {wanted} is wanted"))
}
