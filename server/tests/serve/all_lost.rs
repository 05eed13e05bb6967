//! All servers are lost with their disks: the default log and all named logs come back from the object store alone.

use crate::harness::{Server, fed, founded_with, made, run, status, wait};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn lines(log: &str, from: u64, to: u64) -> String {
    (from..=to).map(|n| format!("{log} {n}\n")).collect()
}

fn arguments(store: &Path) -> Vec<String> {
    let mut all = vec!["--object-store".to_owned(), format!("file://{}", store.display())];
    for set in ["groups=2", "objects.object_bytes=64KiB", "objects.object_age_seconds=1"] {
        all.extend(["--set".to_owned(), set.to_owned()]);
    }
    all
}

/// All files below a directory, with their contents.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => _ = found.insert(path.clone(), fs::read(path).unwrap()),
        }
    }
    found
}

/// Fetches until the groups have all of this many records.
fn fetched(location: &str, dir: &Path, records: u64) -> String {
    let mut n = 0;
    wait("all records are in the object store", || {
        n += 1;
        let backup = dir.join(format!("backup-{n}"));
        let told = run(&["tier", "fetch", location, backup.to_str().unwrap(), "--json"]);
        // The groups that the cluster has just made are not in the list of its logs yet.
        if told.code == 2 && told.err.contains("choose one by --log-id") {
            return None;
        }
        let told = told.ok().json();
        let logs = told["logs"].as_array()?;
        let groups = logs.iter().filter(|log| log["name"].as_str().unwrap().starts_with("group-"));
        let last: u64 = groups.map(|log| log["last"].as_u64().unwrap()).sum();
        assert!(last <= records, "{told}");
        if last < records {
            fs::remove_dir_all(&backup).unwrap();
            return None;
        }
        Some(backup.to_str().unwrap().to_owned())
    })
}

/// Bare ids were shown, and the default log could be removed before the logs to which its list alone leads.
#[test]
fn logs_of_a_cluster_are_shown_by_their_roles_and_removed_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let arguments = arguments(&store);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut servers = founded_with(vec![Server::new(1, dir.path())], &arguments);
    let (client, location) = (servers[0].client.clone(), store.to_str().unwrap());
    run(&["logs", "create", &client, "orders"]).ok();
    fed(&["append", &client], &lines("default", 1, 100)).ok();
    fed(&["append", &format!("{client}/orders")], &lines("orders", 1, 100)).ok();
    let rows = |args: &[&str]| -> Vec<serde_json::Value> {
        let ran = run(&[&["tier"], args, &["--json"]].concat()).ok();
        ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let ids = wait("all logs are there", || {
        let logs = rows(&["list", location]);
        let id =
            |role: &str| Some(logs.iter().find(|log| log["role"] == role)?["log_id"].as_str()?.to_owned());
        Some(["default", "system", "group-1", "group-2"].map(id))
            .filter(|ids| ids.iter().all(Option::is_some))
    });
    let [default, system, first, second] = ids.map(Option::unwrap);
    for command in ["list", "status", "gc"] {
        let logs = rows(&[command, location]);
        assert_eq!(logs.len(), 4, "{logs:?}");
        assert!(logs.iter().all(|log| log["cluster"] == default[..]), "{logs:?}");
        let group = logs.iter().find(|log| log["log_id"] == first[..]).unwrap();
        assert_eq!(group["role"], "group-1", "{logs:?}");
    }
    for command in ["status", "gc"] {
        let one = rows(&[command, location, "--log-id", &system]);
        assert!(one.len() == 1 && one[0]["role"] == "system" && one[0]["cluster"] == default[..], "{one:?}");
        let words = run(&["tier", command, location]).ok().out;
        assert!(words.contains(&format!("log {default} (default log of a cluster):")), "{words}");
        assert!(
            words.contains(&format!("log {second} (group-2 of the cluster of log {default}):")),
            "{words}"
        );
    }
    let table = run(&["tier", "list", location]).ok().out;
    let has = |row: &str| row.starts_with(&system) && row.split_whitespace().nth(1) == Some("system");
    assert!(table.lines().any(has), "{table}");
    let pins = rows(&["backup", &client, location, "nightly"]);
    assert!(pins.iter().any(|pin| pin["role"] == "default" && pin["cluster"] == default[..]), "{pins:?}");
    let mut listed = rows(&["pins", location]);
    listed.sort_by_key(|listed| pins.iter().position(|pin| pin == listed));
    assert_eq!(listed, pins);
    let table = run(&["tier", "pins", location]).ok().out;
    assert!(table.lines().any(|row| row.split_whitespace().nth(1) == Some("default")), "{table}");
    run(&["tier", "unpin", location, "nightly"]).ok();
    assert_eq!(servers[0].stop(), Some(0));

    let all = |id: &str| run(&["tier", "gc", location, "--log-id", id, "--all", "--delete"]);
    let refused = all(&default);
    assert_eq!(refused.code, 5, "{}", refused.err);
    for (id, role) in [(&system, "system"), (&first, "group-1"), (&second, "group-2")] {
        assert!(refused.err.contains(&format!("{id} ({role})")), "{}", refused.err);
        assert_eq!(rows(&["list", location]).iter().filter(|log| log["log_id"] == id[..]).count(), 1);
    }
    for id in [&first, &second, &system, &default] {
        all(id).ok();
    }
    assert!(rows(&["list", location]).is_empty());
}

