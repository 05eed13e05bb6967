//! Table of a mixed block: which of its batches belong to which log. Bytes only.
//!
//! A mixed block carries appends of many logs of a group. Its header counts all of them; `first` is the group's
//! ordinal. Its body is this table, then the batches, run by run, in the order in which they arrived:
//!
//! ```text
//! 0           4    8                                    8 + runs x 32
//! | run count | 0  | run | run | run | …                | batches of run 1 | batches of run 2 | …
//! ```
//!
//! A run:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | log number, from 1 |
//! | 4 | 4 | batch count, from 1 |
//! | 8 | 8 | index of the run's first record, in its log |
//! | 16 | 4 | record count |
//! | 20 | 4 | bytes of its batches |
//! | 24 | 4 | digest of its batches' checksums |
//! | 28 | 4 | 0 |
//!
//! The block's body digest is the checksum of the table. So a reader of one log checks the table and its own run only.
//!
//! Must not know: files, threads, which logs exist.

use super::digest::Digest;
use crate::record::batch::{BatchHeader, Malformed, u32_at, u64_at};
use crate::record::crc::crc32c;
use crate::types::{Index, LogNumber};
use std::ops::Range;

/// Bytes of the table before its runs.
pub(crate) const TABLE_FIXED_BYTES: usize = 8;
/// Bytes of one run in the table.
pub(crate) const RUN_BYTES: usize = 32;
/// The most runs of a block.
pub(crate) const RUNS_MAX: usize = 4096;

/// Consecutive batches of one log in a mixed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) log: LogNumber,
    pub(crate) batches: u32,
    /// The index of its first record in its log.
    pub(crate) first: Index,
    pub(crate) records: u32,
    /// Bytes of its batches.
    pub(crate) bytes: u32,
    /// Over its batches' checksums, in order.
    pub(crate) digest: u32,
}

impl Run {
    /// The index after its last record.
    pub(crate) fn next(&self) -> Index {
        self.first.plus(u64::from(self.records))
    }

    fn encode(&self) -> [u8; RUN_BYTES] {
        let mut b = [0; RUN_BYTES];
        b[0..4].copy_from_slice(&self.log.0.to_le_bytes());
        b[4..8].copy_from_slice(&self.batches.to_le_bytes());
        b[8..16].copy_from_slice(&self.first.0.to_le_bytes());
        b[16..20].copy_from_slice(&self.records.to_le_bytes());
        b[20..24].copy_from_slice(&self.bytes.to_le_bytes());
        b[24..28].copy_from_slice(&self.digest.to_le_bytes());
        b
    }

    pub(crate) fn parse(b: &[u8; RUN_BYTES]) -> Result<Self, Malformed> {
        let run = Self {
            log: LogNumber(u32_at(b, 0)),
            batches: u32_at(b, 4),
            first: Index(u64_at(b, 8)),
            records: u32_at(b, 16),
            bytes: u32_at(b, 20),
            digest: u32_at(b, 24),
        };
        if u32_at(b, 28) != 0 {
            return Err("run of a mixed block has fields of a newer format");
        }
        let is_possible = !run.log.is_none() && run.batches > 0 && run.records >= run.batches;
        if is_possible { Ok(run) } else { Err("run of a mixed block has impossible counts") }
    }
}

/// Collects the runs of a block, batch by batch.
#[derive(Default)]
pub(crate) struct TableBuilder {
    runs: Vec<(Run, Digest)>,
}

impl TableBuilder {
    /// Adds a batch whose first record is `first` of `log`. It extends the last run if that is of the same log.
    pub(crate) fn push(&mut self, log: LogNumber, first: Index, batch: &BatchHeader) {
        if self.runs.last().is_none_or(|(run, _)| run.log != log) {
            let run = Run { log, batches: 0, first, records: 0, bytes: 0, digest: 0 };
            self.runs.push((run, Digest::new()));
        }
        if let Some((run, digest)) = self.runs.last_mut() {
            run.batches += 1;
            run.records += batch.count;
            run.bytes += batch.length;
            digest.add(batch.crc);
        }
    }

    /// The runs, and the table's bytes.
    pub(crate) fn build(self) -> (Vec<Run>, Vec<u8>) {
        let runs: Vec<Run> =
            self.runs.into_iter().map(|(run, digest)| Run { digest: digest.sum(), ..run }).collect();
        let bytes = encode(&runs);
        (runs, bytes)
    }
}

/// The table's bytes.
pub(crate) fn encode(runs: &[Run]) -> Vec<u8> {
    let mut b = Vec::with_capacity(TABLE_FIXED_BYTES + runs.len() * RUN_BYTES);
    b.extend_from_slice(&(runs.len() as u32).to_le_bytes());
    b.extend_from_slice(&[0; 4]);
    runs.iter().for_each(|run| b.extend_from_slice(&run.encode()));
    b
}

/// The totals of a body that its block's header has.
pub(super) struct Totals {
    pub(super) batches: u32,
    pub(super) records: u32,
    pub(super) body_bytes: usize,
    pub(super) digest: u32,
}

/// The table of a mixed block, whose checksum and counts are right.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table<'a> {
    bytes: &'a [u8],
}

impl<'a> Table<'a> {
    /// Reads and checks the table at the start of `body` against what the block's header says. `body` can end behind the
    /// table.
    pub(super) fn parse(totals: &Totals, body: &'a [u8]) -> Result<Self, Malformed> {
        const SHORT: Malformed = "table of a mixed block is cut off";
        let fixed = body.get(..TABLE_FIXED_BYTES).ok_or(SHORT)?;
        let count = u32_at(fixed, 0) as usize;
        if count == 0 || count > RUNS_MAX {
            return Err("mixed block has an impossible number of runs");
        }
        let bytes = body.get(..TABLE_FIXED_BYTES + count * RUN_BYTES).ok_or(SHORT)?;
        if crc32c(bytes) != totals.digest {
            return Err("table of a mixed block does not match its digest");
        }
        if fixed[4..] != [0; 4] {
            return Err("table of a mixed block has fields of a newer format");
        }
        let table = Self { bytes };
        let (mut batches, mut records, mut length) = (0u64, 0u64, totals.body_bytes);
        for run in bytes[TABLE_FIXED_BYTES..].as_chunks().0 {
            let run = Run::parse(run)?;
            batches += u64::from(run.batches);
            records += u64::from(run.records);
            length = length.checked_sub(run.bytes as usize).ok_or("runs of a mixed block are too long")?;
        }
        let counts = (u64::from(totals.batches), u64::from(totals.records));
        if (batches, records) != counts || length != bytes.len() {
            return Err("mixed block's counts contradict its runs");
        }
        Ok(table)
    }

    /// Its bytes: the batches begin after them.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The runs, each with the range of its batches in the body.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (Run, Range<usize>)> + use<'a> {
        let mut at = self.bytes.len();
        let runs = self.bytes[TABLE_FIXED_BYTES..].as_chunks().0.iter();
        runs.filter_map(|run| Run::parse(run).ok()).map(move |run| {
            let begin = at;
            at += run.bytes as usize;
            (run, begin..at)
        })
    }
}
