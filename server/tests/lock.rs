//! The lock of a log in a program that starts other programs. Alone in its file, because it starts many.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::{Log, Options};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// A closed log can be opened again at once. While other threads started programs it could be `Locked`
/// briefly: between fork and exec the child holds a copy of the lock's descriptor, so closing ours did not
/// release the lock.
#[test]
fn closing_releases_the_lock_while_programs_are_started() {
    let dir = tempfile::tempdir().unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert!(Command::new("true").status().unwrap().success());
                }
            });
        }
        let reopened =
            (0..60).try_for_each(|_| Log::open(dir.path(), Options::with_segment_bytes(64 << 10))?.close());
        stop.store(true, Ordering::Relaxed);
        reopened.unwrap();
    });
}
