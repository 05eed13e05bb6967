//! Bytes of format versions 1 to 4, kept for ever: every later version has to read them, and encode the same. Those of version 5, of
//! shared groups with objects and of payload are in `golden_objects.rs`.
//!
//! The files in `golden/` were made once; those of blocks, header and footer by a program that shares no code with
//! this crate. **Never make them again**: if one of these tests fails, the format has changed.
//! The code that made those of logs is in this file's history, `make_…`.
#![cfg(feature = "testing")] // opens the decoders
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/golden_files.rs"]
mod golden_files;

use chiplog::backup::{Backup, Branch, RestoreOptions};
use chiplog::vault::{MemoryVault, Vault};
use chiplog::{
    Batch, BatchBuilder, Clock, Codec, ErrorKind, Index, Log, LogId, LogNumber, LogOption, LogOptions,
    Options, ReadOnlyLog, Reader, Sequence, SessionId, Start, Timestamp, fuzzing,
};
use golden_files::{copy_of, golden, path};
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The salt of the golden blocks.
const SEGMENT: u64 = 5;

/// The records in the three golden batches.
fn records() -> Vec<Vec<u8>> {
    let mut records = vec![vec![], b"one".to_vec(), vec![b'x'; 300]];
    records.extend((0..20).map(|i| format!("record number {i}").into_bytes()));
    records
}

#[test]
fn batches_of_every_codec_are_read() {
    for (codec, name) in [(Codec::None, "none"), (Codec::Lz4, "lz4"), (Codec::Zstd, "zstd")] {
        let bytes = golden(&format!("batch-{name}.bin"));
        let batch = Batch::decode(bytes.into()).unwrap();
        assert_eq!(batch.codec(), codec);
        assert_eq!(batch.session(), Some((SessionId(7), Sequence(3))));
        assert_eq!(batch.count(), 23);
        assert_eq!(batch.records().unwrap(), records(), "{name}");
    }
}

/// A compressor may pack differently one day; the encoding of unpacked batches may not change.
#[test]
fn unpacked_batch_is_encoded_the_same() {
    let mut builder = BatchBuilder::new();
    builder.session(SessionId(7), Sequence(3), 2);
    for record in records() {
        builder.push(&record).unwrap();
    }
    assert_eq!(builder.build().unwrap().as_bytes()[..], golden("batch-none.bin"));
    let mut builder = BatchBuilder::new();
    builder.push(b"a single record without a session").unwrap();
    assert_eq!(builder.build().unwrap().as_bytes()[..], golden("batch-single.bin"));
}

#[test]
fn blocks_of_every_kind_are_read_and_encoded_the_same() {
    for kind in ["data", "mixed", "no-op", "configuration", "hard-state", "marker", "opening"] {
        let bytes = golden(&format!("block-{kind}.bin"));
        let (header, sound) = fuzzing::block(&bytes, SEGMENT).unwrap_or_else(|| panic!("{kind} is refused"));
        assert!(sound, "body of {kind}");
        assert_eq!(header, bytes[..64], "{kind}");
    }
    assert!(fuzzing::block(&golden("block-data.bin"), SEGMENT + 1).is_none());
}

#[test]
fn fixed_parts_of_a_segment_are_read_and_encoded_the_same() {
    let header = golden("segment-header.bin");
    assert_eq!(fuzzing::segment_header(&header), Some(header));
    let footer = golden("segment-footer.bin");
    assert_eq!(fuzzing::footer(&footer), Some(footer));
    let opening = golden("opening-body.bin");
    assert_eq!(fuzzing::opening(&opening), Some(opening));
}

/// Options of the log and what shared groups have, which version 1 refuses. Made by a program that shares no code with this crate, like the
/// others.
#[test]
fn parts_of_version_2_are_read_and_encoded_the_same() {
    let header = golden("segment-header-2.bin");
    assert_eq!(fuzzing::segment_header(&header), Some(header));
    for name in ["opening-options-body.bin", "opening-logs-body.bin"] {
        let opening = golden(name);
        assert_eq!(fuzzing::opening(&opening), Some(opening), "{name}");
    }
    // The last part of the opening: two logs.
    let opening = golden("opening-logs-body.bin");
    let length = |at: usize| u32::from_le_bytes(opening[at..at + 4].try_into().unwrap()) as usize;
    let behind = |at: usize| at + 4 + length(at);
    let at = behind(behind(behind(48))); // membership, sessions, options
    assert_eq!(behind(at), opening.len());
    let logs = &opening[at + 4..];
    assert_eq!(fuzzing::logs(logs).unwrap(), logs);
    let block = golden("block-set-options.bin");
    let (header, sound) = fuzzing::block(&block, SEGMENT).unwrap();
    assert!(sound && header == block[..64]);
    let length = u32::from_le_bytes(block[8..12].try_into().unwrap()) as usize;
    assert_eq!(fuzzing::command(&block[64..length]).unwrap(), block[64..length]);
}

