//! Wound: a hole in the chain of a segment's sound blocks: where it begins and ends, which entries are missing in it,
//! and how they are put back, in place. Found by a [`Probe`], which goes along the blocks and checks every byte.
//!
//! ```text
//!   ... | sound block | ???????????????????????? | sound block that follows | ...
//!              before ^ range.start    range.end ^ after
//! ```
//!
//! What is missing is known from both sides: the entries after `before`, up to the one that `after` follows; and their
//! bytes must fill the hole, for an entry's block is the same on every replica except for the header's salt and
//! `durable_upto`. Blocks that are no entries can have stood between: what they took is filled by a marker, behind the
//! entries, or wherever the segment's block index says that a block begins.
//!
//! Writing in place is no danger to what is sound: only sectors that differ from what they should be are written, and
//! a sector is written whole or not at all; a crash in the middle leaves a wound again, which is found again.
//!
//! An opening block that is gone is made again of what stands in the segment before. A conflict can have cut off that
//! one's end, and it does not say where: so the entry that it has there counts only once another replica has it as well, or it
//! is known committed ([`Gap::begin_behind`]).
//!
//! Invariants:
//! - nothing is written but inside a range that failed its checks, and nothing but what was checked;
//! - `durable_upto` of what is put back says no more than the block before it said: never more than was true.
//!
//! Must not know: who has the entries, what commands mean.

use crate::disk::{Disk, DiskFile, SECTOR_BYTES};
use crate::error::{Error, Result};
use crate::record::batch::Malformed;
use crate::record::crc::crc32c;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind, padded};
use crate::store::format::geometry::{FOOTER_BYTES, INDEX_ENTRY_BYTES, SEGMENT_HEADER_BYTES, data_limit};
use crate::store::format::segment::{
    FORMAT_VERSION_FIRST, Footer, HARD_STATE_BYTES, HardState, IndexEntry, Opening, digest_of_bytes,
    version_of_blocks,
};
use crate::store::read::scanner::{Found, Scanner};
use crate::store::segment::version::raise_version;
use crate::store::segment::{Base, file_name};
use crate::types::{EntryIndex, Index, SegmentId, Term, Timestamp};
use bytes::Bytes;
use std::io::IoSlice;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An entry to be put back: its header as it travels, and its body in pieces, all of it checked.
pub(crate) type BlockCopy = (BlockHeader, Vec<Bytes>);

/// Why an opening is not made of a segment before it.
const BEGINNING_LOST: Malformed = "the segment before ends in entries that were cut off, so nothing tells where this one began: \
                                   remove this node from the cluster, and add a new one with an empty directory";

/// What a hard state block takes in a file.
const HARD_STATE_STRIDE: usize = padded(BLOCK_HEADER_BYTES + HARD_STATE_BYTES);

/// Which file, and what is known of it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) number: u64,
    pub(crate) id: SegmentId,
    pub(crate) bytes: u32,
    /// What comes before its first block, if that is known from elsewhere.
    pub(crate) base: Option<Base>,
    /// Where its blocks end and what comes after them; of a segment that nothing follows, not known.
    pub(crate) end: Option<(Option<usize>, Base)>,
}

/// What is known at a place between two blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) raft: EntryIndex,
    pub(crate) term: Term,
    /// The next record; behind a command at least that, for a discard can move it.
    pub(crate) next: Index,
    pub(crate) exact: bool,
    timestamp: Timestamp,
    durable_upto: u32,
}

/// A hole in a segment.
#[derive(Clone, Debug)]
pub(crate) struct Gap {
    pub(crate) place: Place,
    /// From where to where; to an unknown end when the segment's last blocks are gone with the footer.
    pub(crate) from: usize,
    pub(crate) to: Option<usize>,
    before: Point,
    /// Whether that is the entry before the hole.
    basis: Basis,
    /// The last entry that what stands before the hole says is committed.
    committed: EntryIndex,
    /// The segment that an opening which is gone is made of.
    pub(crate) made_of: Option<u64>,
    /// The last entry that is missing; the one before the hole when none is.
    pub(crate) upto: EntryIndex,
    /// An entry at the end of the hole or just behind it, with its term: who has it too has the same entries before.
    pub(crate) anchor: (EntryIndex, Term),
    /// The next record behind the hole.
    next: Index,
    /// Where the block index says that blocks begin inside.
    indexed: Vec<IndexEntry>,
    /// Where headers of entries inside are still sound.
    seen: Vec<IndexEntry>,
    pub(crate) why: Malformed,
}

