//! The durability class `object`: what is acknowledged comes back from the object store alone, at every moment.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/object_class.rs"]
mod object_class;

use bytes::Bytes;
use chiplog::backup::{Backup, RestoreOptions};
use chiplog::cluster::Role;
use chiplog::transport::MemoryNetwork;
use chiplog::vault::{MemoryVault, ObjectInfo, Vault};
use chiplog::{Durability, Error, ErrorKind, Index, Log, LogId, LogOption, NodeId, Options, Sequence, Start};
use object_class::{Cluster, eventually, is_on};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

type Names = BTreeMap<String, Bytes>;

/// The note about payload slices behind one that is not there.
const NEVER_STORED: &str = "it was never stored, or it is lost";

/// An object store that remembers what it had before and after each call that changed it, and what was acknowledged before.
#[derive(Debug, Default)]
struct Watched {
    now: Mutex<Names>,
    /// The record up to which all are acknowledged.
    acknowledged: AtomicU64,
    moments: Mutex<Vec<(u64, Names)>>,
    watches: AtomicBool,
    /// Names with this part cannot be put.
    refused: Mutex<Option<&'static str>>,
    /// How many objects arrive damaged, the next ones.
    spoils: AtomicU64,
}

impl Watched {
    fn refuse(&self, part: Option<&'static str>) {
        *self.refused.lock().unwrap() = part;
    }

    fn change<T>(&self, change: impl FnOnce(&mut Names) -> T) -> T {
        let mut now = self.now.lock().unwrap();
        let changed = change(&mut now);
        if self.watches.load(Ordering::SeqCst) {
            let moment = (self.acknowledged.load(Ordering::SeqCst), now.clone());
            self.moments.lock().unwrap().push(moment);
        }
        changed
    }

    /// The names that it has now, and the last record that was acknowledged before.
    fn moment(&self) -> (u64, Names) {
        let now = self.now.lock().unwrap();
        (self.acknowledged.load(Ordering::SeqCst), now.clone())
    }

    /// The bytes that arrive of an object that is put.
    fn arriving(&self, name: &str, mut bytes: Vec<u8>) -> Bytes {
        let spoil = |left: u64| left.checked_sub(1);
        if name.contains("/o/") && self.spoils.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spoil).is_ok()
        {
            let middle = bytes.len() / 3;
            bytes[middle] ^= 2;
        }
        bytes.into()
    }

    fn acknowledge(&self, n: u64) {
        self.acknowledged.fetch_max(n, Ordering::SeqCst);
    }
}

impl Vault for Watched {
    fn put(&self, name: &str, pieces: &[Bytes]) -> chiplog::Result<()> {
        if self.refused.lock().unwrap().is_some_and(|part| name.contains(part)) {
            return Err(Error::new(ErrorKind::Unavailable, "refused"));
        }
        let bytes = self.arriving(name, pieces.concat());
        self.change(|now| _ = now.insert(name.to_owned(), bytes));
        Ok(())
    }

    fn create(&self, name: &str, bytes: Bytes) -> chiplog::Result<bool> {
        if self.now.lock().unwrap().contains_key(name) {
            return Ok(false);
        }
        let bytes = self.arriving(name, bytes.to_vec());
        Ok(self.change(|now| match now.contains_key(name) {
            true => false,
            false => now.insert(name.to_owned(), bytes).is_none(),
        }))
    }

    fn get(&self, name: &str, range: std::ops::Range<u64>) -> chiplog::Result<Bytes> {
        let now = self.now.lock().unwrap();
        let found = now.get(name).ok_or_else(|| Error::new(ErrorKind::NotFound, name.to_owned()))?;
        match found.len() as u64 >= range.end {
            true => Ok(found.slice(range.start as usize..range.end as usize)),
            false => Err(Error::new(ErrorKind::OutOfRange, name.to_owned())),
        }
    }

    fn size(&self, name: &str) -> chiplog::Result<Option<u64>> {
        Ok(self.now.lock().unwrap().get(name).map(|found| found.len() as u64))
    }

    fn list(&self, prefix: &str) -> chiplog::Result<Vec<ObjectInfo>> {
        let below = MemoryVault::default();
        let now = self.now.lock().unwrap();
        now.iter()
            .filter(|(name, _)| name.starts_with(prefix))
            .try_for_each(|(name, bytes)| below.put(name, std::slice::from_ref(bytes)))?;
        below.list(prefix)
    }

