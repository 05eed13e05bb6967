//! Record feed: a feed of one log, such as a log of a shared group. It makes entries of the log's batches, so that the copy is
//! that of a log on its own.
//!
//! ```text
//!  group:  | a1 b1 b2 | a2 c1 | b3 |  ...        batches of several logs in each entry
//!  copy of b:      state | b1 b2 | b3 |  ...     entries 1, 2, 3 ...; records, times and batches of the log
//! ```
//!
//! Two copies of one log can begin at different records and number their entries differently. So a feed continues behind a
//! *record*, and numbers on from the copy's last entry. All entries are of term 1, because only raft needs terms.
//!
//! Sessions stay with the group, whose entries open them: the copied batches have no place in a session. The log's records, their
//! indexes and times, and how they were batched are those of the log.
//!
//! Invariants:
//! - only committed records are returned: a feed reads through a [`Reader`];
//! - every byte is checked before it is returned. A changed head of a batch gets a checksum that follows from the old one;
//! - records are returned without a gap: a missing record was either discarded, and a state leads past it, or is damage;
//! - no entry has a lower time than the one before, also after the feed has moved to another source. An entry without records
//!   has the time of the last record before it, so the copy's last time is that of its last record;
//! - the log alone discards records of the copy: never another copy, which can keep less;
//! - a copy that reads objects of the group is led past no record that is not in these or discarded, and told of no others;
//! - between calls a feed holds no bytes of batches in memory.
//!
//! Must not know: who follows, the writer.

use crate::cluster::membership::Membership;
use crate::error::{Error, ErrorKind, Result};
use crate::follower::entry_feed::{PASSED_SEGMENTS_MAX, begins};
use crate::follower::message::{FollowEntries, FollowEntry, FollowFrom, FollowMessage};
use crate::follower::stored_part::{StoredPart, time_before_files};
use crate::read::log_set::deleted;
use crate::read::positions::Until;
use crate::read::reader::{NextBatch, Reader};
use crate::read::records::StoredBatch;
use crate::read::view::{LogView, Start};
use crate::record::batch::{BatchHeader, without_session};
use crate::replica::node::Published;
use crate::replica::queue::proposals::Command;
use crate::replica::state::command::{COMMAND_BYTES, encode_command, parse_command};
use crate::replica::state::sequencer::{FIRST_TERM, Owner};
use crate::replica::state::session_table::Sessions;
use crate::replica::state::snapshot::FollowSnapshot;
use crate::replica::wire::repair_message::BLOCKS_MAX;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind, digest_of_batches};
use crate::store::format::geometry::{OBJECT_BYTES, OBJECTS_HEADER_BYTES};
use crate::store::format::objects::encode;
use crate::store::format::segment::{HardState, Opening};
use crate::types::{EntryIndex, Index, LogId, Term, Timestamp};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Batches of the same time share an entry up to this size, which fits into the smallest segment.
const ENTRY_BYTES_MAX: usize = 32 << 10;
/// A batch of at most this size is copied, to lie beside others in one piece of memory.
const COPIED_BYTES_MAX: usize = 4 << 10;
/// How often a beginning that moves meanwhile is looked for.
const BEGINNINGS_MAX: u32 = 500;
const PAUSE: Duration = Duration::from_millis(2);
/// A copy is told of new objects once it was sent this many times the bytes that this takes.
const NEWS_SHARE: u64 = 64;
/// The last entry of a new copy, which is its state.
const FIRST_ENTRY: EntryIndex = EntryIndex(1);

/// The records of a log.
pub(crate) struct RecordFeed {
    view: LogView,
    published: Arc<Published>,
    me: Owner,
    log: LogId,
    position: Position,
    reader: Option<Reader>,
    /// The copy reads objects of the group.
    skips_stored: bool,
    /// The objects of which the copy was told.
    told: Told,
}

/// The objects of the group of which this feed has told a copy that reads them.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// The numbers of the oldest object and of the one behind the newest. None: nothing.
    numbers: Option<(u64, u64)>,
    /// Bytes of records that were returned since.
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
enum Position {
    /// The next item is a state.
    Begins(Start),
    /// Behind a record that the follower claims to have; it is still to be compared with the record here.
    Claimed(Behind),
    Behind(Behind),
}

