//! Restore: a log made of a backup, whole or up to a record or a time. It is a log on its own, which can become the first
//! member of a cluster: the members of the log that was backed up are not in it.
//!
//! ```text
//!  backup ── every file checked ──> feed ── cut, without members, another log id ──> Followed in DIR.restoring
//!                                                                                      │ identity: no follower's any more
//!                                                                                      └ renamed to DIR
//! ```
//!
//! Entries keep their index, term and time, so records keep their index and time, and sessions their ids and what they
//! remember. A change of membership becomes an entry without effect, for the cluster that it tells of is not this one.
//!
//! Invariants:
//! - nothing is made before every file of the backup was found unchanged;
//! - until the last write the directory is marked as a follower's, which nobody opens to append; that write is one sector;
//! - the log has another id unless the caller wants the old one: logs of the same id with different histories cannot meet;
//!   with the old id it begins in a term that the old history has not come to, so that no entry of one is taken for the other's;
//! - what it removes after an error it has made itself: the directory beside was not there before.
//!
//! Must not know: how a backup is made.

use crate::api::follower::FollowerLog;
use crate::backup::{Backup, PIECE_BYTES, Progress, list, remove_log};
use crate::cluster::membership::Membership;
use crate::disk::Disk;
use crate::disk::linux::{RealDisk, check_vacant, make_directory, move_directory, remove_directory};
use crate::error::{Error, ErrorKind, Result};
use crate::follower::message::{FollowEntries, FollowEntry, FollowMessage};
use crate::record::batch::Malformed;
use crate::replica::open::check_name;
use crate::replica::queue::proposals::Command;
use crate::replica::state::sequencer::parse_command;
use crate::replica::state::snapshot::FollowSnapshot;
use crate::store::format::block::{BLOCK_HEADER_BYTES, Batches, BlockHeader, Kind, digest_of_batches};
use crate::store::format::identity::Identity;
use crate::store::format::segment::{HardState, Opening, digest_of_bytes};
use crate::types::{Index, LogId, Timestamp};
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The end of the name of the directory in which a log is restored, until it is complete. One that is there already is never
/// touched: another restore can be at work in it, or a log that somebody has served since a crash.
const UNDER_WAY: &str = ".restoring";

/// So many terms after the backup's last one a log begins that keeps its id. What the old log wrote after the backup was
/// taken, in terms of its own, can still stand in a replica or a copy that was thought to be gone: entries are the same
/// only if index and term are, and elections do not come that far.
const TERMS_APART: u64 = 1 << 32;

/// How far a log is restored.
///
/// ```
/// use chiplog::{Index, RestoreTo};
/// assert_ne!(RestoreTo::End, RestoreTo::Index(Index(7)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestoreTo {
    /// All that the backup has.
    #[default]
    End,
    /// Up to this record. An append is all or nothing: one that holds this record and later ones is left out. The log is as
    /// it was when this record was its last: what was done later to sessions, options and the first record is left out too.
    Index(Index),
    /// What was written at this time or before, in milliseconds since 1970, by the leaders' clocks.
    Timestamp(Timestamp),
}

/// How a log is restored.
///
/// ```
/// use chiplog::{Index, RestoreOptions, RestoreTo};
/// let mut options = RestoreOptions::default();
/// options.to = RestoreTo::Index(Index(1000));
/// assert!(!options.keep_log_id);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreOptions {
    /// How far; default: to the end.
    pub to: RestoreTo,
    /// Whether the log keeps the id of the one that was backed up. Default: no, it gets a new one, and nothing that knows
    /// the old log takes the new one for it. Keep it only if the old log and all its replicas are gone for good.
    pub keep_log_id: bool,
    /// The size of its segment files, in bytes; None, the default: as in the backup.
    pub segment_bytes: Option<u32>,
}

/// What was restored.
///
/// ```
/// # fn show(restored: &chiplog::Restored) {
/// println!("log {} goes on at record {}", restored.log_id, restored.last.next());
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// The log's id.
    pub log_id: LogId,
    /// The first record; of a log without records, the first one to come.
    pub first: Index,
    /// The last record; of a log without records `first - 1`.
    pub last: Index,
    /// When the last entry was written, in milliseconds since 1970.
    pub last_timestamp: Timestamp,
}

