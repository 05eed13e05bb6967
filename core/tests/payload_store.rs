//! The durability class `object`: which payload slices stay in the object store, and what a fetch takes of them.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/payload_log.rs"]
mod payload_log;
#[path = "support/unsteady.rs"]
mod unsteady;

use chiplog::backup::{Backup, Inventory, Pin, RestoreOptions};
use chiplog::vault::{HookedVault, MemoryVault, Vault};
use chiplog::{ErrorKind, Index, Log, LogOption, Options};
use payload_log::{again, all_sliced, append, eventually, open, options, payloads, read_all, record, refuse};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use unsteady::Unsteady;

/// A pin keeps objects, which have the payload themselves: a backup of it needs no payload slice. The inventory knows each payload slice,
/// and removes those that nothing needs, and no other.
#[test]
fn pins_have_the_payload_and_the_inventory_knows_every_slice() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = || options(&vault).object_bytes(256 << 10).object_delete_delay(Duration::ZERO);
    let log = open(&dir.path().join("lost"), options());
    let id = log.log_id();
    (0..10).for_each(|_| append(&log, 100));
    eventually("objects are stored", || log.metrics().stored_index > 500);
    let pin = Pin::make(&*vault, id, "kept", None).unwrap();
    (0..5).for_each(|_| append(&log, 100));
    all_sliced(&log);
    log.discard(Index(1400)).unwrap();
    eventually("payload of objects goes", || payloads(&*vault, id).len() < 20);
    all_sliced(&log);
    drop(log);
    // A leader of long ago has left this one.
    let stray = format!("{:032x}/p/{:020}.{:020}", id.get(), 0, 9);
    vault.put(&stray, &["left".into()]).unwrap();
    let there = Inventory::take(&*vault, id).unwrap();
    let count = payloads(&*vault, id).len() as u64;
    assert_eq!(
        (there.unknown.objects, there.unneeded_payloads.objects, there.unneeded_payloads.bytes),
        (0, 1, 4)
    );
    assert_eq!(there.payloads.objects, count - 1);
    // A damaged object does not keep the inventory from showing what there is. Then nothing is known to be unneeded.
    let damaged = MemoryVault::default();
    for object in vault.list(&format!("{:032x}/", id.get())).unwrap() {
        damaged.put(&object.name, &[vault.get(&object.name, 0..object.bytes).unwrap()]).unwrap();
    }
    let newest = damaged.list(&format!("{:032x}/o/", id.get())).unwrap().pop().unwrap();
    let mut bytes = damaged.get(&newest.name, 0..newest.bytes).unwrap().to_vec();
    let at = bytes.len() - 30;
    bytes[at] ^= 1;
    damaged.put(&newest.name, &[bytes.into()]).unwrap();
    let unclear = Inventory::take(&damaged, id).unwrap();
    assert!(
        unclear.payloads_unclear.as_ref().unwrap().contains(&newest.name),
        "{:?}",
        unclear.payloads_unclear
    );
    let all = payloads(&damaged, id).len() as u64;
    assert_eq!((unclear.payloads.objects, unclear.unneeded_payloads.objects), (all, 0));
    assert_eq!(unclear.delete_unneeded_payloads(&damaged).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(there.payloads_unclear, None);
    assert_eq!(there.delete_unneeded_payloads(&*vault).unwrap(), 1);
    assert!(!payloads(&*vault, id).contains(&stray) && payloads(&*vault, id).len() as u64 == count - 1);
    let (log, notes) = again(&*vault, id, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_all(&log, 1400, 1500);
    drop(log);
    // Without a payload slice the pin has all that it covers.
    payloads(&*vault, id).iter().for_each(|name| vault.delete(name).unwrap());
    let backup = Backup::fetch_pin(&*vault, id, "kept", dir.path().join("pinned"), &mut |_, _| {}).unwrap();
    backup.restore(dir.path().join("old"), &RestoreOptions::default(), &mut |_, _| {}).unwrap();
    let old = Log::open(dir.path().join("old"), Options::with_segment_bytes(1 << 20)).unwrap();
    read_all(&old, pin.first.get(), pin.last.get());
    assert!(pin.first == Index(1) && pin.last > Index(500), "{pin:?}");
    drop(old);
    Pin::remove(&*vault, id, "kept").unwrap();
    Inventory::delete_log(&*vault, id).unwrap();
    assert!(vault.list("").unwrap().is_empty());
}

/// Servers keep payload from the first object on that is lost, to make it again: so does the inventory, and all of it.
#[test]
fn payload_stays_while_an_object_is_lost() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = open(dir.path(), options(&vault).object_bytes(256 << 10));
    let id = log.log_id();
    (0..12).for_each(|_| append(&log, 100));
    eventually("objects are stored", || log.metrics().stored_objects >= 4);
    all_sliced(&log);
    drop(log);
    vault.put(&format!("{:032x}/p/{:020}.{:020}", id.get(), 0, 9), &["of an earlier term".into()]).unwrap();
    let counted = || {
        let there = Inventory::take(&*vault, id).unwrap();
        (there.unneeded_payloads.objects, there.payloads_unclear)
    };
    assert_eq!(counted(), (1, None));
    let objects = vault.list(&format!("{:032x}/o/", id.get())).unwrap();
    let (_, others) = objects.split_last().unwrap();
    for object in others {
        let bytes = vault.get(&object.name, 0..object.bytes).unwrap();
        for left in [None, Some(bytes.slice(..bytes.len() - 4096))] {
            match left {
                None => vault.delete(&object.name).unwrap(),
                Some(part) => vault.put(&object.name, &[part]).unwrap(),
            }
            let (unneeded, why) = counted();
            assert!(unneeded == 0 && why.as_ref().is_some_and(|why| why.contains(&object.name)), "{why:?}");
            let there = Inventory::take(&*vault, id).unwrap();
            assert_eq!(there.delete_unneeded_payloads(&*vault).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        vault.put(&object.name, &[bytes]).unwrap();
        assert_eq!(counted(), (1, None));
    }
    // One whose records are discarded is not made again.
    vault.delete(&others[0].name).unwrap();
    vault.create(&format!("{:032x}/begin/{:020}", id.get(), 1), "begin".into()).unwrap();
    assert_eq!(counted(), (1, None));
}

/// A damaged object of the size that the log says counted as whole: then payload that was left over, the last copy of its
/// records, was deleted.
#[test]
fn payload_stays_while_an_object_with_its_records_is_damaged() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = || options(&vault).object_bytes(256 << 10);
    // The log has two terms, and its oldest rows are in other objects.
    let mut terms = Vec::new();
    for _ in 0..2 {
        let log = open(dir.path(), options());
        let rows = [(LogOption::ObjectRows, Some(2))];
        log.set_log_options(&rows, Duration::from_secs(60)).unwrap();
        (0..20).for_each(|_| append(&log, 100));
        // All but the last one, which is not full: the second half of the objects is then of the second term.
        eventually("objects are stored", || log.metrics().stored_index + 400 > log.last_index().get());
        all_sliced(&log);
        let newest = payloads(&*vault, log.log_id()).pop().unwrap();
        let (term, _) = newest.rsplit('/').next().unwrap().split_once('.').unwrap();
        terms.push((log.log_id(), term.parse::<u64>().unwrap()));
    }
    let (id, term) = terms[0];
    assert!(term < terms[1].1);
    let left = format!("{:032x}/p/{:020}.{:020}", id.get(), term, 9999);
    vault.put(&left, &["left".into()]).unwrap();
    let there = Inventory::take(&*vault, id).unwrap();
    assert_eq!((there.unneeded_payloads.objects, &there.payloads_unclear), (1, &None));
    let objects = vault.list(&format!("{:032x}/o/", id.get())).unwrap();
    let (_, others) = objects.split_last().unwrap();
    let mut kept = 0;
    for object in others {
        let bytes = vault.get(&object.name, 0..object.bytes).unwrap();
        let mut bad = bytes.to_vec();
        bad[bytes.len() / 2] ^= 1;
        vault.put(&object.name, &[bad.into()]).unwrap();
        match there.delete_unneeded_payloads(&*vault) {
            Ok(deleted) => {
                assert!(deleted == 1 && vault.size(&left).unwrap().is_none());
                vault.put(&left, &["left".into()]).unwrap();
            }
            Err(error) => {
                assert!(
                    error.kind() == ErrorKind::Corrupt && error.to_string().contains(&object.name),
                    "{error}"
                );
                assert!(vault.size(&left).unwrap().is_some());
                kept += 1;
            }
        }
        vault.put(&object.name, &[bytes]).unwrap();
    }
    // The records of the second term are not in it.
    assert!(kept >= 5 && kept + 4 <= others.len(), "{kept} of {}", others.len());
    assert_eq!(there.delete_unneeded_payloads(&*vault).unwrap(), 1);
}

/// A leader that did not know yet which objects are damaged deleted payload at once, and with it the last copy of an object's records.
#[test]
fn payload_stays_until_damaged_objects_are_known() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let vault = Arc::new(HookedVault::new(below.clone()));
    let log = open(dir.path(), options(&vault).object_bytes(256 << 10));
    let id = log.log_id();
    let no_deletion = |call: &str, name: &str| match call == "delete" && name.contains("/p/") {
        true => Err(chiplog::Error::new(ErrorKind::PermissionDenied, "injected: it stays")),
        false => Ok(()),
    };
    vault.set(no_deletion);
    (0..12).for_each(|_| append(&log, 100));
    eventually("objects are stored", || log.metrics().stored_objects >= 4);
    all_sliced(&log);
    drop(log);
    let kept = payloads(&*below, id).len();
    let first = below.list(&format!("{:032x}/o/", id.get())).unwrap().remove(0);
    let right = below.get(&first.name, 0..first.bytes).unwrap();
    let mut bad = right.to_vec();
    bad[right.len() / 2] ^= 1;
    below.put(&first.name, &[bad.into()]).unwrap();
    // The list of damaged objects could not be written: it says that any object can be one.
    std::fs::write(dir.path().join("chiplog.suspects"), b"").unwrap();
    vault.set(|call, name| match call == "list" && name.contains("/o/") {
        true => Err(chiplog::Error::new(ErrorKind::Unavailable, "injected: the objects cannot be listed")),
        false => Ok(()),
    });
    let scrub = Some(Duration::from_millis(300));
    let log = open(dir.path(), options(&vault).object_bytes(256 << 10).object_scrub(scrub));
    append(&log, 10);
    all_sliced(&log);
    // Time enough for the leader to delete payload, if it were to.
    std::thread::sleep(Duration::from_millis(300));
    assert!(payloads(&*below, id).len() >= kept, "payload went");
    vault.set(|_, _| Ok(()));
    eventually("the object is stored again", || log.metrics().repaired_objects == 1);
    assert_eq!(below.get(&first.name, 0..first.bytes).unwrap(), right);
    eventually("payload goes", || payloads(&*below, id).len() < kept);
}

