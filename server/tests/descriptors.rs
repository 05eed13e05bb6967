//! Appends without free file descriptors. Alone in its file, because the limit applies to the whole process.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::{Index, Log, Options, Start};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;

/// Without descriptors, appends continue while there is a segment to write to, then fail with a clear error.
/// Nothing acknowledged is lost. With descriptors again the log continues, after a reopen if necessary.
#[test]
fn without_descriptors_appends_fail_cleanly() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::with_segment_bytes(64 << 10);
    let log = Log::open(dir.path(), options.clone()).unwrap();
    let record = |n: u64| n.to_le_bytes().repeat(500);
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..before }).unwrap();
    let mut greedy = Vec::new();

    let mut acked = 0;
    let refusal = loop {
        // Other threads take every descriptor that the log frees at once, as in a busy server.
        greedy.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
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

    drop(greedy);
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
