//! The jobs of tiering: what takes long, or needs the object store. They run apart from the node.
//!
//! Must not know: who leads.

use super::object_scrub::{Examination, Listing, Verdict};
use crate::cluster::membership::Membership;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::replica::queue::proposals::ObjectCommand;
use crate::replica::state::sequencer::{Owner, Replayed, Sequencer};
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::objects::StoredObject;
use crate::store::object_maker::{MadeObject, Stretch, make};
use crate::store::objects::names::{
    begin_name, begin_number, begin_text, begins, folder, not_there, object_name, object_number, root_name,
    root_text,
};
use crate::store::read::entry_lookup::Archive;
use crate::store::segment::Base;
use crate::types::{EntryIndex, Index, LogId, NodeId, Timestamp};
use crate::vault::Vault;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A job.
pub(super) enum Job {
    /// Checks that what the object store has under this log's id is this log's, or makes it so.
    CheckRoot { vault: Arc<dyn Vault>, log: LogId },
    /// Finds the next object, if there is enough for one.
    FindEnd(Search),
    /// Makes an object and puts it into the object store. `oldest`: the records of all objects before it are discarded.
    Store { vault: Arc<dyn Vault>, maker: Box<ObjectMaker>, stretch: Stretch, oldest: bool },
    /// Checks that an object that another replica has put is in the object store.
    Check { vault: Arc<dyn Vault>, log: LogId, number: u64, object: StoredObject, from: NodeId },
    /// Looks for all objects.
    List(Listing),
    /// Examines an object, and stores it again if it is lost or damaged.
    Examine(Examination),
    /// Deletes the objects below a number.
    Delete { vault: Arc<dyn Vault>, log: LogId, below: u64 },
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
    End(ObjectBegin, EntryIndex, Result<Found>),
    Stored(u64, Result<StoredObject>),
    Checked(u64, StoredObject, NodeId, Result<()>),
    /// A call of the program's vault panicked.
    Panicked,
    /// The objects that are not there as they were stored.
    Listed(Result<BTreeSet<u64>>),
    Examined(u64, Result<Verdict>),
    /// How many objects were deleted.
    Deleted(u64, Result<u64>),
}

impl JobDone {
    pub(super) fn is_failure(&self) -> bool {
        match self {
            Self::Root(result) => result.is_err(),
            Self::End(_, _, result) => result.is_err(),
            Self::Stored(_, result) => result.is_err(),
            Self::Checked(_, _, _, result) => result.is_err(),
            Self::Panicked => true,
            Self::Listed(result) => result.is_err(),
            Self::Examined(_, result) => result.is_err(),
            Self::Deleted(_, result) => result.is_err(),
        }
    }
}

impl Job {
    /// Runs the job. Blocks on the disk and the object store.
    pub(super) fn run(self) -> JobDone {
        match self {
            Self::CheckRoot { vault, log } => JobDone::Root(check_root(&*vault, log)),
            Self::FindEnd(search) => JobDone::End(search.begin, search.upto, search.find()),
            Self::Store { vault, maker, stretch, oldest } => {
                JobDone::Stored(stretch.number, store(&*vault, &maker, &stretch, oldest))
            }
            Self::Check { vault, log, number, object, from } => {
                let bytes = u64::from(object.bytes);
                let there = check_there(&*vault, log);
                let there = there.and_then(|()| check(&*vault, &object_name(log, number), bytes));
                JobDone::Checked(number, object, from, there)
            }
            Self::List(listing) => JobDone::Listed(listing.run()),
            Self::Examine(object) => JobDone::Examined(object.number(), object.run()),
            Self::Delete { vault, log, below } => JobDone::Deleted(below, delete(&*vault, log, below)),
        }
    }
}

/// Makes objects from a replica's own files.
#[derive(Clone, Debug)]
pub(crate) struct ObjectMaker {
    pub(crate) archive: Archive,
    pub(crate) options: Options,
    pub(crate) node: NodeId,
}

impl ObjectMaker {
    /// Makes the file of an object.
    ///
    /// # Errors
    /// `NotFound`: not all of it is in the files here. `Corrupt`, `Io`, `TooLarge`.
    pub(crate) fn make(&self, stretch: &Stretch) -> Result<MadeObject> {
        make(&self.archive, stretch, self.opening(stretch.begin)?)
    }