/// All objects are discarded, and slices cannot begin with the log's state yet: the older slices lead to the newest records, so their
/// payload stays.
#[test]
fn payload_stays_while_older_slices_lead_to_the_end() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let vault = Arc::new(HookedVault::new(below.clone()));
    let options = || options(&vault).object_bytes(128 << 10);
    let log = open(&dir.path().join("lost"), options());
    let id = log.log_id();
    // A little larger than a reference to it: files fill soon.
    let text = |n: u64| format!("{n:060}");
    let add = |count: u64| {
        let last = log.last_index().get();
        let tickets: Vec<_> =
            (last + 1..=last + count).map(|n| log.submit(text(n).as_bytes()).unwrap()).collect();
        tickets.into_iter().for_each(|ticket| _ = ticket.wait().unwrap());
    };
    add(6000);
    eventually("objects are stored", || log.metrics().stored_index > 1000);
    refuse(&vault, &["/o/"]);
    (0..4).for_each(|_| add(3000));
    all_sliced(&log);
    refuse(&vault, &["/o/", "/s/"]);
    let last = log.last_index();
    log.discard(Index(last.get() - 9)).unwrap();
    let files = || {
        std::fs::read_dir(dir.path().join("lost"))
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(".seg"))
            .count()
    };
    let before = files();
    eventually("files go", || files() < before || log.metrics().slice_failures > 3);
    // Time enough for the leader to delete payload, if it were to.
    std::thread::sleep(Duration::from_millis(300));
    let check = |what: &str| {
        let (log, notes) = again(&*below, id, dir.path());
        assert!(notes.is_empty(), "{what}: {notes:?}");
        assert_eq!(log.last_index(), last, "{what}");
        assert_eq!(log.read(last).unwrap().data, text(last.get()).as_bytes());
    };
    check("before");
    let kept = payloads(&*below, id).len();
    assert!(kept > 2, "{kept} payload slices");
    vault.set(|_, _| Ok(()));
    eventually("payload of discarded records goes", || payloads(&*below, id).len() < kept);
    check("after");
}