    fn delete(&self, name: &str) -> chiplog::Result<()> {
        self.change(|now| _ = now.remove(name));
        Ok(())
    }
}

fn options(vault: &Arc<Watched>) -> Options {
    let options = Options::with_segment_bytes(256 << 10).vault(vault.clone() as Arc<dyn Vault>);
    options.slice_interval(Some(Duration::from_millis(10))).payload_slices(true)
}

/// Most records go to payload slices, some are too small for that.
fn record(n: u64) -> Vec<u8> {
    let mut record = vec![(n % 251) as u8; if n % 9 == 4 { 8 } else { 600 + (n % 500) as usize }];
    record[..8].copy_from_slice(&n.to_le_bytes());
    record
}

fn open(dir: &Path, options: Options) -> Log {
    let log = Log::open(dir, options).unwrap();
    eventually("the class is on", || is_on(&log));
    log
}

/// The log that comes back from what an object store had: its records are the first ones that were appended, each once.
fn again(names: &Names, id: LogId, dir: &Path) -> (Log, Vec<String>) {
    let vault = MemoryVault::default();
    names.iter().for_each(|(name, bytes)| vault.put(name, std::slice::from_ref(bytes)).unwrap());
    let at = |name: &str| dir.join(format!("{name}{}", std::fs::read_dir(dir).unwrap().count()));
    let backup = Backup::fetch(&vault, id, at("backup"), &mut |done, total| assert!(done <= total)).unwrap();
    let place = at("again");
    backup.restore(&place, &RestoreOptions::default(), &mut |_, _| {}).unwrap();
    (Log::open(place, Options::with_segment_bytes(1 << 20)).unwrap(), backup.notes().to_vec())
}

/// Makes a copy of what an object store had, with which the log's followers go on. Returns its last record.
fn copied(names: &Names, id: LogId) -> chiplog::Result<Index> {
    let (dir, vault) = (tempfile::tempdir().unwrap(), MemoryVault::default());
    names.iter().for_each(|(name, bytes)| vault.put(name, std::slice::from_ref(bytes)).unwrap());
    let backup = Backup::fetch(&vault, id, dir.path().join("backup"), &mut |_, _| {}).unwrap();
    let options = RestoreOptions::default().as_copy(true);
    Ok(backup.restore(dir.path().join("copy"), &options, &mut |_, _| {})?.last)
}

/// Checks the records from the first one on, and returns the last one.
fn read_all(log: &Log) -> u64 {
    let last = log.last_index().get();
    let mut reader = log.reader(Start::First).unwrap();
    for n in log.first_index().get()..=last {
        let found = reader.next_record().unwrap().unwrap_or_else(|| panic!("no record {n}"));
        assert_eq!((found.index.get(), found.data), (n, &record(n)[..]));
    }
    assert!(reader.next_record().unwrap().is_none());
    last
}

/// Checks that all that was acknowledged comes back from what the object store had then.
fn comes_back((acknowledged, names): &(u64, Names), id: LogId) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let (log, notes) = again(names, id, dir.path());
    // Several payload slices are put at a time: a later one can be there first.
    assert!(notes.iter().all(|note| note.contains(NEVER_STORED)), "{notes:?}");
    let last = read_all(&log);
    assert!(last >= *acknowledged, "{acknowledged} were acknowledged, and {last} came back");
    last
}

fn count(names: &Names, part: &str) -> usize {
    names.keys().filter(|name| name.contains(part)).count()
}

