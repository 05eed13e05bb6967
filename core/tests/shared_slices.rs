//! Slices of groups of named logs: the newest records of each log are in the object store soon after they are committed, and come back
//! from there alone, with the log's name.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::backup::{Backup, ClusterBackup, ClusterLogs, RestoreOptions};
use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::transport::MemoryNetwork;
use chiplog::vault::{FaultOptions, FaultyVault, HookedVault, MemoryVault, Vault};
use chiplog::{
    ErrorKind, Index, Log, LogId, LogNumber, LogOption, Logs, LogsOptions, NodeId, Options, Start,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

const SEGMENT: u32 = 256 << 10;

/// Slices every 10 ms, and objects that are far from full.
fn options(vault: &Arc<impl Vault + 'static>) -> Options {
    Options::with_segment_bytes(SEGMENT)
        .sessions_max(16)
        .vault(vault.clone() as Arc<dyn Vault>)
        .slice_interval(Some(Duration::from_millis(10)))
}

fn open(dir: &Path, options: Options) -> Logs {
    Logs::open(dir, LogsOptions::default().groups(1).options(options)).unwrap()
}

fn group(logs: &Logs) -> Log {
    logs.groups()[&1].clone()
}

fn record(log: u64, n: u64) -> Vec<u8> {
    let mut record = vec![((log * 31 + n) % 251) as u8; 300 + (n % 700) as usize];
    record[..8].copy_from_slice(&n.to_le_bytes());
    record[8..16].copy_from_slice(&log.to_le_bytes());
    record
}

fn log_of(logs: &Logs, log: u64) -> Log {
    let name = format!("log-{log}");
    logs.get(&name).or_else(|_| logs.create(&name)).unwrap()
}

/// Appends `count` records to each of these logs, turn by turn.
fn append(logs: &Logs, which: &[u64], count: u64) {
    let handles: Vec<_> = which.iter().map(|log| (*log, log_of(logs, *log))).collect();
    let lasts: Vec<u64> = handles.iter().map(|(_, handle)| handle.last_index().get()).collect();
    let mut tickets = Vec::new();
    for k in 1..=count {
        for ((log, handle), last) in handles.iter().zip(&lasts) {
            tickets.push(handle.submit(&record(*log, last + k)).unwrap());
        }
    }
    tickets.into_iter().for_each(|ticket| assert!(ticket.wait().unwrap().get() > 0));
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn is_sliced(log: &Log) -> bool {
    let metrics = log.metrics();
    metrics.sliced_index == log.last_index().get() && metrics.unsliced_bytes == 0
}

/// Everything of the group and of the catalogue is in the object store.
fn all_sliced(logs: &Logs) {
    eventually("the group is in slices", || is_sliced(&group(logs)));
    eventually("the catalogue is in slices", || is_sliced(logs.system()));
}

fn read_all(log: u64, handle: &Log, from: u64, to: u64) {
    assert_eq!((handle.first_index().get(), handle.last_index().get()), (from, to), "log {log}");
    let mut reader = handle.reader(Start::Index(Index(from))).unwrap();
    for n in from..=to {
        let found = reader.next_record().unwrap().unwrap_or_else(|| panic!("no record {n} of log {log}"));
        assert!((found.index.get(), found.data) == (n, &record(log, n)[..]), "record {n} of log {log}");
    }
    assert!(reader.next_record().unwrap().is_none());
}

fn names(vault: &dyn Vault, id: LogId, folder: &str) -> Vec<String> {
    let found = vault.list(&format!("{:032x}/{folder}/", id.get())).unwrap();
    found.into_iter().map(|at| at.name).collect()
}

fn slices(vault: &dyn Vault, id: LogId) -> Vec<String> {
    names(vault, id, "s")
}

/// The ids of the catalogue and of the group.
fn ids(logs: &Logs) -> [LogId; 2] {
    [logs.system().log_id(), group(logs).log_id()]
}

/// The logs that come back from the object store alone, and what was said about that.
fn again(vault: &dyn Vault, ids: [LogId; 2], dir: &Path) -> (Logs, Vec<String>) {
    let place = dir.join(format!("again{}", std::fs::read_dir(dir).unwrap().count()));
    std::fs::create_dir(&place).unwrap();
    let mut notes = Vec::new();
    for (id, name) in ids.into_iter().zip(["system", "group-1"]) {
        let made = Backup::fetch(vault, id, place.join(format!("backup-{name}")), &mut |_, _| {}).unwrap();
        let backup = Backup::open(made.path()).unwrap();
        backup.check(&mut |_, _| {}).unwrap();
        notes.extend(backup.notes().iter().cloned());
        let keep = RestoreOptions::default().keep_log_id(true);
        backup.restore(place.join("logs").join(name), &keep, &mut |_, _| {}).unwrap();
    }
    (open(&place.join("logs"), Options::with_segment_bytes(1 << 20)), notes)
}

/// Without any object: the first slice begins with the state of all logs. Sessions, options, discards and everything else are in slices.
#[test]
fn logs_without_objects_come_back_from_slices_alone() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(&dir.path().join("lost"), options(&vault));
    append(&logs, &[1, 2, 3, 4], 100);
    all_sliced(&logs);
    append(&logs, &[1, 2, 3, 5], 100);
    log_of(&logs, 2).discard(Index(31)).unwrap();
    logs.seal("log-4").unwrap();
    logs.delete("log-5").unwrap();
    let age = [(LogOption::RetentionAge, Some(86_400_000))];
    log_of(&logs, 3).set_log_options(&age, Duration::from_secs(10)).unwrap();
    let mut session = log_of(&logs, 1).open_session().unwrap();
    session.append(&record(1, 201)).unwrap();
    log_of(&logs, 6);
    all_sliced(&logs);
    let (of_group, of_system) = (group(&logs).metrics(), logs.system().metrics());
    assert!(of_group.stored_slices >= 2 && of_system.stored_slices >= 2, "{of_group:?} {of_system:?}");
    assert_eq!((of_group.stored_index, of_group.slice_failures), (0, 0));
    let ids = ids(&logs);
    // Idle logs store nothing more.
    let count = group(&logs).metrics().stored_slices;
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(group(&logs).metrics().stored_slices, count);
    // How far slices are is known of the group alone.
    assert!(!log_of(&logs, 1).is_in_store(Index(1)));
    drop(session);
    drop(logs);
    std::fs::remove_dir_all(dir.path().join("lost")).unwrap();
    let found = Backup::slices_in(&*vault, ids[1], &mut |_| {}).unwrap();
    assert!(found.faults.is_empty() && !found.is_cut_off && found.last.is_some(), "{found:?}");

    let (logs, notes) = again(&*vault, ids, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_all(1, &logs.get("log-1").unwrap(), 1, 201);
    read_all(2, &logs.get("log-2").unwrap(), 31, 200);
    read_all(3, &logs.get("log-3").unwrap(), 1, 200);
    read_all(4, &logs.get("log-4").unwrap(), 1, 100);
    assert_eq!(logs.get("log-4").unwrap().append(b"x").unwrap_err().kind(), ErrorKind::Sealed);
    assert_eq!(logs.get("log-5").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(logs.get("log-6").unwrap().last_index(), Index(0));
    let set = logs.get("log-3").unwrap().log_options();
    assert_eq!(set.get(LogOption::RetentionAge), Some(86_400_000));
    assert_eq!(group(&logs).status().sessions, 1);
    append(&logs, &[1, 2, 3, 6], 10);
}

/// Slices follow the newest object, in which records are log by log. Those that an object has overtaken go.
#[test]
fn slices_continue_sorted_objects_and_go_once_another_has_them() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = options(&vault).object_bytes(128 << 10).local_bytes(2 * u64::from(SEGMENT));
    let logs = open(&dir.path().join("lost"), options);
    for _ in 0..30 {
        append(&logs, &[1, 2, 3, 4], 20);
        all_sliced(&logs);
    }
    let [system, id] = ids(&logs);
    eventually("objects are stored", || group(&logs).metrics().stored_bytes > 1_000_000);
    all_sliced(&logs);
    let metrics = group(&logs).metrics();
    assert!(metrics.stored_index < metrics.sliced_index, "{metrics:?}");
    eventually("slices go", || 4 * slices(&*vault, id).len() < metrics.stored_slices as usize);
    log_of(&logs, 3).discard(Index(500)).unwrap();
    log_of(&logs, 9);
    append(&logs, &[1, 9], 1);
    all_sliced(&logs);
    let found = Backup::slices_in(&*vault, id, &mut |_| {}).unwrap();
    assert!(found.faults.is_empty() && !found.is_cut_off, "{found:?}");
    assert_eq!(found.last, Some(group(&logs).last_index()));
    drop(logs);
    let (logs, notes) = again(&*vault, [system, id], dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    for (log, from, to) in [(1, 1, 601), (2, 1, 600), (3, 500, 600), (4, 1, 600), (9, 1, 1)] {
        read_all(log, &logs.get(&format!("log-{log}")).unwrap(), from, to);
    }
}

/// Records that all logs have discarded, and those of deleted logs, take their slices with them.
#[test]
fn discarded_and_deleted_records_take_their_slices_with_them() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(&dir.path().join("lost"), options(&vault));
    let [system, id] = ids(&logs);
    for round in 1..=40 {
        append(&logs, &[1, 2], 50);
        // A log that has a hundred records for a while.
        append(&logs, &[100 + round / 10], 10);
        all_sliced(&logs);
        if round > 2 {
            log_of(&logs, 1).discard(Index((round - 2) * 50 + 1)).unwrap();
            log_of(&logs, 2).discard(Index((round - 1) * 50 + 1)).unwrap();
        }
        if round % 10 == 9 {
            logs.delete(&format!("log-{}", 100 + round / 10)).unwrap();
        }
    }
    logs.delete("log-104").unwrap();
    all_sliced(&logs);
    let made = group(&logs).metrics().stored_slices as usize;
    eventually("slices go", || 2 * slices(&*vault, id).len() < made);
    all_sliced(&logs);
    drop(logs);
    let (logs, notes) = again(&*vault, [system, id], dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    read_all(1, &logs.get("log-1").unwrap(), 1901, 2000);
    read_all(2, &logs.get("log-2").unwrap(), 1951, 2000);
    assert_eq!(logs.list().unwrap().len(), 2);
}

/// All objects are discarded, and then deleted: slices begin again with the state of the logs, of which none is forgotten.
#[test]
fn slices_begin_again_once_all_objects_are_discarded() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let options = options(&vault).object_bytes(64 << 10).object_delete_delay(Duration::from_millis(1));
    let logs = open(&dir.path().join("lost"), options);
    let [system, id] = ids(&logs);
    append(&logs, &[1, 2, 3], 500);
    logs.seal("log-3").unwrap();
    eventually("objects are stored", || group(&logs).metrics().stored_bytes > 700_000);
    eventually("objects are discarded, and deleted", || {
        for log in [1, 2, 3] {
            let handle = log_of(&logs, log);
            handle.discard(handle.last_index().next()).unwrap();
        }
        append(&logs, &[1, 2], 5);
        let objects = names(&*vault, id, "o");
        !objects.is_empty() && !objects[0].ends_with("/00000000000000000000")
    });
    append(&logs, &[1, 2], 20);
    all_sliced(&logs);
    let ends: Vec<_> =
        [1, 2].map(|log| (log_of(&logs, log).first_index(), log_of(&logs, log).last_index())).into();
    drop(logs);
    let (logs, notes) = again(&*vault, [system, id], dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    for (log, (first, last)) in [1, 2].into_iter().zip(ends) {
        read_all(log, &logs.get(&format!("log-{log}")).unwrap(), first.get(), last.get());
    }
    let sealed = logs.get("log-3").unwrap();
    assert_eq!((sealed.first_index(), sealed.last_index()), (Index(501), Index(500)));
    assert_eq!(sealed.append(b"x").unwrap_err().kind(), ErrorKind::Sealed);
}

/// The contents of the object store at a moment, and how many records of the group were said to be in it.
type Moment = (BTreeMap<String, Vec<u8>>, u64);

/// All objects of a store. None: another call deletes one meanwhile, so these are not the contents of a moment.
fn contents(vault: &MemoryVault) -> Option<BTreeMap<String, Vec<u8>>> {
    let get = |name: String, bytes| Some((name.clone(), vault.get(&name, 0..bytes).ok()?.to_vec()));
    vault.list("").unwrap().into_iter().map(|at| get(at.name, at.bytes)).collect()
}

/// Notes the contents before each change.
fn watch(vault: &HookedVault, below: &Arc<MemoryVault>, of: &Arc<OnceLock<Log>>) -> Arc<Mutex<Vec<Moment>>> {
    let moments = Arc::new(Mutex::new(Vec::new()));
    let (below, of, noted) = (below.clone(), of.clone(), moments.clone());
    vault.set(move |call, _| {
        if matches!(call, "put" | "create" | "delete") {
            let said = of.get().map_or(0, |group| group.metrics().sliced_index);
            noted.lock().unwrap().extend(contents(&below).map(|all| (all, said)));
        }
        Ok(())
    });
    moments
}

/// All disks are lost at any moment: before each change of the object store it has all records of all logs that were said to be there, each
/// log up to some record, and in the order in which they were appended.
#[test]
fn at_every_moment_the_store_has_what_was_said() {
    let dir = tempfile::tempdir().unwrap();
    let below = Arc::new(MemoryVault::default());
    let vault = Arc::new(HookedVault::new(below.clone()));
    let of = Arc::new(OnceLock::new());
    let moments = watch(&vault, &below, &of);
    let options = options(&vault).object_bytes(64 << 10).object_delete_delay(Duration::from_millis(1));
    let logs = open(&dir.path().join("lost"), options);
    of.set(group(&logs)).unwrap();
    let id = group(&logs).log_id();
    for round in 1..=12 {
        append(&logs, &[1, 2, 3], 12);
        if round == 5 {
            append(&logs, &[4], 3);
        }
        if round == 7 {
            logs.delete("log-4").unwrap();
        }
        if round > 8 {
            for log in [1, 2, 3] {
                let handle = log_of(&logs, log);
                handle.discard(handle.last_index()).unwrap();
            }
        }
        all_sliced(&logs);
    }
    let numbers: BTreeMap<u64, LogNumber> =
        [1, 2, 3].into_iter().map(|log| (log, logs.info(&format!("log-{log}")).unwrap().number)).collect();
    vault.set(|_, _| Ok(()));
    drop(logs);
    let mut moments = std::mem::take(&mut *moments.lock().unwrap());
    // A call that was under way can still delete one.
    let last = (0..).find_map(|_| contents(&below)).unwrap();
    moments.push((last, of.get().unwrap().metrics().sliced_index));
    assert!(moments.len() > 30, "{}", moments.len());
    let mut longest = 0;
    for (n, (contents, said)) in moments.iter().enumerate() {
        let store = MemoryVault::default();
        for (name, bytes) in contents {
            store.put(name, &[bytes.clone().into()]).unwrap();
        }
        let backup = match Backup::fetch(&store, id, dir.path().join(format!("backup-{n}")), &mut |_, _| {}) {
            Err(error) if error.kind() == ErrorKind::NotFound && *said == 0 => continue,
            backup => backup.unwrap_or_else(|error| panic!("moment {n}, {said} records: {error}")),
        };
        let last = backup.info().last.get();
        assert!(last >= *said, "moment {n}: {said} records were said to be there, and {last} are");
        longest = longest.max(last);
        let place = dir.path().join(format!("again-{n}"));
        backup.restore(&place, &RestoreOptions::default(), &mut |_, _| {}).unwrap();
        let again = Log::open(&place, Options::with_segment_bytes(1 << 20)).unwrap();
        for (log, number) in &numbers {
            let Ok(handle) = again.named(*number) else { continue };
            read_all(*log, &handle, handle.first_index().get(), handle.last_index().get());
        }
    }
    assert_eq!(longest, of.get().unwrap().last_index().get());
}

/// A slice is missing or damaged in the middle: all logs end there, and the fetch says so.
#[test]
fn logs_end_before_a_missing_or_damaged_slice() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(&dir.path().join("lost"), options(&vault));
    let all = ids(&logs);
    for _ in 0..9 {
        append(&logs, &[1, 2], 10);
        all_sliced(&logs);
    }
    drop(logs);
    let found = slices(&*vault, all[1]);
    let bad = &found[found.len() / 2];
    let bytes = vault.get(bad, 0..vault.size(bad).unwrap().unwrap()).unwrap();
    let mut flipped = bytes.to_vec();
    flipped[bytes.len() / 2] ^= 4;
    vault.put(bad, &[flipped.into()]).unwrap();
    for is_missing in [false, true] {
        if is_missing {
            vault.delete(bad).unwrap();
        }
        let (logs, notes) = again(&*vault, all, dir.path());
        assert_eq!(notes.iter().any(|note| note.contains(bad)), !is_missing, "{notes:?}");
        assert!(notes.iter().any(|note| note.starts_with("the log ends early: slices")), "{notes:?}");
        for log in [1, 2] {
            let handle = logs.get(&format!("log-{log}")).unwrap();
            assert!((10..90).contains(&handle.last_index().get()), "log {log}: {}", handle.last_index());
            read_all(log, &handle, 1, handle.last_index().get());
        }
    }
    vault.put(bad, &[bytes]).unwrap();
    let (logs, notes) = again(&*vault, all, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    [1, 2].into_iter().for_each(|log| read_all(log, &logs.get(&format!("log-{log}")).unwrap(), 1, 90));
}

/// The object store is down, or loses answers: appends do not wait, and everything is in slices once it is back. Also after a restart.
#[test]
fn faults_of_the_object_store_delay_slices_and_lose_nothing() {
    let (dir, below) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let vault = Arc::new(FaultyVault::new(below.clone(), 7, FaultOptions::default().refused(1000)));
    let options = || options(&vault).slice_bytes(512 << 10);
    let logs = open(&dir.path().join("lost"), options());
    append(&logs, &[1, 2, 3], 1000); // 2 MB
    eventually("failures are counted", || group(&logs).metrics().slice_failures > 1);
    let metrics = group(&logs).metrics();
    assert_eq!((metrics.sliced_index, metrics.stored_slices), (0, 0));
    assert!(metrics.unsliced_bytes > 1_800_000, "{metrics:?}");
    let faults = FaultOptions::default().refused(50).unanswered(100).missing(30).flipped(30).short(30);
    vault.set_faults(faults);
    all_sliced(&logs);
    let all = ids(&logs);
    logs.close().unwrap();
    let before = slices(&*below, all[1]);
    let logs = open(&dir.path().join("lost"), options());
    append(&logs, &[1, 2], 50);
    all_sliced(&logs);
    let now = slices(&*below, all[1]);
    assert!(
        before.iter().all(|name| now.contains(name)) && now.len() > before.len(),
        "it goes on behind them"
    );
    drop(logs);
    let (logs, _) = again(&*below, all, dir.path());
    for (log, last) in [(1, 1050), (2, 1050), (3, 1000)] {
        read_all(log, &logs.get(&format!("log-{log}")).unwrap(), 1, last);
    }
}

/// The group's slices are there, and nothing of the catalogue: its logs come back with all their records, and other names.
#[test]
fn group_without_its_catalogue_comes_back_with_other_names() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let logs = open(&dir.path().join("lost"), options(&vault));
    append(&logs, &[1, 2], 50);
    all_sliced(&logs);
    let [system, id] = ids(&logs);
    let numbers = [1, 2].map(|log| logs.info(&format!("log-{log}")).unwrap().number.0);
    let of_cluster = ClusterLogs::new(LogId(77), system, [(1, id)].into());
    vault.put(&format!("{:032x}/root", 77), &["x".into()]).unwrap(); // nothing was ever stored of the default log
    drop(logs);
    let place = |name: &str| dir.path().join(name);
    let fetched = |name: &str| {
        let backup = ClusterBackup::fetch(&*vault, &of_cluster, &[], place(name), &mut |_, _| {}).unwrap();
        assert!(!backup.ends_early());
        let restored = backup.restore(place(&format!("{name}-data")), None, &mut |_, _| {}).unwrap();
        let dir = place(&format!("{name}-data/named"));
        (open(&dir, Options::with_segment_bytes(1 << 20)), restored.notes)
    };
    let (whole, _) = fetched("whole");
    [1, 2].into_iter().for_each(|log| read_all(log, &whole.get(&format!("log-{log}")).unwrap(), 1, 50));
    // Its begin is damaged: that is no catalogue of which nothing is stored. An object may have it already.
    let begin = slices(&*vault, system).into_iter().find(|name| name.ends_with(".begin"));
    let begin = begin.unwrap_or_else(|| names(&*vault, system, "o").remove(0));
    let mut bad = vault.get(&begin, 0..vault.size(&begin).unwrap().unwrap()).unwrap().to_vec();
    let at = if begin.contains("/s/") { bad.len() / 2 } else { 4200 };
    bad[at] ^= 1;
    vault.put(&begin, &[bad.into()]).unwrap();
    let error = ClusterBackup::fetch(&*vault, &of_cluster, &[], place("none"), &mut |_, _| {}).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().starts_with("system, log"), "{error}");
    assert!(!place("none").exists());
    for folder in ["s", "o"] {
        names(&*vault, system, folder).iter().for_each(|name| vault.delete(name).unwrap());
    }
    let (unnamed, notes) = fetched("unnamed");
    assert!(notes.iter().any(|note| note.contains("recovered-")), "{notes:?}");
    for (log, number) in [1, 2].into_iter().zip(numbers) {
        read_all(log, &unnamed.get(&format!("recovered-{number}")).unwrap(), 1, 50);
    }
}

/// Three replicas of the catalogue and of one group.
fn replica(
    dir: &Path,
    networks: &[MemoryNetwork; 2],
    node: u64,
    ids: Option<[LogId; 2]>,
    options: Options,
) -> Logs {
    let transports = [networks[0].transport(), networks[1].transport()];
    let options = LogsOptions::default().groups(1).options(options).cluster(move |group| {
        let n = group as usize;
        let bootstrap = ids.map_or(Bootstrap::Init, |ids| Bootstrap::Join(ids[n]));
        let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, transports[n].clone());
        cluster.heartbeat = Duration::from_millis(30);
        cluster.election_timeout = Duration::from_secs(1);
        cluster.slow_disk_sync = None;
        cluster
    });
    Logs::open(dir.join(node.to_string()), options).unwrap()
}

