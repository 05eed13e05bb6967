//! Restore: a log made of a backup, whole or up to a record or a time. The result is a standalone log, which can
//! become the first member of a cluster. It does not have the members of the log that was backed up. Or the result is
//! a copy, with which a follower of that log goes on.
//!
//! ```text
//!  backup ── every file checked ──> feed ── cut, without members, new log id ──> FollowerLog in DIR.restoring
//!                                     │                                            │ identity: no longer a follower's
//!                                     └─ a copy: as it is ──> FollowerLog there    └ renamed to DIR
//! ```
//!
//! Entries keep their index, term and time. So records keep their index and time, and sessions keep their ids and
//! what they remember. A change of membership becomes an entry without effect, because it belongs to another cluster.
//!
//! Invariants:
//! - nothing is written before every file of the backup was found unchanged;
//! - until the last write the directory is marked as a follower's, which no program opens to append; that write is
//!   one sector;
//! - the log has a new id unless the caller keeps the old one: logs of the same id with different histories must not
//!   meet. With the old id it begins in a term that the old history cannot have reached, so that no entry of one
//!   passes for the other's;
//! - a copy has entries of the log alone, each as it is there: a follower's source compares no more than the last one;
//! - after an error it removes only what it made itself: the directory beside `DIR` did not exist before.
//!
//! Must not know: how a backup is made.

use crate::api::follower::FollowerLog;
use crate::backup::{Backup, PIECE_BYTES, Progress, list, remove_log};
use crate::cluster::membership::Membership;
use crate::disk::Disk;
use crate::disk::linux::{RealDisk, check_vacant, make_directory, move_directory, remove_directory};
use crate::error::{Error, ErrorKind, Result};
use crate::follower::message::{FollowEntries, FollowEntry, FollowMessage};
use crate::follower::source::FollowSource;
use crate::record::batch::Malformed;
use crate::replica::open::check_name;
use crate::replica::queue::proposals::Command;
use crate::replica::state::command::parse_command;
use crate::replica::state::snapshot::FollowSnapshot;
use crate::store::format::block::{BLOCK_HEADER_BYTES, Batches, BlockHeader, Kind, digest_of_batches};
use crate::store::format::identity::Identity;
use crate::store::format::segment::{HardState, Opening, digest_of_bytes};
use crate::types::{Index, LogId, TERMS_APART, Term, Timestamp};
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The suffix of the directory in which a log is restored until it is complete. An existing one is never touched:
/// another restore may be using it, or it may hold a log that was opened after a crash.
const UNDER_WAY: &str = ".restoring";

/// The end up to which a log is restored.
///
/// ```
/// use chiplog::backup::RestoreTo;
/// use chiplog::Index;
/// assert_ne!(RestoreTo::End, RestoreTo::Index(Index(7)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestoreTo {
    /// Everything in the backup.
    #[default]
    End,
    /// Up to this record. An append is all or nothing: an append that holds this record and later ones is left out.
    /// The log is as it was when this record was its last: later changes of sessions, options and the first record
    /// are left out too.
    Index(Index),
    /// Everything written at this time or before, in milliseconds since 1970, by the leaders' clocks.
    Timestamp(Timestamp),
}

options! {
    /// The options for restoring a log.
    ///
    /// ```
    /// use chiplog::backup::{RestoreOptions, RestoreTo};
    /// use chiplog::Index;
    /// let options = RestoreOptions::default().to(RestoreTo::Index(Index(1000)));
    /// assert!(!options.keep_log_id);
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RestoreOptions {
        /// How far to restore. Default: to the end.
        pub to: RestoreTo,
        /// Whether the log keeps the id of the log that was backed up. Default: false; it gets a new id, so that no
        /// program that knows the old log takes the new one for it. Keep the id only if the old log and all its
        /// replicas are gone for good.
        pub keep_log_id: bool,
        /// Whether to make a copy of the log that was backed up, and no log of its own: a directory that
        /// [`FollowerLog::open`](crate::FollowerLog::open) and `chiplog follow` go on with. It has the log's id, members and entries, all of them, so
        /// `to` has to be [`RestoreTo::End`], and `keep_log_id` false. Default: false.
        pub as_copy: bool,
        /// The size of its segment files, in bytes. `None`, the default: as in the backup.
        pub segment_bytes: Option<u32>,
    }
}