/// No slice of entries is stored any more: what is acknowledged then comes back by payload alone. A small append in between is
/// acknowledged once it is in a slice, and so is what is behind it.
#[test]
fn payload_alone_brings_back_what_was_acknowledged() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(Watched::default()));
    let log = open(dir.path(), options(&vault));
    let id = log.log_id();
    let mut session = log.open_session().unwrap();
    assert_eq!(session.append(&record(1)).unwrap(), Index(1));
    eventually("it is in a slice", || log.metrics().sliced_index == 1);
    vault.refuse(Some("/s/"));
    let slices = count(&vault.moment().1, "/s/");
    assert_eq!(copied(&vault.moment().1, id).unwrap(), Index(1));
    for n in [2, 3] {
        assert_eq!(session.append(&record(n)).unwrap(), Index(n));
        vault.acknowledge(n);
        let moment = vault.moment();
        // No entry of the log says yet that it has these appends.
        let refused = copied(&moment.1, id).unwrap_err();
        assert!(
            refused.kind() == ErrorKind::Unsupported && refused.to_string().contains("record 2"),
            "{refused}"
        );
        assert_eq!(count(&moment.1, "/s/"), slices);
        assert_eq!(comes_back(&moment, id), n);
    }
    let small = session.submit(&record(4)).unwrap();
    eventually("it is committed", || log.last_index() == Index(4)); // not in one block with the next one
    let behind = session.submit(&record(5)).unwrap();
    eventually("both are committed", || log.last_index() == Index(5));
    assert!(small.poll().is_none() && behind.poll().is_none(), "the object store does not have them");
    assert_eq!(comes_back(&vault.moment(), id), 3);
    vault.refuse(None);
    assert_eq!((small.wait().unwrap(), behind.wait().unwrap()), (Index(4), Index(5)));
    vault.acknowledge(5);
    let moment = vault.moment();
    comes_back(&moment, id);
    // A retry is recognized by the log that came back.
    let (log, _) = again(&moment.1, id, &tempfile::tempdir().unwrap().keep());
    for n in [3, 5] {
        let mut session = log.resume_session(session.id(), Sequence(n));
        assert_eq!(session.append(&record(n)).unwrap(), Index(n));
    }
    assert_eq!(log.last_index(), Index(5));
}

/// A summary of the object store has the payload behind the slices, and names damage there.
#[test]
fn payload_behind_the_slices_is_examined() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(Watched::default()));
    let log = open(dir.path(), options(&vault));
    assert_eq!(log.append(&record(1)).unwrap(), Index(1));
    eventually("it is in a slice", || log.metrics().sliced_index == 1);
    vault.refuse(Some("/s/"));
    assert_eq!(log.append(&record(2)).unwrap(), Index(2));
    assert_eq!(log.append(&record(3)).unwrap(), Index(3));
    let (_, names) = vault.moment();
    let examine = |names: &Names| {
        let store = MemoryVault::default();
        names.iter().for_each(|(name, bytes)| store.put(name, std::slice::from_ref(bytes)).unwrap());
        Backup::slices_in(&store, log.log_id(), &mut |_| {}).unwrap()
    };
    let found = examine(&names);
    assert_eq!((found.last, found.tail_records, found.tail_fault), (Some(Index(1)), 2, None));
    assert!(found.tail_bytes > 1200 && found.faults.is_empty(), "{}", found.tail_bytes);
    let payloads: Vec<_> = names.keys().filter(|name| name.contains("/p/")).collect();
    for (left, bad) in (0..).zip(&payloads[payloads.len() - 2..]) {
        let mut names = names.clone();
        let mut bytes = names[*bad].to_vec();
        bytes[100] ^= 1;
        names.insert((*bad).clone(), bytes.into());
        let found = examine(&names);
        assert_eq!(found.tail_records, left);
        assert!(found.tail_fault.is_some_and(|why| why.contains(&**bad)), "{bad}");
    }
}

/// Slices of entries go once objects have their entries, although no payload is appended that would say where it goes on.
#[test]
fn slices_go_while_no_payload_is_appended() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(Watched::default()));
    let log = open(dir.path(), options(&vault).object_bytes(64 << 10));
    let append = |log: &Log, bytes: usize| {
        let before = log.metrics().stored_index;
        eventually("an object is stored, and slices go", || {
            log.append(&vec![7; bytes]).unwrap();
            let oldest = vault.moment().1.keys().filter(|name| name.contains("/s/")).min().cloned();
            log.metrics().stored_index > before && count(&vault.moment().1, "/s/") < 40 && oldest.is_some()
        });
    };
    append(&log, 700);
    append(&log, 8);
    append(&log, 8);
    log.set_log_options(&[(LogOption::PayloadSlices, Some(0))], Duration::from_secs(20)).unwrap();
    append(&log, 700);
    append(&log, 700);
}

