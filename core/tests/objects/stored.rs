//! Storing and reading: what is stored, what goes from the disk, what readers get, and logs that are made of objects alone.

use crate::support::{
    SEGMENT, append, append_to, eventually, files, is_mostly_stored, objects_in, options, read_all, record,
    replica, replica_over, two_replicas,
};
use chiplog::backup::{Backup, RestoreOptions, RestoreTo};
use chiplog::cluster::{Bootstrap, Change, Role};
use chiplog::follower::{FollowFrom, FollowMessage};
use chiplog::transport::{Envelope, Inbox, MemoryNetwork, Transport};
use chiplog::vault::{FaultOptions, FaultyVault, HookedVault, MemoryVault, Vault};
use chiplog::{Error, ErrorKind, Index, Log, LogOption, NodeId, Options, ReadMode, ReadOnlyLog, Start};
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[test]
fn older_records_are_read_from_the_object_store() {
    for mode in [ReadMode::Map, ReadMode::Read] {
        let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
        let opened = || {
            let options = options(&vault).local_bytes(2 * u64::from(SEGMENT)).read_mode(mode);
            Log::open(dir.path(), options).unwrap()
        };
        let log = opened();
        append(&log, 4000); // 2.6 MB
        eventually("objects are stored", || log.metrics().stored_bytes > 2_000_000);
        append(&log, 1000);
        eventually("files go", || {
            append(&log, 1);
            files(dir.path(), ".seg") <= 8
        });
        assert_eq!(log.first_index().get(), 1);
        // A file can go in between.
        eventually("the first local record is in a file, and the one before is not", || {
            let first = log.first_local_index().unwrap();
            let fetched = || log.metrics().fetched_bytes;
            let (before, here) = (fetched(), log.read(first).unwrap());
            let is_here = here.data == record(first.get()) && fetched() == before;
            is_here && log.read(first.previous()).is_ok() && fetched() > before
        });
        assert_eq!(log.log_options().get(LogOption::ObjectBytes), Some(128 << 10));
        read_all(&log, 1);
        read_all(&log, 777);
        for n in [1, 2, 500, 3999, 4800] {
            assert_eq!(log.read(Index(n)).unwrap().data, record(n));
        }
        assert!(log.metrics().fetched_bytes > 0);
        drop(log);
        let log = opened();
        assert_eq!(files(dir.path(), ".object"), 0);
        assert_eq!(log.first_index().get(), 1);
        read_all(&log, 1);
        append(&log, 500);
        read_all(&log, 1);
    }
}

/// Three replicas: a follower stores, all read, and one that was down comes back to a log whose files are gone elsewhere.
#[test]
fn replicas_share_the_objects_of_their_log() {
    let (network, vault) = (MemoryNetwork::new(), Arc::new(MemoryVault::default()));
    let dirs: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let options = || options(&vault).local_bytes(2 * u64::from(SEGMENT));
    let open =
        |node: u64, bootstrap| replica(dirs[node as usize - 1].path(), node, bootstrap, &network, options());
    let one = open(1, Bootstrap::Init);
    eventually("it leads", || one.append(&record(1)).is_ok());
    let id = one.log_id();
    let two = open(2, Bootstrap::Join(id));
    let three = open(3, Bootstrap::Join(id));
    for (node, log) in [(2, &two), (3, &three)] {
        let (node, directory) = (NodeId(node), log.directory_id());
        let add = Change::AddLearner { node, directory, address: format!("memory:{node}") };
        one.change_members(&[add], Duration::from_secs(20)).unwrap();
        one.change_members(&[Change::Promote(node)], Duration::from_secs(20)).unwrap();
    }
    append_to(&[&one, &two, &three], 3000);
    let stored = || [&one, &two, &three].map(|log| log.metrics().stored_bytes).iter().sum::<u64>();
    eventually("objects are stored", || stored() > 1_500_000);
    drop(three);
    append_to(&[&one, &two], 4000);
    eventually("files go", || {
        append_to(&[&one, &two], 1);
        files(dirs[0].path(), ".seg") <= 8 && files(dirs[1].path(), ".seg") <= 8
    });
    let helped = [&one, &two].iter().filter(|log| log.metrics().stored_objects > 0).count();
    assert!(helped > 0, "a replica stores them");
    let three = open(3, Bootstrap::Existing);
    let last = one.last_index().max(two.last_index());
    eventually("it follows", || [&one, &two, &three].iter().all(|log| log.last_index() == last));
    for log in [&one, &two, &three] {
        assert_eq!(log.first_index().get(), 1);
        eventually("it knows all objects", || {
            log.reader(Start::First).and_then(|mut r| r.next_batch().map(drop)).is_ok()
        });
        read_all(log, 1);
        read_all(log, 3500);
    }
}

