//! Line: the callers that wait for room in one account, grouped by the accounts that they take from, and by whether their
//! turn comes in the end.
//!
//! Callers of one group compare alike except for their age, so a look at a line costs one step per group, however many
//! callers wait.
//!
//! Must not know: caps, amounts.

use super::Slots;
use std::collections::{BTreeMap, BTreeSet};

/// The accounts that callers take from; whether their turn comes in the end.
pub(super) type Group = (Slots, bool);

/// The callers in line, by number: the smaller is the older.
#[derive(Debug, Default)]
pub(super) struct Line {
    groups: BTreeMap<Group, BTreeSet<u64>>,
    count: usize,
}

impl Line {
    pub(super) fn insert(&mut self, group: Group, number: u64) {
        self.count += usize::from(self.groups.entry(group).or_default().insert(number));
    }

    pub(super) fn remove(&mut self, group: &Group, number: u64) {
        let Some(callers) = self.groups.get_mut(group) else { return };
        self.count -= usize::from(callers.remove(&number));
        if callers.is_empty() {
            self.groups.remove(group);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The oldest caller of each group.
    pub(super) fn oldest(&self) -> impl Iterator<Item = u64> {
        self.groups.values().filter_map(|group| group.first().copied())
    }
}
