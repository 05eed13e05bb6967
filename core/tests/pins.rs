//! Pins: objects in an object store that stay, whatever the log discards.
#![allow(clippy::unwrap_used, reason = "a test")]

use bytes::Bytes;
use chiplog::backup::{Backup, Inventory, PINS_MAX, Pin, RestoreOptions};
use chiplog::vault::{FaultOptions, FaultyVault, MemoryVault, ObjectInfo, Vault};
use chiplog::{ErrorKind, Index, Log, LogId, Options};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SEGMENT: u32 = 256 << 10;

fn options(vault: &Arc<MemoryVault>) -> Options {
    Options::with_segment_bytes(SEGMENT)
        .vault(vault.clone() as Arc<dyn Vault>)
        .object_bytes(64 << 10)
        .object_delete_delay(Duration::from_millis(50))
}

fn record(n: u64) -> Vec<u8> {
    n.to_le_bytes().repeat(60)
}

/// Appends in small blocks: an object has whole ones.
fn append(log: &Log, count: u64) {
    let from = log.last_index().get();
    let numbers: Vec<u64> = (from + 1..=from + count).collect();
    for few in numbers.chunks(40) {
        let tickets: Vec<_> = few.iter().map(|n| log.submit(&record(*n)).unwrap()).collect();
        tickets.into_iter().for_each(|ticket| assert!(ticket.wait().is_ok()));
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A log with 8 objects or more. As long as nothing is appended, no further object comes.
fn stored(dir: &Path, vault: &Arc<MemoryVault>) -> Log {
    let log = Log::open(dir, options(vault)).unwrap();
    append(&log, 2000);
    eventually("objects are stored", || log.metrics().stored_objects >= 8);
    log.cut_objects(log.last_index()).unwrap();
    eventually("all is stored", || log.metrics().stored_index >= log.last_index().get());
    log
}

/// The numbers of the objects that are there.
fn objects(vault: &MemoryVault, log: LogId) -> BTreeSet<u64> {
    let names = vault.list(&format!("{:032x}/o/", log.get())).unwrap();
    names.iter().map(|object| object.name.rsplit('/').next().unwrap().parse().unwrap()).collect()
}

fn pin_names(vault: &MemoryVault, log: LogId) -> Vec<String> {
    Pin::list(vault, log).unwrap().into_iter().map(|pin| pin.name).collect()
}

/// Makes a log of what a pin keeps, and compares its records.
fn check_fetched(dir: &Path, vault: &MemoryVault, log: LogId, pin: &Pin) {
    let (backup, again) = (dir.join(format!("{}.backup", pin.name)), dir.join(&pin.name));
    let fetched = Backup::fetch_pin(vault, log, &pin.name, &backup, &mut |_, _| {}).unwrap();
    assert_eq!((fetched.info().first, fetched.info().last), (pin.first, pin.last));
    fetched.restore(&again, &RestoreOptions::default(), &mut |_, _| {}).unwrap();
    let log = Log::open(&again, Options::with_segment_bytes(SEGMENT)).unwrap();
    assert_eq!((log.first_index(), log.last_index()), (pin.first, pin.last));
    for n in pin.first.get()..=pin.last.get() {
        assert_eq!(log.read(Index(n)).unwrap().data, record(n));
    }
}

#[test]
fn pinned_objects_outlive_a_discard_and_no_other_one_does() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = stored(&dir.path().join("log"), &vault);
    let id = log.log_id();
    let pin = Pin::make(&*vault, id, "early", Some(Index(300))).unwrap();
    assert_eq!((pin.first_object, pin.first), (0, Index(1)));
    assert!(pin.last >= Index(300) && pin.last_object < 4, "{pin:?}");
    let error = Pin::make(&*vault, id, "early", None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    let whole = Pin::make(&*vault, id, "whole", None).unwrap();
    assert!(whole.last > Index(900) && whole.last_object >= 7, "{whole:?}");
    Pin::remove(&*vault, id, "whole").unwrap();
    assert_eq!(Pin::remove(&*vault, id, "whole").unwrap_err().kind(), ErrorKind::NotFound);

    log.discard(Index(whole.last.get() - 10)).unwrap();
    eventually("objects are deleted", || !objects(&vault, id).contains(&(whole.last_object - 2)));
    let kept: BTreeSet<u64> =
        objects(&vault, id).into_iter().filter(|n| *n < whole.last_object - 2).collect();
    assert_eq!(kept, (0..=pin.last_object).collect());
    assert_eq!(pin.missing(&*vault, id).unwrap(), 0);
    check_fetched(dir.path(), &vault, id, &pin);
    // Without the pin it is the log as it is now.
    let now = Backup::fetch(&*vault, id, dir.path().join("now"), &mut |_, _| {}).unwrap();
    assert!(now.info().first > pin.last, "{:?}", now.info());
    // Discarded records cannot be pinned, even while another pin keeps them.
    let error = Pin::make(&*vault, id, "late", Some(Index(300))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Discarded, "{error}");
    let error = Pin::make(&*vault, id, "ahead", Some(Index(1 << 40))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange, "{error}");

    Pin::remove(&*vault, id, "early").unwrap();
    append(&log, 1000);
    eventually("more is stored", || objects(&vault, id).contains(&(whole.last_object + 2)));
    log.discard(log.last_index()).unwrap();
    eventually("they are deleted with the next ones", || !objects(&vault, id).contains(&0));
    assert!(pin_names(&vault, id).is_empty());
}

/// A log that has nothing else left still has its pins, and nobody takes these for its end.
#[test]
fn pins_of_a_log_that_discarded_everything() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = stored(&dir.path().join("log"), &vault);
    let id = log.log_id();
    let pin = Pin::make(&*vault, id, "early", Some(Index(300))).unwrap();
    log.close().unwrap();
    let newest = *objects(&vault, id).last().unwrap();
    // As the leader does it, with a begin behind all objects.
    let folder = format!("{:032x}", id.get());
    let begin = format!("{folder}/begin/{:020}", newest + 1);
    vault.create(&begin, Bytes::from_static(b"begin")).unwrap();
    for number in pin.last_object + 1..=newest {
        vault.delete(&format!("{folder}/o/{number:020}")).unwrap();
    }
    let error = Backup::fetch(&*vault, id, dir.path().join("now"), &mut |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Discarded, "{error}");
    assert_eq!(Pin::make(&*vault, id, "new", None).unwrap_err().kind(), ErrorKind::Discarded);
    check_fetched(dir.path(), &vault, id, &pin);
    vault.delete(&format!("{folder}/o/{:020}", 1)).unwrap();
    let error = Backup::fetch_pin(&*vault, id, "early", dir.path().join("less"), &mut |_, _| {}).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("object 1 "), "{error}");
    assert_eq!(pin.missing(&*vault, id).unwrap(), 1);
    // Without the pin they are left for a while: they are no more the log than before.
    Pin::remove(&*vault, id, "early").unwrap();
    let error = Backup::fetch(&*vault, id, dir.path().join("now"), &mut |_, _| {}).unwrap_err();
    let says_it = error.to_string().contains(&format!("below number {} ", newest + 1));
    assert!(error.kind() == ErrorKind::Discarded && says_it, "{error}");
    assert!(!dir.path().join("now").exists());
}

