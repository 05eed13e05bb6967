//! Golden directories of logs with an object store, kept for ever: a log whose older rows are in objects (version 5 of the format), a group
//! of named logs with sorted objects and sorted copies, and a log with references to payload (version 4). Every later version has to read
//! them, and make the same objects and copies.
//!
//! Beside each directory is what the object store had of the log. **Never make them again**: if one of these tests fails, the format has
//! changed. The code that made them is in this file's history, `make_…`.
#![cfg(feature = "testing")] // opens the decoders
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/golden_files.rs"]
mod golden_files;

use chiplog::backup::{Backup, RestoreOptions};
use chiplog::vault::{MemoryVault, Vault};
use chiplog::{
    Clock, ErrorKind, Index, Log, LogId, LogNumber, LogOption, Options, ReadOnlyLog, Start, Timestamp,
    fuzzing,
};
use golden_files::{blocks, copy_of, golden, path};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time of every append.
#[derive(Debug)]
struct Then;

impl Clock for Then {
    fn now(&self) -> Timestamp {
        Timestamp(1_700_000_000_000)
    }
}

/// The options of a log with no object store, in segments of this size.
fn alone(segment: u32) -> Options {
    Options::with_segment_bytes(segment).clock(Arc::new(Then)).sessions_max(4).session_window(4)
}

fn with_objects(segment: u32, vault: Arc<dyn Vault>) -> Options {
    let options = alone(segment).vault(vault).object_bytes(64 << 10);
    options.object_scrub(Duration::from_millis(300))
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The objects of a log in a store, by the names below the log's own.
type Stored = BTreeMap<String, Vec<u8>>;

/// The objects in the store of a golden log.
fn golden_store(name: &str) -> (LogId, Stored) {
    let mut found = Stored::new();
    for folder in ["", "o/", "p/", "s/"] {
        let Ok(entries) = fs::read_dir(path(&format!("{name}/{folder}"))) else { continue };
        for entry in entries.map(|entry| entry.unwrap()).filter(|entry| entry.path().is_file()) {
            let at = format!("{folder}{}", entry.file_name().to_str().unwrap());
            let bytes = golden(&format!("{name}/{at}"));
            found.insert(at, bytes);
        }
    }
    let root = String::from_utf8(found["root"].clone()).unwrap();
    let id = root.lines().find_map(|line| line.strip_prefix("log ")).unwrap();
    (LogId(u128::from_str_radix(id, 16).unwrap()), found)
}

/// An object store with a part of that.
fn vault_of(name: &str, has: impl Fn(&str) -> bool) -> (Arc<MemoryVault>, LogId) {
    let (id, stored) = golden_store(name);
    let vault = Arc::new(MemoryVault::default());
    for (at, bytes) in stored.into_iter().filter(|(at, _)| has(at)) {
        vault.put(&name_of(id, &at), &[bytes.into()]).unwrap();
    }
    (vault, id)
}

fn name_of(log: LogId, at: &str) -> String {
    format!("{:032x}/{at}", log.get())
}

fn stored_now(vault: &MemoryVault, log: LogId) -> Stored {
    let own = name_of(log, "");
    let found = vault.list(&own).unwrap().into_iter().filter_map(|at| {
        match vault.get(&at.name, 0..at.bytes) {
            Err(error) if error.kind() == ErrorKind::NotFound => None, // the log has deleted a slice meanwhile
            bytes => Some((at.name[own.len()..].to_owned(), bytes.unwrap().to_vec())),
        }
    });
    found.collect()
}

/// A byte on which no record depends can be another one, and the object is not as the log made it: `tier verify` says so. Such bytes
/// were not compared at all in sorted objects, nor behind the blocks of others.
#[test]
fn bytes_between_the_blocks_of_objects_are_compared() {
    for name in ["log-5-store", "log-4-payload-store", "logs-3-store"] {
        let (id, stored) = golden_store(name);
        for (at, right) in stored.iter().filter(|(at, _)| at.starts_with("o/")) {
            let number: u64 = at[2..].parse().unwrap();
            let with = |at: usize| {
                let mut bytes = right.clone();
                bytes[at] ^= 4;
                Backup::segment_file(id, number, bytes).map(|(_, changed)| changed)
            };
            let (file, changed) = Backup::segment_file(id, number, right.clone()).unwrap();
            assert_eq!(changed, None, "{name} {at}");
            assert_eq!(file == *right, !right.starts_with(b"CHIPSORT"), "{name} {at}");
            // The rest of the header, and zeros before the footer.
            for offset in [2000, right.len() - 129] {
                assert_eq!(with(offset).unwrap(), Some(offset as u64), "{name} {at}");
            }
            for offset in (4096..right.len()).step_by(509) {
                // In a sorted object damage is an error. In another one the inspector finds it.
                let found = with(offset).map_or(None, |changed| changed);
                assert!(found.is_none_or(|found| found == offset as u64), "{name} {at}: byte {offset}");
            }
        }
    }
}

/// The blocks in all segment files of a golden directory, and the oldest versions that read these files.
fn kinds_and_versions(name: &str) -> (BTreeMap<(u8, usize), usize>, Vec<u32>) {
    let (mut kinds, mut versions) = (BTreeMap::new(), Vec::new());
    for entry in fs::read_dir(path(name)).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.extension().is_none_or(|e| e != "seg") {
            continue;
        }
        let file = fs::read(&entry).unwrap();
        assert_eq!(fuzzing::segment_header(&file).unwrap(), file[..4096]);
        let of_file = blocks(&file);
        if !of_file.is_empty() {
            versions.push(u32::from_le_bytes(file[16..20].try_into().unwrap()));
        }
        for (kind, body) in of_file {
            match kind {
                4 => assert_eq!(fuzzing::command(body).unwrap(), body),
                7 => assert_eq!(fuzzing::opening(body).unwrap(), body),
                _ => {}
            }
            *kinds.entry((kind, body.len())).or_insert(0) += 1;
        }
    }
    (kinds, versions)
}

