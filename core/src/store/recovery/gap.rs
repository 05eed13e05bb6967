//! Gap: a break in the chain of a segment's sound blocks: where it begins and ends, which entries are missing, and how
//! they are restored in place. A [`Probe`] finds it.
//!
//! ```text
//!   ... | sound block | ???????????????????????? | sound block that follows | ...
//!              before ^ range.start    range.end ^ after
//! ```
//!
//! Both sides show which entries are missing: those after `before`, up to the one that `after` follows. Their bytes
//! must fill the gap, because an entry's block is the same on every replica, except for the header's salt and
//! `durable_upto`. Blocks that are not entries may have been between them. A marker fills their space, after the
//! entries, or wherever the segment's block index says that a block begins.
//!
//! Writing in place does not endanger sound bytes. Only sectors with wrong bytes are written, and a sector is written
//! whole or not at all. A crash in the middle leaves a gap again, which is found again.
//!
//! A lost opening block is rebuilt from the contents of the previous segment. A conflict can have truncated that
//! segment at an unknown point. So its last entry there counts only once another replica has it too, or it is known to
//! be committed ([`Gap::begin_behind`]). A segment that is older than a jump shows nothing of the opening, and can be there again after a
//! crash. The entries from its end on then have no room in the gap ([`Gap::moved_behind`]).
//!
//! Invariants:
//! - only ranges that failed their checks are written, and only with bytes that were checked;
//! - `durable_upto` of restored blocks is that of the block before them, so it never claims too much.
//!
//! Must not know: which replica has the entries, what commands mean.

mod probe;

pub(crate) use self::probe::{Look, Probe};

use crate::disk::{Disk, SECTOR_BYTES};
use crate::error::{Error, Result};
use crate::record::batch::Malformed;
use crate::store::format::block::{BLOCK_HEADER_BYTES, BlockHeader, Kind, padded};
use crate::store::format::geometry::{SEGMENT_HEADER_BYTES, data_limit};
use crate::store::format::segment::{
    FORMAT_VERSION_FIRST, HARD_STATE_BYTES, HardState, IndexEntry, version_of_blocks,
};
use crate::store::segment::version::raise_version;
use crate::store::segment::{Base, file_name};
use crate::types::{EntryIndex, Index, SegmentId, Term, Timestamp};
use bytes::Bytes;
use std::io::IoSlice;
use std::ops::Range;
use std::path::PathBuf;

/// An entry to restore: its header as it is sent, and its body in pieces, fully checked.
pub(crate) type BlockCopy = (BlockHeader, Vec<Bytes>);

/// The reason why an opening is not rebuilt from an earlier segment.
const BEGINNING_LOST: Malformed = "the previous segment ends in truncated entries, so the start of this one is not known: \
                                   remove this node from the cluster, and add a new one with an empty directory";

/// The bytes that a hard state block takes in a file.
const HARD_STATE_STRIDE: usize = padded(BLOCK_HEADER_BYTES + HARD_STATE_BYTES);

/// A segment file, and what is known about it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) number: u64,
    pub(crate) id: SegmentId,
    pub(crate) bytes: u32,
    /// The position before its first block, if that is known from elsewhere.
    pub(crate) base: Option<Base>,
    /// The end of its blocks and the position after them; not known for the last segment.
    pub(crate) end: Option<(Option<usize>, Base)>,
}

/// The known state at a position between two blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) raft: EntryIndex,
    pub(crate) term: Term,
    /// The next record; after a command it is a lower bound, because a discard can move it.
    pub(crate) next: Index,
    pub(crate) exact: bool,
    timestamp: Timestamp,
    durable_upto: u32,
}

