//! Downloads: the objects of a log as segment files in the directory of a backup. They stay between the attempts of a fetch: objects and
//! slices of a log that goes on change meanwhile, and what was downloaded once is not downloaded again.
//!
//! Invariants:
//! - objects that are under way take no more memory than [`OBJECTS_BYTES_MAX`], unless one alone needs more; of those that are there, none
//!   keeps its table of the logs of a group;
//! - before an attempt, files in the directory are those of objects that it needs. Any other is removed;
//! - nothing is taken on trust: recovery and the seal read every file, also those of earlier attempts.
//!
//! Must not know: the network, which object store it is.

use super::firsts::{LogsOfObject, firsts};
use super::slices::AT_A_TIME;
use super::{Backup, is_of_log, list, remove};
use crate::disk::Disk;
use crate::error::{Error, ErrorKind, Result};
use crate::replica::open::disk_at;
use crate::replica::state::log_table::LogTable;
use crate::store::format::geometry::{FOOTER_BYTES, SEGMENT_HEADER_BYTES};
use crate::store::format::segment::{Base, Footer, HeaderFault, SegmentHeader};
use crate::store::format::sorted_object::is_sorted;
use crate::store::objects::deletion::newest_begin;
use crate::store::objects::names::{Lineage, salt};
use crate::store::segment::file_name;
use crate::store::sorted_object::unsort;
use crate::sync::threads::in_parallel;
use crate::types::{Index, LogId, SegmentId};
use crate::vault::{ObjectInfo, Vault};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::iter;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};

/// The memory that objects may take while they are fetched, unless one of them alone takes more.
const OBJECTS_BYTES_MAX: u64 = 2 << 30;
/// How often the bytes of an object are in memory at a time: as they came, in the order of their entries, and as those of a branch.
const COPIES: u64 = 3;

/// The objects of a log that are in the directory of a backup.
#[derive(Default)]
pub(super) struct Downloads {
    /// By their numbers.
    here: BTreeMap<u64, Download>,
    has_begun: bool,
    /// How many objects were downloaded.
    pub(super) fetched: u64,
    /// Of a pin: its first object. The log can have discarded more since, and none of the objects under the pin.
    pinned_from: Option<u64>,
}

/// An object whose segment file is there.
pub(super) struct Download {
    number: u64,
    /// The name of the object.
    name: String,
    footer: Footer,
    bytes: usize,
    logs: LogsOfObject,
}

impl Download {
    /// The segment file of this object, with these bytes.
    pub(super) fn of((number, object): &(u64, ObjectInfo), footer: Footer, bytes: &[u8]) -> Self {
        let logs = LogsOfObject::read(bytes, &footer);
        Self { number: *number, name: object.name.clone(), footer, bytes: bytes.len(), logs }
    }
}

impl Downloads {
    /// The objects under a pin, whose first one has this number.
    pub(super) fn of_pin(first: u64) -> Self {
        Self { pinned_from: Some(first), ..Self::default() }
    }

    /// Begins the backup in `dest`, or goes on with it: leaves only the files of those of `objects` that are there.
    ///
    /// # Errors
    /// Those of [`Backup::begin`]; `Io`.
    pub(super) fn begin(&mut self, dest: &Path, objects: &[(u64, ObjectInfo)]) -> Result<()> {
        if !self.has_begun {
            Backup::begin(dest)?;
            self.has_begun = true;
            return Ok(());
        }
        let disk = disk_at(dest, false)?;
        let names = list(&*disk)?;
        // A discard that was applied behind them may have removed some.
        // The newest one is made again in each attempt.
        let before = objects.split_last().map_or(objects, |(_, before)| before);
        let needed: BTreeSet<u64> = before.iter().map(|(number, _)| *number).collect();
        self.here.retain(|number, download| {
            needed.contains(number) && names.contains(&file_name(download.footer.number))
        });
        let kept: BTreeSet<String> = self.here.values().map(|here| file_name(here.footer.number)).collect();
        let mut others = names.iter().filter(|name| is_of_log(name) && !kept.contains(*name));
        others.try_for_each(|name| remove(&*disk, name))
    }

    /// Removes everything from `dest` after an error. The caller gets that: files that cannot be removed remain as an unfinished backup.
    pub(super) fn abandon(&self, dest: &Path) {
        if self.has_begun {
            let _ = Backup::abandon(dest);
        }
    }