/// A new replica downloads records that the leader has in no file, and then needs the object store no longer.
#[test]
fn new_replica_fills_its_disk_from_objects() {
    let (network, vault) = (MemoryNetwork::new(), Arc::new(MemoryVault::default()));
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let small = options(&vault).local_bytes(2 * u64::from(SEGMENT));
    let one = replica(dirs[0].path(), 1, Bootstrap::Init, &network, small);
    eventually("it leads", || one.append(&record(1)).is_ok());
    append_to(&[&one], 8000);
    eventually("files go", || {
        append_to(&[&one], 1);
        files(dirs[0].path(), ".seg") <= 8
    });
    let stored = one.metrics().stored_bytes;
    let down = Arc::new(FaultyVault::new(vault.clone(), 7, FaultOptions::default()));
    let fills = options(&vault).vault(down.clone() as Arc<dyn Vault>).fill_bytes(1 << 30);
    let two = replica(dirs[1].path(), 2, Bootstrap::Join(one.log_id()), &network, fills);
    let add =
        Change::AddLearner { node: NodeId(2), directory: two.directory_id(), address: "memory:2".to_owned() };
    one.change_members(&[add], Duration::from_secs(20)).unwrap();
    eventually("it has what the leader has in files", || two.last_index() == one.last_index());
    let oldest = dirs[1].path().join(format!("{:020}-{:032x}.object", 0, one.log_id().get()));
    eventually("it has all objects", || oldest.exists());
    assert!(two.metrics().filled_bytes > stored / 2, "{:?}", two.metrics());
    down.set_faults(FaultOptions::default().refused(1_000));
    read_all(&two, 1);
}

/// A new replica with limits of its own is not sent what is stored, although the leader has all of it in files. One without limits has
/// all records in files, as all replicas without limits do, and so has one that cannot read the object store.
#[test]
fn new_replica_begins_behind_what_is_stored() {
    let (network, vault) = (MemoryNetwork::new(), Arc::new(MemoryVault::default()));
    let dirs: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let open = |node: u64, bootstrap, options| {
        replica(dirs[node as usize - 1].path(), node, bootstrap, &network, options)
    };
    let loses = loses_entries_before_an_opening(NodeId(2));
    let transport = Arc::new(Lossy { below: network.transport(), loses });
    let one = replica_over(dirs[0].path(), 1, Bootstrap::Init, transport, options(&vault));
    eventually("it leads", || one.append(&record(1)).is_ok());
    // Files that began before the log had objects do not say that it has any.
    for _ in 0..2 {
        append_to(&[&one], 4000);
        eventually("most is stored", || is_mostly_stored(&one));
    }
    let small = || options(&vault).local_bytes(2 * u64::from(SEGMENT));
    let join = |node: u64, options| {
        let log = open(node, Bootstrap::Join(one.log_id()), options);
        let (node, directory) = (NodeId(node), log.directory_id());
        let add = Change::AddLearner { node, directory, address: format!("memory:{node}") };
        one.change_members(&[add], Duration::from_secs(20)).unwrap();
        eventually("it has caught up", || log.last_index() == one.last_index());
        log
    };
    let (two, three) = (join(2, small()), join(3, options(&vault)));
    let refused = Arc::new(HookedVault::new(vault.clone()));
    refused.set(|call, _| match call {
        "get" => Err(Error::new(ErrorKind::PermissionDenied, "no right to read")),
        _ => Ok(()),
    });
    let four = join(4, small().vault(refused.clone() as Arc<dyn Vault>));
    let segments = |node: usize| files(dirs[node - 1].path(), ".seg");
    assert!(segments(1) > 20 && segments(3) + 4 > segments(1), "{} and {}", segments(1), segments(3));
    assert!(two.metrics().bytes < 600_000, "{:?}", two.metrics());
    assert!(four.metrics().bytes > 5_000_000, "{:?}", four.metrics());
    refused.set(|_, _| Ok(()));
    for log in [&two, &three, &four] {
        assert_eq!(log.first_index().get(), 1);
        read_all(log, 1);
    }
    // It makes the next objects, whose entries it all has.
    one.change_members(&[Change::Promote(NodeId(2))], Duration::from_secs(20)).unwrap();
    append_to(&[&one, &two], 3000);
    eventually("later records are stored", || is_mostly_stored(&one));
    read_all(&two, 1);
}

