//! The jobs of tiering: what takes long, or needs the object store. They run apart from the node.
//!
//! Must not know: who leads.

use super::examination::{Examination, Listing, OlderObject, Verdict};
use super::object_access::{HowToStore, ObjectMaker, Put, delete, look_for_put, store};
use super::object_look::{Look, ObjectAt};
use super::object_root::{check_there, check_usable};
use super::payload_jobs::{Begun, Sweep};
use super::rows_jobs::{RowsLook, RunLook};
use super::slice_jobs::delete_slices;
use crate::error::Result;
use crate::replica::queue::proposals::ObjectCommand;
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::objects::{StoredAt, StoredObject};
use crate::store::format::references::resolved_stride;
use crate::store::object_file::Stretch;
use crate::store::objects::names::Lineage;
use crate::store::read::entry_lookup::Archive;
use crate::store::segment::Base;
use crate::types::{EntryIndex, Index, LogId, NodeId, Timestamp};
use crate::vault::Vault;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A job.
pub(super) enum Job {
    /// Checks that what the object store has under this log's id is this log's, or makes it so if the log has had no objects.
    CheckRoot { vault: Arc<dyn Vault>, log: LogId, begun: Box<Begun> },
    /// Looks whether the object store has this log's objects, before a new replica leaves records to it.
    FindStore { vault: Arc<dyn Vault>, log: LogId },
    /// Finds the next object, if there is enough for one.
    FindEnd(Search),
    /// Makes an object and puts it into the object store.
    Store { vault: Arc<dyn Vault>, maker: Box<ObjectMaker>, stretch: Stretch, how: HowToStore },
    /// Checks that an object that a replica has put is in the object store. `whole`: reads all of it.
    Check { vault: Arc<dyn Vault>, log: LogId, number: u64, object: StoredObject, from: NodeId, whole: bool },
    /// Looks for all objects.
    List(Listing),
    /// Examines an object, and stores it again if it is lost or damaged.
    Examine(Box<Examination>),
    /// The same of one whose row is not in the log's table.
    ExamineOlder(Box<OlderObject>),
    /// Looks where the rows of older objects are in a later object.
    FindRows(Box<RowsLook>),
    /// Reads the rows of a run of older objects.
    FetchRun(Box<RunLook>),
    /// Deletes the objects below a number.
    Delete { vault: Arc<dyn Vault>, lineage: Lineage, below: u64 },
    /// Deletes slices without an entry behind this one.
    DeleteSlices { vault: Arc<dyn Vault>, log: LogId, upto: EntryIndex, unaided: bool },
    /// Deletes payload slices that nothing refers to.
    SweepPayloads(Sweep),
}

/// A search for the next object: it ends before the block with which it would be too large.
pub(super) struct Search {
    pub(super) archive: Archive,
    pub(super) number: u64,
    pub(super) begin: ObjectBegin,
    /// The last committed entry.
    pub(super) upto: EntryIndex,
    pub(super) object_bytes: u64,
    /// Whether it ends there, too, if nothing is behind it.
    pub(super) all: bool,
    /// The log's first record.
    pub(super) first: Index,
    /// Whether blocks can refer to batches that an object has itself.
    pub(super) refers: bool,
}

/// Where an object begins. All replicas have the entries behind it, unless a later discard has passed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectBegin {
    /// Behind the object before it, the log's first record or later.
    Behind(Base),
    /// With the entry of the log's first record. Replicas may have removed everything before it, each to another file.
    WithRecord(Index),
}

/// The result of a search.
#[derive(Debug)]
pub(super) enum Found {
    /// The command that cuts the object.
    Cut(ObjectCommand),
    /// The number of bytes that are lacking, at least.
    Lacking(u64),
}

/// The result of a job.
#[derive(Debug)]
pub(super) enum JobDone {
    Root(Result<()>),
    FoundStore(Result<()>),
    End(ObjectBegin, EntryIndex, Result<Found>),
    Stored(u64, Result<Put>),
    /// Whether it is there as it was put.
    Checked(u64, StoredObject, NodeId, Result<Look>),
    /// A call of the program's vault panicked.
    Panicked,
    /// The objects that are not there as they were stored.
    Listed(Result<BTreeSet<u64>>),
    /// With where the object begins and ends, if that is known.
    Examined(u64, Option<(Base, Base)>, Result<Verdict>),
    /// The command that moves rows. None: the object does not have all of them.
    FoundRows(Result<Option<ObjectCommand>>),
    /// The objects of a run that ends below this number, and whether its holder has their rows.
    FetchedRun(u64, Result<(Vec<StoredAt>, bool)>),
    /// How many objects were deleted.
    Deleted(u64, Result<u64>),
    /// Whether all slices without an entry behind this one were deleted.
    SlicesDeleted(EntryIndex, Result<bool>),
    /// The same of payload slices; those of entries up to this one.
    PayloadsSwept(EntryIndex, Result<bool>),
}

