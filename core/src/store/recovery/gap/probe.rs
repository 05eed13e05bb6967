//! Probe: walks a segment's blocks, checks every byte, and finds the gaps in them.
//!
//! Must not know: which replica has the entries, what commands mean.

use super::{Behind, Gap, Place, Point};
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result};
use crate::record::batch::Malformed;
use crate::record::crc::crc32c;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind};
use crate::store::format::geometry::{FOOTER_BYTES, INDEX_ENTRY_BYTES, SEGMENT_HEADER_BYTES};
use crate::store::format::segment::{Footer, HardState, IndexEntry, Opening};
use crate::store::read::scanner::Scanner;
use crate::store::segment::{Base, file_name};
use crate::types::{EntryIndex, Term, Timestamp};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Walks a segment's blocks, a piece at a time.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) place: Place,
    file: Arc<dyn DiskFile>,
    scanner: Scanner,
    pub(crate) at: usize,
    before: Point,
    /// The last committed entry according to the blocks so far.
    committed: EntryIndex,
    piece: usize,
    forgotten: usize,
}

/// The result of a step of a [`Probe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// All blocks were sound so far.
    More,
    /// The segment's blocks are sound to their end.
    Sound,
    /// The chain breaks at [`Probe::at`].
    Broken(Malformed),
}

