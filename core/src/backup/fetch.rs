//! Fetch: a backup made of the objects of a log in an object store, without any replica.
//!
//! ```text
//!  objects k, k+1 … n  ──>  segment files, as they are; the last one without its footer, so that the log can go on behind it,
//!                           and with record k's first as the log's, because no object knows of a discard that came after it
//!                      ──>  identity of a follower  ──>  opened, closed, sealed like any backup
//! ```
//!
//! Invariant: nothing is taken on trust. Recovery checks how the files follow each other, and the seal reads every block.
//!
//! Must not know: the network, which object store it is.

use crate::api::follower::FollowerLog;
use crate::backup::{Backup, Progress};
use crate::disk::Disk;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::replica::open::disk_at;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::format::geometry::{FOOTER_BYTES, SEGMENT_HEADER_BYTES};
use crate::store::format::identity::{IDENTITY_FILE, Identity};
use crate::store::format::objects;
use crate::store::format::segment::{Footer, HeaderFault, Opening, SegmentHeader, digest_of_bytes};
use crate::store::objects::deletion::{is_pinned, newest_begin};
use crate::store::objects::names::{folder, object_number, root_log, salt};
use crate::store::segment::file_name;
use crate::sync::threads::in_parallel;
use crate::types::{Index, LogId, SegmentId};
use crate::vault::{ObjectInfo, Vault};
use bytes::Bytes;
use std::io::IoSlice;
use std::path::Path;

/// How many objects are fetched at a time.
const AT_A_TIME: usize = 8;

impl Backup {
    /// The logs that have objects in an object store, by their ids. Blocks for the network.
    ///
    /// ```
    /// # let vault = chiplog::vault::MemoryVault::default();
    /// assert!(chiplog::backup::Backup::logs_in(&vault)?.is_empty());
    /// # Ok::<(), chiplog::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Vault`].
    pub fn logs_in(vault: &dyn Vault) -> Result<Vec<LogId>> {
        Ok(vault.list("")?.iter().filter_map(|object| root_log(&object.name)).collect())
    }

