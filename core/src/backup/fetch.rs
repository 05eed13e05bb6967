//! Fetch: a backup made of the objects and slices of a log in an object store, without any replica.
//!
//! ```text
//!  objects k, k+1 … n  ──>  segment files, as they are or, of a shared group, made of them; the last one without its footer, so that the log can go on behind it,
//!                           and with record k's first as the log's, because no object knows of a discard that came after it
//!                      ──>  identity of a follower  ──>  opened  ──>  takes the entries of slices  ──>  closed, sealed like any backup
//!
//!  without objects: the first slice's state  ──>  a follower's log  ──>  as above
//! ```
//!
//! Invariant: nothing is taken on trust. Recovery checks how the files follow each other, and the seal reads every block.
//!
//! Must not know: the network, which object store it is.

use crate::api::follower::FollowerLog;
use crate::backup::firsts::{LogsOfObject, firsts};
use crate::backup::slices::{AT_A_TIME, End, SliceChain, SliceSummary, longest, names, read, summary};
use crate::backup::{Backup, Progress};
use crate::disk::Disk;
use crate::error::{Error, ErrorKind, Result};
use crate::follower::message::{FollowEntries, FollowEntry};
use crate::options::Options;
use crate::replica::open::disk_at;
use crate::replica::state::log_table::LogTable;
use crate::replica::state::snapshot::FollowSnapshot;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::format::geometry::{FOOTER_BYTES, SEGMENT_BYTES_MAX, SEGMENT_HEADER_BYTES, batch_room};
use crate::store::format::identity::{IDENTITY_FILE, Identity};
use crate::store::format::objects;
use crate::store::format::segment::{Footer, HeaderFault, Opening, SegmentHeader, digest_of_bytes};
use crate::store::format::sorted_object::is_sorted;
use crate::store::objects::deletion::newest_begin;
use crate::store::objects::names::{folder, object_name, object_number, root_log, salt};
use crate::store::objects::slice_names::SliceName;
use crate::store::segment::file_name;
use crate::store::sorted_object::unsort;
use crate::sync::threads::in_parallel;
use crate::types::{Index, LogId, SegmentId};
use crate::vault::{ObjectInfo, Vault};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::path::Path;