/// A replica that was away and lacks more than it keeps in files is not sent what is stored, although the leader has all of it. One that
/// keeps more is, and has its files then.
#[test]
fn replica_that_was_away_begins_behind_what_is_stored() {
    let (network, vault) = (MemoryNetwork::new(), Arc::new(MemoryVault::default()));
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let small = || options(&vault).local_bytes(2 * u64::from(SEGMENT));
    let large = || options(&vault).local_bytes(100 * u64::from(SEGMENT));
    let options_of = |node: u64| if node == 2 { small() } else { large() };
    // No entries reach node 2 between its first ones and an opening: else they could all be there before it has asked.
    let (sent, is_skipping) = (AtomicUsize::new(0), AtomicBool::new(false));
    let loses = move |envelope: &Envelope| {
        let bytes = envelope.bodies.iter().map(bytes::Bytes::len).sum();
        if envelope.to != NodeId(2) || is_skipping.fetch_or(has_opening(envelope), Ordering::Relaxed) {
            return false;
        }
        sent.fetch_add(bytes, Ordering::Relaxed) > 300_000 && bytes > 0
    };
    let transport = Arc::new(Lossy { below: network.transport(), loses }) as Arc<dyn Transport>;
    let open = |node: u64, bootstrap| {
        let transport = if node == 1 { transport.clone() } else { network.transport() };
        replica_over(dirs[node as usize - 1].path(), node, bootstrap, transport, options_of(node))
    };
    let one = open(1, Bootstrap::Init);
    eventually("it leads", || one.append(&record(1)).is_ok());
    for node in 2..=3 {
        let log = open(node, Bootstrap::Join(one.log_id()));
        let (node, directory) = (NodeId(node), log.directory_id());
        let add = Change::AddLearner { node, directory, address: format!("memory:{node}") };
        one.change_members(&[add], Duration::from_secs(20)).unwrap();
        eventually("it follows", || log.last_index() == one.last_index());
    }
    for _ in 0..2 {
        append_to(&[&one], 4000);
        eventually("most is stored", || is_mostly_stored(&one));
    }
    let back = |node: u64| {
        let log = open(node, Bootstrap::Existing);
        eventually("it has caught up", || log.last_index() == one.last_index());
        log
    };
    let (two, three) = (back(2), back(3));
    assert!(two.metrics().bytes < 1_500_000, "{:?}", two.metrics());
    assert!(three.metrics().bytes > 5_000_000, "{:?}", three.metrics());
    for log in [&two, &three] {
        assert_eq!(log.first_index().get(), 1);
        read_all(log, 1);
    }
    append_to(&[&one], 500);
    eventually("it follows", || two.last_index() == one.last_index());
    read_all(&two, 8000);
}

