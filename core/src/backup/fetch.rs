//! Fetch: a backup made of the objects of a log in an object store, without any replica.
//!
//! ```text
//!  objects k, k+1 … n  ──>  segment files, as they are; the last one without its footer, so that the log can go on behind it
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
use crate::store::format::segment::{Footer, HeaderFault, Opening, SegmentHeader};
use crate::store::objects::names::{folder, object_number, root_log, salt};
use crate::store::segment::file_name;
use crate::sync::threads::in_parallel;
use crate::types::{LogId, SegmentId};
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
        let dest = dest.as_ref();
        let objects = objects_of(vault, log)?;
        Self::begin(dest)?;
        Self::fill_from(vault, log, &objects, dest, progress).inspect_err(|_| {
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
        let total = objects.iter().map(|(_, object)| object.bytes).sum();
        let last = objects.last().map(|(number, _)| *number);
        let (mut done, mut segment_bytes) = (0, 0);
        let get = |(number, object): &(u64, ObjectInfo)| {
            let bytes = vault.get(&object.name, 0..object.bytes)?;
            write(&*disk, log, *number, &object.name, &bytes, Some(*number) == last)
        };
        in_parallel(AT_A_TIME, objects, get, |bytes| {
            done += u64::from(bytes);
            segment_bytes = bytes.max(segment_bytes);
            progress(done, total);
        })?;
        let made = Identity::random(&*disk, Options::default().clock.now());
        let made = made.map_err(|e| Error::io("make", disk.path(), e))?;
        disk.create(IDENTITY_FILE).map_err(|e| Error::io("make", &disk.path().join(IDENTITY_FILE), e))?;
        Identity { log, follows: true, ..made }.write(&*disk)?;
        // Opening it proves its end, and closing it leaves it as a backup has to be.
        FollowerLog::open(dest, Self::copy_options(segment_bytes))?.close()?;
        Self::seal(dest)
    }
}

/// The objects of a log that are needed, by their numbers, without a gap. Objects whose records were discarded before the newest
/// one began are not: such a one may never have been stored.
fn objects_of(vault: &dyn Vault, log: LogId) -> Result<Vec<(u64, ObjectInfo)>> {
    let found = vault.list(&folder(log))?.into_iter();
    let mut objects: Vec<_> =
        found.filter_map(|object| Some((object_number(log, &object.name)?, object))).collect();
    objects.sort_unstable_by_key(|(number, _)| *number);
    if objects.is_empty() {
        let what = format!("log {:032x} has no objects in the object store", log.0);
        return Err(Error::new(ErrorKind::NotFound, what));
    }
    if let Some((number, newest)) = objects.last() {
        let first = first_needed(vault, log, *number, newest)?;
        objects.retain(|(number, _)| *number >= first);
    }
    if let Some(pair) = objects.windows(2).find(|pair| pair[0].0 + 1 != pair[1].0) {
        let what = format!(
            "object {} of log {:032x} is missing in the object store: there are {} and {}",
            pair[0].0 + 1,
            log.0,
            pair[0].0,
            pair[1].0
        );
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    Ok(objects)
}

/// The number of the oldest object that was not discarded when this one began, as its opening says.
fn first_needed(vault: &dyn Vault, log: LogId, number: u64, object: &ObjectInfo) -> Result<u64> {
    let at = SEGMENT_HEADER_BYTES as u64;
    let head = at + BLOCK_HEADER_BYTES as u64;
    let corrupt = |why| Error::corrupt(Path::new(&object.name), at, why);
    if object.bytes < head {
        return Err(corrupt("object is cut off"));
    }
    let header =
        BlockHeader::parse(&vault.get(&object.name, at..head)?, salt(log, number)).map_err(corrupt)?;
    let end = at + u64::from(header.length);
    if header.kind != Kind::Opening || end > object.bytes {
        return Err(corrupt("object does not begin with an opening"));
    }
    let body = vault.get(&object.name, head..end)?;
    let opening = Opening::parse(&body).map_err(corrupt)?;
    if opening.objects.is_empty() {
        return Ok(0);
    }
    let (objects, _) = objects::decode(&opening.objects).map_err(corrupt)?;
    Ok(objects.number.min(number))
}

/// Writes an object as a segment file, durably. Returns its size.
fn write(disk: &dyn Disk, log: LogId, number: u64, name: &str, bytes: &Bytes, is_last: bool) -> Result<u32> {
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
    let end = footer.data_end as usize;
    if !footer.fits(bytes.len()) || end < SEGMENT_HEADER_BYTES {
        return Err(wrong(footer_at, "segment footer has impossible offsets"));
    }
    // A segment with a footer has a successor. The last one has none, and is read from its beginning.
    let kept = if is_last { bytes.slice(..end) } else { bytes.clone() };
    let rest = vec![0; bytes.len() - kept.len()];
    let write = || {
        let file = disk.create(&file_name(header.number))?;
        file.write_at(0, &[IoSlice::new(&kept), IoSlice::new(&rest)])?;
        file.sync()
    };
    let path = disk.path().join(file_name(header.number));
    write().map_err(|e| Error::io("write", &path, e))?;
    Ok(header.bytes)
}
