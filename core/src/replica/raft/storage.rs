//! The log as raft sees it: the newest entries from memory, older ones from the store's files.
//!
//! ```text
//!  base        archive (files)            recent (memory)            last
//!   |  entries that are written ... | entries, some not yet written |
//! ```
//!
//! Invariants:
//! - `recent` has no gaps and ends with the last entry; all entries before its first one are written;
//! - an entry leaves `recent` only once it is written, and its body only when no peer is likely to need it;
//! - a snapshot skips no entry that is neither discarded nor in an object that is stored.
//!
//! A failed read does not panic: raft gets the error that the entries are temporarily unavailable, and the error is
//! kept for the node.

use super::openings::Openings;
use crate::cluster::membership::{Member, Membership};
use crate::error::{Error, ErrorKind, Result};
use crate::replica::wire::raft_message::{body_bytes, conf_state, entry};
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::segment::{HardState, Opening};
use crate::store::read::entry_lookup::Archive;
use crate::store::segment::Base;
use crate::types::{EntryIndex, NodeId, Term};
use bytes::{BufMut, Bytes, BytesMut};
use raft::eraftpb::{Entry, Snapshot};
use raft::storage::GetEntriesContext;
use raft::{RaftState, StorageError};
use std::cell::RefCell;
use std::collections::VecDeque;

/// The maximum bytes of bodies kept in memory for followers: the newest ones.
const RECENT_BYTES_MAX: usize = 16 << 20;
/// The maximum number of entries kept in memory: raft often reads their terms.
const RECENT_ENTRIES_MAX: usize = 4096;

/// An entry in memory.
#[derive(Debug)]
struct Recent {
    header: BlockHeader,
    /// None: the body has to be read from the files.
    body: Option<Vec<Bytes>>,
}

/// The log's entries.
#[derive(Debug)]
pub(crate) struct Entries {
    archive: Archive,
    /// The position before the first entry.
    base: Base,
    recent: VecDeque<Recent>,
    recent_bytes: usize,
    /// The last entry that is written.
    written: EntryIndex,
    /// Whether bodies are kept for peers. A log on its own keeps none.
    keep_bodies: bool,
    /// Replicas that are not sent what is stored.
    pub(super) openings: Openings,
    start: (HardState, Membership),
    failure: RefCell<Option<Error>>,
}

impl Entries {
    /// A log whose entries up to `end` are all in the files.
    pub(crate) fn new(archive: Archive, end: Base, state: HardState, membership: Membership) -> Self {
        let base = archive.first();
        let mut entries = Self {
            archive,
            base,
            recent: VecDeque::new(),
            recent_bytes: 0,
            written: end.raft,
            keep_bodies: false,
            openings: Openings::default(),
            start: (state, membership),
            failure: RefCell::new(None),
        };
        entries.end_at(end);
        entries
    }

    /// Drops all entries from memory. Only the position of the last one is kept.
    fn end_at(&mut self, end: Base) {
        self.recent.clear();
        self.recent_bytes = 0;
        if end.raft > self.base.raft {
            self.recent.push_back(Recent { header: header_at(end), body: None });
        }
    }

    pub(crate) fn keep_bodies(&mut self, keep: bool) {
        self.keep_bodies = keep;
    }

    /// The bytes of the entries that a replica can skip whose last entry is `last`. None: it does not lack all entries of a segment that
    /// are not behind `stored`.
    pub(super) fn can_skip(&self, stored: EntryIndex, last: EntryIndex) -> Option<u64> {
        self.archive.can_skip(stored, last)
    }

    /// Whether this replica can be sent an opening instead of the entries that it lacks.
    pub(super) fn has_opening_for(&self, node: NodeId) -> bool {
        let is_new = self.openings.last_of(node).is_none_or(|last| last.0 == 0);
        let found = if is_new { self.snapshot_for(node.0) } else { self.opening_for(node.0) };
        found.is_ok_and(|snapshot| snapshot.is_some())
    }

    /// The opening behind which a replica begins that is not sent what is stored. None: there is none, or nothing is decided.
    fn opening_for(&self, node: u64) -> Result<Option<Snapshot>> {
        let Some((last, upto)) = self.openings.decided(node) else { return Ok(None) };
        let found = self.archive.newest_opening(upto, last)?.filter(|(_, opening)| is_whole(opening));
        Ok(found.and_then(|(header, opening)| snapshot_of(&header, &opening)))
    }

