//! The jobs of slices: what needs the object store. They run apart from the node.
//!
//! Must not know: who leads.

use super::object_access::ObjectMaker;
use super::object_root::{check_there, check_usable};
use super::payload_jobs::Begun;
use crate::error::{Error, ErrorKind, Result};
use crate::store::format::slices::{Block, Slice};
use crate::store::objects::slice_names::{SliceName, chain, slices};
use crate::store::read::entry_lookup::Archive;
use crate::store::segment::Base;
use crate::store::slice_maker::{MadeSlice, ends, make};
use crate::sync::threads::in_parallel;
use crate::types::{EntryIndex, Index, LogId, Term};
use crate::vault::Vault;
use std::path::Path;
use std::sync::Arc;

/// How many slices are put at a time, and by one job.
const SLICES_AT_A_TIME: usize = 8;
/// How many slices are deleted by one job: what goes first must not wait for long.
const DELETED_AT_ONCE: usize = 512;

/// The slices of a log that lead to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SliceChain {
    /// The entry behind which it begins with the state of the log. None: it continues the objects.
    pub(super) begin: Option<EntryIndex>,
    /// The position behind its last entry.
    pub(super) end: Base,
}

/// Where the next slice begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SliceBegin {
    /// Behind this entry, which is in an object or in a slice.
    Behind(EntryIndex),
    /// With the entry of this record, the log's first one, and the state before it: nothing before that is needed.
    WithRecord(Index),
    /// With the last entry, and the state before it: the log has no records.
    WithLast,
}

/// A job.
pub(super) enum SliceJob {
    /// Finds the slices that other leaders have stored, and this one before a restart. With the term of this leader.
    Find { vault: Arc<dyn Vault>, log: LogId, archive: Archive, stored: Option<Base>, term: Term },
    /// Makes slices and puts them into the object store.
    Store(Storing),
}

/// Slices that are to be stored.
pub(super) struct Storing {
    pub(super) vault: Arc<dyn Vault>,
    pub(super) log: LogId,
    pub(super) maker: Box<ObjectMaker>,
    pub(super) begin: SliceBegin,
    /// The last committed entry.
    pub(super) upto: EntryIndex,
    pub(super) bytes_max: u64,
    /// Whether a single slice is wanted.
    pub(super) one: bool,
    /// Whether it is still to be checked that what the object store has under this log's id is this log's.
    pub(super) is_first: bool,
    /// Whether it is still to be checked that the object store is there, after a failure: what goes to one that is not is left over.
    pub(super) checks_there: bool,
    /// Whether the object store has to have something of this log.
    pub(super) begun: Begun,
    /// Whether it has no threads.
    pub(super) unaided: bool,
}

/// The result of a job.
#[derive(Debug)]
pub(super) enum SliceDone {
    /// The result for a leader of this term.
    Found(Term, Result<FoundSlices>),
    Stored(StoredSlices),
    /// A call of the program's vault panicked.
    Panicked,
}

/// The slices that were there.
#[derive(Debug, Default)]
pub(super) struct FoundSlices {
    pub(super) chain: Option<SliceChain>,
    /// The last entry of slices of another history that are of this leader's term or of a later one: those of lost replicas, if a minority
    /// goes on. A log that is made of the object store can follow these.
    pub(super) ahead: Option<EntryIndex>,
}

/// The result of storing slices.
#[derive(Debug, Default)]
pub(super) struct StoredSlices {
    /// All that were stored, also behind one that was not.
    pub(super) count: u64,
    pub(super) bytes: u64,
    /// The chain of those without a gap. None: not even the first one was stored.
    pub(super) chain: Option<SliceChain>,
    /// Whether the object store is known to be this log's.
    pub(super) is_checked: bool,
    pub(super) failed: Option<Error>,
}

