//! Reads: each log has its own records, indexes and times, also after restarts and beside damage.

use crate::support::{append_until, damage_opening, group, numbered, open, options, records};
use chiplog::{ErrorKind, Index, Logs, LogsOptions, ReadMode, Start};
use std::collections::BTreeMap;
use std::time::Duration;

#[test]
fn logs_count_their_own_records_and_survive_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..20).map(|n| format!("log-{n}")).collect();
    let mut model: BTreeMap<String, Vec<(u64, Vec<u8>)>> = BTreeMap::new();
    for round in 0..4u64 {
        let logs = open(dir.path());
        for (n, name) in (0..).zip(&names) {
            let log = if round == 0 { logs.create(name).unwrap() } else { logs.get(name).unwrap() };
            let known = model.entry(name.clone()).or_default();
            assert_eq!(records(&log), *known, "{name} after {round} restarts");
            for _ in 0..30 {
                let record = numbered(n, known.len() as u64 + 1);
                let index = log.append(&record[..]).unwrap();
                known.push((index.get(), record));
                assert_eq!(index.get(), known.len() as u64, "dense");
            }
            assert_eq!(records(&log), *known, "{name}");
        }
        logs.close().unwrap();
    }
    let logs = open(dir.path());
    assert!(logs.groups().values().any(|group| group.status().segments > 1), "no segment was ever full");
    let listed: Vec<String> = logs.list().unwrap().into_iter().map(|info| info.name).collect();
    let mut sorted = names;
    sorted.sort();
    assert_eq!(listed, sorted);
}

#[test]
fn reader_waits_at_the_tail_of_its_log_alone() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(1)).unwrap();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    let reader = a.reader(Start::Next).unwrap();
    b.append(b"other").unwrap();
    assert!(!reader.wait(Some(Duration::from_millis(20))).unwrap());
    let waits = std::thread::spawn(move || {
        let mut reader = reader;
        assert!(reader.wait(None).unwrap());
        reader.next_record().unwrap().unwrap().data.to_vec()
    });
    a.append(b"mine").unwrap();
    assert_eq!(waits.join().unwrap(), b"mine");
}

#[test]
fn old_records_are_read_without_a_mapping_from_times_and_indexes() {
    let dir = tempfile::tempdir().unwrap();
    let group = group().read_mode(ReadMode::Read);
    let logs = Logs::open(dir.path(), options().groups(1).options(group)).unwrap();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    let mut middle = None;
    for n in 1..=1500u64 {
        drop(a.submit(&numbered(0, n)[..]).unwrap());
        if n % 50 == 0 {
            b.append(&numbered(1, n)[..]).unwrap();
        }
        if n == 700 {
            std::thread::sleep(Duration::from_millis(5));
            let index = b.append(b"middle").unwrap();
            middle = Some(b.read(index).unwrap().timestamp);
        }
    }
    a.append(b"end").unwrap();
    for index in [1, 2, 700, 1499, 1501] {
        assert_eq!(a.read(Index(index)).unwrap().index, Index(index));
    }
    let mut reader = b.reader(Start::Timestamp(middle.unwrap())).unwrap();
    assert_eq!(reader.next_record().unwrap().unwrap().data, b"middle");
    let mut backwards = a.reader(Start::First).unwrap();
    backwards.seek(Index(1000)).unwrap();
    assert_eq!(backwards.next_record().unwrap().unwrap().data, numbered(0, 1000));
    backwards.seek(Index(3)).unwrap();
    assert_eq!(backwards.next_record().unwrap().unwrap().data, numbered(0, 3));
}