/// The end of a hole, and what stands behind it: as in [`Gap`].
struct Behind {
    to: Option<usize>,
    upto: EntryIndex,
    anchor: (EntryIndex, Term),
    next: Index,
}

/// Whether an entry is the one before a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basis {
    Sure,
    /// It stands in the segment before, which can have been cut off further ahead.
    Presumed,
    /// Others have another one there.
    Refuted,
}

/// Goes along a segment's blocks, a piece at a time.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) place: Place,
    file: Arc<dyn DiskFile>,
    scanner: Scanner,
    pub(crate) at: usize,
    before: Point,
    /// The last entry that the blocks so far say is committed.
    committed: EntryIndex,
    piece: usize,
    forgotten: usize,
}

/// How far a look got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// All was sound so far.
    More,
    /// The segment's blocks are sound to their end.
    Sound,
    /// The chain breaks at [`Probe::at`].
    Broken(Malformed),
}

impl Probe {
    /// A look at a segment from its first block on, in pieces of so many bytes.
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

    /// Looks at about one piece more.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn look(&mut self) -> Result<Look> {
        let stop = self.at + self.piece;
        if self.forgotten < stop {
            // What memory holds says nothing of the device.
            self.file.forget(self.forgotten as u64..stop as u64);
            self.forgotten = stop;
        }
        while self.at < stop {
            if self.is_at_end() {
                return Ok(Look::Sound);
            }
            match self.sound_block(self.at, self.before)? {
                Ok((header, after)) => {
                    self.committed = self.committed.max(self.commit_of(self.at)?);
                    self.at += header.stride();
                    self.before = after;
                }
                Err(why) => return Ok(Look::Broken(why)),
            }
        }
        Ok(Look::More)
    }

    /// Looks until something is to be said.
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

    /// Looks at the same place again: it was mended.
    pub(crate) fn again(&mut self) {
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

    /// The last entry that the block at `at`, which is sound, says is committed.
    fn commit_of(&mut self, at: usize) -> Result<EntryIndex> {
        let Found::Block(header, body) = self.scanner.block(at)? else { return Ok(EntryIndex(0)) };
        Ok(state_of(&header, body).map_or(EntryIndex(0), |state| state.commit))
    }

    /// The block at `at`, if it is sound and follows `before`, and what is known behind it.
    fn sound_block(
        &mut self,
        at: usize,
        before: Point,
    ) -> Result<std::result::Result<(BlockHeader, Point), Malformed>> {
        let header = match self.scanner.block(at)? {
            Found::Block(header, _) => header,
            Found::Nothing(why) => return Ok(Err(why)),
            Found::Limit => return Ok(Err("the segment ends before its last block")),
        };
        let beyond = matches!(self.place.end, Some((Some(end), _)) if at + header.stride() > end);
        if beyond {
            return Ok(Err("block runs over the end of what was written"));
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
                return Ok(Err("block does not follow the one before"));
            }
        }
        Ok(Ok((header, Point::behind(&header))))
    }

    /// What is wrong where [`Probe::look`] broke off. `None`: nothing sound stands behind, and nothing says that
    /// anything did: it is the end of the log.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn gap(&mut self, why: Malformed) -> Result<Option<Gap>> {
        let from = self.at;
        let upper = match self.place.end {
            Some((Some(end), _)) => end,
            _ => self.scanner.limit(),
        };
        let mut at = from + BLOCK_HEADER_BYTES;
        let mut sound = None;
        while at + BLOCK_HEADER_BYTES <= upper && sound.is_none() {
            if let Some(header) = self.candidate(at)? {
                sound = Some((at, header));
            }
            at += BLOCK_HEADER_BYTES;
        }
        let behind = match (sound, self.place.end) {
            (Some((at, h)), _) => {
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
            // Only the opening block is gone, as far as can be told from here.
            self.before = Point { raft: behind.upto, ..self.before };
        }
        let mut gap = Gap::new(self.place.clone(), (from, self.before), behind, why);
        (gap.committed, gap.seen) = (self.committed, seen);
        gap.keep_index(self.index()?);
        Ok(Some(gap))
    }

    /// The sound headers of entries in a hole that ends with entry `upto`.
    fn headers(&mut self, hole: Range<usize>, upto: EntryIndex) -> Result<Vec<IndexEntry>> {
        let mut seen: Vec<IndexEntry> = Vec::new();
        let mut at = hole.start;
        while at + BLOCK_HEADER_BYTES <= hole.end {
            if let Ok(h) = BlockHeader::parse(self.scanner.bytes(at, BLOCK_HEADER_BYTES)?, self.place.id)
                && h.kind.is_entry()
                && h.raft_index <= upto
                && h.raft_index > seen.last().map_or(self.before.raft, |e| e.raft_index)
            {
                let (first, raft_index, timestamp) = (h.first, h.raft_index, h.timestamp);
                seen.push(IndexEntry { first, raft_index, timestamp, offset: at as u32 });
            }
            at += BLOCK_HEADER_BYTES;
        }
        Ok(seen)
    }

    /// Whether a sound block at `at` can be where the log goes on behind a hole: it comes later than what stands
    /// before, no later than where the next segment begins, and something sound follows it, or nothing that was durable. (Sectors
    /// that were swapped hold sound blocks, too.)
    fn candidate(&mut self, at: usize) -> Result<Option<BlockHeader>> {
        let id = self.place.id;
        let head = self.scanner.bytes(at, BLOCK_HEADER_BYTES)?;
        let Ok(header) = BlockHeader::parse(head, id) else { return Ok(None) };
        let raft = if header.kind.is_entry() { self.before.raft.next() } else { self.before.raft };
        if header.kind == Kind::Opening || header.raft_index < raft || header.term < self.before.term {
            return Ok(None);
        }
        // Blocks that a conflict cut off stay in the file, behind the place where the next segment begins.
        if self.place.end.is_some_and(|(_, base)| header.raft_index > base.raft || header.term > base.term) {
            return Ok(None);
        }
        // Believed for its own place only.
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
        // A write that nothing proves can have been torn.
        Ok((follows || self.scanner.later(behind)?.durable_upto <= behind).then_some(header))
    }

    /// Whether a sound hard state block stands behind `at`.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn state_follows(&mut self, at: usize) -> Result<bool> {
        Ok(self.states(at)?.iter().any(|(is_whole, _)| *is_whole))
    }

    /// Terms and votes that the sound headers from `at` on tell of. The first: it is a hard state, which can be that of an
    /// opening; else only the term of a block is known.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn states(&mut self, at: usize) -> Result<Vec<(bool, HardState)>> {
        let (id, limit) = (self.place.id, self.scanner.limit());
        let mut at = at.next_multiple_of(BLOCK_HEADER_BYTES);
        let mut states = Vec::new();
        while at + BLOCK_HEADER_BYTES <= limit {
            if let Ok(header) = BlockHeader::parse(self.scanner.bytes(at, BLOCK_HEADER_BYTES)?, id) {
                let state = match self.scanner.block(at)? {
                    Found::Block(header, body) => state_of(&header, body),
                    _ => None,
                };
                let of_term = HardState { term: header.term, vote: 0, commit: EntryIndex(0) };
                states.push((state.is_some(), state.unwrap_or(of_term)));
            }
            at += BLOCK_HEADER_BYTES;
        }
        Ok(states)
    }

    /// The block index that the file holds, if it does and it is sound.
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

