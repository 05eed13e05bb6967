//! Confirmation: with the durability class `object` an append is answered once the object store alone has it. See `placement`.
//!
//! Its entry was committed before. If the object store takes no slice for long, the append is answered without: it is as durable then as in
//! the class `majority`, and the answer says so.
//!
//! Invariants:
//! - the last record that the object store is said to have was committed, and a log that is made of the object store alone has it, with
//!   all records before it (P6);
//! - an append waits for the object store at most [`STORE_LIMIT`] after it was committed, however slowly slices are stored.
//!
//! Must not know: the network, which object store it is.

use super::super::Node;
use super::commits::Commits;
use super::payloads::PayloadGate;
use crate::options::log_options::LogOption;
use crate::replica::queue::proposals::{BlockBuilder, StoredAt};
use crate::replica::raft::Proposed;
use crate::sync::clock::Moment;
use crate::sync::completion::Durability;
use crate::types::{EntryIndex, Index, LogNumber};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long an append that is committed waits for the object store.
const STORE_LIMIT: Duration = Duration::from_secs(10);

impl PayloadGate {
    /// When appends wait no longer for the object store.
    pub(super) fn late_at(&self) -> Option<Moment> {
        self.commits.first().map(|at| at.plus(STORE_LIMIT))
    }

    /// Whether appends are answered without the object store, which has the log up to this entry. `first`: the first append that waits and
    /// is committed.
    fn gives_up(
        &mut self,
        entry: EntryIndex,
        first: Option<EntryIndex>,
        committed: EntryIndex,
        now: Moment,
    ) -> bool {
        let Some(first) = first.filter(|_| self.gave_up != Some(entry)) else {
            self.commits = Commits::default();
            return self.gave_up == Some(entry);
        };
        self.commits.note(committed, now);
        self.commits.forget_before(first);
        if self.late_at().is_none_or(|at| now < at) {
            return false;
        }
        self.commits = Commits::default();
        self.gave_up = Some(entry);
        true
    }
}

impl Node {
    /// The logs of a block that is proposed now, if their appends are to be in the object store before they are answered.
    pub(in crate::replica::node) fn awaits_store(&self, gathered: &BlockBuilder) -> Vec<LogNumber> {
        if !gathered.is_mixed() || !self.refers() {
            return Vec::new();
        }
        let mut logs: Vec<_> = gathered.bytes_by_log().map(|(log, _)| log).collect();
        logs.sort_unstable();
        logs.dedup();
        logs
    }

    /// A block of appends was proposed, or refused. `stored`: where its batches are in the object store. `logs`: see
    /// [`Self::awaits_store`].
    pub(in crate::replica::node) fn has_proposed(
        &mut self,
        stored: Option<StoredAt>,
        proposed: Option<Proposed>,
        logs: Vec<LogNumber>,
    ) {
        let (entry, is_whole) =
            proposed.map_or((None, false), |proposed| (proposed.entry, proposed.is_whole));
        if let Some(end) = entry.filter(|_| !logs.is_empty()) {
            let known = self.replica.sequencer.logs();
            let last = |log| Some((log, known.get(log)?.next.previous()));
            let logs = logs.into_iter().filter_map(last).collect();
            self.tiering.payloads.awaited_logs.push(end.raft, end.term, logs);
        }
        let placement = &mut self.tiering.payloads.placement;
        match (stored, entry) {
            (Some(at), _) => placement.proposed(at, entry, is_whole),
            (None, Some(end)) => placement.other(end),
            (None, None) => {}
        }
    }

    /// A command of the queue became the entries behind `before`, if it became any.
    pub(in crate::replica::node) fn has_commanded(&mut self, is_of_queue: bool, before: EntryIndex) {
        let end = self.replica.sequencer.end();
        if is_of_queue && end.raft > before {
            self.tiering.payloads.placement.other(end);
        }
    }