/// It got `Corrupt`: no block contains the record.
#[test]
fn reader_of_a_deleted_log_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(1)).unwrap();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    for n in 0..2000u64 {
        drop(a.submit(&numbered(0, n)[..]).unwrap());
    }
    a.append(b"end").unwrap();
    let mut reader = a.reader(Start::First).unwrap();
    reader.next_record().unwrap().unwrap();
    logs.delete("a").unwrap();
    for n in 0..2000u64 {
        drop(b.submit(&numbered(1, n)[..]).unwrap());
    }
    b.append(b"end").unwrap();
    let ends = loop {
        match reader.next_record() {
            Ok(Some(record)) => assert!(record.data.starts_with(b"log 0 ") || record.data == b"end"),
            Ok(None) => break None,
            Err(error) => break Some(error.kind()),
        }
    };
    assert_eq!(ends, Some(ErrorKind::NotFound), "a reader at the end waits for ever");
    for index in [1, 900, 2001] {
        match a.read(Index(index)) {
            Ok(record) => assert_eq!(record.index.get(), index),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
        }
    }
}

/// It was the number of records in the whole group.
#[test]
fn barrier_of_a_named_log_returns_its_own_end() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), options().groups(1)).unwrap();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    for _ in 0..5 {
        b.append(b"x").unwrap();
    }
    a.append(b"x").unwrap();
    assert_eq!(a.barrier(Duration::from_secs(20)).unwrap(), Index(1));
    assert_eq!(b.barrier(Duration::from_secs(20)).unwrap(), Index(5));
}

/// Damage in a block's header hid all records behind it in the segment, of every log, and some before it. A search by
/// time passed over it.
#[test]
fn damage_in_a_block_leaves_the_others_readable() {
    let dir = tempfile::tempdir().unwrap();
    // Copies would have the records, too.
    let options = || LogsOptions::default().groups(1).options(group().sorted_copies(false));
    let logs = Logs::open(dir.path(), options()).unwrap();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    for n in 1..=1200u64 {
        let (log, of) = if n % 2 == 0 { (&a, 0) } else { (&b, 1) };
        log.append(&numbered(of, n)[..]).unwrap();
    }
    assert!(logs.groups()[&1].status().segments > 2);
    logs.close().unwrap();
    let file = dir.path().join("group-1/00000000000000000001.seg");
    let mut bytes = std::fs::read(&file).unwrap();
    let blocks: Vec<usize> = (4096..bytes.len() - 64)
        .step_by(64)
        .filter(|at| &bytes[*at..at + 4] == b"CLB1" && bytes[at + 60] == 8)
        .collect();
    for (at, what) in [(20, "header"), (64 + 20, "table"), (64 + 60, "batch")] {
        let damaged = blocks[40] + at;
        bytes[damaged] ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        bytes[damaged] ^= 1;
        let logs = Logs::open(dir.path(), options()).unwrap();
        let mut lost = Vec::new();
        for (name, of) in [("a", 0u64), ("b", 1)] {
            let log = logs.get(name).unwrap();
            assert_eq!(log.last_index(), Index(600));
            for index in 1..=600u64 {
                let n = if of == 0 { 2 * index } else { 2 * index - 1 };
                match log.read(Index(index)) {
                    Ok(record) => assert_eq!(record.data, numbered(of, n), "{what}"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
                        assert!(error.location().is_some(), "{what}: {error}");
                        lost.push(n);
                    }
                }
            }
        }
        lost.sort_unstable();
        // One block a record; behind a damaged header, blocks up to the next one in the index are not found.
        assert!(lost.contains(&41), "{what}: {lost:?}");
        assert!(lost.len() == 1 || (what == "header" && lost.len() < blocks.len() - 60), "{what}: {lost:?}");
        assert!(lost.iter().all(|n| *n >= 41), "{what}: {lost:?}");
        let from_time = logs.get("b").unwrap().reader(Start::Timestamp(chiplog::Timestamp(1)));
        match from_time {
            Ok(reader) => assert_eq!(reader.position(), Index(1), "{what}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}"),
        }
        logs.close().unwrap();
    }
}

