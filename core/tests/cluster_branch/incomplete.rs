//! Logs of which slices are all, whose objects are discarded, or that are damaged.

use super::*;

/// Options without objects: what is stored is in slices.
fn sliced_in(vault: &Arc<MemoryVault>) -> Options {
    Options::with_segment_bytes(SEGMENT)
        .sessions_max(16)
        .vault(vault.clone() as Arc<dyn Vault>)
        .slice_interval(Duration::from_millis(10))
}

/// A group without an object is copied from its slices, one of which nothing is stored comes back empty, and one that is lost is an error.
#[test]
fn logs_without_objects_are_copied_or_said_to_be_lost() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let vault = Arc::new(MemoryVault::default());
    let options = sliced_in(&vault);
    let mut cluster = Cluster::open(&place("parent"), &vault, &options, Said::new());
    for name in ["a", "b"] {
        cluster.create(name);
        cluster.append("parent", name, 20);
    }
    cluster.default.append(b"x").unwrap();
    let all: Vec<Log> = cluster.logs.groups().into_values().collect();
    for log in all.iter().chain([cluster.logs.system(), &cluster.default]) {
        eventually("all is stored", || {
            let metrics = log.metrics();
            metrics.sliced_index >= log.last_index().get() && metrics.unsliced_bytes == 0
        });
    }
    drop(all);
    let (ids, said) = (cluster.ids(), cluster.said.clone());
    cluster.close();
    let made = make(&*vault, &ids, &place("branch")).unwrap();
    assert_eq!((made.named_logs, made.default.last, &made.notes), (2, Index(1), &vec![]));
    assert!(!made.ends_early);
    assert!(pins(&vault, &ids).is_empty());
    Cluster::open(&place("branch"), &vault, &options, said).check("of slices");
    // Nothing of it was stored.
    let never = ClusterLogs::new(
        ids.log_id,
        ids.catalogue,
        [(&3, &LogId(3))].into_iter().chain(&ids.groups).map(|(n, id)| (*n, *id)).collect(),
    );
    let error = make(&*vault, &never, &place("none")).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("group-3"), "{error}");
    assert!(
        error.to_string().contains("`--without group-3`") && !error.to_string().contains("comes back"),
        "{error}"
    );
    let options = ClusterBranchOptions::default().without(vec!["group-3".into()]);
    let made = ClusterBranch::make(&*vault, &never, place("without"), &options).unwrap();
    assert!(made.named_logs == 2 && made.notes.len() == 1 && made.parts.len() == 4, "{made:?}");
    let unknown = ClusterBranchOptions::default().without(vec!["group-9".into()]);
    let error = ClusterBranch::make(&*vault, &ids, place("none"), &unknown).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(!place("none").exists() && !place("none.restoring").exists());
}

/// Groups with the class `object`: their objects have the payload, and the branch goes on with the class.
#[test]
fn groups_with_payload_slices_have_branches() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let vault = Arc::new(MemoryVault::default());
    let options = stored_in(&vault).slice_interval(Duration::from_millis(10)).payload_slices(true);
    let mut cluster = Cluster::open(&place("parent"), &vault, &options, Said::new());
    for name in ["a", "b"] {
        cluster.create(name);
    }
    for _ in 0..3 {
        for name in ["a", "b"] {
            cluster.append("parent", name, 10);
        }
        cluster.store();
    }
    let (ids, said) = (cluster.ids(), cluster.said.clone());
    make(&*vault, &ids, &place("branch")).unwrap();
    let mut branch = Cluster::open(&place("branch"), &vault, &options, said);
    branch.check("the branch");
    for name in ["a", "b"] {
        branch.append("branch", name, 10);
        cluster.append("parent", name, 10);
    }
    branch.store();
    branch.check("the branch, with payload");
    cluster.check("the parent");
}