#[test]
fn named_logs_come_back_from_the_object_store_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let arguments = arguments(&store);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut servers = founded_with((1..=3).map(|n| Server::new(n, dir.path())).collect(), &arguments);
    let all = servers.iter().map(|server| server.client.as_str()).collect::<Vec<_>>().join(",");
    let of = |name: &str| format!("{all}/{name}");
    // New logs go to the groups that have most of their replicas: to one alone while the other is slow.
    wait("both groups have the servers as voters", || {
        let shown = status(&servers.iter().collect::<Vec<_>>());
        let groups = shown["groups"].as_array()?;
        let voters = |group: &serde_json::Value| group["voters"].as_array().map_or(0, Vec::len);
        (groups.len() == 3 && groups.iter().all(|group| voters(group) == 3)).then_some(())
    });
    let names = ["orders", "users/3", "visits", "sealed", "deleted", "empty"];
    run(&[&["logs", "create", &all][..], &names].concat()).ok();
    for name in &names[..5] {
        fed(&["append", &of(name)], &lines(name, 1, 500)).ok();
    }
    run(&["discard", &of("orders"), "101"]).ok();
    run(&["options", &of("visits"), "--set", "retention_bytes=1GiB", "--yes"]).ok();
    run(&["logs", "seal", &all, "sealed"]).ok();
    run(&["logs", "delete", &all, "deleted", "--yes"]).ok();
    for name in &names[..3] {
        fed(&["append", &of(name)], &lines(name, 501, 600)).ok();
    }
    let location = store.to_str().unwrap();
    let backup = fetched(location, dir.path(), 5 * 500 + 3 * 100);
    for server in &mut servers {
        server.kill();
        fs::remove_dir_all(&server.data).unwrap();
    }
    let old = files(&store);

    // Without the list of the logs, the catalogue leads to the same.
    let manifest = |backup: &str| fs::read_to_string(Path::new(backup).join("chiplog.cluster")).unwrap();
    let id = |name: &str| {
        let text = manifest(&backup);
        text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().replace(" nothing", "")
    };
    let by_hand = dir.path().join("by-hand");
    let by_hand = by_hand.to_str().unwrap();
    let list = store.join(id("default")).join("named");
    let listed = fs::read(&list).unwrap();
    fs::remove_file(&list).unwrap();
    let (log, catalogue) = (id("default"), id("catalogue"));
    run(&["tier", "fetch", location, by_hand, "--log-id", &log, "--catalogue", &catalogue]).ok();
    assert_eq!(manifest(by_hand), manifest(&backup));
    // A damaged list blocks neither the default log nor all of them, and the command says what to do.
    fs::write(&list, "x").unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let damaged = run(&["tier", "fetch", location, &place("damaged"), "--log-id", &log]);
    assert!(damaged.code == 3 && damaged.err.contains("--only-log"), "{}", damaged.err);
    let alone = run(&["tier", "fetch", location, &place("alone"), "--log-id", &log, "--only-log"]);
    assert!(!alone.err.contains("list of a cluster"), "{}", alone.err);
    fs::write(&list, listed).unwrap();
    // One group is damaged: the others come back without it.
    let group = store.join(id("group 1 ")).join("o");
    let object = fs::read_dir(group).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    let right = fs::read(&object).unwrap();
    let mut bad = right.clone();
    bad[4200] ^= 1;
    fs::write(&object, bad).unwrap();
    let damaged = run(&["tier", "fetch", location, &place("damaged")]);
    assert!(damaged.code == 3 && damaged.err.contains("group-1, log"), "{}", damaged.err);
    assert!(damaged.err.contains("--without"), "{}", damaged.err);
    let most =
        run(&["tier", "fetch", location, &place("most"), "--without", "group-1", "--json"]).ok().json();
    let is_of = |notes: &serde_json::Value| {
        notes.as_array().unwrap().iter().any(|n| n.as_str().unwrap().starts_with("group-1: it was left out"))
    };
    assert!(is_of(&most["notes"]), "{most}");
    let told = run(&["restore", &place("most"), &place("most-data"), "--json"]).ok().json();
    assert!(is_of(&told["notes"]), "{told}");
    fs::write(&object, right).unwrap();

    let sound = run(&["restore", &backup, "--check", "--json"]).ok().json();
    assert_eq!(sound["logs"], 4, "{sound}");
    let mut first = Server::new(1, dir.path());
    let data = first.data.to_str().unwrap().to_owned();
    // A restore was interrupted.
    let left = PathBuf::from(format!("{data}.restoring"));
    fs::create_dir_all(left.join("named/group-1")).unwrap();
    let refused = run(&["restore", &backup, &data]);
    assert!(refused.code == 2 && refused.err.contains("was interrupted"), "{}", refused.err);
    fs::remove_dir_all(&left).unwrap();
    let restored = run(&["restore", &backup, &data, "--json"]).ok().json();
    assert_eq!((&restored["named_logs"], &restored["records"]), (&5.into(), &0.into()), "{restored}");
    let empty = serde_json::json!(["default: nothing of it is stored: it comes back empty"]);
    assert_eq!(restored["notes"], empty, "{restored}");

    first.start(&arguments);
    let has_all = |server: &Server, last: u64| {
        let stale = if server.node == 1 { &[][..] } else { &["--stale"] };
        for name in &names[..3] {
            let log = format!("{}/{name}", server.client);
            let from = if *name == "orders" { 101 } else { 1 };
            let wanted = lines(name, from, last);
            wait("it has all records", || {
                (run(&[&["read", &log][..], stale].concat()).out == wanted).then_some(())
            });
        }
        let sealed = format!("{}/sealed", server.client);
        assert_eq!(run(&[&["read", &sealed][..], stale].concat()).ok().out, lines("sealed", 1, 500));
    };
    let client = first.client.clone();
    wait("it serves the named logs", || {
        (run(&["info", &format!("{client}/empty"), "--json"]).code == 0).then_some(())
    });
    has_all(&first, 600);
    let listed = run(&["logs", "list", &client]).ok().out;
    assert!(listed.lines().count() == 6 && !listed.contains("deleted"), "{listed}");
    let options = run(&["options", &format!("{client}/visits"), "--json"]).ok().json();
    assert_eq!(options["options"]["retention_bytes"], 1 << 30, "{options}");
    assert_eq!(fed(&["append", &format!("{client}/sealed")], "late\n").code, 2);
    for name in &names[..3] {
        fed(&["append", &format!("{client}/{name}")], &lines(name, 601, 650)).ok();
    }
    fed(&["append", &format!("{client}/empty")], "one\n").ok();
    run(&["logs", "create", &client, "new"]).ok();
    fed(&["append", &format!("{client}/new")], "x\n").ok();

    let mut second = Server::new(2, dir.path());
    second.start(&arguments);
    made(&["member", "add", &second.client, "--cluster", &client, "--promote"]);
    has_all(&second, 650);

    // The restored logs have objects of their own, and those of the lost ones stay as they were.
    let again = wait("the new logs are in the object store", || {
        let logs = run(&["tier", "list", location, "--json"]).ok().out;
        (logs.lines().count() == 8).then_some(logs)
    });
    assert!(again.contains(restored["log_id"].as_str().unwrap()), "{again}");
    let now = files(&store);
    assert!(old.iter().all(|(path, bytes)| now.get(path) == Some(bytes)));
    let two = run(&["tier", "fetch", location, dir.path().join("which").to_str().unwrap()]);
    assert!(two.code == 2 && two.err.contains("2 logs are there"), "{}", two.err);
}

