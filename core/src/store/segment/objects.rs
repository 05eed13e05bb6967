//! The list of objects that readers can read: those in the object store, as segments.
//!
//! The rows of older objects can be elsewhere (`store/format/older_rows.rs`). They are fetched when they are needed, a run at a time, and
//! the few that were used last stay in memory.
//!
//! Invariants:
//! - an object is in the list before the local segments with its records leave theirs;
//! - rows are fetched by those who may wait for the object store alone: readers, and threads of jobs.

use super::{Base, Segment, SegmentData};
use crate::error::{Error, ErrorKind, Result};
use crate::record::crc::crc32c;
use crate::store::format::geometry::data_limit;
use crate::store::format::objects::{Ancestor, ObjectState, Objects, StoredAt, StoredObject};
use crate::store::format::older_rows::RowsRun;
use crate::store::format::segment::Footer;
use crate::store::objects::cache::{CHUNK_BYTES, ObjectCache, ObjectFile, SORTED_CHUNK_BYTES};
use crate::store::objects::names::{Lineage, object_number, root_name, salt};
use crate::store::objects::older_rows;
use crate::store::objects::payloads::{Payloads, without_store};
use crate::types::{EntryIndex, Index, LogId, LogNumber, Timestamp};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// The numbers that objects have among segments: above those of all files.
const NUMBERS: u64 = 1 << 63;

/// The number of the object that a segment is; None for a file of the log.
pub(crate) fn object_of(segment: &Segment) -> Option<u64> {
    segment.number.checked_sub(NUMBERS)
}

/// The objects that readers can read. `Send + Sync`.
#[derive(Debug, Default)]
pub(crate) struct ObjectList {
    inner: RwLock<Inner>,
    /// The runs whose rows were used last, the last one first.
    recent: Mutex<VecDeque<Arc<FetchedRun>>>,
}

/// How many runs stay in memory.
const RUNS_RECENT: usize = 32;

/// A run whose rows were fetched.
#[derive(Debug)]
struct FetchedRun {
    run: RowsRun,
    list: Vec<Arc<Segment>>,
    stored: Vec<StoredObject>,
}

/// A run, and where its rows can be fetched.
struct RunAt {
    run: RowsRun,
    cache: Option<Arc<ObjectCache>>,
    lineage: Option<Arc<Lineage>>,
}

/// Rows are in the object store alone.
struct Elsewhere;

/// An object with its number, and the checksum over all its bytes.
pub(crate) type Numbered = (u64, Arc<Segment>, u32);

#[derive(Debug, Default)]
struct Inner {
    /// The objects whose rows are elsewhere, in runs, oldest first.
    runs: Vec<RowsRun>,
    /// Those behind them, oldest first.
    list: VecDeque<Arc<Segment>>,
    /// Each of them as it is in the store, in the same order.
    stored: VecDeque<StoredObject>,
    /// None: this handle was opened without an object store.
    cache: Option<Arc<ObjectCache>>,
    /// The owners of the objects. None: there were none yet.
    lineage: Option<Arc<Lineage>>,
    /// The same.
    payloads: Option<Arc<Payloads>>,
}

/// An object of the list, to be added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedObject {
    pub(crate) number: u64,
    pub(crate) begin: Base,
    pub(crate) end: Base,
    /// The timestamp of the block before the object, and that of its last one.
    pub(crate) timestamps: (Timestamp, Timestamp),
    pub(crate) object: StoredObject,
}

