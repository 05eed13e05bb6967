//! Entry feed: a feed of a whole log, or of a whole shared group. It returns committed entries in order, from an entry on, as
//! they are in the files; and a state to begin at where no entries lead there.
//!
//! ```text
//!  After(entry) ──> the same entry here? ──> entries ──> at the tail: wait
//!                        │ another: Diverged    │ gone (discarded): ──┐
//!  First, Index, Newest ─┴──────────────────────┴─────────────────────┴──> state ──> entries
//! ```
//!
//! Invariants:
//! - only committed entries are returned: a feed looks below `Segment::readable`, as readers do;
//! - every byte is checked before it is returned, so that damage here does not spread;
//! - between calls a feed holds no bytes of blocks in memory, in either read mode: many feeds cost little;
//! - an item is bounded by its bytes with the payload to which its entries refer: no payload is fetched that has no room in it;
//! - entries are returned without a gap: an entry that is missing, or whose payload is, was either discarded, and a state leads past it,
//!   or is damage.
//!
//! Must not know: who follows, the writer.

use crate::cluster::membership::Membership;
use crate::error::{Error, ErrorKind, Result};
use crate::follower::message::{FollowEntries, FollowEntry, FollowFrom, FollowMessage};
use crate::options::Options;
use crate::read::view::{LogView, Start};
use crate::record::batch::BatchHeader;
use crate::replica::state::sequencer::{Owner, Replayed, Sequencer};
use crate::replica::state::snapshot::FollowSnapshot;
use crate::replica::wire::raft_message::body_bytes;
use crate::replica::wire::repair_message::BLOCKS_MAX;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader};
use crate::store::format::references::{has_references, resolved_length};
use crate::store::objects::payloads::resolve_placed;
use crate::store::read::block_reader::Located;
use crate::store::read::cursor::Cursor;
use crate::store::read::entry_lookup::Archive;
use crate::store::read::run_cursor::{FoundRun, RunCursor};
use crate::store::read::run_directory::RunDirectories;
use crate::store::segment::Segment;
use crate::store::segment::objects::is_sorted_object;
use crate::types::{EntryIndex, Index, LogId, LogNumber, TERMS_APART, Term};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// How often a beginning that moves meanwhile is looked for; with the pause in between about a second in all.
const BEGINNINGS_MAX: u32 = 500;
const PAUSE: Duration = Duration::from_millis(2);
/// A copy that reads objects is fed entries that are stored from at most about this many segments.
pub(crate) const PASSED_SEGMENTS_MAX: usize = 4;

/// The committed entries of a log.
pub(crate) struct EntryFeed {
    view: LogView,
    archive: Archive,
    me: Owner,
    log: LogId,
    options: Options,
    /// The copy reads objects.
    skips_stored: bool,
    position: FeedPosition,
    /// The last committed entry, when the claim of a follower with more entries was looked at.
    looked: EntryIndex,
    cursor: Option<Cursor>,
    /// The next block, which the cursor has found and which was too large for the last call.
    kept: Option<Located>,
}

/// The position of a feed.
#[derive(Clone, Copy, Debug)]
enum FeedPosition {
    /// The next item is a state.
    Begins(Beginning),
    /// After an entry that the follower claims to have; it is still to be compared with the entry here.
    Claimed(EntryIndex, Term),
    /// After an entry of this log that lies far before what is stored: the next item is a state, if there is one.
    FarBehind(EntryIndex, Term),
    /// After an entry of this log.
    Behind(EntryIndex, Term),
}

#[derive(Clone, Copy, Debug)]
enum Beginning {
    Index(Index),
    Newest,
    /// To be looked up when the state is made, which may read a segment.
    At(Start),
}

/// The next item that a feed returns.
enum Coming {
    /// None: the follower has everything that is committed here.
    Nothing,
    /// A state to begin at.
    Beginning(Beginning),
    /// A state that leads past entries that are not here any more, from behind this one on.
    Jump(EntryIndex),
    /// A state that leads past entries that are stored, from this one on.
    Skip(EntryIndex, Term),
    /// The entries after this one.
    Entries { behind: EntryIndex },
}

/// The result of looking for an entry.
enum Found {
    Block(Located),
    /// The next entry was discarded here.
    Gone,
}

