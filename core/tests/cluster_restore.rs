//! A cluster with named logs comes back from an object store alone, whatever of each log was stored last.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use chiplog::backup::{Backup, ClusterBackup, ClusterLogs, ClusterPins, Pin, RestoredCluster};
use chiplog::vault::{HookedVault, MemoryVault, Vault};
use chiplog::{
    BatchBuilder, Error, ErrorKind, Index, Log, LogId, LogOption, Logs, LogsOptions, Options, Sequence,
    Start, Timestamp,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const SEGMENT: u32 = 128 << 10;

fn options() -> Options {
    Options::with_segment_bytes(SEGMENT).sessions_max(16)
}

fn stored_in(vault: &Arc<MemoryVault>) -> Options {
    let vault = vault.clone() as Arc<dyn Vault>;
    options().vault(vault).object_bytes(64 << 10).object_age(Duration::from_millis(20))
}

/// No object is ever full: what is stored is in slices. The catalogue has objects all the same.
fn sliced_in(vault: &Arc<MemoryVault>) -> Options {
    options().vault(vault.clone() as Arc<dyn Vault>).slice_interval(Duration::from_millis(10))
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// All objects of some logs.
type Contents = BTreeMap<String, Vec<u8>>;

fn contents(vault: &MemoryVault) -> Contents {
    loop {
        let get = |name: String, bytes| Some((name.clone(), vault.get(&name, 0..bytes).ok()?.to_vec()));
        // Slices go at any time, once an object has their entries: then these are not the contents of one moment.
        let found: Option<_> = vault.list("").unwrap().into_iter().map(|at| get(at.name, at.bytes)).collect();
        if let Some(found) = found {
            return found;
        }
    }
}

/// A cluster's logs, which a program has as a server does.
struct Cluster {
    vault: Arc<MemoryVault>,
    default: Log,
    logs: Logs,
    /// The records of each log by name, and how many of them are discarded.
    said: BTreeMap<String, (Vec<String>, u64)>,
}

/// The contents of the object store at a time, and the logs that there were.
struct Stage {
    /// All of this was written before, and everything else after it.
    time: Timestamp,
    contents: Contents,
    said: BTreeMap<String, (Vec<String>, u64)>,
}

impl Cluster {
    fn new(dir: &Path) -> Self {
        Self::with(dir, stored_in)
    }

    fn with(dir: &Path, stored_in: impl Fn(&Arc<MemoryVault>) -> Options) -> Self {
        let vault = Arc::new(MemoryVault::default());
        let options = LogsOptions::default().groups(2).options(stored_in(&vault));
        let logs = Logs::open(dir.join("named"), options).unwrap();
        let default = Log::open(dir.join("default"), stored_in(&vault)).unwrap();
        Self { vault, default, logs, said: BTreeMap::new() }
    }

    fn ids(&self) -> ClusterLogs {
        let groups = self.logs.groups().iter().map(|(number, group)| (*number, group.log_id())).collect();
        ClusterLogs::new(self.default.log_id(), self.logs.system().log_id(), groups)
    }

    fn create(&mut self, name: &str) {
        self.logs.create(name).unwrap();
        self.said.insert(name.to_owned(), (Vec::new(), 0));
    }

    fn append(&mut self, name: &str, count: u64) {
        let log = self.logs.get(name).unwrap();
        for _ in 0..count {
            let said = &mut self.said.get_mut(name).unwrap().0;
            said.push(format!("{name} {}", said.len() + 1));
            log.append(said.last().unwrap().as_bytes()).unwrap();
        }
    }

    /// Waits until everything is stored. An object is made for records: what comes before these goes along.
    fn stage(&mut self) -> Stage {
        for name in ["last-1", "last-2"] {
            self.append(name, 1);
        }
        self.default.append(b"x").unwrap();
        let time = between();
        let all: Vec<Log> = self.logs.groups().into_values().collect();
        for log in all.iter().chain([self.logs.system(), &self.default]) {
            eventually("all is stored", || {
                let metrics = log.metrics();
                metrics.sliced_index >= log.last_index().get() && metrics.unsliced_bytes == 0
            });
        }
        Stage { time, contents: contents(&self.vault), said: self.said.clone() }
    }
}

/// A time that is later than that of everything before this call, and earlier than that of everything after it.
fn between() -> Timestamp {
    const APART: Duration = Duration::from_millis(10);
    std::thread::sleep(APART);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    std::thread::sleep(APART);
    Timestamp(u64::try_from(since.as_millis()).unwrap())
}

/// An object store with each log as of another time.
fn mixed(parts: &[(LogId, &Stage)]) -> MemoryVault {
    let vault = MemoryVault::default();
    for (log, stage) in parts {
        let folder = format!("{:032x}/", log.get());
        for (name, bytes) in stage.contents.iter().filter(|(name, _)| name.starts_with(&folder)) {
            vault.put(name, &[bytes.clone().into()]).unwrap();
        }
    }
    vault
}

fn restored(vault: &MemoryVault, ids: &ClusterLogs, dir: &Path) -> RestoredCluster {
    let backup = ClusterBackup::fetch(vault, ids, &[], dir.join("backup"), &mut |_, _| {}).unwrap();
    let empty: Vec<_> = backup.parts().into_iter().filter(|part| part.backup.is_none()).collect();
    assert_eq!(backup.notes().len(), empty.len(), "{:?}", backup.notes());
    assert!(empty.iter().all(|part| backup.notes().iter().any(|note| note.starts_with(&part.name))));
    let opened = ClusterBackup::open(dir.join("backup")).unwrap();
    assert_eq!(opened.parts(), backup.parts());
    opened.check(&mut |_, _| {}).unwrap();
    let (mut last, mut most) = (0, 0);
    let restored =
        opened.restore(dir.join("data"), None, &mut |done, total| (last, most) = (done, total)).unwrap();
    assert_eq!(last, most, "progress ends with the total");
    // Up to a time behind all of it, it is the same.
    let again = dir.join("again");
    let late = opened.restore(&again, Some(Timestamp(u64::MAX)), &mut |_, _| {}).unwrap();
    assert_eq!((late.named_logs, late.notes.len()), (restored.named_logs, restored.notes.len()), "{late:?}");
    assert_eq!((late.default.last, late.later), (restored.default.last, Vec::new()));
    std::fs::remove_dir_all(&again).unwrap();
    restored
}

fn read(log: &Log) -> Vec<String> {
    let mut reader = log.reader(Start::First).unwrap();
    let mut found = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        found.push(String::from_utf8(record.data.to_vec()).unwrap());
    }
    found
}

/// The history of a cluster, as a number of stages. Returns the logs of each group.
fn history(cluster: &mut Cluster) -> (Vec<Stage>, BTreeMap<String, u32>) {
    let mut stages = Vec::new();
    for name in ["last-1", "last-2"] {
        cluster.create(name);
    }
    stages.push(cluster.stage());
    for name in ["a", "b", "c", "d"] {
        cluster.create(name);
        cluster.append(name, 3);
    }
    stages.push(cluster.stage());
    cluster.logs.get("a").unwrap().discard(Index(3)).unwrap();
    cluster.said.get_mut("a").unwrap().1 = 2;
    cluster.create("never-used");
    cluster.create("e");
    cluster.append("e", 5);
    stages.push(cluster.stage());
    cluster.logs.seal("d").unwrap();
    cluster.create("f");
    for name in ["a", "f"] {
        cluster.append(name, 7);
    }
    stages.push(cluster.stage());
    let groups = cluster.logs.list().unwrap().into_iter().map(|log| (log.name, log.group)).collect();
    for name in ["b", "e"] {
        cluster.logs.delete(name).unwrap();
        cluster.said.remove(name);
    }
    stages.push(cluster.stage());
    cluster.create("b"); // another log of that name
    cluster.append("b", 1);
    stages.push(cluster.stage());
    (stages, groups)
}

/// Checks the restored logs. `catalogue` and `groups`: what was stored of each.
fn check(
    dir: &Path,
    catalogue: &Stage,
    groups: &BTreeMap<u32, &Stage>,
    of: &BTreeMap<String, u32>,
    what: &str,
) {
    let open = || Logs::open(dir.join("data/named"), LogsOptions::default().options(options())).unwrap();
    let logs = open();
    let listed = logs.list().unwrap();
    let mut unnamed: Vec<Vec<String>> = Vec::new();
    for log in &listed {
        let handle = logs.get(&log.name).unwrap();
        let found = read(&handle);
        if log.name.starts_with("recovered-") {
            unnamed.push(found);
            continue;
        }
        assert!(catalogue.said.contains_key(&log.name), "{what}: {} exists", log.name);
        // The second log called b has another number of records than the first.
        let wanted = groups[&log.group].said.get(&log.name);
        match wanted.filter(|said| log.name != "b" || **said == catalogue.said["b"]) {
            Some((said, discarded)) => {
                assert_eq!(found, said[*discarded as usize..], "{what}: {}", log.name);
                assert_eq!(handle.first_index(), Index(discarded + 1), "{what}: {}", log.name);
            }
            // The group does not have it yet, or has dropped it.
            None => assert!(found.is_empty(), "{what}: {} {found:?}", log.name),
        }
    }
    // Nothing that a group has is lost, unless the catalogue deleted it.
    for (name, group) in of.iter().filter(|(name, _)| *name != "b") {
        let Some((said, discarded)) = groups[group].said.get(name) else {
            // The group has dropped it, or does not have it yet.
            let is_there = listed.iter().find(|log| log.name == *name);
            assert!(is_there.is_none_or(|log| log.last_index == Index(0)), "{what}: {name}");
            continue;
        };
        let records = &said[*discarded as usize..];
        // When f is created, e exists.
        let is_deleted = name == "e" && catalogue.said.contains_key("f");
        let has_name = listed.iter().any(|log| log.name == *name);
        let is_unnamed = unnamed.iter().any(|found| found == records);
        match catalogue.said.contains_key(name) {
            true => assert!(has_name, "{what}: {name} has its name"),
            false if is_deleted => assert!(!has_name && !is_unnamed, "{what}: {name} stays deleted"),
            false if !records.is_empty() => assert!(is_unnamed, "{what}: {name} has no name and its records"),
            false => {}
        }
    }
    // All of it goes on, and a new log is none of the old ones.
    for log in &listed {
        let handle = logs.get(&log.name).unwrap();
        match log.name == "d" && log.sealed {
            true => assert_eq!(handle.append(b"late").unwrap_err().kind(), ErrorKind::Sealed),
            false if log.sealed => {}
            false => {
                assert_eq!(handle.append(b"more").unwrap(), log.last_index.next(), "{what}: {}", log.name)
            }
        }
    }
    let new = logs.create("new").unwrap();
    assert_eq!(new.append(b"first").unwrap(), Index(1));
    let numbers: Vec<_> = listed.iter().map(|log| log.number).collect();
    assert!(!numbers.contains(&logs.info("new").unwrap().number), "{what}");
    let before = logs.list().unwrap();
    logs.close().unwrap();
    drop((logs, new));
    let logs = open();
    assert_eq!(logs.list().unwrap(), before, "{what}: the same after a restart");
    logs.close().unwrap();
}

/// Each log of a cluster is lost at another time: the catalogue before the groups, after them, and all of that.
#[test]
fn every_order_of_loss_leaves_a_cluster_that_goes_on() {
    every_order_of_loss(stored_in);
}

/// The same of what is in slices.
#[test]
fn every_order_of_loss_of_slices_leaves_a_cluster_that_goes_on() {
    every_order_of_loss(sliced_in);
}

fn every_order_of_loss(stored_in: impl Fn(&Arc<MemoryVault>) -> Options) {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::with(dir.path(), stored_in);
    let (stages, of) = history(&mut cluster);
    let ids = cluster.ids();
    for (c, catalogue) in stages.iter().enumerate() {
        for (g, group) in stages.iter().enumerate() {
            // The second group is sometimes of another time than the first.
            let other = &stages[(g + c % 2) % stages.len()];
            let what = format!("catalogue {c}, groups {g} and {}", (g + c % 2) % stages.len());
            let place = dir.path().join(format!("{c}-{g}"));
            let vault = mixed(&[
                (ids.log_id, &stages[0]),
                (ids.catalogue, catalogue),
                (ids.groups[&1], group),
                (ids.groups[&2], other),
            ]);
            std::fs::create_dir(&place).unwrap();
            let told = restored(&vault, &ids, &place);
            assert_eq!((told.default.first, told.default.last), (Index(1), Index(1)), "{what}");
            if c == g && c % 2 == 0 {
                assert!(told.notes.is_empty(), "{what}: {:?}", told.notes);
            }
            check(&place, catalogue, &BTreeMap::from([(1, group), (2, other)]), &of, &what);
            std::fs::remove_dir_all(&place).unwrap();
        }
    }
}

/// All of it comes back as it was at each time: logs that were deleted later, records that were discarded later, and nothing that came
/// later.
#[test]
fn cluster_comes_back_as_of_each_time() {
    as_of_each_time(stored_in);
}

/// The same of what is in slices.
#[test]
fn cluster_in_slices_comes_back_as_of_each_time() {
    as_of_each_time(sliced_in);
}

fn as_of_each_time(stored_in: impl Fn(&Arc<MemoryVault>) -> Options) {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::with(dir.path(), stored_in);
    let begun = between();
    let (stages, _) = history(&mut cluster);
    let ids = cluster.ids();
    let vault = whole(&ids, stages.last().unwrap());
    let backup = ClusterBackup::fetch(&*vault, &ids, &[], dir.path().join("backup"), &mut |_, _| {}).unwrap();
    for (n, stage) in stages.iter().enumerate() {
        let place = dir.path().join(format!("at-{n}"));
        let told = backup.restore(place.join("data"), Some(stage.time), &mut |_, _| {}).unwrap();
        assert_eq!((&told.notes, &told.later), (&Vec::new(), &Vec::new()), "stage {n}");
        assert_eq!((told.default.first, told.default.last), (Index(1), Index(n as u64 + 1)), "stage {n}");
        let open =
            || Logs::open(place.join("data/named"), LogsOptions::default().options(options())).unwrap();
        let logs = open();
        let listed = logs.list().unwrap();
        let names: Vec<&str> = listed.iter().map(|log| log.name.as_str()).collect();
        let wanted: Vec<&str> = stage.said.keys().map(String::as_str).collect();
        assert_eq!((names, told.named_logs), (wanted, stage.said.len() as u64), "stage {n}");
        for log in &listed {
            let (said, discarded) = &stage.said[&log.name];
            let handle = logs.get(&log.name).unwrap();
            assert_eq!(read(&handle), said[*discarded as usize..], "stage {n}: {}", log.name);
            assert_eq!(handle.first_index(), Index(discarded + 1), "stage {n}: {}", log.name);
            assert_eq!(log.sealed, log.name == "d" && n >= 3, "stage {n}: {}", log.name);
            if !log.sealed {
                assert_eq!(handle.append(b"more").unwrap(), log.last_index.next(), "stage {n}: {}", log.name);
            }
        }
        assert_eq!(logs.create("new").unwrap().append(b"first").unwrap(), Index(1));
        let before = logs.list().unwrap();
        logs.close().unwrap();
        drop(logs);
        let logs = open();
        assert_eq!(logs.list().unwrap(), before, "stage {n}: the same after a restart");
        logs.close().unwrap();
    }
    let last = stages.last().unwrap().time;
    let all = backup.restore(dir.path().join("all"), Some(last), &mut |_, _| {}).unwrap();
    assert_eq!(all.named_logs, stages.last().unwrap().said.len() as u64);
    for early in [Timestamp(0), begun] {
        let refused = backup.restore(dir.path().join("never"), Some(early), &mut |_, _| {});
        // The groups are in the catalogue before there is any log.
        match refused {
            Ok(told) => assert_eq!((early, told.named_logs), (begun, 0), "{told:?}"),
            Err(error) => {
                assert_eq!((early, error.kind()), (Timestamp(0), ErrorKind::OutOfRange), "{error}");
                assert!(!dir.path().join("never").exists() && !dir.path().join("never.restoring").exists());
            }
        }
    }
}

/// A catalogue that was shortened later does not say any more how it was: its oldest state is taken, and the result says so.
#[test]
fn catalogue_whose_state_is_discarded_comes_back_as_of_a_later_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new(dir.path());
    for name in ["last-1", "last-2", "kept", "gone"] {
        cluster.create(name);
    }
    cluster.append("kept", 3);
    cluster.append("gone", 3);
    let early = cluster.stage();
    cluster.logs.delete("gone").unwrap();
    cluster.said.remove("gone");
    cluster.create("between");
    cluster.append("between", 2);
    let mut n = 0;
    while cluster.logs.system().first_index() == Index(1) {
        n += 1;
        assert!(n < 2000, "the catalogue is never shortened");
        cluster.logs.create(&format!("short-{n}")).unwrap();
        cluster.logs.delete(&format!("short-{n}")).unwrap();
        cluster.logs.settle().unwrap();
    }
    cluster.append("kept", 2);
    let middle = cluster.stage();
    cluster.create("late");
    cluster.append("late", 1);
    let last = cluster.stage();
    let ids = cluster.ids();
    let backup =
        ClusterBackup::fetch(&*whole(&ids, &last), &ids, &[], dir.path().join("backup"), &mut |_, _| {})
            .unwrap();
    let open = |name: &str| {
        Logs::open(dir.path().join(name).join("named"), LogsOptions::default().options(options())).unwrap()
    };
    let names = |logs: &Logs| logs.list().unwrap().into_iter().map(|log| log.name).collect::<Vec<_>>();

    let told = backup.restore(dir.path().join("early"), Some(early.time), &mut |_, _| {}).unwrap();
    let [system] = &told.later[..] else { panic!("{:?}", told.later) };
    assert_eq!(system.name, "system");
    assert!(system.timestamp > early.time && system.timestamp <= middle.time, "{system:?}");
    let logs = open("early");
    // It was deleted after that time, and the catalogue has its name no more.
    assert_eq!(names(&logs), ["kept", "last-1", "last-2", "recovered-4"], "{:?}", told.notes);
    assert_eq!(read(&logs.get("recovered-4").unwrap()), early.said["gone"].0);
    let said = |text: &str| told.notes.iter().any(|note| note.contains(text));
    assert!(said("log between is left out: group-") && said("called recovered-4"), "{:?}", told.notes);
    assert_eq!(read(&logs.get("kept").unwrap()), early.said["kept"].0);
    logs.get("kept").unwrap().append(b"more").unwrap();
    assert_eq!(logs.create("gone").unwrap().append(b"another").unwrap(), Index(1));
    logs.close().unwrap();

    let told = backup.restore(dir.path().join("middle"), Some(middle.time), &mut |_, _| {}).unwrap();
    assert_eq!((&told.notes, &told.later), (&Vec::new(), &Vec::new()));
    let logs = open("middle");
    assert_eq!(names(&logs), ["between", "kept", "last-1", "last-2"]);
    for name in ["between", "kept"] {
        assert_eq!(read(&logs.get(name).unwrap()), middle.said[name].0);
    }
    logs.close().unwrap();
}

