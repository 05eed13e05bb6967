//! Bytes that change on the disk, and missing files: detected, with the file and the offset, or harmless. Damaged
//! bytes are never returned, acknowledged records are never truncated silently, and no damage causes a panic.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use chiplog::disk::SECTOR_BYTES;
use chiplog::disk::sim::{Call, Damage, Image, SimDisk};
use chiplog::{BatchBuilder, Codec, ErrorKind, Index, Log, Start};
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::{open, record};

const SEGMENT_HEADER_BYTES: u64 = 4096;
const SEGMENT_BYTES: u64 = 64 << 10;
/// The length of the markers after the last block.
const MARKERS_BYTES_MAX: u64 = 512 + 64;

/// A closed log, and its contents.
struct Sample {
    image: Image,
    first: Index,
    records: BTreeMap<Index, Vec<u8>>,
    /// The possible values of `last` after opening; more than one where the end is not proven.
    last: RangeInclusive<Index>,
}

fn segment(number: u64) -> String {
    format!("{number:020}.seg")
}

/// The records of `sizes` are appended one by one, each in its own block. With `proven`, the log is closed properly.
fn sample(sizes: &[usize], proven: bool) -> Sample {
    let disk = SimDisk::default();
    let log = open(&disk).unwrap();
    let mut records = BTreeMap::new();
    for (n, size) in sizes.iter().enumerate() {
        let bytes = record(n as u64 + 1, *size);
        let mut builder = BatchBuilder::new();
        builder.codec(if n % 5 == 4 { Codec::Lz4 } else { Codec::None }).push(&bytes).unwrap();
        let index = log.append(&builder.build().unwrap()).unwrap().first;
        records.insert(index, bytes);
    }
    let last = Index(sizes.len() as u64);
    let image = if proven {
        log.close().unwrap();
        disk.crash(|_| 0).visible()
    } else {
        disk.power_off();
        disk.visible()
    };
    let from = if proven { last } else { last.previous() };
    Sample { image, first: Index(1), records, last: from..=last }
}

/// A few hundred bytes, in one segment.
fn small(proven: bool) -> Sample {
    sample(&[5, 0, 300, 17, 64, 900], proven)
}

/// More than three segments, the first ones sealed.
fn large() -> Sample {
    sample(&[3000; 60], true)
}

/// The result of an opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Found {
    /// The log refused to open.
    Refused,
    /// It opened, and some read failed.
    OnReading,
    /// Every record was read.
    Harmless,
    /// The unproven end was truncated.
    Cut,
}

/// Opens a damaged image; everything that can be read has to be right.
fn examine(sample: &Sample, image: &Image, what: &dyn Fn() -> String) -> Found {
    let disk = SimDisk::new(image.clone());
    let log = match open(&disk) {
        Ok(log) => log,
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Corrupt, "{}: {e:?}", what());
            let text = e.to_string();
            assert!(text.contains("/sim"), "{}: names no file: {text}", what());
            assert!(text.contains("offset"), "{}: names no offset: {text}", what());
            return Found::Refused;
        }
    };
    let status = log.status();
    assert_eq!(status.first_index, sample.first, "{}", what());
    assert!(
        sample.last.contains(&status.last_index),
        "{}: proven records were truncated; the last is {}",
        what(),
        status.last_index
    );
    let whole =
        read_all(sample, &log, status.last_index, what) & read_each(sample, &log, status.last_index, what);
    let appended = log.append(b"goes on");
    if whole {
        assert_eq!(appended.as_ref().ok(), Some(&status.last_index.next()), "{}: {appended:?}", what());
    }
    match log.close() {
        Err(e) => panic!("{}: {e:?}", what()),
        Ok(()) if !whole => Found::OnReading,
        Ok(()) if status.last_index < *sample.last.end() => Found::Cut,
        Ok(()) => Found::Harmless,
    }
}