/// An opening is checked once for look-ups. One that is damaged later hides no record, and is counted, so that it is repaired.
#[test]
fn opening_that_is_damaged_after_its_check_is_counted() {
    const LOG_BYTES: usize = 40;
    let dir = tempfile::tempdir().unwrap();
    let group = group().read_mode(ReadMode::Map).sorted_copies(false);
    let logs = Logs::open(dir.path(), options().groups(1).options(group)).unwrap();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    while logs.groups()[&1].status().segments < 4 {
        a.append(&[1; 4000][..]).unwrap();
        b.append(&[2; 4000][..]).unwrap();
    }
    let number = logs.list().unwrap().into_iter().find(|info| info.name == "a").unwrap().number;
    assert_eq!(records(&a).len() as u64, a.last_index().get());
    // The row of "a" in the third opening: its number, no flags, its first record, and the next one.
    let path = dir.path().join("group-1").join(format!("{:020}.seg", 3));
    let mut bytes = std::fs::read(&path).unwrap();
    let begin = [&number.get().to_le_bytes()[..], &[0; 4], &1u64.to_le_bytes()].concat();
    let at = (4096..bytes.len() - LOG_BYTES).find(|at| bytes[*at..].starts_with(&begin)).unwrap();
    let next = u64::from_le_bytes(bytes[at + 16..at + 24].try_into().unwrap());
    assert!(next > 1 && next < a.last_index().get());
    bytes[at + 16..at + 24].copy_from_slice(&(1u64 << 40).to_le_bytes());
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes[at..at + 24], at as u64).unwrap();
    assert_eq!(logs.groups()[&1].metrics().damaged, 0);
    assert_eq!(a.read(Index(next)).unwrap().data, &[1; 4000][..]);
    assert_eq!(logs.groups()[&1].metrics().damaged, 1);
    assert_eq!(b.read(Index(1)).unwrap().data, &[2; 4000][..]);
}

/// A reader that waited for the next record of a quiet log kept the file in which it had read the last one, after all logs had discarded
/// that file: unlinked, mapped, and counted by nothing.
#[cfg(target_os = "linux")]
#[test]
fn reader_at_the_tail_of_a_quiet_log_keeps_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let group = group().read_mode(ReadMode::Map).sorted_copies(false);
    let logs = Logs::open(dir.path(), options().groups(1).options(group)).unwrap();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    let status = || logs.groups()[&1].status();
    a.append(b"first").unwrap();
    let mut reader = a.reader(Start::First).unwrap();
    assert_eq!(reader.next_record().unwrap().unwrap().data, b"first");
    assert!(reader.next_record().unwrap().is_none());
    while status().segments < 4 {
        b.append(&[2; 4000][..]).unwrap();
    }
    let kept = b.append(b"kept").unwrap();
    a.discard(Index(2)).unwrap();
    b.discard(kept).unwrap();
    let path = dir.path().to_str().unwrap().to_owned();
    let unlinked = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let is_unlinked = |line: &&str| line.contains(&path) && line.ends_with(".seg (deleted)");
        maps.lines().filter(is_unlinked).map(str::to_owned).collect::<Vec<_>>()
    };
    let first = dir.path().join("group-1").join(format!("{:020}.seg", 1));
    append_until(&b, || status().segments <= 2 && !first.exists() && unlinked().is_empty());
    assert!(!first.exists(), "the first file was not dropped");
    assert_eq!(unlinked(), [""; 0]);
    // It goes on where the log does.
    a.append(b"second").unwrap();
    assert_eq!(reader.next_record().unwrap().unwrap().data, b"second");
    assert!(reader.next_record().unwrap().is_none());
    a.append(b"third").unwrap();
    assert_eq!(reader.next_record().unwrap().unwrap().data, b"third");
}

/// A damaged opening hid the records of its own segment, and of the one before: both may be sound, and the one before may be in none of its
/// openings.
#[test]
fn damaged_opening_hides_no_record() {
    for copies in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let open =
            || Logs::open(dir.path(), options().groups(1).options(group().sorted_copies(copies))).unwrap();
        let logs = open();
        let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
        let status = |logs: &Logs| logs.groups()[&1].status();
        let mut n = 0;
        while status(&logs).segments < 5 {
            n += 1;
            a.append(&numbered(0, n)[..]).unwrap();
            b.append(&[2; 2000][..]).unwrap();
        }
        logs.close().unwrap();
        for segment in [3, 1] {
            damage_opening(dir.path(), segment);
            let logs = open();
            assert_eq!(status(&logs).segments, 5);
            let (a, b) = (logs.get("a").unwrap(), logs.get("b").unwrap());
            assert_eq!(records(&a), (1..=n).map(|n| (n, numbered(0, n))).collect::<Vec<_>>());
            for index in (1..=n).rev().step_by(7) {
                assert_eq!(a.read(Index(index)).unwrap().data, numbered(0, index));
                assert_eq!(b.read(Index(index)).unwrap().data, &[2; 2000][..]);
            }
            logs.close().unwrap();
        }
    }
}

