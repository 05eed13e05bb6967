//! The store over a simulated disk, compared with a plain list of entries.

mod crashes;
mod model;
mod reading;
mod recovering;
mod sealed_files;
mod syncs;
mod truncations;

use super::recovery::{Survey, repair, survey};
use super::*;
use crate::disk::sim::{Call, Damage, Fault, Landed, SimDisk, Trouble};
use crate::error::ErrorKind;
use crate::inspect::{Event, Inspector};
use crate::record::batch::{BatchBuilder, Malformed};
use crate::store::segment::ReadMode;
use crate::types::{DirectoryId, LogId, Term, Timestamp};
use format::block::digest_of_batches;
use format::identity::{IDENTITY_FILE, Identity};
use format::segment::{HardState, Opening, digest_of_bytes};
use read::chain::Learn;
use read::cursor::Cursor;
use std::ops::ControlFlow;

pub(super) const SEGMENT_BYTES: u32 = 64 << 10;

pub(super) fn identity() -> Identity {
    Identity { log: LogId(7), directory: DirectoryId(8), created: Timestamp(9), follows: false, joins: false }
}

/// An entry as the store should return it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) raft: EntryIndex,
    pub(super) term: Term,
    pub(super) kind: Kind,
    pub(super) first: Index,
    pub(super) body: Vec<u8>,
    pub(super) end: Base,
}

/// A log as a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plain {
    /// The position before the oldest entry that was pushed since the last jump.
    pub(super) base: Base,
    /// The log's first index there.
    pub(super) first: Index,
    pub(super) entries: Vec<Entry>,
}

impl Plain {
    pub(super) fn end(&self) -> Base {
        self.entries.last().map_or(self.base, |e| e.end)
    }

    /// The position after entry `raft`.
    pub(super) fn after(&self, raft: u64) -> Base {
        match raft - self.base.raft.0 {
            0 => self.base,
            n => self.entries[n as usize - 1].end,
        }
    }

    /// The log's first index as of entry `raft`.
    pub(super) fn first_at(&self, raft: EntryIndex) -> Index {
        let discards = self.entries.iter().rfind(|e| e.kind == Kind::Command && e.raft <= raft);
        discards.map_or(self.first, |e| discard_of(&e.body))
    }
}

/// The states that a crash may leave.
#[derive(Clone, Debug)]
pub(super) struct Legal {
    /// The durable log.
    pub(super) durable: Plain,
    /// The log with everything pushed or about to be pushed.
    pub(super) now: Plain,
    /// How many entries `now` had when the log continued at another position, if that is not durable yet.
    pub(super) turned: Option<usize>,
}

/// A store and its expected contents.
pub(super) struct Rig {
    pub(super) disk: SimDisk,
    pub(super) store: Store,
    pub(super) now: Plain,
    pub(super) term: Term,
    pub(super) commit: EntryIndex,
    durable: Plain,
    turned: Option<usize>,
    /// The states that the disk may have after each mark of its history.
    pub(super) legal: Vec<Legal>,
}

/// Learns the contents of a log since its last opening.
#[derive(Clone, Debug, Default)]
pub(super) struct Learnt {
    pub(super) end: Base,
    pub(super) first: Index,
    pub(super) commit: EntryIndex,
    pub(super) base: Base,
    pub(super) seen: Vec<(EntryIndex, Term)>,
    /// Discards that are not known to be committed.
    pending: Vec<(EntryIndex, Index)>,
}