/// Reads from the first record until the end or the first error. True if there was no error.
fn read_all(sample: &Sample, log: &Log, last: Index, what: &dyn Fn() -> String) -> bool {
    let mut next = sample.first;
    let outcome = log.reader(Start::First).and_then(|mut reader| {
        while let Some(record) = reader.next_record()? {
            assert_eq!((record.index, record.data), (next, &sample.records[&next][..]), "{}", what());
            next = next.next();
        }
        Ok(())
    });
    match outcome {
        Ok(()) => {
            assert_eq!(next, last.next(), "{}: the reader stops early", what());
            true
        }
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Corrupt, "{}: {e:?}", what());
            assert!(e.to_string().contains(".seg") && e.to_string().contains("offset"), "{}: {e}", what());
            false
        }
    }
}

/// Reads every record alone. True if there was no error.
fn read_each(sample: &Sample, log: &Log, last: Index, what: &dyn Fn() -> String) -> bool {
    let mut whole = true;
    for index in (sample.first.0..=last.0).step_by(7).map(Index) {
        match log.read(index) {
            Ok(record) => {
                assert_eq!(&record.data[..], &sample.records[&index][..], "{}: record {index}", what())
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corrupt, "{}: {e:?}", what());
                whole = false;
            }
        }
    }
    whole
}

/// Examines every damage of a list, on all cores; counts the results.
fn examine_all(sample: &Sample, name: &str, damages: &[Damage]) -> BTreeMap<Found, Vec<Damage>> {
    let next = AtomicUsize::new(0);
    let found = std::sync::Mutex::new(BTreeMap::<Found, Vec<Damage>>::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some(damage) = damages.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut image = sample.image.clone();
                    assert!(image.damage(name, damage), "{damage:?} is outside {name}");
                    let how = if image == sample.image {
                        Found::Harmless
                    } else {
                        examine(sample, &image, &|| format!("{damage:?} in {name}"))
                    };
                    found.lock().unwrap().entry(how).or_default().push(damage.clone());
                }
            });
        }
    });
    found.into_inner().unwrap()
}

/// Every bit of some bytes.
fn bits(bytes: std::ops::Range<u64>) -> Vec<Damage> {
    (bytes.start * 8..bytes.end * 8).map(|bit| Damage::FlipBit { bit }).collect()
}

/// One bit of every `step`-th byte.
fn bytes(range: std::ops::Range<u64>, step: usize) -> Vec<Damage> {
    range.step_by(step).map(|at| Damage::FlipBit { bit: at * 8 + at % 8 }).collect()
}

/// Where a segment's contents end: the last byte that is not zero, before the footer's region.
fn used(sample: &Sample, number: u64) -> u64 {
    let file = sample.image.file(&segment(number)).unwrap();
    let data = &file[..(SEGMENT_BYTES - 256) as usize];
    data.iter().rposition(|b| *b != 0).unwrap() as u64 + 1
}

fn count(found: &BTreeMap<Found, Vec<Damage>>, how: Found) -> usize {
    found.get(&how).map_or(0, Vec::len)
}

#[test]
fn every_bit_of_a_small_log_is_detected_or_harmless() {
    let sample = small(true);
    let end = used(&sample, 1);
    let found = examine_all(&sample, &segment(1), &bits(0..64));
    assert_eq!(count(&found, Found::Refused), 512, "{found:?}");
    let found = examine_all(&sample, &segment(1), &bits(SEGMENT_HEADER_BYTES..end));
    println!(
        "rot: {} bits refused, {} harmless",
        count(&found, Found::Refused),
        count(&found, Found::Harmless)
    );
    // The last blocks are markers, which prove the rest and are not needed for it; padding is not read.
    assert!(count(&found, Found::Refused) as u64 > (end - SEGMENT_HEADER_BYTES) * 8 / 2);
    for damage in found.get(&Found::Harmless).into_iter().flatten() {
        let Damage::FlipBit { bit } = damage else { unreachable!() };
        let byte = sample.image.file(&segment(1)).unwrap()[(bit / 8) as usize];
        assert!(
            byte == 0 || bit / 8 >= end - MARKERS_BYTES_MAX,
            "{damage:?} changes byte {byte} and was not detected"
        );
    }
}