/// A search by time read all segments from that time on, up to one with records of the log, and failed by damage in any of them.
#[test]
fn search_by_time_reads_no_segment_in_which_the_log_is_silent() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Logs::open(dir.path(), options().groups(1).options(group().sorted_copies(false))).unwrap();
    let logs = open();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    let fill = |segments| {
        while logs.groups()[&1].status().segments < segments {
            b.append(&[2; 4000][..]).unwrap();
        }
    };
    let append = |data: &[u8]| {
        let index = a.append(data).unwrap();
        std::thread::sleep(Duration::from_millis(5)); // the next record has a later time
        a.read(index).unwrap().timestamp.0
    };
    let early = append(b"early");
    fill(4);
    let late = append(b"late");
    fill(7);
    logs.close().unwrap();
    [2, 5].into_iter().for_each(|silent| damage_block(dir.path(), silent));
    let logs = open();
    let a = logs.get("a").unwrap();
    for (time, position) in [(0, 1), (early, 1), (early + 1, 2), (late, 2), (late + 1, 3)] {
        let reader = a.reader(Start::Timestamp(chiplog::Timestamp(time))).unwrap();
        assert_eq!(reader.position(), Index(position), "since {time}");
    }
    assert_eq!(records(&a), [(1, b"early".to_vec()), (2, b"late".to_vec())]);
}

/// Changes a byte in the table of a mixed block in the second half of a segment of group 1.
fn damage_block(dir: &std::path::Path, segment: u64) {
    let path = dir.join("group-1").join(format!("{segment:020}.seg"));
    let mut bytes = std::fs::read(&path).unwrap();
    let is_mixed = |at: &usize| &bytes[*at..at + 4] == b"CLB1" && bytes[at + 60] == 8;
    let block = (bytes.len() / 2..bytes.len() - 64).step_by(64).find(is_mixed).unwrap();
    bytes[block + 64 + 20] ^= 1;
    std::fs::write(&path, bytes).unwrap();
}

/// Damage to another log's records in the segment with the record was an error, although the sorted copy of the segment has it.
#[test]
fn search_by_time_reads_the_copy_of_a_damaged_segment() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Logs::open(dir.path(), options().groups(1)).unwrap();
    let logs = open();
    let (a, b) = (logs.create("a").unwrap(), logs.create("b").unwrap());
    a.append(&b"early"[..]).unwrap();
    while logs.groups()[&1].status().segments < 3 {
        b.append(&[2; 4000][..]).unwrap();
    }
    let copy = dir.path().join("group-1").join(format!("{:020}.run", 1));
    let begun = std::time::Instant::now();
    while !copy.exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "segment 1 is not sorted");
        std::thread::sleep(Duration::from_millis(5));
    }
    let early = a.read(Index(1)).unwrap().timestamp;
    logs.close().unwrap();
    damage_block(dir.path(), 1);
    let since = |logs: &Logs, time| {
        let reader = logs.get("a").unwrap().reader(Start::Timestamp(chiplog::Timestamp(time)));
        reader.map(|reader| reader.position())
    };
    let logs = open();
    assert_eq!(since(&logs, early.0).unwrap(), Index(1));
    assert_eq!(since(&logs, early.0 + 1).unwrap(), Index(2));
    logs.close().unwrap();
    std::fs::remove_file(copy).unwrap();
    let logs = Logs::open(dir.path(), options().groups(1).options(group().sorted_copies(false))).unwrap();
    assert_eq!(since(&logs, early.0).unwrap_err().kind(), chiplog::ErrorKind::Corrupt);
}