/// A payload slice with two batches and a break between them, and the reference to the first one. Made by a program that shares no code with
/// this crate, like the others.
#[test]
fn payload_slices_and_references_are_read_and_encoded_the_same() {
    const LOG: u128 = 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210;
    let (slice, name) = (golden("payload-slice.bin"), (4, 9));
    assert_eq!(fuzzing::payload_slice(LOG, name, &slice), Some(slice.clone()));
    assert_eq!(fuzzing::payload_slice(LOG, (4, 8), &slice), None, "it is another one than its name says");
    assert_eq!(fuzzing::payload_slice(LOG + 1, name, &slice), None);
    let (reference, batch) = (golden("batch-reference.bin"), golden("batch-none.bin"));
    let at = |at: usize| u32::from_le_bytes(reference[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!((&slice[at(56)..at(56) + at(60)], at(68)), (&batch[..], slice.len()));
    assert_eq!(fuzzing::reference(&reference, &batch), Some(reference.clone()));
    assert_eq!(fuzzing::reference(&reference, &golden("batch-single.bin")), None, "it is of another batch");
    // The same of a group: the first batch is of log 3, the second one of log 7.
    let of_group = golden("payload-slice-logs.bin");
    assert_eq!(fuzzing::payload_slice(LOG, name, &of_group), Some(of_group.clone()));
    // Each bit counts.
    for slice in [slice, of_group] {
        for bit in 0..slice.len() * 8 {
            let mut bad = slice.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(fuzzing::payload_slice(LOG, name, &bad), None, "bit {bit}");
        }
    }
}

/// Parts of shared groups. `block-mixed.bin` and `opening-logs-body.bin` were made by a program that shares no code
/// with this crate; what they contain stands in the tests of `store/format`.
#[test]
fn parts_of_shared_groups_are_read_and_encoded_the_same() {
    let block = golden("block-mixed.bin");
    let (header, sound) = fuzzing::block(&block, SEGMENT).unwrap();
    assert!(sound && header == block[..64]);
    let opening = golden("opening-logs-body.bin");
    assert_eq!(fuzzing::opening(&opening), Some(opening.clone()));
    let sessions = &opening[63..123];
    assert_eq!(fuzzing::sessions(sessions).unwrap(), sessions);
    // Open log 9 at record 1, seal it, drop it, discard its records below 100, open a session on it.
    let commands: [&[u64]; 5] = [&[4, 9, 1], &[5, 9], &[6, 9], &[7, 9, 100], &[2, 60_000, 9]];
    for words in commands {
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(fuzzing::command(&body), Some(body), "{words:?}");
    }
    for words in [&[4u64, 1 << 32, 1][..], &[5, 1 << 32], &[2, 60_000, 0], &[5, 9, 0], &[4, 9]] {
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(fuzzing::command(&body), None, "{words:?}");
    }
}

/// A program that knows version 1 alone reads it: nothing of shared groups is written before the first named log.
#[test]
fn log_without_named_logs_is_of_version_1() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    let mut session = log.open_session().unwrap();
    for n in 1..=300 {
        log.append(&record(n)).unwrap();
        session.append(&record(n)).unwrap();
    }
    log.discard(Index(200)).unwrap();
    log.close().unwrap();
    let mut kinds = std::collections::BTreeSet::new();
    for entry in fs::read_dir(dir.path()).unwrap() {
        let file = fs::read(entry.unwrap().path()).unwrap();
        if file.len() < 4096 {
            continue;
        }
        assert_eq!(u32::from_le_bytes(file[16..20].try_into().unwrap()), 1);
        let id = u64::from_le_bytes(file[48..56].try_into().unwrap());
        let mut at = 4096;
        while let Some((header, true)) = fuzzing::block(&file[at..], id) {
            let length = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
            let body = &file[at + 64..at + length];
            kinds.insert(header[60]);
            match header[60] {
                4 => assert_eq!(body.len(), 16),
                7 => {
                    let end = |at: usize| {
                        at + 4 + u32::from_le_bytes(body[at..at + 4].try_into().unwrap()) as usize
                    };
                    assert_eq!(end(end(48)), body.len(), "two parts");
                }
                _ => {}
            }
            at += length.next_multiple_of(64);
        }
    }
    assert!(kinds.contains(&7) && kinds.contains(&4) && !kinds.contains(&8), "{kinds:?}");
}

/// Two logs of 40 records each, appended in turn: `a` has its first 20 discarded, `b` is sealed; a third was dropped.
#[test]
fn group_of_version_2_is_opened_and_appended_to() {
    let dir = copy_of("logs-2");
    let group = Log::open(dir.path(), options()).unwrap();
    let (a, b) = (group.named(LogNumber(1)).unwrap(), group.named(LogNumber(2)).unwrap());
    assert_eq!(group.named(LogNumber(3)).err().unwrap().kind(), ErrorKind::NotFound);
    assert_eq!((a.range(), b.range()), (Index(21)..=Index(40), Index(1)..=Index(40)));
    for (log, from, of) in [(&a, 21, 1u8), (&b, 1, 2)] {
        for n in from..=40u8 {
            assert_eq!(log.read(Index(n.into())).unwrap().data, golden_record(of, n));
        }
    }
    assert_eq!(b.append(b"newer").unwrap_err().kind(), ErrorKind::Sealed);
    assert_eq!(a.append(b"newer").unwrap(), Index(41));
}

fn golden_record(log: u8, n: u8) -> Vec<u8> {
    [log, n].repeat(500)
}

/// The options that are set in the golden log of version 2.
fn golden_options() -> LogOptions {
    let mut options = LogOptions::default();
    options.set(LogOption::RetentionBytes, Some(1 << 30));
    options.set(LogOption::SessionWindow, Some(8));
    options.set(LogOption::SessionIdleMax, Some(u64::MAX));
    options
}

/// Ten records of 9,000 bytes, the options after the third, the first five discarded.
#[test]
fn log_of_version_2_is_opened_and_appended_to() {
    let dir = copy_of("log-2");
    let read_only = ReadOnlyLog::open(dir.path()).unwrap();
    assert_eq!(read_only.log_options(), golden_options());
    drop(read_only);
    let log = Log::open(dir.path(), options()).unwrap();
    assert_eq!(log.log_options(), golden_options());
    assert_eq!((log.first_index(), log.last_index()), (Index(6), Index(10)));
    for n in 6..=10 {
        assert_eq!(log.read(Index(n)).unwrap().data[..], [n as u8; 9_000]);
    }
    assert_eq!(log.append(b"newer").unwrap(), Index(11));
    let asked: Vec<u32> = (1..=2)
        .map(|n| golden(&format!("log-2/{n:020}.seg")))
        .map(|file| u32::from_le_bytes(file[16..20].try_into().unwrap()))
        .collect();
    assert_eq!(asked, [2, 2]);
}

/// 300 records, of which objects of 64 KiB have most; an option set and a session opened on the way.
fn with_objects(vault: &Arc<MemoryVault>) -> Options {
    let options = Options::with_segment_bytes(256 << 10).session_window(16).sessions_max(16);
    options.vault(vault.clone() as Arc<dyn Vault>).object_bytes(64 << 10)
}

/// The objects of the golden log, by name.
fn golden_objects() -> Vec<(String, bytes::Bytes)> {
    let log = format!("{:032x}", ReadOnlyLog::open(copy_of("log-3").path()).unwrap().log_id().get());
    let numbers = (0..GOLDEN_OBJECTS).map(|n| format!("o/{n:020}"));
    numbers
        .map(|name| (format!("{log}/{name}"), golden(&format!("log-3-objects/{}", &name[2..])).into()))
        .collect()
}

const GOLDEN_OBJECTS: u64 = 4;

/// The objects of a log are a function of its entries: every build makes the same bytes, or two builds in a cluster would store
/// different ones under one name.
#[test]
fn objects_are_made_again_with_the_same_bytes() {
    let (dir, vault) = (copy_of("log-3"), Arc::new(MemoryVault::default()));
    // The store has the log's root and no object: the log finds them missing, and makes all of them again.
    let expected = golden_objects();
    let log_id = &expected[0].0[..32];
    let root = format!("chiplog objects\nformat 1\nlog {log_id}\n");
    vault.put(&format!("{log_id}/root"), &[root.into()]).unwrap();
    let log = Log::open(dir.path(), with_objects(&vault).object_scrub(Duration::from_millis(300))).unwrap();
    let begun = Instant::now();
    while log.metrics().repaired_objects < GOLDEN_OBJECTS {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", log.metrics());
        std::thread::sleep(Duration::from_millis(5));
    }
    for (name, bytes) in &expected {
        let size = vault.size(name).unwrap().unwrap_or_default();
        assert!(vault.get(name, 0..size).unwrap() == *bytes, "{name} has other bytes");
    }
}

/// A log whose files are lost comes back from the golden objects alone.
#[test]
fn log_is_made_of_the_golden_objects() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), MemoryVault::default());
    let expected = golden_objects();
    let log_id = expected[0].0[..32].to_owned();
    let root = format!("chiplog objects\nformat 1\nlog {log_id}\n");
    vault.put(&format!("{log_id}/root"), &[root.into()]).unwrap();
    for (name, bytes) in expected {
        vault.put(&name, &[bytes]).unwrap();
    }
    let id = LogId(u128::from_str_radix(&log_id, 16).unwrap());
    let backup = Backup::fetch(&vault, id, dir.path().join("backup"), &mut |_, _| {}).unwrap();
    backup.restore(dir.path().join("log"), &RestoreOptions::default(), &mut |_, _| {}).unwrap();
    let log = Log::open(dir.path().join("log"), with_objects(&Arc::default())).unwrap();
    let last = log.last_index().get();
    assert!(last > 150 && log.first_index() == Index(1), "{last}");
    for n in 1..=last {
        assert_eq!(log.read(Index(n)).unwrap().data, tiered_record(n), "record {n}");
    }
}