impl Learn for Learnt {
    fn learn(&mut self, header: &BlockHeader, body: &[u8]) -> Result<Base, Malformed> {
        if header.kind == Kind::Opening {
            let opening = Opening::parse(body)?;
            let base = Base { raft: opening.base_raft, term: opening.base_term, next: header.first };
            *self = Self {
                end: base,
                first: opening.log_first,
                commit: opening.hard_state.commit,
                base,
                ..Self::default()
            };
            return Ok(base);
        }
        let expected = if header.kind.is_entry() { self.end.raft.next() } else { self.end.raft };
        if header.raft_index != expected || header.first != self.end.next || header.term < self.end.term {
            return Err("block does not follow");
        }
        self.end = Base { raft: header.raft_index, term: header.term, next: header.next_record() };
        match header.kind {
            Kind::HardState => self.commit = HardState::parse(body)?.commit,
            // In these tests a command is a discard.
            Kind::Command => {
                let first = discard_of(body);
                self.pending.push((header.raft_index, first));
                self.end.next = self.end.next.max(first);
            }
            _ => {}
        }
        self.commit_to(self.commit);
        if header.kind.is_entry() {
            self.seen.push((header.raft_index, header.term));
        }
        Ok(self.end)
    }

    fn first(&self) -> Index {
        self.first
    }

    fn commit_to(&mut self, raft: EntryIndex) {
        self.commit = self.commit.max(raft);
        for (_, first) in self.pending.extract_if(.., |(at, _)| *at <= raft) {
            self.first = self.first.max(first);
        }
    }

    fn commit(&self) -> EntryIndex {
        self.commit
    }

    fn fresh_learner(&self) -> Box<dyn Learn + '_> {
        Box::new(Self::default())
    }
}

pub(super) fn segments_on(disk: &SimDisk) -> Arc<Segments> {
    Arc::new(Segments::new(Arc::new(disk.clone()), ReadMode::Read, VecDeque::new()))
}

impl Rig {
    /// Makes a new log in term 1.
    pub(super) fn new(disk: SimDisk) -> Self {
        let arc: Arc<dyn Disk> = Arc::new(disk.clone());
        drop(arc.create(IDENTITY_FILE).unwrap());
        identity().write(&*arc).unwrap();
        let allocator = Allocator::new(arc.clone(), identity().log, SEGMENT_BYTES, 1, Vec::new());
        allocator.go_unaided();
        let base = Base { raft: EntryIndex(0), term: Term(1), next: Index(1) };
        let opening = opening(base, Term(1), Index(1), EntryIndex(0));
        let store = Store::create(arc, segments_on(&disk), Arc::new(allocator), opening).unwrap();
        let empty = Plain { base, first: Index(1), entries: Vec::new() };
        Self::with(disk, store, empty, Term(1), EntryIndex(0))
    }

    pub(super) fn with(disk: SimDisk, store: Store, now: Plain, term: Term, commit: EntryIndex) -> Self {
        let durable = now.clone();
        let mut rig = Self { disk, store, now, term, commit, durable, turned: None, legal: Vec::new() };
        rig.mark();
        rig
    }

    /// Notes in the disk's history which states it may have from now on.
    fn mark(&mut self) {
        let (durable, now) = (self.durable.clone(), self.now.clone());
        self.legal.push(Legal { durable, now, turned: self.turned });
        self.disk.mark(self.legal.len() as u64 - 1);
    }

    pub(super) fn end(&self) -> Base {
        self.now.end()
    }

    pub(super) fn after(&self, raft: u64) -> Base {
        self.now.after(raft)
    }

    fn entry(&mut self, kind: Kind, records: u32, body: Vec<u8>, digest: u32, skip_to: Option<Index>) {
        let before = self.end();
        let raft = before.raft.next();
        let mut next = before.next.plus(u64::from(records));
        next = next.max(skip_to.unwrap_or(next));
        let end = Base { raft, term: self.term, next };
        if !self.store.fits(body.len()) {
            self.sync();
            self.roll(before);
        }
        let header = BlockHeader {
            length: 0,
            batch_count: u32::from(kind == Kind::Data),
            raft_index: raft,
            term: self.term,
            first: before.next,
            timestamp: Timestamp(raft.0 * 10),
            record_count: records,
            durable_upto: 0,
            body_digest: digest,
            kind,
        };
        self.store.push(NewBlock::new(header, vec![Bytes::from(body.clone())], end));
        self.now.entries.push(Entry { raft, term: self.term, kind, first: before.next, body, end });
    }