/// The time of this machine, whose clock the servers have. It is not that of anything before this call, or after it.
fn between() -> u128 {
    let apart = Duration::from_millis(30);
    thread::sleep(apart);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    thread::sleep(apart);
    now
}

/// A server is lost, and what comes back are all logs as they were at a time: also one that was deleted later.
#[test]
fn named_logs_come_back_as_of_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let arguments = arguments(&store);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut servers = founded_with(vec![Server::new(1, dir.path())], &arguments);
    let client = servers[0].client.clone();
    let of = |name: &str| format!("{client}/{name}");
    run(&["logs", "create", &client, "orders", "users", "empty"]).ok();
    for name in ["orders", "users"] {
        fed(&["append", &of(name)], &lines(name, 1, 200)).ok();
    }
    fed(&["append", &client], &lines("default", 1, 10)).ok();
    let time = between().to_string();
    fed(&["append", &of("orders")], &lines("orders", 201, 300)).ok();
    fed(&["append", &client], &lines("default", 11, 20)).ok();
    run(&["logs", "delete", &client, "users", "--yes"]).ok();
    run(&["logs", "create", &client, "late"]).ok();
    fed(&["append", &of("late")], &lines("late", 1, 50)).ok();
    let backup = fetched(store.to_str().unwrap(), dir.path(), 550);
    servers[0].kill();
    fs::remove_dir_all(&servers[0].data).unwrap();

    let mut first = Server::new(1, dir.path());
    let data = first.data.to_str().unwrap().to_owned();
    let refused = run(&["restore", &backup, &data, "--to-index", "7"]);
    assert!(refused.code == 2 && refused.err.contains("--to-time"), "{} {}", refused.code, refused.err);
    let refused = run(&["restore", &backup, &data, "--to-time", "1999-01-01"]);
    assert!(refused.code == 4 && refused.err.contains("1999-01-01T"), "{} {}", refused.code, refused.err);
    assert!(!first.data.exists());
    let restored = run(&["restore", &backup, &data, "--to-time", &time, "--json"]).ok().json();
    assert_eq!((&restored["named_logs"], &restored["last"]), (&3.into(), &10.into()), "{restored}");
    let nothing = serde_json::json!([]);
    assert_eq!((&restored["notes"], &restored["later"]), (&nothing, &nothing), "{restored}");

    first.start(&arguments);
    let client = first.client.clone();
    for name in ["orders", "users"] {
        let (log, wanted) = (format!("{client}/{name}"), lines(name, 1, 200));
        wait("it has the records of that time", || (run(&["read", &log]).out == wanted).then_some(()));
    }
    assert_eq!(run(&["read", &client]).ok().out, lines("default", 1, 10));
    let listed = run(&["logs", "list", &client]).ok().out;
    assert!(listed.lines().count() == 4 && !listed.contains("late"), "{listed}");
    fed(&["append", &format!("{client}/users")], "more\n").ok();
}

