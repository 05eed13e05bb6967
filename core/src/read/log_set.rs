//! The logs of a shared group as readers see them: how far each is committed here, its options, and the positions of
//! those that have a handle.
//!
//! Invariants:
//! - only the writer changes it, in the order of the entries, and only by what is committed and written here;
//! - a log without a handle takes no more than its state;
//! - the positions of a log that was dropped are closed.
//!
//! Must not know: files, blocks.

use crate::error::{Error, ErrorKind, Result};
use crate::options::log_options::{LogOption, LogOptions};
use crate::read::positions::Positions;
use crate::store::format::logs::LogState;
use crate::types::{Index, LogNumber};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The logs of a group.
#[derive(Default)]
pub(crate) struct LogSet {
    /// The newest log that was ever opened, as far as is committed here. 0: none was.
    opened: AtomicU32,
    /// The group is kept for named logs, whether it has any yet or not.
    reserved: AtomicBool,
    /// The log holds the catalogue of named logs: all its records are needed.
    catalogue: AtomicBool,
    /// The bytes of the group's objects at the start of a segment, which share the room of its logs there.
    objects_bytes: AtomicUsize,
    /// How many logs limit the size of their records: if none does, an append takes no lock to learn its limit.
    limiting: AtomicUsize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    logs: HashMap<LogNumber, Known>,
    /// Of the logs that have any.
    options: HashMap<LogNumber, LogOptions>,
    /// The positions that have moved since the last [`LogSet::wake`].
    moved: Vec<Arc<Positions>>,
    /// The positions of logs that were dropped since then.
    dropped: Vec<(LogNumber, Arc<Positions>)>,
    closed: Option<Error>,
}

struct Known {
    state: LogState,
    /// With the durability class `object`: the last record that the object store alone is known to have, as this replica leads.
    stored: Index,
    positions: Weak<Positions>,
}

impl LogSet {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the group is shared by named logs, or kept for them.
    pub(crate) fn is_shared(&self) -> bool {
        !self.opened().is_none() || self.reserved.load(Ordering::Relaxed)
    }

    /// The newest log that was ever opened; 0 if none was.
    pub(crate) fn opened(&self) -> LogNumber {
        LogNumber(self.opened.load(Ordering::Acquire))
    }

    /// Keeps the group for named logs: it takes no records of its own.
    pub(crate) fn reserve(&self) {
        self.reserved.store(true, Ordering::Relaxed);
    }

    /// The log holds the catalogue of named logs: programs may discard none of its records.
    pub(crate) fn hold_catalogue(&self) {
        self.catalogue.store(true, Ordering::Relaxed);
    }

    pub(crate) fn holds_catalogue(&self) -> bool {
        self.catalogue.load(Ordering::Relaxed)
    }

    /// Notes the committed state of logs that have changed. `None`: the log was dropped. Does not wake waiters, so that
    /// the caller decides the order: see [`Self::wake`]. `opened`: the newest log that was ever opened. Returns whether a
    /// log has discarded records or was dropped.
    pub(crate) fn show<'a>(
        &self,
        opened: LogNumber,
        logs: impl Iterator<Item = (LogNumber, Option<&'a LogState>)>,
    ) -> bool {
        let mut shrank = false;
        let mut inner = self.lock();
        self.opened.fetch_max(opened.0, Ordering::AcqRel);
        let Inner { logs: known, moved, dropped, .. } = &mut *inner;
        for (log, state) in logs {
            let Some(state) = state else {
                if planted!(81) {
                    continue;
                }
                shrank = true;
                let positions = known.remove(&log).and_then(|known| known.positions.upgrade());
                dropped.extend(positions.map(|positions| (log, positions)));
                continue;
            };
            let known =
                known.entry(log).or_insert(Known { state: *state, stored: Index(0), positions: Weak::new() });
            shrank |= state.first > known.state.first;
            known.state = *state;
            if let Some(positions) = known.positions.upgrade() {
                move_to(&positions, state);
                moved.push(positions);
            }
        }
        shrank
    }