    /// Pushes an entry of one record of `bytes` bytes.
    pub(super) fn data(&mut self, bytes: usize) {
        let fill = (self.term.0 * 31 + self.end().raft.0) as u8;
        let batch = BatchBuilder::new().push(&vec![fill; bytes]).unwrap().build().unwrap();
        let digest = digest_of_batches([batch.header().crc]);
        self.entry(Kind::Data, 1, batch.as_bytes().to_vec(), digest, None);
    }

    pub(super) fn no_op(&mut self) {
        self.entry(Kind::NoOp, 0, Vec::new(), digest_of_bytes(&[]), None);
    }

    /// Pushes a discard of records below `first`. Beyond the end it moves the end.
    pub(super) fn discard(&mut self, first: Index) {
        let body = [1u64.to_le_bytes(), first.0.to_le_bytes()].concat();
        let digest = digest_of_bytes(&[&body]);
        self.entry(Kind::Command, 0, body, digest, Some(first));
    }

    pub(super) fn hard_state(&mut self) {
        let hard = HardState { term: self.term, vote: 0, commit: self.commit };
        let body = hard.encode().to_vec();
        if self.store.fits(body.len()) {
            self.store.push(position(Kind::HardState, self.end(), body));
        }
    }

    pub(super) fn marker(&mut self) {
        self.store.push(position(Kind::Marker, self.end(), Vec::new()));
    }

    /// Rolls; the entries after `base` are truncated.
    pub(super) fn roll(&mut self, base: Base) {
        self.try_roll(base).unwrap();
    }

    pub(super) fn try_roll(&mut self, base: Base) -> Result<()> {
        let now = &self.now;
        let inside = base.raft >= now.base.raft && base.raft <= self.end().raft;
        let jump = !inside || self.after(base.raft.0) != base;
        // A jump goes to a position that other replicas have committed and discarded.
        let (first, commit) = if jump {
            (now.first_at(self.end().raft).max(base.next), base.raft)
        } else {
            (now.first_at(base.raft), self.commit)
        };
        self.store.roll(opening(base, self.term, first, commit), 0, Purpose::Metadata)?;
        let before = self.now.entries.len();
        if jump {
            self.now = Plain { base, first, entries: Vec::new() };
            self.commit = commit;
        } else {
            self.now.entries.truncate((base.raft.0 - self.now.base.raft.0) as usize);
        }
        if jump || before > self.now.entries.len() {
            self.turned = Some(self.now.entries.len());
        }
        Ok(())
    }

    pub(super) fn write(&mut self) {
        self.mark();
        self.store.write().unwrap();
    }

    pub(super) fn sync(&mut self) {
        self.write();
        self.store.sync().unwrap();
        self.is_durable(self.now.clone());
    }

    pub(super) fn is_durable(&mut self, log: Plain) {
        (self.durable, self.turned) = (log, None);
        self.mark();
    }

    pub(super) fn commit(&mut self, raft: u64) {
        self.commit = EntryIndex(raft);
        self.store.commit(self.commit);
    }

    /// Compares everything that the store returns with the list.
    pub(super) fn check(&self) {
        check(&self.store, &self.now, self.commit);
    }
}

/// Compares everything that a store returns with the list.
pub(super) fn check(store: &Store, log: &Plain, commit: EntryIndex) {
    check_archive(&store.archive(), log.base, &log.entries);
    check_segments(&store.segments, log.end());
    let oldest = store.archive().first();
    let committed = log.entries.iter().filter(|e| e.raft > oldest.raft && e.raft <= commit);
    let wanted: Vec<_> = committed.filter(|e| e.kind == Kind::Data).map(|e| (e.raft, e.first)).collect();
    let seen: Vec<_> = read(&store.segments).iter().map(|h| (h.raft_index, h.first)).collect();
    assert_eq!(seen, wanted, "the blocks that readers see");
}