impl Probe {
    /// Creates a probe that starts at a segment's first block and reads `piece` bytes at a time.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn new(disk: &dyn Disk, place: Place, piece: usize) -> Result<Self> {
        let name = file_name(place.number);
        let path = disk.path().join(&name);
        let file = disk.open(&name, false).map_err(|e| Error::io("open", &path, e))?;
        let scanner = Scanner::new(file.clone(), path, place.id, place.bytes as usize).in_pieces_of(piece);
        let base = place.base.unwrap_or_default();
        let before = Point {
            raft: base.raft,
            term: base.term,
            next: base.next,
            exact: place.base.is_some(),
            timestamp: Timestamp(0),
            durable_upto: 0,
        };
        let (at, forgotten) = (SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES);
        Ok(Self { place, file, scanner, at, before, committed: EntryIndex(0), piece, forgotten })
    }

    /// Checks about one more piece.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn look(&mut self) -> Result<Look> {
        let stop = self.at + self.piece;
        if self.forgotten < stop {
            // The page cache does not show what is on the device.
            self.file.forget(self.forgotten as u64..stop as u64);
            self.forgotten = stop;
        }
        while self.at < stop {
            if self.is_at_end() {
                return Ok(Look::Sound);
            }
            match self.sound_block(self.at, self.before)? {
                Ok((header, after)) => {
                    if matches!(header.kind, Kind::Opening | Kind::HardState)
                        && let Ok((header, body)) = self.scanner.block(self.at)?
                        && let Some(state) = state_of(&header, body)
                    {
                        self.committed = self.committed.max(state.commit);
                    }
                    self.at += header.stride();
                    self.before = after;
                }
                Err(why) => return Ok(Look::Broken(why)),
            }
        }
        Ok(Look::More)
    }

    /// Checks pieces until it finds damage or the end.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn look_on(&mut self) -> Result<Look> {
        loop {
            let look = self.look()?;
            if look != Look::More {
                return Ok(look);
            }
        }
    }

    /// Checks the same position again after a repair.
    pub(crate) fn recheck(&mut self) {
        self.scanner.refresh();
        self.forgotten = self.at;
    }

    /// The file, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.scanner.path
    }

    fn is_at_end(&self) -> bool {
        match self.place.end {
            Some((Some(data_end), _)) => self.at >= data_end,
            Some((None, base)) => {
                let here = self.before;
                (here.raft, here.term) == (base.raft, base.term)
                    && (here.next == base.next || !here.exact)
                    && self.at > SEGMENT_HEADER_BYTES
            }
            None => false,
        }
    }

    /// The block at `at`, if it is sound and follows `before`, and the state after it.
    fn sound_block(&mut self, at: usize, before: Point) -> Result<Result<(BlockHeader, Point), Malformed>> {
        let header = match self.scanner.block(at)? {
            Ok((header, _)) => header,
            Err(why) => return Ok(Err(why)),
        };
        let beyond = matches!(self.place.end, Some((Some(end), _)) if at + header.stride() > end);
        if beyond {
            return Ok(Err("block runs over the end of the written bytes"));
        }
        let opens = header.kind == Kind::Opening;
        if opens != (at == SEGMENT_HEADER_BYTES) {
            return Ok(Err("opening block out of place"));
        }
        if !opens {
            let raft = if header.kind.is_entry() { before.raft.next() } else { before.raft };
            let term =
                if header.kind.is_entry() { header.term >= before.term } else { header.term == before.term };
            let first = if before.exact { header.first == before.next } else { header.first >= before.next };
            if header.raft_index != raft || !term || !first {
                return Ok(Err("block does not follow the previous one"));
            }
        }
        Ok(Ok((header, Point::behind(&header))))
    }

    /// The gap where [`Probe::look`] stopped. `None`: no sound block follows, and nothing shows that one did: it is the
    /// end of the log.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn gap(&mut self, why: Malformed) -> Result<Option<Gap>> {
        let from = self.at;
        let upper = match self.place.end {
            Some((Some(end), _)) => end,
            _ => self.scanner.limit(),
        };
        let (mut at, mut sound) = (from, None);
        while sound.is_none()
            && let Some((found, header)) = self.scanner.seek(at + BLOCK_HEADER_BYTES, upper)?
        {
            sound = self.candidate(found, &header)?;
            at = found;
        }
        let behind = match (sound, self.place.end) {
            (Some(h), _) => {
                let upto = if h.kind.is_entry() { EntryIndex(h.raft_index.0 - 1) } else { h.raft_index };
                Behind { to: Some(at), upto, anchor: (h.raft_index, h.term), next: h.first }
            }
            (None, Some((to, Base { raft, term, next }))) => {
                Behind { to, upto: raft, anchor: (raft, term), next }
            }
            (None, None) => return Ok(None),
        };
        if behind.upto < self.before.raft {
            return Ok(None);
        }
        let seen = self.headers(from..behind.to.unwrap_or(upper), behind.upto)?;
        if from == SEGMENT_HEADER_BYTES && self.place.base.is_none() {
            // As far as is known here, only the opening block is lost.
            self.before = Point { raft: behind.upto, ..self.before };
        }
        let mut gap = Gap::new(self.place.clone(), (from, self.before), behind, why);
        (gap.committed, gap.seen) = (self.committed, seen);
        gap.keep_index(self.index()?);
        Ok(Some(gap))
    }

    /// The sound headers of entries in a gap that ends with entry `upto`.
    fn headers(&mut self, hole: Range<usize>, upto: EntryIndex) -> Result<Vec<IndexEntry>> {
        let mut seen: Vec<IndexEntry> = Vec::new();
        let mut from = hole.start;
        while let Some((at, h)) = self.scanner.seek(from, hole.end)? {
            if h.kind.is_entry()
                && h.raft_index <= upto
                && h.raft_index > seen.last().map_or(self.before.raft, |e| e.raft_index)
            {
                let (first, raft_index, timestamp) = (h.first, h.raft_index, h.timestamp);
                seen.push(IndexEntry { first, raft_index, timestamp, offset: at as u32 });
            }
            from = at + BLOCK_HEADER_BYTES;
        }
        Ok(seen)
    }

    /// The block at `at`, if the log can continue with it after a gap. It must come after the blocks before the
    /// gap, and not after the start of the next segment. Either a sound block follows it, or no durable one. (Swapped
    /// sectors contain sound blocks, too.)
    fn candidate(&mut self, at: usize, header: &BlockHeader) -> Result<Option<BlockHeader>> {
        let raft = if header.kind.is_entry() { self.before.raft.next() } else { self.before.raft };
        if header.kind == Kind::Opening || header.raft_index < raft || header.term < self.before.term {
            return Ok(None);
        }
        // Truncated blocks stay in the file, after the position where the next segment begins.
        if self.place.end.is_some_and(|(_, base)| header.raft_index > base.raft || header.term > base.term) {
            return Ok(None);
        }
        // Trusted only for its own position.
        let first =
            if header.kind.is_entry() { EntryIndex(header.raft_index.0 - 1) } else { header.raft_index };
        let assumed = Point { raft: first, term: Term(0), next: header.first, exact: true, ..self.before };
        let assumed = if header.kind.is_entry() { assumed } else { Point { term: header.term, ..assumed } };
        let Ok((header, after)) = self.sound_block(at, assumed)? else { return Ok(None) };
        let behind = at + header.stride();
        if let Some((Some(end), base)) = self.place.end
            && behind >= end
        {
            return Ok(((after.raft, after.term) == (base.raft, base.term)).then_some(header));
        }
        let follows = self.sound_block(behind, after)?.is_ok();
        // An unproven write can have been torn.
        Ok((follows || self.scanner.later(behind)?.durable_upto <= behind).then_some(header))
    }

    /// Whether a sound hard state block follows `at` that recovery keeps. It keeps all blocks that a later one proves, because it refuses the
    /// log until damage before them is repaired. From where the last proven one ends it keeps those that follow without a gap: one behind a
    /// torn write is cut off with that. An opening does not count: it can only be out of place, and is older than all that follows.
    ///
    /// Invariant: a block that recovery does not keep never counts. Its vote would be forgotten, and could be cast again.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn state_follows(&mut self, at: usize) -> Result<bool> {
        let proven = self.scanner.later(at)?.durable_upto;
        let (mut from, mut kept_to) = (at, at.max(proven));
        while let Some((found, _)) = self.scanner.seek(from, self.scanner.limit())? {
            from = found + BLOCK_HEADER_BYTES;
            let Ok((header, body)) = self.scanner.block(found)? else { continue };
            if found >= proven && found != kept_to && !planted!(181) {
                continue;
            }
            if header.kind == Kind::HardState && state_of(&header, body).is_some() {
                return Ok(true);
            }
            // The body of a sound block can hold copies of others.
            from = found + header.stride();
            kept_to = kept_to.max(from);
        }
        Ok(false)
    }

    /// Terms and votes in the sound headers from `at` on. The flag: it is a hard state, possibly of an opening;
    /// otherwise only the term of a block is known.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn states(&mut self, mut at: usize) -> Result<Vec<(bool, HardState)>> {
        let mut states = Vec::new();
        while let Some((found, header)) = self.scanner.seek(at, self.scanner.limit())? {
            let state = self.scanner.block(found)?.ok().and_then(|(header, body)| state_of(&header, body));
            let of_term = HardState { term: header.term, vote: 0, commit: EntryIndex(0) };
            states.push((state.is_some(), state.unwrap_or(of_term)));
            at = found + BLOCK_HEADER_BYTES;
        }
        Ok(states)
    }

    /// The block index in the file; empty if it is missing or damaged.
    fn index(&self) -> Result<Vec<IndexEntry>> {
        let bytes = u64::from(self.place.bytes);
        let io = |e| Error::io("read", &self.scanner.path, e);
        let mut tail = [0; FOOTER_BYTES];
        self.file.read_at(bytes - FOOTER_BYTES as u64, &mut tail).map_err(io)?;
        let footer = Footer::parse(&tail, self.place.number, self.place.id).ok();
        let Some(footer) = footer.filter(|f| f.fits(bytes as usize)) else { return Ok(Vec::new()) };
        let mut index = vec![0; footer.index_count as usize * INDEX_ENTRY_BYTES];
        self.file.read_at(footer.index_offset.into(), &mut index).map_err(io)?;
        if crc32c(&index) != footer.index_crc {
            return Ok(Vec::new());
        }
        Ok(index.as_chunks::<INDEX_ENTRY_BYTES>().0.iter().map(IndexEntry::parse).collect())
    }
}

/// The hard state that a block contains.
fn state_of(header: &BlockHeader, body: &[u8]) -> Option<HardState> {
    match header.kind {
        Kind::Opening => Opening::parse(body).ok().map(|opening| opening.hard_state),
        Kind::HardState => HardState::parse(body).ok(),
        _ => None,
    }
}