    /// Makes a backup in `dest`, which must be missing or empty, of all objects that a log has in an object store. No replica
    /// is needed: this is how a log comes back whose replicas are all lost. Records that were in no object are not in it.
    ///
    /// `progress` is called with the bytes fetched and the total. Fetches eight objects at a time, each whole in memory.
    /// Blocks until the backup is finished and durable.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use chiplog::backup::Backup;
    /// use chiplog::vault::{MemoryVault, Vault};
    /// # let dir = tempfile::tempdir()?;
    /// let vault: Arc<dyn Vault> = Arc::new(MemoryVault::default());
    /// let log = chiplog::LogId(7);
    /// let error = Backup::fetch(&*vault, log, dir.path().join("backup"), &mut |_done, _total| {}).unwrap_err();
    /// assert_eq!(error.kind(), chiplog::ErrorKind::NotFound); // it has no objects
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`: the log has no objects there. `Corrupt`: an object is missing between others, or damaged; the message names
    /// it. `InvalidArgument`: `dest` is not empty. Those of [`Vault`]. `Full`, `Io`, `Unsupported`. After an error `dest` is as
    /// it was before.
    pub fn fetch(
        vault: &dyn Vault,
        log: LogId,
        dest: impl AsRef<Path>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        Self::fetch_objects(vault, log, &objects_of(vault, log)?, dest.as_ref(), progress)
    }

    /// Makes a backup of these objects, which have no gap.
    pub(super) fn fetch_objects(
        vault: &dyn Vault,
        log: LogId,
        objects: &[(u64, ObjectInfo)],
        dest: &Path,
        progress: Progress<'_>,
    ) -> Result<Self> {
        Self::begin(dest)?;
        Self::fill_from(vault, log, objects, dest, progress).inspect_err(|_| {
            // The caller gets the first error. Files that cannot be removed remain as an unfinished backup.
            let _ = Self::abandon(dest);
        })
    }

    fn fill_from(
        vault: &dyn Vault,
        log: LogId,
        objects: &[(u64, ObjectInfo)],
        dest: &Path,
        progress: Progress<'_>,
    ) -> Result<Self> {
        let disk = disk_at(dest, false)?;
        let (last, before) = objects.split_last().ok_or_else(|| no_objects(log))?;
        let total = objects.iter().map(|(_, object)| object.bytes).sum();
        let get = |(number, object): &(u64, ObjectInfo)| {
            let bytes = vault.get(&object.name, 0..object.bytes)?;
            let footer = check(log, *number, &object.name, &bytes)?;
            Ok((footer, bytes))
        };
        let copy = |object: &(u64, ObjectInfo)| {
            let (footer, bytes) = get(object)?;
            write(&*disk, footer.number, &bytes, bytes.len())?;
            Ok((footer, bytes.len()))
        };
        let (mut done, mut segment_bytes, mut footers) = (0, 0, Vec::new());
        let mut note = |(footer, bytes): (Footer, usize)| {
            done += bytes as u64;
            segment_bytes = segment_bytes.max(bytes as u32);
            footers.push(footer);
            progress(done, total);
        };
        in_parallel(AT_A_TIME, before, copy, &mut note)?;
        let (footer, bytes) = get(last)?;
        note((footer, bytes.len()));
        let first = remove_discarded(&*disk, footers)?;
        let bytes = begin_with(first, footer.id, bytes, &last.1.name)?;
        // A segment with a footer has a successor. The last one has none, and is read from its beginning.
        write(&*disk, footer.number, &bytes, footer.data_end as usize)?;
        let made = Identity::random(&*disk, Options::default().clock.now());
        let made = made.map_err(|e| Error::io("make", disk.path(), e))?;
        disk.create(IDENTITY_FILE).map_err(|e| Error::io("make", &disk.path().join(IDENTITY_FILE), e))?;
        Identity { log, follows: true, ..made }.write(&*disk)?;
        // Opening it proves its end, and closing it leaves it as a backup has to be.
        FollowerLog::open(dest, Self::copy_options(segment_bytes))?.close()?;
        Self::seal(dest)
    }
}

fn no_objects(log: LogId) -> Error {
    Error::new(ErrorKind::NotFound, format!("log {:032x} has no objects in the object store", log.0))
}

/// The objects of a log that are needed, by their numbers, without a gap. Objects whose records are known to be discarded are not:
/// they may be deleted, or have never been stored.
pub(crate) fn objects_of(vault: &dyn Vault, log: LogId) -> Result<Vec<(u64, ObjectInfo)>> {
    let found = vault.list(&folder(log))?.into_iter();
    let mut objects: Vec<_> =
        found.filter_map(|object| Some((object_number(log, &object.name)?, object))).collect();
    objects.sort_unstable_by_key(|(number, _)| *number);
    let last = objects.last().ok_or_else(|| no_objects(log))?;
    let said = newest_begin(vault, log)?.unwrap_or(0);
    let oldest = if said <= last.0 {
        said.max(oldest_at(vault, log, last)?)
    } else if said > last.0 + 1 && is_pinned(vault, log, last.0)? {
        // How far the log was cannot be seen: newer objects were deleted, and a pin keeps these.
        let what = format!(
            "all records of log {:032x} are discarded. The objects that are left are kept by pins: fetch those",
            log.0
        );
        return Err(Error::new(ErrorKind::Discarded, what));
    } else {
        // The records of all of them are discarded. The newest ones still tell how far the log was.
        let behind_gap =
            objects.windows(2).rev().find(|pair| pair[0].0 + 1 != pair[1].0).map(|pair| pair[1].0);
        behind_gap.or(objects.first().map(|(number, _)| *number)).unwrap_or(0)
    };
    objects.retain(|(number, _)| *number >= oldest);
    let numbers = objects.iter().map(|(number, _)| *number);
    if let Some((missing, next)) = (oldest..).zip(numbers).find(|(wanted, number)| wanted != number) {
        let what = format!(
            "object {missing} of log {:032x} is missing in the object store: the next one there is {next}, and no discard is \
             known that would explain it",
            log.0
        );
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    Ok(objects)
}

/// The number of the oldest object whose records were not all discarded when this one began, as its opening says.
fn oldest_at(vault: &dyn Vault, log: LogId, object: &(u64, ObjectInfo)) -> Result<u64> {
    let opening = opening_at(vault, log, object)?;
    if opening.objects.is_empty() {
        return Ok(0);
    }
    let at = SEGMENT_HEADER_BYTES as u64;
    let (objects, _) = objects::decode(&opening.objects)
        .map_err(|why| Error::corrupt(Path::new(&object.1.name), at, why))?;
    Ok(objects.number.min(object.0))
}

/// The opening of an object.
pub(super) fn opening_at(vault: &dyn Vault, log: LogId, object: &(u64, ObjectInfo)) -> Result<Opening> {
    let (number, object) = object;
    let at = SEGMENT_HEADER_BYTES as u64;
    let head = at + BLOCK_HEADER_BYTES as u64;
    let corrupt = |why| Error::corrupt(Path::new(&object.name), at, why);
    if object.bytes < head {
        return Err(corrupt("object is cut off"));
    }
    let header =
        BlockHeader::parse(&vault.get(&object.name, at..head)?, salt(log, *number)).map_err(corrupt)?;
    let end = at + u64::from(header.length);
    if header.kind != Kind::Opening || end > object.bytes {
        return Err(corrupt("object does not begin with an opening"));
    }
    Opening::parse(&vault.get(&object.name, head..end)?).map_err(corrupt)
}

/// The footer of an object.
pub(super) fn footer_at(vault: &dyn Vault, log: LogId, object: &(u64, ObjectInfo)) -> Result<Footer> {
    let (number, object) = object;
    let at = object.bytes.saturating_sub(FOOTER_BYTES as u64);
    let corrupt = |why| Error::corrupt(Path::new(&object.name), at, why);
    let bytes = vault.get(&object.name, at..object.bytes)?;
    let bytes = bytes.first_chunk().ok_or("object is cut off").map_err(corrupt)?;
    Footer::parse(bytes, *number + 1, salt(log, *number)).map_err(corrupt)
}

/// Checks that an object is the one that its name says, and returns its footer.
fn check(log: LogId, number: u64, name: &str, bytes: &Bytes) -> Result<Footer> {
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

/// Removes the files before the last one that does not begin where the one before it ends. Objects are cut like this only if
/// everything in between, and so everything before, is discarded. Returns the first record of the files that are left.
fn remove_discarded(disk: &dyn Disk, mut footers: Vec<Footer>) -> Result<Index> {
    footers.sort_unstable_by_key(|footer| footer.number);
    let follows = |pair: &[Footer]| {
        let end = (pair[0].last_raft, pair[0].last_term, pair[0].next);
        end == (pair[1].base_raft, pair[1].base_term, pair[1].first)
    };
    let kept = footers.windows(2).rposition(|pair| !follows(pair)).map_or(0, |n| n + 1);
    for footer in &footers[..kept] {
        let name = file_name(footer.number);
        disk.remove(&name).map_err(|e| Error::io("remove", &disk.path().join(name), e))?;
    }
    Ok(footers.get(kept).map_or(Index(0), |footer| footer.first))
}

/// The bytes of the newest object, whose opening says that the log begins with record `first`, or later if it knows of a discard.
/// As it was stored, it knows of no later discard, and recovery would look for files with older records. An opening from before
/// the first cut does not know of the objects before it: then recovery would take none.
fn begin_with(first: Index, id: SegmentId, bytes: Bytes, name: &str) -> Result<Bytes> {
    let at = SEGMENT_HEADER_BYTES;
    let wrong = |why| Error::corrupt(Path::new(name), at as u64, why);
    let body = at + BLOCK_HEADER_BYTES;
    let head = bytes.get(at..body).ok_or("object is cut off").map_err(wrong)?;
    let header = BlockHeader::parse(head, id).map_err(wrong)?;
    let end = at + header.length as usize;
    let is_opening = header.kind == Kind::Opening && end >= body;
    let old = bytes.get(body..end).filter(|_| is_opening);
    let old = old.ok_or("object does not begin with an opening").map_err(wrong)?;
    let opening = Opening::parse(old).map_err(wrong)?;
    let log_first = if opening.objects.is_empty() { first } else { opening.log_first.max(first) };
    if opening.log_first == log_first || digest_of_bytes(&[old]) != header.body_digest {
        return Ok(bytes); // damage is found when the file is read
    }
    let new = Opening { log_first, ..opening }.encode();
    let header = BlockHeader { body_digest: digest_of_bytes(&[&new]), ..header };
    let mut bytes = bytes.to_vec();
    bytes[at..body].copy_from_slice(&header.encode(id));
    let to = bytes.get_mut(body..end).filter(|to| to.len() == new.len());
    to.ok_or("opening has unknown parts").map_err(wrong)?.copy_from_slice(&new);
    Ok(bytes.into())
}

/// Writes the first bytes of an object as a segment file, and zeros behind them, durably.
fn write(disk: &dyn Disk, number: u64, bytes: &Bytes, count: usize) -> Result<()> {
    let (kept, rest) = (&bytes[..count], vec![0; bytes.len() - count]);
    let write = || {
        let file = disk.create(&file_name(number))?;
        file.write_at(0, &[IoSlice::new(kept), IoSlice::new(&rest)])?;
        file.sync()
    };
    write().map_err(|e| Error::io("write", &disk.path().join(file_name(number)), e))
}