/// The least size of segments that slices are written to: their openings have room for the state of most logs.
const SEGMENT_BYTES_LEAST: u32 = 1 << 20;
/// How often slices are looked at again that a server is changing.
const LOOKS_MAX: u32 = 5;
/// An opening takes at most this part of a segment.
const OPENINGS_SHARE: u32 = 16;

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

    /// The segment file of object `number` of a log, whose bytes these are. The object of a shared group has its records log by log:
    /// this brings them back into the order of their entries, and checks every byte on the way. Any other object is such a file,
    /// and is returned as it is, not checked.
    ///
    /// # Errors
    /// `Corrupt`: the object is damaged, or another one.
    #[doc(hidden)]
    pub fn segment_file(log: LogId, number: u64, bytes: Vec<u8>) -> Result<Vec<u8>> {
        let file = segment_file_of(log, number, &object_name(log, number), bytes.into())?;
        Ok(file.into())
    }

    /// Makes a backup in `dest`, which must be missing or empty, of all objects that a log has in an object store, and of the slices
    /// behind them as far as they lead. No replica is needed: this is how a log comes back whose replicas are all lost. Records that
    /// were in neither are not in it. Slices that are missing or damaged end it earlier: see [`Self::notes`].
    ///
    /// `progress` is called with the bytes fetched and the total. Fetches eight objects at a time, each whole in memory; slices twice,
    /// the first time to find out how far they lead.
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
    /// `NotFound`: the log has no objects there, and no slice that begins with its state. `Corrupt`: an object is missing between others, or damaged; the message names
    /// it. `Discarded`: all records in its objects are discarded, and newer objects that told how far the log was were deleted.
    /// `Busy`: slices went, time and again, before they were read. `InvalidArgument`: `dest` is not empty. Those of [`Vault`]. `Full`, `Io`, `Unsupported`. After an error `dest` is as
    /// it was before.
    pub fn fetch(
        vault: &dyn Vault,
        log: LogId,
        dest: impl AsRef<Path>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let dest = dest.as_ref();
        let mut tries = 0;
        loop {
            tries += 1;
            let Found { slices: names, objects, lacking } = find(vault, log)?;
            let end = objects.last().map(|(number, at)| end_of(vault, log, *number, at)).transpose()?;
            let chain = longest(vault, &names, end, &mut |_| {})?;
            // A server may have deleted slices meanwhile, because an object has them that was not there before.
            if has_lost(vault, log, chain.faults.keys().cloned())? {
                if tries < LOOKS_MAX {
                    continue;
                }
                let what = format!("slices of log {:032x} go faster than they can be read: try again", log.0);
                return Err(Error::new(ErrorKind::Busy, what));
            }
            let is_changed = || {
                let before = names.iter().map(|(name, _)| name.to_string());
                Ok::<_, Error>(tries < LOOKS_MAX && has_lost(vault, log, before)?)
            };
            if let Some(error) = lacking.filter(|_| chain.slices.is_empty()) {
                return Err(error);
            }
            let made = match Self::make_of(vault, log, &objects, &chain, dest, progress) {
                Err(error) if error.kind() == ErrorKind::NotFound && is_changed()? => continue,
                made => made?,
            };
            let note = |(name, why)| {
                tracing::warn!(%name, %why, "a slice was left out");
                format!("{name} was left out: {why}")
            };
            return Ok(Self { notes: chain.faults.into_iter().map(note).collect(), ..made });
        }
    }

    /// Makes a backup of these objects and slices. After an error `dest` is as it was.
    pub(super) fn make_of(
        vault: &dyn Vault,
        log: LogId,
        objects: &[(u64, ObjectInfo)],
        chain: &SliceChain,
        dest: &Path,
        progress: Progress<'_>,
    ) -> Result<Self> {
        Self::begin(dest)?;
        let made = match chain.begins {
            // Everything in the objects is discarded.
            true => Self::fill_from_slices(vault, log, chain, dest, progress),
            false => Self::fill_from(vault, log, objects, chain, dest, progress),
        };
        made.inspect_err(|_| {
            // The caller gets the first error. Files that cannot be removed remain as an unfinished backup.
            let _ = Self::abandon(dest);
        })
    }

    /// The slices that [`Self::fetch`] left out, and why: they are damaged, missing, or of another history. The log can end earlier
    /// for that. For people.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Reads all slices that a log has in an object store, and says which of them [`Self::fetch`] would take. `progress` is called with
    /// the bytes of each. Blocks for the network.
    ///
    /// # Errors
    /// `Corrupt`: the end of the newest object cannot be read. Those of [`Vault`], and `Unsupported`.
    pub fn slices_in(vault: &dyn Vault, log: LogId, progress: &mut dyn FnMut(u64)) -> Result<SliceSummary> {
        let mut tries = 0;
        loop {
            let names = self::names(vault, log)?;
            let newest = vault.list(&folder(log))?.into_iter();
            let newest = newest.filter_map(|at| Some((object_number(log, &at.name)?, at)));
            let newest = newest.max_by_key(|(number, _)| *number);
            let end = newest.map(|(number, at)| end_of(vault, log, number, &at)).transpose()?;
            let mut found = summary(vault, &names, end, progress)?;
            if found.faults.is_empty() && !found.is_cut_off {
                return Ok(found);
            }
            // A server may have deleted slices meanwhile, because an object has them.
            let now = self::names(vault, log)?;
            found.faults.retain(|(name, _)| now.iter().any(|(there, _)| there.to_string() == *name));
            tries += 1;
            if now == names || tries == LOOKS_MAX {
                return Ok(found);
            }
        }
    }

    /// Makes the copy of slices alone, the first of which begins with the log's state.
    fn fill_from_slices(
        vault: &dyn Vault,
        log: LogId,
        chain: &SliceChain,
        dest: &Path,
        progress: Progress<'_>,
    ) -> Result<Self> {
        let first = chain.slices.first().ok_or_else(|| no_objects(log))?;
        let bytes = vault.size(&first.to_string())?.ok_or_else(|| gone(&first.to_string()))?;
        let slice = read(vault, first, bytes)?;
        let (header, body) = slice.opening.ok_or_else(|| no_objects(log))?;
        let state = FollowSnapshot { log, committed: slice.base.raft, kept: Index(0), header, body };
        let options = Self::copy_options(segment_bytes_of(0, chain));
        let copy = FollowerLog::create_on(disk_at(dest, false)?, options, &state)?;
        apply(&copy, vault, chain, &mut |done| progress(done, chain.bytes))?;
        copy.close()?;
        Self::seal(dest)
    }

    fn fill_from(
        vault: &dyn Vault,
        log: LogId,
        objects: &[(u64, ObjectInfo)],
        chain: &SliceChain,
        dest: &Path,
        progress: Progress<'_>,
    ) -> Result<Self> {
        let disk = disk_at(dest, false)?;
        let (last, before) = objects.split_last().ok_or_else(|| no_objects(log))?;
        let total = objects.iter().map(|(_, object)| object.bytes).sum::<u64>() + chain.bytes;
        let get = |(number, object): &(u64, ObjectInfo)| {
            let bytes =
                segment_file_of(log, *number, &object.name, vault.get(&object.name, 0..object.bytes)?)?;
            let footer = check(log, *number, &object.name, &bytes)?;
            Ok((footer, bytes))
        };
        let copy = |object: &(u64, ObjectInfo)| {
            let (footer, bytes) = get(object)?;
            write(&*disk, footer.number, &bytes, bytes.len())?;
            Ok((footer, bytes.len(), LogsOfObject::read(&bytes, &footer)))
        };
        let (mut done, mut segment_bytes, mut read) = (0, 0, Vec::new());
        let mut note = |(footer, bytes, logs): (Footer, usize, LogsOfObject)| {
            done += bytes as u64;
            segment_bytes = segment_bytes.max(bytes as u32);
            read.push((footer, logs));
            progress(done, total);
        };
        in_parallel(AT_A_TIME, before, copy, &mut note)?;
        let (footer, bytes) = get(last)?;
        note((footer, bytes.len(), LogsOfObject::read(&bytes, &footer)));
        let (first, logs) = remove_discarded(&*disk, read)?;
        let bytes = begin_with(first, &logs, footer.id, bytes, &last.1.name)?;
        // A segment with a footer has a successor. The last one has none, and is read from its beginning.
        write(&*disk, footer.number, &bytes, footer.data_end as usize)?;
        let made = Identity::random(&*disk, Options::default().clock.now());
        let made = made.map_err(|e| Error::io("make", disk.path(), e))?;
        disk.create(IDENTITY_FILE).map_err(|e| Error::io("make", &disk.path().join(IDENTITY_FILE), e))?;
        Identity { log, follows: true, ..made }.write(&*disk)?;
        // Opening it proves its end, and closing it leaves it as a backup has to be.
        let copy = FollowerLog::open(dest, Self::copy_options(segment_bytes_of(segment_bytes, chain)))?;
        apply(&copy, vault, chain, &mut |more| progress(done + more, total))?;
        copy.close()?;
        Self::seal(dest)
    }
}