/// A replica that was away, and whose files may be the last copy of an object, keeps them: it gets all entries. The leader knows nothing of
/// that object.
#[test]
fn replica_that_was_away_keeps_the_last_copy_of_an_object() {
    let (network, vault) = (MemoryNetwork::new(), Arc::new(MemoryVault::default()));
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let own = Arc::new(HookedVault::new(vault.clone()));
    let open = |bootstrap| {
        let options = options(&vault).vault(own.clone() as Arc<dyn Vault>);
        let options = options.object_scrub(Duration::from_secs(1)).local_bytes(8 * u64::from(SEGMENT));
        replica(dirs[1].path(), 2, bootstrap, &network, options)
    };
    // No entries reach it while it could jump: else they could all be there before.
    let silent_until = Arc::new(Mutex::new(Instant::now()));
    let until = silent_until.clone();
    let loses = move |envelope: &Envelope| {
        envelope.to == NodeId(2) && !envelope.bodies.is_empty() && Instant::now() < *until.lock().unwrap()
    };
    let transport = Arc::new(Lossy { below: network.transport(), loses });
    let one = replica_over(dirs[0].path(), 1, Bootstrap::Init, transport, options(&vault));
    eventually("it leads", || one.append(&record(1)).is_ok());
    let two = open(Bootstrap::Join(one.log_id()));
    let add =
        Change::AddLearner { node: NodeId(2), directory: two.directory_id(), address: "memory:2".to_owned() };
    one.change_members(&[add], Duration::from_secs(20)).unwrap();
    append_to(&[&one], 2000);
    eventually("it follows", || two.last_index() == one.last_index());
    eventually("most is stored", || is_mostly_stored(&one));
    let (name, bytes) = objects_in(&vault).remove(3);
    // It cannot store the object again. The leader can, and this replica does not see that.
    let hidden = name.clone();
    own.set(move |call, asked| match call {
        "put" => Err(Error::new(ErrorKind::PermissionDenied, "no right to write")),
        "get" if asked == hidden => Err(Error::new(ErrorKind::Unavailable, "not now")),
        _ => Ok(()),
    });
    vault.delete(&name).unwrap();
    eventually("it knows of the damage", || two.metrics().damaged_objects == 1);
    eventually("it is stored again", || {
        vault.get(&name, 0..bytes.len() as u64).is_ok_and(|now| now == bytes)
    });
    drop(two);
    append_to(&[&one], 8000);
    eventually("most is stored", || is_mostly_stored(&one));
    *silent_until.lock().unwrap() = Instant::now() + Duration::from_secs(3);
    let two = open(Bootstrap::Existing);
    eventually("it has caught up", || two.last_index() == one.last_index());
    assert!(two.metrics().bytes > 5_000_000, "{:?}", two.metrics());
}

/// A network that loses messages.
struct Lossy<F> {
    below: Arc<dyn Transport>,
    loses: F,
}

impl<F> fmt::Debug for Lossy<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.below.fmt(f)
    }
}

/// Openings have large heads and no bodies.
fn has_opening(envelope: &Envelope) -> bool {
    envelope.bodies.is_empty() && envelope.head.len() > 1000
}

/// Whether entries for a new replica are lost: they are before it is sent an opening. Else it could take some before it has asked for one.
/// After a while one message arrives, so that it can ask.
fn loses_entries_before_an_opening(node: NodeId) -> impl Fn(&Envelope) -> bool + Send + Sync {
    let (is_skipping, since) = (AtomicBool::new(false), Mutex::new(None));
    move |envelope: &Envelope| {
        if envelope.to != node
            || is_skipping.fetch_or(has_opening(envelope), Ordering::Relaxed)
            || envelope.bodies.is_empty()
        {
            return false;
        }
        let mut since = since.lock().unwrap();
        let is_lost = since.get_or_insert_with(Instant::now).elapsed() < Duration::from_secs(5);
        if !is_lost {
            *since = None;
        }
        is_lost
    }
}

impl<F: Fn(&Envelope) -> bool + Send + Sync> Transport for Lossy<F> {
    fn attach(&self, node: NodeId, inbox: Inbox) {
        self.below.attach(node, inbox);
    }

    fn detach(&self, node: NodeId) {
        self.below.detach(node);
    }

    fn send(&self, envelope: Envelope) {
        if !(self.loses)(&envelope) {
            self.below.send(envelope);
        }
    }
}