impl SliceJob {
    /// Runs the job. Blocks on the disk and the object store.
    pub(super) fn run(self) -> SliceDone {
        match self {
            Self::Find { vault, log, archive, stored, term } => {
                SliceDone::Found(term, find(&*vault, log, &archive, stored, term))
            }
            Self::Store(storing) => {
                let mut stored = StoredSlices::default();
                if let Err(error) = storing.run(&mut stored) {
                    stored.failed.get_or_insert(error);
                }
                SliceDone::Stored(stored)
            }
        }
    }
}

impl Storing {
    fn run(&self, stored: &mut StoredSlices) -> Result<()> {
        let Self { vault, log, maker, .. } = self;
        if self.is_first {
            self.begun.check_root(&**vault, *log)?;
        } else if self.checks_there {
            check_there(&**vault, *log)?;
        }
        stored.is_checked = true;
        let archive = &maker.archive;
        let (behind, mut opening) = match self.begin {
            SliceBegin::Behind(raft) => (raft, None),
            SliceBegin::WithRecord(first) => {
                // Its file may have gone since, with a discard: then another record is the first one, which the next job begins with.
                let begin = archive.before_record(first)?.filter(|begin| begin.raft < self.upto);
                self.with_state(begin.ok_or_else(|| gone(archive, &format!("record {first}")))?)?
            }
            SliceBegin::WithLast => self.with_state(self.before_last()?)?,
        };
        let begin = opening.is_some().then_some(behind);
        let count = if self.one { 1 } else { SLICES_AT_A_TIME };
        let ends = ends(archive, behind, self.upto, self.bytes_max, count)?;
        let mut before = behind;
        let wanted: Vec<_> =
            ends.into_iter().map(|end| (std::mem::replace(&mut before, end), end, opening.take())).collect();
        let mut made = Vec::new();
        let mut note = |result: Result<MadeSlice>| match result {
            Ok(slice) => {
                (stored.count, stored.bytes) = (stored.count + 1, stored.bytes + slice.bytes);
                made.push((slice.name.first, slice.end));
            }
            Err(error) => _ = stored.failed.get_or_insert(error),
        };
        // Payload goes on behind the last slice (P6), so none may lead on behind a gap.
        let leaves_no_gap = self.begun.refers && !planted!(151);
        match self.unaided || leaves_no_gap || wanted.len() == 1 {
            true => {
                for wanted in &wanted {
                    let slice = self.put(wanted);
                    let has_failed = slice.is_err();
                    note(slice);
                    if has_failed && leaves_no_gap {
                        break;
                    }
                }
            }
            false => in_parallel(SLICES_AT_A_TIME, &wanted, |wanted| Ok(self.put(wanted)), &mut note)?,
        }
        // A directory that is not mounted any more looks like an empty one: what went there would be lost.
        check_there(&**vault, *log)?;
        made.sort_unstable_by_key(|(first, _)| *first);
        let mut end = None;
        for (first, behind_it) in made {
            if first != end.map_or(behind, |end: Base| end.raft).next() {
                break;
            }
            end = Some(behind_it);
        }
        stored.chain = end.map(|end| SliceChain { begin, end });
        Ok(())
    }

    /// The position before the last committed entry.
    fn before_last(&self) -> Result<Base> {
        let archive = &self.maker.archive;
        let raft = EntryIndex(self.upto.0.saturating_sub(1));
        match (archive.term(raft)?, archive.header(self.upto)?) {
            (Some(term), Some(last)) => Ok(Base { raft, term, next: last.first }),
            _ => Err(gone(archive, &format!("entry {}", self.upto))),
        }
    }

    /// Where a slice begins that begins with the state there, and that state.
    fn with_state(&self, begin: Base) -> Result<(EntryIndex, Option<Block>)> {
        let (header, body) = self.maker.opening(begin)?;
        Ok((begin.raft, Some((header, body.into()))))
    }