/// Appends three records, each of which is in a slice before the next one comes.
fn append_three_in_slices(log: &Log) {
    for n in 1..=3 {
        assert_eq!(log.append(&record(n)).unwrap(), Index(n));
        eventually("it is in a slice", || log.metrics().sliced_index == n);
    }
}

/// A slice of entries is damaged, and others lead on behind it: what the log had there is not known, so payload is not put in its place.
#[test]
fn payload_is_left_out_behind_a_damaged_slice() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(Watched::default()));
    let log = open(dir.path(), options(&vault));
    append_three_in_slices(&log);
    let (_, mut names) = vault.moment();
    let slices: Vec<_> = names.keys().filter(|name| name.contains("/s/")).cloned().collect();
    let bad = &slices[slices.len() - 2];
    let mut bytes = names[bad].to_vec();
    bytes[20] ^= 1;
    names.insert(bad.clone(), bytes.into());
    let (again, notes) = again(&names, log.log_id(), &tempfile::tempdir().unwrap().keep());
    assert!(again.last_index() < Index(3), "{}", again.last_index());
    assert!(notes.iter().any(|note| note.contains("payload behind the slices was left out")), "{notes:?}");
    read_all(&again);
}

/// A slice of entries is missing, as an earlier version could leave it, and the one behind it says that the log has the payload in between.
#[test]
fn payload_leads_over_a_missing_slice() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(Watched::default()));
    let log = open(dir.path(), options(&vault));
    append_three_in_slices(&log);
    let (_, mut names) = vault.moment();
    let slices: Vec<_> = names.keys().filter(|name| name.contains("/s/")).cloned().collect();
    names.remove(&slices[slices.len() - 2]);
    let (again, notes) = again(&names, log.log_id(), &tempfile::tempdir().unwrap().keep());
    assert!(notes.iter().any(|note| note.contains("slices are missing")), "{notes:?}");
    assert!(!notes.iter().any(|note| note.contains("ends early")), "{notes:?}");
    assert_eq!(read_all(&again), 3);
}

/// A payload slice is not there, and a later one is. It may never have been stored, so that is no damage, and the notes say it.
#[test]
fn payload_behind_a_missing_slice_is_named() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(Watched::default()));
    let log = open(dir.path(), options(&vault));
    assert_eq!(log.append(&record(1)).unwrap(), Index(1));
    eventually("it is in a slice", || log.metrics().sliced_index == 1);
    vault.refuse(Some("/s/"));
    for n in [2, 3] {
        assert_eq!(log.append(&record(n)).unwrap(), Index(n));
    }
    let (_, mut names) = vault.moment();
    let payloads: Vec<_> = names.keys().filter(|name| name.contains("/p/")).cloned().collect();
    names.remove(&payloads[payloads.len() - 2]);
    let (again, notes) = again(&names, log.log_id(), &tempfile::tempdir().unwrap().keep());
    assert!(notes.iter().any(|note| note.contains(NEVER_STORED)), "{notes:?}");
    assert!(!notes.iter().any(|note| note.contains("ends early")), "{notes:?}");
    assert_eq!(read_all(&again), 1);
}

/// An append that its session refuses is in payload, and not in the log: the notes of a backup count it.
#[test]
fn refused_appends_in_the_tail_are_counted() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(Watched::default()));
    let log = open(dir.path(), options(&vault));
    let mut session = log.open_session().unwrap();
    assert_eq!(session.append(&record(1)).unwrap(), Index(1));
    eventually("it is in a slice", || log.metrics().sliced_index == 1);
    vault.refuse(Some("/s/"));
    let error = log.resume_session(session.id(), Sequence(9)).append(&record(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SequenceGap, "{error}");
    let (again, notes) = again(&vault.moment().1, log.log_id(), &tempfile::tempdir().unwrap().keep());
    assert!(notes.iter().any(|note| note.contains("left out, as by their leader: 1,")), "{notes:?}");
    assert_eq!(read_all(&again), 1);
}