impl ObjectList {
    fn read<T>(&self, f: impl FnOnce(&Inner) -> T) -> T {
        f(&self.inner.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets where the objects are.
    pub(crate) fn set_cache(&self, cache: Arc<ObjectCache>, payloads: Arc<Payloads>) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        (inner.cache, inner.payloads) = (Some(cache), Some(payloads));
    }

    /// The objects are where those of `other` are.
    pub(crate) fn use_cache_of(&self, other: &Self) {
        let (cache, payloads) = other.read(|inner| (inner.cache.clone(), inner.payloads.clone()));
        if let Some((cache, payloads)) = cache.zip(payloads) {
            self.set_cache(cache, payloads);
        }
    }

    /// The batches that the log only refers to.
    ///
    /// # Errors
    /// `Unavailable`: this handle was opened without an object store.
    pub(crate) fn payloads(&self) -> Result<Arc<Payloads>> {
        self.read(|inner| inner.payloads.clone()).ok_or_else(without_store)
    }

    pub(crate) fn cache(&self) -> Option<Arc<ObjectCache>> {
        self.read(|inner| inner.cache.clone())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.read(|inner| inner.list.is_empty())
    }

    /// Bytes of the objects without a record from `index` on. Of a run of older rows with such a record it counts none.
    pub(crate) fn bytes_before(&self, index: Index) -> u64 {
        self.read(|inner| {
            let older = inner.runs.iter().take_while(|run| run.rows.end.next <= index);
            let older: u64 = older.map(|run| run.rows.bytes).sum();
            let before = inner.list.iter().take_while(|segment| segment.end().next <= index);
            older + before.map(|segment| u64::from(segment.bytes)).sum::<u64>()
        })
    }

    /// The last entry that is in an object.
    pub(crate) fn upto(&self) -> EntryIndex {
        self.read(|inner| inner.list.back().map_or(EntryIndex(0), |last| last.end().raft))
    }

    /// The last record that is in an object; 0 if there is none.
    pub(crate) fn last_record(&self) -> Index {
        self.read(|inner| inner.list.back().map_or(Index(0), |last| last.end().next.previous()))
    }

    /// Whether the object store has returned something of this log since it was opened. If it has not, this tries the newest
    /// object.
    pub(crate) fn are_there(&self) -> bool {
        let (newest, cache) = self.read(|inner| (inner.list.back().cloned(), inner.cache.clone()));
        let Some((newest, cache)) = newest.zip(cache) else { return false };
        let Some((owner, number)) = self.owned(&newest) else { return false };
        cache.has_fetched(owner, number, newest.bytes as usize, chunk_bytes_of(&newest))
    }

    /// Checks that the object store has returned something of this log since it was opened. If it has not, reads the begin of this
    /// object, which is one of the log `owner`.
    ///
    /// # Errors
    /// Those of the object store.
    pub(crate) fn try_object(&self, owner: LogId, number: u64) -> Result<()> {
        self.cache().map_or(Ok(()), |cache| cache.try_object(owner, number))
    }

    /// The number of the next object.
    pub(crate) fn next(&self) -> Option<u64> {
        self.read(|inner| inner.list.back().and_then(|last| object_of(last)).map(|last| last + 1))
    }

    /// Replaces the runs of older rows, removes the objects below number `first` from the list behind them, and adds these, which follow the
    /// others.
    pub(crate) fn update(
        &self,
        lineage: &Lineage,
        runs: Vec<RowsRun>,
        first: u64,
        added: impl Iterator<Item = ListedObject>,
    ) {
        let inner = &mut *self.inner.write().unwrap_or_else(PoisonError::into_inner);
        if inner.lineage.as_deref() != Some(lineage) {
            inner.lineage = Some(Arc::new(lineage.clone()));
        }
        inner.runs = runs;
        while inner.list.pop_front_if(|segment| object_of(segment).is_some_and(|n| n < first)).is_some() {
            inner.stored.pop_front();
        }
        for object in added {
            inner.list.push_back(Arc::new(segment_of(lineage.owner(object.number), &object)));
            inner.stored.push_back(object.object);
        }
    }

    /// The first run for which this is so. None: there is no such run.
    fn find_run(&self, is_wanted: impl Fn(&RowsRun) -> bool) -> Option<RunAt> {
        self.read(|inner| {
            let n = inner.runs.partition_point(|run| !is_wanted(run));
            let (cache, lineage) = (inner.cache.clone(), inner.lineage.clone());
            inner.runs.get(n).map(|run| RunAt { run: *run, cache, lineage })
        })
    }

    /// The objects of a run, if they are in memory.
    fn recent_run(&self, run: &RowsRun) -> Option<Arc<FetchedRun>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().find(|known| known.run == *run).cloned()
    }