impl Backup {
    /// Makes a log of the backup in `dir`, which must be missing or empty. Every file is checked first; the log is made in a
    /// directory beside it, `dir` with `.restoring` at the end, and gets its name when it is complete and durable: a crash
    /// leaves nothing at `dir`, and what is to be removed by hand beside it.
    ///
    /// The log has the records, sessions and options of the backup, and is one on its own: [`Log::open`](crate::Log::open)
    /// opens it, and so does a server of node 1, which other members can join then.
    ///
    /// `progress` is called with the bytes that are read and about all of them. Blocks until the log is durable.
    ///
    /// # Errors
    /// `InvalidArgument`: `dir` is not empty, or a mount point; the directory beside it is there; an option. `OutOfRange`, `Discarded`: the backup has no such
    /// record, or none of that time. `Corrupt`: a file of the backup is missing, additional or changed; the message names it.
    /// `TooLarge`: `segment_bytes` is too small. `Full`, `Unsupported`, `Io`.
    /// After an error nothing is at `dir` that was not there.
    pub fn restore(
        &self,
        dir: impl AsRef<Path>,
        options: &RestoreOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Restored> {
        let (place, beside) = places(dir.as_ref())?;
        self.check_options(options)?;
        let total = self.info().bytes;
        self.check_files(&mut |done, _| progress(done, 2 * total))?;
        make_beside(&beside)?;
        let disk = RealDisk::open(&beside, false).map_err(|e| Error::io("open directory", &beside, e))?;
        let disk: Arc<dyn Disk> = Arc::new(disk);
        let made = self.fill(&disk, options, &mut |done, _| progress(total + done.min(total), 2 * total));
        let moved = made.and_then(|restored| {
            let moved = move_directory(&beside, &place);
            moved.map_err(|e| Error::io("give the restored log its name,", &place, e)).map(|()| restored)
        });
        if moved.is_err() {
            // The error says what happened; the next restore names what cannot be removed.
            let _ = remove_log(&*disk).map(|()| remove_directory(&beside));
        }
        moved
    }

    /// As [`Self::restore`], on another kind of disk, whose directory must be empty and becomes the log's. A crash leaves
    /// either the log or something that no log is opened in.
    ///
    /// # Errors
    /// As [`Self::restore`].
    pub fn restore_on(&self, disk: Arc<dyn Disk>, options: &RestoreOptions) -> Result<Restored> {
        self.check_options(options)?;
        self.check_files(&mut |_, _| {})?;
        if let Some(name) = list(&*disk)?.first() {
            return Err(not_empty(disk.path(), name));
        }
        self.fill(&disk, options, &mut |_, _| {})
    }

    /// What can be said before anything is read.
    fn check_options(&self, options: &RestoreOptions) -> Result<()> {
        if let Some(bytes) = options.segment_bytes {
            Self::copy_options(bytes).check()?;
        }
        let info = self.info();
        let RestoreTo::Index(to) = options.to else { return Ok(()) };
        if to > info.last {
            let what =
                format!("the backup ends with record {}: it cannot be restored to record {to}", info.last);
            return Err(Error::new(ErrorKind::OutOfRange, what));
        }
        if to.next() < info.first {
            let what = format!(
                "the backup begins with record {}: it cannot be restored to record {to}, which was discarded before",
                info.first
            );
            return Err(Error::new(ErrorKind::Discarded, what));
        }
        Ok(())
    }

    /// Makes the log on `disk`. The files of the backup have been checked.
    fn fill(
        &self,
        disk: &Arc<dyn Disk>,
        options: &RestoreOptions,
        progress: Progress<'_>,
    ) -> Result<Restored> {
        let still = self.still()?;
        let mut feed = still.feed()?;
        let Some(FollowMessage::State(state)) = feed.next(PIECE_BYTES)? else {
            return Err(unsound("it has no state to begin with"));
        };
        let log = if options.keep_log_id { state.log } else { another_log(&**disk)? };
        let state = state_on_its_own(&state, log).map_err(unsound)?;
        let files = Self::copy_options(options.segment_bytes.unwrap_or(still.segment_bytes));
        let copy = FollowerLog::create_on(disk.clone(), files, &state)?;
        let mut cut = Cut { to: options.to, next: state.next(), has_records: false };
        let (mut done, total) = (0, self.info().bytes);
        while let Some(fed) = feed.next(PIECE_BYTES)? {
            done += fed.bytes() as u64;
            let FollowMessage::Entries(FollowEntries { entries, .. }) = fed else {
                return Err(unsound("a part of its entries is missing"));
            };
            let count = entries.len();
            let entries = cut.take(entries).map_err(unsound)?;
            let is_cut = entries.len() < count || cut.is_reached();
            if let Some(last) = entries.last() {
                let committed = last.raft();
                copy.apply_entries(FollowEntries { log, committed, kept: Index(0), entries })?;
            }
            progress(done, total);
            if is_cut {
                break;
            }
        }
        let info = copy.log().info();
        if let RestoreTo::Timestamp(time) = options.to
            && !cut.has_records
            && self.info().first <= self.info().last
        {
            let what = format!("the backup has no record of {} ms since 1970 or before", time.0);
            return Err(Error::new(ErrorKind::OutOfRange, what));
        }
        copy.conclude(if options.keep_log_id { TERMS_APART } else { 0 })?;
        copy.close()?;
        let identity = Identity::read(&**disk)?.ok_or_else(|| unsound("the restored log has no identity"))?;
        Identity { follows: false, ..identity }.write(&**disk)?;
        disk.sync_ancestors().map_err(|e| Error::io("sync the directories above", disk.path(), e))?;
        Ok(Restored { log_id: log, first: info.first, last: info.last, last_timestamp: info.last_timestamp })
    }
}

/// Lets entries through up to where the log is cut.
struct Cut {
    to: RestoreTo,
    /// The record that comes next.
    next: Index,
    has_records: bool,
}

impl Cut {
    /// Whether nothing of what comes belongs to the log any more, whatever its time.
    fn is_reached(&self) -> bool {
        matches!(self.to, RestoreTo::Index(to) if self.next > to)
    }