/// Objects begin with the first record: how a group was before that is told by none, and the result says so.
#[test]
fn group_as_of_a_time_before_its_first_record_is_of_a_later_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new(dir.path());
    for name in ["last-1", "last-2", "sealed", "gone"] {
        cluster.create(name);
    }
    let time = between();
    cluster.logs.seal("sealed").unwrap();
    cluster.logs.delete("gone").unwrap();
    let last = cluster.stage();
    let ids = cluster.ids();
    let backup =
        ClusterBackup::fetch(&*whole(&ids, &last), &ids, &[], dir.path().join("backup"), &mut |_, _| {})
            .unwrap();
    let told = backup.restore(dir.path().join("data"), Some(time), &mut |_, _| {}).unwrap();
    let later: Vec<&str> = told.later.iter().map(|part| part.name.as_str()).collect();
    assert_eq!((&later[..], told.named_logs), (&["group-1", "group-2"][..], 3));
    assert!(told.later.iter().all(|part| part.timestamp > time), "{:?}", told.later);
    assert!(
        told.notes.len() == 1 && told.notes[0].starts_with("log gone is not there: it was deleted before"),
        "{:?}",
        told.notes
    );
    let options = LogsOptions::default().options(options());
    let logs = Logs::open(dir.path().join("data/named"), options).unwrap();
    assert_eq!(logs.get("last-1").unwrap().append(b"first").unwrap(), Index(1));
    logs.close().unwrap();
}