/// The log of a golden object store whose disks are lost.
fn made_of_the_store(vault: &MemoryVault, id: LogId, dir: &Path) -> std::path::PathBuf {
    let backup = Backup::fetch(vault, id, dir.join("backup"), &mut |_, _| {}).unwrap();
    assert!(!backup.ends_early(), "{:?}", backup.notes());
    backup.restore(dir.join("again"), &RestoreOptions::default(), &mut |_, _| {}).unwrap();
    dir.join("again")
}

/// Deletes objects of a golden log, of those whose records are in its files: it makes them again with the same bytes.
fn are_made_again(log: &Log, vault: &MemoryVault, store: &str, numbers: std::ops::Range<u64>) {
    let (id, stored) = golden_store(store);
    for number in numbers {
        let at = format!("o/{number:020}");
        vault.delete(&name_of(id, &at)).unwrap();
        eventually("the object is stored again", || {
            assert!(log.poison_cause().is_none());
            vault.size(&name_of(id, &at)).unwrap().is_some()
        });
        assert!(stored_now(vault, id)[&at] == stored[&at], "object {number} has other bytes");
    }
}

mod older_rows {
    use super::*;

    const SEGMENT: u32 = 128 << 10;
    /// The first records are in objects of this number each.
    const EACH: u64 = 20;
    const FIRST_OBJECTS: u64 = 9;

    fn options(vault: Arc<dyn Vault>) -> Options {
        with_objects(SEGMENT, vault).local_bytes(4 * u64::from(SEGMENT))
    }

    fn record(n: u64) -> Vec<u8> {
        format!("record {n}, ").into_bytes().repeat(100 + (n % 100) as usize)
    }

    /// Returns the last one.
    fn read_all(log: &Log) -> u64 {
        assert_eq!(log.first_index(), Index(1));
        let mut reader = log.reader(Start::First).unwrap();
        for n in 1..=log.last_index().get() {
            assert_eq!(reader.next_record().unwrap().unwrap().data, record(n), "record {n}");
        }
        assert!(reader.next_record().unwrap().is_none());
        log.last_index().get()
    }