/// No opening reaches a new replica: after some attempts it is sent all entries.
#[test]
fn new_replica_gets_all_entries_if_openings_are_lost() {
    let (network, vault) = (MemoryNetwork::new(), Arc::new(MemoryVault::default()));
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let small = || options(&vault).local_bytes(2 * u64::from(SEGMENT));
    let lost = Arc::new(AtomicUsize::new(0));
    let (count, loses_entries) = (lost.clone(), loses_entries_before_an_opening(NodeId(2)));
    let loses = move |envelope: &Envelope| {
        let is_lost = has_opening(envelope);
        count.fetch_add(usize::from(is_lost), Ordering::Relaxed);
        loses_entries(envelope) || is_lost
    };
    let transport = Arc::new(Lossy { below: network.transport(), loses });
    let one = replica_over(dirs[0].path(), 1, Bootstrap::Init, transport, options(&vault));
    eventually("it leads", || one.append(&record(1)).is_ok());
    for _ in 0..2 {
        append_to(&[&one], 4000);
        eventually("most is stored", || is_mostly_stored(&one));
    }
    let two = replica(dirs[1].path(), 2, Bootstrap::Join(one.log_id()), &network, small());
    let add =
        Change::AddLearner { node: NodeId(2), directory: two.directory_id(), address: "memory:2".to_owned() };
    one.change_members(&[add], Duration::from_secs(20)).unwrap();
    eventually("it has caught up", || two.last_index() == one.last_index());
    assert!(lost.load(Ordering::Relaxed) > 0 && two.metrics().bytes > 5_000_000, "{:?}", two.metrics());
    read_all(&two, 1);
}

/// All replicas are lost: the log comes back from the object store alone, as far as it was stored.
#[test]
fn log_comes_back_from_the_object_store_alone() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let place = |name: &str| dir.path().join(name);
    let options =
        || options(&vault).object_age(Duration::from_millis(50)).local_bytes(2 * u64::from(SEGMENT));
    let log = Log::open(place("lost"), options()).unwrap();
    append(&log, 4000);
    let mut session = log.open_session().unwrap();
    session.append(&record(4001)).unwrap();
    log.discard(Index(100)).unwrap();
    eventually("everything is stored", || {
        let next = log.last_index().get() + 1;
        log.append(&record(next)).unwrap();
        let (begun, is_stored) = (Instant::now(), || log.metrics().stored_index + 1 >= next);
        while !is_stored() && begun.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(5));
        }
        is_stored()
    });
    let (id, last) = (log.log_id(), log.last_index().get());
    drop(session);
    drop(log);
    std::fs::remove_dir_all(place("lost")).unwrap();

    assert_eq!(Backup::logs_in(&*vault).unwrap(), [id]);
    let mut fetched = (0, 0);
    let backup =
        Backup::fetch(&*vault, id, place("backup"), &mut |done, total| fetched = (done, total)).unwrap();
    assert!(fetched.0 == fetched.1 && fetched.0 > 2_000_000, "{fetched:?}");
    assert_eq!(backup.info().log_id, id);
    assert!(backup.info().last.get() >= last - 1, "{:?} of {last}", backup.info());
    backup.check(&mut |_, _| {}).unwrap();
    let to = RestoreOptions::default().to(RestoreTo::Index(Index(3000)));
    backup.restore(place("before"), &to, &mut |_, _| {}).unwrap();
    backup.restore(place("again"), &RestoreOptions::default(), &mut |_, _| {}).unwrap();
    let log = Log::open(place("before"), options()).unwrap();
    // The discard came later.
    assert!(log.first_index().get() <= 100 && log.last_index().get() == 3000, "{:?}", log.status());
    read_all(&log, log.first_index().get());
    // A restored log is another one, with objects of its own.
    let log = Log::open(place("again"), options()).unwrap();
    assert_ne!(log.log_id(), id);
    read_all(&log, 100);
    append(&log, 3000);
    eventually("objects of its own are stored", || log.metrics().stored_bytes > 1_000_000);
    read_all(&log, 100);
    assert!(Backup::logs_in(&*vault).unwrap().contains(&log.log_id()));

    // An object is missing.
    let name = format!("{:032x}/o/{:020}", id.get(), 3);
    let size = vault.size(&name).unwrap().unwrap();
    let bytes = vault.get(&name, 0..size).unwrap();
    vault.delete(&name).unwrap();
    let error = Backup::fetch(&*vault, id, place("less"), &mut |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(!place("less").exists(), "nothing is left of it");
    vault.put(&name, std::slice::from_ref(&bytes)).unwrap();
    // An object is damaged.
    let largest =
        vault.list(&format!("{:032x}/o/", id.get())).unwrap().into_iter().max_by_key(|object| object.bytes);
    let largest = largest.unwrap();
    let mut bad = vault.get(&largest.name, 0..largest.bytes).unwrap().to_vec();
    bad[40_000] ^= 1; // in a record
    vault.put(&largest.name, &[bad.into()]).unwrap();
    let error = Backup::fetch(&*vault, id, place("less"), &mut |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

/// Objects go with the records that a discard or retention removes, and not before the delay.
#[test]
fn objects_of_discarded_records_are_deleted() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = || {
        options(&vault).local_bytes(2 * u64::from(SEGMENT)).object_delete_delay(Duration::from_millis(200))
    };
    let log = Log::open(dir.path(), options()).unwrap();
    append(&log, 4000);
    eventually("objects are stored", || log.metrics().stored_bytes > 2_000_000);
    let name = |number: u64| format!("{:032x}/o/{number:020}", log.log_id().get());
    let is_there = |number| vault.size(&name(number)).unwrap().is_some();
    assert!(is_there(0) && is_there(5));
    log.discard(Index(3000)).unwrap();
    eventually("objects are deleted", || !is_there(0) && !is_there(5));
    assert_eq!(log.first_index().get(), 3000);
    read_all(&log, 3000);
    let error = log.read(Index(2999)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Discarded);
    drop(log);
    // Retention counts what is in the object store alone, too.
    let log = Log::open(dir.path(), options().retention_bytes(3 * u64::from(SEGMENT))).unwrap();
    append(&log, 4000);
    eventually("retention discards", || {
        append(&log, 1);
        log.first_index().get() > 6000
    });
    read_all(&log, log.first_index().get());
}

/// The object store fails now and then, for good, and comes back: appends go on, nothing is lost.
#[test]
fn faults_of_the_object_store_delay_and_lose_nothing() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let faults = || FaultOptions::default().refused(200).unanswered(200).missing(100).flipped(100).short(100);
    let vault = Arc::new(FaultyVault::new(below.clone(), 7, faults()));
    let options = Options::with_segment_bytes(SEGMENT)
        .vault(vault.clone() as Arc<dyn Vault>)
        .object_bytes(128 << 10)
        .local_bytes(2 * u64::from(SEGMENT));
    let log = Log::open(dir.path(), options).unwrap();
    append(&log, 2000);
    vault.set_faults(FaultOptions::default().refused(1000));
    append(&log, 1000);
    assert_eq!(log.last_index().get(), 3000, "appends do not wait for it");
    vault.set_faults(FaultOptions::default());
    eventually("all is stored once it is back", || log.metrics().stored_bytes > 1_700_000);
    eventually("files go", || {
        append(&log, 1);
        files(dir.path(), ".seg") <= 8
    });
    vault.set_faults(FaultOptions::default().refused(1000));
    let error = log.reader(Start::First).and_then(|mut reader| reader.next_batch().map(drop)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    vault.set_faults(faults());
    let mut reader = log.reader(Start::First).unwrap();
    let mut next = 1;
    while next <= 3000 {
        match reader.next_record() {
            Ok(Some(found)) => {
                assert_eq!((found.index.get(), found.data), (next, &record(next)[..]));
                next += 1;
            }
            Ok(None) => panic!("record {next} is not there"),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Corrupt), "{error}")
            }
        }
    }
}

