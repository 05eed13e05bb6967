//! Branches of clusters with named logs: all of it goes on as another cluster, and reads the objects of its parent.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod incomplete;

use bytes::Bytes;
use chiplog::backup::{
    Backup, Branch, ClusterBackup, ClusterBranch, ClusterBranchOptions, ClusterLogs, ClusterPins, Inventory,
    Pin,
};
use chiplog::vault::{HookedVault, MemoryVault, Vault};
use chiplog::{
    ErrorKind, FollowerLog, Index, Log, LogId, LogOption, Logs, LogsOptions, Options, Sequence, Start,
    Timestamp,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const SEGMENT: u32 = 128 << 10;

fn stored_in(vault: &Arc<MemoryVault>) -> Options {
    Options::with_segment_bytes(SEGMENT)
        .sessions_max(16)
        .vault(vault.clone() as Arc<dyn Vault>)
        .object_bytes(64 << 10)
        .object_age(Duration::from_millis(20))
        .object_delete_delay(Duration::from_millis(50))
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The records of each log by name, and how many of them are discarded.
type Said = BTreeMap<String, (Vec<String>, u64)>;

/// A cluster's logs, which a program has as a server does.
struct Cluster {
    vault: Arc<MemoryVault>,
    default: Log,
    logs: Logs,
    said: Said,
}

impl Cluster {
    fn new(dir: &Path) -> Self {
        let vault = Arc::new(MemoryVault::default());
        Self::open(dir, &vault, &stored_in(&vault), Said::new())
    }

    fn open(dir: &Path, vault: &Arc<MemoryVault>, options: &Options, said: Said) -> Self {
        let of_groups = LogsOptions::default().groups(2).options(options.clone());
        let logs = Logs::open(dir.join("named"), of_groups).unwrap();
        let default = Log::open(dir, options.clone()).unwrap();
        Self { vault: vault.clone(), default, logs, said }
    }

    fn close(self) {
        self.logs.close().unwrap();
        self.default.close().unwrap();
    }

    fn ids(&self) -> ClusterLogs {
        let groups = self.logs.groups().iter().map(|(number, group)| (*number, group.log_id())).collect();
        ClusterLogs::new(self.default.log_id(), self.logs.system().log_id(), groups)
    }

    fn create(&mut self, name: &str) {
        self.logs.create(name).unwrap();
        self.said.insert(name.to_owned(), (Vec::new(), 0));
    }

    /// Appends records of about 100 bytes, which say whose they are.
    fn append(&mut self, whose: &str, name: &str, count: u64) {
        let log = self.logs.get(name).unwrap();
        for _ in 0..count {
            let said = &mut self.said.get_mut(name).unwrap().0;
            said.push(format!("{whose} {name} {:080}", said.len() + 1));
            log.append(said.last().unwrap().as_bytes()).unwrap();
        }
    }

    fn discard(&mut self, name: &str, first: u64) {
        self.logs.get(name).unwrap().discard(Index(first)).unwrap();
        self.said.get_mut(name).unwrap().1 = first - 1;
    }

    /// Waits until everything is in objects. An object is made for records: what comes before these goes along.
    fn store(&mut self) {
        self.default.append(b"x").unwrap();
        let all: Vec<Log> = self.logs.groups().into_values().collect();
        for log in all.iter().chain([self.logs.system(), &self.default]) {
            log.cut_objects(log.last_index()).unwrap();
            eventually("all is stored", || log.metrics().stored_index >= log.last_index().get());
        }
    }

    /// Every log has the records that were said.
    fn check(&self, what: &str) {
        let listed = self.logs.list().unwrap();
        let names: Vec<&str> = listed.iter().map(|log| log.name.as_str()).collect();
        assert_eq!(names, self.said.keys().map(String::as_str).collect::<Vec<_>>(), "{what}");
        for (name, (said, discarded)) in &self.said {
            let log = self.logs.get(name).unwrap();
            assert_eq!(log.first_index(), Index(discarded + 1), "{what}: {name}");
            assert_eq!(read(&log), said[*discarded as usize..], "{what}: {name}");
            for n in (*discarded as usize..said.len()).rev().step_by(7) {
                let record = log.read(Index(n as u64 + 1)).unwrap();
                assert_eq!(record.data, said[n].as_bytes(), "{what}: {name}");
            }
        }
    }
}

fn read(log: &Log) -> Vec<String> {
    let mut reader = log.reader(Start::First).unwrap();
    let mut found = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        found.push(String::from_utf8(record.data.to_vec()).unwrap());
    }
    found
}

/// A time that is later than that of everything before this call, and earlier than that of everything after it.
fn between() -> Timestamp {
    const APART: Duration = Duration::from_millis(10);
    std::thread::sleep(APART);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    std::thread::sleep(APART);
    Timestamp(u64::try_from(since.as_millis()).unwrap())
}

/// A cluster with objects of several stretches, each with records of all its logs.
fn parent(dir: &Path) -> Cluster {
    filled(Cluster::new(dir))
}

fn filled(mut cluster: Cluster) -> Cluster {
    for name in ["a", "b", "c", "d"] {
        cluster.create(name);
    }
    for _ in 0..4 {
        for name in ["a", "b", "c", "d"] {
            cluster.append("parent", name, 60);
        }
        cluster.store();
    }
    cluster
}

/// Jobs of the store go on behind the end of their log: waits until none has it any more.
fn settle(vault: &Arc<MemoryVault>) {
    eventually("no object is being stored any more", || Arc::strong_count(vault) == 1);
}

fn numbers(vault: &MemoryVault, log: LogId) -> Vec<u64> {
    let names = vault.list(&format!("{:032x}/o/", log.get())).unwrap();
    names.iter().map(|object| object.name.rsplit('/').next().unwrap().parse().unwrap()).collect()
}

/// The names of the pins of branches in all logs of a cluster.
fn pins(vault: &MemoryVault, ids: &ClusterLogs) -> Vec<(String, String)> {
    let of = |(part, log): (String, LogId)| {
        let pins = Pin::list(vault, log).unwrap().into_iter();
        pins.filter(|pin| pin.branch().is_some()).map(move |pin| (part.clone(), pin.name)).collect::<Vec<_>>()
    };
    ids.parts().into_iter().flat_map(of).collect()
}

fn make(vault: &dyn Vault, ids: &ClusterLogs, dir: &Path) -> chiplog::Result<ClusterBranch> {
    ClusterBranch::make(vault, ids, dir, &ClusterBranchOptions::default())
}

#[test]
fn branch_of_a_cluster_reads_its_parents_objects_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let mut cluster = parent(&place("parent"));
    cluster.discard("b", 31);
    cluster.logs.seal("d").unwrap();
    let forty = [(LogOption::RetentionAge, Some(1 << 40))];
    cluster.logs.get("c").unwrap().set_log_options(&forty, Duration::from_secs(10)).unwrap();
    for name in ["a", "b", "c"] {
        cluster.append("parent", name, 1);
    }
    let mut session = cluster.logs.get("a").unwrap().open_session().unwrap();
    let in_session = format!("{} in a session", "parent");
    session.append(in_session.as_bytes()).unwrap();
    let (session_id, sequence) = (session.id(), session.next_sequence());
    drop(session);
    cluster.said.get_mut("a").unwrap().0.push(in_session);
    cluster.store();
    let (vault, ids, said) = (cluster.vault.clone(), cluster.ids(), cluster.said.clone());
    let made = make(&*vault, &ids, &place("branch")).unwrap();
    assert_eq!((made.named_logs, &made.notes, &made.later), (4, &vec![], &vec![]));
    assert_eq!((made.default.first, made.default.last), (Index(1), Index(5)));
    let names: Vec<&str> = made.parts.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(names, ["default", "group-1", "group-2"]);
    for part in &made.parts {
        let of = ids.parts().into_iter().find(|(name, _)| *name == part.name).unwrap().1;
        let branch = Branch::of(&*vault, part.log_id).unwrap().unwrap();
        assert_eq!(branch.parts.iter().map(|part| part.log_id).collect::<Vec<_>>(), [of], "{}", part.name);
        assert_eq!((branch.parts[0].first_object, branch.missing(&*vault).unwrap()), (0, 0));
        let pin = format!("branch-{:032x}", part.log_id.get());
        assert!(pins(&vault, &ids).contains(&(part.name.clone(), pin)), "{:?}", pins(&vault, &ids));
        assert!(numbers(&vault, part.log_id).is_empty());
    }
    assert!(!place("branch.restoring").exists() && !place("branch/fetched").exists());
    // Both go on, and neither sees the other.
    let mut branch = Cluster::open(&place("branch"), &vault, &stored_in(&vault), said);
    branch.check("the branch");
    let their_ids = branch.ids();
    let all = |ids: &ClusterLogs| ids.parts().into_iter().map(|(_, id)| id).collect::<Vec<_>>();
    assert!(all(&ids).iter().all(|id| !all(&their_ids).contains(id)), "new ids");
    assert_eq!(branch.logs.get("d").unwrap().append(b"late").unwrap_err().kind(), ErrorKind::Sealed);
    let options = branch.logs.get("c").unwrap().log_options();
    assert_eq!(options.get(LogOption::RetentionAge), Some(1 << 40));
    assert_eq!(branch.logs.info("a").unwrap().number, cluster.logs.info("a").unwrap().number);
    // The session goes on: a retry gets the record that it had.
    let mut session = branch.logs.get("a").unwrap().resume_session(session_id, Sequence(1));
    assert_eq!(session.append(b"again").unwrap(), branch.logs.get("a").unwrap().last_index());
    assert_eq!(session.next_sequence(), sequence);
    session.append(b"branch in a session").unwrap();
    drop(session);
    branch.said.get_mut("a").unwrap().0.push("branch in a session".into());
    for (whose, other) in [("branch", &mut branch), ("parent", &mut cluster)] {
        for name in ["a", "b", "c"] {
            other.append(whose, name, 150);
        }
        other.create("new");
        other.append(whose, "new", 3);
        other.store();
        other.check(whose);
    }
    let own: Vec<u64> = numbers(&vault, their_ids.groups[&1]);
    assert!(!own.is_empty() && own[0] > 0, "{own:?}");
    // It is in the object store as a whole.
    let backup = ClusterBackup::fetch(&*vault, &their_ids, &[], place("backup"), &mut |_, _| {}).unwrap();
    backup.restore(place("restored"), None, &mut |_, _| {}).unwrap();
    let said = branch.said.clone();
    branch.close();
    let options = Options::with_segment_bytes(SEGMENT).sessions_max(16);
    Cluster::open(&place("restored"), &vault, &options, said.clone()).check("a backup of the branch");
    // Without the store its older records are not called discarded.
    let alone = Cluster::open(&place("branch"), &vault, &options, said.clone());
    let error = alone.logs.get("a").unwrap().read(Index(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    alone.close();
    Cluster::open(&place("branch"), &vault, &stored_in(&vault), said).check("the branch, opened again");
    for (_, log) in ids.parts().into_iter().chain(their_ids.parts()) {
        assert_eq!(Inventory::take(&*vault, log).unwrap().unknown.objects, 0);
    }
}

/// The parent discards and deletes all that a branch has, and the branch then does so, too: nothing of the parent is deleted by the branch,
/// and nothing that the branch reads by the parent.
#[test]
fn parent_keeps_what_a_branch_reads_and_the_branch_lets_it_go() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let mut cluster = parent(&place("parent"));
    let (vault, ids, said) = (cluster.vault.clone(), cluster.ids(), cluster.said.clone());
    make(&*vault, &ids, &place("branch")).unwrap();
    assert_eq!(pins(&vault, &ids).len(), 3);
    let before: Vec<_> = ids.groups.values().map(|group| numbers(&vault, *group)).collect();
    for name in ["a", "b"] {
        cluster.logs.delete(name).unwrap();
        cluster.said.remove(name);
    }
    for name in ["c", "d"] {
        cluster.append("parent", name, 60);
        cluster.discard(name, 300);
    }
    cluster.store();
    let begins = |group: &LogId| vault.list(&format!("{:032x}/begin/", group.get())).unwrap();
    eventually("the parent deletes", || ids.groups.values().all(|group| !begins(group).is_empty()));
    std::thread::sleep(Duration::from_millis(200));
    for (group, before) in ids.groups.values().zip(&before) {
        let now = numbers(&vault, *group);
        assert!(before[..before.len() - 1].iter().all(|number| now.contains(number)), "{before:?} {now:?}");
    }
    let mut branch = Cluster::open(&place("branch"), &vault, &stored_in(&vault), said);
    branch.check("the branch");
    cluster.close();
    // The parent may not delete anything more.
    let parents: Vec<_> = ids.groups.values().map(|group| numbers(&vault, *group)).collect();
    for name in ["a", "b", "c", "d"] {
        branch.append("branch", name, 60);
        branch.discard(name, 260);
    }
    branch.store();
    branch.check("the branch, discarded");
    eventually("the pins of the groups go", || {
        pins(&vault, &ids).iter().all(|(part, _)| !part.starts_with("group-"))
    });
    let now: Vec<_> = ids.groups.values().map(|group| numbers(&vault, *group)).collect();
    assert_eq!(now, parents, "the branch has deleted nothing of its parent");
    for name in ["a", "b", "c", "d"] {
        branch.append("branch", name, 5);
    }
    let said = branch.said.clone();
    branch.close();
    Cluster::open(&place("branch"), &vault, &stored_in(&vault), said).check("the branch, opened again");
}

/// Discards have deleted objects, and the newest one that is left does not know of them all: no log of a branch begins before what is left.
#[test]
fn logs_of_a_branch_begin_with_records_that_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let vault = Arc::new(MemoryVault::default());
    // Each object has records of all logs of its group, whose discards then delete it.
    let options = stored_in(&vault).object_age(Duration::from_secs(3600));
    let mut cluster = filled(Cluster::open(&place("parent"), &vault, &options, Said::new()));
    let ids = cluster.ids();
    for _ in 0..6 {
        for name in ["a", "b", "c", "d"] {
            cluster.append("parent", name, 200);
        }
        cluster.store();
    }
    let said = cluster.said.clone();
    let newest: Vec<u64> =
        ids.groups.values().map(|group| *numbers(&vault, *group).last().unwrap()).collect();
    for name in ["a", "b", "c", "d"] {
        cluster.discard(name, 1000);
        cluster.append("parent", name, 1);
    }
    cluster.store();
    let gone = |group: &LogId| !numbers(&vault, *group).contains(&0);
    eventually("objects are deleted", || ids.groups.values().all(gone));
    cluster.close();
    // The objects with the discards are not stored yet.
    for (group, newest) in ids.groups.values().zip(newest) {
        for number in numbers(&vault, *group).into_iter().filter(|number| *number > newest) {
            vault.delete(&format!("{:032x}/o/{number:020}", group.get())).unwrap();
        }
    }
    let made = make(&*vault, &ids, &place("branch")).unwrap();
    assert!(made.notes.is_empty(), "{:?}", made.notes);
    let branch = Cluster::open(&place("branch"), &vault, &stored_in(&vault), Said::new());
    for (name, (said, _)) in said {
        let log = branch.logs.get(&name).unwrap();
        let first = log.first_index().get();
        assert!(first > 1 && first <= 1000, "{name} begins with {first}");
        assert_eq!(read(&log), said[first as usize - 1..], "{name}");
    }
}

