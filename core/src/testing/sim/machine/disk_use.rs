//! The files that a simulated machine could do without, and the room that its log lacks.
//!
//! Must not know: hosts, how full the disk is.

use super::Machine;
use crate::store::filling::Step;
use crate::sync::clock::Moment;
use std::collections::BTreeSet;

/// The use of a machine's disk.
#[derive(Debug, Default)]
pub(in crate::testing::sim) struct DiskUse {
    /// The names of cached objects.
    pub(in crate::testing::sim) cached: BTreeSet<String>,
    /// When a segment was last refused for want of room, if none was made since.
    pub(in crate::testing::sim) refused_at: Option<Moment>,
}

impl Machine {
    /// The use of its disk.
    pub(in crate::testing::sim) fn disk_use(&self) -> DiskUse {
        let guarded = self.lock();
        let store = &guarded.node.writer.store;
        let cache = store.segments.objects().cache();
        let cached = cache.map(|cache| cache.cached_names()).unwrap_or_default();
        DiskUse { cached, refused_at: store.allocator.refused_at() }
    }

    /// Whether files have to go at once by the limits of this replica, and nothing is in the way.
    pub(in crate::testing::sim) fn has_to_release(&self, now: Moment) -> bool {
        self.lock().node.has_to_release(now)
    }

    /// The number of its oldest segment.
    pub(in crate::testing::sim) fn oldest_file(&self) -> Option<u64> {
        self.lock().node.writer.store.segments.snapshot().first().map(|segment| segment.number)
    }

    /// Whether one block alone says which files go, and is durable.
    pub(in crate::testing::sim) fn says_once_what_goes(&self) -> bool {
        self.lock().node.says_once_what_goes()
    }

    /// Does what the thread does that keeps whole objects, as long as there is something to do at once.
    pub(in crate::testing::sim) fn fill(&mut self, now: Moment) {
        for _ in 0..STEPS_MAX {
            match self.filling.as_mut().map(|filling| filling.step(now)) {
                Some(Step::More | Step::GiveWay) => {}
                Some(Step::Wait(_) | Step::End) | None => return,
            }
        }
    }
}

/// How many objects are begun or removed at a time.
const STEPS_MAX: usize = 2;
