//! A log that was opened by a relative path, in a program that changes its working directory. Alone in its file: the
//! working directory belongs to the whole process.

#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::{Log, Options, Start};
use std::env::set_current_dir;

/// The log addressed its files by the path it was opened with. After a `chdir`, which every daemon does, the helper
/// created, renamed and removed segment files of another directory under the same relative path.
#[test]
fn log_keeps_its_directory_after_chdir() {
    let dir = tempfile::tempdir().unwrap();
    let options = || Options::with_segment_bytes(64 << 10);
    for place in ["here", "there"] {
        std::fs::create_dir(dir.path().join(place)).unwrap();
    }
    set_current_dir(dir.path().join("there")).unwrap();
    let bystander = Log::open("log", options()).unwrap();
    for _ in 0..40 {
        bystander.append(&[2; 4000]).unwrap();
    }
    bystander.close().unwrap();
    set_current_dir(dir.path().join("here")).unwrap();
    let log = Log::open("log", options()).unwrap();
    set_current_dir(dir.path().join("there")).unwrap();
    for _ in 0..100 {
        log.append(&[1; 4000]).unwrap();
    }
    log.discard(log.last_index()).unwrap();
    log.close().unwrap();
    set_current_dir("/").unwrap();

    for (place, records, byte) in [("here", 1, 1), ("there", 40, 2)] {
        let log = Log::open(dir.path().join(place).join("log"), options()).unwrap();
        let mut reader = log.reader(Start::First).unwrap();
        for _ in 0..records {
            assert_eq!(reader.next_record().unwrap().unwrap().data, [byte; 4000]);
        }
        assert!(reader.next_record().unwrap().is_none());
    }
}
