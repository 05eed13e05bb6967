//! A cluster with named logs comes back from an object store alone, whatever of each log was stored last.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod damage;
mod to_time;

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

/// Stores the list of the logs, as a server does.
fn stored_list(vault: &MemoryVault, ids: &ClusterLogs) {
    ids.store(vault).unwrap();
}