impl Point {
    fn behind(header: &BlockHeader) -> Self {
        Self {
            raft: header.raft_index,
            term: header.term,
            next: header.next_record(),
            exact: header.kind != Kind::Command,
            timestamp: header.timestamp,
            durable_upto: header.durable_upto,
        }
    }
}

impl Gap {
    /// A hole behind entry `before`, just before the entry `anchor`.
    #[cfg(all(test, feature = "sim", not(loom)))]
    pub(crate) fn of_entries(before: (EntryIndex, Term), anchor: (EntryIndex, Term)) -> Self {
        let place = Place { number: 1, id: SegmentId(1), bytes: 1 << 20, base: None, end: None };
        let next = Index(7);
        let before = Point {
            raft: before.0,
            term: before.1,
            next,
            exact: false,
            timestamp: Timestamp(0),
            durable_upto: 0,
        };
        let behind = Behind { to: Some(12288), upto: EntryIndex(anchor.0.0 - 1), anchor, next };
        Self::new(place, (8192, before), behind, "test")
    }

    fn new(place: Place, (from, before): (usize, Point), behind: Behind, why: Malformed) -> Self {
        let Behind { to, upto, anchor, next } = behind;
        let (basis, committed, made_of) = (Basis::Sure, EntryIndex(0), None);
        let (indexed, seen) = (Vec::new(), Vec::new());
        Self { place, from, to, before, basis, committed, made_of, upto, anchor, next, indexed, seen, why }
    }