    /// Fetches those of `objects` that are not there yet. Calls `note` with the bytes of each of them.
    ///
    /// # Errors
    /// `Corrupt`: an object is damaged. Those of [`Vault`]; `Io`.
    pub(super) fn complete(
        &mut self,
        vault: &dyn Vault,
        lineage: &Lineage,
        disk: &dyn Disk,
        objects: &[(u64, ObjectInfo)],
        note: &mut dyn FnMut(usize),
    ) -> Result<()> {
        let is_here = |object: &&(u64, ObjectInfo)| !self.here.contains_key(&object.0);
        let lacking: Vec<_> = objects.iter().filter(is_here).cloned().collect();
        self.here.values().for_each(|here| note(here.bytes));
        let memory = Memory::new(OBJECTS_BYTES_MAX);
        let copy = |object: &(u64, ObjectInfo)| {
            let _taken = memory.take(object.1.bytes.saturating_mul(COPIES));
            let (footer, bytes) = get(vault, lineage, object)?;
            write(disk, footer.number, &bytes, bytes.len())?;
            Ok(Download::of(object, footer, &bytes))
        };
        in_parallel(AT_A_TIME, &lacking, copy, |mut download| {
            note(download.bytes);
            self.fetched += 1;
            download.logs.forget_begin();
            self.here.insert(download.number, download);
        })
    }

    /// Removes the files before the last one that does not begin where the one before it ends; the `newest` object is behind all of them.
    /// Objects are cut like this only if everything in between, and so everything before, is discarded. Returns the first record of the
    /// files that are left, and of each log.
    ///
    /// # Errors
    /// `Corrupt`: an object does not begin where the one before it ends, and no discard explains it. Those of [`Vault`]; `Io`.
    pub(super) fn remove_discarded(
        &mut self,
        vault: &dyn Vault,
        log: LogId,
        disk: &dyn Disk,
        newest: &Download,
    ) -> Result<(Index, LogTable)> {
        let read: Vec<_> = self.here.values().chain([newest]).collect();
        let is_gap = |pair: &[&Download]| Base::behind(&pair[0].footer) != Base::before(&pair[1].footer);
        let kept = read.windows(2).rposition(is_gap).map_or(0, |n| n + 1);
        if let Some([.., before, next]) = read.get(..=kept) {
            let begin = (next.number, next.footer.first, next.logs.log_first());
            if !is_discarded_before(vault, log, self.pinned_from, begin)? {
                return Err(contradiction(&before.name, &next.name));
            }
        }
        let removed: Vec<_> = read[..kept].iter().map(|download| download.number).collect();
        let (oldest, others) = (read[kept], &read[kept + 1..]);
        let first = oldest.footer.first;
        let again = (!others.is_empty()).then(|| logs_in_file(disk, oldest)).transpose()?;
        let begin = again.as_ref().unwrap_or(&oldest.logs); // the newest one is not in a file
        let logs = firsts(iter::once(begin).chain(others.iter().map(|download| &download.logs)));
        for number in removed {
            if let Some(download) = self.here.remove(&number) {
                remove(disk, &file_name(download.footer.number))?;
            }
        }
        Ok((first, logs))
    }
}

/// The logs of an object whose segment file is there, with those where it begins.
fn logs_in_file(disk: &dyn Disk, of: &Download) -> Result<LogsOfObject> {
    let name = file_name(of.footer.number);
    let mut bytes = vec![0; of.bytes];
    let read = disk.open(&name, false).and_then(|file| file.read_at(0, &mut bytes));
    read.map_err(|e| Error::io("read", &disk.path().join(name), e))?;
    Ok(LogsOfObject::read(&bytes, &of.footer))
}

/// Whether everything before an object is discarded, which begins with record `first`, and in whose opening the log begins with `log_first`.
/// Its maker has told the store so before it put the object: the begin of the log `log`, or for objects under a pin the first of them.
///
/// # Errors
/// Those of [`Vault`].
pub(super) fn is_discarded_before(
    vault: &dyn Vault,
    log: LogId,
    pinned_from: Option<u64>,
    (number, first, log_first): (u64, Index, Index),
) -> Result<bool> {
    let said = || match pinned_from {
        Some(first) => Ok(first),
        None => newest_begin(vault, log).map(Option::unwrap_or_default),
    };
    Ok(log_first >= first || said()? >= number)
}

/// The error of an object that does not begin where the one before it ends, although that one is not discarded.
pub(super) fn contradiction(before: &str, name: &str) -> Error {
    let what = format!(
        "{name} does not begin where {before} ends, and no discard is known that would explain it: one of them is of another history of \
         the log"
    );
    Error::new(ErrorKind::Corrupt, what)
}

/// The memory that may be taken at a time.
struct Memory {
    max: u64,
    taken: Mutex<u64>,
    freed: Condvar,
}

/// Memory that is taken until this is dropped.
struct Taken<'a>(&'a Memory, u64);

impl Memory {
    fn new(max: u64) -> Self {
        Self { max, taken: Mutex::default(), freed: Condvar::new() }
    }

