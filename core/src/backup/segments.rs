//! Segments: a backup, or a copy, that is made of the files of a log's sealed segments, as a server passes them on
//! (`store/read/sealed_file.rs`). They become the files of a copy, which is opened and closed: that proves the end of the last one, and
//! seals the others.
//!
//! ```text
//!  list ──> files that are not here yet ──> list again, if one went meanwhile ──> newest opening: first record ──> copy ──> seal: a backup
//!                                                                                                                   └─> every block: a copy
//! ```
//!
//! Until a copy is finished its directory has the file `chiplog.copy.tmp`, which is locked meanwhile. After a crash, or an error that can
//! pass, the next attempt keeps the files that begin as the server's do, except the newest: a file gets its name once it is whole and durable.
//!
//! Invariants:
//! - a backup begins with the oldest file that was there in the last look, or where the newest opening says, if that is later; also if the log's own entries about that discard are in none of
//!   the files;
//! - nothing is taken on trust: recovery and the seal read every file, and what is behind the blocks of the last one has to be zero.
//!
//! Must not know: the network.

use super::fetch::{begin_with, opening_bytes_of};
use super::still::Still;
use super::{Backup, PIECE_BYTES, Progress, is_of_log, list, lock, lock_file, remove, remove_log};
use crate::api::follower::FollowerLog;
use crate::disk::{Disk, Lock};
use crate::error::{Error, ErrorKind, Result};
use crate::follower::message::FollowFrom;
use crate::options::Options;
use crate::replica::open::disk_at;
use crate::replica::state::log_table::LogTable;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader};
use crate::store::format::geometry::SEGMENT_HEADER_BYTES;
use crate::store::format::identity::{IDENTITY_FILE, Identity};
use crate::store::format::segment::{HeaderFault, Opening, SegmentHeader};
use crate::store::segment::{file_name, file_number};
use crate::sync::threads::in_parallel;
use crate::types::{EntryIndex, Index, LogId};
use crate::vault::{ObjectInfo, Vault};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

/// The file in the directory of a copy that is not finished, and what is in it.
const UNFINISHED_COPY: &str = "chiplog.copy.tmp";
const UNFINISHED_TEXT: &[u8] = b"this copy is not finished\n";

/// How many files are downloaded at a time.
const AT_A_TIME: usize = 2;
/// How often the list is read again because files went before they were read.
const LOOKS_MAX: u32 = 20;

/// The remark about such a backup.
const NOTE: &str = "made of the sealed segments of a server: records that were in the segment which was still written are not in it";

impl Backup {
    /// Makes a backup in `dest`, which must be missing or empty, of the sealed segments of a log that has no object store. `vault` has their
    /// files as `LOG/00000000000000000001.seg`: a server passes them on like this. Records in the segment that is still written are not in
    /// it; follow the log for these.
    ///
    /// `progress` is called with the bytes fetched and the total. Downloads two files at a time. If the log discards files
    /// meanwhile, the backup begins behind them. Blocks until the backup is finished and durable.
    ///
    /// # Errors
    /// `NotFound`: the log has no sealed segment. `Busy`: files went, time and again, before they were read. `Corrupt`: a file is damaged
    /// or missing. `Unsupported`: it is a group of named logs, or has a newer format. `InvalidArgument`: `dest` is not empty. Those of
    /// [`Vault`]. `Full`, `Io`. After an error `dest` is as it was before.
    #[doc(hidden)]
    pub fn fetch_segments(
        vault: &dyn Vault,
        log: LogId,
        dest: impl AsRef<Path>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let dest = dest.as_ref();
        Self::begin(dest)?;
        let made = copy_segments(vault, log, &disk_at(dest, false)?, progress)
            .and_then(|()| Self::seal_with(dest, false, vec![NOTE.to_owned()]));
        made.inspect_err(|_| {
            // The caller gets the first error. Files that cannot be removed remain as an unfinished backup.
            let _ = Self::abandon(dest);
        })
    }

