//! The walk over one segment file: header, blocks, block index, footer.
//!
//! Must not know: the order of segments beyond the [`Chain`] it is handed.
//!
//! A bad block is judged as in recovery: it is corruption if something written later says that it was durable (a
//! later block's `durable_upto`, a footer, a successor that has begun), else it is a torn write. All this evidence is
//! read before the blocks are, so that a live writer can add to it but never contradict it.

use super::batches;
use super::batches::Piece;
use super::chain::{Chain, after_footer};
use super::header::{Found, Header, read_header};
use super::report::{Block, Event, Fault, Segment, SegmentEnd, SegmentState, Severity, Sink, Tail};
use super::window::FileWindow;
use crate::disk::Disk;
use crate::options::log_options::LogOptions;
use crate::record::crc::crc32c;
use crate::replica::queue::proposals::Command;
use crate::replica::state::command::parse_command;
use crate::replica::state::log_table::LogTable;
use crate::replica::state::session_table::Sessions;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind, check_body};
use crate::store::format::geometry::{FOOTER_BYTES, INDEX_ENTRY_BYTES, SEGMENT_HEADER_BYTES, data_limit};
use crate::store::format::segment::{Footer, HardState, IndexEntry, Opening, SegmentHeader};
use crate::store::segment::file_name;
use crate::types::{EntryIndex, Index, LogId, SegmentId};
use std::io;
use std::ops::ControlFlow;

/// How many bytes are skipped at an offset that cannot be read.
const PAGE_BYTES: u64 = 4096;

/// How the walk over a segment ended.
pub(super) enum Outcome {
    Done,
    /// The file was discarded or reused meanwhile: this is no fault.
    Vanished,
    /// The visitor ended the walk.
    Stop,
}

/// Why a walk ends early.
enum Stop {
    Vanished,
    Visitor,
}

/// Walks the segment `found`; reports faults to `sink`. `successor` is the segment in which the log continues: blocks
/// here after the entry at which the successor begins are dead, and the whole segment is dead if `dead`.
pub(super) fn walk(
    disk: &dyn Disk,
    found: &Found,
    log: Option<LogId>,
    (successor, dead): (Option<&Found>, bool),
    chain: &mut Chain,
    sink: &mut Sink<'_>,
) -> Outcome {
    let mut walk = Walk {
        disk,
        file: file_name(found.number),
        id: SegmentId(0),
        chain: *chain,
        successor: successor.and_then(|s| s.opening),
        after_discard: successor.is_some_and(|s| s.follows_discard(s.log_first.unwrap_or_default())),
        adjoins: successor.is_some_and(|s| s.number == found.number + 1),
        unbegun: found.unbegun,
        dead,
        sink,
        scanned: false,
    };
    let result = walk.run(found.number, log);
    *chain = walk.chain;
    match result {
        Ok(()) => Outcome::Done,
        Err(Stop::Vanished) => Outcome::Vanished,
        Err(Stop::Visitor) => Outcome::Stop,
    }
}

struct Walk<'w, 's, 'v> {
    disk: &'w dyn Disk,
    file: String,
    id: SegmentId,
    chain: Chain,
    successor: Option<BlockHeader>,
    /// Whether the successor begins at a later record after a discard, so that nothing here has to lead to it.
    after_discard: bool,
    /// Whether the successor's number is the next one: then it must begin where this one ends, or before.
    adjoins: bool,
    /// As in the survey's `Found`.
    unbegun: bool,
    dead: bool,
    sink: &'s mut Sink<'v>,
    /// Whether the header was sound, so that a changed one means that the file was reused.
    scanned: bool,
}

/// A range of wrong bytes, before it is reported as a fault.
struct Wrong {
    offset: u64,
    bytes: u64,
    what: String,
    severity: Severity,
}

impl Wrong {
    fn corrupt(offset: u64, bytes: u64, what: impl Into<String>) -> Self {
        Self { offset, bytes, what: what.into(), severity: Severity::Corrupt }
    }