/// A default log whose records of that time are discarded has none, and no index is given twice.
#[test]
fn log_whose_records_are_discarded_comes_back_without_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new(dir.path());
    for name in ["last-1", "last-2"] {
        cluster.create(name);
    }
    let early = cluster.stage();
    cluster.default.discard(Index(2)).unwrap();
    let last = cluster.stage();
    let ids = cluster.ids();
    let backup =
        ClusterBackup::fetch(&*whole(&ids, &last), &ids, &[], dir.path().join("backup"), &mut |_, _| {})
            .unwrap();
    let told = backup.restore(dir.path().join("data"), Some(early.time), &mut |_, _| {}).unwrap();
    assert_eq!((told.default.first, told.default.last, told.named_logs), (Index(2), Index(1), 2));
    assert!(told.later.len() == 1 && told.later[0].name == "default", "{:?}", told.later);
    assert!(told.later[0].timestamp > early.time);
    let default = Log::open(dir.path().join("data"), options()).unwrap();
    assert_eq!(default.append(b"more").unwrap(), Index(2));
    default.close().unwrap();
}

/// Batches that were appended together are there together, wherever the time is.
#[test]
fn batches_that_were_appended_together_stay_together() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new(dir.path());
    for name in ["last-1", "last-2", "a"] {
        cluster.create(name);
    }
    cluster.logs.create_beside("b", "a").unwrap();
    let (a, b) = (cluster.logs.get("a").unwrap(), cluster.logs.get("b").unwrap());
    let batch = |record: &[u8]| BatchBuilder::new().push(record).unwrap().build().unwrap();
    between(); // both logs are older than each of these times
    for n in 0..20u8 {
        cluster.logs.append_together(&[(&a, &batch(&[n])), (&b, &batch(&[n]))]).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut reader = a.reader(Start::First).unwrap();
    let mut times = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        times.push(record.timestamp);
    }
    let last = cluster.stage();
    let ids = cluster.ids();
    let backup =
        ClusterBackup::fetch(&*whole(&ids, &last), &ids, &[], dir.path().join("backup"), &mut |_, _| {})
            .unwrap();
    for time in times.iter().step_by(4).flat_map(|time| [*time, Timestamp(time.get() - 1)]) {
        let place = dir.path().join(format!("at-{}", time.get()));
        backup.restore(&place, Some(time), &mut |_, _| {}).unwrap();
        let logs = Logs::open(place.join("named"), LogsOptions::default().options(options())).unwrap();
        let ends = ["a", "b"].map(|name| logs.get(name).unwrap().last_index());
        let wanted = Index(times.iter().filter(|other| **other <= time).count() as u64);
        assert_eq!(ends, [wanted, wanted], "{time:?}");
        logs.close().unwrap();
    }
}