/// A gap in a segment.
#[derive(Clone, Debug)]
pub(crate) struct Gap {
    pub(crate) place: Place,
    /// The range of offsets; the end is unknown if the segment's last blocks and its footer are lost.
    pub(crate) from: usize,
    pub(crate) to: Option<usize>,
    before: Point,
    /// Whether that is really the entry before the gap.
    basis: Basis,
    /// The last committed entry according to the blocks before the gap.
    committed: EntryIndex,
    /// The segment from which a lost opening is rebuilt.
    pub(crate) made_of: Option<u64>,
    /// The last missing entry; the one before the gap if none is missing.
    pub(crate) upto: EntryIndex,
    /// An entry at the end of the gap or just after it, with its term: a replica that has it too has the same entries
    /// before it.
    pub(crate) anchor: (EntryIndex, Term),
    /// The next record after the gap.
    next: Index,
    /// The blocks inside the gap according to the block index.
    indexed: Vec<IndexEntry>,
    /// The entries inside the gap whose headers are still sound.
    seen: Vec<IndexEntry>,
    pub(crate) why: Malformed,
}

/// The end of a gap and what follows it, like in [`Gap`].
struct Behind {
    to: Option<usize>,
    upto: EntryIndex,
    anchor: (EntryIndex, Term),
    next: Index,
}