/// The class is switched on when objects have all that was before, and slices of that are gone. Payload that no entry in a slice refers to
/// yet was not acknowledged: the log does not end early without it.
#[test]
fn first_payload_is_no_reason_to_end_early() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(Watched::default()));
    let log = Log::open(dir.path(), options(&vault).payload_slices(false)).unwrap();
    (1..=3).for_each(|n| assert_eq!(log.append(&record(n)).unwrap(), Index(n)));
    eventually("all is in slices", || log.metrics().unsliced_bytes == 0);
    let (_, before) = vault.moment();
    log.cut_objects(Index(3)).unwrap();
    eventually("slices with records are gone", || {
        let (_, now) = vault.moment();
        !before.keys().any(|name| name.contains("/s/") && now.contains_key(name))
    });
    log.set_log_options(&[(LogOption::PayloadSlices, Some(1))], Duration::from_secs(20)).unwrap();
    eventually("all is in slices", || log.metrics().unsliced_bytes == 0);
    vault.refuse(Some("/s/"));
    let ticket = log.submit(&record(5)).unwrap();
    eventually("its payload is stored", || count(&vault.moment().1, "/p/") > 0);
    let names = vault.moment().1;
    assert!(ticket.poll().is_none());
    let (again, notes) = again(&names, log.log_id(), &tempfile::tempdir().unwrap().keep());
    assert!(notes.iter().any(|note| note.contains("the change that set payload_slices")), "{notes:?}");
    assert!(!notes.iter().any(|note| note.contains("ends early")), "{notes:?}");
    assert_eq!(read_all(&again), 3);
}

/// Slices of entries are gone that say where payload goes on: the log ends early, and the notes say so.
#[test]
fn slices_that_are_lost_before_payload_are_named() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(Watched::default()));
    let log = open(dir.path(), options(&vault).object_bytes(64 << 10));
    let mut n = 0;
    eventually("an object is stored", || {
        n += 1;
        assert_eq!(log.append(&record(n)).unwrap(), Index(n));
        log.metrics().stored_index > 0
    });
    let (_, mut names) = vault.moment();
    assert!(count(&names, "/p/") > 0);
    names.retain(|name, _| !name.contains("/s/"));
    let (again, notes) = again(&names, log.log_id(), &tempfile::tempdir().unwrap().keep());
    assert!(again.last_index() < Index(n));
    assert!(notes.iter().any(|note| note.contains("no slice has entry")), "{notes:?}");
    read_all(&again);
}

/// A leader judges a session when it proposes; payload says when it was put first, which can be long before.
#[test]
fn session_does_not_expire_in_the_tail() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(Watched::default()));
    let log = open(dir.path(), options(&vault).session_idle_max(Duration::from_secs(2)));
    let id = log.log_id();
    let (mut next, mut tries) = (1, 0);
    loop {
        tries += 1;
        let mut session = log.open_session().unwrap();
        vault.refuse(None);
        assert_eq!(session.append(&record(next)).unwrap(), Index(next));
        eventually("it is in a slice", || log.metrics().sliced_index == next);
        // The next one is put for the first time long before it is stored.
        vault.refuse(Some("/"));
        let second = session.submit(&record(next + 1)).unwrap();
        std::thread::sleep(Duration::from_millis(1300));
        vault.refuse(Some("/s/"));
        let second = second.wait();
        std::thread::sleep(Duration::from_millis(900));
        let third = session.append(&record(next + 2));
        vault.acknowledge(log.last_index().get());
        next = log.last_index().get() + 1;
        if second.is_ok() && third.is_ok() {
            break;
        }
        assert!(tries < 20, "the machine is too slow each time: {second:?} {third:?}");
    }
    assert_eq!(comes_back(&vault.moment(), id), next - 1);
}

/// Each record is put into an object once it is old enough. No object has commands alone.
#[test]
fn each_object_has_a_record() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(Watched::default()));
    let log = open(dir.path(), options(&vault).slice_interval(Some(Duration::from_millis(150))));
    log.set_log_options(&[(LogOption::ObjectAge, Some(1000))], Duration::from_secs(20)).unwrap();
    for n in 1..=4 {
        assert_eq!(log.append(&record(n)).unwrap(), Index(n));
        eventually("it is in an object", || log.metrics().stored_index == n);
        // The commands about that object are in a slice, and the age has passed.
        eventually("all is in slices", || log.metrics().unsliced_bytes == 0);
        std::thread::sleep(Duration::from_millis(1200));
    }
    assert_eq!(log.metrics().stored_objects, 4);
}