#[test]
fn branches_of_branches_and_of_pins_have_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let mut cluster = parent(&place("parent"));
    let (vault, ids) = (cluster.vault.clone(), cluster.ids());
    let (set, _) = ClusterPins::make(&*vault, &ids, "then", None).unwrap();
    let then = cluster.said.clone();
    let mut said = then.clone();
    // Of a branch that has objects of its own, and of one that has none.
    let mut parent_ids = ids.clone();
    for n in 1..=3 {
        let name = format!("branch-{n}");
        make(&*vault, &parent_ids, &place(&name)).unwrap();
        let mut branch = Cluster::open(&place(&name), &vault, &stored_in(&vault), said.clone());
        branch.check(&name);
        parent_ids = branch.ids();
        if n == 1 {
            // Its catalogue has to be in the store.
            branch.create("one");
            branch.append(&name, "one", 1);
        }
        for log in ["a", "c"] {
            branch.append(&name, log, 80);
        }
        branch.store();
        said = branch.said.clone();
        branch.close();
    }
    let lineage = Branch::of(&*vault, parent_ids.groups[&1]).unwrap().unwrap();
    assert_eq!(lineage.parts.len(), 3, "{lineage:?}");
    // Discards since then take nothing from a branch of the pins.
    for name in ["a", "b", "c", "d"] {
        cluster.append("parent", name, 60);
        cluster.discard(name, 300);
    }
    cluster.store();
    let options = ClusterBranchOptions::default();
    let made = ClusterBranch::make_of_pins(&*vault, &set, place("pinned"), &options).unwrap();
    assert!(made.notes.is_empty() && made.named_logs == 4, "{made:?}");
    Cluster::open(&place("pinned"), &vault, &stored_in(&vault), then).check("of pins");
    // Once the pin of one log is removed, the set is none.
    Pin::remove(&*vault, ids.groups[&1], "then").unwrap();
    let error = ClusterBranch::make_of_pins(&*vault, &set, place("none"), &options).unwrap_err();
    assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("group-1"), "{error}");
    assert!(!place("none").exists() && !place("none.restoring").exists());
}