    /// Makes a copy in `dest` of the sealed segments of a log that has no object store, as [`Self::fetch_segments`] makes a backup. A
    /// follower goes on with it: [`FollowerLog::open`]. `dest` must hold no log; if an earlier call was interrupted there, this one goes on
    /// with the files that are the same at the server. Blocks until the copy is finished and durable.
    ///
    /// # Errors
    /// As [`Self::fetch_segments`]; `Locked`: another process makes the copy. After `NotFound`, `Corrupt` and `Unsupported` nothing is left in
    /// `dest`. After other errors, and after a crash, files are: call it again, or [`Self::abandon_copy`].
    #[doc(hidden)]
    pub fn fetch_copy(
        vault: &dyn Vault,
        log: LogId,
        dest: impl AsRef<Path>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        Self::fetch_copy_on(vault, log, &disk_at(dest.as_ref(), true)?, progress)
    }

    /// As [`Self::fetch_copy`], on another implementation of [`Disk`].
    ///
    /// # Errors
    /// As [`Self::fetch_copy`].
    #[doc(hidden)]
    pub fn fetch_copy_on(
        vault: &dyn Vault,
        log: LogId,
        disk: &Arc<dyn Disk>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let _lock = begin_copy(&**disk)?;
        let made = copy_segments(vault, log, disk, progress)
            .and_then(|()| Still::look(disk)?.walk(PIECE_BYTES))
            .and_then(|()| end_copy(&**disk));
        made.inspect_err(|error| {
            let is_final =
                matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt | ErrorKind::Unsupported);
            if is_final {
                // The caller gets the first error. Files that cannot be removed remain as an unfinished copy.
                let _ = remove_log(&**disk).and_then(|()| end_copy(&**disk));
            }
        })
    }

    /// Whether a directory has a copy that [`Self::fetch_copy`] began and did not finish.
    #[doc(hidden)]
    pub fn is_unfinished_copy(dir: impl AsRef<Path>) -> bool {
        dir.as_ref().join(UNFINISHED_COPY).is_file()
    }

    /// Removes what [`Self::fetch_copy`] left in `dest`; the directory stays.
    ///
    /// # Errors
    /// `Locked`: another process makes the copy, or has it open. `InvalidArgument`: there is no unfinished copy. `Io`.
    #[doc(hidden)]
    pub fn abandon_copy(dest: impl AsRef<Path>) -> Result<()> {
        let disk = disk_at(dest.as_ref(), false)?;
        let _lock = begin_copy(&*disk)?;
        remove_log(&*disk)?;
        end_copy(&*disk)
    }
}

