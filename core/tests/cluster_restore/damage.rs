//! Failures, pins that are no whole set, and logs that are lost or damaged.

use super::*;

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

/// A command that fails removed pins by their name, also one that another command had made of it meanwhile and had confirmed.
#[test]
fn failed_command_leaves_the_pins_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new(dir.path());
    let (stages, _) = history(&mut cluster);
    let (ids, last) = (cluster.ids(), stages.last().unwrap());
    let below = whole(&ids, last);
    let vault = HookedVault::new(below.clone());
    let (store, group, of_default) =
        (below.clone(), ids.groups[&1], format!("{:032x}/pin/nightly", ids.log_id.get()));
    vault.set(move |call, name| match call == "create" && name == of_default {
        true => {
            Pin::remove(&*store, group, "nightly").unwrap();
            Pin::make(&*store, group, "nightly", None).unwrap();
            Err(Error::new(ErrorKind::PermissionDenied, name))
        }
        false => Ok(()),
    });
    let error = ClusterPins::make(&vault, &ids, "nightly", None).unwrap_err();
    assert_eq!((error.kind(), pins(&below, &ids)), (ErrorKind::PermissionDenied, 1));
    Pin::remove(&*below, group, "nightly").unwrap();
    // The set and its pins are those of another command.
    let (set, _) = ClusterPins::make(&*below, &ids, "nightly", None).unwrap();
    ClusterPins::remove(&*below, ids.log_id, "nightly", false).unwrap();
    let (other, _) = ClusterPins::make(&*below, &ids, "nightly", None).unwrap();
    set.remove_own(&*below).unwrap();
    assert_eq!(ClusterPins::find(&*below, ids.log_id, "nightly").unwrap().as_ref(), Some(&other));
    other.remove_own(&*below).unwrap();
    assert_eq!((ClusterPins::read(&*below, ids.log_id, "nightly").unwrap(), pins(&below, &ids)), (None, 0));
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
