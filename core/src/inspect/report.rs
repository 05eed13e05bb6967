//! The results of an inspection: its events, the faults, and the totals.
//!
//! Must not know: where the bytes come from.

use super::batches;
use super::batches::Piece;
use crate::error::{Error, ErrorKind, Result};
use crate::options::log_options::LogOptions;
use crate::record::batch::Batch;
use crate::replica::queue::proposals::{Command, LogCommand, ObjectCommand};
use crate::replica::state::command::parse_command;
use crate::store::format::block::{Batches, BlockHeader, Kind, table_of};
use crate::store::format::mixed::Run;
use crate::store::format::segment::{HardState, Opening};
use crate::types::{EntryIndex, Index, LogId, LogNumber, SegmentId, SessionId, Term, Timestamp};
use bytes::Bytes;
use std::fmt;
use std::ops::{ControlFlow, Range};

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
    /// The wrong bytes only save time (a sealed segment's index): every record can still be read.
    Harmless,
    /// A batch with a correct checksum, so it is as it was appended, that does not unpack. This is no damage and is
    /// the same on every replica: the program that made the batch is at fault. Its records cannot be read.
    Undecodable,
}

impl Severity {
    /// The severity's name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Corrupt => "corrupt",
            Self::Harmless => "harmless",
            Self::Undecodable => "undecodable",
        }
    }
}

/// A fault, with everything that is known about its effect.
///
/// Its `Display` is one line: file, offset, description, and the records that it costs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The file's name in the log's directory.
    pub file: String,
    /// The offset of the wrong bytes.
    pub offset: u64,
    /// How many bytes are wrong; 0 when the file is missing.
    pub bytes: u64,
    /// A description of the fault.
    pub what: String,
    /// The fault's severity.
    pub severity: Severity,
    /// The raft entries that cannot be read, first and last, if the blocks around show it.
    pub raft: Option<(EntryIndex, EntryIndex)>,
    /// The records that cannot be read, first and last, if the blocks around show it. `None` if there are none or it
    /// is not known.
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

/// The bytes after the last whole block: a write that a crash tore, a write in progress, or a block that was damaged
/// before anything was written after it. Nothing proves that they were durable; opening the log for writing truncates
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tail {
    /// The file's name.
    pub file: String,
    /// The offset of its first block.
    pub offset: u64,
    /// How many bytes its recognisable blocks take.
    pub bytes: u64,
}

/// The stage of a segment file's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SegmentState {
    /// Prepared; it holds no blocks yet.
    Prepared,
    /// Has blocks, and no index of its own yet: the last segment, or one that was not sealed before a crash.
    Begun,
    /// Full, with index and footer.
    Sealed,
    /// The log continued elsewhere. The next opening for writing removes it. Its blocks are not read.
    Dead,
}

impl SegmentState {
    /// The state's name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prepared => "prepared",
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
    /// Its number in the sequence of segments.
    pub number: u64,
    /// The salt of its checksums.
    pub id: SegmentId,
    /// The log it belongs to.
    pub log: LogId,
    /// The file's size.
    pub bytes: u64,
    /// The stage of its life.
    pub state: SegmentState,
}

/// The totals of one segment, reported after its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentEnd {
    /// The offset at which its blocks end.
    pub data_end: u64,
    /// How many blocks were read, sound or not.
    pub blocks: u64,
    /// How many records its sound batches hold.
    pub records: u64,
    /// How many entries its block index has; 0 without one.
    pub index_entries: u64,
    /// Everything below this offset is proven durable. `u64::MAX` when a later segment proves the whole segment.
    pub proven: u64,
}

/// A block. Valid during one call of the visitor.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    pub(super) header: BlockHeader,
    pub(super) offset: u64,
    pub(super) body: &'a [u8],
    pub(super) fault: Option<&'a str>,
    /// For a damaged data block, its pieces as far as they are known.
    pub(super) pieces: &'a [Piece],
}

/// Consecutive appends of one log in a block of a shared group.
///
/// ```
/// use chiplog::inspect::{Block, Content};
///
/// fn show(block: &Block<'_>) -> chiplog::Result<()> {
///     if let Content::Runs(runs) = block.content()? {
///         runs.iter().for_each(|run| println!("log {}: {} batches from record {}", run.log, run.batches.len(), run.first));
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LogBatches {
    /// The log's number.
    pub log: LogNumber,
    /// The index of the first record.
    pub first: Index,
    /// The appends, in order.
    pub batches: Vec<Batch>,
}