/// Begins a copy, or goes on with one. Returns the lock on its file, which says that it is not finished. Refuses where a log was made beside
/// that file since.
fn begin_copy(disk: &dyn Disk) -> Result<Box<dyn Lock>> {
    let names = list(disk)?;
    if !names.iter().any(|name| name == UNFINISHED_COPY) {
        check_vacant(disk, &names)?;
    }
    let lock = lock_file(disk, UNFINISHED_COPY)?;
    if Identity::read(disk)?.is_some_and(|identity| !identity.follows) {
        let what = format!(
            "{} holds a log of its own, which is no copy: remove {UNFINISHED_COPY} there, which is left of a copy that was not finished",
            disk.path().display()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    let wrong = |e| Error::io("begin a copy in", disk.path(), e);
    let file = disk.open(UNFINISHED_COPY, true).map_err(wrong)?;
    if file.len().map_err(wrong)? != UNFINISHED_TEXT.len() as u64 {
        // Nothing was fetched before it had its text. With a log beside it, another process has just finished one.
        check_vacant(disk, &list(disk)?).inspect_err(|_| _ = disk.remove(UNFINISHED_COPY))?;
        let write = || {
            file.write_at(0, &[IoSlice::new(UNFINISHED_TEXT)])?;
            file.sync()?;
            disk.sync_dir()?;
            disk.sync_ancestors()
        };
        write().map_err(wrong)?;
    }
    Ok(lock)
}

/// Checks that a directory has neither a log nor a backup.
fn check_vacant(disk: &dyn Disk, names: &[String]) -> Result<()> {
    let is_taken =
        |name: &&String| *name != UNFINISHED_COPY && (is_of_log(name) || name.starts_with("chiplog."));
    let Some(name) = names.iter().filter(is_taken).min() else { return Ok(()) };
    let what = format!("{} holds a log or a backup already ({name} is there)", disk.path().display());
    Err(Error::new(ErrorKind::InvalidArgument, what))
}

/// Ends a copy, durably: it is finished, or removed.
fn end_copy(disk: &dyn Disk) -> Result<()> {
    let sync = || disk.sync_dir().map_err(|e| Error::io("sync", disk.path(), e));
    sync()?;
    remove(disk, UNFINISHED_COPY)?;
    sync()
}

/// Makes a closed copy of the sealed segments of a log.
fn copy_segments(vault: &dyn Vault, log: LogId, disk: &Arc<dyn Disk>, progress: Progress<'_>) -> Result<()> {
    let (oldest, newest) = download(vault, log, &**disk, progress)?;
    let first = first_in(&**disk, oldest)?;
    let (last_entry, bytes) = begin_at(&**disk, newest, first)?;
    let made = Identity::random(&**disk, Options::default().clock.now());
    let made = made.map_err(|e| Error::io("make", disk.path(), e))?;
    disk.create(IDENTITY_FILE).map_err(|e| Error::io("make", &disk.path().join(IDENTITY_FILE), e))?;
    Identity { log, follows: true, ..made }.write(&**disk)?;
    let copy = FollowerLog::open_on(disk.clone(), Backup::copy_options(bytes))?;
    // A file that grew last is cut where its end is torn. That of a sealed segment has no such end: this is damage.
    let (FollowFrom::After { raft, .. } | FollowFrom::AfterRecord { raft, .. }) = copy.resume_point()? else {
        unreachable!("a copy goes on behind its last entry")
    };
    if raft != last_entry {
        let what = format!("its blocks do not lead to entry {last_entry}, with which they end");
        return Err(Error::corrupt(&disk.path().join(file_name(newest)), 0, what));
    }
    copy.close()
}

/// Downloads the files of all sealed segments, durably. Returns the numbers of the oldest and the newest one.
fn download(vault: &dyn Vault, log: LogId, disk: &dyn Disk, progress: Progress<'_>) -> Result<(u64, u64)> {
    let mut here = BTreeMap::new();
    let mut upto = 0;
    for look in 0..LOOKS_MAX {
        let mut there = listed(vault, log)?;
        let (Some(oldest), Some(newest)) = (there.keys().next().copied(), there.keys().next_back().copied())
        else {
            let what = format!(
                "log {:032x} has no sealed segment there: all its records are in the segment that is still written",
                log.0
            );
            return Err(Error::new(ErrorKind::NotFound, what));
        };
        // A log that goes on seals more meanwhile: those that were there in the beginning are enough.
        if upto < oldest {
            upto = newest;
        }
        there.retain(|number, _| *number <= upto);
        if look == 0 {
            here = kept(vault, disk, &there)?;
        }
        for number in here.keys().filter(|number| !there.contains_key(number)) {
            remove(disk, &file_name(*number))?;
        }
        here.retain(|number, _| there.contains_key(number));
        let total = there.values().map(|object: &ObjectInfo| object.bytes).sum();
        let mut done: u64 = here.values().sum();
        progress(done, total);
        let lacking: Vec<_> = there.iter().filter(|(number, _)| !here.contains_key(number)).collect();
        let get = |(number, object): &(&u64, &ObjectInfo)| {
            let is_here = get(vault, log, disk, **number, object)?;
            Ok(is_here.then_some((**number, object.bytes)))
        };
        in_parallel(AT_A_TIME, &lacking, get, |got| {
            if let Some((number, bytes)) = got {
                here.insert(number, bytes);
                done += bytes;
                progress(done, total);
            }
        })?;
        if here.len() == there.len() {
            disk.sync_dir().map_err(|e| Error::io("sync", disk.path(), e))?;
            return Ok((oldest, there.keys().next_back().copied().unwrap_or(upto)));
        }
    }
    let what = format!("segments of log {:032x} go faster than they can be read: try again", log.0);
    Err(Error::new(ErrorKind::Busy, what))
}

/// The files that there are, by their numbers.
fn listed(vault: &dyn Vault, log: LogId) -> Result<BTreeMap<u64, ObjectInfo>> {
    let folder = format!("{:032x}/", log.0);
    let all = vault.list(&folder)?.into_iter();
    Ok(all.filter_map(|object| Some((file_number(object.name.strip_prefix(&folder)?)?, object))).collect())
}

/// Removes the log's files that are here, except those of an earlier attempt that begin as the log's do: each file has an id in its header,
/// and its opening can have been changed here. That of the newest segment goes as well: it can have been written on and sealed here. Returns
/// the sizes of those that stay.
fn kept(vault: &dyn Vault, disk: &dyn Disk, there: &BTreeMap<u64, ObjectInfo>) -> Result<BTreeMap<u64, u64>> {
    let mut kept = BTreeMap::new();
    let names: Vec<_> = list(disk)?.into_iter().filter(|name| is_of_log(name)).collect();
    if names.is_empty() {
        return Ok(kept);
    }
    let _lock = lock(disk)?;
    let newest = there.keys().next_back();
    for name in names.into_iter().filter(|name| name != IDENTITY_FILE) {
        let number = file_number(&name).filter(|number| Some(number) != newest);
        match number.and_then(|number| Some((number, there.get(&number)?))) {
            Some((number, object)) if begins_as(vault, disk, &name, object)? => {
                kept.insert(number, object.bytes);
            }
            _ => remove(disk, &name)?,
        }
    }
    remove(disk, IDENTITY_FILE)?;
    Ok(kept)
}

/// Whether a file begins as one of the server's: with the same header and opening.
fn begins_as(vault: &dyn Vault, disk: &dyn Disk, name: &str, object: &ObjectInfo) -> Result<bool> {
    let head = read(disk, name, SEGMENT_HEADER_BYTES + BLOCK_HEADER_BYTES)?;
    let Ok(header) = SegmentHeader::parse(&head) else { return Ok(false) };
    let opening = opening_bytes_of(&head, header.id) as usize;
    if opening == 0 || u64::from(header.bytes) != object.bytes {
        return Ok(false);
    }
    let begin = read(disk, name, SEGMENT_HEADER_BYTES + opening)?;
    match vault.get(&object.name, 0..begin.len() as u64) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        there => Ok(there? == begin),
    }
}

/// Downloads one file, durably, and checks its header. False: it is not there any more.
fn get(vault: &dyn Vault, log: LogId, disk: &dyn Disk, number: u64, object: &ObjectInfo) -> Result<bool> {
    let name = format!("{number:020}.tmp");
    let path = disk.path().join(&name);
    let wrong = |e| Error::io("write", &path, e);
    let file = disk.create(&name).map_err(wrong)?;
    let mut at = 0;
    let got = vault.get_pieces(&object.name, 0..object.bytes, &mut |piece| {
        file.write_at(at, &[IoSlice::new(&piece)]).map_err(wrong)?;
        at += piece.len() as u64;
        Ok(())
    });
    match got {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            drop(file);
            remove(disk, &name)?;
            return Ok(false);
        }
        got => got?,
    }
    file.sync().map_err(wrong)?;
    let header = header_of(&object.name, &read(disk, &name, SEGMENT_HEADER_BYTES)?)?;
    if (header.log, header.number, u64::from(header.bytes)) != (log, number, object.bytes) {
        return Err(Error::corrupt(Path::new(&object.name), 0, "it is the file of another segment"));
    }
    disk.rename(&name, &file_name(number)).map_err(wrong)?;
    Ok(true)
}