    /// The last entry behind which this segment can have begun, if its opening is gone: all entries in it come later.
    pub(crate) fn latest_beginning(&self) -> EntryIndex {
        let entry = self.seen.iter().map(|e| EntryIndex(e.raft_index.0 - 1)).min();
        entry.map_or(self.upto, |entry| entry.min(self.upto))
    }

    /// The opening that is gone is made of what segment `number` says behind the entry before the hole. `committed`: as far
    /// as that segment says: no conflict cuts off what is committed. Unless the entry `is_sure`, or a block behind the hole
    /// repeats it, others have to say that it is that one: two logs that have the same entry are the same before it.
    pub(crate) fn begin_behind(&mut self, number: u64, committed: EntryIndex, is_sure: bool) {
        self.made_of = Some(number);
        self.committed = committed;
        let at_end = self.anchor == (self.before.raft, self.before.term);
        let is_sure = is_sure || at_end || self.before.raft <= committed;
        self.basis = if is_sure { Basis::Sure } else { Basis::Presumed };
    }

    /// The entry before the hole, if it is not known whether it is that one.
    pub(crate) fn presumed(&self) -> Option<EntryIndex> {
        (self.basis == Basis::Presumed).then_some(self.before.raft)
    }

    pub(crate) fn is_refuted(&self) -> bool {
        self.basis == Basis::Refuted
    }

    /// Another replica has this entry where one is [`Self::presumed`].
    pub(crate) fn compare(&mut self, header: &BlockHeader) {
        self.basis = if header.term == self.before.term { Basis::Sure } else { Basis::Refuted };
    }

    /// Whether the entry before the hole is surely that one, or one of these committed entries.
    pub(crate) fn is_founded(&self, committed: &[BlockHeader]) -> bool {
        let (raft, term) = (self.before.raft, self.before.term);
        self.basis == Basis::Sure || committed.iter().any(|h| (h.raft_index, h.term) == (raft, term))
    }

    /// The path of the file, for messages.
    pub(crate) fn path(&self, disk: &dyn Disk) -> PathBuf {
        disk.path().join(file_name(self.place.number))
    }

    /// The damage, as an error.
    pub(crate) fn error(&self, disk: &dyn Disk) -> Error {
        Error::corrupt(&self.path(disk), self.from as u64, self.why)
    }

    /// Blocks that are put back begin where `index` says that blocks begin, so that it stays true. A log that runs goes by
    /// the index in its memory; the file's can be gone.
    pub(crate) fn keep_index(&mut self, mut index: Vec<IndexEntry>) {
        let (from, to) = (self.from, self.to.unwrap_or(usize::MAX));
        index.retain(|e| (from + 1..to).contains(&(e.offset as usize)));
        self.indexed = index;
    }