    fn undecodable(offset: u64, bytes: u64, what: impl Into<String>) -> Self {
        Self { offset, bytes, what: what.into(), severity: Severity::Undecodable }
    }

    fn harmless(offset: u64, bytes: u64, what: impl Into<String>) -> Self {
        Self { offset, bytes, what: what.into(), severity: Severity::Harmless }
    }
}

impl Walk<'_, '_, '_> {
    fn run(&mut self, number: u64, log: Option<LogId>) -> Result<(), Stop> {
        let opened = self.disk.open(&self.file, false).and_then(FileWindow::new);
        let mut window = match opened {
            Ok(window) => window,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Stop::Vanished),
            Err(e) => return self.lost(0, format!("the file cannot be opened: {e}")),
        };
        let (header, damage) = match read_header(&mut window, number) {
            Header::Sound(header) => (header, None),
            Header::Guessed(header, what) => (header, Some(what)),
            Header::Lost(what) => return self.lost(window.len(), what),
            Header::Newer(v) => {
                return self.lost(window.len(), format!("needs a chiplog that reads format version {v}"));
            }
        };
        (self.id, self.scanned) = (header.id, true);
        if let Some(what) = damage {
            let what = format!("{what}; the blocks after it can still be read");
            self.wrong(Wrong::corrupt(0, SEGMENT_HEADER_BYTES as u64, what), None)?;
            return self.blocks(&mut window, &header);
        }
        if header.number != number {
            return self
                .lost(window.len(), format!("the header says that this is segment {}", header.number));
        }
        if log.is_some_and(|log| log != header.log) {
            return self
                .lost(window.len(), format!("the segment belongs to another log, {:032x}", header.log.0));
        }
        if window.len() != u64::from(header.bytes) {
            let (is, should) = (window.len(), header.bytes);
            self.wrong(
                Wrong::corrupt(is, 0, format!("the file has {is} bytes; its header says {should}")),
                None,
            )?;
        }
        self.blocks(&mut window, &header)
    }

    /// Walks all blocks of a segment with a sound header, then its index and footer.
    fn blocks(&mut self, window: &mut FileWindow, header: &SegmentHeader) -> Result<(), Stop> {
        let length = window.len().min(u64::from(header.bytes));
        let (footer, footer_fault) = read_footer(window, header);
        let footer = footer.filter(|f| !self.is_outdated(f));
        // A segment that a writer has begun since the survey follows entries that were written after the walk over
        // the one before.
        // Looked at last, and read again: a read beside the writer can see later pages of its write without the first.
        let has_begun = self.has_begun(window, footer.as_ref(), length);
        if self.unbegun {
            window.refresh();
        }
        // If the survey found the next one begun, this one was filled while the survey went on, and leads to it.
        let is_new = self.unbegun
            && self.successor.is_none()
            && self.header_at(window, SEGMENT_HEADER_BYTES as u64, length).is_ok();
        let begun = has_begun && !is_new;
        let state = match (&footer, begun) {
            _ if self.dead => SegmentState::Dead,
            _ if is_new => SegmentState::Prepared,
            (Some(_), _) => SegmentState::Sealed,
            (None, true) => SegmentState::Begun,
            (None, false) => SegmentState::Prepared,
        };
        let segment = Segment {
            file: self.file.clone(),
            number: header.number,
            id: header.id,
            log: header.log,
            bytes: window.len(),
            state,
        };
        self.sink.report.segments += 1;
        self.emit(Event::Segment(&segment))?;
        let mut end = SegmentEnd { data_end: SEGMENT_HEADER_BYTES as u64, ..SegmentEnd::default() };
        if begun && !self.dead {
            let room = data_limit_of(header, length);
            let (limit, proven) = match (&footer, self.successor) {
                (Some(f), _) => (u64::from(f.data_end).min(room), u64::MAX),
                (None, Some(_)) => (room, u64::MAX),
                (None, None) => self.prove(window, room),
            };
            end.proven = proven;
            self.walk_blocks(window, limit, &mut end)?;
            self.check_end(&end, footer.as_ref())?;
            if let Some(fault) = footer_fault {
                self.wrong(fault, None)?;
            }
            if let Some(footer) = footer {
                end.index_entries = self.check_index(window, &footer)?;
            }
        }
        self.sink.report.bytes += window.len();
        self.emit(Event::SegmentEnd(&end))
    }

    /// Whether a footer was written before the log was truncated to an earlier end, or for a roll that a crash undid.
    fn is_outdated(&self, footer: &Footer) -> bool {
        let Some(next) = self.successor else { return false };
        footer.last_raft > next.raft_index
            || (self.adjoins && footer.last_raft < next.raft_index && !self.after_discard)
    }

    /// Whether the segment holds blocks: an opening, or, if that is damaged, any later block or a footer.
    fn has_begun(&self, window: &mut FileWindow, footer: Option<&Footer>, length: u64) -> bool {
        let start = SEGMENT_HEADER_BYTES as u64;
        footer.is_some()
            || self.header_at(window, start, length).is_ok()
            || self.seek(window, start, length).is_some()
    }

    /// For a segment that nothing proves as a whole: returns where its last recognisable block ends, and below which
    /// offset its blocks say that everything is durable.
    fn prove(&self, window: &mut FileWindow, limit: u64) -> (u64, u64) {
        let (mut at, mut end, mut proven) = (SEGMENT_HEADER_BYTES as u64, 0, 0);
        while let Some((found, header)) = self.seek(window, at, limit) {
            proven = proven.max(u64::from(header.durable_upto));
            at = found + header.stride() as u64;
            end = at;
        }
        window.refresh();
        (end, proven)
    }

    fn walk_blocks(&mut self, window: &mut FileWindow, limit: u64, end: &mut SegmentEnd) -> Result<(), Stop> {
        let mut at = SEGMENT_HEADER_BYTES as u64;
        while at + BLOCK_HEADER_BYTES as u64 <= limit {
            match self.header_at(window, at, limit) {
                Ok(header) if self.successor.is_some_and(|s| header.raft_index > s.raft_index) => {
                    return Ok(());
                }
                Ok(header) => {
                    if !self.block(window, at, &header, end)? {
                        return self.tail(at, limit);
                    }
                    at += header.stride() as u64;
                    end.data_end = at;
                }
                Err(why) => {
                    let Some((next, after)) = self.seek(window, at, limit) else { return Ok(()) };
                    if at >= end.proven {
                        return self.tail(at, limit);
                    }
                    let records = self.chain.gap_to(Some(&after));
                    self.wrong(Wrong::corrupt(at, next - at, why), Some(records))?;
                    self.chain = self.chain.broken();
                    at = next;
                }
            }
        }
        Ok(())
    }

    /// Checks a block with a sound header. False if it is torn: bad and not proven.
    fn block(
        &mut self,
        window: &mut FileWindow,
        at: u64,
        header: &BlockHeader,
        end: &mut SegmentEnd,
    ) -> Result<bool, Stop> {
        let body = window.get(at, header.stride());
        let (checked, block, body) = match &body {
            Ok(block) => {
                (check_block(header, block), *block, &block[BLOCK_HEADER_BYTES..header.length as usize])
            }
            Err(e) => (Err(format!("block cannot be read: {e}")), &[][..], &[][..]),
        };
        let pieces = match header.kind {
            Kind::Data if checked.is_err() => batches::pieces(header, block),
            _ => Vec::new(),
        };
        let opening_first = (header.kind == Kind::Opening) == (at == SEGMENT_HEADER_BYTES as u64);
        let order = self.chain.check(header).and_then(|()| match () {
            () if !opening_first => Err("an opening block belongs at a segment's start, and only there"),
            () if u64::from(header.durable_upto) > at => {
                Err("block says that bytes after it were durable before it")
            }
            () => Ok(()),
        });
        if checked.is_err() && at >= end.proven {
            return Ok(false);
        }
        self.chain.advance(header, checked.is_ok().then_some(body));
        if checked.is_ok() {
            self.sink.discarded = self.sink.discarded.max(discarded_by(header, body));
        }
        end.blocks += 1;
        let fault = checked.as_ref().err().map(String::as_str);
        let block = Block { header: *header, offset: at, body, fault, pieces: &pieces };
        end.records += match fault {
            None => u64::from(header.record_count),
            Some(_) => pieces.iter().filter(|p| p.fault.is_none()).map(|p| p.records).sum(),
        };
        let flow = self.sink.block(&block);
        let undecodable = match (header.kind, &checked) {
            (Kind::Data | Kind::Mixed, Ok(())) => batches::undecodable(header, body),
            (Kind::Data, Err(_)) => batches::undecodable_of(&pieces, body),
            _ => Vec::new(),
        };
        let padding = checked.is_ok() && !padding_is_zero(window, at, header);
        if flow.is_break() {
            return Err(Stop::Visitor);
        }
        let own = (
            header.kind.is_entry().then_some((header.raft_index, header.raft_index)),
            (header.record_count > 0).then(|| (header.first, header.next_record().previous())),
        );
        if let Err(what) = checked {
            match pieces.is_empty() {
                true => self.wrong(Wrong::corrupt(at, u64::from(header.length), what), Some(own))?,
                false => self.pieces(at, own.0, &pieces)?,
            }
        } else if padding {
            let (from, bytes) =
                (at + u64::from(header.length), header.stride() as u64 - u64::from(header.length));
            self.wrong(Wrong::harmless(from, bytes, "the padding after the block is not zero"), None)?;
        }
        for piece in &undecodable {
            let Some(why) = piece.fault else { continue };
            let what = format!("{why}: the batch is as it was appended, but no reader can unpack it");
            let at = at + (BLOCK_HEADER_BYTES + piece.at) as u64;
            self.wrong(Wrong::undecodable(at, piece.bytes as u64, what), Some((own.0, piece.range())))?;
        }
        if let Err(what) = order {
            self.wrong(Wrong::corrupt(at, u64::from(header.length), what), Some((own.0, None)))?;
        }
        Ok(true)
    }

    /// Reports the damaged pieces of the block at `at`.
    fn pieces(
        &mut self,
        at: u64,
        raft: Option<(EntryIndex, EntryIndex)>,
        pieces: &[Piece],
    ) -> Result<(), Stop> {
        for piece in pieces {
            let Some(what) = piece.fault else { continue };
            let at = at + (BLOCK_HEADER_BYTES + piece.at) as u64;
            self.wrong(Wrong::corrupt(at, piece.bytes as u64, what), Some((raft, piece.range())))?;
        }
        Ok(())
    }

    fn tail(&mut self, offset: u64, end: u64) -> Result<(), Stop> {
        let tail = Tail { file: self.file.clone(), offset, bytes: end - offset };
        self.sink.report.tail = Some(tail.clone());
        self.emit(Event::Tail(&tail))
    }

    /// Compares the end of the blocks with the footer and with the next segment.
    fn check_end(&mut self, end: &SegmentEnd, footer: Option<&Footer>) -> Result<(), Stop> {
        let Some(known) = footer.map(after_footer).or(self.successor) else { return Ok(()) };
        let (raft, records) = self.chain.gap_to(Some(&known));
        let short = footer.is_some_and(|f| end.data_end < u64::from(f.data_end));
        let gone = raft.is_some() || (records.is_some() && self.chain.next.is_some_and(|(_, exact)| exact));
        if gone && !short && footer.is_none() && self.after_discard {
            self.chain = Chain::default();
        } else if short || gone {
            let reach = footer.map_or(0, |f| u64::from(f.data_end).saturating_sub(end.data_end));
            let what = "blocks are missing from here on";
            self.wrong(Wrong::corrupt(end.data_end, reach, what), Some((raft, records)))?;
            self.chain = self.chain.broken();
        }
        Ok(())
    }

    /// Checks the block index against its checksum and against the blocks it points to.
    fn check_index(&mut self, window: &mut FileWindow, footer: &Footer) -> Result<u64, Stop> {
        const STALE: &str = "the block index is corrupt; the segment is walked from its start instead";
        let (at, count) = (u64::from(footer.index_offset), footer.index_count as usize);
        let bytes = count.saturating_mul(INDEX_ENTRY_BYTES);
        let sound =
            |window: &mut FileWindow| window.get(at, bytes).is_ok_and(|b| crc32c(b) == footer.index_crc);
        if !sound(window) {
            window.refresh(); // the writer may have been writing it
            if !sound(window) {
                self.wrong(Wrong::harmless(at, bytes as u64, STALE), None)?;
                return Ok(0);
            }
        }
        let entries: Vec<IndexEntry> = match window.get(at, bytes) {
            Ok(bytes) => bytes.as_chunks::<INDEX_ENTRY_BYTES>().0.iter().map(IndexEntry::parse).collect(),
            Err(_) => return Ok(0),
        };
        for (n, entry) in entries.iter().enumerate() {
            let offset = u64::from(entry.offset);
            let Ok(block) = self.header_at(window, offset, u64::from(footer.data_end)) else { continue };
            if (block.first, block.raft_index, block.timestamp)
                != (entry.first, entry.raft_index, entry.timestamp)
            {
                let at = at + (n * INDEX_ENTRY_BYTES) as u64;
                let what = format!("block index entry {n} contradicts the block at offset {offset}");
                self.wrong(Wrong::corrupt(at, INDEX_ENTRY_BYTES as u64, what), None)?;
            }
        }
        Ok(entries.len() as u64)
    }

    /// The header of the block at `at`, if it is sound and the block ends at `limit` or before.
    fn header_at(&self, window: &mut FileWindow, at: u64, limit: u64) -> Result<BlockHeader, String> {
        let bytes =
            window.get(at, BLOCK_HEADER_BYTES).map_err(|e| format!("block header cannot be read: {e}"))?;
        let header = BlockHeader::parse(bytes, self.id)?;
        if at + header.stride() as u64 > limit {
            return Err("block reaches beyond the space for blocks".into());
        }
        Ok(header)
    }

    /// The first sound block header at or after `at`.
    fn seek(&self, window: &mut FileWindow, mut at: u64, limit: u64) -> Option<(u64, BlockHeader)> {
        while at + BLOCK_HEADER_BYTES as u64 <= limit {
            if let Ok(header) = self.header_at(window, at, limit) {
                return Some((at, header));
            }
            let readable = window.get(at, BLOCK_HEADER_BYTES).is_ok();
            let step = if readable { BLOCK_HEADER_BYTES as u64 } else { PAGE_BYTES };
            at = (at / step + 1) * step;
        }
        None
    }

    /// Reports that the whole segment is unreadable; its neighbours show which entries it held.
    fn lost(&mut self, bytes: u64, what: String) -> Result<(), Stop> {
        self.sink.report.bytes += bytes;
        let gap = self.chain.gap_to(self.successor.as_ref());
        self.chain = Chain::default();
        self.wrong(Wrong::corrupt(0, bytes, what), Some(gap))
    }

    /// Reports wrong bytes, unless the file is not this segment any more.
    #[expect(clippy::type_complexity, reason = "the two ranges of `Chain::gap_to`")]
    fn wrong(
        &mut self,
        wrong: Wrong,
        touched: Option<(Option<(EntryIndex, EntryIndex)>, Option<(Index, Index)>)>,
    ) -> Result<(), Stop> {
        if self.vanished() {
            return Err(Stop::Vanished);
        }
        let Wrong { offset, bytes, what, severity } = wrong;
        let (raft, records) = touched.unwrap_or_default();
        let fault = Fault { file: self.file.clone(), offset, bytes, what, severity, raft, records };
        if self.sink.fault(fault).is_break() { Err(Stop::Visitor) } else { Ok(()) }
    }

    /// Whether the segment was discarded since the walk began: its name is gone, or is another file's.
    fn vanished(&self) -> bool {
        let mut head = vec![0; SEGMENT_HEADER_BYTES];
        match self.disk.open(&self.file, false).and_then(|f| f.read_at(0, &mut head)) {
            Err(e) => e.kind() == io::ErrorKind::NotFound,
            Ok(()) => self.scanned && SegmentHeader::parse(&head).is_ok_and(|h| h.id != self.id),
        }
    }

    fn emit(&mut self, event: Event<'_>) -> Result<(), Stop> {
        match (self.sink.visit)(event) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Stop::Visitor),
        }
    }
}