/// Whether an entry is the one before a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basis {
    Sure,
    /// It is in the previous segment, which may have been truncated before it.
    Presumed,
    /// Other replicas have another entry at this index.
    Refuted,
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
    /// A gap after entry `before`, just before the entry `anchor`.
    #[cfg(all(test, feature = "testing", not(loom)))]
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

    /// The last entry after which this segment can have begun, if its opening is lost: all its entries come later.
    pub(crate) fn latest_beginning(&self) -> EntryIndex {
        let entry = self.seen.iter().map(|e| EntryIndex(e.raft_index.0 - 1)).min();
        entry.map_or(self.upto, |entry| entry.min(self.upto))
    }

    /// Rebuilds a lost opening from the contents of segment `number` after the entry before the gap. `committed`: the
    /// last committed entry according to that segment; committed entries are never truncated. Unless the entry
    /// `is_sure`, or a block after the gap repeats it, other replicas must confirm it: two logs that have the same
    /// entry are the same before it.
    pub(crate) fn begin_behind(&mut self, number: u64, committed: EntryIndex, is_sure: bool) {
        self.made_of = Some(number);
        self.committed = committed;
        let at_end = self.anchor == (self.before.raft, self.before.term);
        let is_sure = is_sure || at_end || self.before.raft <= committed;
        self.basis = if is_sure { Basis::Sure } else { Basis::Presumed };
    }

    /// The same gap of a lost opening, if the segment began behind this entry.
    pub(crate) fn moved_behind(&self, entry: &BlockHeader) -> Self {
        Self { before: Point::behind(entry), basis: Basis::Sure, ..self.clone() }
    }

    /// Whether blocks with these headers fit in the gap. False also if its end is not known.
    pub(crate) fn has_room_for<'a>(&self, blocks: impl Iterator<Item = &'a BlockHeader>) -> bool {
        let taken: usize = blocks.map(BlockHeader::stride).sum();
        self.to.is_some_and(|to| self.from + taken <= to)
    }

    /// The entry before the gap, if it must be confirmed.
    pub(crate) fn presumed(&self) -> Option<EntryIndex> {
        (self.basis == Basis::Presumed).then_some(self.before.raft)
    }

    pub(crate) fn is_refuted(&self) -> bool {
        self.basis == Basis::Refuted
    }

    /// Compares the [presumed](Self::presumed) entry with another replica's entry at the same index.
    pub(crate) fn compare(&mut self, header: &BlockHeader) {
        self.basis = if header.term == self.before.term { Basis::Sure } else { Basis::Refuted };
    }

    /// Whether the entry before the gap is certain, or is one of these committed entries.
    pub(crate) fn is_founded(&self, committed: &[BlockHeader]) -> bool {
        let (raft, term) = (self.before.raft, self.before.term);
        self.basis == Basis::Sure || committed.iter().any(|h| (h.raft_index, h.term) == (raft, term))
    }

    /// The path of the file, for messages.
    pub(crate) fn path(&self, disk: &dyn Disk) -> PathBuf {
        disk.path().join(file_name(self.place.number))
    }

    /// The damage as an error.
    pub(crate) fn error(&self, disk: &dyn Disk) -> Error {
        Error::corrupt(&self.path(disk), self.from as u64, self.why)
    }

    /// Sets the block index by which restored blocks are placed, so that the index stays right. A running log uses the
    /// index in its memory; the file's can be lost.
    pub(crate) fn keep_index(&mut self, mut index: Vec<IndexEntry>) {
        let (from, to) = (self.from, self.to.unwrap_or(usize::MAX));
        index.retain(|e| (from + 1..to).contains(&(e.offset as usize)));
        self.indexed = index;
    }

    /// Whether the segment's opening block is lost.
    pub(crate) fn is_opening(&self) -> bool {
        self.from == SEGMENT_HEADER_BYTES
    }

    /// The first missing entry. If it is after [`Self::upto`], nothing has to be fetched.
    pub(crate) fn first(&self) -> EntryIndex {
        self.before.raft.next()
    }

    /// The request for the committed entries from the one before the gap through the one at its end. It asks only for
    /// committed entries, so no entry matches its anchor. The entry before the gap is sound, but is requested too,
    /// unless it is known to be committed: only if it is the committed one do the entries after it belong to this
    /// log. If the other replicas have discarded it, this stays unknown, and nothing is replaced.
    pub(crate) fn rivals(&self) -> Self {
        // Entries after the gap may never be committed.
        let asked = u64::from(!self.is_before_committed() || self.anchor.0 <= self.before.raft);
        let raft = EntryIndex(self.before.raft.0.saturating_sub(asked));
        let before = Point { raft, ..self.before };
        let upto = self.anchor.0.max(raft.next());
        Self { before, basis: Basis::Sure, upto, anchor: (upto, Term(u64::MAX)), ..self.clone() }
    }

    /// Whether the entry before the gap is known to be committed here. There is none at the log's beginning.
    fn is_before_committed(&self) -> bool {
        self.before.raft <= self.committed
    }

    /// Whether this committed entry shows that the one at the end of the gap was never committed and never will be: it
    /// has the same index and another term, or a lower index and a later term.
    pub(crate) fn is_contradicted_by(&self, committed: &BlockHeader) -> bool {
        contradicts(committed, self.anchor)
    }

    /// Whether, according to these committed entries, a segment that begins after entry `base` contains nothing
    /// committed. The entries contradict the end of the gap. They also exclude the segment if they contradict its own
    /// start, or if it begins after that end and in no later term than theirs: terms never decrease along a log.
    pub(crate) fn goes_with(&self, base: Base, committed: &[BlockHeader]) -> bool {
        let (end, term) = self.anchor;
        let committed_in = committed.iter().map(|header| header.term).max().unwrap_or_default();
        let is_behind =
            base.raft >= end && base.term >= term && (committed_in <= term || base.term < committed_in);
        is_behind || committed.iter().any(|header| contradicts(header, (base.raft, base.term)))
    }

    /// Of committed entries, in order, those that follow the one before the gap. None of them do if that one is not
    /// committed itself.
    pub(crate) fn entries_after_gap<'a>(&self, committed: &'a [BlockCopy]) -> &'a [BlockCopy] {
        let term = |at: EntryIndex| committed.iter().find(|(h, _)| h.raft_index == at).map(|(h, _)| h.term);
        let follows = self.is_before_committed() || term(self.before.raft) == Some(self.before.term);
        let first = committed.iter().position(|(h, _)| h.raft_index == self.first());
        first.filter(|_| follows).and_then(|n| committed.get(n..)).unwrap_or_default()
    }

    /// The bytes of the gap, as far as its end is known.
    pub(crate) fn bytes(&self) -> usize {
        self.to.unwrap_or(self.place.bytes as usize).saturating_sub(self.from)
    }

    /// The records in the gap, for messages.
    pub(crate) fn records(&self) -> Range<Index> {
        self.before.next..self.next
    }

    /// Whether a hard state block can have been in the gap in addition to these entries.
    pub(crate) fn may_hide_state(&self, spares: &[BlockCopy]) -> bool {
        let taken: usize = spares.iter().map(|(h, _)| h.stride()).sum();
        self.is_opening() || self.to.is_some_and(|to| to - self.from >= taken + HARD_STATE_STRIDE)
    }

    /// Returns the bytes that fill the gap. `spares` are all entries from [`Self::first`] through `upto`; `opening` is
    /// the segment's opening block if that is lost too. With `state`, a hard state block is added if there is room for
    /// it.
    ///
    /// # Errors
    /// The entries are not those that were in the gap.
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
            // The log is not open, so there are no readers, and the state needs the room between the entries.
            return self.fill_at(&self.indexed, opening, spares, state);
        }
        // Readers may have mapped these entries: each is restored to its own position if that is known. Swapped sectors
        // contain sound headers at wrong positions.
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
                return Err("the opening block is not the one that was there");
            }
            out.here.durable_upto = 0;
            out.block(header, body);
        }
        let mut indexed = places.iter().peekable();
        for (header, body) in spares {
            if header.raft_index != out.here.raft.next() || !header.kind.is_entry() {
                return Err("the entries are not consecutive");
            }
            if header.term < out.here.term || header.term > self.anchor.1 {
                return Err("an entry's term is not between those of its neighbours");
            }
            let follows =
                if out.here.exact { header.first == out.here.next } else { header.first >= out.here.next };
            if !follows {
                return Err("an entry's first record does not follow the previous entry");
            }
            // If the index says that a block begins here, one must: this one, or a marker before it.
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
            return Err("the last entry's term differs from the one that the next block repeats");
        }
        let Some(to) = self.to else {
            let fits = out.at() <= data_limit(self.place.bytes as usize);
            return if fits { Ok(out.bytes) } else { Err("the entries need more room than the gap has") };
        };
        let room = to.checked_sub(out.at()).ok_or("the entries need more room than the gap has")?;
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

    /// Writes the bytes of the gap, makes them durable, and reads them back from the device.
    ///
    /// # Errors
    /// `Io`; `Corrupt`: the device does not return the bytes that were written.
    pub(crate) fn rewrite(&self, disk: &dyn Disk, bytes: &[u8]) -> Result<()> {
        let version = version_of_blocks(bytes, self.place.id);
        if version > FORMAT_VERSION_FIRST {
            // The header may have been lost, and restored before the blocks after it were known.
            let path = self.path(disk);
            let file =
                disk.open(&file_name(self.place.number), true).map_err(|e| Error::io("open", &path, e))?;
            raise_version(&*file, &path, version)?;
        }
        write_differing(disk, self.place.number, self.from, bytes)
    }
}

