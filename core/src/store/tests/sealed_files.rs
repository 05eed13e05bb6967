//! Tests of the files that are passed on: only what is committed, and the same bytes for as long as they have one checksum.

use super::*;
use crate::store::read::sealed_file::SealedFile;
use std::collections::BTreeMap;

fn opened(rig: &Rig, number: u64) -> SealedFile {
    SealedFile::open(&rig.store.segments, number).unwrap().expect("a sealed segment")
}

fn bytes_of(file: &SealedFile) -> Vec<u8> {
    file.read(0..file.bytes()).unwrap()
}

/// The bytes of all sealed segments, by their numbers.
fn all(rig: &Rig) -> BTreeMap<u64, Vec<u8>> {
    let sealed = rig.store.segments.sealed();
    sealed.iter().map(|(segment, ..)| (segment.number, bytes_of(&opened(rig, segment.number)))).collect()
}

fn on_disk(rig: &Rig, number: u64) -> Vec<u8> {
    let mut bytes = vec![0; SEGMENT_BYTES as usize];
    Disk::open(&rig.disk, &file_name(number), false).unwrap().read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn file_is_that_of_the_log_and_zeros() {
    let mut rig = log_of(100);
    rig.commit(100);
    rig.store.allocator.help();
    let sealed = rig.store.segments.sealed();
    assert_eq!(sealed.len(), rig.store.segments.len() - 1, "the last one still grows");
    assert!(sealed.len() >= 2);
    for (segment, _, data_end) in sealed {
        let (file, there) = (opened(&rig, segment.number), on_disk(&rig, segment.number));
        let bytes = bytes_of(&file);
        assert_eq!(bytes.len(), there.len());
        assert!(bytes[..data_end] == there[..data_end], "segment {}", segment.number);
        assert!(
            bytes[data_end..].iter().all(|byte| *byte == 0)
                && there[data_end..].iter().any(|byte| *byte != 0)
        );
        assert_eq!(file.known_sum(), None);
        let sum = crate::record::crc::crc32c(&bytes);
        assert_eq!((file.sum().unwrap(), file.known_sum()), (sum, Some(sum)));
        assert_eq!(opened(&rig, segment.number).known_sum(), Some(sum), "it is kept");
        let end = bytes.len() as u64;
        for range in
            [0..0, 0..1, 4095..4097, 4096..4160, 5000..5001, 7000..40_000, 100..end, end - 1..end, 9..end + 9]
        {
            let part = range.start as usize..range.end.min(end) as usize;
            assert!(file.read(range.clone()).unwrap() == bytes[part], "{range:?}");
        }
        assert!(file.read(end..end + 5).unwrap().is_empty());
    }
    let newest = rig.store.segments.newest().unwrap().number;
    assert!(
        [0, newest, newest + 1].iter().all(|n| SealedFile::open(&rig.store.segments, *n).unwrap().is_none())
    );
}

#[test]
fn truncation_changes_no_bytes_that_were_passed_on() {
    for help in [false, true] {
        let mut rig = log_of(100);
        rig.commit(40);
        if help {
            rig.store.allocator.help();
        }
        let before = all(&rig);
        let sums: Vec<_> = before.keys().map(|number| opened(&rig, *number).sum().unwrap()).collect();
        assert!(!before.is_empty() && before.len() < rig.store.segments.len() - 1);
        assert!(rig.store.segments.sealed().iter().all(|(_, end, _)| end.raft <= EntryIndex(40)));
        // A new leader has other entries from here on.
        rig.term = Term(2);
        rig.roll(rig.after(75));
        let cut = rig.store.segments.holding_entry(EntryIndex(75)).unwrap();
        rig.data(50);
        rig.sync();
        assert_eq!(all(&rig), before, "nothing more is committed");
        rig.commit(76);
        let after = all(&rig);
        assert!(before.iter().all(|(number, bytes)| after[number] == *bytes));
        let again: Vec<_> = before.keys().map(|number| opened(&rig, *number).sum().unwrap()).collect();
        assert_eq!(sums, again);
        // The segment that was cut has its entries up to the cut, and nothing of those behind it.
        let (data_end, bytes) = (cut.data_end(), &after[&cut.number]);
        assert_eq!(cut.end().raft, EntryIndex(75));
        assert!(bytes[data_end..].iter().all(|byte| *byte == 0));
        assert!(on_disk(&rig, cut.number)[data_end..].iter().any(|byte| *byte != 0), "the file has more");
        assert!(rig.store.segments.sealed().iter().any(|(_, end, _)| end.raft == EntryIndex(75)));
    }
}

#[test]
fn damage_is_not_passed_on_and_a_repair_ends_what_was_begun() {
    let mut rig = log_of(100);
    rig.commit(100);
    rig.store.allocator.help();
    let number = rig.store.segments.oldest().unwrap().number;
    let file = opened(&rig, number);
    let (sum, bytes) = (file.sum().unwrap(), bytes_of(&file));
    let disk = Disk::open(&rig.disk, &file_name(number), true).unwrap();
    let flip = |by: u8| disk.write_at(30_000, &[std::io::IoSlice::new(&[bytes[30_000] ^ by])]).unwrap();
    flip(4);
    assert_eq!(file.read(29_000..31_000).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(file.read(0..file.bytes()).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(file.read(4096..20_000).unwrap() == bytes[4096..20_000], "other blocks are sound");
    assert!(file.read(50_000..60_000).unwrap() == bytes[50_000..60_000]);
    let damage = rig.store.segments.damage();
    damage.begin_repair();
    assert_eq!(file.read(4096..20_000).unwrap_err().kind(), ErrorKind::Unavailable);
    let during = opened(&rig, number);
    assert_eq!((during.known_sum(), during.sum().unwrap_err().kind()), (None, ErrorKind::Corrupt));
    flip(0);
    damage.mark_repaired(number, &(30_000..30_001), &(Index(1)..Index(2)));
    assert_eq!(during.read(4096..20_000).unwrap_err().kind(), ErrorKind::Unavailable);
    let after = opened(&rig, number);
    assert_eq!((after.known_sum(), after.sum().unwrap()), (None, sum));
    assert!(bytes_of(&after) == bytes);
}

#[test]
fn file_stays_while_it_is_read_and_is_gone_afterwards() {
    let mut rig = log_of(100);
    rig.commit(100);
    let number = rig.store.segments.oldest().unwrap().number;
    let file = opened(&rig, number);
    let bytes = bytes_of(&file);
    rig.store.drop_below(Index(90), EntryIndex(100));
    rig.store.allocator.help();
    assert!(SealedFile::open(&rig.store.segments, number).unwrap().is_none());
    assert!(bytes_of(&file) == bytes);
}
