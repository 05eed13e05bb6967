//! Copy uses: which sorted copies this process reads now, through whichever handle of a log, and which one is being changed.
//!
//! Bytes that were read through a mapping are the file itself, and do not change as long as a reader holds them. So a part of a copy is
//! given back to the file system only while nothing reads the copy, and nothing begins to read it meanwhile.
//!
//! Invariant: a copy is not read and changed at the same time.
//!
//! Must not know: files.

use crate::types::SegmentId;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A copy: the disk that it is on, as far as that is known, and the id of its segment, which is random.
pub(super) type CopyKey = (Option<u64>, SegmentId);

#[derive(Debug)]
enum Use {
    /// By this many.
    Read(usize),
    Changed,
}

type Uses = BTreeMap<CopyKey, Use>;

/// Of all logs in this process: a log that was closed can still have readers, and be open again.
static USES: Mutex<Uses> = Mutex::new(BTreeMap::new());

/// A change has ended.
static ENDED: Condvar = Condvar::new();

/// How long a reader waits for a change. It takes some calls of the file system; the disk can hang.
const CHANGE_WAIT_MAX: Duration = Duration::from_secs(5);

fn uses() -> MutexGuard<'static, Uses> {
    USES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As long as this exists, the copy does not change.
#[derive(Debug)]
pub(super) struct CopyRead(CopyKey);

impl CopyRead {
    /// None: the copy is being changed.
    pub(super) fn begin(key: CopyKey) -> Option<Self> {
        Self::begin_in(&mut uses(), key)
    }

    /// As [`Self::begin`], after it has waited for a change of the copy, for 5 s at most.
    pub(super) fn begin_after_change(key: CopyKey) -> Option<Self> {
        let is_changed = |uses: &mut Uses| matches!(uses.get(&key), Some(Use::Changed));
        let waited = ENDED.wait_timeout_while(uses(), CHANGE_WAIT_MAX, is_changed);
        let (mut uses, _) = waited.unwrap_or_else(PoisonError::into_inner);
        Self::begin_in(&mut uses, key)
    }

    fn begin_in(uses: &mut Uses, key: CopyKey) -> Option<Self> {
        match uses.entry(key).or_insert(Use::Read(0)) {
            Use::Read(count) => *count += 1,
            Use::Changed => return None,
        }
        Some(Self(key))
    }
}

impl Drop for CopyRead {
    fn drop(&mut self) {
        if let Entry::Occupied(mut found) = uses().entry(self.0) {
            match found.get_mut() {
                Use::Read(count) if *count > 1 => *count -= 1,
                _ => drop(found.remove()),
            }
        }
    }
}

/// As long as this exists, nothing reads the copy.
#[derive(Debug)]
pub(super) struct CopyChange(CopyKey);

impl CopyChange {
    /// None: something reads the copy, or changes it.
    pub(super) fn begin(key: CopyKey) -> Option<Self> {
        match uses().entry(key) {
            Entry::Occupied(_) => None,
            Entry::Vacant(place) => {
                place.insert(Use::Changed);
                Some(Self(key))
            }
        }
    }
}

impl Drop for CopyChange {
    fn drop(&mut self) {
        uses().remove(&self.0);
        ENDED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_is_read_or_changed() {
        let (key, other) = ((Some(u64::MAX), SegmentId(5)), (None, SegmentId(5)));
        let (first, second) = (CopyRead::begin(key), CopyRead::begin(key));
        assert!(first.is_some() && second.is_some() && CopyChange::begin(key).is_none());
        drop(first);
        assert!(CopyChange::begin(key).is_none(), "the second one still reads");
        drop(second);
        let change = CopyChange::begin(key);
        assert!(change.is_some() && CopyRead::begin(key).is_none() && CopyChange::begin(key).is_none());
        assert!(CopyRead::begin(other).is_some());
        drop(change);
        assert!(CopyRead::begin(key).is_some() && CopyChange::begin(key).is_some());
    }

    #[test]
    fn reader_awaits_the_end_of_a_change() {
        let key = (Some(u64::MAX), SegmentId(6));
        let change = CopyChange::begin(key);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| CopyRead::begin_after_change(key).is_some());
            std::thread::sleep(Duration::from_millis(20));
            drop(change);
            assert!(reader.join().is_ok_and(|reads| reads));
        });
        assert!(CopyRead::begin_after_change(key).is_some(), "there is none");
    }
}