    /// Whether it is the segment's opening block that is gone.
    pub(crate) fn is_opening(&self) -> bool {
        self.from == SEGMENT_HEADER_BYTES
    }

    /// The first entry that is missing; of one behind [`Self::upto`] there is nothing to fetch.
    pub(crate) fn first(&self) -> EntryIndex {
        self.before.raft.next()
    }

    /// The question what is committed from the entry before the hole through the one at its end. It is asked for committed
    /// entries alone, so no entry has its anchor. The one before the hole is sound, and asked for all the same, unless it is
    /// known committed: only if it is the committed one do the entries behind it belong to this log ([`Self::following`]). If
    /// the others have discarded it, that cannot be told, and nothing is replaced.
    pub(crate) fn rivals(&self) -> Self {
        // Nothing need ever be committed behind the hole.
        let asked = u64::from(!self.is_before_committed() || self.anchor.0 <= self.before.raft);
        let raft = EntryIndex(self.before.raft.0.saturating_sub(asked));
        let before = Point { raft, ..self.before };
        let upto = self.anchor.0.max(raft.next());
        Self { before, basis: Basis::Sure, upto, anchor: (upto, Term(u64::MAX)), ..self.clone() }
    }

    /// Whether the entry before the hole is known committed here. Where the log begins, there is none.
    fn is_before_committed(&self) -> bool {
        self.before.raft <= self.committed
    }

    /// Whether this entry, which is committed, says that the one at the end of the hole never was and never will be: it
    /// stands at the same index in another term, or before it in a later one.
    pub(crate) fn is_contradicted_by(&self, committed: &BlockHeader) -> bool {
        contradicts(committed, self.anchor)
    }

    /// Whether a segment that begins behind entry `base` holds nothing that is committed, by these committed entries. They
    /// contradict the end of the hole. The segment goes with it if they contradict its own beginning, or if it begins
    /// behind that end, and in no later term than they know: terms never decrease along a log.
    pub(crate) fn goes_with(&self, base: Base, committed: &[BlockHeader]) -> bool {
        let (end, term) = self.anchor;
        let committed_in = committed.iter().map(|header| header.term).max().unwrap_or_default();
        let is_behind =
            base.raft >= end && base.term >= term && (committed_in <= term || base.term < committed_in);
        is_behind || committed.iter().any(|header| contradicts(header, (base.raft, base.term)))
    }