/// Nothing of some logs was ever stored.
#[test]
fn logs_of_which_nothing_is_stored_come_back_empty() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new(dir.path());
    let (stages, _) = history(&mut cluster);
    let (ids, last) = (cluster.ids(), stages.last().unwrap());
    let all = [ids.log_id, ids.catalogue, ids.groups[&1], ids.groups[&2]];
    for without in 0..=all.len() {
        let place = dir.path().join(format!("{without}"));
        std::fs::create_dir(&place).unwrap();
        let parts: Vec<_> =
            all.iter().enumerate().filter(|(n, _)| *n != without).map(|(_, log)| (*log, last)).collect();
        let vault = if without == all.len() { MemoryVault::default() } else { mixed(&parts) };
        let told = restored(&vault, &ids, &place);
        let logs = Logs::open(place.join("data/named"), LogsOptions::default().options(options())).unwrap();
        let names: Vec<String> = logs.list().unwrap().into_iter().map(|log| log.name).collect();
        assert_eq!(told.named_logs as usize, names.len());
        // A group that is left is whole.
        let mut unnamed = Vec::new();
        for log in logs.list().unwrap() {
            let found = read(&logs.get(&log.name).unwrap());
            if log.name.starts_with("recovered-") {
                unnamed.push(found);
                continue;
            }
            let (said, discarded) = &last.said[&log.name];
            let is_lost = log.group as usize + 1 == without;
            let wanted = if is_lost { &[][..] } else { &said[*discarded as usize..] };
            assert_eq!(found, wanted, "without {without}: {}", log.name);
        }
        if without == 1 {
            for (name, (said, discarded)) in last.said.iter().filter(|(_, (said, _))| !said.is_empty()) {
                assert!(
                    unnamed.iter().any(|found| *found == said[*discarded as usize..]),
                    "{name}: {unnamed:?}"
                );
            }
        }
        match without {
            1 => assert!(
                names.len() >= 7 && names.iter().all(|name| name.starts_with("recovered-")),
                "{names:?}"
            ),
            4 => assert!(names.is_empty()),
            _ => assert_eq!(names, ["a", "b", "c", "d", "f", "last-1", "last-2", "never-used"]),
        }
        for name in &names {
            if !logs.info(name).unwrap().sealed {
                logs.get(name).unwrap().append(b"more").unwrap();
            }
        }
        logs.create("new").unwrap().append(b"x").unwrap();
        logs.close().unwrap();
        let default = Log::open(place.join("data"), options()).unwrap();
        assert_eq!(default.last_index(), Index(if [0, 4].contains(&without) { 0 } else { 6 }));
        default.append(b"more").unwrap();
        default.close().unwrap();
    }
}