/// Whether this committed entry shows that the entry with this index and term was never committed and never will be.
fn contradicts(committed: &BlockHeader, (at, term): (EntryIndex, Term)) -> bool {
    let is_other = committed.raft_index == at && committed.term != term;
    is_other || committed.raft_index <= at && committed.term > term
}

/// The bytes of a gap while they are being assembled.
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
        let here = &self.here;
        let header =
            BlockHeader::without_records(kind, (here.raft, here.term), here.next, here.timestamp, body);
        self.block(&header, &[Bytes::copy_from_slice(body)]);
    }

    /// Fills the space up to an offset with a marker, if there is any.
    fn marker_up_to(&mut self, to: usize) -> Result<(), Malformed> {
        match to.checked_sub(self.at()) {
            Some(0) => Ok(()),
            Some(room) if room.is_multiple_of(BLOCK_HEADER_BYTES) => {
                self.position(Kind::Marker, &vec![0; room - BLOCK_HEADER_BYTES]);
                Ok(())
            }
            _ => Err("the entries need more room than the gap has"),
        }
    }
}

/// Writes those sectors of a range that have wrong bytes, syncs, and reads them back.
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
        Some(n) => Err(Error::corrupt(
            &path,
            (from + n) as u64,
            "a repair was not written: the bytes that were read back differ; check the disk",
        )),
    }
}