    /// What is left of entries that follow, each as it stands in a log on its own. Fewer than there were: the cut is among them.
    fn take(&mut self, entries: Vec<FollowEntry>) -> Result<Vec<FollowEntry>, Malformed> {
        let mut taken = Vec::with_capacity(entries.len());
        for entry in entries {
            let is_later = matches!(self.to, RestoreTo::Timestamp(time) if entry.timestamp() > time);
            if is_later || self.is_reached() {
                break;
            }
            let next = next_after(&entry)?;
            let entry = match self.to {
                RestoreTo::Index(to) if next > to.next() => {
                    taken.extend(shorten(&entry, to)?);
                    break;
                }
                _ => entry_on_its_own(entry),
            };
            self.has_records |= entry.header.kind == Kind::Data;
            self.next = next;
            taken.push(entry);
        }
        Ok(taken)
    }
}

/// The record that comes after an entry.
fn next_after(entry: &FollowEntry) -> Result<Index, Malformed> {
    let next = entry.header.next_record();
    if entry.header.kind != Kind::Command {
        return Ok(next);
    }
    match parse_command(&entry.body.concat())? {
        Command::Discard { first } => Ok(next.max(first)),
        _ => Ok(next),
    }
}

/// The appends of a block that end at record `to` or before. `None`: there are none.
fn shorten(entry: &FollowEntry, to: Index) -> Result<Option<FollowEntry>, Malformed> {
    if entry.header.kind != Kind::Data {
        return Ok(None);
    }
    let whole = entry.body.concat();
    let (mut crcs, mut records, mut bytes) = (Vec::new(), 0, 0);
    for batch in Batches::new(&whole) {
        let (header, batch) = batch?;
        let more = records + header.count;
        if entry.header.first.plus(more.into()) > to.next() {
            break;
        }
        (records, bytes) = (more, bytes + batch.len());
        crcs.push(header.crc);
    }
    if crcs.is_empty() {
        return Ok(None);
    }
    let header = BlockHeader {
        length: length_of(bytes),
        batch_count: crcs.len() as u32,
        record_count: records,
        body_digest: digest_of_batches(crcs),
        ..entry.header
    };
    Ok(Some(FollowEntry { header, body: vec![Bytes::from(whole).slice(..bytes)] }))
}

/// An entry as it stands in a log that never had other members: a change of membership is one without effect.
fn entry_on_its_own(entry: FollowEntry) -> FollowEntry {
    if entry.header.kind != Kind::Configuration {
        return entry;
    }
    let (length, body_digest) = (length_of(0), digest_of_bytes(&[]));
    let header = BlockHeader { kind: Kind::NoOp, length, body_digest, ..entry.header };
    FollowEntry { header, body: Vec::new() }
}

/// A state of the log `log` that never had other members.
fn state_on_its_own(state: &FollowSnapshot, log: LogId) -> Result<FollowSnapshot, Malformed> {
    let opening = Opening::parse(&state.body)?;
    let (term, commit) = (opening.base_term, opening.base_raft);
    let opening = Opening {
        configuration: Membership::alone().encode(),
        hard_state: HardState { term, vote: 0, commit },
        ..opening
    };
    let body = Bytes::from(opening.encode());
    let (length, body_digest) = (length_of(body.len()), digest_of_bytes(&[&body]));
    let header = BlockHeader { length, body_digest, ..state.header };
    Ok(FollowSnapshot { log, committed: commit, kept: Index(0), header, body })
}

/// The length of a block whose body has so many bytes: no more than it was read with.
fn length_of(body: usize) -> u32 {
    (BLOCK_HEADER_BYTES + body) as u32
}

fn another_log(disk: &dyn Disk) -> Result<LogId> {
    let made = Identity::random(disk, Timestamp(0)).map_err(|e| Error::io("make", disk.path(), e))?;
    Ok(made.log)
}

/// Where the log is to be, and the directory beside it where it is made.
fn places(dir: &Path) -> Result<(PathBuf, PathBuf)> {
    check_name(dir)?;
    let refuse =
        |what: &str| Err(Error::new(ErrorKind::InvalidArgument, format!("{} {what}", dir.display())));
    let place = std::path::absolute(dir).map_err(|e| Error::io("find", dir, e))?;
    let Some(name) = place.file_name() else {
        return refuse("cannot be a log's directory: give one with a name");
    };
    let mut beside = name.to_owned();
    beside.push(UNDER_WAY);
    match check_vacant(&place) {
        Ok(()) => Ok((place.clone(), place.with_file_name(beside))),
        Err(e) => match e.kind() {
            io::ErrorKind::DirectoryNotEmpty => {
                refuse("is not empty: a log is restored to a directory that is missing or empty")
            }
            io::ErrorKind::NotADirectory => {
                refuse("is no directory: a log is restored to a directory that is missing or empty")
            }
            io::ErrorKind::ResourceBusy => {
                refuse("is a mount point, which cannot be replaced: restore to a directory inside of it")
            }
            _ => Err(Error::io("look at", &place, e)),
        },
    }
}

/// Makes the directory in which the log is made.
fn make_beside(beside: &Path) -> Result<()> {
    make_directory(beside).map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => {
            let what = format!(
                "{} is there: another restore is at work in it, or one was interrupted; if none is, remove it and restore again",
                beside.display()
            );
            Error::new(ErrorKind::InvalidArgument, what)
        }
        _ => Error::io("make directory", beside, e),
    })
}

fn not_empty(dir: &Path, name: &str) -> Error {
    let what =
        format!("{} is not empty ({name} is there): remove it, or give another directory", dir.display());
    Error::new(ErrorKind::InvalidArgument, what)
}

fn unsound(why: Malformed) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the backup cannot be restored: {why}; take another backup"))
}