fn tiered_record(n: u64) -> Vec<u8> {
    format!("record {n}, ").into_bytes().repeat((n % 170) as usize)
}

/// The last record that the golden branch has of the golden log with objects, of those in its own objects, and of all.
const BRANCH: [u64; 3] = [150, 200, 205];

fn branch_record(n: u64) -> Vec<u8> {
    match n > BRANCH[0] {
        true => format!("branch {n}, ").into_bytes().repeat((n % 90) as usize),
        false => tiered_record(n),
    }
}

/// The objects of the golden log, and those of its golden branch without its parent's pin.
fn vault_of_the_branch(branch: LogId) -> MemoryVault {
    let vault = MemoryVault::default();
    let put = |name: &str, bytes: Vec<u8>| vault.put(name, &[bytes.into()]).unwrap();
    let parent = golden_objects();
    for log in [&parent[0].0[..32], &format!("{:032x}", branch.get())] {
        put(&format!("{log}/root"), format!("chiplog objects\nformat 1\nlog {log}\n").into_bytes());
    }
    parent.iter().for_each(|(name, bytes)| put(name, bytes.to_vec()));
    for entry in fs::read_dir(path("log-4-objects")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let bytes = golden(&format!("log-4-objects/{name}"));
        let name = if name == "branch" { name } else { format!("o/{name}") };
        put(&format!("{:032x}/{name}", branch.get()), bytes);
    }
    vault
}