    fn append(log: &Log, from: u64, to: u64) {
        (from..=to).for_each(|n| assert_eq!(log.append(&record(n)).unwrap(), Index(n)));
    }

    fn count() -> u64 {
        golden_store("log-5-store").1.keys().filter(|at| at.starts_with("o/")).count() as u64
    }

    /// The rows of its older objects are in objects. Its first files are gone, and hard states of 32 bytes say where the others begin: its
    /// disk was full.
    #[test]
    fn log_of_version_5_is_opened_and_appended_to() {
        let (kinds, versions) = kinds_and_versions("log-5");
        assert!(versions.contains(&5), "{versions:?}");
        assert!(kinds.get(&(5, 32)).is_some_and(|count| *count >= 2), "{kinds:?}");
        assert!(!path("log-5/00000000000000000001.seg").exists());
        let (dir, (vault, _)) = (copy_of("log-5"), vault_of("log-5-store", |_| true));
        let log = Log::open(dir.path(), options(vault.clone())).unwrap();
        assert_eq!(log.log_options().get(LogOption::ObjectRows), Some(2));
        let last = read_all(&log);
        assert!(last > EACH * FIRST_OBJECTS, "{last}");
        let objects = log.stored_objects(0, usize::MAX).unwrap();
        assert!(objects.iter().map(|object| object.number).eq(0..count()), "{objects:?}");
        append(&log, last + 1, last + 40);
        log.cut_objects(Index(last + 40)).unwrap();
        eventually("they are stored", || log.metrics().stored_index >= last + 40);
        log.close().unwrap();
        assert_eq!(read_all(&Log::open(dir.path(), options(vault)).unwrap()), last + 40);
    }

    /// Those whose records are in the files.
    #[test]
    fn objects_with_older_rows_are_made_again_with_the_same_bytes() {
        let (dir, (vault, _)) = (copy_of("log-5"), vault_of("log-5-store", |_| true));
        let here = ReadOnlyLog::open(dir.path()).unwrap().first_index();
        let log = Log::open(dir.path(), options(vault.clone())).unwrap();
        let objects = log.stored_objects(0, usize::MAX).unwrap();
        let from = objects.iter().find(|object| object.first >= here).unwrap().number;
        assert!(0 < from && from < count(), "object {from}");
        are_made_again(&log, &vault, "log-5-store", from..count());
        read_all(&log);
    }

    #[test]
    fn log_is_made_of_the_golden_objects() {
        let (dir, (vault, id)) = (tempfile::tempdir().unwrap(), vault_of("log-5-store", |_| true));
        let again = made_of_the_store(&vault, id, dir.path());
        let last = read_all(&Log::open(again, alone(SEGMENT)).unwrap());
        assert!(last > EACH * FIRST_OBJECTS, "{last}");
    }
}

mod groups {
    use super::*;

    const SEGMENT: u32 = 64 << 10;
    /// The last record of each log. The first 20 of the first log are discarded, and the second one is sealed.
    const LAST: u64 = 100;
    /// The objects, and the copies.
    const OBJECTS: u64 = 2;
    const COPIES: u64 = 2;

    fn record(log: u32, n: u64) -> Vec<u8> {
        format!("log {log} record {n}, ").into_bytes().repeat(10 + (n % 30) as usize)
    }

    /// Returns the last record of each log.
    fn read_all(group: &Log) -> [u64; 3] {
        [1, 2, 3].map(|number| {
            let log = group.named(LogNumber(number)).unwrap();
            assert_eq!(log.first_index(), Index(if number == 1 { 21 } else { 1 }), "log {number}");
            let mut reader = log.reader(Start::First).unwrap();
            for n in log.first_index().get()..=log.last_index().get() {
                let found = reader.next_record().unwrap().unwrap();
                assert_eq!((found.index, found.data), (Index(n), &record(number, n)[..]), "log {number}");
                assert_eq!(log.read(Index(n)).unwrap().data, record(number, n));
            }
            assert!(reader.next_record().unwrap().is_none());
            log.last_index().get()
        })
    }

    fn copy(number: u64) -> String {
        format!("{number:020}.run")
    }