    /// No record before the first one of these logs can be read any more, and none of a log that is not one of them. Their ends are shown
    /// later. Returns whether a log has discarded records, or was dropped.
    pub(crate) fn discarded<'a>(&self, logs: impl Iterator<Item = (LogNumber, &'a LogState)>) -> bool {
        let (mut inner, mut shrank) = (self.lock(), false);
        let Inner { logs: known, dropped, .. } = &mut *inner;
        let firsts: BTreeMap<_, _> = logs.map(|(log, state)| (log, state.first)).collect();
        known.retain(|log, known| {
            let Some(first) = firsts.get(log) else {
                shrank = true;
                dropped.extend(known.positions.upgrade().map(|positions| (*log, positions)));
                return false;
            };
            if known.state.first < *first {
                shrank = true;
                known.state.first = *first;
                known.state.next = known.state.next.max(*first);
                known.positions.upgrade().inspect(|positions| positions.discarded(*first));
            }
            true
        });
        shrank
    }

    /// Notes the options that are set for a log.
    pub(crate) fn show_options(&self, log: LogNumber, options: LogOptions) {
        let known = &mut self.lock().options;
        let limits = options.get(LogOption::RecordBytesMax).is_some();
        let before = match options.is_empty() {
            true => known.remove(&log),
            false => known.insert(log, options),
        };
        match (before.is_some_and(|before| before.get(LogOption::RecordBytesMax).is_some()), limits) {
            (false, true) => drop(self.limiting.fetch_add(1, Ordering::AcqRel)),
            (true, false) => drop(self.limiting.fetch_sub(1, Ordering::AcqRel)),
            _ => {}
        }
    }

    /// The options that are set for a log.
    pub(crate) fn options(&self, log: LogNumber) -> LogOptions {
        self.lock().options.get(&log).copied().unwrap_or_default()
    }

    /// The size of its records, in bytes, to which a log is limited by an option of its own.
    pub(crate) fn record_bytes_max(&self, log: LogNumber) -> Option<u32> {
        let limits = !log.is_none() && self.limiting.load(Ordering::Acquire) > 0;
        let max = limits.then(|| self.options(log).get(LogOption::RecordBytesMax)).flatten();
        max.map(|max| u32::try_from(max).unwrap_or(u32::MAX))
    }

    /// The numbers of the logs for which options are set.
    pub(crate) fn with_options(&self) -> Vec<LogNumber> {
        self.lock().options.keys().copied().collect()
    }

    /// The bytes that the options of all logs take at the start of a segment.
    pub(crate) fn options_bytes(&self) -> usize {
        self.lock().options.values().map(LogOptions::encoded_bytes).sum()
    }

    /// Notes the bytes that the group's objects take there.
    pub(crate) fn show_objects(&self, bytes: usize) {
        self.objects_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn objects_bytes(&self) -> usize {
        self.objects_bytes.load(Ordering::Relaxed)
    }

    /// Wakes the waiters of logs that have changed since the last call. Runs hooks of the program.
    pub(crate) fn wake(&self) {
        let (moved, dropped) = {
            let mut inner = self.lock();
            (std::mem::take(&mut inner.moved), std::mem::take(&mut inner.dropped))
        };
        moved.iter().for_each(|positions| positions.wake());
        dropped.iter().for_each(|(log, positions)| positions.close(deleted(*log)));
    }

    /// The positions of a log, for a handle or a reader of it.
    ///
    /// # Errors
    /// `NotFound`: the group does not have the log, as far as is known here.
    pub(crate) fn positions(&self, log: LogNumber) -> Result<Arc<Positions>> {
        let mut inner = self.lock();
        let closed = inner.closed.clone();
        let known = inner.logs.get_mut(&log).ok_or_else(|| unknown(log))?;
        if let Some(positions) = known.positions.upgrade() {
            return Ok(positions);
        }
        let positions = Arc::new(Positions::new(known.state.first, Index(0), Index(0)));
        move_to(&positions, &known.state);
        if let Some(why) = closed {
            positions.close(why);
        }
        known.positions = Arc::downgrade(&positions);
        Ok(positions)
    }

    /// The committed state of a log.
    pub(crate) fn get(&self, log: LogNumber) -> Option<LogState> {
        self.lock().logs.get(&log).map(|known| known.state)
    }

    /// The object store alone has the records of these logs up to these.
    pub(crate) fn has_stored(&self, logs: &[(LogNumber, Index)]) {
        let mut inner = self.lock();
        for (log, last) in logs {
            if let Some(known) = inner.logs.get_mut(log) {
                known.stored = known.stored.max(*last);
            }
        }
    }

    /// Whether the object store alone is known to have all records of a log up to this one.
    pub(crate) fn is_stored(&self, log: LogNumber, last: Index) -> bool {
        self.lock().logs.get(&log).is_some_and(|known| last <= known.stored)
    }

    /// The last record of each log that the object store alone is known to have; of those that have any.
    #[cfg(feature = "testing")]
    pub(crate) fn stored(&self) -> Vec<(LogNumber, Index)> {
        let stored = self.lock().logs.iter().map(|(log, known)| (*log, known.stored)).collect::<Vec<_>>();
        stored.into_iter().filter(|(_, last)| *last > Index(0)).collect()
    }

    /// How many logs there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().logs.len()
    }

    /// The numbers of all logs.
    pub(crate) fn numbers(&self) -> Vec<LogNumber> {
        self.lock().logs.keys().copied().collect()
    }

    /// Wakes all waiters permanently, for the reason `why`.
    pub(crate) fn close(&self, why: &Error) {
        let open: Vec<_> = {
            let mut inner = self.lock();
            inner.closed = Some(why.clone());
            inner.logs.values().filter_map(|known| known.positions.upgrade()).collect()
        };
        self.wake(); // logs that were dropped just before
        open.iter().for_each(|positions| positions.close(why.clone()));
    }
}