/// The directory of a branch and its objects, of version 4: it has its parent's records, and its own, also if its files are lost.
#[test]
fn golden_branch_is_read() {
    let dir = copy_of("log-4");
    let first = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let first = first.filter(|path| path.extension().is_some_and(|e| e == "seg")).min().unwrap();
    assert_eq!(fs::read(first).unwrap()[16..20], 4_u32.to_le_bytes());
    let id = ReadOnlyLog::open(dir.path()).unwrap().log_id();
    let vault = Arc::new(vault_of_the_branch(id));
    let branch = Branch::of(&*vault, id).unwrap().unwrap();
    assert_eq!(branch.parts.len(), 1);
    assert!(golden_objects()[0].0.starts_with(&format!("{:032x}", branch.parts[0].log_id.get())));
    let check = |log: &Log, last: u64| {
        assert_eq!((log.first_index(), log.last_index()), (Index(1), Index(last)));
        for n in 1..=last {
            assert_eq!(log.read(Index(n)).unwrap().data, branch_record(n), "record {n}");
        }
    };
    let log = Log::open(dir.path(), with_objects(&vault)).unwrap();
    check(&log, BRANCH[2]);
    log.close().unwrap();
    let backup = Backup::fetch(&*vault, id, dir.path().join("backup"), &mut |_, _| {}).unwrap();
    backup.restore(dir.path().join("again"), &RestoreOptions::default(), &mut |_, _| {}).unwrap();
    check(&Log::open(dir.path().join("again"), with_objects(&Arc::default())).unwrap(), BRANCH[1]);
}