    /// The last entry whose callers may be answered, if those up to `committed` are committed. Notes what the object store has.
    pub(in crate::replica::node) fn answerable(&mut self, committed: EntryIndex, now: Moment) -> EntryIndex {
        let all = EntryIndex(u64::MAX);
        if !self.refers() {
            self.tiering.payloads.commits = Commits::default();
            (self.tiering.payloads.gave_up, self.tiering.payloads.is_reported) = (None, false);
            self.tiering.payloads.awaited_logs.clear();
            if let Some(sliced) = self.tiering.slices.sliced() {
                self.tiering.payloads.placement.forget(sliced.end.raft);
            }
            self.count_unstored(committed);
            return all;
        }
        let (gate, term) = (&mut self.tiering.payloads, self.replica.term());
        let slices = &self.tiering.slices;
        let sliced = slices.sliced().filter(|_| !slices.are_behind_others());
        let (entry, record) =
            sliced.map(|sliced| gate.placement.stored(sliced, committed)).unwrap_or_default();
        let counters = &self.published.counters;
        counters.in_store_index.fetch_max(record.0, Ordering::Release);
        counters.in_store_upto.fetch_max(entry.0, Ordering::Release);
        while let Some(logs) = gate.awaited_logs.next_stored(entry, term) {
            self.logs.has_stored(&logs);
        }
        let first = self.replica.first_awaited().filter(|first| *first > entry && *first <= committed);
        let gives_up = gate.gives_up(entry, first, committed, now);
        let path = self.tiering.path.display();
        if gives_up && !std::mem::replace(&mut gate.is_reported, true) {
            tracing::warn!(
                %path, upto = %entry,
                "slices of entries are not stored: appends of the class object are confirmed without the object store"
            );
        } else if !gives_up && gate.gave_up.is_some_and(|before| before < entry) {
            gate.gave_up = None;
            if std::mem::take(&mut gate.is_reported) {
                tracing::info!(%path, "appends of the class object are confirmed by the object store again");
            }
        }
        if gives_up {
            self.count_unstored(committed);
            return all;
        }
        entry
    }

    /// How durable an append is that is answered now, by its last entry.
    pub(in crate::replica::node) fn durability(&self) -> impl Fn(EntryIndex) -> Durability + use<> {
        let stored = match self.refers() {
            true => EntryIndex(self.published.counters.in_store_upto.load(Ordering::Acquire)),
            false => EntryIndex(0),
        };
        let are_stored = !self.tiering.slices.are_failing() && !self.tiering.payloads.is_reported;
        let has_slices = self.tiering.vault.is_some() && self.options.slice_interval.is_some() && are_stored;
        let otherwise = if has_slices { Durability::MajoritySlices } else { Durability::Majority };
        move |entry| if entry <= stored { Durability::Object } else { otherwise }
    }

    /// Counts the appends that are confirmed now although the object store alone is not known to have them. Without the class none has to
    /// be there.
    fn count_unstored(&self, committed: EntryIndex) {
        let is_set = self.replica.sequencer.committed().options.get(LogOption::PayloadSlices) == Some(1);
        let counters = &self.published.counters;
        let stored = EntryIndex(counters.in_store_upto.load(Ordering::Acquire));
        if is_set && stored < committed {
            let count = self.replica.awaited_confirmations(stored.next()..=committed);
            counters.unstored_confirmations.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// The last entry that an object may have. In a log with payload slices that is the last one in a slice of entries: what is in
    /// objects does not say where payload goes on.
    ///
    /// With the record behind it.
    pub(super) fn cuttable(&self) -> Option<(EntryIndex, Index)> {
        let committed = self.replica.sequencer.committed();
        let all = (committed.raft, committed.next);
        match self.refers() {
            true => self.tiering.slices.sliced().map(|sliced| all.min((sliced.end.raft, sliced.end.next))),
            false => Some(all),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slices are stored slowly: each append waits as long as one of them alone, and not as long as all before it together.
    #[test]
    fn append_waits_at_most_its_limit_after_its_commit() {
        let (mut gate, begun) = (PayloadGate::new(1), Moment::default());
        let after = |millis| begun.plus(Duration::from_millis(millis));
        let entry = EntryIndex;
        assert!(!gate.gives_up(entry(10), Some(entry(11)), entry(11), after(0)));
        assert!(!gate.gives_up(entry(10), Some(entry(11)), entry(40), after(1000)));
        assert_eq!(gate.late_at(), Some(after(10_000)));
        // One slice was stored in time. An append that was committed soon after waits for the rest of its own time.
        assert!(!gate.gives_up(entry(11), Some(entry(12)), entry(50), after(9_000)));
        assert_eq!(gate.late_at(), Some(after(11_000)));
        assert!(gate.gives_up(entry(11), Some(entry(12)), entry(50), after(11_000)));
        assert!(
            gate.gives_up(entry(11), Some(entry(51)), entry(51), after(12_000)),
            "until a slice is stored"
        );
        assert_eq!(gate.late_at(), None);
        assert!(!gate.gives_up(entry(60), Some(entry(61)), entry(61), after(13_000)));
        assert!(!gate.gives_up(entry(61), None, entry(61), after(14_000)));
        assert_eq!(gate.late_at(), None);
    }

    #[test]
    fn times_of_commits_are_bounded() {
        let mut gate = PayloadGate::new(1);
        for n in 0..20_000 {
            gate.gives_up(
                EntryIndex(1),
                Some(EntryIndex(2)),
                EntryIndex(2 + n),
                Moment::default().plus(Duration::from_micros(400 * n)),
            );
        }
        assert!(gate.commits.len() <= 100, "{}", gate.commits.len());
    }
}
