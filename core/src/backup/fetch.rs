//! Fetch: a backup made of the objects and slices of a log in an object store, without any replica.
//!
//! ```text
//!  objects k, k+1 … n  ──>  segment files, as they are or, of a shared group, made of them; the last one without its footer, so that
//!                           the log can go on behind it, and with record k's first as the log's, because no object knows of a
//!                           discard that came after it
//!                      ──>  identity of a follower  ──>  opened  ──>  takes the entries of slices  ──>  closed, sealed like any backup
//!
//!  without objects: the first slice's state  ──>  a follower's log  ──>  as above
//! ```
//!
//! Of a branch the first files are made of its ancestors' objects: only the log's id in their headers is another one. Until it has
//! an object of its own, the last file is the state in which it began.
//!
//! Invariant: nothing is taken on trust. Recovery checks how the files follow each other, and the seal reads every block.
//!
//! Must not know: the network, which object store it is.

use crate::api::follower::FollowerLog;
use crate::backup::downloads::{Download, Downloads, get, write};
use crate::backup::found::{Found, end_of, find_without, newest_object, no_objects};
use crate::backup::payloads::{is_of_slice, with_payload};
use crate::backup::slices::{AT_A_TIME, End, SliceChain, leads_on, longest, names, read};
use crate::backup::stored::start_of;
use crate::backup::tail::{OneBatch, Part, Tail, bytes_in_block, payload_names};
use crate::backup::{Backup, Progress, tail};
use crate::error::{Error, ErrorKind, Result};
use crate::follower::message::{FollowEntries, FollowEntry, FollowFrom};
use crate::options::Options;
use crate::replica::open::disk_at;
use crate::replica::state::log_table::LogTable;
use crate::replica::state::snapshot::FollowSnapshot;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::format::geometry::{SEGMENT_HEADER_BYTES, segment_bytes_with};
use crate::store::format::identity::{IDENTITY_FILE, Identity};
use crate::store::format::mixed::RUNS_MAX;
use crate::store::format::segment::{Opening, digest_of_bytes};
use crate::store::format::sorted_object::is_sorted;
use crate::store::object_file::changed_byte;
use crate::store::objects::names::{Lineage, object_name, root_log};
use crate::store::objects::slice_names::SliceName;
use crate::store::segment::file_number;
use crate::store::sorted_object::unsort_and_compare;
use crate::sync::threads::in_parallel;
use crate::types::{EntryIndex, Index, LogId, SegmentId, TERMS_APART, Timestamp};
use crate::vault::{ObjectInfo, Vault};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// How often slices are looked at again that a server is changing.
pub(super) const LOOKS_MAX: u32 = 5;

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
    /// this brings them back into the order of their entries, and checks every byte on the way. Any other object is such a file, and is
    /// returned as it is: the inspector of segments finds its damage. If there is none, this returns the offset of the first byte
    /// between its blocks that was changed, on which no record depends.
    ///
    /// # Errors
    /// `Corrupt`: the object is damaged, or another one.
    #[doc(hidden)]
    pub fn segment_file(log: LogId, number: u64, bytes: Vec<u8>) -> Result<(Bytes, Option<u64>)> {
        let bytes = Bytes::from(bytes);
        let (file, changed) = match is_sorted(&bytes) {
            true => {
                let (made, changed) = unsort_and_compare(log, number, &bytes, &object_name(log, number))?;
                (made.pieces.concat().into(), changed)
            }
            false => (bytes.clone(), changed_byte(log, number, &bytes).unwrap_or_default()),
        };
        Ok((file, changed.map(|at| at as u64)))
    }

    /// Makes a backup in `dest`, which must be missing or empty, of all objects that a log has in an object store, and of the slices
    /// behind them as far as they lead. No replica is needed: this is how a log comes back whose replicas are all lost. Records that
    /// were in neither are not in it. Of a log with the durability class `object` it has all that was acknowledged as such, and at its
    /// very end possibly appends that were not. Slices that are missing or damaged end it earlier: see [`Self::notes`]. A newest object that
    /// came damaged is left out if slices still have its records, which a note says.
    ///
    /// `progress` is called with the bytes fetched and the total. Fetches up to eight objects at a time, each up to three times in
    /// memory: fewer if these would take more than 2 GiB, and at least one. Fetches slices twice, the first time to find out how far they
    /// lead. If objects replace slices meanwhile, it goes on with these objects, and downloads none twice except the newest. A log whose
    /// slices go faster than they can be read ends with its newest object then, if that has all that was there at the beginning.
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
    /// `NotFound`: the log has no objects there, and no slice that begins with its state. `Corrupt`: an object is missing between
    /// others, or damaged and not in slices, or without objects the slice that begins with its state is; the message names it. `Discarded`: all
    /// records in its objects are discarded, and newer objects that told how far the log was were deleted. `Busy`: slices went,
    /// time and again, before they were read. `InvalidArgument`: `dest` is not empty. Those of [`Vault`]. `Full`, `Io`,
    /// `Unsupported`. After an error `dest` is as it was before.
    pub fn fetch(
        vault: &dyn Vault,
        log: LogId,
        dest: impl AsRef<Path>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let (dest, mut downloads) = (dest.as_ref(), Downloads::default());
        let made = Self::fetch_with(vault, log, dest, &mut downloads, progress);
        if made.is_err() {
            downloads.abandon(dest);
        }
        made.map_err(|error| of_object(error, vault, log, dest))
    }

    fn fetch_with(
        vault: &dyn Vault,
        log: LogId,
        dest: &Path,
        downloads: &mut Downloads,
        progress: Progress<'_>,
    ) -> Result<Self> {
        let (mut moved, mut lacking, mut gained) = (0, 0, u64::MAX);
        let mut looks = Looks { promised: None, is_last: false, lost: None, unsound: None };
        loop {
            looks.is_last = moved + 1 == LOOKS_MAX;
            let before = downloads.fetched;
            let attempt = match Self::attempt(vault, log, (dest, &mut *downloads), &mut looks, progress) {
                Err(error) if error.kind() == ErrorKind::Corrupt => match looks.unsound.take() {
                    Some(unsound) if newest_object(vault, log)? == Some(unsound.number) => {
                        return Err(unsound.why);
                    }
                    Some(_) => return Err(error),
                    None => {
                        let Some(number) = newest_object(vault, log)? else { return Err(error) };
                        looks.unsound = Some(Unsound { number, why: of_object(error, vault, log, dest) });
                        continue;
                    }
                },
                attempt => attempt?,
            };
            match attempt {
                Attempt::Made(backup) => return Ok(backup),
                Attempt::Moved(error) if looks.is_last => return Err(error),
                Attempt::Moved(_) => {
                    looks.unsound = None; // it may have been stored again
                    // An attempt that had less to download than the one before leaves still less to the next one. That comes to an end.
                    let now = downloads.fetched - before;
                    moved += u32::from(now == 0 || now >= gained);
                    gained = gained.min(now);
                }
                // It finds the same as before, although it was permitted to end there; or something else each time.
                Attempt::Lacking(error)
                    if lacking + 1 == LOOKS_MAX || looks.lost == Some(error.to_string()) =>
                {
                    return Err(error);
                }
                Attempt::Lacking(error) => {
                    lacking += 1;
                    looks.lost = Some(error.to_string());
                }
            }
        }
    }

    /// Makes a backup of what there is now.
    fn attempt(
        vault: &dyn Vault,
        log: LogId,
        (dest, downloads): (&Path, &mut Downloads),
        looks: &mut Looks,
        progress: Progress<'_>,
    ) -> Result<Attempt> {
        let payloads = payload_names(vault, log)?;
        let without = looks.unsound.as_ref().map(|unsound| unsound.number);
        let Found { lineage, slices, objects, lacking, left_out } = find_without(vault, log, without)?;
        let newest = objects.last();
        let end = newest.map(|newest| end_of(vault, lineage.owner(newest.0), newest)).transpose()?;
        // Slices go faster than they can be read. Objects have those that were there at the beginning: then these are enough.
        let is_enough = |promised: EntryIndex| {
            let has_all = looks.is_last && payloads.is_empty() && lacking.is_none();
            has_all && end.is_some_and(|(raft, _)| raft >= promised)
        };
        let chain = match looks.promised.is_some_and(is_enough) {
            true => SliceChain::default(),
            false => longest(vault, &slices, end, &mut |_| {})?,
        };
        let log_end = chain.end(end);
        // Slices of another history promise nothing.
        let is_of_log =
            |name: &SliceName| log_end.is_none_or(|(raft, _)| name.last <= raft) || leads_on(name, log_end);
        let there =
            slices.iter().map(|(name, _)| name).filter(|name| is_of_log(name)).map(|name| name.last).max();
        let promised = *looks.promised.get_or_insert(there.unwrap_or(EntryIndex(0)));
        // A gap behind what was there at the beginning is of a slice that is still being put.
        let is_short =
            chain.is_cut_off && (!chain.faults.is_empty() || log_end.is_none_or(|(raft, _)| raft < promised));
        let newest = left_out.as_ref().or(newest).map(|(number, _)| *number);
        let moved = || {
            let what = format!("slices of log {:032x} go faster than they can be read: try again", log.0);
            Attempt::Moved(Error::new(ErrorKind::Busy, what))
        };
        // A server may have deleted slices meanwhile, because an object has them that was not there before.
        if has_lost(vault, log, chain.faults.keys().cloned())?
            || (!looks.is_last && is_short && has_gained(vault, log, &slices, log_end)?)
        {
            return Ok(moved());
        }
        let replaced = match (&looks.unsound, &left_out) {
            (Some(Unsound { why, .. }), Some(object)) => {
                let upto = match end_of(vault, lineage.owner(object.0), object) {
                    Ok(upto) => Some(upto),
                    Err(error) if error.kind() == ErrorKind::Corrupt => None, // nothing says how far it was
                    Err(error) if error.kind() == ErrorKind::NotFound => return Ok(moved()),
                    Err(error) => return Err(error),
                };
                // Of slices of another history the last one is of another term.
                let reaches = |(raft, term): End| log_end.is_some_and(|end| end.0 >= raft && end.1 >= term);
                let has_all = !chain.slices.is_empty() && !is_short && upto.is_none_or(reaches);
                if !has_all {
                    return Err(why.clone());
                }
                Some(Replaced { number: object.0, why: why.clone(), is_whole: upto.is_some() })
            }
            _ => None,
        };
        if let Some(error) = lacking.filter(|_| chain.slices.is_empty()) {
            // A damaged slice is not an absent one.
            return Err(chain.faults.iter().next().map_or(error, |(name, why)| damaged(log, name, why)));
        }
        let tail = tail::behind(vault, log, &payloads, &slices, &chain, end)?;
        if (tail.is_left_out || tail.fills_gap) && !looks.is_last && has_gained(vault, log, &slices, log_end)?
        {
            return Ok(moved());
        }
        let ends = Ends { chain: &chain, tail: &tail, is_short, replaced: replaced.as_ref() };
        let has_other_objects = || Ok::<_, Error>(newest_object(vault, log)? != newest);
        let place = (dest, downloads);
        match Self::make_of(vault, &lineage, &objects, ends, place, looks.lost.as_deref(), progress) {
            Ok(Made::Backup(backup)) => Ok(Attempt::Made(backup)),
            // Slices go because an object has their entries, or came damaged.
            Ok(Made::Lacking(error)) => {
                let before = slices.iter().map(|(name, _)| name.to_string());
                if has_other_objects()? || has_lost(vault, log, before)? {
                    return Ok(moved());
                }
                // Only the object has what is lacking: it is damaged, after all, and not replaced.
                looks
                    .unsound
                    .as_ref()
                    .filter(|_| replaced.is_some())
                    .map_or(Ok(Attempt::Lacking(error)), |unsound| Err(unsound.why.clone()))
            }
            // An object went because its records were discarded. Damage in one stays.
            Err(error) if error.kind() == ErrorKind::NotFound && has_other_objects()? => {
                Ok(Attempt::Moved(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a backup of these objects and slices. It ends before payload that cannot be read only if `lost` is the text of that error.
    /// After an error, or if something is lacking, `dest` has what was downloaded, for another attempt, or to be abandoned.
    pub(super) fn make_of(
        vault: &dyn Vault,
        lineage: &Lineage,
        objects: &[(u64, ObjectInfo)],
        ends: Ends<'_>,
        (dest, downloads): (&Path, &mut Downloads),
        lost: Option<&str>,
        progress: Progress<'_>,
    ) -> Result<Made> {
        // If the slices begin with the state, everything in the objects is discarded.
        let needed = if ends.chain.begins { &[] } else { objects };
        downloads.begin(dest, needed)?;
        match ends.chain.begins {
            true => Self::fill_from_slices(vault, lineage.log, ends, dest, lost, progress),
            false => Self::fill_from(vault, lineage, objects, ends, (dest, downloads), lost, progress),
        }
    }

    /// The end of making one: its notes, and its seal.
    fn finish(dest: &Path, ends: Ends<'_>, applied: Applied) -> Result<Self> {
        let Ends { chain, tail, is_short, replaced } = ends;
        let left_out = chain.faults.iter().map(|(name, why)| format!("slice {name} was left out: {why}"));
        let is_short = (is_short && !tail.fills_gap) || tail.is_left_out;
        let behind = is_short.then(|| {
            "the log ends early: slices lead on behind its end, and one before them is missing, damaged or of another history"
                .to_owned()
        });
        let filled = tail.fills_gap.then(|| {
            "slices are missing: the records of these and of later ones are from payload, and no discard or option of these is here"
                .to_owned()
        });
        let is_whole = replaced.is_none_or(|replaced| replaced.is_whole);
        let ends_early = is_short || applied.cut.is_some() || !is_whole;
        let instead = replaced.map(|Replaced { number, why, is_whole }| match is_whole {
            true => format!("slices are taken for object {number}, because the objects cannot be read with it: {why}"),
            false => format!(
                "the log ends early, perhaps: slices are taken for object {number}, of which not even its end can be read: {why}"
            ),
        });
        let cut = applied.cut.map(|error| {
            format!("the log ends early, before an entry whose payload cannot be read: {error}")
        });
        let payload = tail.is_left_out.then(|| {
            "payload behind the slices was left out: it is not known what the log had before it".to_owned()
        });
        let refused = applied.refused.map(|(count, why)| {
            format!("appends in payload behind the slices were left out, as by their leader: {count}, the first one because {why}")
        });
        let tail_notes = tail.notes.iter().cloned();
        let notes = instead
            .into_iter()
            .chain(left_out)
            .chain(behind)
            .chain(filled)
            .chain(payload)
            .chain(cut)
            .chain(tail_notes)
            .chain(refused);
        let notes: Vec<_> = notes.collect();
        notes.iter().for_each(|note| tracing::warn!(%note, "fetched a log"));
        Self::seal_with(dest, ends_early, notes)
    }

    /// Remarks about a backup that [`Self::fetch`] made: slices that it left out, because they are damaged, missing, or of
    /// another history, why the log ends early, if it does, and payload behind the slices that it left out. Whole sentences
    /// for people. The manifest keeps them.
    pub fn notes(&self) -> &[String] {
        &self.manifest.notes
    }

    /// Whether the object store has, or had, entries behind the end of this backup, which [`Self::fetch`] made: slices or payload before
    /// them are lost or damaged.
    pub fn ends_early(&self) -> bool {
        self.manifest.ends_early
    }

    /// Makes the copy of slices alone, the first of which begins with the log's state.
    fn fill_from_slices(
        vault: &dyn Vault,
        log: LogId,
        ends: Ends<'_>,
        dest: &Path,
        lost: Option<&str>,
        progress: Progress<'_>,
    ) -> Result<Made> {
        let chain = ends.chain;
        let first = chain.slices.first().ok_or_else(|| no_objects(log))?;
        let bytes = vault.size(&first.to_string())?.ok_or_else(|| gone(&first.to_string()))?;
        let slice = read(vault, first, bytes)?;
        let (header, body) = slice.opening.ok_or_else(|| no_objects(log))?;
        let state = FollowSnapshot { log, committed: slice.base.raft, kept: Index(0), header, body };
        let options = Self::copy_options(segment_bytes_of(0, 0, ends));
        let copy = FollowerLog::create_on(disk_at(dest, false)?, options, &state)?;
        // An older slice may have entries before the state, too, and their payload may be gone.
        let applied =
            apply(&copy, vault, log, ends, slice.base.raft, &mut |done| progress(done, chain.bytes));
        let applied = match if_allowed(applied, lost)? {
            Ok(applied) => applied,
            Err(lacking) => return Ok(Made::Lacking(lacking)),
        };
        copy.close()?;
        Ok(Made::Backup(Self::finish(dest, ends, applied)?))
    }

    fn fill_from(
        vault: &dyn Vault,
        lineage: &Lineage,
        objects: &[(u64, ObjectInfo)],
        ends: Ends<'_>,
        (dest, downloads): (&Path, &mut Downloads),
        lost: Option<&str>,
        progress: Progress<'_>,
    ) -> Result<Made> {
        let chain = ends.chain;
        let (disk, log) = (disk_at(dest, false)?, lineage.log);
        let (last, before) = objects.split_last().ok_or_else(|| no_objects(log))?;
        let total = objects.iter().map(|(_, object)| object.bytes).sum::<u64>() + chain.bytes;
        let (mut done, mut segment_bytes) = (0, 0);
        let mut note = |bytes: usize| {
            done += bytes as u64;
            segment_bytes = segment_bytes.max(bytes as u32);
            progress(done, total);
        };
        downloads.complete(vault, lineage, &*disk, before, &mut note)?;
        let (footer, bytes) = get(vault, lineage, last)?;
        note(bytes.len());
        let behind = footer.last_raft;
        let newest = Download::of(last, footer, &bytes);
        let (first, logs) = downloads.remove_discarded(vault, log, &*disk, &newest)?;
        let bytes = begin_with(first, &logs, footer.id, bytes, &last.1.name)?;
        let opening = opening_bytes_of(&bytes, footer.id);
        // A segment with a footer has a successor. The last one has none, and is read from its beginning.
        write(&*disk, footer.number, &bytes, footer.data_end as usize)?;
        let made = Identity::random(&*disk, Options::default().clock.now());
        let made = made.map_err(|e| Error::io("make", disk.path(), e))?;
        disk.create(IDENTITY_FILE).map_err(|e| Error::io("make", &disk.path().join(IDENTITY_FILE), e))?;
        Identity { log, follows: true, ..made }.write(&*disk)?;
        // Opening it proves its end, and closing it leaves it as a backup has to be.
        let segment_bytes = segment_bytes_of(segment_bytes, opening, ends);
        let copy = FollowerLog::open(dest, Self::copy_options(segment_bytes)).map_err(without_advice)?;
        // A file that grew last is cut where its end is torn. An object has no such end: that is damage.
        let at = copy.resume_point()?;
        if !matches!(at, FollowFrom::After { raft, .. } if raft == behind) {
            let what = format!("its blocks do not lead to entry {behind}, with which its footer ends");
            return Err(Error::corrupt(Path::new(&last.1.name), 0, what));
        }
        let applied = apply(&copy, vault, log, ends, behind, &mut |more| progress(done + more, total));
        let applied = match if_allowed(applied, lost)? {
            Ok(applied) => applied,
            Err(lacking) => return Ok(Made::Lacking(lacking)),
        };
        copy.close()?;
        Ok(Made::Backup(Self::finish(dest, ends, applied)?))
    }
}

/// The outcome of making a backup of objects and slices.
pub(super) enum Made {
    Backup(Backup),
    /// A slice, or payload, cannot be read. It may have been deleted because an object has it now, or have come damaged.
    Lacking(Error),
}

/// The state of a fetch between its attempts.
struct Looks {
    /// The last entry in the slices that were there at the beginning: a backup that has it does not end early.
    promised: Option<EntryIndex>,
    /// Whether this attempt is not repeated for slices that came meanwhile.
    is_last: bool,
    /// The error of payload that could not be read. If it is the same again, the backup ends before it.
    lost: Option<String>,
    /// The newest object of an attempt that met damage. The next one is made without it, if slices have its records.
    unsound: Option<Unsound>,
}

struct Unsound {
    number: u64,
    /// The damage, which can be of another object.
    why: Error,
}

/// The outcome of one attempt to make a backup of what there is.
enum Attempt {
    Made(Backup),
    /// Slices or objects went meanwhile, or more came: another attempt finds something else. The error if it was the last one.
    Moved(Error),
    /// A slice, or payload, cannot be read, and nothing explains it. If another attempt finds the same, payload is lost.
    Lacking(Error),
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

/// Whether a slice came that leads on from this end of the log: servers can put several at a time, and a later one can be there first.
fn has_gained(vault: &dyn Vault, log: LogId, before: &[(SliceName, u64)], end: Option<End>) -> Result<bool> {
    let behind = end.map_or(EntryIndex(0), |(raft, _)| raft);
    let follows = |name: &SliceName| leads_on(name, end) && (name.begins || name.first <= behind.next());
    Ok(names(vault, log)?.iter().any(|there| follows(&there.0) && !before.contains(there)))
}

/// The parts of a log behind its objects.
#[derive(Clone, Copy)]
pub(super) struct Ends<'a> {
    pub(super) chain: &'a SliceChain,
    pub(super) tail: &'a Tail,
    /// Whether the log ends before slices that were there at the beginning, unless the tail has their records.
    pub(super) is_short: bool,
    pub(super) replaced: Option<&'a Replaced>,
}

/// The newest object, if it is damaged and the slices have its records: it came damaged, and never counted as stored.
pub(super) struct Replaced {
    number: u64,
    /// The damage, which can be of another object.
    why: Error,
    /// Whether the slices are known to have all of them.
    is_whole: bool,
}

/// The entries and the payload that a copy has taken.
#[derive(Debug, Default)]
struct Applied {
    /// Why it ends early, if it does.
    cut: Option<Error>,
    /// How many appends in payload behind the last entry it refused, and why the first one.
    refused: Option<(u64, Error)>,
}

/// The size of segments that have room for what the slices have, too: of a shared group the openings grow with the logs that are opened
/// in them. `opening`: the size of the newest object's.
fn segment_bytes_of(objects: u32, opening: u32, Ends { chain, tail, .. }: Ends<'_>) -> u32 {
    if chain.slices.is_empty() && tail.parts.is_empty() {
        return objects;
    }
    let block_bytes_max =
        chain.block_bytes_max.max(tail.batch_bytes_max.saturating_add(BLOCK_HEADER_BYTES as u32));
    let needed = block_bytes_max.saturating_add(chain.new_logs_bytes);
    segment_bytes_with(objects, opening.max(chain.opening_bytes), needed)
}

/// Gives the copy all entries of a chain of slices, from those behind `behind` on: it has the others already, and the payload to which they
/// referred may be gone.
fn apply(
    copy: &FollowerLog,
    vault: &dyn Vault,
    log: LogId,
    Ends { chain, tail, .. }: Ends<'_>,
    mut behind: EntryIndex,
    progress: &mut dyn FnMut(u64),
) -> Result<Applied> {
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
            let entries =
                slice.entries.into_iter().filter(|(header, _)| header.raft_index > behind).collect();
            let cut = with_payload(vault, log, entries, |entries| {
                behind = entries.last().map_or(behind, |(header, _)| header.raft_index);
                let entries = entries.into_iter();
                let entries =
                    entries.map(|(header, body)| FollowEntry { header, body: pieces(body) }).collect();
                let committed = committed.min(behind);
                copy.apply_entries(FollowEntries { log, committed, kept: Index(0), entries })
            })?;
            if cut.is_some() {
                return Ok(Applied { cut, refused: None });
            }
        }
        progress(done);
    }
    let refused = append(copy, vault, log, tail)?;
    Ok(Applied { cut: tail.fault.clone(), refused })
}

/// Gives the copy the batches behind the last entry. Nothing in the log says which entries they were in: these are of a term far ahead, so
/// that no replica and no other copy can take them for its own. Returns how many appends it refuses, and why the first one.
fn append(copy: &FollowerLog, vault: &dyn Vault, log: LogId, tail: &Tail) -> Result<Option<(u64, Error)>> {
    let mut refused: Option<(u64, Error)> = None;
    if tail.parts.is_empty() {
        return Ok(refused);
    }
    copy.conclude(TERMS_APART)?;
    // A leader judges sessions by the time at which it proposes, and the slices say when they were put first, which can be long before. So
    // that none has expired here that had not for the leader, the batches are as old as the last entry then.
    let time_of = |part: &Part| if tail.has_sessions { Timestamp::default() } else { part.time };
    for part in &tail.parts {
        let mut batches = &part.batches(vault, log)?[..];
        while !batches.is_empty() {
            let mut bytes = 0;
            let fits = |batch: &&OneBatch| {
                bytes += bytes_in_block(batch);
                bytes <= tail.batch_bytes_max
            };
            let count = batches.iter().take(RUNS_MAX).take_while(fits).count().max(1);
            let (now, later) = batches.split_at(count);
            for error in copy.append(now, time_of(part))? {
                refused = Some(refused.map_or((1, error), |(count, first)| (count + 1, first)));
            }
            batches = later;
        }
    }
    Ok(refused)
}

/// The entries that the copy has taken, or, as the inner error, what cannot be read of these. The copy ends before payload only if
/// `lost` is the text of that error.
fn if_allowed(applied: Result<Applied>, lost: Option<&str>) -> Result<std::result::Result<Applied, Error>> {
    match applied {
        Ok(Applied { cut: Some(error), .. }) if lost != Some(&*error.to_string()) => Ok(Err(error)),
        Err(error) if is_of_slice(&error) => Ok(Err(error)),
        applied => applied.map(Ok),
    }
}

/// The same error, of a file that was made in `dest` and is gone: it names the object that the file was made of, if it was made of one.
fn of_object(error: Error, vault: &dyn Vault, log: LogId, dest: &Path) -> Error {
    let whole = std::path::absolute(dest).unwrap_or_default();
    let is_in_dest = |path: &Path| path.parent().is_some_and(|at| at == dest || at == whole);
    let is_there = |path: &Path| error.kind() == ErrorKind::Corrupt && is_in_dest(path);
    let place = error.location().filter(|(path, _)| is_there(path));
    let number = place.and_then(|(path, _)| Some((path, file_number(path.file_name()?.to_str()?)?)));
    let (Some((path, number)), Ok(start)) = (number, start_of(vault, log)) else { return error };
    let owner = start.map_or(log, |start| start.lineage.owner(number - 1));
    let name = object_name(owner, number - 1);
    if !matches!(vault.size(&name), Ok(Some(_))) {
        return error;
    }
    Error::new(ErrorKind::Corrupt, error.to_string().replace(&*path.to_string_lossy(), &name))
}

/// The damage alone: what a follower is to do with its own copy does not hold here.
fn without_advice(error: Error) -> Error {
    let damage = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<Error>());
    damage.filter(|_| error.kind() == ErrorKind::Corrupt).cloned().unwrap_or(error)
}

fn gone(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("{name} is not in the object store any more: try again"))
}

