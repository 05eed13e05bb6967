//! Older rows as bytes: a part of an object table. The rows of a log's older objects leave the table in runs. Each run is in the opening
//! of a later object, the holder, as that object's own table has them; the table says where, and what they are together. Bytes only.
//!
//! ```text
//!   object table:   | run | run | row | row | row | ...
//!                      |     `-------------------------.
//!   holder (stored):   `--> opening: | ... rows ... |  `--> opening of another holder
//! ```
//!
//! A run, 64 bytes, little-endian:
//!
//! | offset | bytes | field | bound |
//! |---|---|---|---|
//! | 0 | 8 | the number behind its last object | ascending |
//! | 8 | 24 | the position behind that object, as in a row | ascending |
//! | 32 | 8 | timestamp of that object's last entry, ms since 1970 | - |
//! | 40 | 8 | bytes of its objects that are not discarded, together | - |
//! | 48 | 4 | number of its objects, with those that are discarded since | from 2 |
//! | 52 | 4 | number of the holder, less the number at offset 0 | the holder is stored |
//! | 56 | 4 | offset in the holder's file at which the first row begins | - |
//! | 60 | 4 | checksum of the rows there | - |
//!
//! Must not know: how rows are fetched, what changes the table.

use super::geometry::{OBJECT_BYTES, OLDER_ROWS_BYTES};
use super::object_row::{StoredAt, base_at, decode_row};
use super::segment::Base;
use crate::record::batch::{Malformed, u32_at, u64_at};
use crate::record::crc::crc32c;
use crate::types::Timestamp;
use std::collections::VecDeque;

/// The fewest objects of a run.
pub(crate) const RUN_MIN: u32 = 2;
/// The most runs of a table.
pub(crate) const RUNS_MAX: usize = u16::MAX as usize;

/// A run of objects whose rows are in the opening of another object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OlderRows {
    /// The number behind its last object.
    pub(crate) below: u64,
    /// The position behind that object.
    pub(crate) end: Base,
    /// The timestamp of that object's last entry.
    pub(crate) timestamp: Timestamp,
    /// The sizes of its objects that are not discarded, together.
    pub(crate) bytes: u64,
    /// How many objects it has, with those that are discarded since.
    pub(crate) count: u32,
    /// The object in whose opening the rows are.
    pub(crate) holder: u64,
    /// Where the first row is in the holder's file.
    pub(crate) offset: u32,
    /// The checksum of the rows.
    pub(crate) crc: u32,
}

/// A run in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowsRun {
    /// The number of its first object that is not discarded.
    pub(crate) number: u64,
    /// Where that object begins.
    pub(crate) begin: Base,
    /// The timestamp of the entry before the run; 0 if the table does not say.
    pub(crate) before: Timestamp,
    pub(crate) rows: OlderRows,
}

impl OlderRows {
    /// The number of its first object.
    pub(crate) fn first(&self) -> u64 {
        self.below - u64::from(self.count)
    }

    /// The bytes of its rows.
    pub(crate) fn rows_bytes(&self) -> u64 {
        u64::from(self.count) * OBJECT_BYTES as u64
    }

    pub(super) fn encode(&self) -> [u8; OLDER_ROWS_BYTES] {
        let mut b = [0; OLDER_ROWS_BYTES];
        let Base { raft, term, next } = self.end;
        let words = [self.below, raft.0, term.0, next.0, self.timestamp.0, self.bytes];
        words.iter().zip(b.as_chunks_mut::<8>().0).for_each(|(word, b)| *b = word.to_le_bytes());
        let words = [self.count, (self.holder - self.below) as u32, self.offset, self.crc];
        words.iter().zip(b[48..].as_chunks_mut::<4>().0).for_each(|(word, b)| *b = word.to_le_bytes());
        b
    }

    /// Whether these are its rows, from wherever they came.
    pub(crate) fn are_rows(&self, rows: &[u8]) -> bool {
        rows.len() as u64 == self.rows_bytes() && crc32c(rows) == self.crc
    }
}

impl RowsRun {
    /// Its objects that are not discarded, from all of its rows.
    ///
    /// # Errors
    /// They are not its rows.
    pub(crate) fn objects(&self, rows: &[u8]) -> Result<Vec<StoredAt>, Malformed> {
        const OTHERS: Malformed = "rows of older objects are not those that the log has moved";
        if !self.rows.are_rows(rows) {
            return Err(OTHERS);
        }
        let rows = rows.as_chunks::<OBJECT_BYTES>().0;
        let skipped = usize::try_from(self.number.saturating_sub(self.rows.first())).unwrap_or(usize::MAX);
        let mut begin = self.begin;
        let mut before = match skipped.checked_sub(1).and_then(|n| rows.get(n)) {
            Some(row) if base_at(row, 0) == begin => Timestamp(u64_at(row, 24)),
            Some(_) => return Err(OTHERS),
            None => self.before,
        };
        let mut objects = Vec::with_capacity(rows.len());
        for (number, row) in (self.number..).zip(rows.get(skipped..).unwrap_or_default()) {
            let state = decode_row(row, begin)?;
            let object = state.stored.ok_or(OTHERS)?;
            objects.push(StoredAt { number, begin, before, state, object });
            (begin, before) = (state.end, state.timestamp);
        }
        let bytes: u64 = objects.iter().map(|object| u64::from(object.object.bytes)).sum();
        if bytes == self.rows.bytes && begin == self.rows.end { Ok(objects) } else { Err(OTHERS) }
    }
}