/// The end of the follower's copy.
#[derive(Clone, Copy, Debug)]
struct Behind {
    /// Its last entry.
    raft: EntryIndex,
    /// Its next record, with which a batch begins.
    next: Index,
    /// Its first record that is not discarded, as far as is known here.
    first: Index,
    /// The time of the last item that this feed returned.
    time: Timestamp,
}

/// How far the log is.
struct Extent {
    first: Index,
    next: Index,
    /// The time of the last record that it ever had. `None`: to be looked up.
    time: Option<Timestamp>,
}

/// The next item.
enum Coming {
    Nothing,
    /// A state at this record, of this time.
    Jump(Index, Timestamp),
    /// The records before this one were discarded.
    Discard(Index),
    /// Records that a copy that reads objects finds there.
    Stored,
    /// Records; the first batch has this many bytes.
    Records(usize),
}

impl RecordFeed {
    /// A feed of the log that `view` shows, and whose id is `log`.
    ///
    /// # Errors
    /// `Diverged`: the follower wants another log, or continues behind an entry of it. `Discarded`, `OutOfRange`:
    /// [`FollowFrom::Index`] is beyond either end. `InvalidArgument`: the view is that of a whole group.
    pub(crate) fn new(
        view: LogView,
        published: Arc<Published>,
        me: Owner,
        log: LogId,
        from: FollowFrom,
    ) -> Result<Self> {
        view.check_log()?;
        let position = match from {
            FollowFrom::First => Position::Begins(Start::First),
            FollowFrom::Newest => Position::Begins(Start::Next),
            FollowFrom::Last(count) => Position::Begins(Start::Last(count)),
            FollowFrom::Timestamp(time) => Position::Begins(Start::Timestamp(time)),
            FollowFrom::Index(index) => {
                view.check(index)?;
                Position::Begins(Start::Index(index))
            }
            FollowFrom::After { log: wanted, .. } | FollowFrom::AfterRecord { log: wanted, .. }
                if wanted != log =>
            {
                let what = format!("this is log {log}, not log {wanted}");
                return Err(Error::new(ErrorKind::Diverged, what));
            }
            FollowFrom::After { .. } => {
                let what = "a copy of one named log, or of such a copy, cannot continue behind an entry of another copy: each \
                            numbers its entries by itself; nothing was sent to it";
                return Err(Error::new(ErrorKind::Diverged, what));
            }
            FollowFrom::AfterRecord { raft, next, first, time, .. } => {
                Position::Claimed(Behind { raft, next, first, time })
            }
        };
        let (skips_stored, told) = (false, Told::default());
        Ok(Self { view, published, me, log, position, reader: None, skips_stored, told })
    }

    /// See [`FollowSource::skip_stored`](super::source::FollowSource::skip_stored).
    pub(crate) fn skip_stored(&mut self) {
        self.skips_stored = true;
    }

    /// See [`FollowSource::next`](super::source::FollowSource::next).
    pub(crate) fn next(&mut self, bytes_max: usize) -> Result<Option<FollowMessage>> {
        if let Position::Begins(start) = self.position {
            return self.begin(start).map(Some);
        }
        let Some(behind) = self.behind()? else { return Ok(None) };
        if self.has_news()
            && let Some(news) = self.news(behind)?
        {
            return Ok(Some(news));
        }
        loop {
            let mut entries = Vec::new();
            let collected = match self.coming(behind)? {
                Coming::Nothing => return Ok(None),
                Coming::Jump(next, time) => {
                    self.reader = None;
                    let behind = Behind { raft: behind.raft.next(), next, first: next, time };
                    return Ok(Some(self.state(behind, None)));
                }
                Coming::Stored => match self.skip(behind)? {
                    Some(state) => return Ok(Some(state)),
                    None => self.collect(behind, bytes_max, &mut entries),
                },
                Coming::Discard(first) => {
                    entries.push(discard(&behind, first));
                    Ok(())
                }
                Coming::Records(_) => self.collect(behind, bytes_max, &mut entries),
            };
            self.release();
            match collected {
                Err(error) if entries.is_empty() && error.kind() != ErrorKind::Discarded => {
                    return Err(error);
                }
                _ if entries.is_empty() => continue, // discarded meanwhile
                _ => return Ok(Some(self.hand_out(behind, entries))), // the next call meets the error again
            }
        }
    }