    /// The first run for which this is so: its objects. None: there is no such run. Blocks for the network.
    ///
    /// # Errors
    /// `Unavailable`: this handle was opened without an object store; those of [`older_rows::fetch`].
    fn run(&self, is_wanted: impl Fn(&RowsRun) -> bool) -> Result<Option<Arc<FetchedRun>>> {
        let Some(RunAt { run, cache, lineage }) = self.find_run(is_wanted) else { return Ok(None) };
        if let Some(known) = self.recent_run(&run) {
            return Ok(Some(known));
        }
        let Some((cache, lineage)) = cache.zip(lineage) else {
            return Err(without_objects(run.begin.next, run.rows.end.next));
        };
        let (objects, by_holder) = older_rows::fetch(cache.vault(), &lineage, &run).inspect_err(|error| {
            if error.kind() == ErrorKind::Corrupt {
                cache.suspect(run.rows.holder);
            }
        })?;
        if !by_holder {
            cache.suspect(run.rows.holder);
        }
        let listed = |at: &StoredAt| ListedObject {
            number: at.number,
            begin: at.begin,
            end: at.state.end,
            timestamps: (at.before, at.state.timestamp),
            object: at.object,
        };
        let segment = |at: &StoredAt| Arc::new(segment_of(lineage.owner(at.number), &listed(at)));
        let list = objects.iter().map(segment).collect();
        let stored = objects.iter().map(|at| at.object).collect();
        let fetched = Arc::new(FetchedRun { run, list, stored });
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.retain(|known| known.run.rows.below != run.rows.below);
        recent.push_front(fetched.clone());
        recent.truncate(RUNS_RECENT);
        Ok(Some(fetched))
    }

    /// Up to `count` objects, each with the checksum over all its bytes, from this number on or from the oldest one that is left. Blocks for
    /// the network.
    ///
    /// # Errors
    /// Those of the object store, if rows are elsewhere.
    pub(crate) fn numbered_from(&self, number: u64, count: usize) -> Result<Vec<Numbered>> {
        self.numbered(number, count, |next| self.run(|run| next < run.rows.below))
    }

    /// As [`Self::numbered_from`], from memory alone. None: rows of them have to be read in the object store.
    pub(crate) fn known_from(&self, number: u64, count: usize) -> Option<Vec<Numbered>> {
        let known = |next: u64| match self.find_run(|run| next < run.rows.below) {
            Some(RunAt { run, .. }) => self.recent_run(&run).map(Some).ok_or(Elsewhere),
            None => Ok(None),
        };
        self.numbered(number, count, known).ok()
    }

    /// As [`Self::numbered_from`]; `run` returns the first run that has objects from a number on.
    fn numbered<E>(
        &self,
        number: u64,
        count: usize,
        run: impl Fn(u64) -> Result<Option<Arc<FetchedRun>>, E>,
    ) -> Result<Vec<Numbered>, E> {
        let mut numbered = Vec::new();
        let mut next = number;
        loop {
            while numbered.len() < count
                && let Some(run) = run(next)?
            {
                let found = run.list.iter().zip(&run.stored).filter_map(with_number);
                numbered.extend(found.filter(|(number, ..)| *number >= next).take(count - numbered.len()));
                next = run.run.rows.below;
            }
            let listed = self.read(|inner| {
                // Rows have left the list meanwhile.
                if numbered.len() < count && inner.runs.last().is_some_and(|run| next < run.rows.below) {
                    return None;
                }
                let before = |segment: &Arc<Segment>| object_of(segment).is_some_and(|n| n < next);
                let at = inner.list.partition_point(before);
                let found = inner.list.range(at..).zip(inner.stored.range(at..));
                Some(found.filter_map(with_number).take(count - numbered.len()).collect::<Vec<_>>())
            });
            if let Some(listed) = listed {
                numbered.extend(listed);
                return Ok(numbered);
            }
        }
    }