/// Of objects below the end only a part is read. Damage in it is found, or changes nothing.
#[test]
fn damage_in_what_is_read_of_older_objects_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let mut cluster = Cluster::new(&place("parent"));
    cluster.create("a");
    cluster.append("parent", "a", 100);
    cluster.store();
    cluster.discard("a", 31);
    for _ in 0..2 {
        cluster.append("parent", "a", 5);
        cluster.store();
    }
    let (vault, ids, said) = (cluster.vault.clone(), cluster.ids(), cluster.said.clone());
    let group = ids.groups.values().copied().find(|group| numbers(&vault, *group).len() > 2).unwrap();
    cluster.close();
    settle(&vault);
    let numbers = numbers(&vault, group);
    let (mut found, mut harmless) = (0, 0);
    for number in &numbers[..numbers.len() - 1] {
        let name = format!("{:032x}/o/{number:020}", group.get());
        let right = vault.get(&name, 0..vault.size(&name).unwrap().unwrap()).unwrap().to_vec();
        let field = |at: usize| u32::from_le_bytes(right[at..at + 4].try_into().unwrap()) as usize;
        let parts = [0..92, 4096..field(68), field(72)..field(76)];
        for at in parts.into_iter().flat_map(|part| part.step_by(61)) {
            let mut bad = right.clone();
            bad[at] ^= 1;
            vault.put(&name, &[bad.into()]).unwrap();
            let before = vault.list("").unwrap();
            match make(&*vault, &ids, &place("branch")) {
                Err(error) => {
                    found += 1;
                    assert!(error.kind() == ErrorKind::Corrupt, "object {number} at {at}: {error}");
                    assert!(error.to_string().contains(&name), "object {number} at {at}: {error}");
                    assert_eq!(vault.list("").unwrap(), before, "object {number} at {at}: {error}");
                    vault.put(&name, &[right.clone().into()]).unwrap();
                }
                Ok(made) => {
                    harmless += 1;
                    vault.put(&name, &[right.clone().into()]).unwrap();
                    let branch = Cluster::open(&place("branch"), &vault, &stored_in(&vault), said.clone());
                    branch.check(&format!("object {number} at {at}"));
                    branch.close();
                    settle(&vault);
                    std::fs::remove_dir_all(place("branch")).unwrap();
                    drop(made);
                }
            }
        }
    }
    println!("{found} were found, {harmless} changed nothing");
    assert!(found > 20, "{found} were found, {harmless} changed nothing");
}