/// Every log is as it was at each time: those that were deleted later, records that were discarded later, and nothing that came later.
#[test]
fn branch_of_a_cluster_is_as_of_the_time_that_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let mut cluster = Cluster::new(&place("parent"));
    let begun = between();
    let mut stages: Vec<(Timestamp, Said)> = Vec::new();
    for n in 0..5 {
        let name = format!("log-{n}");
        cluster.create(&name);
        for name in cluster.said.keys().cloned().collect::<Vec<_>>() {
            cluster.append("parent", &name, 40);
        }
        match n {
            2 => {
                cluster.discard("log-0", 50);
                cluster.append("parent", "log-0", 1);
            }
            3 => {
                cluster.logs.delete("log-1").unwrap();
                cluster.said.remove("log-1");
                cluster.logs.settle().unwrap();
            }
            _ => {}
        }
        // Some ends are inside an object.
        if n % 2 == 0 {
            cluster.store();
        } else {
            cluster.default.append(b"x").unwrap();
        }
        stages.push((between(), cluster.said.clone()));
    }
    let (vault, ids) = (cluster.vault.clone(), cluster.ids());
    for (n, (time, said)) in stages.into_iter().enumerate() {
        let name = format!("at-{n}");
        let options = ClusterBranchOptions::default().to(time);
        let made = ClusterBranch::make(&*vault, &ids, place(&name), &options).unwrap();
        assert_eq!((&made.notes, &made.later), (&vec![], &vec![]), "{name}");
        assert_eq!(made.default.last, Index(n as u64 + 1), "{name}");
        let mut branch = Cluster::open(&place(&name), &vault, &stored_in(&vault), said);
        branch.check(&name);
        for log in branch.said.keys().cloned().collect::<Vec<_>>() {
            branch.append(&name, &log, 30);
        }
        branch.create("new");
        branch.store();
        branch.check(&name);
        branch.close();
    }
    let pins_before = pins(&vault, &ids);
    let options = ClusterBranchOptions::default().to(Timestamp(0));
    let error = ClusterBranch::make(&*vault, &ids, place("never"), &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange, "{error}");
    assert!(!place("never").exists() && !place("never.restoring").exists());
    assert_eq!(pins(&vault, &ids), pins_before);
    // The groups are in the catalogue before there is any log.
    let options = ClusterBranchOptions::default().to(begun);
    let made = ClusterBranch::make(&*vault, &ids, place("begun"), &options).unwrap();
    assert_eq!(made.named_logs, 0, "{made:?}");
}

