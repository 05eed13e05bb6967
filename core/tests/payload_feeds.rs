//! The durability class `object`: copies are fed whole batches.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/payload_log.rs"]
mod payload_log;

use chiplog::Index;
use chiplog::follower::{FollowFrom, FollowMessage};
use chiplog::vault::{MemoryVault, Vault};
use payload_log::{append, eventually, open, options, payloads};
use std::sync::Arc;
use std::time::Duration;

/// The items of a feed are bounded by the payload that they carry, and not by the references to it.
#[test]
fn items_of_a_feed_are_bounded_by_their_payload() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = open(dir.path(), options(&vault));
    let large = |n: u64| vec![n as u8; 40_000 + n as usize];
    (1..=60).for_each(|n| assert_eq!(log.append(&large(n)).unwrap(), Index(n)));
    let mut feed = log.follow(FollowFrom::First).unwrap();
    let mut records = 0;
    loop {
        let least = feed.next_bytes().unwrap();
        let Some(item) = feed.next(100_000).unwrap() else { break };
        if let FollowMessage::Entries(entries) = &item {
            assert!(item.bytes() <= 100_000, "{} bytes in {} entries", item.bytes(), entries.len());
            assert!(least.unwrap() <= item.bytes(), "{least:?} of {}", item.bytes());
            records += u64::from(item.bytes() >= 40_000) * (item.bytes() / 40_000) as u64;
        }
        if least.is_some_and(|bytes| bytes > 1000) {
            assert!(least.unwrap() > 40_000, "{least:?}");
        }
    }
    assert_eq!(records, 60);
}

/// Records are discarded, and so are their objects and their payload slices; their entries are in a file that still grows. A feed leads
/// a copy past them by a state.
#[test]
fn feed_leads_past_entries_whose_payload_is_gone() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = || options(&vault).object_delete_delay(Duration::from_millis(1));
    let log = open(dir.path(), options());
    append(&log, 1);
    let mut feed = log.follow(FollowFrom::First).unwrap();
    while feed.next(1 << 20).unwrap().is_some() {}
    let from = feed.resume_point();
    append(&log, 30);
    append(&log, 1); // its payload says where the log goes on, and stays
    log.cut_objects(log.last_index()).unwrap();
    let id = log.log_id();
    eventually("an object is stored", || log.metrics().stored_index == 32);
    eventually("its payload goes", || payloads(&*vault, id).len() == 1);
    log.discard(Index(33)).unwrap();
    let objects = || vault.list(&format!("{:032x}/o/", id.get())).unwrap().len();
    eventually("nothing is left of them", || objects() == 0);
    drop(log);
    let log = open(dir.path(), options()); // without the slices in memory
    append(&log, 5);
    let mut feed = log.follow(from).unwrap();
    let (mut states, mut bytes) = (0, 0);
    while let Some(item) = feed.next(1 << 20).unwrap() {
        match item {
            FollowMessage::State(_) => states += 1,
            item => bytes += item.bytes(),
        }
    }
    assert!(states == 1 && bytes > 5_000, "{states} states, {bytes} bytes");
}