    #[test]
    fn group_with_objects_is_opened_and_appended_to() {
        let (kinds, versions) = kinds_and_versions("logs-3");
        assert!(versions.iter().all(|version| (2..=3).contains(version)), "{versions:?}");
        assert!(versions.contains(&3) && kinds.keys().any(|(kind, _)| *kind == 8), "{versions:?} {kinds:?}");
        let (dir, (vault, _)) = (copy_of("logs-3"), vault_of("logs-3-store", |_| true));
        let group = Log::open(dir.path(), with_objects(SEGMENT, vault.clone())).unwrap();
        assert_eq!(read_all(&group), [LAST; 3]);
        group.named(LogNumber(1)).unwrap().append(&record(1, LAST + 1)).unwrap();
        assert_eq!(read_all(&group), [LAST + 1, LAST, LAST]);
    }

    /// The segments of the golden copies are damaged: their records are read from the copies.
    #[test]
    fn golden_copies_are_read() {
        let dir = copy_of("logs-3");
        for number in 1..=COPIES {
            let file = dir.path().join(format!("{number:020}.seg"));
            let mut bytes = fs::read(&file).unwrap();
            let middle = bytes.len() / 4..bytes.len() / 2;
            bytes[middle].iter_mut().step_by(64).for_each(|byte| *byte ^= 8);
            fs::write(file, bytes).unwrap();
        }
        let group = Log::open(dir.path(), alone(SEGMENT)).unwrap();
        assert_eq!(read_all(&group), [LAST; 3]);
        for number in 1..=COPIES {
            assert!(
                fs::read(dir.path().join(copy(number))).unwrap()
                    == golden(&format!("logs-3/{}", copy(number)))
            );
        }
    }

    #[test]
    fn copies_are_made_again_with_the_same_bytes() {
        let dir = copy_of("logs-3");
        (1..=COPIES).for_each(|number| fs::remove_file(dir.path().join(copy(number))).unwrap());
        let group = Log::open(dir.path(), alone(SEGMENT)).unwrap();
        for number in 1..=COPIES {
            let (made, name) = (dir.path().join(copy(number)), copy(number));
            eventually("the segment is sorted", || made.exists());
            assert!(fs::read(made).unwrap() == golden(&format!("logs-3/{name}")), "{name} has other bytes");
        }
        assert_eq!(read_all(&group), [LAST; 3]);
    }

    #[test]
    fn sorted_objects_are_made_again_with_the_same_bytes() {
        let (dir, (vault, _)) = (copy_of("logs-3"), vault_of("logs-3-store", |_| true));
        let group = Log::open(dir.path(), with_objects(SEGMENT, vault.clone())).unwrap();
        are_made_again(&group, &vault, "logs-3-store", 0..OBJECTS);
    }

    #[test]
    fn logs_are_made_of_the_golden_objects() {
        let (dir, (vault, id)) = (tempfile::tempdir().unwrap(), vault_of("logs-3-store", |_| true));
        let objects = golden_store("logs-3-store").1;
        let sorted =
            objects.iter().filter(|(at, bytes)| at.starts_with("o/") && bytes.starts_with(b"CHIPSORT"));
        assert_eq!(sorted.count() as u64, OBJECTS);
        let again = made_of_the_store(&vault, id, dir.path());
        let lasts = read_all(&Log::open(again, alone(SEGMENT)).unwrap());
        assert!(lasts.iter().all(|last| (LAST / 2..=LAST).contains(last)), "{lasts:?}");
    }
}

mod payload {
    use super::*;

    const SEGMENT: u32 = 256 << 10;
    const LAST: u64 = 62;
    const OBJECT: &str = "o/00000000000000000000";

    fn options(vault: &Arc<MemoryVault>) -> Options {
        let options = alone(SEGMENT).vault(vault.clone() as Arc<dyn Vault>);
        options.slice_interval(Duration::from_millis(10)).payload_slices(true)
    }

    fn open(dir: &Path, vault: &Arc<MemoryVault>) -> Log {
        let log = Log::open(dir, options(vault)).unwrap();
        eventually("the class is on", || log.log_options().get(LogOption::PayloadSlices) == Some(1));
        log
    }