#[test]
fn sessions_and_options_are_kept_and_no_id() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new(dir.path());
    for name in ["last-1", "last-2", "a"] {
        cluster.create(name);
    }
    let log = cluster.logs.get("a").unwrap();
    let mut session = log.open_session().unwrap();
    assert_eq!(session.append(b"once").unwrap(), Index(1));
    log.set_log_options(&[(LogOption::RetentionBytes, Some(1 << 30))], Duration::from_secs(10)).unwrap();
    let stage = cluster.stage();
    let ids = cluster.ids();
    let vault = mixed(&[ids.log_id, ids.catalogue, ids.groups[&1], ids.groups[&2]].map(|log| (log, &stage)));
    let told = restored(&vault, &ids, dir.path());
    assert_eq!(told.notes, Vec::<String>::new());
    let logs = Logs::open(dir.path().join("data/named"), LogsOptions::default().options(options())).unwrap();
    let again = logs.get("a").unwrap();
    assert_eq!(again.log_options().get(LogOption::RetentionBytes), Some(1 << 30));
    // The append is repeated: it is known.
    let mut resumed = again.resume_session(session.id(), Sequence(1));
    assert_eq!(resumed.append(b"once").unwrap(), Index(1));
    assert_eq!((resumed.append(b"twice").unwrap(), again.last_index()), (Index(2), Index(2)));
    let mut before = vec![ids.log_id, ids.catalogue, log.log_id()];
    before.extend(ids.groups.values());
    let mut now = vec![told.default.log_id, logs.system().log_id(), again.log_id()];
    now.extend(logs.groups().values().map(Log::log_id));
    assert!(now.iter().all(|id| !before.contains(id)), "an id was kept");
}

/// After an error there is nothing where the backup, or the data, was to be; what was there stays.
#[test]
fn failures_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new(dir.path());
    let (stages, _) = history(&mut cluster);
    let ids = cluster.ids();
    let all = [ids.log_id, ids.catalogue, ids.groups[&1], ids.groups[&2]];
    let last = stages.last().unwrap();
    let place = |name: &str| dir.path().join(name);
    for log in all {
        let vault = mixed(&all.map(|log| (log, last)));
        let folder = format!("{:032x}/o/", log.get());
        let object = vault.list(&folder).unwrap().pop().unwrap();
        let mut bad = vault.get(&object.name, 0..object.bytes).unwrap().to_vec();
        bad[4200] ^= 1;
        vault.put(&object.name, &[bad.into()]).unwrap();
        std::fs::create_dir(place("there")).unwrap();
        for dest in ["there", "new"] {
            let error = ClusterBackup::fetch(&vault, &ids, &[], place(dest), &mut |_, _| {}).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
        assert!(!place("new").exists());
        std::fs::remove_dir(place("there")).unwrap(); // it is empty
    }

    let vault = mixed(&all.map(|log| (log, last)));
    let backup = ClusterBackup::fetch(&vault, &ids, &[], place("backup"), &mut |_, _| {}).unwrap();
    let again = ClusterBackup::fetch(&vault, &ids, &[], place("backup"), &mut |_, _| {}).unwrap_err();
    assert!(again.to_string().contains("holds a backup already"), "{again}");
    // It is no backup of one log.
    let one = Backup::open(place("backup")).unwrap_err();
    assert!(one.to_string().contains("holds a backup of a cluster"), "{one}");
    std::fs::create_dir(place("data.restoring")).unwrap();
    let left = backup.restore(place("data"), None, &mut |_, _| {}).unwrap_err();
    assert!(left.to_string().contains("was interrupted"), "{left}");
    std::fs::remove_dir(place("data.restoring")).unwrap();
    // A file changes after the backup was opened: nothing is made.
    for part in ["default", "named/system", "named/group-1", "named/group-2"] {
        let file = segment(&place("backup").join(part));
        let right = std::fs::read(&file).unwrap();
        let mut bad = right.clone();
        bad[6000] ^= 1;
        std::fs::write(&file, &bad).unwrap();
        let error = backup.restore(place("data"), None, &mut |_, _| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{part}: {error}");
        assert!(!place("data").exists() && !place("data.restoring").exists());
        std::fs::write(&file, right).unwrap();
        // A part that is missing is named.
        let away = place("away");
        std::fs::rename(place("backup").join(part), &away).unwrap();
        let error = ClusterBackup::open(place("backup")).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains(part), "{error}");
        std::fs::rename(&away, place("backup").join(part)).unwrap();
    }
    // One that was interrupted is none.
    std::fs::rename(place("backup/chiplog.cluster"), place("backup/chiplog.cluster.tmp")).unwrap();
    assert!(ClusterBackup::is_at(place("backup")));
    let unfinished = ClusterBackup::open(place("backup")).unwrap_err();
    assert!(unfinished.to_string().contains("is not finished"), "{unfinished}");
    let again = ClusterBackup::fetch(&vault, &ids, &[], place("backup"), &mut |_, _| {}).unwrap_err();
    assert!(again.to_string().contains("was interrupted"), "{again}");
}

