//! The durability class `object`: what waits for the object store is bounded.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/payload_log.rs"]
mod payload_log;

use chiplog::vault::{HookedVault, MemoryVault};
use chiplog::{ErrorKind, Index, LogOption};
use payload_log::{SEGMENT, append, eventually, open, options, read_all, record, refuse};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The object store is down: what waits is bounded, callers get `Busy`, and once it is back all that was taken is in the log once.
#[test]
fn appends_that_wait_for_the_store_are_bounded() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let vault = Arc::new(HookedVault::new(below));
    let bytes = 256 << 10;
    let log = open(
        dir.path(),
        options(&vault)
            .block_bytes_max(64 << 10)
            .batch_bytes_max(32 << 10)
            .record_bytes_max(16 << 10)
            .queue_bytes_max(bytes)
            .queue_timeout(Duration::ZERO),
    );
    refuse(&vault, &["/p/"]);
    let mut tickets = Vec::new();
    let begun = Instant::now();
    let error = loop {
        match log.submit(&record(tickets.len() as u64 + 1)) {
            Ok(ticket) => tickets.push(ticket),
            // The writer may not have taken what is in the queue yet.
            Err(error) if error.kind() == ErrorKind::Busy && begun.elapsed() < Duration::from_secs(2) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => break error,
        }
        assert!(tickets.len() < 2000, "{} appends wait", tickets.len());
    };
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let waiting: usize = (1..=tickets.len() as u64).map(|n| record(n).len()).sum();
    assert!(waiting < 3 * bytes, "{waiting} bytes wait");
    assert_eq!(log.last_index(), Index(0));
    vault.set(|_, _| Ok(()));
    for (n, ticket) in (1..).zip(tickets) {
        assert_eq!(ticket.wait().unwrap(), Index(n));
    }
    read_all(&log, 1, log.last_index().get());
}

/// All that waits behind a slice whose put hangs is bounded, also if it does not go to the object store itself: appends that are smaller
/// than a reference, commands, and all appends once the class is switched off.
#[test]
fn all_that_waits_behind_a_slice_is_bounded() {
    for what in ["small appends", "commands", "appends of a log that was switched off"] {
        let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
        let vault = Arc::new(HookedVault::new(below));
        let bytes = 128 << 10;
        let log = open(
            dir.path(),
            options(&vault)
                .block_bytes_max(64 << 10)
                .batch_bytes_max(32 << 10)
                .record_bytes_max(16 << 10)
                .queue_bytes_max(bytes)
                .queue_appends_max(2000)
                .queue_timeout(Duration::ZERO),
        );
        append(&log, 1);
        let (held, begun) = (Arc::new(Mutex::new(())), Arc::new(AtomicU64::new(0)));
        let lock = held.lock().unwrap();
        let (waits, arrived) = (held.clone(), begun.clone());
        vault.set(move |call, name| {
            if call == "put" && name.contains("/p/") {
                arrived.fetch_add(1, Ordering::Relaxed);
                drop(waits.lock());
            }
            Ok(())
        });
        let first = log.submit(&record(2)).unwrap();
        eventually("the put hangs", || begun.load(Ordering::Relaxed) > 0);
        if what.contains("switched") {
            log.set_log_options(&[(LogOption::PayloadSlices, Some(0))], Duration::from_secs(20)).unwrap();
        }
        let (mut taken, mut busy_since, mut tickets, mut others) = (0, None, Vec::new(), Vec::new());
        while taken < 200_000 {
            let submitted = match what {
                "commands" => log.submit_discard(Index(1)).map(|ticket| others.push(ticket)),
                "small appends" => log.submit(b"12345678").map(|ticket| tickets.push(ticket)),
                _ => log.submit(&record(3)).map(|ticket| tickets.push(ticket)),
            };
            match submitted {
                Ok(()) => (taken, busy_since) = (taken + 1, None),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Busy, "{what}: {error}");
                    let since = *busy_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > Duration::from_millis(500) {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        // In the queue, here, and one turn of the queue; of commands the queue holds more.
        let most = match what {
            "commands" => 140_000,
            "small appends" => 8000,
            _ => 5 * bytes / record(3).len(),
        };
        assert!(taken < most, "{what}: {taken} wait");
        drop(lock);
        assert_eq!(first.wait().unwrap(), Index(2));
        for (n, ticket) in (3..).zip(tickets) {
            assert_eq!(ticket.wait().unwrap(), Index(n), "{what}");
        }
        others.into_iter().for_each(|ticket| _ = ticket.wait().unwrap());
    }
}

/// Payload that waits for the object store takes no room in the log: nothing is refused as full for it.
#[test]
fn payload_that_waits_does_not_fill_the_log() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let vault = Arc::new(HookedVault::new(below));
    let (bytes, capacity) = (384 << 10, 2 * u64::from(SEGMENT));
    let limits = options(&vault).queue_bytes_max(bytes).queue_timeout(Duration::ZERO);
    let limits = limits.block_bytes_max(64 << 10).batch_bytes_max(32 << 10).record_bytes_max(16 << 10);
    let log = open(dir.path(), limits.capacity_bytes(capacity));
    append(&log, 1);
    let held = Arc::new(Mutex::new(()));
    let lock = held.lock().unwrap();
    let waits = held.clone();
    vault.set(move |call, name| {
        if call == "put" && name.contains("/p/") {
            drop(waits.lock());
        }
        Ok(())
    });
    let (mut tickets, mut busy_since, mut waiting, begun) = (Vec::new(), None, 0, Instant::now());
    loop {
        let next = record(tickets.len() as u64 + 2);
        match log.submit(&next) {
            Ok(ticket) => {
                waiting += next.len() as u64;
                (busy_since, _) = (None, tickets.push(ticket));
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                let since = *busy_since.get_or_insert_with(Instant::now);
                let is_enough = waiting > capacity || begun.elapsed() > Duration::from_secs(60);
                if is_enough && since.elapsed() > Duration::from_millis(500) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    assert!(waiting > capacity, "{waiting}");
    drop(lock);
    for (n, ticket) in (2..).zip(tickets) {
        assert_eq!(ticket.wait().unwrap(), Index(n));
    }
}