/// A copy is made of files: it begins with the first record that is in one, and a backup of the directory too.
#[test]
fn copy_begins_with_the_files() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = options(&vault).local_bytes(2 * u64::from(SEGMENT));
    let log = Log::open(dir.path().join("log"), options).unwrap();
    append(&log, 4000);
    eventually("files go", || {
        append(&log, 1);
        log.metrics().stored_bytes > 2_000_000 && files(dir.path().join("log").as_path(), ".seg") <= 8
    });
    let Some(FollowMessage::State(state)) = log.follow(FollowFrom::First).unwrap().next(0).unwrap() else {
        panic!("no state");
    };
    assert!(state.next() > Index(1000), "{state:?}");
    let refused = log.follow(FollowFrom::Index(Index(5))).unwrap().next(0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    let read_only = ReadOnlyLog::open(dir.path().join("log")).unwrap();
    let backup = Backup::make(&read_only, dir.path().join("backup"), &mut |_, _| {}).unwrap();
    assert!(backup.info().first > Index(1000) && backup.info().last > Index(4000), "{:?}", backup.info());
}

/// A directory that is not mounted any more looks like an empty object store. An object that went there would be lost.
#[test]
fn object_store_that_is_another_one_gets_no_object() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let open = || Log::open(dir.path(), options(&vault).local_bytes(2 * u64::from(SEGMENT))).unwrap();
    let log = open();
    append(&log, 4000);
    eventually("files go", || {
        append(&log, 1);
        log.metrics().stored_bytes > 2_000_000 && files(dir.path(), ".seg") <= 8
    });
    log.cut_objects(log.last_index()).unwrap();
    eventually("nothing is being stored", || log.metrics().stored_index >= log.last_index().get());
    for object in vault.list("").unwrap() {
        vault.delete(&object.name).unwrap();
    }
    append(&log, 1000);
    eventually("it tries to store", || log.metrics().object_failures > 0);
    assert!(vault.list("").unwrap().is_empty());
    let error = log.read(Index(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // The next leader does not take it for a new one either, until it is told so.
    let (id, last) = (log.log_id().get(), log.last_index());
    log.close().unwrap();
    let log = open();
    eventually("it tries to store", || log.metrics().object_failures > 0);
    assert!(vault.list("").unwrap().is_empty());
    eventually("it says why", || log.store_failure().is_some());
    let failure = log.store_failure().unwrap();
    assert!(failure.error.to_string().contains("root is not in the object store"), "{}", failure.error);
    let since = failure.since;
    eventually("it tries again", || log.store_failure().is_some_and(|failure| failure.last > since));
    assert!(log.store_failure().is_some_and(|failure| failure.since == since));
    read_all(&log, last.get() - 500);
    let root = format!("chiplog objects\nformat 1\nlog {id:032x}\n");
    vault.create(&format!("{id:032x}/root"), root.into()).unwrap();
    eventually("it stores again", || !objects_in(&vault).is_empty());
    assert!(log.store_failure().is_none());
}

/// A discard after the newest object is in no object: what it has removed there is not missed.
#[test]
fn log_comes_back_after_a_discard_that_is_in_no_object() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = || options(&vault).object_delete_delay(Duration::from_millis(10));
    let log = Log::open(dir.path().join("lost"), options()).unwrap();
    let id = log.log_id();
    let stored = || eventually("most is stored", || is_mostly_stored(&log));
    append(&log, 4000);
    stored();
    let objects = || vault.list(&format!("{:032x}/o/", id.get())).unwrap();
    let fetch = |place: &str| Backup::fetch(&*vault, id, dir.path().join(place), &mut |_, _| {});
    // The first and the last record of the log that is made of the objects.
    let restored = |place: &str| {
        let (backup, place) = (fetch(place).unwrap(), dir.path().join(format!("{place}-restored")));
        backup.restore(&place, &RestoreOptions::default(), &mut |_, _| {}).unwrap();
        let log = Log::open(place, Options::with_segment_bytes(SEGMENT)).unwrap();
        assert_eq!((backup.info().first, backup.info().last), (log.first_index(), log.last_index()));
        read_all(&log, log.first_index().get());
        (log.first_index().get(), log.last_index().get())
    };
    let before = objects();
    assert_eq!(restored("all").0, 1);
    log.discard(Index(3000)).unwrap();
    eventually("objects are deleted", || objects().len() < before.len());
    let (first, last) = restored("some");
    assert!(first > 1 && first <= 3000 && last > 3500, "{first} to {last}");
    // One that is lost is not taken for a deleted one.
    let oldest = objects()[0].name.clone();
    let bytes = vault.get(&oldest, 0..objects()[0].bytes).unwrap();
    vault.delete(&oldest).unwrap();
    let error = fetch("lacking").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    vault.put(&oldest, &[bytes]).unwrap();
    assert_eq!(restored("again"), (first, last));
    // Everything up to the newest object is discarded, and more: the next one does not follow it. A large append can be an object of
    // its own, a small one is in none yet.
    append(&log, 1);
    let end = log.last_index().get();
    log.discard(Index(end)).unwrap();
    eventually("all objects are deleted", || objects().is_empty());
    assert_eq!(fetch("none").unwrap_err().kind(), ErrorKind::NotFound);
    append(&log, 1000);
    stored();
    let (first, last) = restored("more");
    assert!(first <= end && last > end + 300, "{first} to {last}, {end}");
    assert_eq!(vault.list(&format!("{:032x}/begin/", id.get())).unwrap().len(), 1);
}