fn segment(dir: &Path) -> PathBuf {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|e| e == "seg")).min().unwrap()
}

fn all(ids: &ClusterLogs) -> Vec<LogId> {
    ids.groups.values().copied().chain([ids.catalogue, ids.log_id]).collect()
}

fn whole(ids: &ClusterLogs, stage: &Stage) -> Arc<MemoryVault> {
    let parts: Vec<_> = all(ids).into_iter().map(|log| (log, stage)).collect();
    Arc::new(mixed(&parts))
}

/// A vault of which call `n` fails, and all after it too if its user is killed then.
fn failing(below: &Arc<MemoryVault>, n: u32, killed: bool) -> HookedVault {
    let vault = HookedVault::new(below.clone());
    let mut calls = 0;
    vault.set(move |call, name| {
        calls += 1;
        match calls == n || (killed && calls > n) {
            true => Err(Error::new(ErrorKind::Unavailable, format!("{call} of {name}"))),
            false => Ok(()),
        }
    });
    vault
}

fn pins(vault: &MemoryVault, ids: &ClusterLogs) -> usize {
    all(ids).into_iter().map(|log| Pin::list(vault, log).unwrap().len()).sum()
}

/// Pins are a backup of a cluster only as long as all of them are there, whatever call of the store was the last one of the command that
/// makes or removes them.
#[test]
fn incomplete_pins_are_no_backup() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new(dir.path());
    let (stages, _) = history(&mut cluster);
    let (ids, last) = (cluster.ids(), stages.last().unwrap());
    let place = dir.path().join("fetched");
    let find = |vault: &MemoryVault| ClusterPins::find(vault, ids.log_id, "nightly");
    for killed in [false, true] {
        let mut n = 0;
        let made = loop {
            n += 1;
            let vault = whole(&ids, last);
            let made = ClusterPins::make(&failing(&vault, n, killed), &ids, "nightly", None);
            let Err(error) = made else { break vault };
            assert_eq!(error.kind(), ErrorKind::Unavailable, "call {n}: {error}");
            assert_eq!(find(&vault).unwrap(), None, "call {n}, killed: {killed}");
            assert!(killed || pins(&vault, &ids) == 0, "call {n}: pins are left");
        };
        assert!(n > 30, "the call that is made last makes it a backup: {n} calls");
        let set = find(&made).unwrap().unwrap();
        assert_eq!((pins(&made, &ids), set.empty.len()), (4, 0));
        let backup = ClusterBackup::fetch_pins(&*made, &set, &[], &place, &mut |_, _| {}).unwrap();
        assert!(backup.parts().iter().all(|part| part.backup.is_some()), "{:?}", backup.notes());
        std::fs::remove_dir_all(&place).unwrap();
        let contents = contents(&made);

        let mut n = 0;
        loop {
            n += 1;
            let vault = Arc::new(MemoryVault::default());
            contents.iter().for_each(|(name, bytes)| vault.put(name, &[bytes.clone().into()]).unwrap());
            let removed = ClusterPins::remove(&failing(&vault, n, killed), ids.log_id, "nightly", false);
            match (&removed, find(&vault)) {
                (Err(_), Ok(Some(_))) => assert_eq!(pins(&vault, &ids), 4, "call {n}"),
                (_, found) => assert_eq!(found.unwrap(), None, "call {n}"),
            }
            if let Ok(removed) = removed {
                assert_eq!((pins(&vault, &ids), removed.len()), (0, 4));
                break;
            }
            // The rest is found by the list of the cluster's logs.
            vault.put(&format!("{:032x}/root", ids.log_id.get()), &["x".into()]).unwrap();
            stored_list(&vault, &ids);
            ClusterPins::remove(&*vault, ids.log_id, "nightly", false).unwrap();
            assert_eq!(pins(&vault, &ids), 0, "call {n}, killed: {killed}");
        }
        assert!(n > 8, "{n} calls");
    }
}

/// Stores the list of the logs, as a server does.
fn stored_list(vault: &MemoryVault, ids: &ClusterLogs) {
    ids.store(vault).unwrap();
}

/// A log that the store had is not taken for one of which nothing was ever stored.
#[test]
fn lost_log_is_no_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new(dir.path());
    let (stages, _) = history(&mut cluster);
    let (ids, last) = (cluster.ids(), stages.last().unwrap());
    for (name, log) in ids.parts() {
        let vault = whole(&ids, last);
        Pin::make(&*vault, log, "old", None).unwrap();
        let remove = |keeps: &[&str]| {
            let folder = format!("{:032x}/", log.get());
            let goes = |at: &str| !keeps.contains(&at.strip_prefix(&folder).unwrap());
            let there = vault.list(&folder).unwrap();
            there.iter().filter(|at| goes(&at.name)).for_each(|at| vault.delete(&at.name).unwrap());
        };
        for (keeps, is_lost) in [(&["root", "pin/old"][..], true), (&["root"], false), (&[], true)] {
            remove(keeps);
            let place = dir.path().join(format!("{name}-{}", keeps.len()));
            let backup = ClusterBackup::fetch(&*vault, &ids, &[], &place, &mut |_, _| {}).unwrap();
            assert_eq!(backup.ends_early(), is_lost, "{name} {keeps:?}: {:?}", backup.notes());
            let opened = ClusterBackup::open(&place).unwrap();
            assert_eq!((opened.ends_early(), opened.notes()), (is_lost, backup.notes()));
            let starts = |note: &String| note.starts_with(&format!("{name}: "));
            assert!(opened.notes().iter().all(starts) && opened.notes().len() == 1, "{:?}", opened.notes());
            let made = ClusterPins::make(&*vault, &ids, "nightly", None);
            let kind = made.as_ref().err().map(Error::kind);
            let wanted = [None, Some(ErrorKind::NotFound), Some(ErrorKind::Corrupt)];
            let wanted = wanted[if is_lost { 1 + keeps.len() / 2 } else { 0 }];
            assert_eq!(kind, wanted, "{name} {keeps:?}: {made:?}");
            if made.is_ok() {
                ClusterPins::remove(&*vault, ids.log_id, "nightly", false).unwrap();
            }
            assert_eq!(pins(&vault, &ids), keeps.len() / 2, "only the old one is there");
        }
        // It is left out if the operator says so.
        let place = dir.path().join(format!("{name}-out"));
        let out = ClusterBackup::fetch(&*vault, &ids, &[&name], &place, &mut |_, _| {}).unwrap();
        assert!(!out.ends_early(), "{:?}", out.notes());
    }
}

