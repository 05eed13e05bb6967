//! What an inspection says: the things it meets, what is wrong with them, and the sum of it all.
//!
//! Must not know: where the bytes come from.

use super::batches;
use super::batches::Piece;
use crate::error::{Error, ErrorKind, Result};
use crate::options::log_options::LogOptions;
use crate::record::batch::Batch;
use crate::replica::queue::proposals::Command;
use crate::replica::state::sequencer::parse_command;
use crate::store::format::block::{Batches, BlockHeader, Kind};
use crate::store::format::segment::{HardState, Opening};
use crate::types::{EntryIndex, Index, LogId, SegmentId, SessionId, Term, Timestamp};
use bytes::Bytes;
use std::fmt;
use std::ops::ControlFlow;

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
    /// A batch whose checksum is right, so that it is as it was appended, and which does not unpack. No damage, and the
    /// same on every replica: the program that made it was wrong. Its records cannot be read.
    Undecodable,
}

impl Severity {
    /// Its name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Corrupt => "corrupt",
            Self::Harmless => "harmless",
            Self::Undecodable => "undecodable",
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
    pub raft: Option<(EntryIndex, EntryIndex)>,
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

/// What follows the last block that is whole: a write that a crash tore, one under way, or one that was damaged before
/// anything was written behind it. Nothing proves that it was durable; opening the log for writing cuts it off.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tail {
    /// The file's name.
    pub file: String,
    /// Where its first block begins.
    pub offset: u64,
    /// How far recognisable blocks reach beyond it.
    pub bytes: u64,
}

/// What stage of its life a segment file is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SegmentState {
    /// Made ready, holds nothing yet.
    PreparedSegment,
    /// Has blocks, and no index of its own yet: the last one, or one that was not sealed before a crash.
    Begun,
    /// Full, with index and footer.
    Sealed,
    /// Cut off: the log went on elsewhere. The next opening for writing removes it. Its blocks are not looked at.
    Dead,
}

impl SegmentState {
    /// Its name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PreparedSegment => "prepared",
            Self::Begun => "begun",
            Self::Sealed => "sealed",
            Self::Dead => "dead",
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
    /// Records in its sound batches.
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
    /// Of a damaged data block, what is known of its pieces.
    pub(super) pieces: &'a [Piece],
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
        commit: EntryIndex,
    },
    /// The positions from which the log can be opened at this segment.
    Opening {
        /// The last entry before the segment, and its term.
        base: (EntryIndex, Term),
        /// The log's first index when the segment was begun.
        log_first: Index,
        /// Bytes of the membership.
        configuration_bytes: usize,
        /// Bytes of the session table.
        sessions_bytes: usize,
        /// The options that are set for the log.
        options: LogOptions,
    },
    /// Records below `first` were given up.
    Discard {
        /// The first record to keep.
        first: Index,
    },
    /// A session was opened; its id is the block's raft index.
    OpenSession {
        /// How long it may send nothing before it expires, in milliseconds.
        idle_max_ms: u64,
    },
    /// A session was closed.
    CloseSession {
        /// Which one.
        id: SessionId,
    },
    /// From here on these options are set for the log, and no others.
    SetOptions(LogOptions),
    /// So many bytes that mean nothing here, or none.
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
    pub fn raft_index(&self) -> EntryIndex {
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

    /// Its sound batches, each with the index of its first record: all of them, or, of a damaged block, those whose
    /// own checksum holds and whose place in the block is certain. None of a block without records. Whether they unpack
    /// is not asked.
    pub fn batches(&self) -> Vec<(Index, Batch)> {
        if self.fault.is_some() {
            return batches::sound(self.pieces, self.body);
        }
        let Ok(Content::Batches(batches)) = self.content() else { return Vec::new() };
        let place = |first: &mut Index, batch: Batch| {
            let at = *first;
            *first = first.plus(batch.count().into());
            Some((at, batch))
        };
        batches.into_iter().scan(self.header.first, place).collect()
    }

    /// Unpacks what it holds.
    ///
    /// # Errors
    /// `Corrupt` when the body is not what its kind says, which does not happen to a block without a
    /// [`fault`](Self::fault).
    pub fn content(&self) -> Result<Content> {
        let malformed = |e| Error::new(ErrorKind::Corrupt, format!("block at offset {}: {e}", self.offset));
        match self.header.kind {
            Kind::Data => Batches::new(self.body)
                .map(|b| Batch::stored(Bytes::copy_from_slice(b.map_err(malformed)?.1)))
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
                    options: LogOptions::decode(&o.options).map_err(malformed)?,
                })
            }
            Kind::Command => Ok(match parse_command(self.body).map_err(malformed)? {
                Command::Discard { first } => Content::Discard { first },
                Command::OpenSession { idle_max_ms } => Content::OpenSession { idle_max_ms },
                Command::CloseSession { id } => Content::CloseSession { id },
                Command::SetOptions(options) => Content::SetOptions(options),
            }),
            Kind::NoOp | Kind::Configuration | Kind::Marker => Ok(Content::Opaque(self.body.len())),
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
    /// The unproven end of the log, unfinished or damaged.
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
    /// Sound batches.
    pub batches: u64,
    /// Records in sound batches.
    pub records: u64,
    /// Bytes of the files looked at.
    pub bytes: u64,
    /// Faults of [`Severity::Corrupt`].
    pub corrupt: u64,
    /// Faults of [`Severity::Harmless`].
    pub harmless: u64,
    /// Faults of [`Severity::Undecodable`]: their batches and records are counted as sound as well.
    pub undecodable: u64,
    /// The unfinished or damaged end, if there is one.
    pub tail: Option<Tail>,
    /// The first record that the files hold. Discarded ones in front of it count while their file is there.
    pub first: Option<Index>,
    /// The last record that the files hold.
    pub last: Option<Index>,
}

/// Counts what goes by on its way to the visitor.
pub(super) struct Sink<'v> {
    pub(super) visit: &'v mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    pub(super) report: Report,
    /// Records below it are discarded, as far as the blocks so far say.
    pub(super) discarded: Index,
}

impl Sink<'_> {
    pub(super) fn fault(&mut self, fault: Fault) -> ControlFlow<()> {
        match fault.severity {
            Severity::Corrupt => self.report.corrupt += 1,
            Severity::Harmless => self.report.harmless += 1,
            Severity::Undecodable => self.report.undecodable += 1,
        }
        (self.visit)(Event::Fault(&fault))
    }

    pub(super) fn block(&mut self, block: &Block<'_>) -> ControlFlow<()> {
        self.report.blocks += 1;
        let header = &block.header;
        if block.fault.is_none() {
            self.report.batches += u64::from(header.batch_count);
            self.report.records += u64::from(header.record_count);
            if header.record_count > 0 {
                self.reach(header.first, header.next_record().previous());
            }
        }
        for piece in block.pieces.iter().filter(|p| p.fault.is_none()) {
            self.report.batches += 1;
            self.report.records += piece.records;
            if let Some((first, last)) = piece.range() {
                self.reach(first, last);
            }
        }
        (self.visit)(Event::Block(block))
    }

    fn reach(&mut self, first: Index, last: Index) {
        self.report.first.get_or_insert(first);
        self.report.last = Some(last);
    }
}