    fn put(&self, (behind, end, opening): &(EntryIndex, EntryIndex, Option<Block>)) -> Result<MadeSlice> {
        let made = make(&self.maker.archive, self.log, *behind, *end, opening.clone())?;
        let name = made.name.to_string();
        match self.vault.put(&name, &made.pieces) {
            Err(error) if !planted!(113) => return Err(error),
            _ => {}
        }
        // Everything before a state is deleted because of it.
        if made.name.begins && !is_sound(&*self.vault, &made.name)? && !planted!(175) {
            return Err(Error::corrupt(Path::new(&name), 0, "it arrived damaged"));
        }
        Ok(MadeSlice { pieces: Vec::new(), ..made })
    }
}

fn gone(archive: &Archive, what: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("{what} is not in the files of {}", archive.path().display()))
}

/// Reads a slice, and returns whether every byte of it is sound.
fn is_sound(vault: &dyn Vault, name: &SliceName) -> Result<bool> {
    let text = name.to_string();
    let Some(bytes) = vault.size(&text)? else { return Ok(false) };
    Ok(Slice::parse(&vault.get(&text, 0..bytes)?, name.salt()).is_ok())
}

/// The slices in the object store of the entries that are in the files here, and those of another history.
fn find(
    vault: &dyn Vault,
    log: LogId,
    archive: &Archive,
    stored: Option<Base>,
    term: Term,
) -> Result<FoundSlices> {
    let (mut names, mut found) = (Vec::new(), FoundSlices::default());
    for name in vault.list(&slices(log))?.iter().filter_map(|found| SliceName::parse(log, &found.name)) {
        // Slices of another history of this log are those of other entries.
        if archive.term(name.last)? == Some(name.term) {
            names.push(name);
        } else if name.term >= term && !planted!(153) {
            found.ahead = found.ahead.max(Some(name.last));
        }
    }
    let newest = names.iter().filter(|name| name.begins && stored.is_none()).max_by_key(|name| name.first);
    // An older one does not count instead: payload up to the newer state may be gone. Without one a leader makes another.
    if let Some(name) = newest.filter(|_| !planted!(175)) {
        match is_sound(vault, name) {
            Ok(true) => {}
            Ok(false) => return Ok(found),
            Err(error) if planted!(177) => return Err(error),
            Err(_) => return check_usable(vault, log).map(|()| found), // others can be read: it is this one
        }
    }
    let (begin, behind) = match (stored, newest) {
        (Some(stored), _) => (None, stored.raft),
        (None, Some(newest)) => {
            let begin = EntryIndex(newest.first.0 - 1);
            (Some(begin), begin)
        }
        (None, None) => return Ok(found),
    };
    let Some(last) = chain(&names, behind, |_| true).pop() else { return Ok(found) };
    let Some(header) = archive.header(last.last)? else { return Ok(found) };
    let end = Base { raft: last.last, term: last.term, next: header.next_record() };
    found.chain = Some(SliceChain { begin, end });
    Ok(found)
}

/// Deletes slices that have no entry behind `upto`. Returns whether that were all of them. Found by listing: a replica that crashed may
/// have left some.
pub(super) fn delete_slices(vault: &dyn Vault, log: LogId, upto: EntryIndex, unaided: bool) -> Result<bool> {
    check_there(vault, log)?;
    let found = vault.list(&slices(log))?;
    let names = found.iter().filter_map(|found| SliceName::parse(log, &found.name));
    let mut names: Vec<_> = names.filter(|name| name.last <= upto).collect();
    names.sort_unstable_by_key(|name| name.last);
    let all = names.len() <= DELETED_AT_ONCE;
    names.truncate(DELETED_AT_ONCE);
    let delete = |name: &SliceName| vault.delete(&name.to_string());
    match unaided || names.len() < 2 {
        true => names.iter().try_for_each(delete)?,
        false => in_parallel(SLICES_AT_A_TIME, &names, delete, |()| {})?,
    }
    Ok(all)
}