/// The offset at which blocks must end: from the size in the header, and inside the file.
fn data_limit_of(header: &SegmentHeader, length: u64) -> u64 {
    let bytes = header.bytes as usize;
    if bytes < SEGMENT_HEADER_BYTES + FOOTER_BYTES * 2 {
        length
    } else {
        length.min(data_limit(bytes) as u64)
    }
}

/// Returns the footer, or its fault. Neither, if the segment has none.
fn read_footer(window: &mut FileWindow, header: &SegmentHeader) -> (Option<Footer>, Option<Wrong>) {
    let Some(at) = u64::from(header.bytes).checked_sub(FOOTER_BYTES as u64) else { return (None, None) };
    let Ok(bytes) = window.get(at, FOOTER_BYTES) else { return (None, None) };
    let Some(bytes) = bytes.first_chunk::<FOOTER_BYTES>() else { return (None, None) };
    match Footer::parse(bytes, header.number, header.id) {
        Ok(footer) => (Some(footer), None),
        Err(what) => {
            // A footer of another life, or none, is no fault; a damaged footer of this life is one.
            let mine =
                bytes[16..24] == header.number.to_le_bytes() || bytes[24..32] == header.id.0.to_le_bytes();
            let what = format!("{what}; opening the log scans the segment instead");
            (None, mine.then(|| Wrong::harmless(at, FOOTER_BYTES as u64, what)))
        }
    }
}

