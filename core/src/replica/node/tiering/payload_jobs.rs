//! The jobs of payload slices: making one, putting it, and deleting those that nothing refers to any more. They run apart from the node.
//!
//! Must not know: who leads.

use super::object_root::{check_root, check_there};
use crate::error::{Error, ErrorKind, Result};
use crate::record::batch::BATCH_BYTES_MAX;
use crate::record::reference::{PayloadId, Reference};
use crate::store::format::references::references;
use crate::store::objects::payloads::{PayloadHead, Payloads, payload_id, payload_name, payloads};
use crate::store::read::entry_lookup::Archive;
use crate::sync::threads::{in_parallel, spawn};
use crate::types::{EntryIndex, LogId, Term};
use crate::vault::{ObjectInfo, Vault};
use bytes::{Bytes, BytesMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// How many slices are put at a time.
pub(super) const PUTS_AT_A_TIME: usize = 8;
/// How many are deleted by one job, and at a time.
const DELETED_AT_ONCE: usize = 512;
const DELETED_AT_A_TIME: usize = 8;
/// Bytes of entries that are looked at together.
const LOOK_BYTES: u64 = 1 << 20;

/// A payload slice that is to be stored.
pub(super) struct Put {
    pub(super) vault: Arc<dyn Vault>,
    pub(super) log: LogId,
    pub(super) id: PayloadId,
    /// The leadership that it is of.
    pub(super) leadership: u64,
    /// Its header, and the bytes of its batches.
    pub(super) head: PayloadHead,
    pub(super) pieces: Vec<Bytes>,
    /// The first slice of this leader: it is still to be checked that what the object store has under this log's id is this log's.
    pub(super) first: Option<Begun>,
    /// There is no slice of this leader yet: it is still to be checked that there is none of this term, or of a later one.
    pub(super) checks_term: bool,
    /// A put has failed, and none that began later has succeeded: what is there is looked at before this one. If `root` is gone, the log was
    /// removed there, and nobody would find what goes there now.
    pub(super) checks_there: bool,
    /// Where readers here look for it.
    pub(super) readers: Arc<Payloads>,
}

/// Tells whether the object store has to have something of this log already: then an empty one, as a directory that is not mounted
/// looks, is the wrong one.
#[derive(Clone, Debug)]
pub(super) struct Begun {
    /// Whether the log has, or had, objects.
    pub(super) has_objects: bool,
    /// Whether its entries here may refer to payload slices.
    pub(super) refers: bool,
    pub(super) archive: Archive,
    /// These entries are in files here.
    pub(super) behind: EntryIndex,
    pub(super) upto: EntryIndex,
}

impl Begun {
    /// Checks that the object store is the one of this log, or makes it so if the log has nothing in one. Blocks for the network.
    ///
    /// # Errors
    /// Those of [`check_root`] and of the archive.
    pub(super) fn check_root(&self, vault: &dyn Vault, log: LogId) -> Result<()> {
        let refers = || Ok::<_, Error>(first_reference(&self.archive, self.behind, self.upto)?.is_some());
        let has_begun = self.has_objects || (self.refers && refers()?);
        check_root(vault, log, has_begun && !planted!(129))
    }
}

/// Checks that there is no slice of this term, or of a later one, before its leader has put any.
///
/// # Errors
/// `Diverged`: there is one, which names it.
fn check_term<'a>(log: LogId, term: Term, there: impl Iterator<Item = &'a ObjectInfo>) -> Result<()> {
    let of_others = |found: &&ObjectInfo| payload_id(log, &found.name).is_some_and(|id| id.term >= term);
    let Some(found) = { there }.find(of_others) else { return Ok(()) };
    let what = format!(
        "{} in the object store is of term {term} of this log or of a later one, and this leader has not put it: the directory is an \
         older copy of the log, or the log runs twice. Nothing was put or deleted. Bring the log back from the object store, with \
         `chiplog tier fetch`, or set payload_slices to 0",
        found.name
    );
    Err(Error::new(ErrorKind::Diverged, what))
}

/// The result of a put.
#[derive(Debug)]
pub(super) struct PutDone {
    pub(super) id: PayloadId,
    pub(super) leadership: u64,
    /// The term was checked, whether or not the slice is stored.
    pub(super) is_term_checked: bool,
    /// As in [`Put`].
    pub(super) checks_there: bool,
    pub(super) result: Result<()>,
}

impl Put {
    /// Stores the slice. Blocks for the object store.
    pub(super) fn run(&self) -> PutDone {
        // Without this a panic in the program's own vault would leave appends without an answer.
        let mut is_term_checked = false;
        let result = catch_unwind(AssertUnwindSafe(|| self.try_run(&mut is_term_checked)));
        let panicked = || Err(Error::new(ErrorKind::Io, "a call of the object store panicked"));
        let result = result.unwrap_or_else(|_| panicked());
        let (id, leadership, checks_there) = (self.id, self.leadership, self.checks_there);
        PutDone { id, leadership, is_term_checked, checks_there, result }
    }

