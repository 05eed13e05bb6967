//! Checks the inspector against the engine: two readers of one format, written apart. After any damage to a log's
//! files, the engine returns the records that the inspector calls sound, and does not return those that it calls
//! lost.

#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::inspect::{Event, Fault, Inspector, Report};
use chiplog::{BatchBuilder, Codec, ErrorKind, Index, Log, Options, ReadOnlyLog, Start};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use tempfile::TempDir;

/// A log's records, and the directory of the log.
struct Sample {
    dir: TempDir,
    first: u64,
    records: Vec<Vec<u8>>,
}

impl Sample {
    /// Several small segments: single records, batches of each codec, sessions, discards, a reopening.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut records: Vec<Vec<u8>> = Vec::new();
        for round in 0..3u8 {
            let log = Log::open(dir.path(), Options::with_segment_bytes(64 << 10)).unwrap();
            let mut session = log.open_session().unwrap();
            for n in 0..40u8 {
                let record = vec![round ^ n; 700];
                log.append(&record).unwrap();
                records.push(record);
                session.append(&[n; 10]).unwrap();
                records.push(vec![n; 10]);
                let mut batch = BatchBuilder::new();
                batch.codec([Codec::None, Codec::Lz4, Codec::Zstd][usize::from(n % 3)]);
                for i in 0..5u8 {
                    let record = vec![n ^ i; 100];
                    batch.push(&record).unwrap();
                    records.push(record);
                }
                log.append(&batch.build().unwrap()).unwrap();
            }
            session.close().unwrap();
            log.discard(Index(u64::from(round) * 25 + 1)).unwrap();
            log.close().unwrap();
        }
        Self { dir, first: 51, records }
    }

    /// A copy with one bit changed.
    fn spoilt(&self, file: &str, at: usize, bit: u8) -> TempDir {
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(self.dir.path()).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        let path = copy.path().join(file);
        let mut bytes = fs::read(&path).unwrap();
        bytes[at] ^= 1 << bit;
        fs::write(&path, bytes).unwrap();
        copy
    }

    /// The records that the engine returns from `dir`, each checked against the appended one. `None`: it does not
    /// open the log.
    fn served(&self, dir: &Path) -> Option<Vec<u64>> {
        let read_only = match ReadOnlyLog::open(dir) {
            Ok(read_only) => read_only,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported), "{error:?}");
                return None;
            }
        };
        let mut served = Vec::new();
        for index in self.first..=self.records.len() as u64 {
            if let Ok(record) = read_only.read(Index(index)) {
                assert_eq!(record.data, self.records[index as usize - 1], "record {index} is another one");
                served.push(index);
            }
        }
        Some(served)
    }
}

fn inspect(dir: &Path) -> (Report, Vec<Fault>) {
    let mut faults = Vec::new();
    let report = Inspector::open(dir).unwrap().walk(&mut |event| {
        if let Event::Fault(fault) = event {
            faults.push(fault.clone());
        }
        ControlFlow::Continue(())
    });
    (report.unwrap(), faults)
}

#[test]
fn engine_writes_sound_files() {
    let sample = Sample::new();
    let (report, faults) = inspect(sample.dir.path());
    assert_eq!(faults, []);
    assert!(report.segments > 3 && report.tail.is_none(), "{report:?}");
    assert_eq!(report.last, Some(Index(sample.records.len() as u64)));
    assert_eq!(
        sample.served(sample.dir.path()).unwrap().len() as u64,
        report.last.unwrap().get() - sample.first + 1
    );
}

/// Bytes all over every file, a different bit each time.
#[test]
fn inspector_and_engine_agree_on_all_damage() {
    let sample = Sample::new();
    let all: Vec<u64> = (sample.first..=sample.records.len() as u64).collect();
    let (mut refused, mut partly, mut untouched) = (0, 0, 0);
    for entry in fs::read_dir(sample.dir.path()).unwrap() {
        let entry = entry.unwrap();
        let (name, bytes) = (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap());
        let written: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
        for at in written.iter().step_by((written.len() / 16).max(1)).copied() {
            let copy = sample.spoilt(&name, at, (at % 8) as u8);
            let (report, faults) = inspect(copy.path());
            let told = format!("{name} byte {at}: {faults:?} {report:?}");
            let Some(served) = sample.served(copy.path()) else {
                refused += 1;
                assert!(
                    report.corrupt > 0,
                    "the engine refuses a log that the inspector calls sound: {told}"
                );
                continue;
            };
            if served == all {
                untouched += 1;
                continue;
            }
            partly += 1;
            assert!(report.corrupt > 0, "{} of {} served; {told}", served.len(), all.len());
            for (first, last) in faults.iter().filter_map(|f| f.records) {
                let lost = served.iter().find(|i| (first.get()..=last.get()).contains(*i));
                assert_eq!(lost, None, "returned by the engine, but called unreadable: {told}");
            }
        }
    }
    // Each kind of damage occurred.
    assert!(refused > 0 && partly > 0 && untouched > 0, "{refused} {partly} {untouched}");
}

/// Before the first record, and with the log open.
#[test]
fn empty_log_is_sound() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), Options::with_segment_bytes(64 << 10)).unwrap();
    let (report, faults) = inspect(dir.path());
    assert_eq!((report.records, report.first, report.last), (0, None, None));
    assert_eq!(faults, []);
    log.append(b"one").unwrap();
    log.close().unwrap();
    assert_eq!(inspect(dir.path()).0.last, Some(Index(1)));
    let mut reader = ReadOnlyLog::open(dir.path()).unwrap().reader(Start::First).unwrap();
    assert_eq!(reader.next_record().unwrap().unwrap().data, b"one");
}

/// The last block of a writer that was killed is sound, but nothing proves it: a read-only log leaves it out and counts it.
#[test]
fn unproven_records_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(dir.path(), Options::with_segment_bytes(64 << 10)).unwrap();
    for record in [&b"one"[..], b"two", b"three"] {
        log.append(record).unwrap();
    }
    log.close().unwrap();
    let shown = || {
        let read_only = ReadOnlyLog::open(dir.path()).unwrap();
        (read_only.last_index().0, read_only.unproven())
    };
    assert_eq!(shown(), (3, 0));
    // The proof of the last record is removed: the markers after it.
    let mut markers = Vec::new();
    let mut file = String::new();
    let walked = Inspector::open(dir.path()).unwrap().walk(&mut |event| {
        match event {
            Event::Segment(segment) if file.is_empty() => file.clone_from(&segment.file),
            Event::Block(block) if block.kind() == "marker" => markers.push(block.offset() as usize),
            Event::Block(_) => markers.clear(),
            _ => {}
        }
        ControlFlow::Continue(())
    });
    assert_eq!(walked.unwrap().records, 3);
    let path = dir.path().join(file);
    let mut bytes = fs::read(&path).unwrap();
    for at in markers {
        bytes[at..at + 64].fill(0);
    }
    fs::write(&path, bytes).unwrap();
    assert_eq!(shown(), (2, 1));
    Log::open(dir.path(), Options::default()).unwrap().close().unwrap();
    assert_eq!(shown(), (3, 0));
}