/// Objects of a log, by their numbers.
type Objects = Vec<(u64, ObjectInfo)>;

/// A log's slices and objects in an object store.
pub(crate) struct Found {
    pub(crate) slices: Vec<(SliceName, u64)>,
    pub(crate) objects: Vec<(u64, ObjectInfo)>,
    /// The reason why these objects are not the log without slices, which lead from them to where it was, or begin with its state.
    /// None: they are.
    pub(crate) lacking: Option<Error>,
}

/// The slices and the objects of a log. Slices first: one that goes meanwhile is in an object that is found then.
pub(crate) fn find(vault: &dyn Vault, log: LogId) -> Result<Found> {
    let slices = names(vault, log)?;
    let (objects, lacking) = find_objects(vault, log)?;
    Ok(Found { slices, objects, lacking })
}

/// Whether one of these slices is not there any more.
fn has_lost(vault: &dyn Vault, log: LogId, before: impl Iterator<Item = String>) -> Result<bool> {
    let mut before = before.peekable();
    if before.peek().is_none() {
        return Ok(false);
    }
    let now: BTreeSet<String> = names(vault, log)?.iter().map(|(name, _)| name.to_string()).collect();
    Ok(before.any(|name| !now.contains(&name)))
}

/// The last entry of an object, as its footer says.
pub(crate) fn end_of(vault: &dyn Vault, log: LogId, number: u64, object: &ObjectInfo) -> Result<End> {
    let at = object.bytes.saturating_sub(FOOTER_BYTES as u64);
    let wrong = |why| Error::corrupt(Path::new(&object.name), at, why);
    let bytes = vault.get(&object.name, at..object.bytes)?;
    let footer = bytes.first_chunk().ok_or("object is cut off");
    let footer =
        footer.and_then(|footer| Footer::parse(footer, number + 1, salt(log, number))).map_err(wrong)?;
    Ok((footer.last_raft, footer.last_term))
}

