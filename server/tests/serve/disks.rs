//! Groups of named logs in several directories, as on several disks: restarts, a changed list, a disk that is not mounted.

use crate::harness::{Server, fed, run, wait};
use std::fs;
use std::path::{Path, PathBuf};

/// The option for these directories.
fn listed(disks: &[&Path]) -> String {
    let names: Vec<String> = disks.iter().map(|disk| format!("{:?}", disk.display().to_string())).collect();
    format!("group_directories=[{}]", names.join(", "))
}

fn start(server: &mut Server, groups: u32, disks: &[&Path]) {
    server.start(&["--set", &format!("groups={groups}"), "--set", &listed(disks)]);
}

/// The directories of groups that have a log's files.
fn groups_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let groups = entries.filter(|path| path.join("chiplog.id").exists());
    let mut names: Vec<String> =
        groups.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

fn wait_for_groups(dir: &Path, groups: &[&str]) {
    wait("the groups are there", || (groups_in(dir) == groups).then_some(()));
}

/// Waits until a log has this many records.
fn has(server: &Server, log: &str, records: u64) {
    let target = format!("{}/{log}", server.client);
    wait("the log is open", || {
        let info = run(&["info", &target, "--json"]);
        (info.code == 0 && info.json()["last"] == records).then_some(())
    });
}

#[test]
fn groups_are_spread_over_disks_and_one_that_is_not_mounted_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let disks: Vec<PathBuf> = ["disk-1", "disk-2"].map(|name| dir.path().join(name)).into();
    let (one, two) = (disks[0].as_path(), disks[1].as_path());
    disks.iter().for_each(|disk| fs::create_dir(disk).unwrap());
    let mut server = Server::new(1, dir.path());
    let named = server.data.join("named");

    // A server with a group gets disks later.
    server.start(&["--init", "--set", "groups=1"]);
    run(&["logs", "create", &server.client, "old"]).ok();
    fed(&["append", &format!("{}/old", server.client)], "a\n").ok();
    server.stop();
    start(&mut server, 3, &[one, two]);
    wait_for_groups(two, &["group-3"]);
    assert_eq!(
        (groups_in(one), groups_in(&named)),
        (vec!["group-2".into()], vec!["group-1".into(), "system".into()])
    );
    run(&["logs", "create", &server.client, "second"]).ok();
    run(&["logs", "create", &server.client, "third"]).ok();
    for log in ["old", "second", "third"] {
        fed(&["append", &format!("{}/{log}", server.client)], "b\n").ok();
    }
    let metrics = server.page("/metrics").1;
    assert!(metrics.contains("chiplog_group_disk_free_bytes{group=\"3\"}"), "{metrics}");
    server.stop();

    // The list in another order, and one disk at another path.
    let elsewhere = dir.path().join("elsewhere");
    fs::rename(two, &elsewhere).unwrap();
    start(&mut server, 3, &[&elsewhere, one]);
    has(&server, "old", 2);
    has(&server, "second", 1);
    has(&server, "third", 1);
    server.stop();

    // It is not mounted: the others go on, and nothing is made in its place.
    let away = dir.path().join("away");
    fs::rename(&elsewhere, &away).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    start(&mut server, 4, &[&elsewhere, one]);
    wait_for_groups(one, &["group-2", "group-4"]);
    has(&server, "old", 2);
    has(&server, "second", 1);
    assert_eq!(server.page("/readyz").0, 200, "the default log serves");
    let refused = run(&["info", &format!("{}/third", server.client)]);
    assert_ne!(refused.code, 0, "{}", refused.out);
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    let said = server.said();
    let reported =
        said.lines().find(|line| line.contains("mount the right one")).unwrap_or_else(|| panic!("{said}"));
    assert!(
        reported.contains(elsewhere.to_str().unwrap()) && reported.contains("with group 3"),
        "{reported}"
    );
    server.kill();

    // It is back.
    fs::remove_dir(&elsewhere).unwrap();
    fs::rename(&away, &elsewhere).unwrap();
    start(&mut server, 4, &[&elsewhere, one]);
    has(&server, "third", 1);
    server.stop();
}

#[test]
fn wrong_directories_are_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let (missing, other) = (dir.path().join("missing"), dir.path().join("other"));
    fs::create_dir(&other).unwrap();
    let mut first = Server::new(1, dir.path());
    first.start(&["--init", "--set", "groups=1", "--set", &listed(&[&other])]);
    wait_for_groups(&other, &["group-1"]);
    first.stop();
    let mut server = Server::new(2, dir.path());
    let below = server.data.join("below");
    for (disks, what) in [
        (vec![missing.as_path()], "does not exist"),
        (vec![below.as_path()], "the directory of the logs"),
        (vec![other.as_path(), other.as_path()], "the same as"),
        (vec![other.as_path()], "used by other named logs"),
    ] {
        server.spawn(&["--init", "--set", "groups=1", "--set", &listed(&disks)]);
        assert_ne!(server.ended(), Some(0), "{disks:?}");
        let said = server.said();
        assert!(said.contains("group_directories") && said.contains(what), "{what}: {said}");
    }
    assert!(!missing.exists());
}