/// A call to the object store fails, each in turn: nothing is left, neither in the directory nor in the store.
#[test]
fn failure_at_every_call_leaves_the_whole_branch_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let cluster = parent(&place("parent"));
    let (vault, ids, said) = (cluster.vault.clone(), cluster.ids(), cluster.said.clone());
    cluster.close();
    settle(&vault);
    let before = vault.list("").unwrap();
    let mut failed = 0;
    for nth in 0.. {
        let hooked = HookedVault::new(vault.clone());
        let calls = Arc::new(AtomicUsize::new(0));
        let at = calls.clone();
        hooked.set(move |_, _| match at.fetch_add(1, Ordering::Relaxed) == nth {
            true => Err(chiplog::Error::new(ErrorKind::PermissionDenied, "planned")),
            false => Ok(()),
        });
        let made = make(&hooked, &ids, &place("branch"));
        match made {
            Ok(_) if calls.load(Ordering::Relaxed) <= nth => break,
            Ok(made) => panic!("call {nth} failed, and a branch was made: {made:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "call {nth}: {error}");
                failed += 1;
                assert!(!place("branch").exists() && !place("branch.restoring").exists(), "call {nth}");
                assert_eq!(vault.list("").unwrap(), before, "call {nth}: {error}");
            }
        }
    }
    assert!(failed > 100, "{failed}");
    Cluster::open(&place("branch"), &vault, &stored_in(&vault), said).check("the branch");
}

