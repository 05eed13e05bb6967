//! The input: a stream of bytes, and how records are separated in it.

use super::too_large;
use crate::common::failure::{Failure, Result};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// How records are separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// A newline ends a record and is not part of it. The last record needs no newline.
    Lines,
    /// Each record follows its length, 32 bits little-endian.
    LengthPrefixed,
}

const LENGTH_BYTES: usize = 4;
const BUFFER_BYTES: usize = 1 << 20;

/// An open input.
pub(super) struct Input {
    reader: BufReader<Box<dyn Read + Send>>,
    framing: Framing,
    name: String,
    record_bytes_max: u32,
    /// The input's length, if it is a file.
    total: Option<u64>,
    /// The number of records returned so far.
    records: u64,
}

impl Input {
    /// Opens a file. None or `-` is standard input.
    pub(super) fn open(path: Option<&Path>, framing: Framing, record_bytes_max: u32) -> Result<Self> {
        let path = path.filter(|path| *path != Path::new("-"));
        let (source, name, total): (Box<dyn Read + Send>, _, _) = match path {
            None => (Box::new(io::stdin()), "standard input".to_string(), None),
            Some(path) => {
                let file = File::open(path).map_err(|e| Failure::io("open", path, &e))?;
                let about = file.metadata().map_err(|e| Failure::io("open", path, &e))?;
                if about.is_dir() {
                    return Err(Failure::usage(format!(
                        "{} is a directory: give a file of records",
                        path.display()
                    )));
                }
                let total = about.is_file().then_some(about.len());
                (Box::new(file), path.display().to_string(), total)
            }
        };
        let reader = BufReader::with_capacity(BUFFER_BYTES, source);
        Ok(Self { reader, framing, name, record_bytes_max, total, records: 0 })
    }

    /// The input's size in bytes, if known.
    pub(super) fn bytes_total(&self) -> Option<u64> {
        self.total
    }

    /// Whether the next record can be read without waiting for the source.
    pub(super) fn is_ready(&self) -> bool {
        let buffer = self.reader.buffer();
        match self.framing {
            Framing::Lines => buffer.contains(&b'\n'),
            Framing::LengthPrefixed => buffer
                .first_chunk::<LENGTH_BYTES>()
                .is_some_and(|length| buffer.len() - LENGTH_BYTES >= u32::from_le_bytes(*length) as usize),
        }
    }

    /// Reads the next record into `record`. Returns false at the end of the input.
    ///
    /// # Errors
    /// `Io`. `TooLarge`, before more than the limit is in memory. `InvalidArgument` if the input ends inside
    /// a length-prefixed record.
    pub(super) fn next(&mut self, record: &mut Vec<u8>) -> Result<bool> {
        record.clear();
        let more = match self.framing {
            Framing::Lines => self.line(record)?,
            Framing::LengthPrefixed => self.prefixed(record)?,
        };
        self.records += u64::from(more);
        Ok(more)
    }

    fn line(&mut self, record: &mut Vec<u8>) -> Result<bool> {
        let mut read = 0;
        loop {
            let buffer = match self.reader.fill_buf() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other.map_err(|e| Failure::io("read", Path::new(&self.name), &e))?,
            };
            if buffer.is_empty() {
                return Ok(read > 0);
            }
            let end = buffer.iter().position(|b| *b == b'\n');
            let part = &buffer[..end.unwrap_or(buffer.len())];
            let bytes = (record.len() + part.len()) as u64;
            if bytes > u64::from(self.record_bytes_max) {
                let (n, max) = (self.records + 1, self.record_bytes_max);
                let why =
                    format!("record {n} of {} is longer than {max} bytes, the limit of a record", self.name);
                return Err(Failure::new(chiplog::ErrorKind::TooLarge, why));
            }
            record.extend_from_slice(part);
            let used = part.len() + usize::from(end.is_some());
            read += used;
            self.reader.consume(used);
            if end.is_some() {
                return Ok(true);
            }
        }
    }

    fn prefixed(&mut self, record: &mut Vec<u8>) -> Result<bool> {
        let mut length = [0; LENGTH_BYTES];
        match self.fill(&mut length)? {
            0 => return Ok(false),
            LENGTH_BYTES => {}
            _ => return Err(self.cut_off("its length")),
        }
        let length = u32::from_le_bytes(length);
        if length > self.record_bytes_max {
            return Err(too_large(&self.name, self.records + 1, length.into(), self.record_bytes_max));
        }
        record.resize(length as usize, 0);
        if self.fill(record)? < record.len() {
            return Err(self.cut_off("its data"));
        }
        Ok(true)
    }

    /// Reads until `buffer` is full or the input ends. Returns the number of bytes read.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.reader.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Failure::io("read", Path::new(&self.name), &e)),
            }
        }
        Ok(filled)
    }

    fn cut_off(&self, part: &str) -> Failure {
        let record = self.records + 1;
        Failure::usage(format!(
            "{} ends inside record {record}, in {part}: check that it is length-prefixed and complete",
            self.name
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(bytes: &'static [u8], framing: Framing) -> Result<Vec<Vec<u8>>> {
        let reader = BufReader::with_capacity(3, Box::new(bytes) as Box<dyn Read + Send>);
        let mut input =
            Input { reader, framing, name: "test".into(), record_bytes_max: 8, total: None, records: 0 };
        let (mut all, mut record) = (Vec::new(), Vec::new());
        while input.next(&mut record)? {
            all.push(record.clone());
        }
        Ok(all)
    }

    #[test]
    fn only_newlines_separate_lines() {
        let lines = |bytes| records(bytes, Framing::Lines).unwrap();
        assert_eq!(lines(b"one\n\ntwo\r\nlast"), [&b"one"[..], b"", b"two\r", b"last"]);
        assert_eq!(lines(b"one\n"), [b"one"]);
        assert_eq!(lines(b"\n"), [b""]);
        assert!(lines(b"").is_empty());
        let error = records(b"ok\nmuch too long\n", Framing::Lines).unwrap_err();
        assert!(error.to_string().contains("record 2 of test"), "{error}");
    }

    #[test]
    fn length_prefixed_records_hold_any_bytes() {
        let prefixed = |bytes| records(bytes, Framing::LengthPrefixed);
        assert_eq!(prefixed(b"\x02\0\0\0a\n\0\0\0\0\x01\0\0\0z").unwrap(), [&b"a\n"[..], b"", b"z"]);
        assert!(prefixed(b"").unwrap().is_empty());
        for cut in [&b"\x02\0"[..], b"\x02\0\0\0", b"\x02\0\0\0a"] {
            assert!(prefixed(cut).unwrap_err().to_string().contains("ends inside record 1"));
        }
        assert!(prefixed(b"\xff\xff\xff\xff").unwrap_err().to_string().contains("the limit is 8"));
    }
}