/// A log of a shared group is written, durable and committed up to its state: the group's own positions say more. Its first record moves
/// back at a copy that has jumped, once the copy knows of the objects with the records before.
fn move_to(positions: &Positions, state: &LogState) {
    let last = state.next.previous();
    positions.begin_at(state.first);
    positions.written(last);
    positions.durable_to(last);
    positions.commit_to(last);
}

/// The error of a log that the group, as far as it is known here, does not have.
pub(crate) fn unknown(log: LogNumber) -> Error {
    let what = format!(
        "there is no log {log} in this group: it was deleted, or it was never created, or it is not known here yet"
    );
    Error::new(ErrorKind::NotFound, what)
}

/// The error of a log that the group had.
pub(crate) fn deleted(log: LogNumber) -> Error {
    let what = format!("the log does not exist any more: it was deleted (it was log {log} of its group)");
    Error::new(ErrorKind::NotFound, what)
}

/// The error of an append to a log that is sealed before this record.
pub(crate) fn sealed(log: LogNumber, next: Index) -> Error {
    Error::new(
        ErrorKind::Sealed,
        format!(
            "the log is sealed, and takes no more appends: it ends before record {next} for good (it is log {log} of its group)"
        ),
    )
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::types::Timestamp;
    use std::time::Duration;

    fn state(first: u64, next: u64) -> LogState {
        LogState {
            first: Index(first),
            next: Index(next),
            bytes: 0,
            last_timestamp: Timestamp(0),
            sealed: false,
        }
    }

    #[test]
    fn positions_of_a_log_move_wake_and_end_with_it() {
        let set = LogSet::default();
        assert!(!set.is_shared());
        // A copy may learn of it later.
        let unknown = set.positions(LogNumber(3)).err().unwrap();
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
        assert!(unknown.to_string().contains("not known here yet"), "{unknown}");
        set.show(LogNumber(4), [(LogNumber(3), Some(&state(1, 5)))].into_iter());
        let positions = set.positions(LogNumber(3)).unwrap();
        assert_eq!(positions.range(), (Index(1), Index(4)));
        assert!(Arc::ptr_eq(&positions, &set.positions(LogNumber(3)).unwrap()));
        let (tx, rx) = std::sync::mpsc::channel();
        positions.on_reach(positions.hook_owner(), Index(5), Box::new(move || tx.send(()).unwrap()));
        set.show(
            LogNumber(4),
            [(LogNumber(3), Some(&state(2, 6))), (LogNumber(4), Some(&state(1, 1)))].into_iter(),
        );
        assert!(rx.try_recv().is_err());
        set.wake();
        rx.try_recv().unwrap();
        assert_eq!((positions.range(), set.numbers().len()), ((Index(2), Index(5)), 2));
        // A copy learns of objects with the records that it has jumped over.
        set.show(LogNumber(4), [(LogNumber(3), Some(&state(1, 6)))].into_iter());
        assert_eq!(positions.range(), (Index(1), Index(5)));
        set.show(LogNumber(4), [(LogNumber(3), None)].into_iter());
        set.wake();
        let gone = positions.wait(Index(6), Some(Duration::ZERO)).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
        assert!(gone.to_string().contains("it was deleted (it was log 3"), "{gone}");
        // A snapshot without a log ends it, and moves the first record of the others.
        set.show(LogNumber(5), [(LogNumber(5), Some(&state(1, 9)))].into_iter());
        let dropped = set.positions(LogNumber(5)).unwrap();
        let other = set.positions(LogNumber(4)).unwrap();
        assert!(set.discarded([(LogNumber(4), &state(1, 1)), (LogNumber(7), &state(1, 1))].into_iter()));
        assert!(!set.discarded([(LogNumber(4), &state(1, 1))].into_iter()));
        assert!(set.discarded([(LogNumber(4), &state(8, 9))].into_iter()));
        set.wake();
        assert_eq!(dropped.wait(Index(9), Some(Duration::ZERO)).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!((set.numbers(), other.range()), (vec![LogNumber(4)], (Index(8), Index(7))));
        set.close(&Error::new(ErrorKind::Closed, "closed"));
        let other = set.positions(LogNumber(4)).unwrap();
        assert_eq!(other.wait(Index(8), None).unwrap_err().kind(), ErrorKind::Closed);
    }
}