/// All records of a group and of the default log are discarded, and a pin keeps their objects. A branch downloads the newest of these
/// alone, and has no records, but sessions, options and indexes.
#[test]
fn discarded_log_with_kept_objects_comes_back_without_records() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let mut cluster = parent(&place("parent"));
    let forty = [(LogOption::RetentionAge, Some(1 << 40))];
    cluster.logs.get("a").unwrap().set_log_options(&forty, Duration::from_secs(10)).unwrap();
    let mut session = cluster.logs.get("a").unwrap().open_session().unwrap();
    session.append(b"in a session").unwrap();
    let session_id = session.id();
    drop(session);
    for name in ["a", "b", "c", "d"] {
        cluster.append("parent", name, 1);
    }
    cluster.store();
    let (vault, ids, time) = (cluster.vault.clone(), cluster.ids(), between());
    let group = cluster.logs.info("a").unwrap().group;
    let id = ids.groups[&group];
    let discarded = [id, ids.log_id];
    let newest = discarded.map(|log| *numbers(&vault, log).last().unwrap());
    discarded.iter().for_each(|log| _ = Pin::make(&*vault, *log, "keep", None).unwrap());
    let mut lasts = BTreeMap::new();
    for log in cluster.logs.list().unwrap() {
        let last = cluster.logs.get(&log.name).unwrap().last_index();
        if log.group == group {
            cluster.logs.get(&log.name).unwrap().discard(last.next()).unwrap();
            lasts.insert(log.name, last);
        }
    }
    let last = cluster.default.last_index();
    cluster.default.discard(last.next()).unwrap();
    cluster.close();
    // As the leader does it once slices begin with the state of the log.
    for (log, newest) in discarded.iter().zip(newest) {
        let begin = format!("{:032x}/begin/{:020}", log.get(), newest + 1);
        vault.create(&begin, Bytes::from_static(b"begin")).unwrap();
        assert!(numbers(&vault, *log).len() > 2 && numbers(&vault, *log).last() == Some(&newest));
    }
    for (n, options) in
        [ClusterBranchOptions::default(), ClusterBranchOptions::default().to(time)].iter().enumerate()
    {
        let hooked = HookedVault::new(vault.clone());
        let gets = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = gets.clone();
        hooked.set(move |call, name| {
            if call == "get" {
                seen.lock().unwrap().push(name.to_owned());
            }
            Ok(())
        });
        let at = place(&format!("branch-{n}"));
        let made = ClusterBranch::make(&hooked, &ids, &at, options).unwrap();
        assert_eq!((made.notes.len(), &made.later, made.named_logs), (2, &vec![], 4), "{made:?}");
        assert!(made.notes.iter().all(|note| note.contains("comes back without records")), "{made:?}");
        for (log, newest) in discarded.iter().zip(newest) {
            let gets = gets.lock().unwrap();
            let read: Vec<&String> = gets.iter().filter(|name| name.starts_with(&objects_of(*log))).collect();
            let only = format!("{}{newest:020}", objects_of(*log));
            assert!(read.len() < 8 && read.iter().all(|name| **name == only), "{read:?}");
        }
        assert_eq!((made.default.first, made.default.last), (last.next(), last));
        let branch = Cluster::open(&at, &vault, &stored_in(&vault), Said::new());
        assert_eq!(branch.default.first_index(), last.next());
        assert_eq!(branch.default.append(b"on").unwrap(), last.next());
        for (name, last) in &lasts {
            let log = branch.logs.get(name).unwrap();
            assert_eq!((log.first_index(), log.last_index()), (last.next(), *last), "{name}");
            assert!(read(&log).is_empty());
        }
        let a = branch.logs.get("a").unwrap();
        if lasts.contains_key("a") {
            assert_eq!(a.log_options().get(LogOption::RetentionAge), Some(1 << 40));
            let mut session = a.resume_session(session_id, Sequence(1));
            assert!(session.append(b"again").unwrap() <= lasts["a"], "it has that record");
        }
        for name in lasts.keys() {
            assert_eq!(branch.logs.get(name).unwrap().append(b"on").unwrap(), lasts[name].next(), "{name}");
        }
        branch.close();
        let branch = Cluster::open(&at, &vault, &stored_in(&vault), Said::new());
        for (name, last) in &lasts {
            assert_eq!(read(&branch.logs.get(name).unwrap()), ["on"], "{name}");
            assert_eq!(branch.logs.get(name).unwrap().first_index(), last.next(), "{name}");
        }
        branch.close();
    }
}

