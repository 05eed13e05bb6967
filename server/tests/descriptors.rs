//! Out of file descriptors. Alone in its file: the limit is the whole process'.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::{Index, Log, Options, Start};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;

/// With no descriptor left, appends go on as long as there is a segment to write to, then fail with a named
/// error. Nothing acknowledged is lost, and with descriptors again the log goes on (opened anew if it must be).
#[test]
fn without_descriptors_appends_fail_cleanly() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::with_segment_bytes(64 << 10);
    let log = Log::open(dir.path(), options.clone()).unwrap();
    let record = |n: u64| n.to_le_bytes().repeat(500);
    let before = getrlimit(Resource::Nofile);
    // Leaves none free: this many are open, and numbers are given out from below.
    let open = fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1;
    setrlimit(Resource::Nofile, Rlimit { current: Some(open), ..before }).unwrap();

    let mut acked = 0;
    let refusal = loop {
        match log.append(&record(acked + 1)) {
            Ok(index) => {
                acked += 1;
                assert_eq!(index, Index(acked));
            }
            Err(e) => break e,
        }
        assert!(acked < 1_000, "64 KiB segments never needed a descriptor");
    };
    println!("after {acked} appends: {refusal:?}");
    let text = refusal.to_string();
    assert!(text.contains("os error 24"), "the error hides its cause: {text}");

    setrlimit(Resource::Nofile, before).unwrap();
    let log = if log.poison_cause().is_some() {
        drop(log);
        Log::open(dir.path(), options).unwrap()
    } else {
        log
    };
    let mut reader = log.reader(Start::First).unwrap();
    for n in 1..=acked {
        let found = reader.next_record().unwrap().unwrap();
        assert_eq!((found.index, found.data), (Index(n), &record(n)[..]));
    }
    let next = log.append(b"goes on").unwrap();
    assert!(next > Index(acked));
}