fn header_of(name: &str, bytes: &[u8]) -> Result<SegmentHeader> {
    SegmentHeader::parse(bytes).map_err(|fault| match fault {
        HeaderFault::Malformed(why) => Error::corrupt(Path::new(name), 0, why),
        HeaderFault::Newer(version) => {
            let what = format!("{name} is of format {version}, which this version does not read");
            Error::new(ErrorKind::Unsupported, what)
        }
    })
}

/// The first bytes of a file.
fn read(disk: &dyn Disk, name: &str, count: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    let read = disk.open(name, false).and_then(|file| file.read_at(0, &mut bytes));
    read.map_err(|e| Error::io("read", &disk.path().join(name), e))?;
    Ok(bytes)
}

/// The first record of a segment, as its opening says.
fn first_in(disk: &dyn Disk, number: u64) -> Result<Index> {
    let name = file_name(number);
    let bytes = read(disk, &name, SEGMENT_HEADER_BYTES + BLOCK_HEADER_BYTES)?;
    let header = BlockHeader::parse(&bytes[SEGMENT_HEADER_BYTES..], header_of(&name, &bytes)?.id);
    let at = SEGMENT_HEADER_BYTES as u64;
    header.map(|header| header.first).map_err(|why| Error::corrupt(&disk.path().join(&name), at, why))
}

