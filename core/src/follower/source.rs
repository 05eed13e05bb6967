//! FollowSource: the source's side of a log that is followed. There can be any number of feeds: each is a reader.
//!
//! | what is followed | feed | what it returns |
//! |---|---|---|
//! | a log on its own, or a whole shared group | [`EntryFeed`] | the entries as they are in the files |
//! | one log of a shared group, or a copy of one | [`RecordFeed`] | the log's batches, as entries that are made here |
//!
//! Must not know: who follows, the writer.

use crate::error::Result;
use crate::follower::entry_feed::EntryFeed;
use crate::follower::message::{FollowFrom, FollowMessage};
use crate::follower::record_feed::RecordFeed;
use crate::options::Options;
use crate::read::positions::{HookOwner, Positions, Until, or_wake};
use crate::read::view::LogView;
use crate::replica::node::Published;
use crate::replica::state::sequencer::Owner;
use crate::replica::wire::repair_message::BLOCKS_MAX;
use crate::types::{EntryIndex, LogId, Term};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The committed entries of a log, for another one that follows it. Made by [`Log::follow`](crate::Log::follow). After
/// the log was closed it still returns what is in the log. `Send`; used by one thread at a time.
///
/// ```
/// use chiplog::follower::{FollowMessage, FollowFrom};
/// use chiplog::{FollowerLog, Log, Options, Start};
/// # let (a, b) = (tempfile::tempdir()?, tempfile::tempdir()?);
/// let log = Log::open(a.path(), Options::with_segment_bytes(1 << 20))?;
/// let mut feed = log.follow(FollowFrom::First)?;
/// let Some(FollowMessage::State(state)) = feed.next(1 << 20)? else { panic!("the feed of a new copy begins with a state") };
/// let copy = FollowerLog::create(b.path(), Options::with_segment_bytes(1 << 20), &state)?;
/// log.append(b"x")?;
/// while let Some(fed) = feed.next(1 << 20)? {
///     copy.apply(fed)?;
/// }
/// assert_eq!(copy.log().reader(Start::First)?.next_record()?.expect("one record").data, b"x");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FollowSource {
    feed: Feed,
    positions: Arc<Positions>,
    owner: HookOwner,
}

enum Feed {
    Entries(Box<EntryFeed>),
    Records(Box<RecordFeed>),
}

impl FollowSource {
    /// The largest number of entries that one call returns.
    pub const ENTRIES_MAX: usize = BLOCKS_MAX;

    /// A feed of the whole log `log`, or the whole group, that begins at `from`.
    ///
    /// # Errors
    /// `Diverged`: the follower wants another log. `Discarded`, `OutOfRange`: [`FollowFrom::Index`] is beyond either
    /// end.
    pub(crate) fn new(
        view: LogView,
        me: Owner,
        log: LogId,
        options: Options,
        from: FollowFrom,
    ) -> Result<Self> {
        let positions = view.positions.clone();
        Ok(Self::of(positions, Feed::Entries(Box::new(EntryFeed::new(view, me, log, options, from)?))))
    }