/// Of a group without objects a slice is damaged: it is copied up to there, and the result says that it ends early.
#[test]
fn branch_says_that_a_copied_log_ends_early() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let vault = Arc::new(MemoryVault::default());
    let options = sliced_in(&vault);
    let mut cluster = Cluster::open(&place("parent"), &vault, &options, Said::new());
    cluster.create("a");
    for _ in 0..3 {
        cluster.append("parent", "a", 20);
        cluster.default.append(b"x").unwrap();
        let all: Vec<Log> = cluster.logs.groups().into_values().collect();
        for log in all.iter().chain([cluster.logs.system(), &cluster.default]) {
            eventually("all is stored", || {
                let metrics = log.metrics();
                metrics.sliced_index >= log.last_index().get() && metrics.unsliced_bytes == 0
            });
        }
    }
    let (ids, said) = (cluster.ids(), cluster.said.clone());
    let group = ids.groups[&cluster.logs.info("a").unwrap().group];
    cluster.close();
    let damaged = said["a"].0[30].as_bytes();
    let slices = vault.list(&format!("{:032x}/s/", group.get())).unwrap();
    let has = |name: &str| {
        let bytes = vault.get(name, 0..vault.size(name).unwrap().unwrap()).unwrap();
        bytes.windows(damaged.len()).any(|at| at == damaged)
    };
    let with: Vec<&str> = slices.iter().map(|slice| &slice.name[..]).filter(|name| has(name)).collect();
    assert!(!with.is_empty() && with.len() < slices.len(), "{slices:?}");
    with.iter().for_each(|name| damage(&vault, name, Some(damaged)));
    let made = make(&*vault, &ids, &place("branch")).unwrap();
    assert!(made.ends_early && made.notes.iter().any(|note| note.contains("ends early")), "{made:?}");
    let branch = Cluster::open(&place("branch"), &vault, &options, Said::new());
    let has = read(&branch.logs.get("a").unwrap());
    assert!(has.len() <= 30 && has == said["a"].0[..has.len()], "{}", has.len());
}

/// All objects of a group are discarded, and a pin keeps them: the group is what is in slices. If these are damaged, it has no records: those
/// of the objects would be back.
#[test]
fn discarded_log_that_goes_on_in_slices_comes_back_whole() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let vault = Arc::new(MemoryVault::default());
    let options = stored_in(&vault)
        .object_bytes(SEGMENT)
        .object_age(Duration::from_secs(3600))
        .slice_interval(Duration::from_millis(10));
    let mut cluster = Cluster::open(&place("parent"), &vault, &options, Said::new());
    for name in ["a", "b", "c"] {
        cluster.create(name);
        cluster.append("parent", name, 10);
    }
    cluster.store();
    let ids = cluster.ids();
    let group = cluster.logs.info("a").unwrap().group;
    let id = ids.groups[&group];
    let newest = *numbers(&vault, id).last().unwrap();
    Pin::make(&*vault, id, "keep", None).unwrap();
    let of_group: Vec<_> = cluster
        .logs
        .list()
        .unwrap()
        .into_iter()
        .filter(|log| log.group == group)
        .map(|log| log.name)
        .collect();
    for name in &of_group {
        cluster.discard(name, 11);
    }
    for name in &of_group {
        cluster.append("parent", name, 5);
    }
    let log = cluster.logs.groups()[&group].clone();
    let last = log.last_index().get();
    eventually("it is in slices", || {
        let metrics = log.metrics();
        metrics.sliced_index >= last && metrics.unsliced_bytes == 0
    });
    assert_eq!(numbers(&vault, id).last(), Some(&newest));
    let said = cluster.said.clone();
    drop(log);
    cluster.close();
    // The leader says it before it stores a slice that begins with the state of the log.
    let begin = format!("{:032x}/begin/{:020}", id.get(), newest + 1);
    vault.create(&begin, Bytes::from_static(b"begin")).unwrap();
    let made = make(&*vault, &ids, &place("branch")).unwrap();
    assert!(!made.ends_early, "{made:?}");
    Cluster::open(&place("branch"), &vault, &options, said).check("of slices");

    for slice in vault.list(&format!("{:032x}/s/", id.get())).unwrap() {
        damage(&vault, &slice.name, None);
    }
    let made = make(&*vault, &ids, &place("damaged")).unwrap();
    assert!(made.notes.iter().any(|note| note.contains("records in slices")), "{made:?}");
    let branch = Cluster::open(&place("damaged"), &vault, &options, Said::new());
    for name in &of_group {
        let log = branch.logs.get(name).unwrap();
        assert_eq!((read(&log), log.last_index().get()), (Vec::new(), 10), "{name}");
    }
}