impl EntryFeed {
    /// A feed of the log `log` that begins at `from`.
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
        let position = match from {
            FollowFrom::First => FeedPosition::Begins(Beginning::At(Start::First)),
            FollowFrom::Newest => FeedPosition::Begins(Beginning::Newest),
            FollowFrom::Last(count) => FeedPosition::Begins(Beginning::At(Start::Last(count))),
            FollowFrom::Timestamp(time) => FeedPosition::Begins(Beginning::At(Start::Timestamp(time))),
            FollowFrom::Index(index) => {
                view.check(index)?;
                FeedPosition::Begins(Beginning::Index(index))
            }
            FollowFrom::After { log: wanted, .. } if wanted != log => {
                let what = format!("this is log {log}, not log {wanted}");
                return Err(Error::new(ErrorKind::Diverged, what));
            }
            FollowFrom::After { raft, term, .. } => FeedPosition::Claimed(raft, term),
            FollowFrom::AfterRecord { .. } => {
                let what = "a copy of one named log cannot continue with the entries of a whole log";
                return Err(Error::new(ErrorKind::Diverged, what));
            }
        };
        let archive = Archive::new(view.segments.clone());
        let skips_stored = false;
        let looked = EntryIndex(0);
        Ok(Self { view, archive, me, log, options, skips_stored, position, looked, cursor: None, kept: None })
    }

    /// See [`FollowSource::skip_stored`](super::source::FollowSource::skip_stored).
    pub(crate) fn skip_stored(&mut self) {
        self.skips_stored = true;
    }

    /// See [`FollowSource::next`](super::source::FollowSource::next).
    pub(crate) fn next(&mut self, bytes_max: usize) -> Result<Option<FollowMessage>> {
        loop {
            let raft = match self.coming()? {
                Coming::Nothing => return Ok(None),
                Coming::Beginning(beginning) => return self.begin(beginning).map(Some),
                Coming::Jump(raft) => {
                    // The oldest entry here can lie far before what is stored.
                    if self.skips_stored
                        && let Some(state) = self.state_behind_objects()?.filter(|state| state.raft() > raft)
                    {
                        return Ok(Some(self.hand_out_state(state)));
                    }
                    return self.jump().map(Some);
                }
                Coming::Skip(raft, term) => {
                    self.position = FeedPosition::Behind(raft, term);
                    match self.state_behind_objects()?.filter(|state| state.raft() > raft) {
                        Some(state) => return Ok(Some(self.hand_out_state(state))),
                        None => continue,
                    }
                }
                Coming::Entries { behind } => behind,
            };
            match self.collect(raft.next(), bytes_max) {
                Ok(entries) if entries.is_empty() => continue, // discarded meanwhile
                Ok(entries) => return Ok(Some(self.hand_out(entries))),
                Err(error) if error.kind() == ErrorKind::NotFound => match self.state_past_discarded(raft)? {
                    Some(state) => return Ok(Some(self.hand_out_state(state))),
                    None => self.after(raft, error)?,
                },
                Err(error) => self.after(raft, error)?,
            }
        }
    }

    /// See [`FollowSource::next_bytes`](super::source::FollowSource::next_bytes).
    pub(crate) fn next_bytes(&mut self) -> Result<Option<usize>> {
        loop {
            let Coming::Entries { behind } = self.coming()? else { return Ok(None) };
            match self.find(behind.next()) {
                Ok(Found::Block(found)) => {
                    let bytes = match self.may_resolve() {
                        true => self.read(&found).map(|entry| whole_bytes(&entry)),
                        false => Ok(body_bytes(&found.header)),
                    };
                    self.kept = Some(found);
                    self.release();
                    match bytes {
                        Ok(bytes) => return Ok(Some(bytes)),
                        Err(error) => self.after(behind, error)?,
                    }
                }
                Ok(Found::Gone) => {}
                Err(error) => self.after(behind, error)?,
            }
        }
    }

    /// See [`FollowSource::is_in_files`](super::source::FollowSource::is_in_files).
    pub(crate) fn is_in_files(&self) -> bool {
        matches!(self.position, FeedPosition::Behind(raft, _) if !self.view.segments.is_entry_before_files(raft))
    }

    /// Determines the next item. A position that the follower claims is compared with this log first.
    fn coming(&mut self) -> Result<Coming> {
        loop {
            let (raft, term) = match self.position {
                FeedPosition::Begins(beginning) => return Ok(Coming::Beginning(beginning)),
                FeedPosition::Claimed(raft, term) if self.committed() < raft => {
                    self.looked = self.committed();
                    if self.looked >= raft {
                        continue;
                    }
                    self.check_not_shorter(raft, term)?;
                    return Ok(Coming::Nothing);
                }
                FeedPosition::FarBehind(raft, term) => return Ok(Coming::Skip(raft, term)),
                FeedPosition::Claimed(raft, term) | FeedPosition::Behind(raft, term) => (raft, term),
            };
            let first = self.archive.first();
            if first.raft > raft {
                // The entry that would be compared is gone.
                // The copy can be terms ahead of the backup: elections never reach half of what a restore adds.
                let restored = raft > EntryIndex(0) && first.term.0.saturating_sub(term.0) >= TERMS_APART / 2;
                if restored && matches!(self.position, FeedPosition::Claimed(..)) {
                    return Err(restored_since(raft, first.term, term));
                }
                return Ok(Coming::Jump(raft));
            }
            if let FeedPosition::Claimed(..) = self.position {
                match self.archive.term(raft) {
                    Ok(Some(here)) if here == term => {
                        self.position = match self.skips_stored && self.is_far_behind_objects(raft) {
                            true => FeedPosition::FarBehind(raft, term),
                            false => FeedPosition::Behind(raft, term),
                        }
                    }
                    Ok(Some(here)) => return Err(diverged(raft, here, term)),
                    Ok(None) => self.check_gone(raft, "a committed entry is missing")?,
                    Err(error) => self.after(raft, error)?,
                }
                continue;
            }
            return Ok(if self.committed() > raft {
                Coming::Entries { behind: raft }
            } else {
                Coming::Nothing
            });
        }
    }

    /// Entries of a copy are committed. If this log has a later term before the copy's last one, the entry is not of this history: the log was
    /// restored with its old id, to an earlier end.
    fn check_not_shorter(&self, claimed: EntryIndex, term: Term) -> Result<()> {
        match self.archive.term(self.looked) {
            Ok(Some(here)) if here > term => Err(restored_since(claimed, here, term)),
            _ => Ok(()), // it is compared once it is there
        }
    }

    /// See [`FollowSource::resume_point`](super::source::FollowSource::resume_point).
    pub(crate) fn resume_point(&self) -> FollowFrom {
        match self.position {
            FeedPosition::Begins(Beginning::Index(index)) => FollowFrom::Index(index),
            FeedPosition::Begins(Beginning::Newest) => FollowFrom::Newest,
            FeedPosition::Begins(Beginning::At(start)) => begins(start),
            FeedPosition::Claimed(raft, term)
            | FeedPosition::FarBehind(raft, term)
            | FeedPosition::Behind(raft, term) => FollowFrom::After { log: self.log, raft, term },
        }
    }

    /// See [`FollowSource::position`](super::source::FollowSource::position).
    pub(crate) fn position(&self) -> Option<(EntryIndex, Term)> {
        match self.position {
            FeedPosition::Begins(_) => None,
            FeedPosition::Claimed(raft, term)
            | FeedPosition::FarBehind(raft, term)
            | FeedPosition::Behind(raft, term) => Some((raft, term)),
        }
    }

    /// The source's last committed entry.
    pub(crate) fn committed(&self) -> EntryIndex {
        if planted!(62) {
            return EntryIndex(u64::MAX >> 2);
        }
        self.view.positions.entry()
    }

    /// The first record that the log has not discarded; 0 if this copy of the log can begin later.
    fn kept(&self) -> Index {
        if self.me == Owner::Follower { Index(0) } else { self.view.positions.first() }
    }

    /// The entry that has to be committed before there is an item to return. `None`: there is one now.
    pub(crate) fn awaited(&self) -> Option<EntryIndex> {
        match self.position {
            FeedPosition::Begins(_) | FeedPosition::FarBehind(..) => None,
            // Each entry that the claim was not compared with can be of a later term, and then this log is another history.
            FeedPosition::Claimed(..) => Some(self.looked.next()),
            FeedPosition::Behind(raft, _) => Some(raft.next()),
        }
    }

    // ---- states ----

    fn check_in_files(&self, index: Index) -> Result<()> {
        let first = self.view.segments.first_in_files();
        if index >= first {
            return Ok(());
        }
        let what = format!(
            "records before {first} are in the object store alone, and a copy is made of files: begin with record {first} or a \
             later one, or make a backup of the objects"
        );
        Err(Error::new(ErrorKind::Unavailable, what))
    }

    fn begin(&mut self, beginning: Beginning) -> Result<FollowMessage> {
        if self.skips_stored && self.has_objects()? {
            return match self.state_behind_objects()? {
                Some(state) => Ok(self.hand_out_state(state)),
                None => self.jump(),
            };
        }
        for n in 0..BEGINNINGS_MAX {
            if n > 0 {
                std::thread::sleep(PAUSE); // a jump or a discard is written and not published yet
            }
            let committed = self.committed();
            let index = match beginning {
                Beginning::Newest => None,
                Beginning::Index(index) => Some(index),
                Beginning::At(start) => {
                    let index = self.view.resolve(start).map_err(|error| self.suspect(error))?;
                    // A copy is made of files: it begins with the first record that is in one here.
                    Some(index.max(self.view.segments.first_in_files()))
                }
            };
            let found = match index {
                Some(index) => self.entry_before(index),
                None => Ok(None),
            };
            let state = found.and_then(|found| self.state_after(found.unwrap_or(committed)));
            match state {
                Ok(Some(state)) => return Ok(self.hand_out_state(state)),
                // Discarded meanwhile; or committed a moment ago, in a block that the next try finds.
                Ok(None) => {}
                Err(error) => match index {
                    Some(index) if index < self.view.positions.first() => {}
                    _ => return Err(self.suspect(error)),
                },
            }
            if let Beginning::Index(index) = beginning {
                self.view.check(index)?;
                self.check_in_files(index)?;
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            "the log's beginning keeps moving: retry, or use another replica",
        ))
    }

    /// Whether the log has objects, or is to have some. The first one will begin with the log's first record.
    fn has_objects(&self) -> Result<bool> {
        if !self.view.segments.objects().is_empty() {
            return Ok(true);
        }
        let state = self.state_after(self.committed()).map_err(|error| self.suspect(error))?;
        Ok(state.is_some_and(|state| state.expects_objects()))
    }

    /// The state after the last entry that is stored, for a copy that reads objects. None: it is not in the files here, or does
    /// not tell of objects yet, because the first one was cut later.
    fn state_behind_objects(&self) -> Result<Option<FollowSnapshot>> {
        let stored = self.view.segments.objects().upto();
        let state = self.state_after(stored).map_err(|error| self.suspect(error))?;
        Ok(state.filter(FollowSnapshot::has_objects))
    }

    /// Whether so much of the entries behind `raft` is stored that a copy that reads objects does better without them: they could
    /// be more than it has room for.
    fn is_far_behind_objects(&self, raft: EntryIndex) -> bool {
        let stored = self.view.segments.objects().upto();
        let passed = |segment: &&Arc<Segment>| segment.base.raft > raft && segment.base.raft <= stored;
        self.view.segments.snapshot().iter().filter(passed).count() > PASSED_SEGMENTS_MAX
    }

    /// The entry before the one that holds record `index`; `None` if that one is still to come.
    fn entry_before(&self, index: Index) -> Result<Option<EntryIndex>> {
        if index > self.view.positions.committed() {
            return Ok(None);
        }
        let mut cursor = self.view.cursor(index)?;
        let found = cursor.find(|h| h.kind.has_records() && h.next_record() > index)?;
        match found.filter(|found| found.header.first <= index) {
            Some(found) => Ok(Some(EntryIndex(found.header.raft_index.0.saturating_sub(1)))),
            None => Err(Error::new(ErrorKind::Corrupt, format!("no block holds record {index}"))),
        }
    }

    /// The state after all entries through `raft`. `None`: those entries were discarded.
    fn state_after(&self, raft: EntryIndex) -> Result<Option<FollowSnapshot>> {
        let sequencer = Sequencer::new(self.me, Membership::default(), &self.options);
        let mut replayed = Replayed { sequencer, options: &self.options };
        if !self.archive.replay(raft, raft, &mut replayed)? {
            return Ok(None);
        }
        let opening = replayed.sequencer.opening();
        let body = Bytes::from(opening.body.concat());
        let (log, committed, kept) = (self.log, self.committed(), self.kept());
        Ok(Some(FollowSnapshot { log, committed, kept, header: opening.header, body }))
    }

    /// A state that leads past entries behind `raft` whose records are discarded. They are in the files here as long as their segment is,
    /// and their payload is nowhere. None: there are no such entries.
    fn state_past_discarded(&self, raft: EntryIndex) -> Result<Option<FollowSnapshot>> {
        if self.skips_stored
            && let Some(state) = self.state_behind_objects()?.filter(|state| state.raft() > raft)
        {
            return Ok(Some(state));
        }
        let (first, committed) = (self.view.positions.first(), self.committed());
        let before = self.entry_before(first).map_err(|error| self.suspect(error))?.unwrap_or(committed);
        if before <= raft {
            return Ok(None);
        }
        self.state_after(before).map_err(|error| self.suspect(error))
    }

    /// Returns the state at this log's beginning: the follower's next entry was discarded.
    fn jump(&mut self) -> Result<FollowMessage> {
        let (header, body) = self.archive.oldest_opening().map_err(|error| self.suspect(error))?;
        let (log, committed, kept) = (self.log, self.committed(), self.kept());
        let header = BlockHeader { durable_upto: 0, ..header };
        let state = FollowSnapshot { log, committed, kept, header, body };
        if self.skips_stored {
            self.check_stored(&state)?;
        }
        Ok(self.hand_out_state(state))
    }

    /// Checks that a copy that reads objects lacks no record if it jumps to `state`. A copy of files alone can have removed
    /// records that no object has yet.
    fn check_stored(&self, state: &FollowSnapshot) -> Result<()> {
        let stored = self.view.segments.objects().upto();
        if state.raft() <= stored || state.next() <= state.kept || !state.expects_objects() {
            return Ok(());
        }
        let what = format!(
            "this source has no entries up to {}, and knows of objects up to entry {stored} alone: use another replica or copy, \
             or retry",
            state.raft()
        );
        Err(Error::new(ErrorKind::Unavailable, what))
    }

    fn hand_out_state(&mut self, state: FollowSnapshot) -> FollowMessage {
        (self.cursor, self.kept) = (None, None);
        self.position = FeedPosition::Behind(state.raft(), state.term());
        FollowMessage::State(state)
    }

    // ---- entries ----

    fn hand_out(&mut self, entries: Vec<FollowEntry>) -> FollowMessage {
        if let Some(last) = entries.last() {
            self.position = FeedPosition::Behind(last.raft(), last.term());
        }
        self.release();
        let (log, committed, kept) = (self.log, self.committed(), self.kept());
        FollowMessage::Entries(FollowEntries { log, committed, kept, entries })
    }

    /// Returns entries from `next` on, which is committed. Empty: it was discarded.
    fn collect(&mut self, mut next: EntryIndex, bytes_max: usize) -> Result<Vec<FollowEntry>> {
        let committed = self.committed();
        let mut entries = Vec::new();
        let mut bytes = 0;
        while next <= committed && entries.len() < BLOCKS_MAX {
            let found = match self.find(next) {
                Ok(Found::Block(found)) => found,
                Ok(Found::Gone) => break,
                // The entries that were found before are sound, and the next call meets the damage again.
                Err(_) if !entries.is_empty() => break,
                Err(error) => return Err(error),
            };
            let is_full = |more: usize| bytes + more > bytes_max && !entries.is_empty();
            if is_full(body_bytes(&found.header)) {
                self.kept = Some(found);
                break;
            }
            let loaded = match self.read(&found) {
                // With its payload, which is not fetched yet, it may be far larger.
                Ok(entry) if is_full(whole_bytes(&entry)) => {
                    self.kept = Some(found);
                    break;
                }
                Ok(entry) => self.resolve(entry),
                Err(error) => Err(error),
            };
            match loaded {
                Ok(entry) => {
                    bytes += entry.body.iter().map(Bytes::len).sum::<usize>();
                    entries.push(entry);
                }
                Err(_) if !entries.is_empty() => {
                    self.cursor = None;
                    break;
                }
                Err(error) => return Err(error),
            }
            next = next.next();
        }
        Ok(entries)
    }

    /// Finds the block of entry `next`.
    fn find(&mut self, next: EntryIndex) -> Result<Found> {
        if let Some(kept) = self.kept.take().filter(|kept| kept.header.raft_index == next) {
            return Ok(Found::Block(kept));
        }
        let cursor = match &mut self.cursor {
            Some(cursor) => cursor,
            none => {
                let Some(segment) = self.view.segments.holding_entry(next) else { return Ok(Found::Gone) };
                let data = self.view.segments.open(&segment)?;
                let offset = data.seek(|e| e.raft_index < next)?;
                none.insert(Cursor::new(self.view.segments.clone(), data, offset, self.view.prefetch))
            }
        };
        match cursor.find(|h| h.kind.is_entry() && h.raft_index >= next)? {
            Some(found) if found.header.raft_index == next => Ok(Found::Block(found)),
            // Segments have left the log: either it continues after them, or this cursor is in one of them.
            other => {
                let offset = other.map_or(0, |found| found.offset);
                let error = cursor.corrupt(offset, "entries are missing before this block");
                self.cursor = None;
                if self.archive.first().raft >= next { Ok(Found::Gone) } else { Err(error) }
            }
        }
    }

    /// Whether entries here may refer to payload that can be fetched.
    fn may_resolve(&self) -> bool {
        self.options.vault.is_some()
    }

    /// Reads a block as it is in the files.
    fn read(&mut self, found: &Located) -> Result<(BlockHeader, Bytes)> {
        let Some(cursor) = &mut self.cursor else {
            return Err(Error::new(ErrorKind::Corrupt, "no segment holds the block"));
        };
        let block = cursor.load_whole(found)?;
        let body = block.slice(BLOCK_HEADER_BYTES..block.len()).apart_from(block.len()).into_bytes();
        Ok((BlockHeader { durable_upto: 0, ..found.header }, body))
    }

    /// An entry of a block that was read. Blocks for the network if it refers to payload slices.
    fn resolve(&self, (header, body): (BlockHeader, Bytes)) -> Result<FollowEntry> {
        let (header, body) = match has_references(&header, &body) {
            // A copy may have no object store: it gets the batches themselves, as objects have them.
            true => self.with_payload(header, body)?,
            false => (header, body),
        };
        Ok(FollowEntry { header, body: if body.is_empty() { Vec::new() } else { vec![body] } })
    }

    /// A block with the batches to which it refers: as the object has it that has its entry, else from payload slices.
    ///
    /// # Errors
    /// `NotFound`: its records are discarded, and its payload is gone. Those of the object store, and of reading an object.
    fn with_payload(&self, header: BlockHeader, body: Bytes) -> Result<(BlockHeader, Bytes)> {
        let segments = &self.view.segments;
        let Some(object) = segments.objects().holding(header.first)? else {
            let is_discarded = header.next_record() <= self.view.positions.first();
            let found = segments.objects().payloads()?.block(header, body);
            return found.map_err(|error| match error.kind() {
                ErrorKind::NotFound if !is_discarded => Error::new(ErrorKind::Unavailable, error.to_string()),
                _ => error,
            });
        };
        if is_sorted_object(&object) {
            return self.with_sorted_payload(&object, header, body);
        }
        let data = segments.open(&object)?;
        let offset = data.seek(|e| e.raft_index < header.raft_index)?;
        let mut cursor = Cursor::new(segments.clone(), data, offset, 0);
        let found = cursor.find(|h| h.kind.is_entry() && h.raft_index >= header.raft_index)?;
        let Some(found) = found.filter(|found| found.header.raft_index == header.raft_index) else {
            return Err(cursor.corrupt(offset, "the object lacks an entry"));
        };
        let block = cursor.load_whole(&found)?;
        let body = block.slice(BLOCK_HEADER_BYTES..block.len()).into_bytes();
        Ok((BlockHeader { durable_upto: 0, ..found.header }, body))
    }

    /// The same for a mixed block, in whose object records are log by log.
    fn with_sorted_payload(
        &self,
        object: &Arc<Segment>,
        header: BlockHeader,
        body: Bytes,
    ) -> Result<(BlockHeader, Bytes)> {
        let mut rest: Option<RunRest> = None;
        resolve_placed(header, body, |(log, first), of, reference| {
            let known =
                rest.take().filter(|run| (run.log, run.next) == (log, first) && !run.batches.is_empty());
            let mut run = match known {
                Some(run) => run,
                None => RunRest::find(&self.view.runs, object, log, first)?,
            };
            loop {
                let (here, offset) = (run.next, run.offset);
                // Damaged bytes leave the cache.
                let corrupt = |run: &RunRest, why| run.cursor.corrupt(offset, why);
                let found = BatchHeader::parse(&run.batches).map_err(|why| corrupt(&run, why))?;
                let batch = run.batches.split_to(found.length as usize);
                (run.next, run.offset) = (here.plus(found.count.into()), offset + batch.len());
                if here >= first {
                    reference.check(of, &batch).map_err(|why| corrupt(&run, why))?;
                    rest = Some(run);
                    return Ok(batch);
                }
            }
        })
    }

    /// Releases the bytes that were read without a mapping.
    fn release(&mut self) {
        if let Some(cursor) = &mut self.cursor {
            cursor.release();
        }
    }

    /// Reading after entry `raft` has failed. Returns the error for the follower, unless the entry was discarded.
    fn after(&mut self, raft: EntryIndex, error: Error) -> Result<()> {
        (self.cursor, self.kept) = (None, None);
        if self.archive.first().raft > raft { Ok(()) } else { Err(self.suspect(error)) }
    }

    /// Checks that entry `raft`, which is not here, was discarded.
    fn check_gone(&self, raft: EntryIndex, why: &str) -> Result<()> {
        if self.archive.first().raft > raft {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Corrupt, format!("entry {raft}: {why}")))
    }

    /// Reports the damage, so that repair looks there at once and fetches the entry from other replicas, if there are
    /// any.
    fn suspect(&self, error: Error) -> Error {
        self.view.segments.met(error, None)
    }
}