/// A copy of one log of a branch reads the objects of the parent as long as the branch has none of its own.
#[test]
fn copy_of_a_log_of_a_branch_without_own_objects_reads_the_parents() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let cluster = parent(&place("parent"));
    let (vault, ids, said) = (cluster.vault.clone(), cluster.ids(), cluster.said.clone());
    make(&*vault, &ids, &place("branch")).unwrap();
    let mut branch = Cluster::open(&place("branch"), &vault, &stored_in(&vault), said);
    for part in ["none of its own", "some of its own"] {
        for name in ["a", "b"] {
            // A copy of one log knows of objects of one group alone.
            let log = branch.logs.get(name).unwrap();
            let mut feed = log.follow(chiplog::follower::FollowFrom::First).unwrap();
            let Some(chiplog::follower::FollowMessage::State(state)) = feed.next(1 << 20).unwrap() else {
                panic!("no state")
            };
            let at: PathBuf = place(&format!("{part}-{name}"));
            let copy = FollowerLog::create(&at, stored_in(&vault), &state).unwrap();
            while let Some(fed) = feed.next(1 << 20).unwrap() {
                copy.apply(fed).unwrap();
            }
            let log = copy.log();
            let (said, _) = &branch.said[name];
            let first = log.first_index().get();
            match part {
                "none of its own" => assert_eq!(first, 1, "{name}"),
                _ => println!("{part}: the copy of {name} begins with {first}"),
            }
            assert_eq!(log.last_index().get(), said.len() as u64, "{part} {name}");
            assert_eq!(read(log), said[first as usize - 1..], "{part} {name}");
        }
        for name in ["a", "b"] {
            branch.append("branch", name, 200);
        }
        branch.store();
    }
}