/// Records in slices behind the objects are left out, which the result says of just those logs that have some.
#[test]
fn branch_says_which_logs_go_on_in_slices() {
    for payload in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| dir.path().join(name);
        let vault = Arc::new(MemoryVault::default());
        let options = stored_in(&vault)
            .object_bytes(SEGMENT)
            .object_age(Duration::from_secs(3600))
            .slice_interval(Duration::from_millis(10))
            .payload_slices(payload);
        let mut cluster = Cluster::open(&place("parent"), &vault, &options, Said::new());
        for name in ["a", "b"] {
            cluster.create(name);
            cluster.append("parent", name, 10);
        }
        cluster.store();
        let (ids, time) = (cluster.ids(), between());
        let group = cluster.logs.info("a").unwrap().group;
        let before = make(&*vault, &ids, &place("before")).unwrap();
        assert_eq!((before.notes, before.ends_early), (vec![], false), "{payload}");
        cluster.append("parent", "a", 5);
        let log = &cluster.logs.groups()[&group];
        eventually("it is in slices", || {
            let metrics = log.metrics();
            metrics.sliced_index >= log.last_index().get() && metrics.unsliced_bytes == 0
        });
        assert!(log.metrics().stored_index < log.last_index().get());
        let made = make(&*vault, &ids, &place("behind")).unwrap();
        assert_eq!(made.notes.len(), 1, "{payload} {made:?}");
        assert!(made.notes[0].starts_with(&format!("group-{group}: records in slices")), "{made:?}");
        assert!(!made.ends_early, "{made:?}");
        let then = ClusterBranchOptions::default().to(time);
        let then = ClusterBranch::make(&*vault, &ids, place("then"), &then).unwrap();
        assert_eq!(then.notes, [""; 0], "{payload}");
        // As the remark advises.
        cluster.store();
        let (set, _) = ClusterPins::make(&*vault, &ids, "all", None).unwrap();
        let options_of = ClusterBranchOptions::default();
        let pinned = ClusterBranch::make_of_pins(&*vault, &set, place("pinned"), &options_of).unwrap();
        assert_eq!(pinned.notes, [""; 0], "{payload}");
        let said = cluster.said.clone();
        cluster.close();
        Cluster::open(&place("pinned"), &vault, &options, said).check("of pins");
    }
}

/// The newest object of a log is behind the time asked for, and damaged: that of the default log is not read, and a group's is a remark.
#[test]
fn damage_behind_the_time_does_not_keep_a_branch_from_being_made() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let mut cluster = parent(&place("parent"));
    let (vault, ids, said, time) = (cluster.vault.clone(), cluster.ids(), cluster.said.clone(), between());
    let group = cluster.logs.info("a").unwrap().group;
    for _ in 0..2 {
        cluster.append("parent", "a", 60);
        cluster.store();
    }
    let last = cluster.default.append(b"of the default log").unwrap();
    cluster.default.cut_objects(last).unwrap();
    eventually("all is stored", || cluster.default.metrics().stored_index >= last.get());
    let newest = |log: LogId| format!("{}{:020}", objects_of(log), numbers(&vault, log).last().unwrap());
    damage(&vault, &newest(ids.log_id), Some(b"of the default log"));
    damage(&vault, &newest(ids.groups[&group]), Some(cluster.said["a"].0[359].as_bytes()));
    cluster.close();
    let options = ClusterBranchOptions::default().to(time);
    let made = ClusterBranch::make(&*vault, &ids, place("branch"), &options).unwrap();
    assert_eq!(made.notes.len(), 1, "{made:?}");
    assert!(made.notes[0].starts_with(&format!("group-{group}: its newest object")), "{made:?}");
    assert_eq!(made.default.last, Index(4));
    Cluster::open(&place("branch"), &vault, &stored_in(&vault), said).check("as of the time");
    // At its end the branch needs them.
    let error = make(&*vault, &ids, &place("none")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}