    /// Of committed entries, in order, those that follow the one before the hole. None of them do if that one is not
    /// committed itself.
    pub(crate) fn applier<'a>(&self, committed: &'a [BlockCopy]) -> &'a [BlockCopy] {
        let term = |at: EntryIndex| committed.iter().find(|(h, _)| h.raft_index == at).map(|(h, _)| h.term);
        let follows = self.is_before_committed() || term(self.before.raft) == Some(self.before.term);
        let first = committed.iter().position(|(h, _)| h.raft_index == self.first());
        first.filter(|_| follows).and_then(|n| committed.get(n..)).unwrap_or_default()
    }

    /// The bytes of the hole, as far as its end is known.
    pub(crate) fn bytes(&self) -> usize {
        self.to.unwrap_or(self.place.bytes as usize).saturating_sub(self.from)
    }

    /// The record that the log goes on with behind the hole, for messages.
    pub(crate) fn records(&self) -> Range<Index> {
        self.before.next..self.next
    }

    /// Whether a hard state block can have stood in the hole besides these entries.
    pub(crate) fn may_hide_state(&self, spares: &[BlockCopy]) -> bool {
        let taken: usize = spares.iter().map(|(h, _)| h.stride()).sum();
        self.is_opening() || self.to.is_some_and(|to| to - self.from >= taken + HARD_STATE_STRIDE)
    }

    /// The bytes that belong into the hole. `spares` are all entries from [`Self::first`] through `upto`, `opening` is
    /// the segment's opening block if that is gone too; with `state`, a hard state block stands there as well if there
    /// is room besides.
    ///
    /// # Errors
    /// The entries are not those that stood there.
    pub(crate) fn fill(
        &self,
        opening: Option<&BlockCopy>,
        spares: &[BlockCopy],
        state: Option<HardState>,
    ) -> Result<Vec<u8>, Malformed> {
        if self.basis != Basis::Sure {
            return Err(BEGINNING_LOST);
        }
        if state.is_some() {
            // The log is not open, so nobody reads it, and the state needs the room between the entries.
            return self.fill_at(&self.indexed, opening, spares, state);
        }
        // Readers may hold these entries, through mappings: each goes back to its own place where that can be told. Sectors
        // that were swapped hold headers that are sound and out of place.
        let mut places: Vec<IndexEntry> = self.indexed.iter().chain(&self.seen).copied().collect();
        places.sort_by_key(|e| e.offset);
        places.dedup_by_key(|e| e.offset);
        let filled = self.fill_at(&places, opening, spares, state);
        filled.or_else(|_| self.fill_at(&self.indexed, opening, spares, state))
    }

    fn fill_at(
        &self,
        places: &[IndexEntry],
        opening: Option<&BlockCopy>,
        spares: &[BlockCopy],
        state: Option<HardState>,
    ) -> Result<Vec<u8>, Malformed> {
        let mut out = Filling { gap: self, bytes: Vec::new(), here: self.before };
        if self.is_opening() {
            let (header, body) = opening.ok_or("the opening block is missing")?;
            if header.kind != Kind::Opening || header.raft_index != self.before.raft {
                return Err("the opening block is not the one that stood there");
            }
            out.here.durable_upto = 0;
            out.block(header, body);
        }
        let mut indexed = places.iter().peekable();
        for (header, body) in spares {
            if header.raft_index != out.here.raft.next() || !header.kind.is_entry() {
                return Err("the entries do not follow each other");
            }
            if header.term < out.here.term || header.term > self.anchor.1 {
                return Err("an entry's term does not lie between those of its neighbours");
            }
            let follows =
                if out.here.exact { header.first == out.here.next } else { header.first >= out.here.next };
            if !follows {
                return Err("an entry's first record does not follow the one before");
            }
            // Where a block begins by the index, one has to: this one, or a marker before it.
            while let Some(at) = indexed.next_if(|e| {
                let at = e.offset as usize;
                let is_this = (e.raft_index, e.first) == (header.raft_index, header.first);
                at <= out.at() || is_this || e.raft_index < header.raft_index
            }) {
                out.here.next = header.first;
                out.marker_up_to(at.offset as usize)?;
            }
            out.block(header, body);
        }
        out.here.next = self.next;
        if out.here.raft != self.upto {
            return Err("entries are missing");
        }
        if self.anchor.0 == self.upto && self.anchor.1 != out.here.term {
            return Err("the last entry's term is not the one that the block behind it repeats");
        }
        let Some(to) = self.to else {
            let fits = out.at() <= data_limit(self.place.bytes as usize);
            return if fits { Ok(out.bytes) } else { Err("the entries take more room than there is") };
        };
        let room = to.checked_sub(out.at()).ok_or("the entries take more room than there is")?;
        if let Some(state) = state.filter(|_| room >= HARD_STATE_STRIDE) {
            let body = HardState { commit: state.commit.min(out.here.raft), ..state }.encode();
            out.position(Kind::HardState, &body);
        }
        for entry in indexed {
            out.marker_up_to(entry.offset as usize)?;
        }
        out.marker_up_to(to)?;
        Ok(out.bytes)
    }

    /// Writes what belongs into the hole, makes it durable, and reads it back from the device.
    ///
    /// # Errors
    /// `Io`; `Corrupt`: the device does not give back what was written.
    pub(crate) fn mend(&self, disk: &dyn Disk, bytes: &[u8]) -> Result<()> {
        let version = version_of_blocks(bytes, self.place.id);
        if version > FORMAT_VERSION_FIRST {
            // The header may have been lost, and put back before it was known what stands behind it.
            let path = self.path(disk);
            let file =
                disk.open(&file_name(self.place.number), true).map_err(|e| Error::io("open", &path, e))?;
            raise_version(&*file, &path, version)?;
        }
        write_differing(disk, self.place.number, self.from, bytes)
    }
}