    fn hand_out(&mut self, behind: Behind, entries: Vec<FollowEntry>) -> FollowMessage {
        self.position = Position::Behind(entries.iter().fold(behind, after));
        self.told.bytes += entries.iter().map(FollowEntry::bytes).sum::<usize>();
        let (log, committed, kept) = (self.log, self.committed(), self.kept());
        FollowMessage::Entries(FollowEntries { log, committed, kept, entries })
    }

    /// Releases the bytes that were read without a mapping.
    fn release(&mut self) {
        if let Some(reader) = &mut self.reader {
            reader.release();
        }
    }

    /// See [`FollowSource::next_bytes`](super::source::FollowSource::next_bytes).
    pub(crate) fn next_bytes(&mut self) -> Result<Option<usize>> {
        if matches!(self.position, Position::Begins(_)) {
            return Ok(None);
        }
        let Some(behind) = self.behind()? else { return Ok(None) };
        if self.has_news() {
            return Ok(None);
        }
        let bytes = match self.coming(behind)? {
            Coming::Nothing | Coming::Jump(..) | Coming::Stored => None,
            Coming::Discard(..) => Some(COMMAND_BYTES),
            Coming::Records(bytes) => Some(bytes),
        };
        self.release();
        Ok(bytes)
    }

    /// See [`FollowSource::resume_point`](super::source::FollowSource::resume_point).
    pub(crate) fn resume_point(&self) -> FollowFrom {
        match self.position {
            Position::Begins(start) => begins(start),
            Position::Claimed(behind) | Position::Behind(behind) => {
                let Behind { raft, next, first, time } = behind;
                FollowFrom::AfterRecord { log: self.log, raft, term: FIRST_TERM, next, first, time }
            }
        }
    }

    /// See [`FollowSource::position`](super::source::FollowSource::position).
    pub(crate) fn position(&self) -> Option<(EntryIndex, Term)> {
        match self.position {
            Position::Begins(_) => None,
            Position::Claimed(behind) | Position::Behind(behind) => Some((behind.raft, FIRST_TERM)),
        }
    }

    /// See [`FollowSource::committed`](super::source::FollowSource::committed).
    pub(crate) fn committed(&self) -> EntryIndex {
        let (_, last) = self.view.positions.range();
        match self.position {
            Position::Begins(_) => FIRST_ENTRY,
            Position::Claimed(Behind { raft, next, .. }) | Position::Behind(Behind { raft, next, .. }) => {
                match last.next().0.checked_sub(next.0) {
                    Some(more) => EntryIndex(raft.0.saturating_add(more)),
                    None => EntryIndex(raft.0.saturating_sub(1)),
                }
            }
        }
    }

    /// The position of the log at which there is an item to return. `None`: there is one now.
    pub(crate) fn awaited(&self) -> Option<Until> {
        let behind = match self.position {
            Position::Begins(_) => return None,
            Position::Claimed(behind) | Position::Behind(behind) => behind,
        };
        let (begin, last) = self.view.positions.range();
        if behind.next > last.next() {
            return Some(Until::Record(behind.next.previous())); // it has more than is here
        }
        // A discard is noted before the beginning moves: one that this does not see yet moves it later.
        if is_discarded(&behind, self.discarded()) {
            return None;
        }
        Some(Until::Change { next: behind.next, first: begin.max(behind.first) })
    }

    /// The first record that the log has not discarded, as far as is known here; 0 if nothing is.
    fn kept(&self) -> Index {
        self.discarded()
    }

    // ---- what comes next ----

    /// How far the log is.
    ///
    /// # Errors
    /// `NotFound`: it was dropped.
    fn extent(&self) -> Result<Extent> {
        let log = self.view.log;
        if !log.is_none() {
            let state = self.view.logs.get(log).ok_or_else(|| deleted(log))?;
            return Ok(Extent { first: state.first, next: state.next, time: Some(state.last_timestamp) });
        }
        let (first, last) = self.view.positions.range();
        Ok(Extent { first, next: last.next(), time: None })
    }

    /// The time of the last record of the log, whose next one is `next`. `None`: the log has gone on, or has discarded it. Records
    /// that are written and not published yet can be later ones: they do not count.
    fn last_time(&mut self, extent: &Extent) -> Result<Option<Timestamp>> {
        if extent.time.is_some() {
            return Ok(extent.time);
        }
        if extent.first == extent.next {
            return Ok(self.published.end_times.of(extent.next));
        }
        match self.batch_at(extent.next.previous()) {
            Err(error) if error.kind() == ErrorKind::Discarded => Ok(None),
            last => Ok(last?.map(|batch| batch.timestamp)),
        }
    }