/// The runs of a table whose oldest object is `number`, which begins at `base`.
pub(super) fn decode(
    runs: &[[u8; OLDER_ROWS_BYTES]],
    number: u64,
    base: Base,
) -> Result<VecDeque<OlderRows>, Malformed> {
    let (mut next, mut before) = (None, base);
    let mut older = VecDeque::with_capacity(runs.len());
    for b in runs {
        let (below, count) = (u64_at(b, 0), u32_at(b, 48));
        let end = base_at(b, 8);
        let holder = below.checked_add(u32_at(b, 52).into());
        let (Some(first), Some(holder)) = (below.checked_sub(count.into()), holder) else {
            return Err("run of rows has impossible numbers");
        };
        let follows = match next {
            None => (first..below).contains(&number),
            Some(next) => first == next,
        };
        if count < RUN_MIN
            || !follows
            || end.raft <= before.raft
            || end.term < before.term
            || end.next < before.next
        {
            return Err("runs of rows are out of order");
        }
        (next, before) = (Some(below), end);
        older.push_back(OlderRows {
            below,
            end,
            timestamp: Timestamp(u64_at(b, 32)),
            bytes: u64_at(b, 40),
            count,
            holder,
            offset: u32_at(b, 56),
            crc: u32_at(b, 60),
        });
    }
    Ok(older)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::format::object_row::{ObjectState, StoredObject, encode_row};
    use crate::types::{EntryIndex, Index, Term};

    fn base(raft: u64) -> Base {
        Base { raft: EntryIndex(raft), term: Term(1), next: Index(raft * 10 + 1) }
    }

    fn state(raft: u64) -> ObjectState {
        let stored =
            StoredObject { bytes: 1 << 16, data_end: 8192, index_count: 1, index_crc: 2, crc: raft as u32 };
        ObjectState { end: base(raft), timestamp: Timestamp(raft), stored: Some(stored) }
    }

    /// Objects 4 to 6, which end with entries 5, 7 and 9.
    fn run() -> (RowsRun, Vec<u8>) {
        let mut rows = Vec::new();
        [5, 7, 9].iter().for_each(|raft| encode_row(&state(*raft), &mut rows));
        let older = OlderRows {
            below: 7,
            end: base(9),
            timestamp: Timestamp(9),
            bytes: 3 << 16,
            count: 3,
            holder: 8,
            offset: 5000,
            crc: crc32c(&rows),
        };
        (RowsRun { number: 4, begin: base(2), before: Timestamp(2), rows: older }, rows)
    }

    #[test]
    fn runs_survive_encoding_and_impossible_ones_are_refused() {
        let (run, _) = run();
        let next = OlderRows { below: 9, count: 2, holder: 11, end: base(12), ..run.rows };
        let bytes = [run.rows.encode(), next.encode()];
        assert_eq!(decode(&bytes, 4, base(2)).unwrap(), [run.rows, next]);
        assert_eq!(decode(&bytes, 6, base(7)).unwrap(), [run.rows, next], "its first objects are discarded");
        for (number, begin) in [(3, base(2)), (7, base(9)), (4, base(9))] {
            decode(&bytes, number, begin).unwrap_err();
        }
        for (of, at, word) in
            [(0, 0, 8u64), (0, 48, 1 << 32 | 1), (1, 8, 9), (1, 16, 0), (1, 24, 1), (1, 48, 3)]
        {
            let mut bad = bytes;
            bad[of][at..at + 8].copy_from_slice(&word.to_le_bytes());
            assert!(decode(&bad, 4, base(2)).is_err(), "{of} {at}");
        }
    }

    #[test]
    fn rows_lead_to_the_objects_that_are_left_and_every_other_byte_is_refused() {
        let (run, rows) = run();
        let all = run.objects(&rows).unwrap();
        let found: Vec<_> = all.iter().map(|o| (o.number, o.begin.raft.0, o.before.0, o.state)).collect();
        assert_eq!(found, [(4, 2, 2, state(5)), (5, 5, 5, state(7)), (6, 7, 7, state(9))]);
        let left = OlderRows { bytes: 2 << 16, ..run.rows };
        let left = RowsRun { number: 5, begin: base(5), before: Timestamp(0), rows: left };
        assert_eq!(left.objects(&rows).unwrap(), all[1..]);
        // Another begin, another number of objects that are left, other bytes.
        RowsRun { begin: base(6), ..left }.objects(&rows).unwrap_err();
        RowsRun { number: 6, ..left }.objects(&rows).unwrap_err();
        for at in 0..rows.len() {
            let mut bad = rows.clone();
            bad[at] ^= 1;
            run.objects(&bad).unwrap_err();
            run.objects(&rows[..at]).unwrap_err();
        }
    }
}