/// The object store takes no slices of entries for long: then appends are answered as `majority`.
#[test]
fn append_waits_for_slices_for_a_while() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(Watched::default()));
    let log = open(dir.path(), options(&vault));
    assert_eq!(log.append(&record(1)).unwrap(), Index(1));
    eventually("it is in a slice", || log.is_in_store(Index(1)));
    assert_eq!(log.metrics().unstored_confirmations, 0);
    vault.refuse(Some("/s/"));
    let begun = Instant::now();
    let small = log.submit(b"small").unwrap();
    assert_eq!((small.durability(), small.wait().unwrap()), (None, Index(2)));
    assert_eq!(small.durability(), Some(Durability::Majority));
    assert_eq!(log.metrics().unstored_confirmations, 1);
    assert!(begun.elapsed() >= Duration::from_secs(9), "{:?}", begun.elapsed());
    assert!(log.is_in_store(Index(1)) && !log.is_in_store(Index(2)));
    vault.refuse(None);
    eventually("it is in a slice", || log.is_in_store(Index(2)));
    assert_eq!(small.durability(), Some(Durability::Majority), "as it was acknowledged");
    let small = log.submit(b"small").unwrap();
    assert_eq!(small.wait().unwrap(), Index(3));
    assert_eq!(small.durability(), Some(Durability::Object));
    assert!(log.is_in_store(Index(3)));
    assert_eq!(log.metrics().unstored_confirmations, 1);
    // Without slices of entries none is in the store, whatever the log's option says; without the class none has to be.
    log.close().unwrap();
    let log = open(dir.path(), options(&vault).payload_slices(false).slice_interval(None));
    let small = log.submit(b"small").unwrap();
    assert_eq!(small.wait().unwrap(), Index(4));
    assert_eq!(small.durability(), Some(Durability::Majority));
    assert_eq!(log.metrics().unstored_confirmations, 1);
    log.set_log_options(&[(LogOption::PayloadSlices, Some(0))], Duration::from_secs(20)).unwrap();
    assert_eq!(log.append(b"small").unwrap(), Index(5));
    assert_eq!(log.metrics().unstored_confirmations, 1);
}

/// At each moment, before and after each change of the object store, what was acknowledged comes back: appends small and large, sessions,
/// discards, objects that are stored, slices that go.
#[test]
fn all_that_was_acknowledged_comes_back_at_each_moment() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(Watched::default()));
    let log = open(dir.path(), options(&vault).object_bytes(64 << 10).local_bytes(512 << 10));
    let id = log.log_id();
    vault.watches.store(true, Ordering::SeqCst);
    let mut n = 0;
    for round in 1..=40 {
        let tickets: Vec<_> = (n + 1..=n + 9).map(|n| log.submit(&record(n)).unwrap()).collect();
        if round % 7 == 3 {
            log.open_session().unwrap();
        }
        for ticket in tickets {
            n += 1;
            assert_eq!(ticket.wait().unwrap(), Index(n));
            assert!(log.is_in_store(Index(n)));
            assert_eq!(ticket.durability(), Some(Durability::Object));
            vault.acknowledge(n);
        }
        if round == 30 {
            log.discard(Index(100)).unwrap();
        }
    }
    eventually("objects are stored", || log.metrics().stored_index > 200);
    vault.watches.store(false, Ordering::SeqCst);
    let moments = std::mem::take(&mut *vault.moments.lock().unwrap());
    let with_tail = moments.iter().filter(|(acknowledged, _)| *acknowledged > 0);
    let mut seen = 0;
    for moment in with_tail.step_by(3) {
        comes_back(moment, id);
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
}

/// An object arrives damaged, with the right size, and once more when it is put again. It counts as stored once it was read and is sound:
/// as long the payload of its entries stays.
#[test]
fn object_is_read_before_its_payload_goes() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(Watched::default()));
    let log = open(dir.path(), options(&vault).object_bytes(64 << 10));
    vault.spoils.store(2, Ordering::SeqCst);
    let mut n = 0;
    eventually("an object counts as stored", || {
        n += 1;
        assert_eq!(log.append(&record(n)).unwrap(), Index(n));
        vault.acknowledge(n);
        log.metrics().stored_index > 0
    });
    assert_eq!(vault.spoils.load(Ordering::SeqCst), 0);
    let metrics = log.metrics();
    assert_eq!((metrics.repaired_objects, metrics.damaged_objects), (0, 0), "{metrics:?}");
    assert!(metrics.object_failures >= 2, "{metrics:?}");
    let first = format!("/p/{:020}.{:020}", 1, 1);
    eventually("its payload goes", || {
        n += 1;
        assert_eq!(log.append(&record(n)).unwrap(), Index(n));
        vault.acknowledge(n);
        count(&vault.moment().1, &first) == 0
    });
    assert_eq!(comes_back(&vault.moment(), log.log_id()), n);
}