/// The size of segments that have room for what the slices have, too.
fn segment_bytes_of(objects: u32, chain: &SliceChain) -> u32 {
    if chain.slices.is_empty() {
        return objects;
    }
    let openings = chain.opening_bytes.saturating_mul(OPENINGS_SHARE);
    let mut bytes = objects.max(SEGMENT_BYTES_LEAST).max(openings);
    while batch_room(bytes) < chain.block_bytes_max && bytes <= SEGMENT_BYTES_MAX / 2 {
        bytes *= 2;
    }
    bytes.min(SEGMENT_BYTES_MAX).next_multiple_of(SEGMENT_HEADER_BYTES as u32)
}

/// Gives the copy all entries of a chain of slices. It passes over those that it has already.
fn apply(
    copy: &FollowerLog,
    vault: &dyn Vault,
    chain: &SliceChain,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let mut done = 0;
    for piece in chain.slices.chunks(AT_A_TIME) {
        let numbered: Vec<_> = piece.iter().enumerate().collect();
        let mut slices = BTreeMap::new();
        let get = |(n, name): &(usize, &SliceName)| {
            let text = name.to_string();
            let bytes = vault.size(&text)?.ok_or_else(|| gone(&text))?;
            Ok((*n, bytes, read(vault, name, bytes)?))
        };
        in_parallel(AT_A_TIME, &numbered, get, |(n, bytes, slice)| {
            done += bytes;
            slices.insert(n, slice);
        })?;
        for slice in slices.into_values() {
            let (log, (committed, _)) = (slice.log, slice.last());
            let entries = slice.entries.into_iter();
            let entries = entries.map(|(header, body)| FollowEntry { header, body: pieces(body) }).collect();
            copy.apply_entries(FollowEntries { log, committed, kept: Index(0), entries })?;
        }
        progress(done);
    }
    Ok(())
}

fn gone(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("{name} is not in the object store any more: try again"))
}

fn pieces(body: Bytes) -> Vec<Bytes> {
    Some(body).filter(|body| !body.is_empty()).into_iter().collect()
}

fn no_objects(log: LogId) -> Error {
    Error::new(ErrorKind::NotFound, format!("log {:032x} has no objects in the object store", log.0))
}

/// The objects of a log that are needed, by their numbers, without a gap. Objects whose records are known to be discarded are not:
/// they may be deleted, or have never been stored.
pub(crate) fn objects_of(vault: &dyn Vault, log: LogId) -> Result<Vec<(u64, ObjectInfo)>> {
    let (objects, lacking) = find_objects(vault, log)?;
    lacking.map_or(Ok(objects), Err)
}