/// One log alone is no branch of a cluster, and a group is none without its catalogue.
#[test]
fn group_is_refused_as_a_branch_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let mut cluster = Cluster::new(&place("parent"));
    cluster.create("a");
    cluster.append("parent", "a", 1);
    cluster.store();
    let (vault, ids) = (cluster.vault.clone(), cluster.ids());
    let mut groups: Vec<LogId> = ids.groups.values().copied().collect();
    groups.retain(|group| !numbers(&vault, *group).is_empty());
    cluster.close();
    settle(&vault);
    let before = vault.list("").unwrap();
    for group in groups {
        // Its first object begins before any log was opened.
        let error = Branch::make(&*vault, group, place("none"), &Default::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    assert_eq!(vault.list("").unwrap(), before);
    assert!(!place("none").exists() && !place("none.restoring").exists());
    assert!(Backup::logs_in(&*vault).unwrap().len() >= 3);
}

fn objects_of(log: LogId) -> String {
    format!("{:032x}/o/", log.get())
}

/// Changes one byte of what is stored under this name: the first one of `part`, or the one in the middle.
fn damage(vault: &MemoryVault, name: &str, part: Option<&[u8]>) {
    let mut bytes = vault.get(name, 0..vault.size(name).unwrap().unwrap()).unwrap().to_vec();
    let at = match part {
        Some(part) => bytes.windows(part.len()).position(|at| at == part).unwrap(),
        None => bytes.len() / 2,
    };
    bytes[at] ^= 1;
    vault.put(name, &[bytes.into()]).unwrap();
}
