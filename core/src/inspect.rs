//! Looks at a log's files as they are, block by block: what `verify` and `dump` are made of.
//!
//! Owns: the walk over a directory's segments, and what is said about each thing found wrong. It goes through
//! the [`Disk`] seam with the format's own functions and never through the engine, so that it can go on past a
//! bad block, look at a log that the engine refuses to open, and find a fault that the engine shares.
//!
//! Must not: write, lock, repair, or panic on any bytes.
//!
//! Invariants:
//! - Safe beside a live writer. What proves a block durable is read before the block itself, so a block that is
//!   still being written is never called corrupt; a segment that is discarded meanwhile is left out.
//! - Memory is bounded by one block (at most one segment) and a read window, whatever the log's size.
//!
//! ```text
//! survey: every segment's header and opening -> order, gaps, which are proven by a successor
//! then, segment by segment:   prove (last one only: headers, for durable_upto) -> blocks -> index and footer
//! ```

use crate::batch::Batch;
use crate::disk::Disk;
use crate::disk::real::RealDisk;
use crate::error::{Error, ErrorKind, Result};
use crate::store::block::{Batches, BlockHeader, Kind};
use crate::store::layout::{HardState, Opening};
use crate::types::{Index, LogId, RaftIndex, SegmentId, Term, Timestamp};
use bytes::Bytes;
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

mod segment;
mod window;

use segment::{Chain, Found, Outcome};

/// How bad a [`Fault`] is.
///
/// ```
/// use chiplog::inspect::Severity;
/// assert_eq!(Severity::Corrupt.name(), "corrupt");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Bytes that the log may have acknowledged are wrong or missing.
    Corrupt,
    /// What is wrong only saves time (a sealed segment's index): every record is still served.
    Harmless,
}

impl Severity {
    /// Its name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Corrupt => "corrupt",
            Self::Harmless => "harmless",
        }
    }
}

/// One thing found wrong, and all that is known of what it touches.
///
/// Its `Display` is one line: file, offset, what, and what it costs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The file's name in the log's directory.
    pub file: String,
    /// Where the wrong bytes begin.
    pub offset: u64,
    /// How far they reach; 0 when the file is missing.
    pub bytes: u64,
    /// What is wrong with them.
    pub what: String,
    /// How bad it is.
    pub severity: Severity,
    /// The raft entries that cannot be read, first and last, when the blocks around tell.
    pub raft: Option<(RaftIndex, RaftIndex)>,
    /// The records that cannot be read, first and last, when the blocks around tell. None when there are none
    /// or nothing tells.
    pub records: Option<(Index, Index)>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at offset {}: {}", self.file, self.offset, self.what)?;
        if self.bytes > 0 {
            write!(f, " ({} bytes)", self.bytes)?;
        }
        match self.raft {
            Some((a, b)) if a == b => write!(f, ", raft index {a}")?,
            Some((a, b)) => write!(f, ", raft index {a} to {b}")?,
            None => {}
        }
        match self.records {
            Some((a, b)) if a == b => write!(f, ", record {a}"),
            Some((a, b)) => write!(f, ", records {a} to {b}"),
            None => Ok(()),
        }
    }
}

/// What follows the last block that is whole: a write that a crash tore, or one
/// under way. Nothing in it was acknowledged; opening the log for writing cuts it off.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tail {
    /// The file's name.
    pub file: String,
    /// Where the torn block begins.
    pub offset: u64,
    /// How far recognisable blocks reach beyond it.
    pub bytes: u64,
}

/// What stage of its life a segment file is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SegmentState {
    /// Made ready, holds nothing yet.
    Prepared,
    /// Has blocks, and no index of its own yet: the last one, or one that was not sealed before a crash.
    Begun,
    /// Full, with index and footer.
    Sealed,
}

impl SegmentState {
    /// Its name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prepared => "prepared",
            Self::Begun => "begun",
            Self::Sealed => "sealed",
        }
    }
}