impl JobDone {
    /// Whether objects could not be stored or deleted. The scrub has figures of its own.
    pub(super) fn is_failure(&self) -> bool {
        match self {
            Self::Root(result) => result.is_err(),
            Self::FoundStore(_) => false,
            Self::End(_, _, result) => result.is_err(),
            Self::Stored(_, result) => !matches!(result, Ok(Put::Stored(_))),
            Self::Checked(_, _, _, result) => !matches!(result, Ok(Look::Sound)),
            Self::Panicked => true,
            Self::Listed(_) | Self::Examined(..) => false,
            Self::FoundRows(result) => result.is_err(),
            Self::FetchedRun(_, result) => result.is_err(),
            Self::Deleted(_, result) => result.is_err(),
            Self::SlicesDeleted(_, result) | Self::PayloadsSwept(_, result) => result.is_err(),
        }
    }
}

impl Job {
    /// Runs the job. Blocks on the disk and the object store.
    pub(super) fn run(self) -> JobDone {
        match self {
            Self::CheckRoot { vault, log, begun } => JobDone::Root(begun.check_root(&*vault, log)),
            Self::FindStore { vault, log } => JobDone::FoundStore(check_usable(&*vault, log)),
            Self::FindEnd(search) => JobDone::End(search.begin, search.upto, search.find()),
            Self::Store { vault, maker, stretch, how } => {
                JobDone::Stored(stretch.number, store(&*vault, &maker, &stretch, how))
            }
            Self::Check { vault, log, number, object, from, whole } => {
                let is_there = if planted!(109) { Ok(()) } else { check_there(&*vault, log) };
                let at = ObjectAt { vault: &*vault, log, owner: log, number };
                let is_there = is_there.and_then(|()| look_for_put(&at, &object, whole));
                JobDone::Checked(number, object, from, is_there)
            }
            Self::List(listing) => JobDone::Listed(listing.run()),
            Self::Examine(object) => {
                let place = (object.at.begin, object.at.state.end);
                JobDone::Examined(object.number(), Some(place), object.run())
            }
            Self::ExamineOlder(object) => {
                let number = object.number;
                let (place, verdict) = object.run();
                JobDone::Examined(number, place, verdict)
            }
            Self::FindRows(look) => JobDone::FoundRows(look.find()),
            Self::FetchRun(look) => JobDone::FetchedRun(look.run.rows.below, look.read()),
            Self::Delete { vault, lineage, below } => {
                JobDone::Deleted(below, delete(&*vault, &lineage, below))
            }
            Self::DeleteSlices { vault, log, upto, unaided } => {
                JobDone::SlicesDeleted(upto, delete_slices(&*vault, log, upto, unaided))
            }
            Self::SweepPayloads(sweep) => JobDone::PayloadsSwept(sweep.behind, sweep.run()),
        }
    }
}

impl Search {
    fn find(&self) -> Result<Found> {
        let begin = match self.begin {
            ObjectBegin::Behind(end) => Some(end),
            ObjectBegin::WithRecord(first) => self.archive.before_record(first)?,
        };
        let Some(begin) = begin.filter(|begin| begin.raft < self.upto) else {
            return Ok(Found::Lacking(self.object_bytes));
        };
        let mut headers = self.archive.headers(begin.raft.next(), self.upto.next(), self.object_bytes)?;
        let strides = self.strides(&headers)?;
        let mut bytes = 0;
        let fits = |stride: &&usize| {
            bytes += **stride as u64;
            bytes <= self.object_bytes
        };
        let count = strides.iter().take_while(fits).count().max(1);
        let is_last =
            count == headers.len() && headers.last().is_some_and(|last| last.raft_index == self.upto);
        if is_last && bytes <= self.object_bytes && !self.all {
            return Ok(Found::Lacking(self.object_bytes - bytes)); // the next entry may still fit
        }
        headers.truncate(count);
        Ok(match self.end_at(headers)? {
            Some((end, timestamp)) => {
                let Self { number, first, .. } = *self;
                Found::Cut(ObjectCommand::Cut { number, begin, end, timestamp, first })
            }
            None => Found::Lacking(0),
        })
    }

    /// The bytes that these entries take in an object, which has the batches that they refer to.
    fn strides(&self, headers: &[BlockHeader]) -> Result<Vec<usize>> {
        if let (true, [first, ..], [.., last]) = (self.refers, headers, headers)
            && let Some(entries) = self.archive.entries(first.raft_index, last.raft_index)?
        {
            return Ok(entries.iter().map(|(header, body)| resolved_stride(header, body)).collect());
        }
        Ok(headers.iter().map(BlockHeader::stride).collect())
    }

    /// The position behind the last of these entries that an object can end with, and the timestamp of that entry.
    fn end_at(&self, mut headers: Vec<BlockHeader>) -> Result<Option<(Base, Timestamp)>> {
        let Some(mut last) = headers.pop() else { return Ok(None) };
        let next = self.archive.header(last.raft_index.next())?;
        // A discard beyond the end moves the next record: only the entry behind it shows how far.
        while next.is_none() && last.kind == Kind::Command {
            let Some(before) = headers.pop() else { return Ok(None) };
            last = before;
        }
        let behind = match next {
            Some(next) if next.raft_index == last.raft_index.next() => next.first,
            _ => last.next_record(),
        };
        Ok(Some((Base { raft: last.raft_index, term: last.term, next: behind }, last.timestamp)))
    }
}