impl std::fmt::Debug for EntryFeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EntryFeed").field("log", &self.log).field("position", &self.position).finish()
    }
}

/// The rest of a run in an object whose records are log by log.
struct RunRest {
    log: LogNumber,
    /// The first record of the next batch.
    next: Index,
    batches: Bytes,
    /// Where they begin in the object.
    offset: usize,
    cursor: RunCursor,
}

impl RunRest {
    /// From the beginning of the run with record `first` on.
    fn find(runs: &Arc<RunDirectories>, object: &Arc<Segment>, log: LogNumber, first: Index) -> Result<Self> {
        let mut cursor = RunCursor::new(runs.clone(), log);
        let FoundRun { bytes, offset, first: next, .. } = cursor.find_in(object, first)?;
        Ok(Self { log, next, batches: bytes.into_bytes(), offset, cursor })
    }
}

/// The bytes of a block's body once the batches that it refers to are in it.
fn whole_bytes((header, body): &(BlockHeader, Bytes)) -> usize {
    resolved_length(header, body) - BLOCK_HEADER_BYTES
}

/// The beginning of a new copy at `start`.
pub(crate) fn begins(start: Start) -> FollowFrom {
    match start {
        Start::First => FollowFrom::First,
        Start::Index(index) => FollowFrom::Index(index),
        Start::Last(count) => FollowFrom::Last(count),
        Start::Timestamp(time) => FollowFrom::Timestamp(time),
        Start::Next => FollowFrom::Newest,
    }
}

fn restored_since(raft: EntryIndex, here: Term, there: Term) -> Error {
    let what = format!(
        "entry {raft} has term {there} at the follower, and the entries here are of term {here}: this log was restored with its old id \
         since, and the follower may have entries that it left out; nothing was sent to it. Begin with a new copy"
    );
    Error::new(ErrorKind::Diverged, what)
}

fn diverged(raft: EntryIndex, here: Term, there: Term) -> Error {
    let what = format!(
        "entry {raft} has term {there} at the follower and term {here} here: the follower has another history, or one \
         of the two logs is damaged; nothing was sent to it. Check each of them with `chiplog verify`"
    );
    Error::new(ErrorKind::Diverged, what)
}