/// A segment file, as its header and footer describe it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Segment {
    /// The file's name.
    pub file: String,
    /// Its place in the sequence of segments.
    pub number: u64,
    /// The salt of its checksums.
    pub id: SegmentId,
    /// The log it belongs to.
    pub log: LogId,
    /// The file's size.
    pub bytes: u64,
    /// What stage of its life it is in.
    pub state: SegmentState,
}

/// What was found in a segment, told after its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentEnd {
    /// Where its blocks end.
    pub data_end: u64,
    /// Blocks read, sound or not.
    pub blocks: u64,
    /// Records in its sound blocks.
    pub records: u64,
    /// Entries of its block index; 0 without one.
    pub index_entries: u64,
    /// What is proven durable: everything below this offset. `u64::MAX` when a later segment proves all of it.
    pub proven: u64,
}

/// A block. Valid while the visitor looks at it.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    pub(super) header: BlockHeader,
    pub(super) offset: u64,
    pub(super) body: &'a [u8],
    pub(super) fault: Option<&'a str>,
}

/// What a block holds, unpacked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Content {
    /// Records, in batches.
    Batches(Vec<Batch>),
    /// Raft's own state.
    HardState {
        /// The current term.
        term: Term,
        /// Whom this replica voted for in it; 0 for nobody.
        vote: u64,
        /// The last entry known committed.
        commit: RaftIndex,
    },
    /// The positions from which the log can be opened at this segment.
    Opening {
        /// The last entry before the segment, and its term.
        base: (RaftIndex, Term),
        /// The log's first index when the segment was begun.
        log_first: Index,
        /// Bytes of the membership.
        configuration_bytes: usize,
        /// Bytes of the session table.
        sessions_bytes: usize,
    },
    /// Bytes that mean nothing here: commands, membership.
    Opaque(usize),
}

impl Block<'_> {
    /// Its offset in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes it takes in the file, padding included.
    pub fn bytes(&self) -> u64 {
        self.header.stride() as u64
    }

    /// What it is for: `data`, `command`, `marker` …
    pub fn kind(&self) -> &'static str {
        self.header.kind.name()
    }

    /// Its raft index, or, when it is no entry, that of the entry before it.
    pub fn raft_index(&self) -> RaftIndex {
        self.header.raft_index
    }

    /// The term it was written in.
    pub fn term(&self) -> Term {
        self.header.term
    }

    /// The index of its first record, or of the next one when it holds none.
    pub fn first(&self) -> Index {
        self.header.first
    }

    /// How many records it holds.
    pub fn record_count(&self) -> u32 {
        self.header.record_count
    }

    /// How many batches it holds.
    pub fn batch_count(&self) -> u32 {
        self.header.batch_count
    }

    /// When it was written.
    pub fn timestamp(&self) -> Timestamp {
        self.header.timestamp
    }

    /// All bytes of the file below this offset were durable when it was written.
    pub fn durable_upto(&self) -> u64 {
        u64::from(self.header.durable_upto)
    }

    /// What is wrong with its body, if anything.
    pub fn fault(&self) -> Option<&str> {
        self.fault
    }

    /// Unpacks what it holds.
    ///
    /// # Errors
    /// `Corrupt` when the body is not what its kind says; a block without a [`fault`](Self::fault) unpacks.
    pub fn content(&self) -> Result<Content> {
        let malformed = |e| Error::new(ErrorKind::Corrupt, format!("block at offset {}: {e}", self.offset));
        match self.header.kind {
            Kind::Data => Batches::new(self.body)
                .map(|b| Batch::decode(Bytes::copy_from_slice(b.map_err(malformed)?.1)))
                .collect::<Result<_>>()
                .map(Content::Batches),
            Kind::HardState => {
                let HardState { term, vote, commit } = HardState::parse(self.body).map_err(malformed)?;
                Ok(Content::HardState { term, vote, commit })
            }
            Kind::Opening => {
                let o = Opening::parse(self.body).map_err(malformed)?;
                Ok(Content::Opening {
                    base: (o.base_raft, o.base_term),
                    log_first: o.log_first,
                    configuration_bytes: o.configuration.len(),
                    sessions_bytes: o.sessions.len(),
                })
            }
            Kind::NoOp | Kind::Configuration | Kind::Command | Kind::Marker => {
                Ok(Content::Opaque(self.body.len()))
            }
        }
    }
}