    /// The newest objects that begin before entry `raft`, the newest first, each with its number and the checksum over all its bytes: as
    /// many as have this number of bytes together. Blocks for the network.
    ///
    /// # Errors
    /// Those of the object store, if rows are elsewhere.
    pub(crate) fn newest_before(&self, raft: EntryIndex, bytes_max: u64) -> Result<Vec<Numbered>> {
        let mut left = bytes_max;
        let mut take = |segment: &Arc<Segment>| match left.checked_sub(segment.bytes.into()) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        };
        let (mut newest, mut below) = self.read(|inner| {
            let before = inner.list.partition_point(|segment| segment.base.raft < raft);
            let found = inner.list.range(..before).rev().zip(inner.stored.range(..before).rev());
            let fits: Vec<_> =
                found.take_while(|(segment, _)| take(segment)).filter_map(with_number).collect();
            let below = inner.runs.last().filter(|_| fits.len() == before).map(|run| run.rows.below);
            (fits, below)
        });
        while let Some(end) = below
            && let Some(run) = self.run(|run| end <= run.rows.below)?
        {
            let before = run.list.partition_point(|segment| segment.base.raft < raft);
            let found = run.list[..before].iter().rev().zip(run.stored[..before].iter().rev());
            let known = newest.len();
            newest.extend(found.take_while(|(segment, _)| take(segment)).filter_map(with_number));
            let oldest = self.read(|inner| inner.runs.first().map(|run| run.rows.below));
            let is_all =
                newest.len() - known == before && oldest.is_some_and(|oldest| oldest < run.run.rows.below);
            below = is_all.then_some(run.run.number);
        }
        Ok(newest)
    }

    /// The list as the object table of a copy of log `part` of this group, in which no rows are elsewhere. None: there are no objects, or they
    /// are those of several logs.
    pub(crate) fn table_for(&self, part: LogNumber) -> Option<Objects> {
        self.read(|inner| {
            if !inner.runs.is_empty() {
                return None;
            }
            let (oldest, newest) = inner.list.front().zip(inner.list.back())?;
            let (number, below) = (object_of(oldest)?, object_of(newest)? + 1);
            let lineage = inner.lineage.as_ref()?;
            let log = lineage.owner(number);
            if lineage.owner(below - 1) != log {
                return None;
            }
            let states = inner.list.iter().zip(&inner.stored).map(|(segment, stored)| ObjectState {
                end: segment.end(),
                timestamp: segment.last_timestamp(),
                stored: Some(*stored),
            });
            let ancestors = vec![Ancestor { log, below }];
            let older = VecDeque::new();
            Some(Objects { number, base: oldest.base, older, list: states.collect(), ancestors, part })
        })
    }

    /// The number of the oldest object, and the one behind the newest.
    pub(crate) fn numbers(&self) -> Option<(u64, u64)> {
        self.read(|inner| {
            let newest = inner.list.back()?;
            Some((inner.oldest()?, object_of(newest)? + 1))
        })
    }

    /// Begins to keep an object of the list. Returns its owner and its file. None: there is no object store here.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn keep(&self, segment: &Segment) -> Result<Option<(LogId, Arc<ObjectFile>)>> {
        let Some((cache, (owner, number))) = self.cache().zip(self.owned(segment)) else { return Ok(None) };
        let file = cache.keep(owner, number, segment.bytes as usize, chunk_bytes_of(segment))?;
        Ok(Some((owner, file)))
    }

    /// The log is closed: see [`ObjectCache::close`].
    pub(crate) fn close(&self) {
        if let Some(cache) = self.cache() {
            cache.close();
        }
    }

    /// The object that contains record `index`. Blocks for the network if its row is elsewhere.
    ///
    /// # Errors
    /// Those of the object store, then.
    pub(crate) fn holding(&self, index: Index) -> Result<Option<Arc<Segment>>> {
        let is_behind = |first: &Segment| first.base.next <= index;
        let in_list = |list: &VecDeque<Arc<Segment>>| {
            let n = list.partition_point(|segment| segment.base.next <= index).checked_sub(1)?;
            list.get(n).filter(|segment| index < segment.end().next).cloned()
        };
        let in_run = |list: &[Arc<Segment>]| {
            list.iter().find(|segment| segment.base.next <= index && index < segment.end().next).cloned()
        };
        self.find(is_behind, in_list, |run| index < run.rows.end.next, in_run)
    }

    /// Finds an object: behind the runs of older rows, if the first one there is not behind what is wanted; else in the first run for which
    /// `is_wanted` holds. Rows can leave the list at any time: so both are decided, and the list searched, under one lock.
    fn find(
        &self,
        is_behind: impl Fn(&Segment) -> bool,
        in_list: impl Fn(&VecDeque<Arc<Segment>>) -> Option<Arc<Segment>>,
        is_wanted: impl Fn(&RowsRun) -> bool,
        in_run: impl Fn(&[Arc<Segment>]) -> Option<Arc<Segment>>,
    ) -> Result<Option<Arc<Segment>>> {
        let listed = self.read(|inner| {
            let is_listed = inner.runs.is_empty() || inner.list.front().is_some_and(|first| is_behind(first));
            is_listed.then(|| in_list(&inner.list))
        });
        match listed {
            Some(found) => Ok(found),
            // None: they were discarded meanwhile.
            None => Ok(self.run(is_wanted)?.and_then(|run| in_run(&run.list))),
        }
    }

    /// The objects that begin before entry `raft`, oldest first. Those whose rows are elsewhere are left out: there are none in a group.
    pub(crate) fn beginning_before(&self, raft: EntryIndex) -> Vec<Arc<Segment>> {
        self.read(|inner| inner.list.iter().take_while(|segment| segment.base.raft < raft).cloned().collect())
    }

    /// The object after this one. Blocks for the network if its row is elsewhere.
    ///
    /// # Errors
    /// Those of the object store, then.
    pub(crate) fn after(&self, segment: &Segment) -> Result<Option<Arc<Segment>>> {
        let next = object_of(segment).map_or(0, |number| number + 1);
        let is_behind = |first: &Segment| object_of(first).is_some_and(|number| number <= next);
        let in_list = |list: &VecDeque<Arc<Segment>>| {
            list.get(list.partition_point(|other| other.number <= segment.number)).cloned()
        };
        let in_run = |list: &[Arc<Segment>]| list.iter().find(|other| other.number > segment.number).cloned();
        self.find(is_behind, in_list, |run| next < run.rows.below, in_run)
    }

    /// The last object whose first block is older than `time`, or the oldest one. Blocks for the network if its row is elsewhere.
    ///
    /// # Errors
    /// Those of the object store, then.
    pub(crate) fn at_time(&self, time: Timestamp) -> Result<Option<Arc<Segment>>> {
        let is_behind = |first: &Segment| first.first_timestamp < time;
        let is_before = |segment: &Arc<Segment>| segment.first_timestamp < time;
        let in_list = |list: &VecDeque<Arc<Segment>>| {
            list.get(list.partition_point(is_before).saturating_sub(1)).cloned()
        };
        let in_run =
            |list: &[Arc<Segment>]| list.get(list.partition_point(is_before).saturating_sub(1)).cloned();
        // The object behind a run begins with the time at which the run ends.
        self.find(is_behind, in_list, |run| time <= run.rows.timestamp, in_run)
    }

    /// The owner of an object of the list, and its number. None: it is a file of the log.
    fn owned(&self, segment: &Segment) -> Option<(LogId, u64)> {
        let number = object_of(segment)?;
        self.read(|inner| inner.lineage.as_ref().map(|lineage| (lineage.owner(number), number)))
    }

    /// Whether some of these objects are another log's: this log is a branch of that one.
    pub(crate) fn has_ancestors(&self) -> bool {
        self.read(|inner| {
            inner
                .lineage
                .as_ref()
                .zip(inner.oldest())
                .is_some_and(|(lineage, oldest)| lineage.owner(oldest) != lineage.log)
        })
    }

    /// The number of the first object that can be the log's own.
    pub(crate) fn own_from(&self) -> u64 {
        self.read(|inner| inner.lineage.as_ref().map_or(0, |lineage| lineage.own_from()))
    }

    /// Whether this name in the object store is one of an object that readers of this log read, and that is another log's: this log is
    /// a branch of that one.
    pub(crate) fn is_of_ancestor(&self, name: &str) -> bool {
        self.read(|inner| {
            let Some(lineage) = &inner.lineage else { return false };
            let Some(oldest) = inner.oldest() else { return false };
            lineage.parts().any(|(owner, part)| {
                name == root_name(owner)
                    || object_number(owner, name)
                        .is_some_and(|number| number >= oldest && part.contains(&number))
            })
        })
    }

    /// Opens an object of the list.
    ///
    /// # Errors
    /// `Unavailable`: this handle was opened without an object store; `Io`.
    pub(crate) fn open(&self, segment: &Arc<Segment>) -> Result<Arc<SegmentData>> {
        let Some((cache, (owner, number))) = self.cache().zip(self.owned(segment)) else {
            return Err(without_objects(segment.base.next, segment.end().next));
        };
        segment.data_of(|| cache.open(owner, number, segment.bytes as usize, chunk_bytes_of(segment)))
    }
}