/// Leaders of the group change while slices are stored, then all replicas are lost: every record up to the last slice comes back.
#[test]
fn new_leader_of_a_group_continues_the_slices_of_the_old_one() {
    let (dir, vault) = (tempfile::tempdir().unwrap(), Arc::new(MemoryVault::default()));
    let networks = [MemoryNetwork::new(), MemoryNetwork::new()];
    let options = || options(&vault).object_bytes(128 << 10);
    let one = replica(dir.path(), &networks, 1, None, options());
    let all = ids(&one);
    let mut replicas = vec![one];
    for node in [2, 3] {
        let joined = replica(dir.path(), &networks, node, Some(all), options());
        let one = &replicas[0];
        for (leader, of) in [(one.system(), joined.system()), (&group(one), &group(&joined))] {
            let (node, directory) = (NodeId(node), of.directory_id());
            let add = Change::AddLearner { node, directory, address: String::new() };
            leader.change_members(&[add], Duration::from_secs(60)).unwrap();
            leader.change_members(&[Change::Promote(node)], Duration::from_secs(60)).unwrap();
        }
        replicas.push(joined);
    }
    let create = |name: &str| replicas.iter().any(|logs| logs.get(name).is_ok() || logs.create(name).is_ok());
    eventually("the logs are created", || ["log-1", "log-2"].into_iter().all(create));
    let mut last = 0;
    for round in 0..8 {
        last += 40;
        // An append of unknown outcome is found: the record at an index is always the same.
        eventually("it is appended and in a slice", || {
            let leading = |logs: &&Logs| group(logs).role() == Role::Leader;
            let Some(logs) = replicas.iter().find(leading) else { return false };
            [1, 2].into_iter().all(|log| {
                let Ok(handle) = logs.get(&format!("log-{log}")) else { return false };
                let missing = handle.last_index().get() + 1..=last;
                missing.into_iter().all(|n| handle.append(&record(log, n)).is_ok())
            }) && is_sliced(&group(logs))
        });
        if let Some(leader) =
            replicas.iter().position(|logs| group(logs).role() == Role::Leader).filter(|_| round < 7)
        {
            let to = NodeId((leader as u64 + 1) % 3 + 1);
            _ = group(&replicas[leader]).transfer_leader(to, Duration::from_secs(5));
        }
    }
    eventually("the catalogue is in slices", || {
        let leads = |logs: &&Logs| logs.system().role() == Role::Leader;
        replicas.iter().find(leads).is_some_and(|logs| is_sliced(logs.system()))
    });
    drop(replicas);
    let (logs, notes) = again(&*vault, all, dir.path());
    assert!(notes.is_empty(), "{notes:?}");
    [1, 2].into_iter().for_each(|log| read_all(log, &logs.get(&format!("log-{log}")).unwrap(), 1, last));
}