#[test]
fn every_bit_of_the_identity_is_detected() {
    let sample = small(true);
    let found = examine_all(&sample, "chiplog.id", &bits(0..512));
    assert_eq!(count(&found, Found::Refused), 512 * 8, "{:?}", found.keys());
}

#[test]
fn every_byte_of_the_fixed_parts_is_detected_or_harmless() {
    let sample = large();
    let numbers = 1..=4;
    for number in numbers.clone() {
        let name = segment(number);
        let found = examine_all(&sample, &name, &bytes(0..SEGMENT_HEADER_BYTES, 1));
        // The first segments' headers are read with them; all of them belong to the log.
        assert_eq!(
            count(&found, Found::Refused),
            SEGMENT_HEADER_BYTES as usize,
            "{name}: {:?}",
            found.keys()
        );
        // The opening block and the first data block.
        let found = examine_all(&sample, &name, &bits(SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES + 300));
        assert_eq!(count(&found, Found::Cut), 0);
        assert!(count(&found, Found::Refused) + count(&found, Found::OnReading) > 1000, "{name}");
        if number < *numbers.end() {
            // Block index and footer only save time: without them the blocks are read.
            let found = examine_all(&sample, &name, &bits(SEGMENT_BYTES - 256..SEGMENT_BYTES));
            assert_eq!(count(&found, Found::Harmless), 256 * 8, "{name}: {:?}", found.keys());
        }
    }
}

#[test]
fn every_payload_byte_is_detected_or_harmless() {
    let sample = large();
    for number in 1..=4 {
        let end = used(&sample, number);
        let found = examine_all(&sample, &segment(number), &bytes(SEGMENT_HEADER_BYTES..end, 13));
        let detected = count(&found, Found::Refused) + count(&found, Found::OnReading);
        assert!(detected as u64 * 13 > (end - SEGMENT_HEADER_BYTES) * 9 / 10, "segment {number}: {detected}");
    }
}

/// A later block says up to where bytes were durable. Damage before that is rot; after it, a torn write without an
/// acknowledgement.
#[test]
fn only_the_unproven_end_is_truncated() {
    let sample = small(false);
    let end = used(&sample, 1);
    let found = examine_all(&sample, &segment(1), &bits(SEGMENT_HEADER_BYTES..end));
    let place = |d: &Damage| if let Damage::FlipBit { bit } = d { bit / 8 } else { unreachable!() };
    let cut: Vec<u64> = found[&Found::Cut].iter().map(place).collect();
    let refused: Vec<u64> = found[&Found::Refused].iter().map(place).collect();
    let (first_cut, last_refused) = (cut.iter().min().unwrap(), refused.iter().max().unwrap());
    assert!(first_cut > last_refused, "cut from {first_cut} on, refused up to {last_refused}");
    // The last record has 900 bytes and its own block.
    assert!((900..1100).contains(&(end - first_cut)), "{first_cut} {end}");
}

#[test]
fn swapped_lost_and_misdirected_sectors_are_detected_or_harmless() {
    // Where the end is not proven, a sector can hold the end of a block and everything that proves it.
    for sample in [small(true), large()] {
        let busy = used(&sample, 1).div_ceil(SECTOR_BYTES as u64) as usize;
        let some: Vec<usize> = (0..busy + 1).filter(|n| busy < 30 || n % 9 == 0 || *n < 12).collect();
        let mut damages: Vec<Damage> = (0..busy).map(|sector| Damage::ZeroSector { sector }).collect();
        for a in &some {
            for b in &some {
                if a < b {
                    damages.push(Damage::SwapSectors { a: *a, b: *b });
                }
                if a != b {
                    damages.push(Damage::MisdirectSector { from: *a, to: *b });
                }
            }
        }
        let found = examine_all(&sample, &segment(1), &damages);
        assert!(count(&found, Found::Refused) + count(&found, Found::OnReading) > damages.len() / 4);
    }
}

