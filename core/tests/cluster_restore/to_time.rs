//! All logs as of a time: each as it was then, or as of a later time, which is named.

use super::*;

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
