//! Still: a log's directory that no program writes, such as a backup. It is read and fed from, and never changed; no
//! lock is taken.
//!
//! Must not know: manifests.

use crate::cluster::membership::Membership;
use crate::disk::Disk;
use crate::error::{Error, ErrorKind, Result};
use crate::follower::message::FollowFrom;
use crate::follower::source::FollowSource;
use crate::options::Options;
use crate::read::positions::Positions;
use crate::read::reader::Reader;
use crate::read::view::{LogView, Start};
use crate::replica::open::no_log;
use crate::replica::state::log_table::LogTable;
use crate::replica::state::sequencer::{Owner, Replayed, Sequencer};
use crate::store::format::geometry::REMEMBERED_MAX;
use crate::store::format::identity::Identity;
use crate::store::recovery::survey;
use crate::store::segment::ReadMode;
use crate::store::segment::{Segments, file_name};
use crate::types::{EntryIndex, Index, Timestamp};
use std::sync::Arc;

/// The log in a directory that does not change.
pub(crate) struct Still {
    pub(crate) identity: Identity,
    view: LogView,
    options: Options,
    pub(crate) first: Index,
    pub(crate) last: Index,
    pub(crate) last_entry: EntryIndex,
    pub(crate) last_timestamp: Timestamp,
    /// The segment files of the log, in order.
    pub(crate) files: Vec<String>,
    /// Segment files that hold nothing of the log.
    pub(crate) leftovers: Vec<String>,
    /// The size of the largest segment, in bytes.
    pub(crate) segment_bytes: u32,
    /// The logs of a shared group, at its end.
    pub(crate) logs: LogTable,
}

impl Still {
    /// Reads the files' structure. Blocks while the last segment is read.
    ///
    /// # Errors
    /// `NotFound`: there is no log. `Corrupt`: damage, or an end that is not proven durable. `Unsupported`, `Io`.
    pub(crate) fn look(disk: &Arc<dyn Disk>) -> Result<Self> {
        let identity = Identity::read(&**disk)?.ok_or_else(|| no_log(&**disk))?;
        let options =
            Options { read_mode: ReadMode::Read, session_window: REMEMBERED_MAX, ..Options::default() };
        let sequencer = Sequencer::new(Owner::outside(&identity), Membership::default(), &options);
        let mut replayed = Replayed { sequencer, options: &options };
        let survey = survey(&**disk, identity, &mut replayed)?;
        let last_timestamp = replayed.sequencer.last_timestamp();
        let logs = replayed.sequencer.logs().clone();
        let leftovers = survey.leftovers.iter().map(|leftover| leftover.name.clone()).collect();
        let (list, follow) = survey.follow();
        if follow.proven().end.raft != replayed.sequencer.end().raft {
            let dir = disk.path().display();
            let what =
                format!("{dir}: entries at its end are not proven durable: it was not closed properly");
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        let files = list.iter().map(|segment| file_name(segment.number)).collect();
        let segment_bytes = list.iter().map(|segment| segment.bytes).max().unwrap_or_default();
        let (first, end) = (follow.proven().first, follow.proven().end);
        let last = end.next.previous();
        let segments = Arc::new(Segments::new(disk.clone(), ReadMode::Read, list));
        let mut view = LogView::new(segments, options.prefetch_bytes as usize, false);
        let positions = Positions::new(first, last, last);
        positions.commit_entries_to(end.raft);
        view.positions = Arc::new(positions);
        Ok(Self {
            identity,
            view,
            options,
            first,
            last,
            last_entry: end.raft,
            last_timestamp,
            files,
            leftovers,
            segment_bytes,
            logs,
        })
    }

    /// A reader of its records, if it is no shared group.
    ///
    /// # Errors
    /// As [`crate::Log::reader`].
    pub(crate) fn reader(&self, start: Start) -> Result<Reader> {
        self.view.reader(start)
    }

    /// A feed of everything that is committed there, from the first record on.
    ///
    /// # Errors
    /// As [`crate::Log::follow`].
    pub(crate) fn feed(&self) -> Result<FollowSource> {
        let (me, log) = (Owner::outside(&self.identity), self.identity.log);
        FollowSource::new(self.view.clone(), me, log, self.options.clone(), FollowFrom::First)
    }

    /// Reads and checks every block.
    ///
    /// # Errors
    /// `Corrupt`, naming file and offset; `Io`.
    pub(crate) fn walk(&self, piece_bytes: usize) -> Result<()> {
        let mut feed = self.feed()?;
        while feed.next(piece_bytes)?.is_some() {}
        if feed.position().is_none_or(|(raft, _)| raft != self.last_entry) {
            let what = format!("the log's blocks end before entry {}", self.last_entry);
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        Ok(())
    }
}