    fn try_run(&self, is_term_checked: &mut bool) -> Result<()> {
        if let Some(begun) = &self.first {
            begun.check_root(&*self.vault, self.log)?;
        } else if self.checks_there {
            check_there(&*self.vault, self.log)?;
        }
        if self.checks_term {
            check_term(self.log, self.id.term, self.vault.list(&payloads(self.log))?.iter())?;
        }
        *is_term_checked = true;
        let bytes = self.head.bytes() as usize;
        debug_assert!(bytes <= 2 * BATCH_BYTES_MAX, "a slice is at most a block longer than its limit");
        let (begin, end) = self.head.encode(self.log, self.id);
        let mut whole = BytesMut::with_capacity(bytes);
        whole.extend_from_slice(&begin);
        self.pieces.iter().for_each(|piece| whole.extend_from_slice(piece));
        whole.extend_from_slice(&end);
        debug_assert_eq!(whole.len(), bytes, "a slice says how long it is");
        let whole = whole.freeze();
        match self.vault.put(&payload_name(self.log, self.id), std::slice::from_ref(&whole)) {
            Err(_) if planted!(123) => {}
            result => result?,
        }
        // A directory that is not mounted any more looks like an empty one: what went there would be lost.
        if !planted!(128) {
            check_there(&*self.vault, self.log)?;
        }
        self.readers.keep(self.id, whole);
        Ok(())
    }
}

/// The threads that put slices: as many as there are puts under way, up to [`PUTS_AT_A_TIME`].
#[derive(Debug)]
pub(super) struct PutThreads {
    jobs: Sender<Job>,
    waiting: Arc<Mutex<Receiver<Job>>>,
    count: usize,
}

type Job = Box<dyn FnOnce() + Send>;

impl PutThreads {
    pub(super) fn new() -> Self {
        let (jobs, waiting) = channel();
        Self { jobs, waiting: Arc::new(Mutex::new(waiting)), count: 0 }
    }

    /// Runs a job on a thread. `under_way`: the jobs that have not ended, with this one. The threads end with the node, each after the
    /// job that it runs.
    ///
    /// # Errors
    /// `Io`: the system could not start a thread.
    pub(super) fn run(&mut self, path: &Path, under_way: usize, job: Job) -> Result<()> {
        if self.count < under_way.min(PUTS_AT_A_TIME) {
            let waiting = self.waiting.clone();
            let started = spawn("chiplog-payload", path, move || {
                loop {
                    let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    match job {
                        Ok(job) => job(),
                        Err(_) => return,
                    }
                }
            });
            match started {
                Ok(_) => self.count += 1,
                // Those that there are do all of it.
                Err(error) if self.count == 0 => return Err(error),
                Err(error) => tracing::debug!(%error, "no more threads could be started"),
            }
        }
        self.jobs.send(job).map_err(|_| Error::new(ErrorKind::Io, "the threads of payload slices have ended"))
    }
}

/// Payload slices that may not be needed any more.
pub(super) struct Sweep {
    pub(super) vault: Arc<dyn Vault>,
    pub(super) log: LogId,
    pub(super) archive: Archive,
    /// Entries up to this one are in objects, or discarded.
    pub(super) behind: EntryIndex,
    /// The last entry of the leader's log.
    pub(super) upto: EntryIndex,
    /// The first slice to which a later entry can refer.
    pub(super) below: PayloadId,
    /// This leader has put nothing yet: slices of this term, or of a later one, are of another history.
    pub(super) of_others: Option<Term>,
    pub(super) unaided: bool,
}

impl Sweep {
    /// Deletes the slices to which no entry refers, or will refer, that is not in an object. Returns whether that were all of them. Found
    /// by listing: a replica that crashed may have left some, and a leader that was deposed has slices to which nothing refers.
    ///
    /// # Errors
    /// Those of [`Vault`] and of the archive.
    pub(super) fn run(&self) -> Result<bool> {
        let (vault, log) = (&*self.vault, self.log);
        check_there(vault, log)?;
        let needed = self.first_needed()?;
        let there = vault.list(&payloads(log))?;
        if let Some(term) = self.of_others {
            check_term(log, term, there.iter())?;
        }
        let mut gone: Vec<PayloadId> =
            there.iter().filter_map(|found| payload_id(log, &found.name)).collect();
        gone.retain(|id| *id < needed || (planted!(121) && *id == needed));
        gone.sort_unstable();
        let all = gone.len() <= DELETED_AT_ONCE;
        gone.truncate(DELETED_AT_ONCE);
        let delete = |id: &PayloadId| vault.delete(&payload_name(log, *id));
        match self.unaided || gone.len() < 2 {
            true => gone.iter().try_for_each(delete)?,
            false => in_parallel(DELETED_AT_A_TIME, &gone, delete, |()| {})?,
        }
        Ok(all)
    }

    /// The first slice that is needed: references are in the order of their slices, so it is that of the first reference, if there is one.
    fn first_needed(&self) -> Result<PayloadId> {
        let first = first_reference(&self.archive, self.behind, self.upto)?;
        Ok(first.map_or(self.below, |first| first.slice.min(self.below)))
    }
}

/// The first reference in the entries behind `behind`, up to `upto`.
///
/// # Errors
/// `NotFound`: an entry is not in the files. `Corrupt`, `Io`.
pub(super) fn first_reference(
    archive: &Archive,
    behind: EntryIndex,
    upto: EntryIndex,
) -> Result<Option<Reference>> {
    let gone = |entry| {
        let what = format!("entry {entry} is not in the files of {} any more", archive.path().display());
        Error::new(ErrorKind::NotFound, what)
    };
    let mut from = behind.next();
    while from <= upto {
        let headers = archive.headers(from, upto.next(), LOOK_BYTES)?;
        let last = headers.last().ok_or_else(|| gone(from))?.raft_index;
        let entries = archive.entries(from, last)?.ok_or_else(|| gone(from))?;
        for (header, body) in &entries {
            match references(header, body).next() {
                Some(Ok(first)) => return Ok(Some(first)),
                // The payload that this entry needs is unknown.
                Some(Err(why)) => {
                    let what = format!("entry {} of {}: {why}", header.raft_index, archive.path().display());
                    return Err(Error::new(ErrorKind::Corrupt, what));
                }
                None => {}
            }
        }
        from = last.next();
    }
    Ok(None)
}
