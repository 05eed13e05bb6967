//! The walk over logs that these tests encode byte by byte, so that it is tested against the format and not against
//! the engine.

use super::*;
use crate::record::batch::BatchBuilder;
use crate::store::format::block::{BLOCK_HEADER_BYTES, digest_of_batches, padded};
use crate::store::format::block::{BlockHeader, Kind};
use crate::store::format::geometry::{FOOTER_BYTES, SEGMENT_HEADER_BYTES};
use crate::store::format::segment::Opening;
use crate::store::format::segment::{Footer, IndexEntry, SegmentHeader, digest_of_bytes, encode_index};
use crate::types::{EntryIndex, Index, LogId, SegmentId, Term, Timestamp};
use proptest::prelude::*;
use std::fs;
use std::path::PathBuf;

const SEGMENT_BYTES: usize = 64 << 10;
const LOG: LogId = LogId(77);

/// Writes segments into a directory, one after another.
struct Scribe {
    dir: tempfile::TempDir,
    number: u64,
    image: Vec<u8>,
    at: usize,
    durable: usize,
    raft: u64,
    next: u64,
    /// Offset, raft index and first record of each block of the current segment.
    blocks: Vec<(usize, u64, u64)>,
}

impl Scribe {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut scribe =
            Self { dir, number: 0, image: vec![], at: 0, durable: 0, raft: 0, next: 1, blocks: vec![] };
        let identity = Identity {
            log: LOG,
            directory: crate::types::DirectoryId(1),
            created: Timestamp(1),
            follows: false,
            joins: false,
        };
        fs::write(scribe.dir.path().join(IDENTITY_FILE), identity.encode()).unwrap();
        scribe.begin();
        scribe
    }

    fn id(&self) -> SegmentId {
        SegmentId(1000 + self.number)
    }

    fn begin(&mut self) {
        self.number += 1;
        let header = SegmentHeader {
            log: LOG,
            number: self.number,
            id: self.id(),
            bytes: SEGMENT_BYTES as u32,
            version: 1,
        };
        self.image = header.encode();
        self.image.resize(SEGMENT_BYTES, 0);
        (self.at, self.durable) = (SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES);
        self.blocks.clear();
        let opening = Opening {
            base_raft: EntryIndex(self.raft),
            log_first: Index(1),
            sessions: vec![0; 8],
            ..Opening::default()
        };
        self.other(Kind::Opening, &opening.encode());
    }

    fn block(&mut self, kind: Kind, body: &[u8], batches: u32, records: u32, digest: u32) {
        if kind.is_entry() {
            self.raft += 1;
        }
        let header = BlockHeader {
            length: (BLOCK_HEADER_BYTES + body.len()) as u32,
            batch_count: batches,
            raft_index: EntryIndex(self.raft),
            term: Term(1),
            first: Index(self.next),
            timestamp: Timestamp(1_700_000_000_000 + self.raft),
            record_count: records,
            durable_upto: self.durable as u32,
            body_digest: digest,
            kind,
        };
        self.blocks.push((self.at, self.raft, self.next));
        let head = header.encode(self.id());
        self.image[self.at..self.at + BLOCK_HEADER_BYTES].copy_from_slice(&head);
        let body_at = self.at + BLOCK_HEADER_BYTES;
        self.image[body_at..body_at + body.len()].copy_from_slice(body);
        self.at += padded(header.length as usize);
        self.next += u64::from(records);
    }

    fn other(&mut self, kind: Kind, body: &[u8]) {
        self.block(kind, body, 0, 0, digest_of_bytes(&[body]));
    }

    /// Adds a data block of one batch; it is durable before the next one is written.
    fn data(&mut self, records: &[&[u8]]) {
        let mut builder = BatchBuilder::new();
        for record in records {
            builder.push(record).unwrap();
        }
        let batch = builder.build().unwrap();
        self.durable = self.at;
        self.block(
            Kind::Data,
            batch.as_bytes(),
            1,
            records.len() as u32,
            digest_of_batches([batch.header().crc]),
        );
    }

    fn marker(&mut self) {
        self.durable = self.at;
        self.other(Kind::Marker, b"");
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.path().join(file_name(number))
    }

    fn save(&self) {
        fs::write(self.path(self.number), &self.image).unwrap();
    }

    fn seal(&mut self) {
        let entries: Vec<IndexEntry> = (self.blocks.iter())
            .map(|(offset, raft, first)| IndexEntry {
                first: Index(*first),
                raft_index: EntryIndex(*raft),
                timestamp: Timestamp(1_700_000_000_000 + raft),
                offset: *offset as u32,
            })
            .collect();
        let (index, index_crc) = encode_index(&entries);
        let index_offset = SEGMENT_BYTES - FOOTER_BYTES - index.len();
        let footer = Footer {
            number: self.number,
            id: self.id(),
            base_raft: EntryIndex(self.blocks[0].1),
            base_term: Term(1),
            first: Index(self.blocks[0].2),
            next: Index(self.next),
            last_raft: EntryIndex(self.raft),
            last_term: Term(1),
            first_timestamp: Timestamp(1),
            last_timestamp: Timestamp(1_700_000_000_000 + self.raft),
            data_end: self.at as u32,
            index_offset: index_offset as u32,
            index_count: entries.len() as u32,
            index_crc,
        };
        self.image[index_offset..SEGMENT_BYTES - FOOTER_BYTES].copy_from_slice(&index);
        self.image[SEGMENT_BYTES - FOOTER_BYTES..].copy_from_slice(&footer.encode());
    }

    /// Three segments, sealed, begun and prepared: records 1 to 5 and 6 to 10, in blocks of 2, 2 and 1.
    fn sample() -> Self {
        let mut scribe = Self::new();
        for n in 0..2 {
            scribe.data(&[b"alpha", b"beta"]);
            scribe.data(&[b"gamma", b""]);
            scribe.data(&[&[b'x'; 100]]);
            if n == 0 {
                scribe.seal();
                scribe.save();
                scribe.begin();
            }
        }
        scribe.marker();
        scribe.save();
        let header = SegmentHeader {
            log: LOG,
            number: 3,
            id: SegmentId(1003),
            bytes: SEGMENT_BYTES as u32,
            version: 1,
        };
        let mut image = header.encode();
        image.resize(SEGMENT_BYTES, 0);
        fs::write(scribe.path(3), image).unwrap();
        scribe
    }

    fn walk(&self) -> (Report, Vec<Fault>) {
        walk(Inspector::open(self.dir.path()).unwrap())
    }

    fn spoil(&self, number: u64, offset: usize, change: impl Fn(&mut [u8])) {
        let mut image = fs::read(self.path(number)).unwrap();
        change(&mut image[offset..]);
        fs::write(self.path(number), image).unwrap();
    }
}

