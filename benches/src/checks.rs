//! The check of a batch from outside, as a server runs it: [`Batch::decode`].
//!
//! Must not know: reports.

use crate::cases::Bench;
use anyhow::Result;
use chiplog::{Batch, BatchBuilder, Codec};
use std::time::{Duration, Instant};

/// Records of a batch: those of 1 KiB, 15 KiB, 63 KiB, 253 KiB and 1 MiB.
pub(crate) const RECORDS: [u64; 5] = [10, 150, 620, 2500, 10_000];
/// How often one measurement reads the clock.
const CALLS: u32 = 16;

/// The costs of one packed batch, in microseconds, by round.
#[derive(Debug)]
pub(crate) struct Check {
    pub(crate) packed_bytes: usize,
    pub(crate) plain_bytes: usize,
    /// The check of the packed batch.
    pub(crate) packed: Vec<f64>,
    /// The check of a batch of the same records, uncompressed.
    pub(crate) plain: Vec<f64>,
    /// Unpacking and copying all records out.
    pub(crate) records: Vec<f64>,
}

/// Measures the check of a batch of `records` records.
///
/// # Errors
/// None that the measured code should return.
pub(crate) fn check(bench: &Bench, codec: Codec, records: u64) -> Result<Check> {
    let (packed, plain) = (batch(codec, records)?, batch(Codec::None, records)?);
    let mut seen = Check {
        packed_bytes: packed.as_bytes().len(),
        plain_bytes: plain.as_bytes().len(),
        packed: Vec::new(),
        plain: Vec::new(),
        records: Vec::new(),
    };
    let decode = |batch: &Batch| Ok(Batch::decode(batch.as_bytes().clone()).map(drop)?);
    for _ in 0..bench.rounds {
        seen.packed.push(micros(bench.window.measured, || decode(&packed))?);
        seen.plain.push(micros(bench.window.measured, || decode(&plain))?);
        seen.records.push(micros(bench.window.measured, || Ok(packed.records().map(drop)?))?);
    }
    Ok(seen)
}

/// JSON records of 103 bytes.
fn batch(codec: Codec, records: u64) -> Result<Batch> {
    let mut builder = BatchBuilder::new();
    builder.codec(codec);
    for n in 0..records {
        let n = n * 7919 % 10_007;
        let record = format!(
            r#"{{"user":{n},"action":"click","at":"2025-01-01T00:{:02}:{:02}","score":{}}}{:>30}"#,
            n % 60,
            n * 31 % 60,
            n * n % 9973,
            n * 13
        );
        builder.push(record.as_bytes())?;
    }
    Ok(builder.build()?)
}

/// The mean time of a call, over `time`.
fn micros(time: Duration, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    let mut calls = 0;
    loop {
        for _ in 0..CALLS {
            call()?;
        }
        calls += CALLS;
        let passed = start.elapsed();
        if passed >= time {
            return Ok(passed.as_secs_f64() * 1e6 / f64::from(calls));
        }
    }
}
