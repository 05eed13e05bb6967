//! The logs of a shared group as bytes: the part of an opening that says how far each log is, and which options are
//! set for it. Bytes only.
//!
//! Little-endian; no padding; every byte counts:
//!
//! | offset | bytes | field | bound |
//! |---|---|---|---|
//! | 0 | 4 | number of logs | - |
//! | 4 | 4 | the newest log that was ever opened | from 1, and the number of each log |
//! | 8 | | the logs, ascending by number, 56 bytes each | |
//! | | | the options that are set for logs, ascending by log and tag, 16 bytes each | of a log in the table |
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
//! | 40 | 16 | 0 | 0 |
//!
//! An option: its tag (4 bytes), the number of its log (4), its value (8).
//!
//! Must not know: what changes a log.

use super::geometry::{LOG_BYTES, LOG_OPTION_BYTES, LOGS_HEADER_BYTES};
use crate::record::batch::{Malformed, u32_at, u64_at};
use crate::types::{Index, LogNumber, Timestamp};
use std::collections::BTreeMap;

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

/// Encodes the newest log that was ever opened, the logs, and the encoded options of those that have any; both are
/// ascending by number.
pub(crate) fn encode<'a>(
    opened: LogNumber,
    logs: impl ExactSizeIterator<Item = (&'a LogNumber, &'a LogState)>,
    options: impl Iterator<Item = (&'a LogNumber, Vec<u8>)>,
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
    for (log, mut options) in options {
        let (options, _) = options.as_chunks_mut::<LOG_OPTION_BYTES>();
        options.iter_mut().for_each(|option| option[4..8].copy_from_slice(&log.0.to_le_bytes()));
        b.extend_from_slice(options.as_flattened());
    }
    b
}

/// The contents of a log table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    /// The newest log that was ever opened.
    pub(crate) opened: LogNumber,
    /// Ascending by number.
    pub(crate) logs: Vec<(LogNumber, LogState)>,
    /// Of the logs that have any, as the log's number is 0.
    pub(crate) options: BTreeMap<LogNumber, Vec<u8>>,
}

/// The reverse of [`encode`], for a table that must fill `bytes` to the end.
pub(crate) fn decode(bytes: &[u8]) -> Result<Decoded, Malformed> {
    let mut before = LogNumber::OWN;
    let Entries { opened, logs, options } = entries(bytes)?;
    let logs = logs.iter().map(|log| {
        let (number, flags) = (LogNumber(u32_at(log, 0)), u32_at(log, 4));
        let state = state_at(log);
        if flags & !SEALED != 0 || log[40..] != [0; 16] {
            return Err("log table has fields of a newer format");
        }
        if number <= before || number > opened || state.first == Index(0) || state.next < state.first {
            return Err("log table is out of order, or a log in it is impossible");
        }
        before = number;
        Ok((number, state))
    });
    let logs: Vec<_> = logs.collect::<Result<_, _>>()?;
    let options = options_by_log(options)?;
    let is_known = |log: &LogNumber| logs.binary_search_by_key(log, |(number, _)| *number).is_ok();
    match options.keys().all(is_known) {
        true => Ok(Decoded { opened, logs, options }),
        false => Err("log table has options of a log that does not exist"),
    }
}

fn options_by_log(mut options: &[[u8; LOG_OPTION_BYTES]]) -> Result<BTreeMap<LogNumber, Vec<u8>>, Malformed> {
    let mut decoded = BTreeMap::new();
    while let Some(first) = options.first() {
        let log = u32_at(first, 4);
        let of_log = options.iter().take_while(|option| u32_at(*option, 4) == log).count();
        let (mut of_log, rest) = (options[..of_log].to_vec(), &options[of_log..]);
        of_log.iter_mut().for_each(|option| option[4..8].fill(0));
        if decoded.last_key_value().is_some_and(|(before, _): (&LogNumber, _)| before.0 >= log) {
            return Err("options in a log table are out of order");
        }
        decoded.insert(LogNumber(log), of_log.into_flattened());
        options = rest;
    }
    Ok(decoded)
}

/// Whether a log has passed record `index` where this table is, so that the record is before it. A log that is not in
/// the table was dropped before, or is opened later. Does not decode the other logs.
pub(crate) fn has_passed(bytes: &[u8], log: LogNumber, index: Index) -> Result<bool, Malformed> {
    if bytes.is_empty() {
        return Ok(false);
    }
    let Entries { opened, logs, .. } = entries(bytes)?;
    let found = find(logs, log);
    Ok(found.map_or(log <= opened && !planted!(84), |entry| u64_at(entry, 16) > index.0))
}

/// Whether a log has a block of time `time` or later before this table. As [`has_passed`], of a log that is not in it.
pub(crate) fn has_reached(bytes: &[u8], log: LogNumber, time: Timestamp) -> Result<bool, Malformed> {
    if bytes.is_empty() {
        return Ok(false);
    }
    let Entries { opened, logs, .. } = entries(bytes)?;
    // 0: it has no block.
    Ok(find(logs, log).map_or(log <= opened, |entry| u64_at(entry, 32) >= time.0.max(1)))
}

/// How far a log is where this table is. `None`: it is not in the table. Does not decode the other logs.
pub(crate) fn state_of(bytes: &[u8], log: LogNumber) -> Result<Option<LogState>, Malformed> {
    if bytes.is_empty() {
        return Ok(None);
    }
    Ok(find(entries(bytes)?.logs, log).map(state_at))
}

fn state_at(entry: &[u8; LOG_BYTES]) -> LogState {
    LogState {
        first: Index(u64_at(entry, 8)),
        next: Index(u64_at(entry, 16)),
        bytes: u64_at(entry, 24),
        last_timestamp: Timestamp(u64_at(entry, 32)),
        sealed: u32_at(entry, 4) & SEALED != 0,
    }
}

fn find(logs: &[[u8; LOG_BYTES]], log: LogNumber) -> Option<&[u8; LOG_BYTES]> {
    logs.binary_search_by_key(&log.0, |entry| u32_at(entry, 0)).ok().map(|n| &logs[n])
}

/// The parts of a log table, still encoded.
struct Entries<'a> {
    opened: LogNumber,
    logs: &'a [[u8; LOG_BYTES]],
    options: &'a [[u8; LOG_OPTION_BYTES]],
}

fn entries(bytes: &[u8]) -> Result<Entries<'_>, Malformed> {
    let (fixed, logs) = bytes.split_at_checked(LOGS_HEADER_BYTES).ok_or("log table is cut off")?;
    let opened = LogNumber(u32_at(fixed, 4));
    if opened.is_none() {
        return Err("log table of a group that is not shared");
    }
    let bytes = (u32_at(fixed, 0) as usize).saturating_mul(LOG_BYTES);
    let (logs, options) = logs.split_at_checked(bytes).ok_or("log table is cut off")?;
    match (logs.as_chunks().0, options.as_chunks()) {
        (logs, (options, [])) => Ok(Entries { opened, logs, options }),
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
        let Decoded { opened, logs, options } = decode(bytes).unwrap();
        assert!(options.is_empty());
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
            encode(
                opened,
                wanted.iter().map(|(log, state)| (log, state)).collect::<Vec<_>>().into_iter(),
                options.iter().map(|(log, options)| (log, options.clone()))
            ),
            bytes
        );
        assert_eq!(has_passed(bytes, LogNumber(7), Index(23)), Ok(true));
        assert_eq!(has_passed(bytes, LogNumber(7), Index(24)), Ok(false));
    }
}