    /// A feed of the records of one log.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn of_one_log(
        view: LogView,
        published: Arc<Published>,
        me: Owner,
        log: LogId,
        from: FollowFrom,
    ) -> Result<Self> {
        let positions = view.positions.clone();
        Ok(Self::of(positions, Feed::Records(Box::new(RecordFeed::new(view, published, me, log, from)?))))
    }

    fn of(positions: Arc<Positions>, feed: Feed) -> Self {
        let owner = positions.hook_owner();
        Self { feed, positions, owner }
    }

    /// For a copy that was opened with the log's object store, of which it reads what it has no files of. If the log has
    /// objects, a new copy then begins behind the records that are stored, wherever the feed was to begin, and has all
    /// records of the log. Without objects this changes nothing. A copy of one named log reads its part of the objects of its group.
    ///
    /// ```
    /// # use chiplog::follower::FollowFrom;
    /// # let dir = tempfile::tempdir()?;
    /// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// let feed = log.follow(FollowFrom::First)?.skip_stored();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn skip_stored(mut self) -> Self {
        match &mut self.feed {
            Feed::Entries(feed) => feed.skip_stored(),
            Feed::Records(feed) => feed.skip_stored(),
        }
        self
    }

    /// Returns the next item: a state, or entries with up to `bytes_max` bytes of bodies together, but at least one
    /// even if it is larger. `None` at the tail, or while this log lags behind the follower. Blocks on the disk, and for the
    /// network if the entries refer to payload slices; a feed that begins at a record reads up to one segment once.
    ///
    /// The item is a state if the feed is for a new copy, and whenever the next entry was discarded here: then the
    /// follower has to jump.
    ///
    /// # Errors
    /// `Diverged`: the follower's history is not this log's; it must not continue with this source. `Corrupt`: bytes
    /// fail their checksum; the feed stays at its position, and another source may have the bytes. `Discarded`: the
    /// feed begins at a record that was discarded. `NotFound`: the named log was dropped. `Unavailable`: the log's
    /// beginning keeps moving. `Io`.
    pub fn next(&mut self, bytes_max: usize) -> Result<Option<FollowMessage>> {
        match &mut self.feed {
            Feed::Entries(feed) => feed.next(bytes_max),
            Feed::Records(feed) => feed.next(bytes_max),
        }
    }

    /// The length in bytes of the first entry's body, where [`Self::next`] would return entries: it returns at least
    /// that many bytes. `None` where it would return a state or nothing. Blocks on the disk only; no body is read, unless
    /// the log may refer to payload slices. In a feed of one named log, which makes its entries, the least length that the
    /// first one can have.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub fn next_bytes(&mut self) -> Result<Option<usize>> {
        match &mut self.feed {
            Feed::Entries(feed) => feed.next_bytes(),
            Feed::Records(feed) => feed.next_bytes(),
        }
    }

    /// The beginning of a feed that returns what this one returns next.
    ///
    /// ```
    /// # use chiplog::follower::FollowFrom;
    /// # let dir = tempfile::tempdir()?;
    /// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// let mut feed = log.follow(FollowFrom::First)?;
    /// assert_eq!(feed.resume_point(), FollowFrom::First);
    /// feed.next(0)?; // the state
    /// log.append(b"x")?;
    /// let mut again = log.follow(feed.resume_point())?;
    /// assert_eq!(again.next(1 << 20)?, feed.next(1 << 20)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume_point(&self) -> FollowFrom {
        match &self.feed {
            Feed::Entries(feed) => feed.resume_point(),
            Feed::Records(feed) => feed.resume_point(),
        }
    }

    /// Whether the next entry is in a file, or will be: [`Self::next`] does not wait for the object store, unless the entry refers to it.
    #[doc(hidden)]
    pub fn is_in_files(&self) -> bool {
        match &self.feed {
            Feed::Entries(feed) => feed.is_in_files(),
            Feed::Records(_) => false,
        }
    }

    /// Whether this is a feed of one named log: see [`Log::follow`](crate::Log::follow). It copies small batches, to
    /// make entries of them.
    pub fn is_of_one_log(&self) -> bool {
        matches!(self.feed, Feed::Records(_))
    }

    /// The last entry that was returned, or after which the feed began. `None` before the state of a new copy.
    pub fn position(&self) -> Option<(EntryIndex, Term)> {
        match &self.feed {
            Feed::Entries(feed) => feed.position(),
            Feed::Records(feed) => feed.position(),
        }
    }

    /// The source's last committed entry. In a feed of one named log it counts an entry for each record that is still to
    /// come, because it makes at most as many.
    pub fn committed(&self) -> EntryIndex {
        match &self.feed {
            Feed::Entries(feed) => feed.committed(),
            Feed::Records(feed) => feed.committed(),
        }
    }

    /// Whether the follower has more than this source. Then no item is returned until the source has caught up;
    /// another source may be further on. If the source's history turns out to be another one, [`Self::next`] says so before.
    pub fn is_behind(&self) -> bool {
        self.position().is_some_and(|(raft, _)| self.committed() < raft)
    }

    /// Blocks until there is an item to return (true) or the time-out passes (false); `None` waits for ever. While the follower
    /// [has more](Self::is_behind), also true whenever the source has another entry: it can be of another history; and until the first
    /// [`Self::next`] has compared its position with the source.
    ///
    /// # Errors
    /// `Closed` when the log was closed and everything in it was returned; `Poisoned` when it was poisoned; `NotFound`
    /// when the named log was dropped.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        match self.awaited() {
            Some(until) => self.positions.wait(until, timeout),
            None => Ok(true),
        }
    }

    /// Calls `hook` once there is an item to return, or the log was closed. If that is so already, the hook is called
    /// at once; else on the thread that writes the log, where it must not block. As
    /// [`Reader::on_more`](crate::Reader::on_more).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
    /// let mut feed = log.follow(chiplog::follower::FollowFrom::Newest)?;
    /// feed.next(0)?; // the state
    /// let (tx, rx) = std::sync::mpsc::channel();
    /// feed.on_more(move || drop(tx.send("there is more")));
    /// log.append(b"x")?;
    /// assert_eq!(rx.recv()?, "there is more");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_more(&self, hook: impl FnOnce() + Send + 'static) {
        match self.awaited() {
            Some(until) => self.positions.on_reach(self.owner, until, Box::new(hook)),
            None => hook(),
        }
    }

    /// For async code: ready when there is an item to return. Wakes the task through [`Self::on_more`].
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn poll_more(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        or_wake(self.wait(Some(Duration::ZERO)), context, |waker| self.on_more(|| waker.wake()))
    }

    /// The position of the log at which there is an item to return. `None`: there is one now.
    fn awaited(&self) -> Option<Until> {
        match &self.feed {
            Feed::Entries(feed) => feed.awaited().map(Until::Entry),
            Feed::Records(feed) => feed.awaited(),
        }
    }
}

impl Drop for FollowSource {
    fn drop(&mut self) {
        self.positions.forget_hook(self.owner);
    }
}

impl std::fmt::Debug for FollowSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.feed {
            Feed::Entries(feed) => f.debug_tuple("FollowSource").field(feed).finish(),
            Feed::Records(feed) => f.debug_tuple("FollowSource").field(feed).finish(),
        }
    }
}