/// A pin that cannot be read could keep anything: no object is deleted until it can be, or is removed.
#[test]
fn unreadable_pin_keeps_all_objects() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = stored(dir.path(), &vault);
    let id = log.log_id();
    let name = format!("{:032x}/pin/newer", id.get());
    vault.create(&name, Bytes::from_static(b"chiplog pin\nformat 2\n")).unwrap();
    let before = objects(&vault, id);
    log.discard(Index(1500)).unwrap();
    let begins = || vault.list(&format!("{:032x}/begin/", id.get())).unwrap().len();
    eventually("a deletion begins", || begins() == 1);
    log.close().unwrap();
    assert!(objects(&vault, id).is_superset(&before));
    let error = Pin::list(&*vault, id).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains(&name), "{error}");
    Pin::remove(&*vault, id, "newer").unwrap();
    let log = Log::open(dir.path(), options(&vault)).unwrap();
    eventually("objects are deleted", || {
        append(&log, 1);
        !objects(&vault, id).contains(&0)
    });
}

#[test]
fn impossible_pins_are_refused() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = stored(dir.path(), &vault);
    let id = log.log_id();
    for name in ["", "A", "-a", "a/b", "..", &"x".repeat(65)] {
        let error = Pin::make(&*vault, id, name, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}: {error}");
        assert_eq!(Pin::remove(&*vault, id, name).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(Pin::make(&*vault, LogId(7), "a", None).unwrap_err().kind(), ErrorKind::NotFound);
    let error = Backup::fetch_pin(&*vault, id, "a", dir.path().join("b"), &mut |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    for n in 0..PINS_MAX {
        vault.create(&format!("{:032x}/pin/{n}", id.get()), Bytes::new()).unwrap();
    }
    assert_eq!(Pin::make(&*vault, id, "one-more", None).unwrap_err().kind(), ErrorKind::Busy);
}

/// A vault whose calls fail from one on, as after a crash, with or without the effect of that one.
#[derive(Debug)]
struct CrashVault {
    below: Arc<MemoryVault>,
    calls_left: AtomicUsize,
    /// The last call has its effect all the same.
    takes_effect: bool,
}

impl CrashVault {
    fn call<T>(&self, call: impl FnOnce(&MemoryVault) -> chiplog::Result<T>) -> chiplog::Result<T> {
        let crashed = || chiplog::Error::new(ErrorKind::Unavailable, "injected");
        let left = self.calls_left.load(Ordering::Relaxed);
        self.calls_left.store(left.saturating_sub(1), Ordering::Relaxed);
        match left {
            0 => Err(crashed()),
            1 if self.takes_effect => call(&self.below).and(Err(crashed())),
            1 => Err(crashed()),
            _ => call(&self.below),
        }
    }
}

impl Vault for CrashVault {
    fn put(&self, name: &str, pieces: &[Bytes]) -> chiplog::Result<()> {
        self.call(|below| below.put(name, pieces))
    }
    fn create(&self, name: &str, bytes: Bytes) -> chiplog::Result<bool> {
        self.call(|below| below.create(name, bytes))
    }
    fn get(&self, name: &str, range: Range<u64>) -> chiplog::Result<Bytes> {
        self.call(|below| below.get(name, range))
    }
    fn size(&self, name: &str) -> chiplog::Result<Option<u64>> {
        self.call(|below| below.size(name))
    }
    fn list(&self, prefix: &str) -> chiplog::Result<Vec<ObjectInfo>> {
        self.call(|below| below.list(prefix))
    }
    fn delete(&self, name: &str) -> chiplog::Result<()> {
        self.call(|below| below.delete(name))
    }
}

#[test]
fn crash_at_every_call_of_a_maker_leaves_a_pin_or_none() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = stored(dir.path(), &vault);
    let id = log.log_id();
    log.close().unwrap();
    let before = objects(&vault, id);
    for takes_effect in [false, true] {
        let (mut calls, mut left_over) = (1, 0);
        loop {
            let crashing =
                CrashVault { below: vault.clone(), calls_left: AtomicUsize::new(calls), takes_effect };
            let made = Pin::make(&crashing, id, "p", Some(Index(500)));
            let there = pin_names(&vault, id);
            match made {
                Ok(pin) => {
                    assert!(calls > 5 && there == ["p"] && pin.missing(&*vault, id).unwrap() == 0);
                    break;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
            // It is there or not, and can be removed and made.
            if !there.is_empty() {
                left_over += 1;
                Pin::remove(&*vault, id, "p").unwrap();
            }
            Pin::make(&*vault, id, "p", None).unwrap();
            Pin::remove(&*vault, id, "p").unwrap();
            calls += 1;
        }
        assert!(left_over > 0, "no crash between the pin and its check");
        Pin::remove(&*vault, id, "p").unwrap();
    }
    assert_eq!(objects(&vault, id), before);
}

/// Faults of the store while pins are made and objects are deleted.
#[test]
fn pins_hold_while_the_store_fails_now_and_then() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let faults = FaultOptions::default().refused(15).unanswered(15);
    let faulty = Arc::new(FaultyVault::new(below.clone(), 11, faults));
    let log = Log::open(dir.path(), options(&below).vault(faulty.clone() as Arc<dyn Vault>)).unwrap();
    let id = log.log_id();
    append(&log, 500);
    eventually("objects are stored", || log.metrics().stored_objects >= 2);
    let mut made = Vec::new();
    for n in 0..60 {
        append(&log, 200);
        made.extend(Pin::make(&*faulty, id, &format!("p{n}"), None).ok());
        // The newest object stays.
        let stored = log.metrics().stored_index;
        if stored > 300 {
            log.discard(Index(stored - 200)).unwrap();
        }
    }
    assert!(made.len() > 10, "{}", made.len());
    faulty.set_faults(FaultOptions::default());
    log.close().unwrap();
    for pin in made {
        assert_eq!(pin.missing(&*below, id).unwrap(), 0, "{pin:?}");
    }
}

/// Records go into an object at once if the program asks for it, and a pin of these is a backup.
#[test]
fn records_are_stored_on_request_and_pinned() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = || options(&vault).object_bytes(64 << 20);
    let log = Log::open(dir.path().join("log"), options()).unwrap();
    let id = log.log_id();
    log.cut_objects(Index(0)).unwrap();
    for count in [10, 1, 700] {
        append(&log, count);
        let upto = log.last_index();
        assert!(log.metrics().stored_index < upto.get());
        log.cut_objects(upto).unwrap();
        eventually("all is stored", || log.metrics().stored_index == upto.get());
        let pin = Pin::make(&*vault, id, &format!("upto-{upto}"), Some(upto)).unwrap();
        assert_eq!((pin.first, pin.last), (Index(1), upto));
        check_fetched(dir.path(), &vault, id, &pin);
    }
    // A record that is not there yet cannot be put into one: that would never end.
    for upto in [log.last_index().get() + 1, u64::MAX] {
        let error = log.cut_objects(Index(upto)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfRange, "{error}");
    }
    // Nothing is left to store, and what is appended later waits again.
    let stored = objects(&vault, id).len();
    append(&log, 5);
    log.cut_objects(Index(3)).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(objects(&vault, id).len(), stored);
    // A discard beyond the end leaves nothing to store.
    log.discard(Index(2000)).unwrap();
    log.cut_objects(log.last_index()).unwrap();
    log.close().unwrap();
    let bare = Log::open(dir.path().join("bare"), Options::with_segment_bytes(SEGMENT)).unwrap();
    let error = bare.cut_objects(Index(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

/// A list of all that is there, deletion of what nothing needs, and of a whole log.
#[test]
fn unneeded_objects_are_found_and_deleted() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = stored(&dir.path().join("log"), &vault);
    let id = log.log_id();
    log.close().unwrap();
    let take = || Inventory::take(&*vault, id).unwrap();
    let newest = *objects(&vault, id).last().unwrap();
    let before = take();
    assert_eq!((before.range, before.begin, before.has_root), (Some((0, newest)), 0, true));
    assert_eq!((before.needed.objects, before.unneeded.objects), (newest + 1, 0));
    let (first, last) = before.records(&*vault).unwrap().unwrap();
    assert!(first == Index(1) && last > Index(900));
    assert_eq!(before.delete_unneeded(&*vault).unwrap(), 0);

    // The leader said that all below object 6 is discarded, and was killed then.
    let pin = Pin::make(&*vault, id, "early", Some(Index(200))).unwrap();
    assert!(pin.last_object < 4);
    let folder = format!("{:032x}", id.get());
    for begin in [4, 6] {
        vault.create(&format!("{folder}/begin/{begin:020}"), Bytes::from_static(b"begin")).unwrap();
    }
    vault.create(&format!("{folder}/s/7/1"), Bytes::from_static(b"newer")).unwrap();
    let after = take();
    assert_eq!((after.begin, after.old_begins, after.unknown.objects, after.begin_made), (6, 1, 1, None));
    assert_eq!(after.pinned.objects, pin.last_object + 1);
    assert_eq!(after.unneeded.objects, 6 - after.pinned.objects);
    assert_eq!(after.needed.objects, newest - 5);
    // A pin cannot be made of these any more, and one that was made since the list is honoured.
    assert_eq!(after.delete_unneeded(&*vault).unwrap(), after.unneeded.objects);
    assert_eq!(take().unneeded.objects + take().old_begins, 0);
    assert_eq!((take().needed, take().pinned, take().unknown), (after.needed, after.pinned, after.unknown));
    check_fetched(dir.path(), &vault, id, &pin);
    Backup::fetch(&*vault, id, dir.path().join("now"), &mut |_, _| {}).unwrap();
    Pin::remove(&*vault, id, "early").unwrap();
    assert_eq!(take().delete_unneeded(&*vault).unwrap(), after.pinned.objects);

    Pin::make(&*vault, id, "whole", None).unwrap();
    let there = vault.list("").unwrap();
    assert_eq!(Inventory::delete_log(&*vault, id).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(vault.list("").unwrap(), there, "nothing is deleted while there is a pin");
    Pin::remove(&*vault, id, "whole").unwrap();
    vault.put("other", &[Bytes::from_static(b"stays")]).unwrap();
    Inventory::delete_log(&*vault, id).unwrap();
    assert_eq!(vault.list("").unwrap().len(), 1);
}

/// A deletion that is interrupted, at whatever call, can be repeated, and leaves a pin alone.
#[test]
fn crash_at_every_call_of_a_deletion_can_be_repeated() {
    let (dir, full) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let log = stored(dir.path(), &full);
    let id = log.log_id();
    log.close().unwrap();
    drop(log);
    eventually("no object is being stored any more", || Arc::strong_count(&full) == 1);
    let pin = Pin::make(&*full, id, "early", Some(Index(200))).unwrap();
    full.create(&format!("{:032x}/begin/{:020}", id.get(), 6), Bytes::from_static(b"begin")).unwrap();
    let kept = objects(&full, id).into_iter().filter(|n| *n >= 6 || *n <= pin.last_object).collect();
    for (takes_effect, calls) in
        [false, true].into_iter().flat_map(|effect| (1..20).map(move |n| (effect, n)))
    {
        let vault = Arc::new(MemoryVault::default());
        for object in full.list("").unwrap() {
            vault.put(&object.name, &[full.get(&object.name, 0..object.bytes).unwrap()]).unwrap();
        }
        let there = Inventory::take(&*vault, id).unwrap();
        let crashing = CrashVault { below: vault.clone(), calls_left: AtomicUsize::new(calls), takes_effect };
        let _ = there.delete_unneeded(&crashing);
        assert!(objects(&vault, id).is_superset(&kept), "{calls}");
        there.delete_unneeded(&*vault).unwrap();
        assert_eq!(objects(&vault, id), kept, "{calls}");
        Pin::remove(&*vault, id, "early").unwrap();
        let crashing = CrashVault { below: vault.clone(), calls_left: AtomicUsize::new(calls), takes_effect };
        let _ = Inventory::delete_log(&crashing, id);
        Inventory::delete_log(&*vault, id).unwrap();
        assert!(vault.list("").unwrap().is_empty(), "{calls}");
    }
}