/// What a walk meets, in the order of the files' names and of the bytes in them.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A segment whose header is sound begins.
    Segment(&'a Segment),
    /// A block whose header is sound; its body may not be.
    Block(&'a Block<'a>),
    /// Something is wrong. The walk goes on.
    Fault(&'a Fault),
    /// The unproven, torn end of the log.
    Tail(&'a Tail),
    /// The segment's blocks, index and footer are read.
    SegmentEnd(&'a SegmentEnd),
}

/// What a whole walk found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Segments with a sound header, prepared ones included.
    pub segments: u64,
    /// Blocks with a sound header.
    pub blocks: u64,
    /// Batches in sound blocks.
    pub batches: u64,
    /// Records in sound blocks.
    pub records: u64,
    /// Bytes of the files looked at.
    pub bytes: u64,
    /// Faults of [`Severity::Corrupt`].
    pub corrupt: u64,
    /// Faults of [`Severity::Harmless`].
    pub harmless: u64,
    /// The torn end, if there is one.
    pub tail: Option<Tail>,
    /// The first record that the files hold. Discarded ones in front of it count while their file is there.
    pub first: Option<Index>,
    /// The last record that the files hold.
    pub last: Option<Index>,
}

/// Enough for any `u64`.
const NUMBER_DIGITS: usize = 20;
const SEGMENT_SUFFIX: &str = ".seg";

fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SEGMENT_SUFFIX)?;
    let plain = digits.len() == NUMBER_DIGITS && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

fn segment_name(number: u64) -> String {
    format!("{number:0NUMBER_DIGITS$}{SEGMENT_SUFFIX}")
}

/// Reads a log's files without opening the log. Read-only, takes no lock, safe beside a live writer.
///
/// ```
/// use chiplog::inspect::{Event, Inspector};
/// use std::ops::ControlFlow;
///
/// # let dir = tempfile::tempdir()?;
/// # let log = chiplog::Log::open(dir.path(), chiplog::Options::with_segment_bytes(1 << 20))?;
/// # log.append(b"ahoy")?;
/// # log.close()?;
/// let report = Inspector::open(dir.path())?.walk(&mut |event| {
///     if let Event::Fault(fault) = event {
///         eprintln!("{fault}");
///     }
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!((report.corrupt, report.records), (0, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Inspector {
    disk: Arc<dyn Disk>,
    only: Option<u64>,
}

impl Inspector {
    /// Looks at the files of a directory.
    ///
    /// # Errors
    /// `NotFound` when there is no such directory, `Io` when it cannot be read.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        let disk = RealDisk::open(dir, false).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => {
                Error::new(ErrorKind::NotFound, format!("there is no {}", dir.display()))
            }
            _ => Error::io("open", dir, e),
        })?;
        Ok(Self::open_on(Arc::new(disk)))
    }

    /// Looks at the files of any disk.
    pub fn open_on(disk: Arc<dyn Disk>) -> Self {
        Self { disk, only: None }
    }

    /// Restricts the walk to one segment.
    #[must_use]
    pub fn only(mut self, number: u64) -> Self {
        self.only = Some(number);
        self
    }

    /// Bytes of all the segment files a walk would look at: what [`Report::bytes`] comes to.
    ///
    /// # Errors
    /// As [`walk`](Self::walk).
    pub fn bytes(&self) -> Result<u64> {
        let mut total = 0;
        for number in self.numbers()? {
            match self.disk.open(&segment_name(number), false).and_then(|f| f.len()) {
                Ok(bytes) => total += bytes,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {} // discarded just now
                Err(e) => return Err(self.io("open", number, e)),
            }
        }
        Ok(total)
    }

    /// Reads every byte of every segment, checks all that can be checked, and tells `visit` what it meets.
    /// `visit` ends the walk early with `Break`.
    ///
    /// Blocks for as long as reading takes. A fault is an event, not an error, a file that cannot be read
    /// included.
    ///
    /// # Errors
    /// `NotFound` when there is no segment (or not the one asked for), `Unsupported` when a newer version
    /// wrote the files, `Io` when the directory cannot be listed.
    pub fn walk(&self, visit: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>) -> Result<Report> {
        let found = self.survey()?;
        let mut sink = Sink { visit, report: Report::default() };
        let mut chain = Chain::default();
        let mut before: Option<u64> = None;
        let log = found.iter().find_map(|f| Some(f.header?.log));
        for (i, this) in found.iter().enumerate() {
            if self.only.is_some_and(|n| n != this.number) {
                continue;
            }
            let successor = found[i + 1..].iter().find_map(|f| f.opening);
            if let Some(before) = before
                && this.number != before + 1
            {
                let fault = missing(before + 1, this, &chain);
                if sink.fault(fault).is_break() {
                    return Ok(sink.report);
                }
                chain = Chain::default();
            }
            match segment::walk(&*self.disk, this, log, successor, &mut chain, &mut sink) {
                Outcome::Done => before = Some(this.number),
                Outcome::Vanished => (before, chain) = (None, Chain::default()),
                Outcome::Stop => break,
            }
        }
        Ok(sink.report)
    }

    fn numbers(&self) -> Result<Vec<u64>> {
        let names = self.disk.list().map_err(|e| Error::io("list", self.disk.path(), e))?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|n| segment_number(n)).collect();
        numbers.sort_unstable();
        if let Some(only) = self.only
            && !numbers.contains(&only)
        {
            let why = format!("{} has no segment {only}", self.disk.path().display());
            return Err(Error::new(ErrorKind::NotFound, why));
        }
        if numbers.is_empty() {
            let why = format!("{} holds no log: it has no segment files", self.disk.path().display());
            return Err(Error::new(ErrorKind::NotFound, why));
        }
        numbers.retain(|n| self.only.is_none_or(|only| *n >= only));
        Ok(numbers)
    }

    /// Reads all headers and openings, before any block: a segment that has begun proves those before it.
    fn survey(&self) -> Result<Vec<Found>> {
        let mut all = Vec::new();
        for number in self.numbers()? {
            if let Some(found) = Found::read(&*self.disk, number)? {
                all.push(found);
            }
        }
        Ok(all)
    }

    fn io(&self, doing: &str, number: u64, e: io::Error) -> Error {
        Error::io(doing, &self.disk.path().join(segment_name(number)), e)
    }
}