/// Record `n` of the golden log: 600 of them, the first 42 discarded. Of every ten, the first five are one batch (of
/// each codec in turn), the other five were appended one by one in session 1, as its sequence numbers 1 to 300.
/// Session 2 was opened and closed. Times follow from the number: record `n` was appended at `TIME + 10 n`
/// milliseconds, a batch at the time of its first record.
fn record(n: u64) -> Vec<u8> {
    format!("record {n}, ").into_bytes().repeat((n % 60) as usize)
}

const TIME: u64 = 1_700_000_000_000;

fn timestamp(n: u64) -> Timestamp {
    let batch_or_single = if matches!(n % 10, 1..=5) { n - (n - 1) % 10 } else { n };
    Timestamp(TIME + 10 * batch_or_single)
}

/// A clock at the golden log's end: its session has not expired.
#[derive(Debug)]
struct Then;

impl Clock for Then {
    fn now(&self) -> Timestamp {
        timestamp(600)
    }
}

fn options() -> Options {
    Options::with_segment_bytes(64 << 10).clock(Arc::new(Then)).session_window(16).sessions_max(16)
}

/// A writable copy of the golden log.
fn golden_log() -> tempfile::TempDir {
    copy_of("log")
}

fn check_records(mut reader: Reader) {
    for n in 43..=600 {
        let found = reader.next_record().unwrap().unwrap();
        assert_eq!((found.index, found.data), (Index(n), &record(n)[..]));
        assert_eq!(found.timestamp, timestamp(n), "record {n}");
    }
    assert!(reader.next_record().unwrap().is_none());
}

#[test]
fn log_is_opened_read_and_appended_to() {
    let dir = golden_log();
    let read_only = ReadOnlyLog::open(dir.path()).unwrap();
    check_records(read_only.reader(Start::First).unwrap());
    drop(read_only);

    let log = Log::open(dir.path(), options()).unwrap();
    let status = log.status();
    assert_eq!(status.log_id, LogId(331_020_147_764_333_004_981_857_624_170_370_405_661));
    assert_eq!(
        (status.first_index, status.last_index, status.durable_index),
        (Index(43), Index(600), Index(600))
    );
    assert_eq!((status.segments, status.sessions, status.last_timestamp), (4, 1, timestamp(600)));
    check_records(log.reader(Start::First).unwrap());
    assert_eq!(log.read(Index(42)).unwrap_err().kind(), ErrorKind::Discarded);
    let mut from = log.reader(Start::Timestamp(timestamp(300))).unwrap();
    assert_eq!(from.next_record().unwrap().unwrap().index, Index(300));

    // The session has its state: it knows its last appends, and the next one is new.
    let mut session = log.resume_session(SessionId(1), Sequence(298));
    for n in 598..=600 {
        assert_eq!(session.append(&record(n)).unwrap(), Index(n));
    }
    assert_eq!(session.append(b"new").unwrap(), Index(601));
    let closed = log.resume_session(SessionId(2), Sequence(1)).append(b"late").unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::SessionExpired);
    assert_eq!(log.append(b"newer").unwrap(), Index(602));
    log.close().unwrap();
    let log = Log::open(dir.path(), options()).unwrap();
    assert_eq!(log.read(Index(602)).unwrap().data[..], b"newer"[..]);
}

/// Decodes every header, block and footer in the golden log's files, and encodes it again.
#[test]
fn every_part_of_the_log_is_encoded_the_same() {
    let (mut blocks, mut footers) = (0, 0);
    for number in 1..=6 {
        let file = golden(&format!("log/{number:020}.seg"));
        assert_eq!(fuzzing::segment_header(&file).unwrap(), file[..4096]);
        let id = u64::from_le_bytes(file[48..56].try_into().unwrap());
        let mut at = 4096;
        while let Some((header, sound)) = fuzzing::block(&file[at..], id) {
            assert!(sound, "segment {number}, offset {at}");
            assert_eq!(header, file[at..at + 64]);
            let length = u32::from_le_bytes(file[at + 8..at + 12].try_into().unwrap()) as usize;
            if header[60] == 7 {
                let opening = &file[at + 64..at + length];
                assert_eq!(fuzzing::opening(opening).unwrap(), opening);
                let sessions = &opening[56..]; // no membership
                assert_eq!(fuzzing::sessions(sessions).unwrap(), sessions);
            }
            at += length.next_multiple_of(64);
            blocks += 1;
        }
        let tail = &file[file.len() - 128..];
        if let Some(footer) = fuzzing::footer(tail) {
            assert_eq!(footer, tail);
            footers += 1;
        }
    }
    assert!(blocks > 360, "{blocks} blocks: there were 360 appends");
    assert_eq!(footers, 3, "all but the last of four were sealed");
}