    /// The opening behind which a replica begins that lacks entries. None: nothing was ever discarded.
    fn snapshot_for(&self, node: u64) -> Result<Option<Snapshot>> {
        match self.opening_for(node) {
            Ok(None) if self.openings.undecided().contains(&NodeId(node)) => return Ok(None),
            Ok(None) => {}
            Ok(Some(snapshot)) => return Ok(Some(snapshot)),
            Err(error) => self.note(error),
        }
        let (header, opening) = self.archive.oldest_opening()?;
        // This replica's own snapshot may not be written yet.
        Ok(if header.raft_index == self.base.raft { snapshot_of(&header, &opening) } else { None })
    }

    /// Adds the next entry, which is to be written.
    pub(crate) fn push(&mut self, header: BlockHeader, body: &[Bytes]) {
        assert_eq!(header.raft_index, self.last().next(), "entries have no gaps");
        let body = self.keep_bodies.then(|| body.to_vec());
        self.recent_bytes += body.as_ref().map_or(0, |_| body_bytes(&header));
        self.recent.push_back(Recent { header, body });
    }

    /// Entries up to `raft` are written, so they may be dropped from memory.
    pub(crate) fn written(&mut self, raft: EntryIndex) {
        self.written = raft;
        while self.recent_bytes > RECENT_BYTES_MAX || self.recent.len() > RECENT_ENTRIES_MAX {
            match self.recent.front() {
                Some(oldest) if oldest.header.raft_index <= raft && self.recent.len() > 1 => {
                    self.recent_bytes -= oldest.body.as_ref().map_or(0, |_| body_bytes(&oldest.header));
                    self.recent.pop_front();
                }
                _ => break,
            }
        }
    }

    /// Truncates the entries after `end`.
    pub(crate) fn truncate(&mut self, end: Base) {
        while self.recent.back().is_some_and(|r| r.header.raft_index > end.raft) {
            if let Some(Recent { header, body: Some(_) }) = self.recent.pop_back() {
                self.recent_bytes -= body_bytes(&header);
            }
        }
        if self.recent.is_empty() {
            self.end_at(end);
        }
        self.written = self.written.min(end.raft);
    }

    /// Drops all entries. The log continues after `base`.
    pub(crate) fn jump(&mut self, base: Base) {
        self.base = base;
        self.written = base.raft;
        self.end_at(base);
    }

    /// Files were removed: entries up to `base` are no longer available.
    pub(crate) fn dropped_to(&mut self, base: Base) {
        if base.raft <= self.base.raft {
            return;
        }
        self.base = base;
        while self.recent.front().is_some_and(|r| r.header.raft_index <= base.raft) {
            if let Some(Recent { header, body: Some(_) }) = self.recent.pop_front() {
                self.recent_bytes -= body_bytes(&header);
            }
        }
    }

    pub(crate) fn last(&self) -> EntryIndex {
        self.recent.back().map_or(self.base.raft, |r| r.header.raft_index)
    }

    /// The first error of a read since the last call.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.failure.borrow_mut().take()
    }

    /// The entries in the files.
    pub(super) fn archive(&self) -> &Archive {
        &self.archive
    }

    /// Keeps the error of a read for the node.
    pub(super) fn note(&self, error: Error) {
        // The repair logs damage, once for each place.
        if error.kind() != ErrorKind::Corrupt {
            tracing::error!(%error, "an entry of the log cannot be read");
        }
        self.failure.borrow_mut().get_or_insert(error);
    }

    fn recent(&self, raft: EntryIndex) -> Option<&Recent> {
        let first = self.recent.front()?.header.raft_index;
        self.recent.get(usize::try_from(raft.0.checked_sub(first.0)?).ok()?)
    }

    /// The part of an entry that is in memory, for checks.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn in_memory(&self, raft: EntryIndex) -> Option<(BlockHeader, Option<Vec<Bytes>>)> {
        let Recent { header, body } = self.recent(raft).filter(|r| r.header.length > 0)?;
        Some((*header, body.clone()))
    }

    /// The body of the entry `raft` of the term `term`.
    ///
    /// # Errors
    /// The log has no such entry, or it cannot be read.
    pub(crate) fn body(&self, raft: EntryIndex, term: Term) -> Result<Vec<Bytes>> {
        if let Some(Recent { header, body: Some(body) }) = self.recent(raft)
            && header.term == term
        {
            return Ok(body.clone());
        }
        match self.archive.body(raft)? {
            Some((header, body)) if header.term == term || planted!(40) => Ok(vec![body]),
            _ => Err(Error::new(ErrorKind::NotFound, format!("the log has no entry {raft} of term {term}"))),
        }
    }

    /// The term of an entry, or of the base.
    fn term_of(&self, raft: EntryIndex) -> raft::Result<Term> {
        if raft == self.base.raft {
            return Ok(self.base.term);
        }
        if let Some(recent) = self.recent(raft) {
            return Ok(recent.header.term);
        }
        if raft < self.base.raft {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        match self.archive.term(raft) {
            Ok(Some(term)) => Ok(term),
            Ok(None) => Err(raft::Error::Store(StorageError::Unavailable)),
            Err(error) => {
                self.note(error);
                Err(raft::Error::Store(StorageError::Unavailable))
            }
        }
    }

    fn range(&self, low: EntryIndex, high: EntryIndex, max: u64) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let mut bytes = 0u64;
        if self.recent(low).is_none_or(|r| r.header.length == 0) {
            // If only the position of the first entry in memory is known, it is read from the files as well.
            let upto = self.recent.front().map_or(high, |r| match r.header.length {
                0 => r.header.raft_index.next().min(high),
                _ => r.header.raft_index.min(high),
            });
            for header in self.archive.headers(low, upto, max)? {
                let body = || match header.kind {
                    Kind::Configuration => self.archive.body(header.raft_index).map(|b| b.map(|(_, b)| b)),
                    _ => Ok(None),
                };
                let body = body()?.unwrap_or_default();
                entries.push(entry(&header, || body));
            }
            return Ok(entries);
        }
        for index in low.0..high.0 {
            let Some(Recent { header, body }) = self.recent(EntryIndex(index)) else { break };
            bytes += u64::from(header.length);
            if bytes > max && !entries.is_empty() {
                break;
            }
            let body = match (header.kind, body) {
                (Kind::Configuration, None) => {
                    self.archive.body(header.raft_index)?.map(|(_, b)| b).unwrap_or_default()
                }
                (Kind::Configuration, Some(pieces)) => pieces.first().cloned().unwrap_or_default(),
                _ => Bytes::new(),
            };
            entries.push(entry(header, || body));
        }
        Ok(entries)
    }
}

