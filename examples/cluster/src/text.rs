//! The records: lines of a real text, repeated, each with its number in front. A record is a function of its number, so
//! any record can be checked byte by byte.

use std::error::Error;
use std::fs;
use std::ops::Range;
use std::path::Path;

/// Isaac Newton, Opticks, 1730; see `examples/data/README.md`.
const OPTICKS: &[u8] = include_bytes!("../../data/opticks.txt");

/// A text whose lines become the records.
#[derive(Debug)]
pub(crate) struct Text {
    bytes: Vec<u8>,
    /// The ranges of the lines that are not empty; at least one.
    lines: Vec<Range<usize>>,
}

impl Text {
    /// Reads a text, or uses the built-in one.
    pub(crate) fn load(file: Option<&Path>) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let bytes = match file {
            Some(file) => fs::read(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?,
            None => OPTICKS.to_vec(),
        };
        let mut lines = Vec::new();
        let mut start = 0;
        for line in bytes.split(|b| *b == b'\n') {
            if !line.is_empty() {
                lines.push(start..start + line.len());
            }
            start += line.len() + 1;
        }
        if lines.is_empty() {
            return Err("the text has no line to use as a record".into());
        }
        Ok(Self { bytes, lines })
    }

    /// Lines of one pass.
    pub(crate) fn lines(&self) -> u64 {
        self.lines.len() as u64
    }

    /// How many records make up about `bytes`.
    pub(crate) fn records_in(&self, bytes: u64) -> u64 {
        let one_pass: u64 = self.lines.iter().map(|line| line.len() as u64).sum();
        let number = 7; // the length of the number in front, about
        (bytes / (one_pass / self.lines() + number)).max(1)
    }

    /// Record `number`, from 0.
    pub(crate) fn record(&self, number: u64) -> Vec<u8> {
        let line = self.lines[(number % self.lines()) as usize].clone();
        let mut record = format!("{number} ").into_bytes();
        record.extend_from_slice(&self.bytes[line]);
        record
    }

    /// The number of a record, if it is one of ours to the last byte.
    pub(crate) fn number_of(&self, record: &[u8]) -> Option<u64> {
        let digits = record.split(|b| *b == b' ').next()?;
        let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
        (self.record(number) == record).then_some(number)
    }
}