/// The fault of segments that are not there, between two that are.
fn missing(from: u64, next: &Found, chain: &Chain) -> Fault {
    let count = next.number - from;
    let what = match count {
        1 => "the segment is missing".to_string(),
        _ => format!("the segment and the {} after it are missing", count - 1),
    };
    let (raft, records) = chain.gap_to(next.opening.as_ref());
    Fault { file: segment_name(from), offset: 0, bytes: 0, what, severity: Severity::Corrupt, raft, records }
}

/// Counts what goes by on its way to the visitor.
struct Sink<'v> {
    visit: &'v mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    report: Report,
}

impl Sink<'_> {
    fn fault(&mut self, fault: Fault) -> ControlFlow<()> {
        match fault.severity {
            Severity::Corrupt => self.report.corrupt += 1,
            Severity::Harmless => self.report.harmless += 1,
        }
        (self.visit)(Event::Fault(&fault))
    }

    fn block(&mut self, block: &Block<'_>) -> ControlFlow<()> {
        self.report.blocks += 1;
        if block.fault.is_none() {
            let header = &block.header;
            self.report.batches += u64::from(header.batch_count);
            self.report.records += u64::from(header.record_count);
            if header.record_count > 0 {
                self.report.first.get_or_insert(header.first);
                self.report.last = Some(header.next_record().previous());
            }
        }
        (self.visit)(Event::Block(block))
    }
}

#[cfg(test)]
mod tests;
