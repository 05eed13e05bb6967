//! Segments: a backup that is made of the files of a log's sealed segments, as a server passes them on (`store/read/sealed_file.rs`). They
//! become the files of a copy, which is opened and closed: that proves the end of the last one, and seals the others.
//!
//! ```text
//!  list ──> files that are not here yet ──> list again, if one went meanwhile ──> newest opening: first record ──> copy ──> seal
//! ```
//!
//! Invariants:
//! - a backup begins with the oldest file that was there in the last look, or where the newest opening says, if that is later; also if the log's own entries about that discard are in none of
//!   the files;
//! - nothing is taken on trust: recovery and the seal read every file, and what is behind the blocks of the last one has to be zero.
//!
//! Must not know: the network.

use super::fetch::{begin_with, opening_bytes_of};
use super::{Backup, Progress, remove};
use crate::api::follower::FollowerLog;
use crate::disk::Disk;
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
        let made = download(vault, log, &*disk_at(dest, false)?, progress)
            .and_then(|(oldest, newest)| Self::of_segments(log, dest, oldest, newest));
        made.inspect_err(|_| {
            // The caller gets the first error. Files that cannot be removed remain as an unfinished backup.
            let _ = Self::abandon(dest);
        })
    }

    /// Makes a backup of the files with the numbers from `oldest` to `newest` that are in `dest`.
    fn of_segments(log: LogId, dest: &Path, oldest: u64, newest: u64) -> Result<Self> {
        let disk = disk_at(dest, false)?;
        let first = first_in(&*disk, oldest)?;
        let (last_entry, bytes) = begin_at(&*disk, newest, first)?;
        let made = Identity::random(&*disk, Options::default().clock.now());
        let made = made.map_err(|e| Error::io("make", disk.path(), e))?;
        disk.create(IDENTITY_FILE).map_err(|e| Error::io("make", &disk.path().join(IDENTITY_FILE), e))?;
        Identity { log, follows: true, ..made }.write(&*disk)?;
        let copy = FollowerLog::open(dest, Self::copy_options(bytes))?;
        // A file that grew last is cut where its end is torn. That of a sealed segment has no such end: this is damage.
        let at = copy.resume_point()?;
        if !matches!(at, FollowFrom::After { raft, .. } if raft == last_entry) {
            let what = format!("its blocks do not lead to entry {last_entry}, with which they end");
            return Err(Error::corrupt(&disk.path().join(file_name(newest)), 0, what));
        }
        copy.close()?;
        Self::seal_with(dest, false, vec![NOTE.to_owned()])
    }
}

/// Downloads the files of all sealed segments. Returns the numbers of the oldest and the newest one.
fn download(vault: &dyn Vault, log: LogId, disk: &dyn Disk, progress: Progress<'_>) -> Result<(u64, u64)> {
    let mut here = BTreeMap::new();
    let mut upto = 0;
    for _ in 0..LOOKS_MAX {
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

/// Downloads one file, durably, and checks its header. False: it is not there any more.
fn get(vault: &dyn Vault, log: LogId, disk: &dyn Disk, number: u64, object: &ObjectInfo) -> Result<bool> {
    let name = file_name(number);
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
    let header = header_of(&object.name, &read(disk, number, SEGMENT_HEADER_BYTES)?)?;
    if (header.log, header.number, u64::from(header.bytes)) != (log, number, object.bytes) {
        return Err(Error::corrupt(Path::new(&object.name), 0, "it is the file of another segment"));
    }
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
fn read(disk: &dyn Disk, number: u64, count: usize) -> Result<Vec<u8>> {
    let name = file_name(number);
    let mut bytes = vec![0; count];
    let read = disk.open(&name, false).and_then(|file| file.read_at(0, &mut bytes));
    read.map_err(|e| Error::io("read", &disk.path().join(&name), e))?;
    Ok(bytes)
}

/// The first record of a segment, as its opening says.
fn first_in(disk: &dyn Disk, number: u64) -> Result<Index> {
    let name = file_name(number);
    let bytes = read(disk, number, SEGMENT_HEADER_BYTES + BLOCK_HEADER_BYTES)?;
    let header = BlockHeader::parse(&bytes[SEGMENT_HEADER_BYTES..], header_of(&name, &bytes)?.id);
    let at = SEGMENT_HEADER_BYTES as u64;
    header.map(|header| header.first).map_err(|why| Error::corrupt(&disk.path().join(&name), at, why))
}

/// Has the opening of the newest segment say that the log begins with record `first`, unless it says that it begins later. Returns the
/// last entry of the segment, and the size of its file.
fn begin_at(disk: &dyn Disk, number: u64, first: Index) -> Result<(EntryIndex, u32)> {
    let name = file_name(number);
    let path = disk.path().join(&name);
    let size = header_of(&name, &read(disk, number, SEGMENT_HEADER_BYTES)?)?.bytes;
    let bytes = Bytes::from(read(disk, number, size as usize)?);
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