/// The data blocks that a reader finds.
pub(super) fn read(segments: &Arc<Segments>) -> Vec<BlockHeader> {
    let mut cursor = cursor(segments);
    let mut seen = Vec::new();
    while let Some(found) = cursor.find(|h| h.kind == Kind::Data).unwrap() {
        cursor.load(&found, |_| {}).unwrap();
        seen.push(found.header);
    }
    seen
}

pub(super) fn cursor(segments: &Arc<Segments>) -> Cursor {
    let data = segments.open(&segments.oldest().unwrap()).unwrap();
    Cursor::new(segments.clone(), data, SEGMENT_HEADER_BYTES, 0)
}

/// Checks that the archive has exactly these entries, from its first one on.
pub(super) fn check_archive(archive: &Archive, base: Base, entries: &[Entry]) {
    let first = archive.first();
    assert!(first.raft >= base.raft);
    let skipped = (first.raft.0 - base.raft.0) as usize;
    assert_eq!(if skipped == 0 { base } else { entries[skipped - 1].end }, first);
    let here = &entries[skipped..];
    assert_eq!(archive.term(first.raft).unwrap(), Some(first.term));
    for entry in here {
        let (header, body) = archive.body(entry.raft).unwrap().unwrap();
        assert_eq!((header.raft_index, header.term, header.kind), (entry.raft, entry.term, entry.kind));
        assert_eq!((header.first, &body[..]), (entry.first, &entry.body[..]));
        assert_eq!(archive.term(entry.raft).unwrap(), Some(entry.term));
        assert_eq!(archive.header(entry.raft).unwrap(), Some(header));
        if header.record_count > 0 {
            let raft = EntryIndex(entry.raft.0 - 1);
            let before = Base { raft, term: archive.term(raft).unwrap().unwrap(), next: entry.first };
            for record in [entry.first, Index(header.next_record().0 - 1)] {
                assert_eq!(archive.before_record(record).unwrap(), Some(before));
            }
        }
    }
    let end = here.last().map_or(first, |e| e.end);
    assert_eq!(archive.body(end.raft.next()).unwrap(), None);
    assert_eq!(archive.before_record(end.next).unwrap(), None);
    assert_eq!(archive.term(end.raft.next()).unwrap(), None);
    if first.raft.0 > 0 {
        assert_eq!(archive.header(first.raft).unwrap(), None);
        assert_eq!(archive.term(EntryIndex(first.raft.0 - 1)).unwrap(), None);
    }
    let all = archive.headers(first.raft.next(), end.raft.next(), u64::MAX).unwrap();
    let terms: Vec<_> = all.iter().map(|h| (h.raft_index, h.term)).collect();
    assert_eq!(terms, here.iter().map(|e| (e.raft, e.term)).collect::<Vec<_>>());
}

/// Checks that each segment begins where the previous one ends, and that the last one ends at `end`.
pub(super) fn check_segments(segments: &Segments, end: Base) {
    let list = segments.snapshot();
    for pair in list.windows(2) {
        assert_eq!(pair[0].end(), pair[1].base);
        assert!(pair[0].number < pair[1].number);
    }
    assert!(list.iter().all(|s| s.readable() <= s.data_end()));
    assert_eq!(list.last().unwrap().end(), end);
}

pub(super) fn opening(base: Base, term: Term, first: Index, commit: EntryIndex) -> NewBlock {
    let opening = Opening {
        base_raft: base.raft,
        base_term: base.term,
        log_first: first,
        hard_state: HardState { term, vote: 0, commit },
        configuration: b"members".to_vec(),
        sessions: vec![0; 8],
        options: Vec::new(),
        logs: Vec::new(),
        objects: Vec::new(),
    };
    position(Kind::Opening, base, opening.encode())
}