/// A header for an entry of which only the position is known: its length is 0.
fn header_at(end: Base) -> BlockHeader {
    BlockHeader {
        length: 0,
        batch_count: 0,
        raft_index: end.raft,
        term: end.term,
        first: end.next,
        timestamp: crate::types::Timestamp(0),
        record_count: 0,
        durable_upto: 0,
        body_digest: 0,
        kind: Kind::NoOp,
    }
}

/// Whether a replica can begin with this opening, although there are entries before it: it says that there are objects, and which
/// voters there are.
fn is_whole(opening: &[u8]) -> bool {
    let has_objects = Opening::has_objects(opening).unwrap_or_default();
    let members = || Membership::decode(&Opening::parse(opening).ok()?.configuration).ok();
    has_objects && members().is_some_and(|members| members.members().any(Member::is_voter))
}

/// The snapshot that an opening is. None: there is no entry before it, or it cannot be read.
fn snapshot_of(header: &BlockHeader, opening: &[u8]) -> Option<Snapshot> {
    let membership = Membership::decode(&Opening::parse(opening).ok()?.configuration).ok()?;
    let mut snapshot = Snapshot { data: encode_snapshot(header, opening), ..Snapshot::default() };
    let metadata = snapshot.mut_metadata();
    metadata.index = header.raft_index.0;
    metadata.term = header.term.0;
    metadata.set_conf_state(conf_state(&membership));
    (header.raft_index.0 > 0).then_some(snapshot)
}

/// The contents of a positions-only snapshot: the next record's index and the opening block of a segment.
pub(crate) fn encode_snapshot(header: &BlockHeader, opening: &[u8]) -> Bytes {
    let mut b = BytesMut::with_capacity(16 + opening.len());
    b.put_u64_le(header.first.0);
    b.put_u64_le(header.timestamp.0);
    b.extend_from_slice(opening);
    b.freeze()
}

impl raft::Storage for Entries {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let (state, membership) = &self.start;
        let hard_state = raft::eraftpb::HardState {
            term: state.term.0,
            vote: if planted!(28) { 0 } else { state.vote },
            commit: state.commit.0,
            ..Default::default()
        };
        Ok(RaftState { hard_state, conf_state: conf_state(membership) })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.base.raft.0 {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        let max = max_size.into().unwrap_or(u64::MAX);
        self.range(EntryIndex(low), EntryIndex(high), max).map_err(|error| {
            self.note(error);
            raft::Error::Store(StorageError::LogTemporarilyUnavailable)
        })
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        self.term_of(EntryIndex(index)).map(|t| t.0)
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base.raft.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last().0)
    }

    fn snapshot(&self, _: u64, to: u64) -> raft::Result<Snapshot> {
        let found = self.snapshot_for(to).unwrap_or_else(|error| {
            self.note(error);
            None
        });
        if found.is_none() && self.base.raft.0 == 0 {
            self.openings.is_missing(to);
        }
        found.ok_or(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}