/// The same, and the reason why they are not the log without slices.
fn find_objects(vault: &dyn Vault, log: LogId) -> Result<(Objects, Option<Error>)> {
    let found = vault.list(&folder(log))?.into_iter();
    let mut objects: Vec<_> =
        found.filter_map(|object| Some((object_number(log, &object.name)?, object))).collect();
    objects.sort_unstable_by_key(|(number, _)| *number);
    let Some(last) = objects.last() else { return Ok((objects, Some(no_objects(log)))) };
    let mut lacking = None;
    let said = newest_begin(vault, log)?.unwrap_or(0);
    let oldest = if said <= last.0 {
        said.max(oldest_at(vault, log, last)?)
    } else {
        // The records of all of them are discarded. The newest ones still tell how far the log was.
        let behind_gap =
            objects.windows(2).rev().find(|pair| pair[0].0 + 1 != pair[1].0).map(|pair| pair[1].0);
        let oldest = behind_gap.or(objects.first().map(|(number, _)| *number)).unwrap_or(0);
        if said > last.0 + 1 {
            // How far the log was cannot be seen: newer objects were deleted, and a pin keeps these, or kept them; or the next one
            // was never stored.
            let what = format!(
                "all records of log {:032x} in objects below number {said} are discarded, and of these the newest that is left is \
                 {}: it cannot be seen how far the log was. `fetch` what pins keep of it",
                log.0, last.0
            );
            lacking = Some(Error::new(ErrorKind::Discarded, what));
        }
        oldest
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
    Ok((objects, lacking))
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

/// The segment file of an object, whose bytes these are: itself, unless its records are log by log.
fn segment_file_of(log: LogId, number: u64, name: &str, bytes: Bytes) -> Result<Bytes> {
    if !is_sorted(&bytes) {
        return Ok(bytes);
    }
    Ok(unsort(log, number, &bytes, name)?.pieces.concat().into())
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
/// everything in between, and so everything before, is discarded. Returns the first record of the files that are left, and of each log.
fn remove_discarded(disk: &dyn Disk, mut read: Vec<(Footer, LogsOfObject)>) -> Result<(Index, LogTable)> {
    read.sort_unstable_by_key(|(footer, _)| footer.number);
    let follows = |before: &Footer, footer: &Footer| {
        let end = (before.last_raft, before.last_term, before.next);
        end == (footer.base_raft, footer.base_term, footer.first)
    };
    let kept = read.windows(2).rposition(|pair| !follows(&pair[0].0, &pair[1].0)).map_or(0, |n| n + 1);
    for (footer, _) in &read[..kept] {
        let name = file_name(footer.number);
        disk.remove(&name).map_err(|e| Error::io("remove", &disk.path().join(name), e))?;
    }
    let first = read.get(kept).map_or(Index(0), |(footer, _)| footer.first);
    Ok((first, firsts(read[kept..].iter().map(|(_, logs)| logs))))
}

/// The bytes of the newest object, whose opening says that the log begins with record `first`, or later if it knows of a discard, and
/// each log of a shared group as in `logs`. As it was stored, it knows of no later discard, and recovery would look for files with
/// older records. An opening from before the first cut does not know of the objects before it: then recovery would take none.
fn begin_with(first: Index, logs: &LogTable, id: SegmentId, bytes: Bytes, name: &str) -> Result<Bytes> {
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
    if digest_of_bytes(&[old]) != header.body_digest {
        return Ok(bytes); // damage is found when the file is read
    }
    let mut table = LogTable::decode(&opening.logs).map_err(wrong)?;
    table.begin_as(logs);
    let log_first = if opening.objects.is_empty() { first } else { opening.log_first.max(first) };
    let logs = table.encode();
    if (opening.log_first, &opening.logs) == (log_first, &logs) {
        return Ok(bytes);
    }
    let new = Opening { log_first, logs, ..opening }.encode();
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
