//! ReadOnlyLog: a read-only handle on a log, also while another process writes it. For tools that inspect a running log.
//!
//! It takes no lock and changes nothing. It reads by `pread`, because the writer can reuse files at any time; each
//! read makes a copy and checks it. It cannot know which syncs the writer has done, so it shows what is *proven*
//! durable by later writes: on an idle log that is everything within about 10 ms, on a follower's log within about
//! 0.2 s.
//!
//! A thread of its own sleeps until inotify reports a change of a file in the directory.

use crate::api::status::Status;
use crate::cluster::membership::{Member, Membership};
use crate::cluster::options::{ReplicaStatus, Role};
use crate::disk::Disk;
use crate::disk::linux::RealDisk;
use crate::error::{Error, ErrorKind, Result};
use crate::follower::message::FollowFrom;
use crate::follower::source::FollowSource;
use crate::options::Options;
use crate::options::log_options::LogOptions;
use crate::read::positions::{Positions, closed};
use crate::read::reader::Reader;
use crate::read::records::OwnedRecord;
use crate::read::view::{LogView, Start, shared_group};
use crate::replica::open::{cannot_open, check_name, check_not_named, no_log};
use crate::replica::state::sequencer::{Owner, Replayed, Sequencer};
use crate::store::format::geometry::REMEMBERED_MAX;
use crate::store::format::identity::Identity;
use crate::store::read::chain::Proven;
use crate::store::recovery::tail::Follow;
use crate::store::recovery::{Survey, survey};
use crate::store::segment::ReadMode;
use crate::store::segment::Segments;
use crate::sync::threads::spawn;
use crate::types::{EntryIndex, Index, LogId, NodeId, Term, Timestamp};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify::{self, WatchFlags};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A read-only handle on a log. Cheap to clone, `Send + Sync`. Its readers see new records while the log grows.
///
/// ```
/// use chiplog::{Log, Options, Start, ReadOnlyLog};
/// use std::time::Duration;
/// # let dir = tempfile::tempdir()?;
/// let log = Log::open(dir.path(), Options::with_segment_bytes(1 << 20))?;
/// let read_only = ReadOnlyLog::open(dir.path())?; // could be another process
/// let mut reader = read_only.reader(Start::First)?;
/// log.append(b"seen from outside")?;
/// assert!(reader.wait(Some(Duration::from_secs(10)))?);
/// assert_eq!(reader.next_record()?.expect("waited").data, b"seen from outside");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ReadOnlyLog {
    inner: Arc<Inner>,
}

struct Inner {
    identity: Identity,
    view: LogView,
    state: Arc<State>,
    stop: Arc<OwnedFd>,
}

/// The state that the watching thread shares with the handles.
#[derive(Default)]
struct State {
    last_timestamp: AtomicU64,
    term: AtomicU64,
    sessions: AtomicU64,
    unproven: AtomicU64,
    members: Mutex<Option<Vec<Member>>>,
    log_options: Mutex<LogOptions>,
    failure: Mutex<Option<Error>>,
}

/// How often a survey is retried: it can meet files while the writer is changing them.
const SURVEYS_MAX: u32 = 20;
/// The pause before a survey is retried, and between two looks at a log that is being written.
const PAUSE: Duration = Duration::from_millis(2);