/// The log's first index according to a sound block, or the first record that its directory keeps; or 0.
fn discarded_by(header: &BlockHeader, body: &[u8]) -> Index {
    match header.kind {
        Kind::Opening => Opening::parse(body).map_or(Index(0), |o| o.log_first),
        Kind::Command => match parse_command(body) {
            Ok(Command::Discard { first }) => first,
            _ => Index(0),
        },
        Kind::HardState => HardState::kept_from(body).unwrap_or_default(),
        _ => Index(0),
    }
}

fn padding_is_zero(window: &mut FileWindow, at: u64, header: &BlockHeader) -> bool {
    let rest = header.stride() - header.length as usize;
    window.get(at + u64::from(header.length), rest).is_ok_and(|b| b.iter().all(|b| *b == 0))
}

/// Checks every byte of a block with a sound header, except the packed bytes in its batches.
fn check_block(header: &BlockHeader, bytes: &[u8]) -> Result<(), String> {
    check_body(header, bytes, true)?;
    let body = &bytes[BLOCK_HEADER_BYTES..header.length as usize];
    match header.kind {
        Kind::Opening => {
            let opening = Opening::parse(body)?;
            LogOptions::decode(&opening.options)?;
            LogTable::decode(&opening.logs)?;
            Ok(Sessions::decode(&opening.sessions, u32::MAX, u16::MAX).map(|_| ())?)
        }
        Kind::HardState => Ok(HardState::parse(body).map(|_| ())?),
        Kind::Command => Ok(parse_command(body).map(|_| ())?),
        Kind::Data | Kind::Mixed | Kind::NoOp | Kind::Configuration | Kind::Marker => Ok(()),
    }
}
