//! The logs of a shared group as bytes: the part of an opening that says how far each log is. Bytes only.
//!
//! Little-endian; no padding; every byte counts:
//!
//! | offset | bytes | field | bound |
//! |---|---|---|---|
//! | 0 | 4 | number of logs | - |
//! | 4 | 4 | the newest log that was ever opened | from 1, and the number of each log |
//! | 8 | | the logs, ascending by number, 56 bytes each | |
//!
//! A log:
//!
//! | offset | bytes | field | bound |
//! |---|---|---|---|
//! | 0 | 4 | number | from 1, ascending |
//! | 4 | 4 | flags | 1: sealed |
//! | 8 | 8 | its first index: records below it are discarded | from 1 |
//! | 16 | 8 | the index of its next record | from the first index |
//! | 24 | 8 | bytes of all batches that were appended to it | - |
//! | 32 | 8 | timestamp of its last block, ms since 1970 | - |
//! | 40 | 8 | 0: the version of its options, in a later format | 0 |
//! | 48 | 8 | 0 | 0 |
//!
//! Must not know: what changes a log.

use super::geometry::{LOG_BYTES, LOGS_HEADER_BYTES};
use crate::record::batch::{Malformed, u32_at, u64_at};
use crate::types::{Index, LogNumber, Timestamp};

/// The flag of a sealed log.
const SEALED: u32 = 1;

/// How far one log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogState {
    /// The first record that is not discarded.
    pub(crate) first: Index,
    /// The index of the next record.
    pub(crate) next: Index,
    /// Bytes of all batches that were appended to it.
    pub(crate) bytes: u64,
    /// The timestamp of its last block; 0 before the first.
    pub(crate) last_timestamp: Timestamp,
    /// It takes no more appends.
    pub(crate) sealed: bool,
}

/// Encodes the newest log that was ever opened, and the logs, which are ascending by number.
pub(crate) fn encode<'a>(
    opened: LogNumber,
    logs: impl ExactSizeIterator<Item = (&'a LogNumber, &'a LogState)>,
) -> Vec<u8> {
    let mut b = Vec::with_capacity(LOGS_HEADER_BYTES + logs.len() * LOG_BYTES);
    b.extend_from_slice(&(logs.len() as u32).to_le_bytes());
    b.extend_from_slice(&opened.0.to_le_bytes());
    for (log, state) in logs {
        b.extend_from_slice(&log.0.to_le_bytes());
        b.extend_from_slice(&(if state.sealed { SEALED } else { 0 }).to_le_bytes());
        for word in [state.first.0, state.next.0, state.bytes, state.last_timestamp.0, 0, 0] {
            b.extend_from_slice(&word.to_le_bytes());
        }
    }
    b
}

/// The reverse of [`encode`], for a table that must fill `bytes` to the end.
pub(crate) fn decode(bytes: &[u8]) -> Result<(LogNumber, Vec<(LogNumber, LogState)>), Malformed> {
    let mut before = LogNumber::OWN;
    let (opened, logs) = entries(bytes)?;
    let logs = logs.iter().map(|log| {
        let (number, flags) = (LogNumber(u32_at(log, 0)), u32_at(log, 4));
        let state = LogState {
            first: Index(u64_at(log, 8)),
            next: Index(u64_at(log, 16)),
            bytes: u64_at(log, 24),
            last_timestamp: Timestamp(u64_at(log, 32)),
            sealed: flags & SEALED != 0,
        };
        if flags & !SEALED != 0 || log[40..] != [0; 16] {
            return Err("log table has fields of a newer format");
        }
        if number <= before || number > opened || state.first == Index(0) || state.next < state.first {
            return Err("log table is out of order, or a log in it is impossible");
        }
        before = number;
        Ok((number, state))
    });
    Ok((opened, logs.collect::<Result<_, _>>()?))
}

/// Whether a log has passed record `index` where this table is, so that the record is before it. A log that is not in
/// the table was dropped before, or is opened later. Does not decode the other logs.
pub(crate) fn has_passed(bytes: &[u8], log: LogNumber, index: Index) -> Result<bool, Malformed> {
    if bytes.is_empty() {
        return Ok(false);
    }
    let (opened, logs) = entries(bytes)?;
    let found = logs.binary_search_by_key(&log.0, |entry| u32_at(entry, 0));
    Ok(found.map_or(log <= opened && !planted!(84), |n| u64_at(&logs[n], 16) > index.0))
}

/// The newest log that was ever opened, and the logs.
fn entries(bytes: &[u8]) -> Result<(LogNumber, &[[u8; LOG_BYTES]]), Malformed> {
    let (fixed, logs) = bytes.split_at_checked(LOGS_HEADER_BYTES).ok_or("log table is cut off")?;
    let opened = LogNumber(u32_at(fixed, 4));
    if opened.is_none() {
        return Err("log table of a group that is not shared");
    }
    match logs.as_chunks() {
        (logs, []) if logs.len() == u32_at(fixed, 0) as usize => Ok((opened, logs)),
        _ => Err("log table has an unexpected length"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::format::segment::Opening;

    const GOLDEN: &[u8] = include_bytes!("../../../tests/golden/opening-logs-body.bin");

    /// Made by a program that shares no code with this crate.
    #[test]
    fn golden_opening_has_these_logs() {
        let bytes = Opening::logs_in(GOLDEN).unwrap();
        let (opened, logs) = decode(bytes).unwrap();
        let state = |first, next, bytes, last, sealed| LogState {
            first: Index(first),
            next: Index(next),
            bytes,
            last_timestamp: Timestamp(last),
            sealed,
        };
        let wanted = [
            (LogNumber(3), state(4, 13, 1000, 1_700_000_000_123, false)),
            (LogNumber(7), state(1, 24, 745, 1_700_000_000_123, true)),
            (LogNumber(8), state(1, 1, 0, 0, false)),
        ];
        assert_eq!((opened, &logs[..]), (LogNumber(9), &wanted[..]));
        assert_eq!(
            encode(opened, wanted.iter().map(|(log, state)| (log, state)).collect::<Vec<_>>().into_iter()),
            bytes
        );
        assert_eq!(has_passed(bytes, LogNumber(7), Index(23)), Ok(true));
        assert_eq!(has_passed(bytes, LogNumber(7), Index(24)), Ok(false));
    }
}
