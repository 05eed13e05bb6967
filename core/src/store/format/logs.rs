//! The logs of a shared group as bytes: the part of an opening that says how far each log is. Bytes only.
//!
//! Little-endian; no padding; every byte counts:
//!
//! | offset | bytes | field | bound |
//! |---|---|---|---|
//! | 0 | 4 | number of logs | - |
//! | 4 | 4 | 0 | 0; a later format puts here what it adds |
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

/// Encodes the logs, which are ascending by number.
pub(crate) fn encode<'a>(logs: impl ExactSizeIterator<Item = (&'a LogNumber, &'a LogState)>) -> Vec<u8> {
    let mut b = Vec::with_capacity(LOGS_HEADER_BYTES + logs.len() * LOG_BYTES);
    b.extend_from_slice(&(logs.len() as u32).to_le_bytes());
    b.extend_from_slice(&[0; 4]);
    for (log, state) in logs {
        b.extend_from_slice(&log.0.to_le_bytes());
        b.extend_from_slice(&(if state.sealed { SEALED } else { 0 }).to_le_bytes());
        for word in [state.first.0, state.next.0, state.bytes, state.last_timestamp.0, 0, 0] {
            b.extend_from_slice(&word.to_le_bytes());
        }
    }
    b
}

/// Decodes the logs, which must fill `bytes` to the end.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<(LogNumber, LogState)>, Malformed> {
    let mut before = LogNumber::OWN;
    let logs = entries(bytes)?.iter().map(|log| {
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
        if number <= before || state.first == Index(0) || state.next < state.first {
            return Err("log table is out of order, or a log in it is impossible");
        }
        before = number;
        Ok((number, state))
    });
    logs.collect()
}

/// The next index of one log, without decoding the others. None: the log is not among them.
pub(crate) fn next_in(bytes: &[u8], log: LogNumber) -> Result<Option<Index>, Malformed> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let logs = entries(bytes)?;
    let found = logs.binary_search_by_key(&log.0, |entry| u32_at(entry, 0));
    Ok(found.ok().map(|n| Index(u64_at(&logs[n], 16))))
}

fn entries(bytes: &[u8]) -> Result<&[[u8; LOG_BYTES]], Malformed> {
    let (fixed, logs) = bytes.split_at_checked(LOGS_HEADER_BYTES).ok_or("log table is cut off")?;
    if fixed[4..] != [0; 4] {
        return Err("log table has fields of a newer format");
    }
    match logs.as_chunks() {
        (logs, []) if logs.len() == u32_at(fixed, 0) as usize => Ok(logs),
        _ => Err("log table has an unexpected length"),
    }
}