/// A directory that is not mounted looks like an empty store. A log whose files refer to payload stores none there, also before its first
/// object.
#[test]
fn payload_does_not_go_to_an_empty_store() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = open(dir.path(), options(&vault));
    append(&log, 3);
    drop(log);
    let empty = Arc::new(MemoryVault::default());
    let log = open(dir.path(), options(&empty));
    let error = log.append(&record(4)).unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("root"), "{error}");
    assert!(payloads(&*empty, log.log_id()).is_empty());
    drop(log);
    let log = open(dir.path(), options(&vault));
    append(&log, 1);
    read_all(&log, 1, 4);
}

/// `root` goes first when a log is removed from the object store. Servers that still run it go on for a while: what they put then would be
/// left over.
#[test]
fn no_payload_is_put_once_the_root_is_gone() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = Options::with_segment_bytes(4 << 20).vault(vault.clone() as Arc<dyn Vault>);
    let options = options.slice_interval(Some(Duration::from_millis(10))).payload_slices(true);
    let log = open(dir.path(), options.slice_bytes(512 << 10));
    append(&log, 10);
    let id = log.log_id();
    let root = format!("{:032x}/root", id.get());
    let text = vault.get(&root, 0..vault.size(&root).unwrap().unwrap()).unwrap();
    let before = payloads(&*vault, id).len();
    vault.delete(&root).unwrap();
    // A slice has two or three of them.
    let tickets: Vec<_> = (0..40).map(|n| log.submit(&vec![n; 600 << 10]).unwrap()).collect();
    eventually("each was tried, and some again", || log.metrics().payload_failures > 60);
    let added = payloads(&*vault, id).len() - before;
    assert!(added <= 8, "{added} were put, more than are put at a time");
    // It was a directory that was not mounted for a while: they go on.
    vault.create(&root, text).unwrap();
    tickets.into_iter().for_each(|ticket| _ = ticket.wait().unwrap());
}

