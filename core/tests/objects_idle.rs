//! A log with an object store that is idle: alone in its process, whose threads are counted.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::vault::{MemoryVault, Vault};
use chiplog::{Log, Options};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where bytes behind the last object were almost enough for another one, the log looked for its end again and again: an idle log
/// took a whole processor. The bytes in the files are more than those of entries.
#[test]
fn idle_log_starts_no_jobs() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = {
        let options =
            Options::with_segment_bytes(256 << 10).vault(vault as Arc<dyn Vault>).object_bytes(128 << 10);
        Log::open(dir.path(), options).unwrap()
    };
    let switches = || -> u64 {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
        let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.join("status")).ok());
        let objects = statuses.filter(|status| status.contains("chiplog-objects"));
        let counts = objects.flat_map(|status| {
            let line =
                status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).map(str::to_owned);
            line.and_then(|line| line.split_whitespace().last().and_then(|count| count.parse::<u64>().ok()))
        });
        counts.sum()
    };
    let append = |count: u32| {
        for n in 0..count {
            log.append(&n.to_le_bytes().repeat(150)).unwrap();
        }
    };
    append(400);
    // Every size from one object to the next.
    for _ in 0..40 {
        append(8);
        let settled = Instant::now();
        let mut before = switches();
        while settled.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(60));
            let now = switches();
            if now - before <= 2 {
                break;
            }
            before = now;
        }
        assert!(settled.elapsed() < Duration::from_secs(20), "jobs do not end while nothing is appended");
    }
}