    /// The first record that the log is known to have not discarded. The beginning of a copy says nothing about that: it can keep
    /// less.
    fn discarded(&self) -> Index {
        match self.me {
            Owner::Follower => Index(self.published.discarded.load(Ordering::Acquire)),
            _ => self.view.positions.first(),
        }
    }

    /// The end of the follower's copy, after its last record was compared with the one here. `None`: it has more than this source.
    ///
    /// # Errors
    /// `Diverged`: the record here has another time.
    fn behind(&mut self) -> Result<Option<Behind>> {
        let behind = match self.position {
            Position::Claimed(behind) => behind,
            Position::Behind(behind) => return Ok(Some(behind)),
            Position::Begins(_) => return Ok(None),
        };
        let extent = self.extent()?;
        if behind.next > extent.next {
            return Ok(None);
        }
        let last = behind.next.previous();
        let has_last = behind.first < behind.next && behind.time > Timestamp(0);
        if has_last && extent.first <= last {
            let here = match self.time_of(last) {
                Err(error) if error.kind() == ErrorKind::Discarded => None,
                here => here?,
            };
            if let Some(here) = here.filter(|here| *here != behind.time) {
                return Err(another_time(last, here, behind.time));
            }
        }
        let behind = if planted!(141) { Behind { next: behind.next.next(), ..behind } } else { behind };
        self.position = Position::Behind(behind);
        if self.skips_stored {
            self.reader = None; // where it looked may be in an object
        }
        Ok(Some(behind))
    }

    /// The time of a record. `None`: it is not committed. That of the last one before the files is known without the object store.
    fn time_of(&mut self, last: Index) -> Result<Option<Timestamp>> {
        if self.skips_stored
            && self.view.is_before_files(last)
            && let Some(time) = time_before_files(&self.view, last)?
        {
            return Ok(Some(time));
        }
        let batch = self.batch_at(last);
        self.release();
        Ok(batch?.map(|batch| batch.timestamp))
    }

    /// Determines the next item for a follower that has this.
    ///
    /// # Errors
    /// `Unavailable`: the log's beginning keeps moving. Those of reading.
    fn coming(&mut self, behind: Behind) -> Result<Coming> {
        for n in 0..BEGINNINGS_MAX {
            if n > 0 {
                std::thread::sleep(PAUSE); // a discard is under way
            }
            let extent = self.extent()?;
            if behind.next > extent.next {
                return Ok(Coming::Nothing); // the follower has more than this source
            }
            let discarded = self.discarded();
            let is_discarded = is_discarded(&behind, discarded);
            if self.reader.as_ref().is_some_and(|reader| reader.position() < extent.first) {
                self.reader = None; // it keeps a file of discarded records
            }
            let from = behind.next.max(extent.first);
            if self.skips_stored
                && self.reader.is_none()
                && from < extent.next
                && self.view.is_before_files(from)
            {
                return Ok(Coming::Stored);
            }
            let next = match from < extent.next {
                true => self.batch_at(from),
                false if from == behind.next && !is_discarded => return Ok(Coming::Nothing),
                // There is no record to come: an item without records has the time of the last one.
                false => self
                    .last_time(&extent)
                    .map(|time| time.map(|timestamp| NextBatch { first: from, timestamp, bytes: 0 })),
            };
            let next = match next {
                Ok(Some(next)) => next,
                Ok(None) => continue, // discarded meanwhile
                Err(error) if error.kind() == ErrorKind::Discarded => continue,
                Err(error) => return Err(error),
            };
            let time = next.timestamp.max(behind.time);
            return match next.first {
                // A copy can have removed records that no object has.
                first if first > behind.next && self.skips_stored && first > self.discarded() => {
                    Err(lacks(behind.next))
                }
                first if first > behind.next => Ok(Coming::Jump(first, time)),
                first if first < behind.next => Err(within(behind.next, first)),
                _ if is_discarded => Ok(Coming::Discard(discarded)),
                _ => Ok(Coming::Records(next.bytes)),
            };
        }
        Err(keeps_moving())
    }