/// A request to store what is there is forgotten with the leadership.
#[test]
fn wish_for_objects_ends_with_the_leadership() {
    let (network, vault) = (MemoryNetwork::new(), Arc::new(MemoryVault::default()));
    let hooked = Arc::new(HookedVault::new(vault.clone()));
    hooked.set(|_, _| Err(chiplog::Error::new(ErrorKind::Unavailable, "injected")));
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let options = || options(&vault).object_bytes(64 << 20).vault(hooked.clone() as Arc<dyn Vault>);
    let (one, two) =
        two_replicas([&dirs[0], &dirs[1]].map(|dir| dir.path()), &network, [options(), options()]);
    append_to(&[&one, &two], 10);
    let moves_to = |to: &Log, node| {
        eventually("the leader changes", || {
            _ = [&one, &two].map(|log| log.transfer_leader(NodeId(node), Duration::from_secs(5)));
            to.role() == Role::Leader && to.barrier(Duration::from_secs(2)).is_ok()
        });
    };
    moves_to(&one, 1);
    one.cut_objects(one.last_index()).unwrap();
    moves_to(&two, 2);
    moves_to(&one, 1);
    hooked.set(|_, _| Ok(()));
    eventually("the object store works", || !vault.list("").unwrap().is_empty());
    std::thread::sleep(Duration::from_millis(300));
    assert!(objects_in(&vault).is_empty());
    moves_to(&one, 1);
    one.cut_objects(one.last_index()).unwrap();
    eventually("it is stored", || !objects_in(&vault).is_empty());
}