/// Has the opening of the newest segment say that the log begins with record `first`, unless it says that it begins later. Returns the
/// last entry of the segment, and the size of its file.
fn begin_at(disk: &dyn Disk, number: u64, first: Index) -> Result<(EntryIndex, u32)> {
    let name = file_name(number);
    let path = disk.path().join(&name);
    let size = header_of(&name, &read(disk, &name, SEGMENT_HEADER_BYTES)?)?.bytes;
    let bytes = Bytes::from(read(disk, &name, size as usize)?);
    let id = header_of(&name, &bytes)?.id;
    let (mut at, mut last_entry) = (SEGMENT_HEADER_BYTES, EntryIndex(0));
    while let Some(head) = bytes.get(at..at + BLOCK_HEADER_BYTES)
        && let Ok(header) = BlockHeader::parse(head, id)
    {
        last_entry = header.raft_index;
        at += header.stride();
    }
    if bytes.iter().skip(at).any(|byte| *byte != 0) {
        return Err(Error::corrupt(
            &path,
            at as u64,
            "no sound block begins here, and there is more behind it",
        ));
    }
    let opening = opening_bytes_of(&bytes, id) as usize;
    let body = bytes.get(SEGMENT_HEADER_BYTES + BLOCK_HEADER_BYTES..SEGMENT_HEADER_BYTES + opening);
    let parsed = body.ok_or("it does not begin with an opening").and_then(|body| {
        let opening = Opening::parse(body)?;
        Ok((LogTable::decode(&opening.logs)?, opening.log_first))
    });
    let (logs, log_first) = parsed.map_err(|why| Error::corrupt(&path, SEGMENT_HEADER_BYTES as u64, why))?;
    if logs.is_shared() {
        let what = "the segments are those of a group of named logs: `chiplog backup HOST:PORT/NAME` makes a backup of one of these";
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let begun = begin_with(first.max(log_first), &LogTable::default(), id, bytes, &name)?;
    let write = || {
        let file = disk.open(&name, true)?;
        file.write_at(0, &[IoSlice::new(&begun[..SEGMENT_HEADER_BYTES + opening])])?;
        file.sync()
    };
    write().map_err(|e| Error::io("write", &path, e))?;
    Ok((last_entry, size))
}
