//! The list of objects that readers can read: those in the object store, as segments.
//!
//! Invariant: an object is in the list before the local segments with its records leave theirs.

use super::{Base, Segment, SegmentData};
use crate::error::{Error, ErrorKind, Result};
use crate::record::crc::crc32c;
use crate::store::format::geometry::data_limit;
use crate::store::format::objects::{Ancestor, ObjectState, Objects, StoredObject};
use crate::store::format::segment::Footer;
use crate::store::objects::cache::{CHUNK_BYTES, ObjectCache, ObjectFile, SORTED_CHUNK_BYTES};
use crate::store::objects::names::{Lineage, object_number, root_name, salt};
use crate::store::objects::payloads::{Payloads, without_store};
use crate::types::{EntryIndex, Index, LogId, LogNumber, Timestamp};
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock};

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
}

#[derive(Debug, Default)]
struct Inner {
    /// Oldest first.
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

    /// Bytes of the objects without a record from `index` on.
    pub(crate) fn bytes_before(&self, index: Index) -> u64 {
        self.read(|inner| {
            let before = inner.list.iter().take_while(|segment| segment.end().next <= index);
            before.map(|segment| u64::from(segment.bytes)).sum()
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
    pub(crate) fn try_object(&self, owner: LogId, number: u64, bytes: u32) -> Result<()> {
        self.cache().map_or(Ok(()), |cache| cache.try_object(owner, number, bytes as usize))
    }

    /// The number of the next object.
    pub(crate) fn next(&self) -> Option<u64> {
        self.read(|inner| inner.list.back().and_then(|last| object_of(last)).map(|last| last + 1))
    }

    /// Removes the objects below number `first`, and adds these, which follow the others.
    pub(crate) fn update(&self, lineage: &Lineage, first: u64, added: impl Iterator<Item = ListedObject>) {
        let inner = &mut *self.inner.write().unwrap_or_else(PoisonError::into_inner);
        if inner.lineage.as_deref() != Some(lineage) {
            inner.lineage = Some(Arc::new(lineage.clone()));
        }
        while inner.list.pop_front_if(|segment| object_of(segment).is_some_and(|n| n < first)).is_some() {
            inner.stored.pop_front();
        }
        for object in added {
            inner.list.push_back(Arc::new(segment_of(lineage.owner(object.number), &object)));
            inner.stored.push_back(object.object);
        }
    }

    /// Up to `count` objects, each with the checksum over all its bytes, from this number on or from the oldest one that is left.
    pub(crate) fn numbered_from(&self, number: u64, count: usize) -> Vec<(u64, Arc<Segment>, u32)> {
        self.read(|inner| {
            let before = |segment: &Arc<Segment>| object_of(segment).is_some_and(|n| n < number);
            let at = inner.list.partition_point(before);
            let found = inner.list.range(at..).zip(inner.stored.range(at..)).take(count);
            let numbered = |(segment, stored): (&Arc<Segment>, &StoredObject)| {
                Some((object_of(segment)?, segment.clone(), stored.crc))
            };
            found.filter_map(numbered).collect()
        })
    }

    /// The newest objects that begin before entry `raft`, the newest first, each with its number and the checksum over all its bytes: as
    /// many as have this number of bytes together.
    pub(crate) fn newest_before(&self, raft: EntryIndex, bytes_max: u64) -> Vec<(u64, Arc<Segment>, u32)> {
        let mut left = bytes_max;
        self.read(|inner| {
            let before = inner.list.partition_point(|segment| segment.base.raft < raft);
            let found = inner.list.range(..before).rev().zip(inner.stored.range(..before).rev());
            let fits = found.map_while(|(segment, stored)| {
                left = left.checked_sub(segment.bytes.into())?;
                Some((object_of(segment)?, segment.clone(), stored.crc))
            });
            fits.collect()
        })
    }

    /// The list as the object table of a copy of log `part` of this group. None: there are no objects, or they are those of several logs.
    pub(crate) fn table_for(&self, part: LogNumber) -> Option<Objects> {
        self.read(|inner| {
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
            Some(Objects { number, base: oldest.base, list: states.collect(), ancestors, part })
        })
    }

    /// The number of the oldest object, and the one behind the newest.
    pub(crate) fn numbers(&self) -> Option<(u64, u64)> {
        self.read(|inner| {
            let (oldest, newest) = inner.list.front().zip(inner.list.back())?;
            Some((object_of(oldest)?, object_of(newest)? + 1))
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

    /// The object that contains record `index`.
    pub(crate) fn holding(&self, index: Index) -> Option<Arc<Segment>> {
        self.read(|inner| {
            let n = inner.list.partition_point(|segment| segment.base.next <= index).checked_sub(1)?;
            inner.list.get(n).filter(|segment| index < segment.end().next).cloned()
        })
    }

    /// The objects that begin before entry `raft`, oldest first.
    pub(crate) fn beginning_before(&self, raft: EntryIndex) -> Vec<Arc<Segment>> {
        self.read(|inner| inner.list.iter().take_while(|segment| segment.base.raft < raft).cloned().collect())
    }

    /// The object after this one.
    pub(crate) fn after(&self, segment: &Segment) -> Option<Arc<Segment>> {
        self.read(|inner| {
            let n = inner.list.partition_point(|other| other.number <= segment.number);
            inner.list.get(n).cloned()
        })
    }

    /// The last object whose first block is older than `time`, or the oldest one.
    pub(crate) fn at_time(&self, time: Timestamp) -> Option<Arc<Segment>> {
        self.read(|inner| {
            let n = inner.list.partition_point(|segment| segment.first_timestamp < time);
            inner.list.get(n.saturating_sub(1)).cloned()
        })
    }

    /// The owner of an object of the list, and its number. None: it is a file of the log.
    fn owned(&self, segment: &Segment) -> Option<(LogId, u64)> {
        let number = object_of(segment)?;
        self.read(|inner| inner.lineage.as_ref().map(|lineage| (lineage.owner(number), number)))
    }

    /// Whether some of these objects are another log's: this log is a branch of that one.
    pub(crate) fn has_ancestors(&self) -> bool {
        self.read(|inner| {
            let oldest = inner.list.front().and_then(|oldest| object_of(oldest));
            inner
                .lineage
                .as_ref()
                .zip(oldest)
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
            let Some(oldest) = inner.list.front().and_then(|oldest| object_of(oldest)) else { return false };
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
            let what = format!(
                "records {} to {} are in the object store alone, and this log was opened without one: set object_store at the \
                 server, or the vault in a program, or read them from another replica",
                segment.base.next,
                segment.end().next.previous()
            );
            return Err(Error::new(ErrorKind::Unavailable, what).into_lasting());
        };
        segment.data_of(|| cache.open(owner, number, segment.bytes as usize, chunk_bytes_of(segment)))
    }
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