/// Nothing of a log can be read, and this slice of it is why.
fn damaged(log: LogId, name: &str, why: &str) -> Error {
    let what = format!("log {:032x} cannot be read without slice {name}: {why}", log.0);
    Error::new(ErrorKind::Corrupt, what)
}

fn pieces(body: Bytes) -> Vec<Bytes> {
    Some(body).filter(|body| !body.is_empty()).into_iter().collect()
}

/// The bytes of the newest object, whose opening says that the log begins with record `first`, or later if it knows of a discard, and
/// each log of a shared group as in `logs`. As it was stored, it knows of no later discard, and recovery would look for files with
/// older records. An opening from before the first cut does not know of the objects before it: then recovery would take none.
pub(super) fn begin_with(
    first: Index,
    logs: &LogTable,
    id: SegmentId,
    bytes: Bytes,
    name: &str,
) -> Result<Bytes> {
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

/// The size of the opening with which a segment file begins. 0: it is damaged, which is found when the file is read.
pub(super) fn opening_bytes_of(bytes: &[u8], id: SegmentId) -> u32 {
    let head = bytes.get(SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES + BLOCK_HEADER_BYTES);
    let header = head.and_then(|head| BlockHeader::parse(head, id).ok());
    header.filter(|header| header.kind == Kind::Opening).map_or(0, |header| header.length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::format::geometry::{LOG_BYTES, room_of};
    use crate::types::Term;

    /// A copy of a group has room for the openings with all logs that are opened in its slices.
    #[test]
    fn files_have_room_for_logs_that_slices_open() {
        let name = SliceName {
            log: LogId(1),
            first: EntryIndex(1),
            last: EntryIndex(2),
            term: Term(1),
            begins: true,
        };
        let chain = |opening_bytes, new_logs_bytes| SliceChain {
            slices: vec![name],
            opening_bytes,
            new_logs_bytes,
            ..SliceChain::default()
        };
        let tail = Tail::default();
        let room = |objects, opening, chain: &SliceChain| {
            room_of(segment_bytes_of(
                objects,
                opening,
                Ends { chain, tail: &tail, is_short: false, replaced: None },
            ) as usize)
        };
        let logs = 100_000 * LOG_BYTES as u32;
        for few in [0, 500, logs] {
            assert!(room(0, 0, &chain(few, logs)) > (few + logs) as usize, "{few}");
            // Behind an object that is hardly larger than its opening.
            assert!(room(few + 4096, few, &chain(0, logs)) > (few + logs) as usize, "{few}");
        }
        assert!(room(0, 0, &chain(500, 0)) < 2 << 20);
    }
}