#[test]
fn missing_segment_is_detected() {
    let sample = large();
    for number in 1..=4 {
        let mut image = sample.image.clone();
        assert!(image.remove(&segment(number)));
        let found = examine(&sample, &image, &|| format!("segment {number} removed"));
        assert_eq!(found, Found::Refused, "segment {number}");
    }
    let names: Vec<String> = sample.image.names().map(str::to_owned).collect();
    let mut image = sample.image.clone();
    for name in names.iter().filter(|n| n.ends_with(".seg")) {
        image.remove(name);
    }
    assert_eq!(examine(&sample, &image, &|| "all segments removed".into()), Found::Refused);
}

/// Files that were prepared and not used hold nothing: any change of them is harmless.
#[test]
fn missing_prepared_file_is_harmless() {
    let sample = large();
    for name in sample.image.names().filter(|n| n.ends_with(".seg") && **n > *segment(4)) {
        let mut image = sample.image.clone();
        image.remove(name);
        assert_eq!(examine(&sample, &image, &|| format!("{name} removed")), Found::Harmless);
    }
}

/// Without its identity, a directory with records in it must not get a new log.
#[test]
fn log_without_its_identity_is_not_created_again() {
    for sample in [small(true), large()] {
        let mut image = sample.image.clone();
        image.remove("chiplog.id");
        let disk = SimDisk::new(image.clone());
        let error = open(&disk).expect_err("records without an identity are refused");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
        for name in image.names() {
            assert_eq!(disk.visible().file(name), image.file(name), "{name} is as it was");
        }
        let mut image = sample.image.clone();
        image.insert("chiplog.id", b"");
        assert_eq!(open(&SimDisk::new(image)).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn copied_segment_is_ignored_and_a_changed_copy_refused() {
    let sample = large();
    let beyond = 90;
    for number in 1..=4 {
        let mut image = sample.image.clone();
        assert!(image.copy(&segment(number), &segment(beyond)));
        let found = examine(&sample, &image, &|| format!("segment {number} copied to {beyond}"));
        assert_eq!(found, Found::Harmless, "segment {number}");
        assert!(image.damage(&segment(beyond), &Damage::FlipBit { bit: 8 * 5000 }));
        let found = examine(&sample, &image, &|| format!("segment {number} copied to {beyond} and changed"));
        assert_eq!(found, Found::Refused, "segment {number}");
    }
}

#[test]
fn shortened_file_is_refused() {
    let sample = large();
    for number in 1..=4 {
        for len in [0, 1, 511, 4095, 4096, 5000, SEGMENT_BYTES - 129, SEGMENT_BYTES - 1] {
            let mut image = sample.image.clone();
            assert!(image.damage(&segment(number), &Damage::Shorten { len }));
            let found = examine(&sample, &image, &|| format!("segment {number} shortened to {len}"));
            assert_eq!(found, Found::Refused, "segment {number}, {len} bytes");
        }
    }
}

#[test]
fn swapped_segments_are_refused() {
    let sample = large();
    for (a, b) in [(1, 2), (2, 3), (1, 4), (3, 4)] {
        let mut image = sample.image.clone();
        image.copy(&segment(a), "aside");
        image.copy(&segment(b), &segment(a));
        image.copy("aside", &segment(b));
        image.remove("aside");
        assert_eq!(examine(&sample, &image, &|| format!("{a} and {b} swapped")), Found::Refused);
    }
}

#[test]
fn segment_of_another_log_is_refused() {
    let (sample, other) = (large(), large());
    for number in 1..=4 {
        let mut image = sample.image.clone();
        image.insert(&segment(number), &other.image.file(&segment(number)).unwrap());
        assert_eq!(examine(&sample, &image, &|| format!("foreign segment {number}")), Found::Refused);
    }
}

/// Rot under an open log: reads detect it, appends continue.
#[test]
fn rot_under_an_open_log_is_never_served() {
    let disk = SimDisk::default();
    let log = open(&disk).unwrap();
    for n in 1..=40 {
        log.append(&record(n, 3000)).unwrap();
    }
    assert!(disk.damage(&segment(1), &Damage::FlipBit { bit: 8 * 6000 }));
    let mut failed = 0;
    for n in 1..=40 {
        match log.read(Index(n)) {
            Ok(r) => assert_eq!(&r.data[..], record(n, 3000)),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corrupt);
                failed += 1;
            }
        }
    }
    assert_eq!(failed, 1);
    assert_eq!(log.append(b"on").unwrap(), Index(41));
    log.close().unwrap();
}

/// Look-ups remember where the batches of a block are. These positions are not trusted: another batch there, although
/// sound, is not returned, nor is one with any flipped bit.
#[test]
fn look_up_of_a_remembered_block_still_verifies() {
    const COUNT: u64 = 12;
    let disk = SimDisk::default();
    let log = open(&disk).unwrap();
    disk.set_sync_time(Duration::from_secs(1));
    // One record keeps the disk busy; the others gather in one block after it.
    let mut tickets = vec![log.submit(&record(1, 60)).unwrap()];
    let written = |n: u64| {
        let file = disk.visible().file(&segment(1)).unwrap();
        file.windows(60).any(|w| w == &record(n, 60)[..60])
    };
    while !written(1) {
        std::thread::yield_now();
    }
    tickets.extend((2..=COUNT).map(|n| log.submit(&record(n, 60)).unwrap()));
    for ticket in &tickets {
        ticket.wait().unwrap();
    }
    let read = |n: u64| log.read(Index(n)).map(|r| r.data.to_vec());
    let reads = || disk.calls(Some(Call::Read));
    for n in 2..=COUNT {
        assert_eq!(read(n).unwrap(), record(n, 60));
    }
    let before = reads();
    assert_eq!(read(7).unwrap(), record(7, 60));
    assert_eq!(reads() - before, 1, "a remembered block costs one read");

    let sound = disk.visible().file(&segment(1)).unwrap();
    let restore = |range: Range<usize>| {
        let bytes = sound[range.clone()].to_vec();
        assert!(disk.damage(&segment(1), &Damage::Overwrite { offset: range.start as u64, bytes }));
    };
    // A batch is a header of 40 bytes, the record, and a table of 4 bytes.
    let batch = |n: u64| {
        let at = sound.windows(60).position(|w| w == &record(n, 60)[..60]).unwrap();
        at - 40..at + 64
    };
    for n in 2..COUNT {
        assert_eq!(batch(n).end, batch(n + 1).start, "all but the first record are in one block");
    }
    for bit in batch(7).start * 8..batch(7).end * 8 {
        assert!(disk.damage(&segment(1), &Damage::FlipBit { bit: bit as u64 }));
        assert_eq!(read(7).unwrap_err().kind(), ErrorKind::Corrupt, "bit {bit}");
        assert_eq!(read(8).unwrap(), record(8, 60), "its neighbour is as it was");
        restore(batch(7));
        assert_eq!(read(7).unwrap(), record(7, 60));
    }
    for (a, b) in [(7, 8), (2, 12), (5, 3)] {
        for (from, to) in [(a, b), (b, a)] {
            let bytes = sound[batch(from)].to_vec();
            let offset = batch(to).start as u64;
            assert!(disk.damage(&segment(1), &Damage::Overwrite { offset, bytes }));
        }
        for n in [a, b] {
            assert_eq!(read(n).unwrap_err().kind(), ErrorKind::Corrupt, "{n} after {a} and {b} were swapped");
        }
        restore(batch(a));
        restore(batch(b));
        assert_eq!((read(a).unwrap(), read(b).unwrap()), (record(a, 60), record(b, 60)));
    }
    disk.set_sync_time(Duration::ZERO);
    log.discard(Index(5)).unwrap();
    assert_eq!(read(4).unwrap_err().kind(), ErrorKind::Discarded, "remembered or not");
    log.close().unwrap();
}