/// The hard state that a block holds.
fn state_of(header: &BlockHeader, body: &[u8]) -> Option<HardState> {
    match header.kind {
        Kind::Opening => Opening::parse(body).ok().map(|opening| opening.hard_state),
        Kind::HardState => HardState::parse(body).ok(),
        _ => None,
    }
}

/// Whether this committed entry says that the one of this index and term never was committed and never will be.
fn contradicts(committed: &BlockHeader, (at, term): (EntryIndex, Term)) -> bool {
    let is_other = committed.raft_index == at && committed.term != term;
    is_other || committed.raft_index <= at && committed.term > term
}

/// Bytes of a hole as they come together.
struct Filling<'a> {
    gap: &'a Gap,
    bytes: Vec<u8>,
    here: Point,
}

impl Filling<'_> {
    fn at(&self) -> usize {
        self.gap.from + self.bytes.len()
    }

    fn block(&mut self, header: &BlockHeader, body: &[Bytes]) {
        let durable_upto = self.here.durable_upto;
        let header = BlockHeader { durable_upto, ..*header };
        self.bytes.extend_from_slice(&header.encode(self.gap.place.id));
        body.iter().for_each(|piece| self.bytes.extend_from_slice(piece));
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK_HEADER_BYTES), 0);
        self.here = Point { durable_upto, ..Point::behind(&header) };
    }

    fn position(&mut self, kind: Kind, body: &[u8]) {
        let header = BlockHeader {
            length: (BLOCK_HEADER_BYTES + body.len()) as u32,
            batch_count: 0,
            raft_index: self.here.raft,
            term: self.here.term,
            first: self.here.next,
            timestamp: self.here.timestamp,
            record_count: 0,
            durable_upto: 0,
            body_digest: digest_of_bytes(&[body]),
            kind,
        };
        self.block(&header, &[Bytes::copy_from_slice(body)]);
    }

    /// Fills up to an offset with a marker, if there is anything to fill.
    fn marker_up_to(&mut self, to: usize) -> Result<(), Malformed> {
        match to.checked_sub(self.at()) {
            Some(0) => Ok(()),
            Some(room) if room.is_multiple_of(BLOCK_HEADER_BYTES) => {
                self.position(Kind::Marker, &vec![0; room - BLOCK_HEADER_BYTES]);
                Ok(())
            }
            _ => Err("the entries take more room than there is"),
        }
    }
}

/// Writes the sectors of a range that are not as they should be, syncs, and reads them back.
pub(crate) fn write_differing(disk: &dyn Disk, number: u64, from: usize, wanted: &[u8]) -> Result<()> {
    let name = file_name(number);
    let path = disk.path().join(&name);
    let io = |doing: &'static str| {
        let path = path.clone();
        move |e| Error::io(doing, &path, e)
    };
    let file = disk.open(&name, true).map_err(io("open"))?;
    let mut there = vec![0; wanted.len()];
    file.read_at(from as u64, &mut there).map_err(io("read"))?;
    let mut at = 0;
    while at < wanted.len() {
        let end = ((from + at + 1).next_multiple_of(SECTOR_BYTES) - from).min(wanted.len());
        if there[at..end] != wanted[at..end] {
            let sector = [IoSlice::new(&wanted[at..end])];
            file.write_at((from + at) as u64, &sector).map_err(io("repair"))?;
        }
        at = end;
    }
    file.sync().map_err(io("sync"))?;
    file.forget(from as u64..(from + wanted.len()) as u64);
    file.read_at(from as u64, &mut there).map_err(io("read"))?;
    match there.iter().zip(wanted).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(n) => Err(Error::corrupt(&path, (from + n) as u64, "a repair did not reach the disk")),
    }
}