fn position(kind: Kind, end: Base, body: Vec<u8>) -> NewBlock {
    let header = BlockHeader {
        length: 0,
        batch_count: 0,
        raft_index: end.raft,
        term: end.term,
        first: end.next,
        timestamp: Timestamp(end.raft.0 * 10),
        record_count: 0,
        durable_upto: 0,
        body_digest: digest_of_bytes(&[&body]),
        kind,
    };
    NewBlock::new(header, vec![Bytes::from(body)], end)
}

/// The operand of a discard.
fn discard_of(body: &[u8]) -> Index {
    Index(u64::from_le_bytes(body[8..].try_into().unwrap()))
}

/// Checks every byte of the files, and expects no damage.
pub(super) fn verify(disk: &SimDisk) {
    let mut faults = Vec::new();
    let report = Inspector::open_on(Arc::new(disk.clone())).walk(&mut |event| {
        // A crash can leave a gap below files that were prepared and never begun.
        if let Event::Fault(fault) = event
            && (fault.bytes, fault.raft) != (0, None)
        {
            faults.push(fault.clone());
        }
        ControlFlow::Continue(())
    });
    report.unwrap();
    assert_eq!(faults, []);
}

/// Opens the log on a disk like `open` does. Also returns what was learned.
pub(super) fn reopen(disk: &SimDisk) -> Result<(Store, Learnt)> {
    let arc: Arc<dyn Disk> = Arc::new(disk.clone());
    for name in disk.list().unwrap().iter().filter(|n| n.ends_with(".tmp")) {
        disk.remove(name).unwrap();
    }
    let mut learnt = Learnt::default();
    let mut survey = survey(&*arc, identity(), &mut learnt)?;
    let (file, unproven) = repair(&*arc, &mut survey)?;
    let Survey { segments: list, unsealed, leftovers, .. } = survey;
    let last = list.back().unwrap().clone();
    for leftover in leftovers {
        disk.remove(&leftover.name).unwrap();
    }
    let segments = Arc::new(Segments::new(arc.clone(), ReadMode::Read, list));
    let allocator = Allocator::new(arc.clone(), identity().log, SEGMENT_BYTES, last.number + 1, Vec::new());
    allocator.go_unaided();
    unsealed.into_iter().for_each(|segment| allocator.seal(segment));
    let committed = learnt.commit;
    let resume = Resume { segment: last, file, unproven, committed };
    Ok((Store::new(arc, segments, Arc::new(allocator), resume)?, learnt))
}

/// Finds which of the legal states a crash left, or panics.
pub(super) fn judge(store: &Store, learnt: &Learnt, legal: &Legal) -> Plain {
    let archive = store.archive();
    let (first, end) = (archive.first(), store.segments.snapshot().last().unwrap().end());
    let cut = |log: &Plain| {
        let mut log = log.clone();
        log.entries.retain(|e| e.raft <= end.raft);
        log
    };
    let is =
        |log: &Plain| log.end() == end && log.base.raft <= first.raft && log.after(first.raft.0) == first;
    let now = cut(&legal.now);
    let kept = legal.turned.unwrap_or(legal.durable.entries.len());
    let log = if is(&now) && now.entries.len() >= kept {
        now
    } else {
        assert!(legal.turned.is_some() && is(&legal.durable), "from {first:?} to {end:?}: {legal:?}");
        legal.durable.clone()
    };
    assert_eq!(learnt.end, end);
    assert!(first.raft <= learnt.commit || first.raft.0 == 0, "{first:?} is beyond the commit {learnt:?}");
    assert!(first.next <= log.first_at(learnt.commit), "records are missing below {first:?}");
    check(store, &log, learnt.commit);
    log
}

/// A synced log of `n` entries of 2 KiB over a few segments.
pub(super) fn log_of(n: u64) -> Rig {
    let disk = SimDisk::default();
    disk.set_chance(1);
    let mut rig = Rig::new(disk);
    for _ in 0..n {
        rig.data(2000);
        rig.sync();
    }
    rig
}