impl Inner {
    /// The number of the oldest object.
    fn oldest(&self) -> Option<u64> {
        let of_rows = self.runs.first().map(|run| run.number);
        of_rows.or_else(|| self.list.front().and_then(|oldest| object_of(oldest)))
    }
}

/// An object with its number, and the checksum over all its bytes.
fn with_number((segment, stored): (&Arc<Segment>, &StoredObject)) -> Option<Numbered> {
    Some((object_of(segment)?, segment.clone(), stored.crc))
}

/// The error of a handle that was opened without the object store.
fn without_objects(first: Index, next: Index) -> Error {
    let what = format!(
        "records {first} to {} are in the object store alone, and this log was opened without one: set object_store at the \
         server, or the vault in a program, or read them from another replica",
        next.previous()
    );
    Error::new(ErrorKind::Unavailable, what).into_lasting()
}

/// Whether this is an object whose records are log by log.
pub(crate) fn is_sorted_object(segment: &Segment) -> bool {
    object_of(segment).is_some() && !segment.has_index()
}

/// How much of an object is fetched at a time.
fn chunk_bytes_of(segment: &Segment) -> usize {
    if is_sorted_object(segment) { SORTED_CHUNK_BYTES } else { CHUNK_BYTES }
}

/// The segment that an object is for readers.
fn segment_of(owner: LogId, object: &ListedObject) -> Segment {
    let ListedObject { number, begin, end, timestamps, object } = *object;
    let footer = Footer {
        number: NUMBERS + number,
        id: salt(owner, number),
        base_raft: begin.raft,
        base_term: begin.term,
        first: begin.next,
        next: end.next,
        last_raft: end.raft,
        last_term: end.term,
        first_timestamp: timestamps.0,
        last_timestamp: timestamps.1,
        data_end: object.data_end,
        index_offset: data_limit(object.bytes as usize) as u32,
        index_count: object.index_count,
        index_crc: if object.is_sorted() { crc32c(&[]) } else { object.index_crc },
    };
    let segment = Segment::sealed(&footer, object.bytes);
    segment.publish(object.data_end as usize); // its entries are committed
    segment
}