/// The result of a restore.
///
/// ```
/// # fn show(restored: &chiplog::backup::Restored) {
/// println!("log {} continues at record {}", restored.log_id, restored.last.next());
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// The log's id.
    pub log_id: LogId,
    /// The first record; in a log without records, the next one to come.
    pub first: Index,
    /// The last record; in a log without records `first - 1`.
    pub last: Index,
    /// The time when the last entry was written, in milliseconds since 1970.
    pub last_timestamp: Timestamp,
    /// The first and the last record of the append that was left out, because it continues after the record with which the log was to
    /// end. `None`: the log ends with that record, or no record was given.
    pub left_out: Option<(Index, Index)>,
}

impl Backup {
    /// Makes a log of the backup in `dir`, which must be missing or empty. Checks every file first. Writes the log to
    /// a directory beside `dir`, with `.restoring` appended to its name, and renames it when the log is complete and
    /// durable. A crash leaves `dir` as it was, and the directory beside it has to be removed by hand.
    ///
    /// The log has the records, sessions and options of the backup and is standalone: [`Log::open`](crate::Log::open)
    /// opens it. A server with node number 1 can open it as well, and other members can then join. With
    /// [`RestoreOptions::as_copy`] it is a copy instead, which goes on with the feed of the log that was backed up.
    ///
    /// `progress` is called with the bytes read and an estimate of the total. Blocks until the log is durable.
    ///
    /// # Errors
    /// `InvalidArgument`: `dir` is not empty or is a mount point; the directory beside it exists; or an option is out
    /// of bounds. `OutOfRange`, `Discarded`: the backup does not have that record, or has none up to that time.
    /// `Corrupt`: a file of the backup is missing, additional or changed; the message names it. `TooLarge`:
    /// `segment_bytes` is too small. `Unsupported`: a file has a later format; or no copy can be made, because the backup ends with appends of
    /// which it is not known how they are in the log. `Full`, `Io`. After an error `dir` is as it was.
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
        let made =
            self.fill(&disk, options, false, &mut |done, _| progress(total + done.min(total), 2 * total));
        let moved = made.and_then(|restored| {
            let moved = move_directory(&beside, &place);
            moved.map_err(|e| Error::io("rename the restored log to", &place, e)).map(|()| restored)
        });
        if moved.is_err() {
            // The caller gets the first error. The next restore names files that could not be removed.
            let _ = remove_log(&*disk).map(|()| remove_directory(&beside));
        }
        moved
    }

    /// As [`Self::restore`], on another implementation of [`Disk`], whose directory must be empty and becomes the
    /// log's. A crash leaves either the complete log, or files that do not open as a log; of a copy also a part, which a follower
    /// goes on with.
    ///
    /// # Errors
    /// As [`Self::restore`].
    pub fn restore_on(&self, disk: Arc<dyn Disk>, options: &RestoreOptions) -> Result<Restored> {
        self.check_options(options)?;
        self.check_files(&mut |_, _| {})?;
        if let Some(name) = list(&*disk)?.first() {
            return Err(not_empty(disk.path(), name));
        }
        self.fill(&disk, options, false, &mut |_, _| {})
    }

    /// Makes a log of the backup on `disk`, which has no log: it has a new id, and no record if there is none up to that end. The files
    /// of the backup have been checked.
    pub(super) fn restore_into(
        &self,
        disk: &Arc<dyn Disk>,
        to: RestoreTo,
        progress: Progress<'_>,
    ) -> Result<Restored> {
        self.fill(disk, &RestoreOptions { to, ..RestoreOptions::default() }, true, progress)
    }

    /// The state with which the backup begins: nothing in it says how the log was before.
    pub(super) fn oldest_state(&self) -> Result<FollowSnapshot> {
        begin(&mut self.still()?.feed()?)
    }

    /// Checks the options against the manifest, before anything is read.
    fn check_options(&self, options: &RestoreOptions) -> Result<()> {
        if let Some(bytes) = options.segment_bytes {
            Self::copy_options(bytes).check()?;
        }
        if options.as_copy && (options.keep_log_id || options.to != RestoreTo::End) {
            let what = "a copy has the id of its log and all that is in the backup: leave out keep_log_id and the end";
            return Err(Error::new(ErrorKind::InvalidArgument, what));
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

    /// Writes the log to `disk`. The files of the backup have been checked. `may_be_empty`: no record up to a time is no error.
    fn fill(
        &self,
        disk: &Arc<dyn Disk>,
        options: &RestoreOptions,
        may_be_empty: bool,
        progress: Progress<'_>,
    ) -> Result<Restored> {
        let still = self.still()?;
        let mut feed = still.feed()?;
        let state = begin(&mut feed)?;
        let state = match options.as_copy {
            true => state,
            false if options.keep_log_id => state_on_its_own(&state, state.log).map_err(unsound)?,
            false => state_on_its_own(&state, another_log(&**disk)?).map_err(unsound)?,
        };
        let (log, mut term) = (state.log, state.term());
        let files = Self::copy_options(options.segment_bytes.unwrap_or(still.segment_bytes));
        let copy = FollowerLog::create_on(disk.clone(), files, &state)?;
        let mut cut = Cut::new(options.to, state.next());
        let (mut done, total) = (0, self.info().bytes);
        while let Some(fed) = feed.next(PIECE_BYTES)? {
            done += fed.bytes() as u64;
            let FollowMessage::Entries(FollowEntries { entries, .. }) = fed else {
                return Err(unsound("some of its entries are missing"));
            };
            let count = entries.len();
            let entries = match options.as_copy {
                true => of_the_log(entries, &mut term)?,
                false => cut.take(entries).map_err(unsound)?,
            };
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
        let status = copy.log().status();
        if let RestoreTo::Timestamp(time) = options.to
            && !(cut.has_records || may_be_empty)
            && self.info().first <= self.info().last
        {
            let what = format!("the backup has no record of {} ms since 1970 or before", time.0);
            return Err(Error::new(ErrorKind::OutOfRange, what));
        }
        let has_records = status.first_index <= status.last_index;
        cut.check_left_out(has_records, self.info().first)?;
        if !options.as_copy {
            copy.conclude(if options.keep_log_id { TERMS_APART } else { 0 })?;
        }
        copy.close()?;
        let identity = Identity::read(&**disk)?.ok_or_else(|| unsound("the restored log has no identity"))?;
        Identity { follows: options.as_copy, ..identity }.write(&**disk)?;
        disk.sync_ancestors().map_err(|e| Error::io("sync the directories above", disk.path(), e))?;
        Ok(Restored {
            log_id: log,
            first: status.first_index,
            last: status.last_index,
            last_timestamp: status.last_timestamp,
            left_out: cut.left_out,
        })
    }
}

/// The state with which the feed of a backup begins.
fn begin(feed: &mut FollowSource) -> Result<FollowSnapshot> {
    match feed.next(PIECE_BYTES)? {
        Some(FollowMessage::State(state)) => Ok(state),
        _ => Err(unsound("it has no state at its beginning")),
    }
}

/// Returns the entries, unless they are none of the log: appends of which an object store has the payload alone are in entries that were made
/// for the backup, of a term far ahead. `term`: that of the entry before.
fn of_the_log(entries: Vec<FollowEntry>, term: &mut Term) -> Result<Vec<FollowEntry>> {
    for entry in &entries {
        if entry.term().0.saturating_sub(term.0) >= TERMS_APART {
            let what = format!(
                "the backup ends with appends of which the object store had the payload alone, from record {} on, and the log can have \
                 others in their place: no copy is made of it; restore it as a log of its own, or follow the log from its beginning",
                entry.header.first
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        *term = entry.term();
    }
    Ok(entries)
}

/// Passes entries up to the end of the restored log.
pub(super) struct Cut {
    pub(super) to: RestoreTo,
    /// The next record.
    pub(super) next: Index,
    pub(super) has_records: bool,
    /// The first and the last record of the append in which the end is.
    pub(super) left_out: Option<(Index, Index)>,
}

impl Cut {
    pub(super) fn new(to: RestoreTo, next: Index) -> Self {
        Self { to, next, has_records: false, left_out: None }
    }

    /// Checks that a log has records if some were asked for. `oldest`: the first one that could be.
    ///
    /// # Errors
    /// `OutOfRange`: the end is in the first append.
    pub(super) fn check_left_out(&self, has_records: bool, oldest: Index) -> Result<()> {
        let (RestoreTo::Index(to), Some((first, last))) = (self.to, self.left_out) else { return Ok(()) };
        if has_records || to < oldest {
            return Ok(());
        }
        let what = format!(
            "record {to} belongs to an append of records {first} to {last}, which is all or nothing, and there are no records before it: \
             end with record {last} or a later one"
        );
        Err(Error::new(ErrorKind::OutOfRange, what))
    }

    /// Whether no later entry belongs to the log any more, whatever its time.
    pub(super) fn is_reached(&self) -> bool {
        matches!(self.to, RestoreTo::Index(to) if self.next > to)
    }

    /// Returns the entries that belong to the log, converted for a standalone log. If it returns fewer, the end is
    /// among them.
    pub(super) fn take(&mut self, entries: Vec<FollowEntry>) -> Result<Vec<FollowEntry>, Malformed> {
        let mut taken = Vec::with_capacity(entries.len());
        for entry in entries {
            let is_later = matches!(self.to, RestoreTo::Timestamp(time) if entry.timestamp() > time);
            if is_later || self.is_reached() {
                break;
            }
            let next = next_after(&entry)?;
            let entry = match self.to {
                RestoreTo::Index(to) if next > to.next() => {
                    let (kept, left_out) = shorten(&entry, to)?;
                    self.has_records |= kept.is_some();
                    self.left_out = self.left_out.or(left_out);
                    taken.extend(kept);
                    break;
                }
                _ => entry_on_its_own(entry),
            };
            self.has_records |= entry.header.kind.has_records();
            self.next = next;
            taken.push(entry);
        }
        Ok(taken)
    }
}

/// The record after an entry.
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

/// The entry with the appends of a block that end at record `to` or before, if there are any; and the first and the last record of the
/// append that continues after it, if one does.
type Shortened = (Option<FollowEntry>, Option<(Index, Index)>);

fn shorten(entry: &FollowEntry, to: Index) -> Result<Shortened, Malformed> {
    if entry.header.kind != Kind::Data {
        return Ok((None, None));
    }
    let whole = entry.body.concat();
    let (mut crcs, mut records, mut bytes, mut left_out) = (Vec::new(), 0, 0, None);
    for batch in Batches::new(&whole) {
        let (header, batch) = batch?;
        let more = records + header.count;
        let (first, next) = (entry.header.first.plus(records.into()), entry.header.first.plus(more.into()));
        if next > to.next() {
            left_out = (first <= to).then(|| (first, next.previous()));
            break;
        }
        (records, bytes) = (more, bytes + batch.len());
        crcs.push(header.crc);
    }
    if crcs.is_empty() {
        return Ok((None, left_out));
    }
    let header = BlockHeader {
        length: length_of(bytes),
        batch_count: crcs.len() as u32,
        record_count: records,
        body_digest: digest_of_batches(crcs),
        ..entry.header
    };
    let kept = FollowEntry { header, body: vec![Bytes::from(whole).slice(..bytes)] };
    Ok((Some(kept), left_out))
}

/// Converts an entry for a log that never had other members, nor objects: a change of these becomes one without effect.
fn entry_on_its_own(entry: FollowEntry) -> FollowEntry {
    let body = entry.body.first().map_or(&[][..], |body| body);
    let is_about_objects = || matches!(parse_command(body), Ok(Command::Object(_)));
    match entry.header.kind {
        Kind::Configuration => {}
        Kind::Command if is_about_objects() => {}
        _ => return entry,
    }
    let (length, body_digest) = (length_of(0), digest_of_bytes(&[]));
    let header = BlockHeader { kind: Kind::NoOp, length, body_digest, ..entry.header };
    FollowEntry { header, body: Vec::new() }
}

/// Converts a state for the log `log`, which never had other members.
fn state_on_its_own(state: &FollowSnapshot, log: LogId) -> Result<FollowSnapshot, Malformed> {
    let opening = Opening::parse(&state.body)?;
    Ok(standalone_state(log, &state.header, Opening { objects: Vec::new(), ..opening })) // they are those of the other log
}

/// The state with this opening, which has the block header `header`, as that of the log `log`, which never had other members.
pub(super) fn standalone_state(log: LogId, header: &BlockHeader, opening: Opening) -> FollowSnapshot {
    let (term, commit) = (opening.base_term, opening.base_raft);
    let opening = Opening {
        configuration: Membership::alone().encode(),
        hard_state: HardState { term, vote: 0, commit },
        ..opening
    };
    let body = Bytes::from(opening.encode());
    let (length, body_digest) = (length_of(body.len()), digest_of_bytes(&[&body]));
    let header = BlockHeader { length, body_digest, ..*header };
    FollowSnapshot { log, committed: commit, kept: Index(0), header, body }
}

/// The length of a block with a body of `body` bytes. It is never larger than the block that was read.
fn length_of(body: usize) -> u32 {
    (BLOCK_HEADER_BYTES + body) as u32
}

pub(super) fn another_log(disk: &dyn Disk) -> Result<LogId> {
    let made = Identity::random(disk, Timestamp(0)).map_err(|e| Error::io("make", disk.path(), e))?;
    Ok(made.log)
}

/// Gives a branch in the directory `beside` its place. The inner error: it is there, and a power cut can take the new name from it.
pub(super) fn move_branch(beside: &Path, place: &Path) -> Result<Result<()>> {
    let Err(e) = move_directory(beside, place) else { return Ok(Ok(())) };
    if beside.exists() || !place.exists() {
        return Err(Error::io("rename the branch to", place, e));
    }
    let error = Error::io("sync the directory above", place, e);
    let what = format!(
        "{error}. The branch is there, and a power cut can give it back the name {}",
        beside.display()
    );
    Ok(Err(Error::with_source(error.kind(), what, &error)))
}

/// The log's directory, and the directory beside it in which it is made.
pub(super) fn places(dir: &Path) -> Result<(PathBuf, PathBuf)> {
    check_name(dir)?;
    let refuse =
        |what: &str| Err(Error::new(ErrorKind::InvalidArgument, format!("{} {what}", dir.display())));
    let place = std::path::absolute(dir).map_err(|e| Error::io("find", dir, e))?;
    let Some(name) = place.file_name() else {
        return refuse("cannot be a log's directory: choose one with a name");
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
                refuse("is a mount point, which cannot be replaced: restore to a directory inside it")
            }
            _ => Err(Error::io("look at", &place, e)),
        },
    }
}

/// Makes the directory in which the log is made.
pub(super) fn make_beside(beside: &Path) -> Result<()> {
    make_directory(beside).map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => {
            let what = format!(
                "{} exists: another restore is using it, or was interrupted; if none is running, remove it and restore again",
                beside.display()
            );
            Error::new(ErrorKind::InvalidArgument, what)
        }
        _ => Error::io("make directory", beside, e),
    })
}

pub(super) fn not_empty(dir: &Path, name: &str) -> Error {
    let what =
        format!("{} is not empty (it holds {name}): remove it, or choose another directory", dir.display());
    Error::new(ErrorKind::InvalidArgument, what)
}

fn unsound(why: Malformed) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the backup cannot be restored: {why}; use another backup"))
}