    /// Larger than a reference.
    fn record(n: u64) -> Vec<u8> {
        format!("record {n}, ").into_bytes().repeat(60 + (n % 40) as usize)
    }

    fn read_all(log: &Log) {
        assert_eq!((log.first_index(), log.last_index()), (Index(1), Index(LAST)));
        let mut reader = log.reader(Start::First).unwrap();
        for n in 1..=LAST {
            assert_eq!(reader.next_record().unwrap().unwrap().data, record(n), "record {n}");
        }
    }

    /// The object with the payload.
    fn cut(log: &Log, vault: &MemoryVault) -> Vec<u8> {
        log.cut_objects(Index(LAST)).unwrap();
        eventually("an object is stored", || log.metrics().stored_index >= LAST);
        stored_now(vault, log.log_id()).remove(OBJECT).unwrap()
    }

    fn is_no_object(name: &str) -> bool {
        !name.starts_with("o/")
    }

    #[test]
    fn log_with_references_is_opened_and_appended_to() {
        let (kinds, versions) = kinds_and_versions("log-4-payload");
        assert!(versions.contains(&4) && kinds.keys().any(|(kind, _)| *kind == 1), "{versions:?} {kinds:?}");
        let written: usize = kinds.iter().map(|((_, bytes), count)| bytes * count).sum();
        let whole: usize = (1..=LAST).map(|n| record(n).len()).sum();
        assert!(written * 4 < whole, "{written} bytes in files of {whole} appended");
        let (dir, (vault, _)) = (copy_of("log-4-payload"), vault_of("log-4-payload-store", is_no_object));
        let log = open(dir.path(), &vault);
        read_all(&log);
        assert_eq!(log.append(&record(LAST + 1)).unwrap(), Index(LAST + 1));
        assert_eq!(log.read(Index(LAST + 1)).unwrap().data, record(LAST + 1));
    }

    #[test]
    fn golden_payload_slices_are_encoded_the_same() {
        let (id, stored) = golden_store("log-4-payload-store");
        let mut count = 0;
        for (name, bytes) in &stored {
            let Some((term, number)) = name.strip_prefix("p/").and_then(|name| name.split_once('.')) else {
                continue;
            };
            let name = (term.parse().unwrap(), number.parse().unwrap());
            assert!(fuzzing::payload_slice(id.get(), name, bytes).as_ref() == Some(bytes), "{name:?}");
            count += 1;
        }
        assert!(count > 1, "{:?}", stored.keys());
    }

    /// The object has the payload itself.
    #[test]
    fn object_with_payload_is_made_again_with_the_same_bytes() {
        let right = golden_store("log-4-payload-store").1.remove(OBJECT).unwrap();
        for _ in 0..20 {
            let (dir, (vault, _)) = (copy_of("log-4-payload"), vault_of("log-4-payload-store", is_no_object));
            let log = open(dir.path(), &vault);
            let made = cut(&log, &vault);
            read_all(&log);
            // The leader may end it with an entry more or less behind the last record.
            if block_count(&made) == block_count(&right) {
                assert!(made == right, "the object has other bytes");
                return;
            }
        }
        panic!("no object ends as the golden one");
    }

    /// The number of blocks in an object, by their lengths alone.
    fn block_count(object: &[u8]) -> usize {
        let (mut count, mut at) = (0, 4096);
        while object[at..].starts_with(b"CLB1") {
            let length = u32::from_le_bytes(object[at + 8..at + 12].try_into().unwrap()) as usize;
            at += length.next_multiple_of(64);
            count += 1;
        }
        count
    }

    #[test]
    fn log_is_made_of_the_golden_store() {
        let without_payload = |name: &str| !name.starts_with("p/");
        for has in [is_no_object as fn(&str) -> bool, without_payload, |_| true] {
            let (dir, (vault, id)) = (tempfile::tempdir().unwrap(), vault_of("log-4-payload-store", has));
            let again = made_of_the_store(&vault, id, dir.path());
            read_all(&Log::open(again, alone(SEGMENT)).unwrap());
        }
    }
}