/// A log of 60 MiB in records of 64 KiB, most of it in objects alone.
fn log_in_objects(dir: &Path, options: &dyn Fn() -> Options) -> Log {
    static RECORD: [u8; 64 << 10] = [7; 64 << 10];
    let options = || options().local_bytes(8 << 20);
    let log = Log::open(dir, options()).unwrap();
    for _ in 0..60 {
        let tickets: Vec<_> = (0..16).map(|_| log.submit(&RECORD).unwrap()).collect();
        tickets.into_iter().for_each(|ticket| _ = ticket.wait().unwrap());
    }
    eventually("files go", || {
        log.append(&RECORD).unwrap();
        files(dir, ".seg") < 8
    });
    log.close().unwrap();
    Log::open(dir, options()).unwrap()
}

/// Wherever a sequential reader is, as many chunks behind it are fetched as can be fetched at a time: neither the store nor the reader
/// waits for the other in turn.
#[test]
fn sequential_reader_has_eight_chunks_ahead_everywhere() {
    const CHUNK: u64 = 4 << 20;
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options =
        || Options::with_segment_bytes(4 << 20).vault(vault.clone() as Arc<dyn Vault>).object_bytes(12 << 20);
    let log = log_in_objects(dir.path(), &options);
    let mut reader = log.reader(Start::First).unwrap();
    let mut read = 0;
    for n in 1..=20 * 16 {
        read += reader.next_record().unwrap().unwrap().data.len() as u64;
        // It begins with the third block.
        if n > 3 * 16 && n % 11 == 0 {
            eventually("chunks are fetched", || log.metrics().fetched_bytes >= read + 7 * CHUNK);
        }
    }
}

/// A small cache keeps what is fetched ahead until it is read: nothing is fetched twice.
#[test]
fn sequential_reader_fetches_nothing_twice_with_a_small_cache() {
    for object_bytes in [1 << 20, 4 << 20, 12 << 20] {
        let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
        let options = || {
            let options = Options::with_segment_bytes(4 << 20).vault(vault.clone() as Arc<dyn Vault>);
            options.object_bytes(object_bytes).cache_bytes(8 << 20)
        };
        let log = log_in_objects(dir.path(), &options);
        let mut reader = log.reader(Start::First).unwrap();
        while reader.next_record().unwrap().is_some() {}
        let stored: u64 = objects_in(&vault).iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let fetched = log.metrics().fetched_bytes;
        assert!(fetched > 30 << 20 && fetched <= stored, "{fetched} bytes of {stored}");
    }
}