/// Leaders change while appends are on their way to the object store, and to the others.
#[test]
fn all_that_was_acknowledged_comes_back_while_leaders_change() {
    let (network, vault, dir) =
        (MemoryNetwork::new(), Arc::new(Watched::default()), tempfile::tempdir().unwrap());
    let cluster = Cluster::new(dir.path(), &network, || options(&vault).object_bytes(64 << 10));
    let id = cluster.session();
    vault.watches.store(true, Ordering::SeqCst);
    let mut next = 1;
    for round in 0..5 {
        let upto = next + 40;
        let mut has_moved = false;
        eventually("they are appended", || {
            let Some(leader) = cluster.leader() else { return false };
            let mut session = cluster.logs[leader].resume_session(id, Sequence(next));
            let mut tickets = Vec::new();
            for n in next..upto {
                match session.submit(&record(n)) {
                    Ok(ticket) => tickets.push((n, ticket)),
                    Err(_) => break,
                }
            }
            if !std::mem::replace(&mut has_moved, true) {
                std::thread::sleep(Duration::from_millis(round * 6));
                _ = cluster.logs[leader]
                    .transfer_leader(NodeId((leader as u64 + 1) % 3 + 1), Duration::from_secs(5));
            }
            for (n, ticket) in tickets {
                match ticket.wait() {
                    Ok(index) => assert_eq!(index, Index(n)),
                    Err(error) if error.kind() == ErrorKind::SequenceForgotten => {}
                    Err(_) => return false,
                }
                if cluster.logs[leader].is_in_store(Index(n)) {
                    vault.acknowledge(n);
                }
                next = n + 1;
            }
            next == upto
        });
    }
    vault.watches.store(false, Ordering::SeqCst);
    let moments = std::mem::take(&mut *vault.moments.lock().unwrap());
    assert!(moments.len() > 20, "{}", moments.len());
    moments.iter().for_each(|moment| _ = comes_back(moment, cluster.id));
    assert!(comes_back(&vault.moment(), cluster.id) >= next - 1);
}

/// A leader that is cut off from the others stores payload that is never committed. It is not among what its successor appends.
#[test]
fn payload_of_a_deposed_leader_is_never_between_others() {
    let (network, vault, dir) =
        (MemoryNetwork::new(), Arc::new(Watched::default()), tempfile::tempdir().unwrap());
    let cluster = Cluster::new(dir.path(), &network, || options(&vault));
    let mut old = None;
    eventually("it has a leader", || {
        old = cluster.leader();
        old.is_some()
    });
    let old = old.unwrap();
    let append = |leader: usize, n: u64| {
        assert_eq!(cluster.logs[leader].append(&record(n)).unwrap(), Index(n));
        vault.acknowledge(n);
    };
    (1..=20).for_each(|n| append(old, n));
    let before = count(&vault.moment().1, "/p/");
    network.disconnect(NodeId(old as u64 + 1));
    let lost: Vec<_> = (1000..1003).map(|n| cluster.logs[old].submit(&record(n)).unwrap()).collect();
    eventually("its payload is stored", || count(&vault.moment().1, "/p/") > before);
    let mut new = None;
    eventually("another one leads", || {
        new = cluster.logs.iter().enumerate().position(|(n, log)| n != old && log.role() == Role::Leader);
        new.is_some()
    });
    let new = new.unwrap();
    (21..=40).for_each(|n| append(new, n));
    assert_eq!(comes_back(&vault.moment(), cluster.id), 40);
    network.connect(NodeId(old as u64 + 1));
    lost.into_iter().for_each(|ticket| drop(ticket.wait().unwrap_err()));
    (41..=50).for_each(|n| append(new, n));
    assert_eq!(comes_back(&vault.moment(), cluster.id), 50);
}