/// The contents of a block, unpacked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Content {
    /// Records, in batches.
    Batches(Vec<Batch>),
    /// Appends of several logs of a shared group.
    Runs(Vec<LogBatches>),
    /// Raft's own state.
    HardState {
        /// The current term.
        term: Term,
        /// The replica that this replica voted for in that term; 0 for none.
        vote: u64,
        /// The last entry known committed.
        commit: EntryIndex,
        /// The first record that the directory keeps, if the block says so: files before it may be absent.
        kept: Option<Index>,
    },
    /// The positions from which the log can be opened at this segment.
    Opening {
        /// The last entry before the segment, and its term.
        base: (EntryIndex, Term),
        /// The log's first index when the segment was begun.
        log_first: Index,
        /// The length of the membership, in bytes.
        configuration_bytes: usize,
        /// The length of the session table, in bytes.
        sessions_bytes: usize,
        /// The options that are set for the log.
        options: LogOptions,
        /// The length of the table of a shared group's logs, in bytes; 0 if the group is not shared.
        logs_bytes: usize,
        /// The length of the object table, in bytes; 0 if the log has no objects.
        objects_bytes: usize,
    },
    /// A stretch of entries is an object from now on, or will be one.
    CutObject {
        /// The object's number.
        number: u64,
        /// Its first and last entries.
        entries: (EntryIndex, EntryIndex),
        /// The record that its first entry has or precedes, and the one after its last.
        records: (Index, Index),
    },
    /// An object is in the object store.
    StoreObject {
        /// The object's number.
        number: u64,
        /// Its size in bytes.
        bytes: u32,
        /// The checksum of its bytes.
        crc: u32,
    },
    /// The rows of the objects below a number are in the opening of another object alone.
    MoveObjectRows {
        /// The number behind the last of these objects.
        below: u64,
        /// The object in whose opening the rows are.
        holder: u64,
    },
    /// The records of all objects before this one are discarded.
    BeginObjects {
        /// Its number.
        number: u64,
    },
    /// Records below `first` were discarded.
    Discard {
        /// The first record that is kept.
        first: Index,
    },
    /// A session was opened; its id is the block's raft index.
    OpenSession {
        /// The log that it appends to; 0: the directory's own.
        log: LogNumber,
        /// How long the session may be idle before it expires, in milliseconds.
        idle_max_ms: u64,
    },
    /// A session was closed.
    CloseSession {
        /// The session's id.
        id: SessionId,
    },
    /// The options that are set for the log from here on; all others are unset.
    SetOptions(LogOptions),
    /// A log of a shared group was opened.
    OpenLog {
        /// Its number.
        log: LogNumber,
        /// The index of its first record.
        start: Index,
    },
    /// A log of a shared group takes no more appends.
    SealLog {
        /// Its number.
        log: LogNumber,
    },
    /// A log of a shared group is gone.
    DropLog {
        /// Its number.
        log: LogNumber,
    },
    /// Records of a log of a shared group were discarded.
    DiscardLog {
        /// Its number.
        log: LogNumber,
        /// The first record that is kept.
        first: Index,
    },
    /// The options that are set for a log of a shared group from here on; all others are unset.
    SetLogOptions {
        /// Its number.
        log: LogNumber,
        /// All that are set.
        options: LogOptions,
    },
    /// The length of a body without meaning here, in bytes.
    Opaque(usize),
}