/// Pins of one name that were made each by itself are no backup of the cluster, and those made by another command stay.
#[test]
fn pins_of_another_command_are_none_of_the_set() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new(dir.path());
    let (stages, _) = history(&mut cluster);
    let (ids, last) = (cluster.ids(), stages.last().unwrap());
    let vault = whole(&ids, last);
    stored_list(&vault, &ids);
    let find = || ClusterPins::find(&*vault, ids.log_id, "nightly");
    let group = ids.groups[&2];
    for log in all(&ids) {
        Pin::make(&*vault, log, "nightly", None).unwrap();
    }
    assert_eq!(find().unwrap(), None);
    let exists = ClusterPins::make(&*vault, &ids, "nightly", None).unwrap_err();
    assert_eq!((exists.kind(), pins(&vault, &ids)), (ErrorKind::AlreadyExists, 4), "{exists}");
    let removed = ClusterPins::remove(&*vault, ids.log_id, "nightly", false).unwrap();
    assert_eq!(removed, [ids.log_id], "those of the named logs were made alone");
    let others = ClusterPins::remove(&*vault, ids.log_id, "nightly", false).unwrap_err();
    assert!(others.to_string().contains(&format!("{:032x}", group.get())), "{others}");
    for log in ids.groups.values().chain([&ids.catalogue]) {
        Pin::remove(&*vault, *log, "nightly").unwrap();
    }
    // A pin of the set is replaced.
    let (set, made) = ClusterPins::make(&*vault, &ids, "nightly", Some(Index(2))).unwrap();
    assert_eq!((find().unwrap(), made.len(), made[0].0), (Some(set), 4, ids.log_id));
    Pin::remove(&*vault, group, "nightly").unwrap();
    assert_eq!(find().unwrap_err().kind(), ErrorKind::Corrupt);
    Pin::make(&*vault, group, "nightly", None).unwrap();
    assert_eq!(find().unwrap_err().kind(), ErrorKind::Corrupt);
    let removed = ClusterPins::remove(&*vault, ids.log_id, "nightly", true).unwrap();
    assert_eq!((removed.len(), pins(&vault, &ids)), (3, 1), "the pin of another command stays");
    // Only a log without objects has no pin.
    Pin::remove(&*vault, group, "nightly").unwrap();
    let empty = Arc::new(mixed(&[(ids.log_id, last), (ids.catalogue, last), (group, last)]));
    empty.put(&format!("{:032x}/root", ids.groups[&1].get()), &["x".into()]).unwrap();
    let (set, _) = ClusterPins::make(&*empty, &ids, "nightly", None).unwrap();
    assert_eq!(set.empty.iter().copied().collect::<Vec<_>>(), [ids.groups[&1]]);
    let backup =
        ClusterBackup::fetch_pins(&*empty, &set, &[], dir.path().join("pinned"), &mut |_, _| {}).unwrap();
    assert!(
        backup.notes().len() == 1 && backup.notes()[0].starts_with("group-1: nothing"),
        "{:?}",
        backup.notes()
    );
    // A group that the pins do not know is not taken for an empty one.
    let less = ClusterLogs::new(ids.log_id, ids.catalogue, [(1, ids.groups[&1])].into());
    let (set, _) = ClusterPins::make(&*vault, &less, "less", None).unwrap();
    let lacking =
        ClusterBackup::fetch_pins(&*vault, &set, &[], dir.path().join("less"), &mut |_, _| {}).unwrap_err();
    assert!(lacking.kind() == ErrorKind::Corrupt && lacking.to_string().contains("group-2"), "{lacking}");
}

/// A log whose pin is missing, damaged or another one is left out, and no other fault of the pins is.
#[test]
fn log_without_its_pin_does_not_block_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new(dir.path());
    let (stages, _) = history(&mut cluster);
    let (ids, last) = (cluster.ids(), stages.last().unwrap());
    for (name, log) in ids.parts() {
        for damage in ["missing", "damaged", "another"] {
            let vault = whole(&ids, last);
            let (set, made) = ClusterPins::make(&*vault, &ids, "nightly", None).unwrap();
            assert!(made.iter().all(|(log, pin)| set.has(*log, pin)));
            assert_eq!(ClusterPins::names(&*vault, ids.log_id).unwrap(), ["nightly"]);
            let pin = format!("{:032x}/pin/nightly", log.get());
            match damage {
                "damaged" => vault.put(&pin, &["x".into()]).unwrap(),
                _ => Pin::remove(&*vault, log, "nightly").unwrap(),
            }
            if damage == "another" {
                let other = Pin::make(&*vault, log, "nightly", None).unwrap();
                assert!(!set.has(log, &other), "{name}");
            }
            let find = |without: &[&str]| ClusterPins::find_without(&*vault, ids.log_id, "nightly", without);
            for without in [&[][..], &["group-9"], &[if name == "system" { "default" } else { "system" }]] {
                let error = find(without).unwrap_err();
                let kind = if damage == "damaged" { ErrorKind::Unsupported } else { ErrorKind::Corrupt };
                assert!(
                    error.kind() == kind && error.to_string().contains(&name),
                    "{name} {damage}: {error}"
                );
            }
            let found = find(&[&name]).unwrap().unwrap();
            let place = dir.path().join(format!("{name}-{damage}"));
            let fetched =
                ClusterBackup::fetch_pins(&*vault, &found, &[&name], &place, &mut |_, _| {}).unwrap();
            let missing = fetched.parts().into_iter().filter(|part| part.backup.is_none());
            assert_eq!(missing.map(|part| part.name).collect::<Vec<_>>(), std::slice::from_ref(&name));
        }
    }
}