    /// The opening of an object that begins at `begin`: the state after all entries before it.
    fn opening(&self, begin: Base) -> Result<(BlockHeader, Vec<u8>)> {
        let Self { archive, options, node } = self;
        let sequencer = Sequencer::new(Owner::Node(*node), Membership::default(), options);
        let mut replayed = Replayed { sequencer, options };
        if !archive.replay(begin.raft, begin.raft, &mut replayed)? || replayed.sequencer.end() != begin {
            let what =
                format!("entry {} is not in the files of {} any more", begin.raft, archive.path().display());
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        Ok(replayed.sequencer.object_opening())
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
        let mut bytes = 0;
        let fits = |header: &&BlockHeader| {
            bytes += header.stride() as u64;
            bytes <= self.object_bytes
        };
        let count = headers.iter().take_while(fits).count().max(1);
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

fn check_root(vault: &dyn Vault, log: LogId) -> Result<()> {
    let (name, text) = (root_name(log), root_text(log));
    if vault.create(&name, text.clone().into())? {
        return Ok(());
    }
    let there = vault.size(&name)?.unwrap_or(0);
    if there != text.len() as u64 || vault.get(&name, 0..there)? != text {
        let what = format!("{name} in the object store is not of this log: use another location");
        return Err(Error::new(ErrorKind::Diverged, what));
    }
    Ok(())
}

/// Checks that the object store is still the one with this log's objects. A directory that is not mounted looks like an empty one,
/// and an object that went there would be lost once it is mounted again.
pub(super) fn check_there(vault: &dyn Vault, log: LogId) -> Result<()> {
    let name = root_name(log);
    if vault.size(&name)?.is_some() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unavailable, not_there(&name)))
}

fn store(vault: &dyn Vault, maker: &ObjectMaker, stretch: &Stretch, oldest: bool) -> Result<StoredObject> {
    check_there(vault, stretch.log)?;
    let made = maker.make(stretch)?;
    if oldest {
        say_begin(vault, stretch.log, stretch.number)?;
    }
    put(vault, stretch, made)
}

/// Records in the object store that the records of all objects below a number are discarded: no object says so of a discard that
/// comes after it, and without it nobody could tell a deleted object from a lost one. An object before the oldest one may be
/// missing for another reason, too: it was discarded before it was stored.
fn say_begin(vault: &dyn Vault, log: LogId, number: u64) -> Result<()> {
    if number > 0 && !planted!(99) {
        vault.create(&begin_name(log, number), begin_text(log, number).into())?;
    }
    Ok(())
}

/// The number below which the object store says that all records are discarded.
pub(super) fn newest_begin(vault: &dyn Vault, log: LogId) -> Result<Option<u64>> {
    let begins = vault.list(&begins(log))?;
    Ok(begins.iter().filter_map(|begin| begin_number(log, &begin.name)).max())
}

fn put(vault: &dyn Vault, stretch: &Stretch, made: MadeObject) -> Result<StoredObject> {
    let (name, bytes) = (object_name(stretch.log, stretch.number), u64::from(made.object.bytes));
    // An object of this name has these bytes, or it is another history's.
    if vault.size(&name)?.is_some_and(|there| there != bytes) {
        let what = format!(
            "{name} in the object store has another size than {bytes}: it is of another history of this log; use another \
             location"
        );
        return Err(Error::new(ErrorKind::Diverged, what));
    }
    match vault.put(&name, &made.pieces).and_then(|()| check(vault, &name, bytes)) {
        Err(error) if !planted!(97) => Err(error),
        _ => Ok(made.object),
    }
}

/// Checks that the object store has an object of this size.
pub(super) fn check(vault: &dyn Vault, name: &str, bytes: u64) -> Result<()> {
    if vault.size(name)? == Some(bytes) {
        return Ok(());
    }
    let what = format!("{name} is not in the object store as it was put there");
    Err(Error::new(ErrorKind::Unavailable, what))
}

fn delete(vault: &dyn Vault, log: LogId, below: u64) -> Result<u64> {
    check_there(vault, log)?;
    say_begin(vault, log, below)?;
    for begin in vault.list(&begins(log))? {
        if begin_number(log, &begin.name).is_some_and(|number| number < below) {
            vault.delete(&begin.name)?;
        }
    }
    let mut count = 0;
    for object in vault.list(&folder(log))? {
        if object_number(log, &object.name).is_some_and(|number| number < below + u64::from(planted!(94))) {
            vault.delete(&object.name)?;
            count += 1;
        }
    }
    Ok(count)
}