impl Block<'_> {
    /// Its offset in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its length in the file, in bytes, with padding.
    pub fn bytes(&self) -> u64 {
        self.header.stride() as u64
    }

    /// The kind of block: `data`, `command`, `marker` …
    pub fn kind(&self) -> &'static str {
        self.header.kind.name()
    }

    /// Its raft index, or, if it is no entry, that of the entry before it.
    pub fn raft_index(&self) -> EntryIndex {
        self.header.raft_index
    }

    /// The term in which it was written.
    pub fn term(&self) -> Term {
        self.header.term
    }

    /// The index of its first record, or of the next one if it holds none.
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

    /// The time when it was written.
    pub fn timestamp(&self) -> Timestamp {
        self.header.timestamp
    }

    /// All bytes of the file below this offset were durable when the block was written.
    pub fn durable_upto(&self) -> u64 {
        u64::from(self.header.durable_upto)
    }

    /// The fault of its body, if there is one.
    pub fn fault(&self) -> Option<&str> {
        self.fault
    }

    /// Its sound batches, each with the index of its first record. For a damaged block these are the batches whose
    /// own checksum holds and whose records are certain. Empty for a block without records. The batches are not
    /// checked for whether they unpack.
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

    /// Unpacks its contents.
    ///
    /// # Errors
    /// `Corrupt`: the body does not have the form of its kind. This does not happen for a block without a
    /// [`fault`](Self::fault).
    pub fn content(&self) -> Result<Content> {
        let malformed = |e| Error::new(ErrorKind::Corrupt, format!("block at offset {}: {e}", self.offset));
        match self.header.kind {
            Kind::Data => Batches::new(self.body)
                .map(|b| Batch::stored(Bytes::copy_from_slice(b.map_err(malformed)?.1)))
                .collect::<Result<_>>()
                .map(Content::Batches),
            Kind::Mixed => {
                let table = table_of(&self.header, self.body).map_err(malformed)?;
                let run = |(run, range): (Run, Range<usize>)| {
                    let batches = Batches::new(self.body.get(range).unwrap_or_default());
                    let batches =
                        batches.map(|b| Batch::stored(Bytes::copy_from_slice(b.map_err(malformed)?.1)));
                    Ok(LogBatches {
                        log: run.log,
                        first: run.first,
                        batches: batches.collect::<Result<_>>()?,
                    })
                };
                table.runs().map(run).collect::<Result<_>>().map(Content::Runs)
            }
            Kind::HardState => {
                let HardState { term, vote, commit } = HardState::parse(self.body).map_err(malformed)?;
                Ok(Content::HardState { term, vote, commit, kept: HardState::kept_from(self.body) })
            }
            Kind::Opening => {
                let o = Opening::parse(self.body).map_err(malformed)?;
                Ok(Content::Opening {
                    base: (o.base_raft, o.base_term),
                    log_first: o.log_first,
                    configuration_bytes: o.configuration.len(),
                    sessions_bytes: o.sessions.len(),
                    options: LogOptions::decode(&o.options).map_err(malformed)?,
                    logs_bytes: o.logs.len(),
                    objects_bytes: o.objects.len(),
                })
            }
            Kind::Command => Ok(match parse_command(self.body).map_err(malformed)? {
                Command::Discard { first } => Content::Discard { first },
                Command::OpenSession { log, idle_max_ms } => Content::OpenSession { log, idle_max_ms },
                Command::Log(LogCommand::Open { log, start }) => Content::OpenLog { log, start },
                Command::Log(LogCommand::Seal { log }) => Content::SealLog { log },
                Command::Log(LogCommand::Drop { log }) => Content::DropLog { log },
                Command::Log(LogCommand::Discard { log, first }) => Content::DiscardLog { log, first },
                Command::OpenAfter { log, .. } | Command::PassOver { log } => {
                    Content::OpenLog { log, start: Index(1) }
                }
                Command::CloseSession { id } => Content::CloseSession { id },
                Command::SetOptions(options) => Content::SetOptions(options),
                Command::Object(ObjectCommand::Cut { number, begin, end, .. }) => Content::CutObject {
                    number,
                    entries: (begin.raft.next(), end.raft),
                    records: (begin.next, end.next),
                },
                Command::Object(ObjectCommand::Stored { number, object }) => {
                    Content::StoreObject { number, bytes: object.bytes, crc: object.crc }
                }
                Command::Object(ObjectCommand::MoveRows { below, holder, .. }) => {
                    Content::MoveObjectRows { below, holder }
                }
                Command::Object(ObjectCommand::Begin { number, .. }) => Content::BeginObjects { number },
                Command::Log(LogCommand::SetOptions { log, options }) => {
                    Content::SetLogOptions { log, options }
                }
            }),
            Kind::NoOp | Kind::Configuration | Kind::Marker => Ok(Content::Opaque(self.body.len())),
        }
    }
}

/// An event of a walk. Events are in the order of the files' names, and of the bytes in a file.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A segment with a sound header begins.
    Segment(&'a Segment),
    /// A block with a sound header; its body may be damaged.
    Block(&'a Block<'a>),
    /// A fault. The walk continues.
    Fault(&'a Fault),
    /// The unproven end of the log, unfinished or damaged.
    Tail(&'a Tail),
    /// The segment's blocks, index and footer were read.
    SegmentEnd(&'a SegmentEnd),
}

/// The totals of a whole walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// How many segments have a sound header, with prepared ones.
    pub segments: u64,
    /// How many blocks have a sound header.
    pub blocks: u64,
    /// How many batches are sound.
    pub batches: u64,
    /// How many records the sound batches hold.
    pub records: u64,
    /// How many bytes of files were read.
    pub bytes: u64,
    /// How many faults have [`Severity::Corrupt`].
    pub corrupt: u64,
    /// How many faults have [`Severity::Harmless`].
    pub harmless: u64,
    /// How many faults have [`Severity::Undecodable`]: their batches and records are counted as sound as well.
    pub undecodable: u64,
    /// The unfinished or damaged end, if there is one.
    pub tail: Option<Tail>,
    /// The first record that the files hold. Discarded records before the log's first count while their file exists.
    pub first: Option<Index>,
    /// The last record that the files hold.
    pub last: Option<Index>,
}

/// Counts the events and passes them to the visitor.
pub(super) struct Sink<'v> {
    pub(super) visit: &'v mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    pub(super) report: Report,
    /// Records below it are discarded, as far as the blocks so far show.
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