    /// The batch that holds record `index`. `None`: the record is not committed.
    fn batch_at(&mut self, index: Index) -> Result<Option<NextBatch>> {
        let looked = self.reader_at(index).and_then(Reader::peek_stored);
        if looked.is_err() {
            self.reader = None;
        }
        looked
    }

    fn reader_at(&mut self, index: Index) -> Result<&mut Reader> {
        match &mut self.reader {
            Some(reader) if reader.position() == index => {}
            Some(reader) => reader.seek(index)?,
            none => *none = Some(self.view.reader(Start::Index(index))?),
        }
        self.reader.as_mut().ok_or_else(|| Error::new(ErrorKind::Closed, "the feed has no reader"))
    }

    // ---- states ----

    fn begin(&mut self, start: Start) -> Result<FollowMessage> {
        for n in 0..BEGINNINGS_MAX {
            if n > 0 {
                std::thread::sleep(PAUSE); // a discard is under way
            }
            let part = self.stored_part()?;
            let extent = self.extent()?;
            let part = part.filter(|part| part.upto > extent.first && part.upto <= extent.next);
            // The log's first record is in the objects.
            if let Some(part) = part {
                let (next, first, time) = (part.upto, extent.first, part.time);
                return Ok(self.state(Behind { raft: FIRST_ENTRY, next, first, time }, Some(&part)));
            }
            let index = self.view.resolve(start)?;
            let found = match index {
                _ if index == extent.next => {
                    self.last_time(&extent).map(|time| time.map(|time| (index, time)))
                }
                _ => self.batch_at(index).map(|batch| batch.map(|batch| (batch.first, batch.timestamp))),
            };
            self.release();
            match found {
                Ok(Some((next, time))) => {
                    return Ok(self.state(Behind { raft: FIRST_ENTRY, next, first: next, time }, None));
                }
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::Discarded => {}
                Err(error) => return Err(error),
            }
        }
        Err(keeps_moving())
    }

    /// Returns a state without sessions and options, after which a follower has `behind`: records before it are in the objects of `stored`,
    /// or discarded.
    fn state(&mut self, behind: Behind, stored: Option<&StoredPart>) -> FollowMessage {
        let Behind { raft, next, first, time } = behind;
        let stored_below = stored.map_or(first, |stored| stored.upto.min(next));
        let opening = Opening {
            base_raft: raft,
            base_term: FIRST_TERM,
            log_first: stored_below,
            hard_state: HardState { term: FIRST_TERM, vote: 0, commit: raft },
            configuration: Membership::of_one_log().encode(),
            sessions: Sessions::new(1, 1).encode(),
            objects: stored.map_or(Vec::new(), |stored| encode(&stored.objects, first.max(Index(1)))),
            ..Opening::default()
        };
        let body = Bytes::from(opening.encode());
        let header = header(Kind::Opening, raft, next, time, &body);
        self.position = Position::Behind(behind);
        // A state without objects takes away those of which the copy was told.
        let numbers = stored
            .map(|StoredPart { objects, .. }| (objects.number, objects.number + objects.list.len() as u64));
        self.told = Told { numbers, bytes: 0 };
        let (log, committed, kept) = (self.log, self.committed(), self.kept());
        FollowMessage::State(FollowSnapshot { log, committed, kept, header, body })
    }

    // ---- what is stored ----