/// Payload that comes damaged, and is sound in the object store, ends no fetch early.
#[test]
fn fetch_is_not_cut_by_payload_that_comes_damaged() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(Unsteady::default()));
    let log = open(&dir.path().join("lost"), options(&vault));
    let id = log.log_id();
    (0..4).for_each(|_| append(&log, 20));
    all_sliced(&log);
    drop(log);
    for damages in [1, 3, 7] {
        vault.damages.store(damages, Ordering::SeqCst);
        vault.gets.lock().unwrap().clear();
        let (log, notes) = again(&*vault, id, dir.path());
        assert!(notes.is_empty(), "{damages}: {notes:?}");
        read_all(&log, 1, 80);
    }
}

/// A directory that was restored from an older image of the disk has used up terms before: it puts nothing over payload of the log that was
/// lost, and deletes nothing, and all that was acknowledged comes back from the object store.
#[test]
fn older_copy_of_a_log_puts_and_deletes_no_payload() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let (lost, image) = (dir.path().join("lost"), dir.path().join("image"));
    let log = open(&lost, options(&vault));
    append(&log, 20);
    all_sliced(&log);
    let id = log.log_id();
    drop(log);
    std::fs::create_dir(&image).unwrap();
    for entry in std::fs::read_dir(&lost).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), image.join(entry.file_name())).unwrap();
    }
    let log = open(&lost, options(&vault));
    append(&log, 20);
    all_sliced(&log);
    drop(log);
    let there = payloads(&*vault, id);
    let bytes = |name: &String| vault.get(name, 0..vault.size(name).unwrap().unwrap()).unwrap();
    let before: Vec<_> = there.iter().map(bytes).collect();
    let log = Log::open(&image, options(&vault)).unwrap();
    let error = log.append(&record(21)).unwrap_err();
    assert!(error.to_string().contains("older copy of the log"), "{error}");
    drop(log);
    assert_eq!(payloads(&*vault, id), there);
    assert_eq!(there.iter().map(bytes).collect::<Vec<_>>(), before);
    let (log, notes) = again(&*vault, id, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_all(&log, 1, 40);
}