fn walk(inspector: Inspector) -> (Report, Vec<Fault>) {
    let mut faults = Vec::new();
    let report = inspector.walk(&mut |event| {
        if let Event::Fault(fault) = event {
            faults.push(fault.clone());
        }
        ControlFlow::Continue(())
    });
    (report.unwrap(), faults)
}

#[test]
fn sound_log_has_no_faults_and_everything_is_counted() {
    let scribe = Scribe::sample();
    let (report, faults) = scribe.walk();
    assert_eq!(faults, []);
    assert_eq!((report.segments, report.blocks, report.batches, report.records), (3, 9, 6, 10));
    assert_eq!(report.bytes, 3 * SEGMENT_BYTES as u64);
    assert_eq!((report.first, report.last), (Some(Index(1)), Some(Index(10))));
    assert_eq!(report.tail, None);
    assert_eq!(Inspector::open(scribe.dir.path()).unwrap().bytes().unwrap(), report.bytes);
}

#[test]
fn blocks_unpack_to_what_was_written() {
    let scribe = Scribe::sample();
    let (mut records, mut states, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
    let report = Inspector::open(scribe.dir.path()).unwrap().walk(&mut |event| {
        match event {
            Event::Segment(segment) => states.push(segment.state),
            Event::Block(block) => {
                kinds.push(block.kind());
                if let Content::Batches(batches) = block.content().unwrap() {
                    records.extend(batches.iter().flat_map(|b| b.records().unwrap()));
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    });
    assert_eq!(report.unwrap().records as usize, records.len());
    assert_eq!(records[..4], [b"alpha".to_vec(), b"beta".to_vec(), b"gamma".to_vec(), b"".to_vec()]);
    assert_eq!(states, [SegmentState::Sealed, SegmentState::Begun, SegmentState::Prepared]);
    assert_eq!(kinds[..5], ["opening", "data", "data", "data", "opening"]);
    assert_eq!(kinds[8], "marker");
}

#[test]
fn walk_continues_after_bad_blocks_and_names_the_lost_records() {
    let scribe = Scribe::sample();
    let (second, third) = (scribe.blocks[2], scribe.blocks[3]);
    scribe.spoil(2, second.0 + 110, |b| b[0] ^= 1); // in a batch
    scribe.spoil(2, third.0 + 20, |b| b[0] ^= 1); // in a block header
    let (report, faults) = scribe.walk();
    assert_eq!((report.corrupt, report.harmless, report.records), (2, 0, 7));
    assert_eq!(faults[0].offset, (second.0 + BLOCK_HEADER_BYTES) as u64, "the batch, not the block");
    assert_eq!(faults[0].raft, Some((EntryIndex(5), EntryIndex(5))));
    assert_eq!(faults[0].records, Some((Index(8), Index(9))));
    assert!(faults[0].to_string().ends_with("raft index 5, records 8 to 9"), "{}", faults[0]);
    assert_eq!(faults[1].offset, third.0 as u64);
    assert_eq!(faults[1].raft, Some((EntryIndex(6), EntryIndex(6))));
    assert_eq!(faults[1].records, Some((Index(10), Index(10))));
}

/// A damaged header costs no record as long as the segment's id is known from elsewhere.
#[test]
fn blocks_after_a_damaged_header_are_read() {
    for (number, at, records, costs) in [(2, 20, 10, None), (1, 50, 10, None), (2, 50, 5, Some((6, 10)))] {
        let mut scribe = Scribe::sample();
        fs::remove_file(scribe.path(3)).unwrap();
        scribe.begin(); // gives segment 2, which has no footer, a successor
        scribe.save();
        scribe.spoil(number, at, |b| b[0] ^= 1);
        let (report, faults) = scribe.walk();
        assert_eq!((report.records, faults.len()), (records, 1), "{faults:?}");
        assert!(faults[0].what.contains("segment header checksum does not match"), "{faults:?}");
        assert_eq!(faults[0].records, costs.map(|(a, b)| (Index(a), Index(b))));
    }
}

/// Nothing after the last block says that it was durable: a crash can have torn it.
#[test]
fn torn_tail_is_not_corruption() {
    let mut scribe = Scribe::new();
    scribe.data(&[b"kept"]);
    scribe.data(&[b"torn by the crash"]);
    scribe.save();
    let last = scribe.blocks[2].0;
    scribe.spoil(1, last + 80, |b| b[0] ^= 1);
    let (report, faults) = scribe.walk();
    assert_eq!(faults, []);
    assert_eq!(report.last, Some(Index(1)));
    let tail = report.tail.unwrap();
    assert_eq!((tail.offset, tail.bytes), (last as u64, (scribe.at - last) as u64));
}

/// A later block does not prove an earlier one, but the offset that it says was durable does.
#[test]
fn only_durable_upto_makes_a_bad_block_corruption() {
    for (proven, corrupt) in [(false, 0), (true, 1)] {
        let mut scribe = Scribe::new();
        scribe.data(&[b"first"]);
        let bad = scribe.at;
        scribe.data(&[b"second"]);
        let durable = scribe.durable;
        scribe.data(&[b"third"]);
        if !proven {
            // The same block again, written while the second was still being written.
            (scribe.at, scribe.raft, scribe.next) = (scribe.blocks[3].0, scribe.raft - 1, scribe.next - 1);
            scribe.durable = durable;
            scribe.other(Kind::Command, &[[1, 0, 0, 0, 0, 0, 0, 0]; 2].concat());
        }
        scribe.save();
        scribe.spoil(1, bad + 80, |b| b[0] ^= 1);
        let (report, faults) = scribe.walk();
        assert_eq!(report.corrupt, corrupt, "{faults:?}");
        assert_eq!(report.tail.is_some(), !proven);
    }
}

#[test]
fn missing_foreign_short_and_misnamed_files_are_reported() {
    let reported = |what: &str, change: &dyn Fn(&Scribe)| {
        let mut scribe = Scribe::sample();
        fs::remove_file(scribe.path(3)).unwrap();
        scribe.begin();
        scribe.data(&[b"more"]);
        scribe.marker();
        scribe.save();
        assert_eq!(scribe.walk().1, []);
        change(&scribe);
        let (report, faults) = scribe.walk();
        assert!(report.corrupt > 0, "{what}");
        assert!(faults[0].to_string().contains(what), "{what}: {faults:?}");
        (report, faults)
    };
    let (_, faults) = reported("the segment is missing", &|s| fs::remove_file(s.path(2)).unwrap());
    assert_eq!(faults[0].records, Some((Index(6), Index(10))));
    reported("this is segment 1", &|s| {
        fs::copy(s.path(1), s.path(2)).unwrap();
    });
    reported("belongs to another log", &|s| {
        s.spoil(2, 0, |b| {
            let header = SegmentHeader {
                log: LogId(5),
                number: 2,
                id: SegmentId(1),
                bytes: SEGMENT_BYTES as u32,
                version: 1,
            };
            b[..SEGMENT_HEADER_BYTES].copy_from_slice(&header.encode());
        });
    });
    reported("has 5000 bytes", &|s| {
        let file = fs::OpenOptions::new().write(true).open(s.path(2)).unwrap();
        file.set_len(5000).unwrap();
    });
    let identity = |s: &Scribe| s.dir.path().join(IDENTITY_FILE);
    reported("identity is missing", &|s| fs::remove_file(identity(s)).unwrap());
    reported("identity cannot be read", &|s| fs::write(identity(s), [7; 512]).unwrap());
    reported("segment header is cut off", &|s| fs::write(s.path(2), b"").unwrap());
    reported("blocks are missing from here on", &|s| {
        s.spoil(2, SEGMENT_HEADER_BYTES + 384, |b| b.fill(0)); // the next segment proves them
    });
}

#[test]
fn newer_format_is_refused_and_not_called_corrupt() {
    let scribe = Scribe::sample();
    scribe.spoil(1, 0, |b| {
        b[16] = 9;
        let crc = crate::record::crc::crc32c(&b[12..SEGMENT_HEADER_BYTES]).to_le_bytes();
        b[8..12].copy_from_slice(&crc);
    });
    let error =
        Inspector::open(scribe.dir.path()).unwrap().walk(&mut |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn walk_of_one_segment_and_early_break() {
    let scribe = Scribe::sample();
    let (report, faults) = walk(Inspector::open(scribe.dir.path()).unwrap().only(2));
    assert_eq!((report.segments, report.records, faults.len()), (1, 5, 0));
    let missing =
        Inspector::open(scribe.dir.path()).unwrap().only(9).walk(&mut |_| ControlFlow::Continue(()));
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    let mut seen = 0;
    let broken = Inspector::open(scribe.dir.path()).unwrap().walk(&mut |_| {
        seen += 1;
        if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(broken.is_ok());
    assert_eq!(seen, 3);
    let empty = tempfile::tempdir().unwrap();
    let error = Inspector::open(empty.path()).unwrap().walk(&mut |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// The blocks that lead to its opening were written after the walk over the segment before had ended.
#[test]
fn segment_begun_during_the_walk_is_no_fault() {
    for is_sealed in [false, true] {
        let mut scribe = Scribe::sample();
        let mut ends = 0;
        let mut faults = Vec::new();
        let inspector = Inspector::open(scribe.dir.path()).unwrap();
        let report = inspector.walk(&mut |event| {
            match event {
                Event::SegmentEnd(_) => ends += 1,
                Event::Fault(fault) => faults.push(fault.clone()),
                _ => {}
            }
            if ends == 2 && scribe.number == 2 {
                scribe.data(&[b"meanwhile"]);
                scribe.save();
                scribe.begin();
                scribe.data(&[b"elsewhere"]);
                if is_sealed {
                    scribe.seal();
                }
                scribe.save();
            }
            ControlFlow::Continue(())
        });
        assert_eq!(faults, []);
        let report = report.unwrap();
        assert_eq!((report.segments, report.records, scribe.number), (3, 10, 3));
        assert_eq!(scribe.walk().0.records, 12);
    }
}

/// The survey read a segment before it was begun, and the next one after that: a writer had filled the first meanwhile. It was
/// taken for an empty one, and the next one for one that nothing leads to.
#[test]
fn segment_filled_during_the_survey_is_walked() {
    let mut scribe = Scribe::sample();
    let inspector = Inspector::open(scribe.dir.path()).unwrap();
    let mut found = inspector.survey().unwrap();
    assert!(found[2].unbegun && found.len() == 3);
    for record in [b"meanwhile", b"elsewhere"] {
        scribe.data(&[record]);
        scribe.seal();
        scribe.save();
        scribe.begin();
    }
    scribe.data(&[b"and on"]);
    scribe.save();
    found.push(header::Found::read(&*inspector.disk, scribe.number).unwrap().unwrap());
    let mut faults = Vec::new();
    let report = inspector.walk_over(&found, &mut |event| {
        if let Event::Fault(fault) = event {
            faults.push(fault.clone());
        }
        ControlFlow::Continue(())
    });
    assert_eq!((faults, scribe.number), (vec![], 4));
    assert_eq!(report.unwrap().records, scribe.walk().0.records);
}

/// One bit of every byte that the log wrote is flipped: the walk reports each.
#[test]
fn flipped_bit_anywhere_is_reported() {
    let scribe = Scribe::sample();
    let index_bytes = 4 * crate::store::format::geometry::INDEX_ENTRY_BYTES;
    let header = (0..64).chain((64..SEGMENT_HEADER_BYTES).step_by(97)); // a sample of its zeros
    let first = header.clone().chain(SEGMENT_HEADER_BYTES..scribe.blocks[4].0);
    let first = first.chain(SEGMENT_BYTES - FOOTER_BYTES - index_bytes..SEGMENT_BYTES);
    // The marker proves everything before it; nothing proves the marker.
    let second = header.chain(SEGMENT_HEADER_BYTES..scribe.blocks[4].0);
    for (number, places) in [(1, first.collect::<Vec<_>>()), (2, second.collect())] {
        let good = fs::read(scribe.path(number)).unwrap();
        for at in places {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            fs::write(scribe.path(number), &bad).unwrap();
            let (report, faults) = scribe.walk();
            assert!(!faults.is_empty(), "byte {at} of segment {number} was not reported");
            assert_eq!(report.corrupt + report.harmless, faults.len() as u64);
        }
        fs::write(scribe.path(number), &good).unwrap();
    }
}

proptest! {
    /// The walk over arbitrary bytes ends and does not panic.
    #[test]
    fn garbage_never_panics(
        number in 1u64..=3,
        at in 0usize..SEGMENT_BYTES,
        garbage in proptest::collection::vec(any::<u8>(), 1..600),
        cut in proptest::option::of(0u64..SEGMENT_BYTES as u64),
    ) {
        let scribe = Scribe::sample();
        scribe.spoil(number, at, |b| {
            let n = garbage.len().min(b.len());
            b[..n].copy_from_slice(&garbage[..n]);
        });
        if let Some(cut) = cut {
            fs::OpenOptions::new().write(true).open(scribe.path(number)).unwrap().set_len(cut).unwrap();
        }
        let result = Inspector::open(scribe.dir.path()).unwrap().walk(&mut |event| {
            if let Event::Block(block) = event {
                let _ = block.content();
            }
            ControlFlow::Continue(())
        });
        prop_assert!(result.is_ok());
    }
}
