//! Judge: compares acknowledgements with what is read. It holds only records that one of the two sides has not reported
//! yet, so its memory does not grow with time.
//!
//! Invariant: a writer's records are numbered from 1 without a gap, and it appends them in order in one session after
//! the other: so the log holds each number once, in order.

use chiplog::Index;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The bytes of a writer's record: its identity, and a filler that follows from it.
pub(crate) fn record(writer: u64, number: u64) -> Vec<u8> {
    let chance = (writer << 32 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let filler = (chance >> 32) as usize % 1500;
    let mut bytes = [writer.to_le_bytes(), number.to_le_bytes()].concat();
    bytes.resize(16 + filler, chance as u8);
    bytes
}

/// The identity of a record; `None` if no writer ever sent it.
pub(crate) fn identify(bytes: &[u8]) -> Option<(u64, u64)> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (writer, number) = (word(0)?, word(8)?);
    (record(writer, number) == bytes).then_some((writer, number))
}

/// The report of one side about a record.
#[derive(Clone, Copy, Debug)]
enum Half {
    Acknowledged(Index),
    Read(Index),
}

#[derive(Debug, Default)]
struct State {
    /// The last record that was read.
    last: Index,
    /// By writer, the last number that was read.
    numbers: HashMap<u64, u64>,
    halves: HashMap<(u64, u64), Half>,
    tally: Tally,
    broken: Option<String>,
}

/// The number of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Tally {
    pub(crate) acknowledged: u64,
    pub(crate) read: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Judge(Mutex<State>);

impl Judge {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports an error; the first one is kept.
    pub(crate) fn fail(&self, what: String) {
        self.state().broken.get_or_insert(what);
    }

    pub(crate) fn broken(&self) -> Option<String> {
        self.state().broken.clone()
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.state().broken.is_some()
    }

    pub(crate) fn tally(&self) -> Tally {
        self.state().tally
    }

    /// The last record that was read.
    pub(crate) fn last(&self) -> Index {
        self.state().last
    }

    /// A writer's record was acknowledged at this index.
    pub(crate) fn acknowledged(&self, writer: u64, number: u64, index: Index) {
        let mut state = self.state();
        state.tally.acknowledged += 1;
        match state.halves.remove(&(writer, number)) {
            None => _ = state.halves.insert((writer, number), Half::Acknowledged(index)),
            Some(Half::Read(read)) if read == index => {}
            Some(other) => {
                let what =
                    format!("record {number} of writer {writer} was acknowledged at {index}: {other:?}");
                state.broken.get_or_insert(what);
            }
        }
    }

    /// The reader that reads everything got this record.
    pub(crate) fn read(&self, index: Index, bytes: &[u8]) {
        let mut state = self.state();
        let Some((writer, number)) = identify(bytes) else {
            state.broken.get_or_insert(format!("record {index} was never sent"));
            return;
        };
        let (due, before) = (state.last.next(), state.numbers.insert(writer, number).unwrap_or(0));
        if index != due {
            state.broken.get_or_insert(format!("record {index} was read where {due} was due"));
        }
        if number != before + 1 {
            let what =
                format!("writer {writer}: {number} at {index} follows {before}: lost, doubled or reordered");
            state.broken.get_or_insert(what);
        }
        state.last = index;
        state.tally.read += 1;
        match state.halves.remove(&(writer, number)) {
            None => _ = state.halves.insert((writer, number), Half::Read(index)),
            Some(Half::Acknowledged(promised)) if promised == index => {}
            Some(other) => {
                let what = format!("record {number} of writer {writer} was read at {index}: {other:?}");
                state.broken.get_or_insert(what);
            }
        }
    }

    /// After all writers have ended: both sides have reported everything.
    pub(crate) fn finish(&self, given: &[(u64, u64)]) {
        let mut state = self.state();
        let left = state.halves.iter().next().map(|(which, half)| (*which, *half));
        if let Some(((writer, number), half)) = left {
            let what = format!(
                "record {number} of writer {writer}, and {} others: {half:?}, and nothing of the other side",
                state.halves.len() - 1
            );
            state.broken.get_or_insert(what);
        }
        for (writer, number) in given {
            let read = state.numbers.get(writer).copied().unwrap_or(0);
            if read != *number {
                let what = format!("writer {writer} appended {number} records, of which {read} were read");
                state.broken.get_or_insert(what);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    fn verdict_of(act: impl FnOnce(&Judge)) -> Option<String> {
        let judge = Judge::default();
        judge.read(Index(1), &record(7, 1));
        judge.acknowledged(7, 1, Index(1));
        judge.acknowledged(7, 2, Index(2));
        act(&judge);
        judge.broken()
    }

    #[test]
    fn lost_doubled_and_moved_records_are_found() {
        let sound = verdict_of(|judge| {
            judge.read(Index(2), &record(7, 2));
            judge.finish(&[(7, 2)]);
        });
        assert_eq!(sound, None);
        let lost = verdict_of(|judge| judge.finish(&[(7, 2)]));
        assert!(lost.unwrap().contains("Acknowledged"));
        let elsewhere = verdict_of(|judge| judge.read(Index(2), &record(8, 1)));
        assert_eq!(elsewhere, None);
        let moved = verdict_of(|judge| {
            judge.read(Index(2), &record(8, 1));
            judge.read(Index(3), &record(7, 2));
        });
        assert!(moved.unwrap().contains("was read at 3"));
        let doubled = verdict_of(|judge| judge.read(Index(2), &record(7, 1)));
        assert!(doubled.unwrap().contains("1 at 2 follows 1"));
        let skipped = verdict_of(|judge| judge.read(Index(3), &record(7, 2)));
        assert!(skipped.unwrap().contains("where 2 was due"));
        let foreign = verdict_of(|judge| judge.read(Index(2), b"nobody's"));
        assert!(foreign.unwrap().contains("was never sent"));
        let unread = verdict_of(|judge| {
            judge.read(Index(2), &record(7, 2));
            judge.read(Index(3), &record(7, 3));
            judge.finish(&[(7, 3)]);
        });
        assert!(unread.unwrap().contains("Read"));
    }
}