    /// Waits until this many bytes are free. More than there are at all are free once nothing is taken.
    fn take(&self, bytes: u64) -> Taken<'_> {
        let bytes = bytes.min(self.max);
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |taken: &mut u64| *taken + bytes > self.max;
        let mut taken = self.freed.wait_while(taken, is_full).unwrap_or_else(PoisonError::into_inner);
        *taken += bytes;
        Taken(self, bytes)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= self.1;
        self.0.freed.notify_all();
    }
}

/// Fetches an object, and returns its segment file as one of the log that `lineage` is of.
///
/// # Errors
/// `Corrupt`: it is damaged. Those of [`Vault`].
pub(super) fn get(
    vault: &dyn Vault,
    lineage: &Lineage,
    (number, object): &(u64, ObjectInfo),
) -> Result<(Footer, Bytes)> {
    let (bytes, owner) = (vault.get(&object.name, 0..object.bytes)?, lineage.owner(*number));
    let bytes = segment_file_of(owner, *number, &object.name, bytes)?;
    let footer = check(owner, *number, &object.name, &bytes)?;
    let is_own = owner == lineage.log;
    Ok((footer, if is_own { bytes } else { adopted(lineage.log, bytes, &object.name)? }))
}

/// The segment file of an object, whose bytes these are: itself, unless its records are log by log.
pub(super) fn segment_file_of(log: LogId, number: u64, name: &str, bytes: Bytes) -> Result<Bytes> {
    if !is_sorted(&bytes) {
        return Ok(bytes);
    }
    Ok(unsort(log, number, &bytes, name)?.pieces.concat().into())
}

/// Checks that an object is the one that its name says, and returns its footer.
pub(super) fn check(log: LogId, number: u64, name: &str, bytes: &Bytes) -> Result<Footer> {
    let wrong = |offset: usize, why: &str| Error::corrupt(Path::new(name), offset as u64, why);
    let header = SegmentHeader::parse(bytes).map_err(|fault| match fault {
        HeaderFault::Malformed(why) => wrong(0, why),
        HeaderFault::Newer(version) => {
            let what = format!("{name} is of format {version}, which this version does not read");
            Error::new(ErrorKind::Unsupported, what)
        }
    })?;
    let id: SegmentId = salt(log, number);
    if (header.log, header.number, header.id) != (log, number + 1, id) || header.bytes as usize != bytes.len()
    {
        return Err(wrong(0, "it is another object than its name says"));
    }
    let footer_at = bytes.len() - FOOTER_BYTES;
    let footer = bytes[footer_at..].first_chunk().ok_or("object is cut off");
    let footer = footer.and_then(|footer| Footer::parse(footer, header.number, id));
    let footer = footer.map_err(|why| wrong(footer_at, why))?;
    if !footer.fits(bytes.len()) || (footer.data_end as usize) < SEGMENT_HEADER_BYTES {
        return Err(wrong(footer_at, "segment footer has impossible offsets"));
    }
    Ok(footer)
}

/// The segment file of an ancestor's object as one of the log `log`: its header has another id.
fn adopted(log: LogId, bytes: Bytes, name: &str) -> Result<Bytes> {
    let header = SegmentHeader::parse(&bytes);
    let header = header.map_err(|_| Error::corrupt(Path::new(name), 0, "segment header is malformed"))?;
    let head = SegmentHeader { log, ..header }.encode();
    Ok([&head, &bytes[head.len()..]].concat().into())
}

/// Writes the first bytes of an object as a segment file, and zeros behind them, durably.
pub(super) fn write(disk: &dyn Disk, number: u64, bytes: &Bytes, count: usize) -> Result<()> {
    let (kept, rest) = (&bytes[..count], vec![0; bytes.len() - count]);
    let write = || {
        let file = disk.create(&file_name(number))?;
        file.write_at(0, &[IoSlice::new(kept), IoSlice::new(&rest)])?;
        file.sync()
    };
    write().map_err(|e| Error::io("write", &disk.path().join(file_name(number)), e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Small objects are fetched together beside large ones, and one that is larger than the bound alone.
    #[test]
    fn memory_of_a_fetch_is_bounded() {
        let (memory, most, now) = (Memory::new(100), AtomicU64::new(0), AtomicU64::new(0));
        let take = |bytes: &u64| {
            let _taken = memory.take(*bytes);
            let sum = now.fetch_add(*bytes.min(&100), Ordering::SeqCst) + bytes.min(&100);
            most.fetch_max(sum, Ordering::SeqCst);
            std::thread::yield_now();
            now.fetch_sub(*bytes.min(&100), Ordering::SeqCst);
            Ok(())
        };
        in_parallel(10, &[30, 30, 30, 99, 100, 5000, 1, 1, 1, 40], take, |()| {}).unwrap();
        assert!(most.load(Ordering::SeqCst) <= 100, "{most:?}");
        assert_eq!(*memory.taken.lock().unwrap(), 0);
        let _three = [memory.take(30), memory.take(30), memory.take(40)]; // together
    }
}