/// A damaged log is left out, the rest comes back, and the backup and what is made of it say so.
#[test]
fn damaged_log_does_not_block_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new(dir.path());
    let (stages, _) = history(&mut cluster);
    let (ids, last) = (cluster.ids(), stages.last().unwrap());
    let parts = [("group-2", ids.groups[&2]), ("system", ids.catalogue), ("default", ids.log_id)];
    for (name, log) in parts {
        let vault = whole(&ids, last);
        let object = vault.list(&format!("{:032x}/o/", log.get())).unwrap().pop().unwrap();
        let mut bad = vault.get(&object.name, 0..object.bytes).unwrap().to_vec();
        bad[4200] ^= 1;
        vault.put(&object.name, &[bad.into()]).unwrap();
        let place = dir.path().join(format!("without-{name}"));
        let fetch = |without: &[&str]| {
            ClusterBackup::fetch(&*vault, &ids, without, place.join("backup"), &mut |_, _| {})
        };
        std::fs::create_dir(&place).unwrap();
        let error = fetch(&[]).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.to_string().starts_with(name), "{error}");
        let error = fetch(&[name, "group-9"]).unwrap_err();
        assert!(
            error.kind() == ErrorKind::InvalidArgument && error.to_string().contains("group-9"),
            "{error}"
        );
        let backup = fetch(&[name]).unwrap();
        let opened = ClusterBackup::open(place.join("backup")).unwrap();
        assert_eq!(opened.notes(), backup.notes());
        assert_eq!(opened.notes().len(), 1, "{:?}", opened.notes());
        let effect = match name {
            "default" => "it comes back empty",
            "system" => "named logs come back without their names",
            _ => "the named logs in it come back empty",
        };
        let left_out = format!("{name}: it was left out: {effect}");
        assert!(opened.notes()[0].starts_with(&left_out), "{:?}", opened.notes());
        let told = opened.restore(place.join("data"), None, &mut |_, _| {}).unwrap();
        assert!(told.notes.iter().any(|note| note.starts_with(&left_out)), "{:?}", told.notes);
        // Nothing is said of what the object store had: it was not looked at.
        assert!(!told.notes.iter().any(|note| note.contains("yet")), "{:?}", told.notes);
        let logs = Logs::open(place.join("data/named"), LogsOptions::default().options(options())).unwrap();
        for log in logs.list().unwrap().into_iter().filter(|_| name != "system") {
            let (said, discarded) = &last.said[&log.name];
            let wanted =
                if name == "group-2" && log.group == 2 { &[][..] } else { &said[*discarded as usize..] };
            assert_eq!(read(&logs.get(&log.name).unwrap()), wanted, "{name}: {}", log.name);
        }
        logs.close().unwrap();
    }
}

/// The catalogue is of a later time than groups that it alone names: what is created meanwhile keeps its name.
#[test]
fn catalogue_is_fetched_after_the_groups_that_it_names() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new(dir.path());
    let (stages, _) = history(&mut cluster);
    let (ids, last) = (cluster.ids(), stages.last().unwrap());
    let parts =
        [(ids.log_id, last), (ids.catalogue, &stages[1]), (ids.groups[&1], last), (ids.groups[&2], last)];
    let below = Arc::new(mixed(&parts));
    let vault = HookedVault::new(below.clone());
    let later = contents(&mixed(&[(ids.catalogue, last)]));
    let group = format!("{:032x}/", ids.groups[&2].get());
    vault.set(move |call, name| {
        if call == "get" && name.starts_with(&group) {
            later.iter().for_each(|(name, bytes)| below.put(name, &[bytes.clone().into()]).unwrap());
        }
        Ok(())
    });
    let only = ClusterLogs::new(ids.log_id, ids.catalogue, BTreeMap::new());
    let backup = ClusterBackup::fetch(&vault, &only, &[], dir.path().join("backup"), &mut |_, _| {}).unwrap();
    assert!(backup.notes().is_empty(), "{:?}", backup.notes());
    let told = backup.restore(dir.path().join("data"), None, &mut |_, _| {}).unwrap();
    assert!(told.notes.is_empty(), "{:?}", told.notes);
    assert_eq!(told.named_logs as usize, last.said.len());
}

/// A catalogue that a version without this age has opened first gets it.
#[test]
fn catalogue_of_an_earlier_version_gets_the_age_of_objects() {
    let dir = tempfile::tempdir().unwrap();
    let vault = Arc::new(MemoryVault::default());
    let open = || {
        let options =
            LogsOptions::default().groups(1).options(stored_in(&vault).object_age(Duration::from_secs(60)));
        Logs::open(dir.path(), options).unwrap()
    };
    let logs = open();
    let age = |logs: &Logs| logs.system().log_options().get(LogOption::ObjectAge);
    let is_set = |logs: &Logs| age(logs) == Some(1000);
    eventually("a new one has it", || is_set(&logs));
    for other in [None, Some(86_400_000)] {
        logs.system().set_log_options(&[(LogOption::ObjectAge, other)], Duration::from_secs(10)).unwrap();
    }
    logs.close().unwrap();
    drop(logs);
    let logs = open();
    eventually("it is set again", || is_set(&logs));
    logs.system().set_log_options(&[(LogOption::ObjectAge, None)], Duration::from_secs(10)).unwrap();
    logs.close().unwrap();
    drop(logs);
    let logs = open();
    eventually("it is set", || is_set(&logs));
    logs.create("a").unwrap();
    eventually("the catalogue is stored", || {
        logs.system().metrics().stored_index >= logs.system().last_index().get()
    });
}
