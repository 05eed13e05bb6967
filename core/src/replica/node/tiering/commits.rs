//! The times of commits: since when appends wait for the object store.
//!
//! Must not know: which object store it is, who waits.

use crate::sync::clock::Moment;
use crate::types::EntryIndex;
use std::collections::VecDeque;
use std::time::Duration;

/// Commits closer together than this count as one.
const COMMITS_APART: Duration = Duration::from_millis(100);

/// The times of commits whose appends wait: the last entry of each, ascending.
#[derive(Debug, Default)]
pub(super) struct Commits(VecDeque<(EntryIndex, Moment)>);

impl Commits {
    /// Entries up to this one are committed.
    pub(super) fn note(&mut self, committed: EntryIndex, now: Moment) {
        match self.0.back_mut() {
            Some((upto, _)) if committed <= *upto => {}
            Some((upto, at)) if now.since(*at) < COMMITS_APART => *upto = committed,
            _ => self.0.push_back((committed, now)),
        }
    }

    /// Nothing waits for an entry before this one.
    pub(super) fn forget_before(&mut self, first: EntryIndex) {
        while self.0.front().is_some_and(|(upto, _)| *upto < first) {
            self.0.pop_front();
        }
    }

    /// The time of the first commit.
    pub(super) fn first(&self) -> Option<Moment> {
        self.0.front().map(|(_, at)| *at)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
