//! The list of objects that readers can read: those in the object store, as segments.
//!
//! Invariant: an object is in the list before the local segments with its records leave theirs.

use super::{Base, Segment, SegmentData};
use crate::error::{Error, ErrorKind, Result};
use crate::record::crc::crc32c;
use crate::store::format::geometry::data_limit;
use crate::store::format::objects::StoredObject;
use crate::store::format::segment::Footer;
use crate::store::objects::cache::{CHUNK_BYTES, ObjectCache, SORTED_CHUNK_BYTES};
use crate::store::objects::names::salt;
use crate::types::{EntryIndex, Index, LogId, Timestamp};
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
    /// None: this handle was opened without an object store.
    cache: Option<Arc<ObjectCache>>,
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
    pub(crate) fn set_cache(&self, cache: Arc<ObjectCache>) {
        self.inner.write().unwrap_or_else(PoisonError::into_inner).cache = Some(cache);
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
        object_of(&newest)
            .is_some_and(|number| cache.has_fetched(number, newest.bytes as usize, chunk_bytes_of(&newest)))
    }

    /// Checks that the object store has returned something of this log since it was opened. If it has not, reads the begin of this
    /// object.
    ///
    /// # Errors
    /// Those of the object store.
    pub(crate) fn try_object(&self, number: u64, bytes: u32) -> Result<()> {
        self.cache().map_or(Ok(()), |cache| cache.try_object(number, bytes as usize))
    }

    /// The number of the next object.
    pub(crate) fn next(&self) -> Option<u64> {
        self.read(|inner| inner.list.back().and_then(|last| object_of(last)).map(|last| last + 1))
    }

    /// Removes the objects below number `first`, and adds these, which follow the others.
    pub(crate) fn update(&self, log: LogId, first: u64, added: impl Iterator<Item = ListedObject>) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        while inner.list.pop_front_if(|segment| object_of(segment).is_some_and(|n| n < first)).is_some() {}
        for object in added {
            let segment = Arc::new(segment_of(log, &object));
            inner.list.push_back(segment);
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

    /// Opens an object of the list.
    ///
    /// # Errors
    /// `Unavailable`: this handle was opened without an object store; `Io`.
    pub(crate) fn open(&self, segment: &Arc<Segment>) -> Result<Arc<SegmentData>> {
        let Some((cache, number)) = self.cache().zip(object_of(segment)) else {
            let what = format!(
                "records {} to {} are in the object store alone, and this log was opened without one: set object_store at the \
                 server, or the vault in a program, or read them from another replica",
                segment.base.next,
                segment.end().next.previous()
            );
            return Err(Error::new(ErrorKind::Unavailable, what));
        };
        segment.data_of(|| cache.open(number, segment.bytes as usize, chunk_bytes_of(segment)))
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
fn segment_of(log: LogId, object: &ListedObject) -> Segment {
    let ListedObject { number, begin, end, timestamps, object } = *object;
    let footer = Footer {
        number: NUMBERS + number,
        id: salt(log, number),
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