    /// The records that a copy that reads objects finds there.
    ///
    /// # Errors
    /// `Unavailable`: this is a copy that could read objects, and was opened without their store. It does not know where the log begins.
    fn stored_part(&self) -> Result<Option<StoredPart>> {
        if !self.skips_stored {
            return Ok(None);
        }
        let lacks_store = self.me == Owner::Follower && self.view.segments.objects().cache().is_none();
        if lacks_store && self.view.older.get().is_some() {
            let what = "this copy was opened without its object store, and lacks what is stored: use another source, or retry";
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        StoredPart::of(&self.view)
    }

    /// The numbers of the oldest object that is known here and of the one behind the newest. None: no object is known.
    fn numbers(&self) -> Option<(u64, u64)> {
        let objects = self.view.older.get().filter(|_| self.view.log.is_none()).map(|older| older.objects());
        objects.unwrap_or(self.view.segments.objects()).numbers()
    }

    /// Whether there are objects that the copy was not told of, and telling it adds little to the records that it was sent.
    fn has_news(&self) -> bool {
        let Some(numbers) = self.numbers().filter(|_| self.skips_stored) else { return false };
        match self.told.numbers {
            None => true,
            Some(told) => {
                let bytes = OBJECTS_HEADER_BYTES as u64 + (numbers.1 - numbers.0) * OBJECT_BYTES as u64;
                told != numbers && self.told.bytes as u64 >= bytes * NEWS_SHARE
            }
        }
    }

    /// Tells a copy that reads objects which there are. It stays where it is. None: nothing of the log is stored.
    fn news(&mut self, behind: Behind) -> Result<Option<FollowMessage>> {
        let is_first = self.told.numbers.is_none();
        let numbers = self.numbers().unwrap_or_default();
        let Some(part) = self.stored_part()?.filter(|part| part.upto > Index(1)) else {
            // Nothing of these is the log's: they are no news until there are others.
            self.told = Told { numbers: Some(numbers), bytes: 0 };
            return Ok(None);
        };
        let is_far = is_first && part.is_far_behind(&self.view, behind.next, PASSED_SEGMENTS_MAX)?;
        if is_far && let Some(state) = self.skip(behind)? {
            return Ok(Some(state));
        }
        Ok(Some(self.state(behind, Some(&part))))
    }

    /// Leads a copy that reads objects past the records that are stored. None: its next record is not.
    fn skip(&mut self, behind: Behind) -> Result<Option<FollowMessage>> {
        let part = self.stored_part()?;
        let extent = self.extent()?;
        let leads = |part: &StoredPart| part.upto > behind.next.max(extent.first) && part.upto <= extent.next;
        let Some(part) = part.filter(leads) else { return Ok(None) };
        self.reader = None;
        let (next, first, time) = (part.upto, extent.first, part.time.max(behind.time));
        Ok(Some(self.state(Behind { raft: behind.raft.next(), next, first, time }, Some(&part))))
    }

    // ---- entries ----

    /// Adds entries with the next records.
    fn collect(&mut self, behind: Behind, bytes_max: usize, entries: &mut Vec<FollowEntry>) -> Result<()> {
        let mut entry = EntryBuilder::new(behind.raft.next());
        let (mut bytes, mut next) = (0, behind.next);
        loop {
            let from = next.max(self.view.positions.first());
            let coming = match self.batch_at(from) {
                Ok(Some(coming)) if coming.first == next => coming,
                Ok(_) => break,
                Err(error) => {
                    entries.extend(entry.build());
                    return Err(error);
                }
            };
            bytes += coming.bytes;
            let has_any = !entry.is_empty() || !entries.is_empty();
            if has_any && bytes > bytes_max {
                break;
            }
            if !entry.has_room(&coming) {
                entries.extend(entry.build());
                if entries.len() == BLOCKS_MAX {
                    return Ok(());
                }
            }
            let stored = self.reader_at(from).and_then(Reader::next_stored);
            let added = stored.and_then(|stored| {
                let Some(stored) = stored else { return Ok(()) };
                next = stored.last().next();
                entry.push(&stored)
            });
            if let Err(error) = added {
                self.reader = None;
                entries.extend(entry.build());
                return Err(error);
            }
        }
        entries.extend(entry.build());
        Ok(())
    }
}

/// Makes an entry of batches of one time.
struct EntryBuilder {
    raft: EntryIndex,
    first: Index,
    timestamp: Timestamp,
    crcs: Vec<u32>,
    records: u32,
    bytes: usize,
    pieces: Vec<Bytes>,
    /// Small batches behind the last piece.
    copied: BytesMut,
}

impl EntryBuilder {
    /// Begins entry `raft`.
    fn new(raft: EntryIndex) -> Self {
        Self {
            raft,
            first: Index(0),
            timestamp: Timestamp(0),
            crcs: Vec::new(),
            records: 0,
            bytes: 0,
            pieces: Vec::new(),
            copied: BytesMut::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.crcs.is_empty()
    }

    /// Whether the batch can be added to this entry.
    fn has_room(&self, batch: &NextBatch) -> bool {
        self.is_empty() || (self.timestamp == batch.timestamp && self.bytes + batch.bytes <= ENTRY_BYTES_MAX)
    }

    fn push(&mut self, batch: &StoredBatch) -> Result<()> {
        let damaged = |why| Error::new(ErrorKind::Corrupt, format!("record {}: {why}", batch.first()));
        let bytes = without_session(batch.bytes()).map_err(damaged)?;
        let BatchHeader { crc, .. } = BatchHeader::parse(&bytes).map_err(damaged)?;
        if self.is_empty() {
            (self.first, self.timestamp) = (batch.first(), batch.timestamp());
        }
        self.crcs.push(crc);
        self.records += batch.count();
        self.bytes += bytes.len();
        if bytes.len() > COPIED_BYTES_MAX {
            self.end_piece();
            self.pieces.push(bytes);
        } else {
            self.copied.extend_from_slice(&bytes);
        }
        Ok(())
    }

    fn end_piece(&mut self) {
        if !self.copied.is_empty() {
            self.pieces.push(self.copied.split().freeze());
        }
    }

    /// Returns the entry, and begins the next one. `None`: it has no batch.
    fn build(&mut self) -> Option<FollowEntry> {
        if self.is_empty() {
            return None;
        }
        self.end_piece();
        let built = std::mem::replace(self, Self::new(self.raft.next()));
        let header = BlockHeader {
            length: length_of(built.bytes),
            batch_count: built.crcs.len() as u32,
            record_count: built.records,
            body_digest: digest_of_batches(built.crcs),
            ..header(Kind::Data, built.raft, built.first, built.timestamp, &[])
        };
        Some(FollowEntry { header, body: built.pieces })
    }
}

/// The header of a block without records.
fn header(kind: Kind, raft: EntryIndex, next: Index, timestamp: Timestamp, body: &[u8]) -> BlockHeader {
    BlockHeader::without_records(kind, (raft, FIRST_TERM), next, timestamp, body)
}

/// The length of a block with a body of `body` bytes: batches, which are bounded, or less.
fn length_of(body: usize) -> u32 {
    (BLOCK_HEADER_BYTES + body) as u32
}

/// Whether the log has discarded records of the copy, and it is not behind that.
fn is_discarded(behind: &Behind, discarded: Index) -> bool {
    discarded > behind.first && discarded <= behind.next
}

/// The entry that discards the records before `first`.
fn discard(behind: &Behind, first: Index) -> FollowEntry {
    let body = Bytes::from(encode_command(Command::Discard { first }));
    let header = header(Kind::Command, behind.raft.next(), behind.next, behind.time, &body);
    FollowEntry { header, body: vec![body] }
}

/// The end of the copy after one more entry.
fn after(behind: Behind, entry: &FollowEntry) -> Behind {
    let FollowEntry { header, body } = entry;
    let discarded = match (header.kind, body.first()) {
        (Kind::Command, Some(body)) => discarded_by(body),
        _ => None,
    };
    Behind {
        raft: header.raft_index,
        next: header.next_record(),
        first: behind.first.max(discarded.unwrap_or_default()),
        time: header.timestamp,
    }
}

/// The first record that a command of this feed leaves.
fn discarded_by(body: &[u8]) -> Option<Index> {
    match parse_command(body) {
        Ok(Command::Discard { first }) => Some(first),
        _ => None,
    }
}

fn keeps_moving() -> Error {
    Error::new(ErrorKind::Unavailable, "the log's beginning keeps moving: retry, or use another replica")
}

fn lacks(next: Index) -> Error {
    let what = format!(
        "this source has no record {next}, and does not know that it was discarded: use another replica or copy, or retry"
    );
    Error::new(ErrorKind::Unavailable, what)
}

fn another_time(last: Index, here: Timestamp, there: Timestamp) -> Error {
    let what = format!(
        "the follower's last record {last} has time {there}, and this record has time {here} here: the follower has another \
         history; nothing was sent to it. Check each of them with `chiplog verify`"
    );
    Error::new(ErrorKind::Diverged, what)
}

fn within(next: Index, first: Index) -> Error {
    let what = format!(
        "the follower ends before record {next}, which is inside an append from record {first} on: the follower has another \
         history, or one of the two logs is damaged; nothing was sent to it. Check each of them with `chiplog verify`"
    );
    Error::new(ErrorKind::Diverged, what)
}

impl std::fmt::Debug for RecordFeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordFeed").field("log", &self.log).field("position", &self.position).finish()
    }
}