impl ReadOnlyLog {
    /// Opens the log in `dir` for reading.
    ///
    /// # Errors
    /// `NotFound`: there is no log. `InvalidArgument`: `dir` is not a directory, or holds many named logs. `Corrupt`,
    /// `Unsupported`, `Io`.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        check_name(dir)?;
        check_not_named(dir)?;
        let not_found = || Error::new(ErrorKind::NotFound, format!("there is no log at {}", dir.display()));
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir, false).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => not_found(),
            _ => cannot_open(dir, e),
        })?);
        let watch = DirWatch::new(dir).map_err(|e| Error::io("watch", dir, e))?;
        let identity = Identity::read(&*disk)?.ok_or_else(|| no_log(&*disk))?;
        let options = Options { read_mode: ReadMode::Read, ..Options::default() };
        let (found, sequencer) = look(&*disk, identity, &options)?;
        let (segments, follow) = found.follow();
        if sequencer.logs().is_shared() {
            return Err(shared_group());
        }
        let segments = Arc::new(Segments::new(disk.clone(), ReadMode::Read, segments));
        let mut view = LogView::new(segments, 0, true);
        view.positions = Arc::new(Positions::default());
        let state = Arc::new(State::default());
        let stop = watch.stop.clone();
        let follower =
            Follower { disk, identity, options, sequencer, follow, view: view.clone(), state: state.clone() };
        follower.publish();
        spawn("chiplog-watch", dir, move || follower.run(&watch))?;
        Ok(Self { inner: Arc::new(Inner { identity, view, state, stop }) })
    }

    /// Returns a reader of records that are proven durable. Its wait at the tail ends when the log grows.
    ///
    /// # Errors
    /// As [`crate::Log::reader`]. `Unavailable`, also of the reader: the record is in an object store alone; see
    /// [`Self::in_object_store`].
    pub fn reader(&self, start: Start) -> Result<Reader> {
        self.inner.view.reader(start)
    }

    /// Returns one record, by its index.
    ///
    /// # Errors
    /// As [`crate::Log::read`].
    pub fn read(&self, index: Index) -> Result<OwnedRecord> {
        self.inner.view.read(index)
    }

    /// The log's state, as far as it is proven. The capacity is `None`, the role is [`Role::Unknown`], and there is no
    /// leader and no peer: only the writer knows them. The term is that of the last entry. Blocks only for
    /// the disk: it may open the oldest segment.
    pub fn status(&self) -> Status {
        let Inner { identity, view, state, .. } = &*self.inner;
        let (first, last) = view.positions.range();
        let (entry, members) = (self.last_entry(), self.members().unwrap_or_default());
        let me = members.iter().find(|member| member.directory == identity.directory);
        Status {
            log_id: identity.log,
            directory_id: identity.directory,
            follows: identity.follows,
            first_index: first,
            last_index: last,
            durable_index: last,
            bytes_used: view.segments.bytes_from(first),
            bytes_capacity: None,
            segments: view.segments.len() as u64,
            sessions: state.sessions.load(Ordering::Relaxed) as u32,
            last_timestamp: Timestamp(state.last_timestamp.load(Ordering::Relaxed)),
            replica: ReplicaStatus {
                node: me.map_or(NodeId(0), |member| member.node),
                role: Role::Unknown,
                term: Term(state.term.load(Ordering::Relaxed)),
                leader: None,
                committed_index: last,
                committed_entry: entry,
                last_entry: entry,
                members,
                peers: Vec::new(),
            },
        }
    }

    /// The log's permanent id. Never blocks.
    pub fn log_id(&self) -> LogId {
        self.inner.identity.log
    }

    /// The first record that is not discarded; in an empty log, the index of the next append. Never blocks.
    pub fn first_index(&self) -> Index {
        self.inner.view.positions.range().0
    }

    /// The last record that is proven durable; in an empty log `first_index - 1`. Never blocks.
    pub fn last_index(&self) -> Index {
        self.inner.view.positions.range().1
    }

    /// The first and the last record that are in an object store alone, before the first one here: this handle does not read them. `None`:
    /// there are none. Never blocks.
    pub fn in_object_store(&self) -> Option<(Index, Index)> {
        let (from, last) = (self.inner.view.positions.stored_from()?, self.first_index().previous());
        (from <= last).then_some((from, last))
    }

    /// How many sound records follow the last one shown without being proven durable. While a writer has the log
    /// open, they are proven within about 10 ms or are still being written. Without a writer they are the end of a
    /// log whose writer was killed: opening the log for writing makes them durable, and part of it.
    pub fn unproven(&self) -> u64 {
        self.inner.state.unproven.load(Ordering::Relaxed)
    }

    /// The members of the cluster, as far as the files here show: none in a replica that was not added yet. `None`
    /// for a standalone log.
    pub fn members(&self) -> Option<Vec<Member>> {
        self.inner.state.members.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A feed of the log's committed entries, as far as they are proven durable, for a copy of the log.
    pub(crate) fn follow(&self, from: FollowFrom) -> Result<FollowSource> {
        let Inner { identity, view, .. } = &*self.inner;
        // A state carries all indexes that sessions remember, whatever their limit at the source.
        let options =
            Options { read_mode: ReadMode::Read, session_window: REMEMBERED_MAX, ..Options::default() };
        FollowSource::new(view.clone(), Owner::outside(identity), identity.log, options, from)
    }

    /// The last entry that is shown.
    pub(crate) fn last_entry(&self) -> EntryIndex {
        self.inner.view.positions.entry()
    }

    /// The size of the largest segment, in bytes.
    pub(crate) fn segment_bytes(&self) -> u32 {
        self.inner.view.segments.snapshot().iter().map(|segment| segment.bytes).max().unwrap_or_default()
    }

    /// The options that are set for the log, as far as the files here show.
    pub fn log_options(&self) -> LogOptions {
        *self.inner.state.log_options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error that ended the view, if it met damage. The waits of its readers end with the same error.
    pub fn failure(&self) -> Option<Error> {
        self.inner.state.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl std::fmt::Debug for ReadOnlyLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadOnlyLog").field("status", &self.status()).finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Readers keep what they have. The thread ends by itself.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }
}

/// Surveys the files until a survey succeeds. Damage that all surveys meet is returned.
fn look(disk: &dyn Disk, identity: Identity, options: &Options) -> Result<(Survey, Sequencer)> {
    let mut tries = 0;
    loop {
        let mut replayed = Replayed { sequencer: unlearnt(identity, options), options };
        match survey(disk, identity, &mut replayed) {
            Ok(found) => return Ok((found, replayed.sequencer)),
            Err(error) if error.kind() == ErrorKind::Unsupported || tries == SURVEYS_MAX => {
                return Err(error);
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
        tries += 1;
    }
}

fn unlearnt(identity: Identity, options: &Options) -> Sequencer {
    Sequencer::new(Owner::outside(&identity), Membership::default(), options)
}

/// The events that mean the log changed: writes, and files that are created, renamed or removed.
const CHANGES: WatchFlags = WatchFlags::MODIFY
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO);

/// Wakes when a file of the directory changes.
struct DirWatch {
    inotify: OwnedFd,
    stop: Arc<OwnedFd>,
}

impl DirWatch {
    fn new(dir: &Path) -> std::io::Result<Self> {
        use inotify::CreateFlags;
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        inotify::add_watch(&inotify, dir, CHANGES)?;
        Ok(Self { inotify, stop: Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?) })
    }

    /// Sleeps until something changed (true) or the handle was dropped (false).
    fn wait(&self) -> bool {
        let mut fds = [PollFd::new(&self.inotify, PollFlags::IN), PollFd::new(&*self.stop, PollFlags::IN)];
        while poll(&mut fds, None) == Err(rustix::io::Errno::INTR) {}
        if !fds[1].revents().is_empty() {
            return false;
        }
        let mut events = [0; 4096];
        while rustix::io::read(&self.inotify, &mut events).is_ok_and(|n| n > 0) {}
        true
    }
}

/// The watching thread: reads new blocks and publishes what they prove.
struct Follower {
    disk: Arc<dyn Disk>,
    identity: Identity,
    options: Options,
    sequencer: Sequencer,
    follow: Follow,
    view: LogView,
    state: Arc<State>,
}

impl Follower {
    fn run(mut self, watch: &DirWatch) {
        loop {
            if let Err(error) = self.advance() {
                *self.state.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
                self.view.positions.close(error);
                return;
            }
            // Changes during the pause are seen in one look.
            std::thread::sleep(PAUSE);
            if !watch.wait() {
                self.view.positions.close(closed());
                return;
            }
        }
    }

    fn advance(&mut self) -> Result<()> {
        let options = &self.options;
        let sequencer = std::mem::replace(&mut self.sequencer, unlearnt(self.identity, options));
        let mut learner = Replayed { sequencer, options };
        let begun = self.follow.advance(&*self.disk, self.identity, &mut learner);
        self.sequencer = learner.sequencer;
        if self.follow.is_lost(&*self.disk, self.identity) {
            self.start_over()?;
        } else {
            begun?.into_iter().for_each(|segment| self.view.segments.push(segment));
        }
        self.publish();
        Ok(())
    }

    /// Surveys the whole log again, because the writer has discarded or truncated what this handle was following.
    /// Readers at a position that is gone get an error.
    fn start_over(&mut self) -> Result<()> {
        let (found, sequencer) = look(&*self.disk, self.identity, &self.options)?;
        let (segments, follow) = found.follow();
        self.view.segments.replace(segments);
        (self.sequencer, self.follow) = (sequencer, follow);
        Ok(())
    }

    /// The first record that is in the object store alone, if the first one here is `first`.
    fn stored_from(&self, first: Index) -> Option<Index> {
        let (begin, objects) = (self.sequencer.first_at_end(), self.sequencer.objects());
        // The files of a copy of one log begin in what is stored of the group, whose positions are others.
        let is_stored = begin < first
            && (objects.group().is_some() || objects.stored_end().is_some_and(|end| end.next >= first));
        is_stored.then_some(begin)
    }

    fn publish(&self) {
        let positions = &self.view.positions;
        let Proven { end, first } = self.follow.proven();
        positions.set_stored_from(self.stored_from(first));
        positions.discarded(first);
        let last = end.next.previous();
        positions.written(last);
        positions.durable_to(last);
        positions.commit_entries_to(end.raft);
        positions.commit_to(last);
        drop(self.view.segments.drop_below(first, end.raft, true));
        self.state.last_timestamp.store(self.sequencer.last_timestamp().0, Ordering::Relaxed);
        self.state.term.store(end.term.0, Ordering::Relaxed);
        self.state.sessions.store(self.sequencer.sessions().len() as u64, Ordering::Relaxed);
        let options = self.sequencer.options_at_end();
        *self.state.log_options.lock().unwrap_or_else(PoisonError::into_inner) = options;
        let membership = self.sequencer.membership_at_end();
        *self.state.members.lock().unwrap_or_else(PoisonError::into_inner) =
            (*membership != Membership::alone()).then(|| membership.members().cloned().collect());
        self.state.unproven.store(self.follow.unproven_records(), Ordering::Relaxed);
        positions.wake();
    }
}