/// The catalogue was shortened after that time: the command takes its oldest state, and says so.
#[test]
fn catalogue_that_was_shortened_later_is_said_to_be_of_a_later_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let arguments = arguments(&store);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut servers = founded_with(vec![Server::new(1, dir.path())], &arguments);
    let client = servers[0].client.clone();
    run(&["logs", "create", &client, "orders", "gone"]).ok();
    for name in ["orders", "gone"] {
        fed(&["append", &format!("{client}/{name}")], &lines(name, 1, 100)).ok();
    }
    let time = between().to_string();
    run(&["logs", "delete", &client, "gone", "--yes"]).ok();
    let many: Vec<String> = (1..=300).map(|n| format!("many-{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    run(&[&["logs", "create", &client][..], &many].concat()).ok();
    // The changes are as many as the logs that are left, twice: a snapshot is worth it.
    run(&[&["logs", "delete", &client][..], &many[..150], &["--yes"]].concat()).ok();
    fed(&["append", &format!("{client}/orders")], &lines("orders", 101, 200)).ok();
    for name in &many[298..] {
        fed(&["append", &format!("{client}/{name}")], "x\n").ok();
    }
    let data = dir.path().join("as-of").to_str().unwrap().to_owned();
    let mut n = 0;
    let restored = wait("the catalogue is shortened in the object store, too", || {
        n += 1;
        let _ = fs::remove_dir_all(&data);
        let backup = fetched(store.to_str().unwrap(), &dir.path().join(format!("try-{n}")), 302);
        let told = run(&["restore", &backup, &data, "--to-time", &time, "--json"]).ok();
        let json = told.json();
        let later = json["later"].as_array()?.iter().find(|part| part["name"] == "system")?.clone();
        assert!(
            told.err.contains("system: nothing that is stored says how it was at"),
            "it is said also with --json: {}",
            told.err
        );
        assert!(later["timestamp"].as_u64().unwrap() > time.parse().unwrap(), "{later}");
        Some(json)
    });
    assert_eq!(servers[0].stop(), Some(0));
    assert_eq!(restored["named_logs"], 2, "{restored}");
    let notes = restored["notes"].as_array().unwrap();
    let says = |text: &str| notes.iter().any(|note| note.as_str().unwrap().contains(text));
    assert!(
        says("nothing that is stored says how it was at")
            && says("is called recovered-2: it was deleted, perhaps before"),
        "{restored}"
    );
    assert!(says("opened it after that time"), "{restored}");
}

fn manifest_line(text: &str, name: &str) -> String {
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned()
}

/// A group that is moved out of an object store, and comes back.
struct Moved {
    folder: PathBuf,
    kept: PathBuf,
}

impl Moved {
    fn new(store: &Path, group: &str) -> Self {
        let moved = Self { folder: store.join(group), kept: store.with_extension("kept") };
        fs::rename(&moved.folder, &moved.kept).unwrap();
        moved
    }

    /// Everything is there again, without these folders.
    fn copied_without(&self, folders: &[&str]) {
        let _ = fs::remove_dir_all(&self.folder);
        let copied = Command::new("cp").arg("-r").args([&self.kept, &self.folder]).status().unwrap();
        assert!(copied.success());
        folders.iter().for_each(|name| fs::remove_dir_all(self.folder.join(name)).unwrap());
    }

    fn back(self) {
        // A server can have repaired something.
        let _ = fs::remove_dir_all(&self.folder);
        fs::rename(&self.kept, &self.folder).unwrap();
    }
}

/// The folder of a group is deleted, or all of its objects, while its server runs, which may store them again.
fn lost_group_is_not_pinned(client: &str, location: &str, store: &Path, group: &str) {
    let moved = Moved::new(store, group);
    let (backup, pin) = (["tier", "backup", client, location, "lost"], ["tier", "pin", location, "lost"]);
    for args in [&backup[..], &pin] {
        let refused = run(args);
        assert!(
            refused.code != 0 && refused.err.contains(group),
            "{args:?}: {} {}",
            refused.code,
            refused.err
        );
    }
    moved.copied_without(&["o", "pin"]);
    let refused = run(&backup);
    match refused.code {
        0 => {
            assert!(refused.out.contains(group), "it was repaired: {}", refused.out);
            run(&["tier", "unpin", location, "lost"]).ok();
        }
        code => assert!(code == 3 && refused.err.contains("and no object"), "{code} {}", refused.err),
    }
    let pins = run(&["tier", "pins", location, "--json"]).ok().out;
    assert!(!pins.contains("\"lost\""), "nothing is pinned: {pins}");
    moved.back();
}

/// The same without a server: no command takes it for a group of which nothing was ever stored.
fn lost_group_is_no_empty_one(location: &str, store: &Path, group: &str) {
    let moved = Moved::new(store, group);
    let place = store.with_extension("lost");
    let fetch = ["tier", "fetch", location, place.to_str().unwrap(), "--json"];
    let fetched = run(&fetch);
    let told = fetched.json();
    assert!(fetched.code == 8 && told["ends_early"] == true, "{} {told}", fetched.code);
    let early: Vec<_> =
        told["logs"].as_array().unwrap().iter().filter(|log| log["ends_early"] == true).collect();
    assert!(early.len() == 1 && early[0]["name"] == "group-2", "{told}");
    assert!(told["notes"].to_string().contains("group-2: it is one of the cluster's logs"), "{told}");
    let check = ["restore", place.to_str().unwrap(), "--check", "--json"];
    let checked = run(&check);
    assert!(checked.code == 8 && checked.json()["ends_early"] == true, "{} {}", checked.code, checked.out);
    run(&[&check[..], &["--allow-early-end"]].concat()).ok();
    fs::remove_dir_all(&place).unwrap();
    assert_eq!(run(&["tier", "verify", location]).code, 3);
    run(&[&fetch[..], &["--without", "group-2"]].concat()).ok();
    fs::remove_dir_all(&place).unwrap();
    let pin = ["tier", "pin", location, "lost", "--json"];
    let refused = run(&pin);
    assert!(refused.code == 4 && refused.err.contains(group), "{} {}", refused.code, refused.err);
    // Its pin shows that it had objects.
    moved.copied_without(&["o"]);
    let refused = run(&pin);
    assert!(
        refused.code == 3 && refused.err.contains("has pins, and no object"),
        "{} {}",
        refused.code,
        refused.err
    );
    // Where nothing does, the backup says of which logs it has nothing.
    moved.copied_without(&["o", "pin"]);
    let shown = run(&pin).ok().out;
    assert!(shown.lines().all(|line| line.contains("\"set_empty\":[\"group-2\"")), "{shown}");
    run(&["tier", "unpin", location, "lost"]).ok();
    moved.back();
}

/// A backup in the store has the named logs, too: pins keep what it covers, and removing it removes all of these.
#[test]
fn backup_in_the_store_covers_the_named_logs() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let location = store.to_str().unwrap();
    let object_store = format!("file://{location}");
    // Nothing is old or large enough for an object of its own accord.
    let arguments = ["--init", "--object-store", &object_store, "--set", "groups=2"];
    let mut server = Server::new(1, dir.path());
    server.start(&arguments);
    let client = server.client.clone();
    run(&["logs", "create", &client, "orders", "users"]).ok();
    for name in ["orders", "users"] {
        fed(&["append", &format!("{client}/{name}")], &lines(name, 1, 200)).ok();
    }
    wait("the store has the list of the logs", || {
        let listed = run(&["tier", "list", location, "--json"]).ok().out;
        let has_list = |line: &str| {
            let log: serde_json::Value = serde_json::from_str(line).unwrap();
            fs::read_to_string(store.join(log["log_id"].as_str().unwrap()).join("named")).ok()
        };
        listed.lines().find_map(has_list).filter(|list| list.contains("group 2 "))
    });
    let pinned = run(&["tier", "backup", &client, location, "nightly", "--json"]).ok().out;
    assert_eq!(pinned.lines().count(), 3, "the default log has no records: {pinned}");
    let json = |text: &str| -> Vec<serde_json::Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let default: serde_json::Value =
        serde_json::from_str(&run(&["info", &client, "--json"]).ok().out).unwrap();
    let list = store.join(default["log_id"].as_str().unwrap()).join("named");
    let listed = fs::read(&list).unwrap();
    fs::remove_file(&list).unwrap();
    let refused = || run(&["tier", "backup", &client, location, "half"]);
    let missing = refused();
    assert!(missing.code != 0 && missing.err.contains("does not have the list"), "{}", missing.err);
    // Nothing takes the default log for one on its own.
    let id = default["log_id"].as_str().unwrap();
    let catalogue = String::from_utf8(listed.clone()).unwrap();
    let catalogue = catalogue.lines().find_map(|line| line.strip_prefix("catalogue ")).unwrap().to_owned();
    let to = dir.path().join("no-list");
    for args in [
        &["tier", "fetch", location, to.to_str().unwrap(), "--log-id", id][..],
        &["tier", "pin", location, "half", "--log-id", id],
    ] {
        let lost = run(args);
        assert!(lost.code == 3 && lost.err.contains("list was lost"), "{args:?}: {} {}", lost.code, lost.err);
        assert!(lost.err.contains(&catalogue) && !to.exists(), "{}", lost.err);
    }
    let verified = run(&["tier", "verify", location, "--json"]);
    assert!(
        verified.code == 3 && verified.out.contains("list was lost"),
        "{} {}",
        verified.code,
        verified.out
    );
    // A list that lacks a group, and that of another cluster.
    let text = String::from_utf8(listed.clone()).unwrap();
    let (body, _) = text.split_once("sum ").unwrap();
    let sealed = |body: &str| {
        let sum = chiplog::internal::Crc::default().add(body.as_bytes()).sum();
        format!("{body}sum {sum:08x}\n")
    };
    assert_eq!(sealed(body), text);
    let second = body.lines().find(|line| line.starts_with("group 2 ")).unwrap();
    fs::write(&list, sealed(&body.replace(&format!("{second}\n"), ""))).unwrap();
    let short = refused();
    assert!(short.code == 5 && short.err.contains("does not have the list of all"), "{}", short.err);
    let verified = run(&["tier", "verify", location, "--json"]);
    assert!(
        verified.code == 3
            && verified.out.contains("group-2, log")
            && verified.out.contains("in the backup nightly"),
        "{}",
        verified.out
    );
    let system = manifest_line(body, "catalogue ");
    let foreign = sealed(&body.replace(&system, "0000000000000000000000000000000a"));
    fs::write(&list, &foreign).unwrap();
    let other = refused();
    assert!(other.code != 0 && other.err.contains("another cluster's logs"), "{}", other.err);
    let pins = json(&run(&["tier", "pins", location, "--json"]).ok().out);
    assert!(pins.iter().all(|pin| pin["name"] == "nightly"), "nothing is pinned: {pins:?}");
    // The server that is to store the list says that it cannot, and why.
    assert_eq!(server.stop(), Some(0));
    server.start(&arguments[1..]);
    let says = |value: &str| {
        let line = format!("\nchiplog_unstored_list {value}.0\n");
        wait(&line, || server.page("/metrics").1.contains(&line).then_some(()));
    };
    says("1");
    assert_eq!(fs::read_to_string(&list).unwrap(), foreign, "it is not replaced");
    let verified = run(&["tier", "verify", location, "--json"]);
    let found = verified.json()["logs"].to_string();
    assert!(verified.code == 3 && found.contains("system, log 0000000000000000000000000000000a"), "{found}");
    fs::write(&list, listed).unwrap();
    says("0");
    assert_eq!(run(&["tier", "verify", location, "--json"]).ok().json()["ok"], true);
    // All pins of the backup are shown as parts of it, also if one log is asked for.
    let of = |args: &[&str]| json(&run(&[&["tier", "pins", location, "--json"], args].concat()).ok().out);
    let pins = of(&[]);
    assert!(pins.len() == 3 && pins.iter().all(|pin| pin["set"] == default["log_id"]), "{pins:?}");
    assert_eq!(of(&["--log-id", &system])[0]["set"], default["log_id"]);
    let table = run(&["tier", "pins", location]).ok().out;
    assert!(table.lines().skip(1).all(|line| line.trim_end().ends_with("cluster")), "{table}");
    run(&["tier", "pin", location, "alone", "--log-id", &system]).ok();
    assert!(of(&[]).iter().any(|pin| pin["name"] == "alone" && pin["set"].is_null()));
    run(&["tier", "unpin", location, "alone", "--log-id", &system]).ok();
    let group = second.rsplit_once(' ').unwrap().1;
    lost_group_is_not_pinned(&client, location, &store, group);
    let again = run(&["tier", "pin", location, "nightly"]);
    assert!(again.code == 2 && again.err.contains("has a pin nightly already"), "{}", again.err);
    fed(&["append", &format!("{client}/orders")], &lines("orders", 201, 300)).ok();
    run(&["logs", "delete", &client, "users", "--yes"]).ok();
    assert_eq!(server.stop(), Some(0));
    lost_group_is_no_empty_one(location, &store, group);
    // The default log has no pin, and is kept as a part of the backup.
    for delete in [&[][..], &["--delete"]] {
        let kept = run(&[&["tier", "gc", location, "--log-id", id, "--all"], delete].concat());
        assert!(kept.code == 5 && kept.err.contains("nightly"), "{} {}", kept.code, kept.err);
    }

    let (backup, data) = (dir.path().join("backup"), dir.path().join("again/node1"));
    let (backup, data) = (backup.to_str().unwrap(), data.to_str().unwrap());
    let missing = run(&["tier", "fetch", location, backup, "--pin", "weekly"]);
    assert_eq!(missing.code, 4, "{}", missing.err);
    // A pin of one log alone is no backup of the cluster.
    run(&["tier", "pin", location, "weekly", "--log-id", &system]).ok();
    let alone = run(&["tier", "fetch", location, backup, "--pin", "weekly"]);
    assert!(alone.code == 4 && alone.err.contains("no backup of the cluster"), "{}", alone.err);
    run(&["tier", "fetch", location, backup, "--pin", "weekly", "--log-id", &system]).ok();
    fs::remove_dir_all(backup).unwrap();
    run(&["tier", "fetch", location, backup, "--pin", "nightly"]).ok();
    // Without the pin of a group it is no backup: all commands say so, and the rest comes back.
    let pin = store.join(group).join("pin/nightly");
    let text = fs::read(&pin).unwrap();
    fs::remove_file(&pin).unwrap();
    let half = dir.path().join("half");
    let half = half.to_str().unwrap();
    let refused = run(&["tier", "fetch", location, half, "--pin", "nightly"]);
    assert!(
        refused.code == 3 && refused.err.contains("group-2: pin") && refused.err.contains("--without"),
        "{}",
        refused.err
    );
    let verified = run(&["tier", "verify", location, "--json"]);
    assert!(verified.code == 3 && verified.out.contains("group-2: pin nightly of log"), "{}", verified.out);
    let shown = run(&["tier", "pins", location, "--json"]).ok();
    assert!(shown.err.contains("group-2: pin"), "{}", shown.err);
    // The pins that are left are no backup, and none of them is of a log alone.
    let of_set: Vec<_> = json(&shown.out).into_iter().filter(|pin| pin["name"] == "nightly").collect();
    assert_eq!(of_set.len(), 2, "{of_set:?}");
    for pin in of_set {
        let broken = pin["broken"].as_str().unwrap();
        assert!(pin["set"] == default["log_id"] && broken.contains("group-2: pin"), "{pin}");
    }
    let table = run(&["tier", "pins", location]).ok().out;
    assert_eq!(table.lines().filter(|line| line.trim_end().ends_with("broken")).count(), 2, "{table}");
    let part = run(&["tier", "fetch", location, half, "--pin", "nightly", "--without", "group-2", "--json"])
        .ok()
        .json();
    let note = "group-2: it was left out: the named logs in it come back empty";
    assert_eq!(
        part["notes"],
        serde_json::json!([part["notes"][0], note]),
        "the default log has nothing: {part}"
    );
    fs::write(&pin, text).unwrap();
    let one = run(&["restore", backup, data, "--to-index", "7"]);
    assert!(one.code == 2 && one.err.contains("backup/default"), "{}", one.err);
    let restored = run(&["restore", backup, data]).ok();
    assert!(restored.out.contains("and 2 named logs"), "{}", restored.out);
    let mut again = Server::new(1, &dir.path().join("again"));
    again.start(&["--set", "groups=2"]);
    for name in ["orders", "users"] {
        let log = format!("{}/{name}", again.client);
        let wanted = lines(name, 1, 200);
        wait("it has the records of the backup", || (run(&["read", &log]).out == wanted).then_some(()));
    }
    let removed = run(&["tier", "unpin", location, "nightly"]).ok().out;
    assert_eq!(removed.lines().count(), 3, "{removed}");
    assert_eq!(run(&["tier", "unpin", location, "nightly"]).code, 4);
}
