//! `chiplog tier`: the objects of logs in an object store: output, exit codes, what is found.

use crate::harness::{command, finish, has_fields, is_error, run};
use crate::tmpfs::Tmpfs;
use chiplog::vault::Vault;
use chiplog::{ErrorKind, Index, Log, Options, ReadOnlyLog};
use chiplog_tier::{ObjectVault, VaultOptions};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

/// A log with objects in a directory.
struct Stored {
    dir: TempDir,
    id: String,
}

impl Stored {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let location = dir.path().join("store").display().to_string();
        let vault = Arc::new(ObjectVault::open(&location, VaultOptions::default()).unwrap());
        let options = Options::with_segment_bytes(256 << 10).vault(Some(vault as _)).object_bytes(64 << 10);
        let log = Log::open(dir.path().join("log"), options).unwrap();
        for n in 0..1500_u32 {
            log.append(&n.to_le_bytes().repeat(100)).unwrap();
        }
        let begun = Instant::now();
        while log.metrics().stored_objects < 8 {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(10));
        }
        let id = format!("{:032x}", log.log_id().get());
        log.close().unwrap();
        Self { dir, id }
    }

    fn location(&self) -> String {
        format!("file://{}", self.dir.path().join("store").display())
    }

    fn object(&self, number: u64) -> PathBuf {
        self.dir.path().join("store").join(&self.id).join(format!("o/{number:020}"))
    }

    fn verify(&self) -> crate::harness::Ran {
        run(&["tier", "verify", &self.location(), "--json"])
    }
}

/// They were left out without a word.
#[test]
fn read_reports_records_that_are_in_the_store_alone() {
    let dir = tempfile::tempdir().unwrap();
    let location = dir.path().join("store").display().to_string();
    let vault = Arc::new(ObjectVault::open(&location, VaultOptions::default()).unwrap());
    let options = Options::with_segment_bytes(64 << 10).vault(Some(vault as _)).object_bytes(64 << 10);
    let log = Log::open(dir.path().join("log"), options.local_bytes(Some(128 << 10))).unwrap();
    let begun = Instant::now();
    let first = loop {
        log.append(&[b'x'; 1000]).unwrap();
        let view = ReadOnlyLog::open(dir.path().join("log")).unwrap();
        if let Some((first, last)) = view.in_object_store() {
            assert_eq!(first, Index(1));
            break last.next().get();
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
    };
    log.close().unwrap();
    let view = ReadOnlyLog::open(dir.path().join("log")).unwrap();
    let (stored, end) = (view.in_object_store().unwrap().1.get(), view.last_index().get());
    assert!(stored + 1 >= first);
    let path = dir.path().join("log").display().to_string();
    let told = |from: u64| format!("{} records are not shown (index {from} to {stored})", stored + 1 - from);
    let count = run(&["-q", "read", &path, "--count"]).ok();
    assert!(
        count.text().trim() == (end - stored).to_string() && count.err.contains(&told(1)),
        "{}",
        count.err
    );
    let read = run(&["read", &path, "--json"]).ok();
    assert_eq!(read.lines()[0]["index"], stored + 1);
    assert_eq!(read.error()["in_object_store"], serde_json::json!({ "first": 1, "last": stored }));
    let before = (end - stored + 2).to_string();
    assert!(run(&["read", &path, "--last", &before]).ok().err.contains(&told(stored - 1)));
    assert!(run(&["read", &path, "--since", "1h"]).ok().err.contains(&told(1)));
    // Nothing is missing here.
    let from = (stored + 1).to_string();
    let all = (end - stored).to_string();
    for start in [&["--from", &from][..], &["--last", &all], &["--last", "0"], &["--since", "2099-01-01"]] {
        let ran = run(&[&["read", &path][..], start].concat()).ok();
        assert!(ran.err.is_empty(), "{start:?}: {}", ran.err);
    }
    assert!(run(&["read", &path, "--from", "1"]).fails(1).err.contains("in an object store alone"));
}

fn flip(file: &Path, offset: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[offset] ^= 4;
    fs::write(file, bytes).unwrap();
}

/// The objects and the texts of the faults.
fn faults(told: &serde_json::Value) -> Vec<(Option<u64>, String)> {
    let faults = told["logs"][0]["faults"].as_array().unwrap().iter();
    faults.map(|fault| (fault["object"].as_u64(), fault["what"].as_str().unwrap().to_owned())).collect()
}

#[test]
fn sound_objects_are_listed_and_verified() {
    let stored = Stored::new();
    let listed = run(&["tier", "list", &stored.location(), "--json"]).ok().json();
    let fields = [
        "log_id",
        "role",
        "cluster",
        "objects",
        "first",
        "last",
        "bytes",
        "missing",
        "slices",
        "slice_bytes",
        "branch_of",
        "not_served",
    ];
    has_fields(&listed, &fields);
    assert_eq!(
        (&listed["log_id"], &listed["first"], &listed["missing"]),
        (&stored.id[..].into(), &0.into(), &0.into())
    );
    let objects = listed["objects"].as_u64().unwrap();
    assert!(objects >= 8 && listed["last"] == objects - 1, "{listed}");
    let text = run(&["tier", "list", &stored.location()]).ok();
    assert!(text.text().starts_with("LOG ") && text.text().contains(&stored.id), "{}", text.text());

    let told = stored.verify().ok().json();
    has_fields(&told, &["ok", "seconds", "not_checked", "logs"]);
    let log = &told["logs"][0];
    has_fields(
        log,
        &[
            "log_id",
            "objects",
            "first_object",
            "last_object",
            "records",
            "bytes",
            "first",
            "last",
            "slices",
            "slice_bytes",
            "slices_used",
            "sliced_last",
            "tail_records",
            "tail_bytes",
            "corrupt",
            "harmless",
            "undecodable",
            "faults",
            "faults_left_out",
            "branch_of",
        ],
    );
    assert_eq!((&told["ok"], &log["first"], &log["objects"]), (&true.into(), &1.into(), &listed["objects"]));
    assert_eq!(log["records"], log["last"], "no record is missing or there twice: {log}");
    assert!(log["records"].as_u64().unwrap() > 1000, "{log}");
    let text = run(&["tier", "verify", &stored.location(), "--log-id", &stored.id]).ok();
    assert!(text.text().starts_with(&format!("sound: log {}: ", stored.id)), "{}", text.text());
}

#[test]
fn damaged_and_missing_objects_are_named() {
    let stored = Stored::new();
    flip(&stored.object(2), 20_000);
    fs::remove_file(stored.object(4)).unwrap();
    // Objects that are sound by themselves and do not belong there.
    fs::copy(stored.object(1), stored.object(6)).unwrap();
    let told = stored.verify().fails(3).json();
    assert_eq!(told["ok"], false);
    let found = faults(&told);
    let named: Vec<_> = found.iter().filter_map(|(object, _)| *object).collect();
    assert_eq!(named.first(), Some(&2), "{found:?}");
    assert!(found.contains(&(Some(4), "the object is missing".into())), "{found:?}");
    assert!(named.contains(&6) && named.iter().all(|n| [2, 4, 6, 7].contains(n)), "{found:?}");
    let text = run(&["tier", "verify", &stored.location()]).fails(3);
    assert!(
        text.text().contains(&format!("corrupt: log {}, object 2 at offset ", stored.id)),
        "{}",
        text.text()
    );
    assert!(text.text().contains(&format!("CORRUPT: log {}: ", stored.id)), "{}", text.text());
    let listed = run(&["tier", "list", &stored.location(), "--json"]).ok().json();
    assert_eq!(listed["missing"], 1);
}

#[test]
fn object_that_ends_early_and_a_wrong_root_are_faults() {
    let stored = Stored::new();
    let bytes = fs::read(stored.object(3)).unwrap();
    fs::write(stored.object(3), &bytes[..30_000]).unwrap();
    let root = stored.dir.path().join("store").join(&stored.id).join("root");
    fs::write(&root, "chiplog objects\nformat 1\nlog 00000000000000000000000000000007\n").unwrap();
    let found = faults(&stored.verify().fails(3).json());
    assert!(found[0] == (None, format!("{}/root is not of this log", stored.id)), "{found:?}");
    assert!(found[1..].iter().all(|(object, _)| *object == Some(3)) && found.len() > 1, "{found:?}");
    fs::remove_file(&root).unwrap();
    assert!(faults(&stored.verify().fails(3).json())[0].1.ends_with("/root is missing"));
}

#[test]
fn wrong_places_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().display().to_string();
    is_error(&run(&["tier", "verify", &empty, "--json"]).fails(4), "not_found", 14);
    assert!(run(&["tier", "list", &empty, "--json"]).ok().out.is_empty());
    // That is no error, and does not begin like one.
    assert_eq!(run(&["tier", "list", &empty]).ok().err, "note: no log has objects there\n");
    let missing = dir.path().join("nowhere");
    let ran = run(&["tier", "list", missing.to_str().unwrap()]).fails(4);
    assert!(ran.err.contains("there is no directory"), "{}", ran.err);
    assert!(!missing.exists(), "a command that reads makes nothing");
    let missing = dir.path().join("no where");
    let ran = run(&["tier", "list", &format!("file://{}/no%20where", dir.path().display())]).fails(4);
    assert!(ran.err.contains("there is no directory") && ran.err.contains("mount it"), "{}", ran.err);
    assert!(!missing.exists(), "it was made if its name has a space");
    run(&["tier", "list", "relative"]).fails(2);
    run(&["tier", "verify", &empty, "--log-id", "7"]).fails(2);
    run(&["tier", "list", &empty, "--credentials", "/nowhere/keys"]).fails(4);
}

/// All replicas are lost, and the log comes back from its objects.
/// Options of servers have no effect on a store. On the command line they are mistakes; the environment is for all commands.
#[test]
fn options_of_servers_are_refused_for_a_store() {
    let stored = Stored::new();
    let (location, to) = (stored.location(), stored.dir.path().join("backup").display().to_string());
    let commands = [
        &["tier", "list", &location][..],
        &["tier", "verify", &location],
        &["tier", "fetch", &location, &to],
    ];
    for command in commands {
        for option in [&["--token-file", "/x"][..], &["--tls-authority", "/x"], &["--token-in-plain-text"]] {
            let ran = run(&[command, option].concat()).fails(2);
            assert!(ran.err.contains("are of a server, and the location is an object store"), "{}", ran.err);
        }
    }
    for args in commands {
        let mut command = command(args);
        command.env("CHIPLOG_TOKEN_FILE", "/x").env("CHIPLOG_TLS_AUTHORITY", "/x");
        let ran = finish(command.env("CHIPLOG_TOKEN_IN_PLAIN_TEXT", "1").spawn().unwrap());
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
    }
}

#[test]
fn fetched_objects_are_restored() {
    let stored = Stored::new();
    fs::remove_dir_all(stored.dir.path().join("log")).unwrap();
    let place = |name: &str| stored.dir.path().join(name).display().to_string();
    let fetched = run(&["tier", "fetch", &stored.location(), &place("backup"), "--json"]).ok().json();
    assert_eq!(fetched["log_id"], stored.id.as_str());
    let last = fetched["last"].as_u64().unwrap();
    assert!(last > 500, "{fetched}");
    run(&["restore", &place("backup"), &place("again"), "--json"]).ok();
    let log = Log::open(place("again"), Options::with_segment_bytes(256 << 10)).unwrap();
    assert_eq!((log.first_index().get(), log.last_index().get()), (1, last));
    for n in [0, 7, last as u32 - 1] {
        assert_eq!(log.read(chiplog::Index(u64::from(n) + 1)).unwrap().data, n.to_le_bytes().repeat(100));
    }
    let again = run(&["tier", "fetch", &stored.location(), &place("backup"), "--json"]).fails(2);
    is_error(&again, "invalid_argument", 9);
    flip(&stored.object(2), 9000);
    is_error(&run(&["tier", "fetch", &stored.location(), &place("bad"), "--json"]).fails(3), "corrupt", 2);
    assert!(!Path::new(&place("bad")).exists());
}

/// Objects under a pin are listed, checked and fetched, and go with it.
#[test]
fn pins_are_made_listed_fetched_and_removed() {
    const FIELDS: [&str; 15] = [
        "log_id",
        "role",
        "cluster",
        "name",
        "first_object",
        "last_object",
        "first",
        "last",
        "made_timestamp",
        "made_time",
        "missing",
        "branch",
        "set",
        "set_empty",
        "broken",
    ];
    let stored = Stored::new();
    let at = stored.location();
    assert!(run(&["tier", "pins", &at, "--json"]).ok().out.is_empty());
    let pin = run(&["tier", "pin", &at, "early", "--upto", "300", "--json"]).ok().json();
    has_fields(&pin, &FIELDS);
    assert_eq!(
        (&pin["log_id"], &pin["first"], &pin["missing"]),
        (&stored.id[..].into(), &1.into(), &0.into())
    );
    let (last, last_object) = (pin["last"].as_u64().unwrap(), pin["last_object"].as_u64().unwrap());
    assert!(last >= 300 && last_object < 7, "{pin}");
    is_error(&run(&["tier", "pin", &at, "early", "--json"]).fails(2), "already_exists", 29);
    is_error(&run(&["tier", "pin", &at, "Bad", "--json"]).fails(2), "invalid_argument", 9);
    is_error(&run(&["tier", "unpin", &at, "other", "--json"]).fails(4), "not_found", 14);
    let text = run(&["tier", "pin", &at, "whole", "--log-id", &stored.id]).ok();
    assert!(text.text().starts_with("pinned whole: records 1 to "), "{}", text.text());
    let listed = run(&["tier", "pins", &at]).ok();
    assert!(listed.text().starts_with("LOG ") && listed.text().contains(" early "), "{}", listed.text());

    let place = |name: &str| stored.dir.path().join(name).display().to_string();
    let fetched = run(&["tier", "fetch", &at, &place("backup"), "--pin", "early", "--json"]).ok().json();
    assert_eq!((&fetched["first"], &fetched["last"]), (&1.into(), &last.into()));
    stored.verify().ok();
    // All is discarded, and what no pin keeps is gone: the log is made of nothing, and is not damaged.
    let removed = run(&["tier", "unpin", &at, "whole", "--json"]).ok().json();
    has_fields(&removed, &["log_id", "name"]);
    let newest = run(&["tier", "list", &at, "--json"]).ok().json()["last"].as_u64().unwrap();
    for number in last_object + 1..=newest {
        fs::remove_file(stored.object(number)).unwrap();
    }
    let begin = stored.dir.path().join("store").join(&stored.id).join("begin");
    fs::create_dir_all(&begin).unwrap();
    fs::write(begin.join(format!("{:020}", newest + 1)), "begin").unwrap();
    stored.verify().ok();
    is_error(&run(&["tier", "fetch", &at, &place("all"), "--json"]).fails(4), "discarded", 7);
    run(&["tier", "fetch", &at, &place("again"), "--pin", "early", "--json"]).ok();
    fs::remove_file(stored.object(1)).unwrap();
    let found = faults(&stored.verify().fails(3).json());
    assert!(found.len() == 1 && found[0].1.contains("1 object is missing under pin early"), "{found:?}");
    let listed = run(&["tier", "pins", &at, "--json"]).ok().json();
    has_fields(&listed, &FIELDS);
    assert_eq!(listed["missing"], 1);
    let ran = run(&["tier", "fetch", &at, &place("less"), "--pin", "early", "--json"]).fails(3);
    is_error(&ran, "corrupt", 2);
    run(&["tier", "unpin", &at, "early"]).ok();
    stored.verify().ok();
}

/// The state of each log in the store, and the deletion of what nothing needs.
#[test]
fn unneeded_objects_are_listed_and_deleted() {
    let stored = Stored::new();
    let at = stored.location();
    let status = || run(&["tier", "status", &at, "--json"]).ok().json();
    let gc = |more: &[&str]| run(&[&["tier", "gc", &at, "--json"], more].concat()).ok().json();
    let told = status();
    has_fields(
        &told,
        &[
            "log_id",
            "role",
            "cluster",
            "root",
            "objects",
            "bytes",
            "first_object",
            "last_object",
            "first",
            "last",
            "missing",
            "begin",
            "branch_of",
            "pins",
            "pinned_objects",
            "pinned_bytes",
            "unneeded_objects",
            "unneeded_bytes",
            "sliced_last",
            "tail_records",
            "tail_bytes",
            "faults",
            "payloads",
            "payload_bytes",
            "unneeded_payloads",
            "unneeded_payload_bytes",
            "payloads_unclear",
            "unknown",
            "server",
        ],
    );
    assert_eq!(
        (&told["first"], &told["root"], &told["begin"]),
        (&1.into(), &true.into(), &0.into()),
        "{told}"
    );
    let newest = told["last_object"].as_u64().unwrap();
    let text = run(&["tier", "status", &at, "--log-id", &stored.id]).ok();
    assert!(text.text().starts_with(&format!("log {}:\n", stored.id)), "{}", text.text());

    run(&["tier", "pin", &at, "early", "--upto", "1"]).ok();
    let folder = stored.dir.path().join("store").join(&stored.id);
    fs::create_dir_all(folder.join("begin")).unwrap();
    for begin in [3, 5] {
        fs::write(folder.join(format!("begin/{begin:020}")), "begin").unwrap();
    }
    fs::write(folder.join("o/00000000000000000099#7"), "half").unwrap();
    fs::create_dir_all(folder.join("s/1")).unwrap();
    fs::write(folder.join("s/3#7"), "half").unwrap();
    fs::write(folder.join("s/1/2"), "of a later version").unwrap();
    fs::create_dir_all(folder.join("p")).unwrap();
    // Of a leader of long ago, and of one that may lead now.
    let payload = |term: u64| folder.join(format!("p/{term:020}.{:020}", 1));
    fs::write(payload(0), "payload").unwrap();
    fs::write(payload(99), "payload").unwrap();
    fs::write(folder.join("p/3#7"), "half").unwrap();
    let told = gc(&["--delete"]);
    has_fields(
        &told,
        &[
            "log_id",
            "role",
            "cluster",
            "begin",
            "begin_age_seconds",
            "needed_objects",
            "needed_bytes",
            "pins",
            "pinned_objects",
            "pinned_bytes",
            "unneeded_objects",
            "unneeded_bytes",
            "due_objects",
            "due_bytes",
            "slices",
            "slice_bytes",
            "payloads",
            "payload_bytes",
            "unneeded_payloads",
            "unneeded_payload_bytes",
            "payloads_unclear",
            "old_begins",
            "half_written",
            "unknown",
            "due",
            "deleted",
            "deleted_payloads",
        ],
    );
    assert!(told["begin_age_seconds"].as_u64().unwrap() < 3600, "{told}");
    assert_eq!((&told["deleted_payloads"], &told["payloads"]), (&1.into(), &1.into()), "{told}");
    assert!(!payload(0).exists() && payload(99).exists());
    assert_eq!(
        (&told["due"], &told["deleted"], &told["begin"]),
        (&false.into(), &0.into(), &5.into()),
        "{told}"
    );
    let told = gc(&["--after", "0"]);
    assert_eq!((&told["unneeded_objects"], &told["pinned_objects"]), (&4.into(), &1.into()), "{told}");
    assert_eq!((&told["half_written"], &told["old_begins"]), (&3.into(), &1.into()), "{told}");
    assert_eq!(
        (&told["due"], &told["deleted"], &told["unknown"]),
        (&true.into(), &0.into(), &1.into()),
        "{told}"
    );
    assert!(stored.object(4).exists(), "it was only listed");
    let text = run(&["tier", "gc", &at, "--after", "0"]).ok();
    assert!(text.text().contains("can be deleted with --delete"), "{}", text.text());
    assert_eq!(gc(&["--after", "0", "--delete"])["deleted"], 4);
    assert!(stored.object(0).exists() && !stored.object(1).exists() && stored.object(5).exists());
    assert!(folder.join("s/1/2").exists() && !folder.join("o/00000000000000000099#7").exists());
    assert!(!folder.join("s/3#7").exists() && !folder.join("p/3#7").exists() && payload(99).exists());
    let text = run(&["tier", "gc", &at, "--after", "0", "--delete"]).ok();
    assert!(text.text().ends_with("  nothing to remove\n"), "{}", text.text());
    let told = status();
    assert_eq!(told["objects"], newest - 5 + 2, "{told}");
    assert_eq!((&told["unneeded_objects"], &told["pins"][0]), (&0.into(), &"early".into()), "{told}");
    stored.verify().ok();

    run(&["tier", "gc", &at, "--all"]).fails(2);
    let all = ["tier", "gc", &at, "--log-id", &stored.id, "--all", "--json"];
    is_error(&run(&[&all[..], &["--delete"]].concat()).fails(5), "busy", 5);
    run(&["tier", "unpin", &at, "early"]).ok();
    assert_eq!(run(&all).ok().json()["deleted"], 0);
    assert!(stored.object(0).exists());
    run(&[&all[..], &["--delete"]].concat()).ok();
    assert!(run(&["tier", "list", &at, "--json"]).ok().out.is_empty());
    is_error(&run(&[&all[..], &["--delete"]].concat()).fails(4), "not_found", 14);
}

/// A branch is made, shown with the log whose objects it reads, fetched as a whole, and removed.
#[test]
fn branches_are_made_shown_and_removed() {
    const FIELDS: [&str; 8] =
        ["log_id", "first", "last", "records", "last_timestamp", "last_time", "seconds", "branch_of"];
    let stored = Stored::new();
    let at = stored.location();
    let place = |name: &str| stored.dir.path().join(name).display().to_string();
    let made = run(&["tier", "branch", &at, &place("try"), "--to-index", "900", "--json"]).ok().json();
    has_fields(&made, &FIELDS);
    let id = made["log_id"].as_str().unwrap();
    assert_eq!((&made["first"], &made["last"], &made["records"]), (&1.into(), &900.into(), &900.into()));
    let part = &made["branch_of"][0];
    has_fields(part, &["log_id", "first_object", "last_object"]);
    assert_eq!((&part["log_id"], &part["first_object"]), (&stored.id[..].into(), &0.into()), "{made}");
    let last_object = part["last_object"].as_u64().unwrap();
    let full = run(&["tier", "branch", &at, &place("try"), "--log-id", &stored.id, "--json"]).fails(2);
    is_error(&full, "invalid_argument", 9);
    assert!(full.err.contains("is not empty: a branch needs a directory"), "{}", full.err);
    // Commands find the log that they found before there was a branch, and say so.
    let branch = format!("{id} (a branch of log {})", stored.id);
    let taking = format!("taking log {}; --log-id chooses a branch instead: {branch}", stored.id);
    let told = run(&["tier", "fetch", &at, &place("again"), "--json"]).ok();
    assert_eq!(
        (&told.json()["log_id"], &told.json()["branches"]),
        (&stored.id[..].into(), &serde_json::json!([branch]))
    );
    for args in
        [&["fetch", &at, &place("quiet"), "--quiet"][..], &["branch", &at, &place("other"), "--quiet"]]
    {
        let told = run(&[&["tier"], args].concat()).ok();
        assert!(told.err.contains(&taking), "{args:?}: {}", told.err);
    }
    let listed = run(&["tier", "pins", &at, "--json"]).ok();
    let other = listed.text().lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let other = other.filter_map(|pin| pin["branch"].as_str().map(str::to_owned)).find(|other| other != id);
    run(&["tier", "gc", &at, "--log-id", &other.unwrap(), "--all", "--delete", "--json"]).ok();
    // A pin is made and removed of the log that the user means.
    run(&["tier", "pin", &at, "again", "--log-id", &stored.id]).ok();
    for args in [&["unpin", &at, "again", "--json"][..], &["pin", &at, "more", "--json"]] {
        let refused = run(&[&["tier"], args].concat()).fails(2);
        is_error(&refused, "invalid_argument", 9);
        let which = format!(
            "a log and 1 branch are there, and the command is for one of them: choose it by --log-id: {}, {branch}",
            stored.id
        );
        assert!(refused.err.contains(&which), "{args:?}: {}", refused.err);
    }
    run(&["tier", "unpin", &at, "again", "--log-id", &stored.id]).ok();
    // A branch alone is not taken for the log.
    let (root, away) = (stored.dir.path().join("store").join(&stored.id), stored.dir.path().join("away"));
    fs::rename(&root, &away).unwrap();
    let alone = run(&["tier", "pin", &at, "again", "--json"]).fails(2);
    is_error(&alone, "invalid_argument", 9);
    let only =
        format!("only branches are there: choose one by --log-id: {id} (a branch of log {})", stored.id);
    assert!(alone.err.contains(&only), "{}", alone.err);
    fs::rename(&away, &root).unwrap();
    // With another log, each is said to be what it is.
    let other = stored.dir.path().join("store").join(format!("{:032x}", 0xabc));
    fs::create_dir(&other).unwrap();
    fs::write(other.join("root"), format!("chiplog objects\nformat 1\nlog {:032x}\n", 0xabc)).unwrap();
    let both = run(&["tier", "branch", &at, &place("both"), "--json"]).fails(2);
    is_error(&both, "invalid_argument", 9);
    for part in [
        "2 logs and 1 branch are there",
        &format!("{:032x}", 0xabc),
        &format!("{id} (a branch of log {})", stored.id),
    ] {
        assert!(both.err.contains(part), "{part}: {}", both.err);
    }
    fs::remove_dir_all(&other).unwrap();
    let far =
        run(&["tier", "branch", &at, &place("far"), "--log-id", &stored.id, "--to-index", "99999", "--json"]);
    is_error(&far.fails(4), "out_of_range", 8);
    let old = run(&["tier", "branch", &at, &place("old"), "--log-id", &stored.id, "--to-time", "1970-01-02"]);
    assert!(old.fails(4).err.contains("nothing was made"));
    let text = run(&["tier", "branch", &at, &place("text"), "--log-id", &stored.id]).ok();
    assert!(
        text.text().contains("is a branch, log ") && text.text().contains("it reads objects 0 to "),
        "{}",
        text.text()
    );

    // Records in the store alone are not called discarded.
    let info = run(&["info", &place("try"), "--json"]).ok().json();
    let (elsewhere, first) = (&info["in_object_store"], info["first"].as_u64().unwrap());
    assert!(elsewhere["first"] == 1 && elsewhere["last"] == first - 1 && first > 1, "{info}");
    assert!(run(&["info", &place("try")]).ok().text().contains("are in an object store"));
    let read = run(&["read", &place("try"), "--from", "1", "--limit", "1"]).fails(1);
    assert!(
        read.err.contains("are in an object store alone") && !read.err.contains("discarded"),
        "{}",
        read.err
    );
    run(&["read", &place("try"), "--from", &first.to_string(), "--limit", "1"]).ok();

    // The directory is a log, which reads with the store and says what it lacks without it.
    let vault = Arc::new(ObjectVault::open(&at, VaultOptions::default()).unwrap());
    let options = Options::with_segment_bytes(256 << 10).vault(Some(vault as _)).object_bytes(64 << 10);
    let log = Log::open(place("try"), options).unwrap();
    for n in [0_u32, 500, 899] {
        assert_eq!(log.read(chiplog::Index(u64::from(n) + 1)).unwrap().data, n.to_le_bytes().repeat(100));
    }
    assert_eq!(log.append(b"of the branch").unwrap().get(), 901);
    log.cut_objects(chiplog::Index(901)).unwrap();
    let begun = Instant::now();
    while log.metrics().stored_index < 901 {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    log.close().unwrap();

    // All commands about it show its parent.
    let of_branch = |command: &str| run(&["tier", command, &at, "--log-id", id, "--json"]).ok().json();
    let status = of_branch("status");
    assert_eq!((&status["branch_of"], &status["last"]), (&made["branch_of"], &901.into()), "{status}");
    assert_eq!((&status["first"], &status["missing"]), (&1.into(), &0.into()), "{status}");
    let text = run(&["tier", "status", &at, "--log-id", id]).ok();
    assert!(
        text.text().contains(&format!("a branch: it reads objects 0 to {last_object} of log {}", stored.id))
    );
    let verified = of_branch("verify");
    assert_eq!((&verified["ok"], &verified["logs"][0]["branch_of"]), (&true.into(), &made["branch_of"]));
    let listed = run(&["tier", "list", &at]).ok();
    assert!(listed.err.contains(&format!("log {id} is a branch")), "{}", listed.err);
    let pin = format!("branch-{id}");
    let pins = run(&["tier", "pins", &at, "--log-id", &stored.id, "--json"]).ok();
    let pins: Vec<serde_json::Value> =
        String::from_utf8_lossy(&pins.out).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = pins.iter().find(|shown| shown["name"] == pin[..]).unwrap();
    assert_eq!((of["branch"].as_str(), of["last_object"].as_u64()), (Some(id), Some(last_object)));
    let fetched = run(&["tier", "fetch", &at, &place("whole"), "--log-id", id, "--json"]).ok().json();
    assert_eq!(
        (&fetched["log_id"], &fetched["first"], &fetched["last"]),
        (&id.into(), &1.into(), &901.into())
    );
    run(&["restore", &place("whole"), "--check", "--json"]).ok();

    // Its parent keeps what it reads.
    is_error(&run(&["tier", "unpin", &at, &pin, "--log-id", &stored.id, "--json"]).fails(5), "busy", 5);
    run(&["tier", "gc", &at, "--log-id", &stored.id, "--all", "--delete", "--json"]).fails(5);
    let object = stored.object(1);
    let bytes = fs::read(&object).unwrap();
    fs::remove_file(&object).unwrap();
    let found = faults(&run(&["tier", "verify", &at, "--log-id", id, "--json"]).fails(3).json());
    assert!(found.len() == 1 && found[0].1.contains(&stored.id), "{found:?}");
    fs::write(&object, bytes).unwrap();
    let removed = run(&["tier", "gc", &at, "--log-id", id, "--all", "--delete", "--json"]).ok().json();
    assert!(removed["deleted"].as_u64().unwrap() >= 2, "{removed}");
    let left = run(&["tier", "pins", &at, "--json"]).ok();
    assert!(!String::from_utf8_lossy(&left.out).contains(&pin));
    assert!(!stored.dir.path().join("store").join(id).join("branch").exists());
    run(&["tier", "unpin", &at, &pin, "--log-id", &stored.id, "--force"]).fails(4);
}

/// A directory that its objects had filled could not be emptied: the text that says that they go, and the question for the store's time,
/// found no room.
#[test]
fn full_directory_is_emptied() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Tmpfs::mount(&dir.path().join("store"), 1 << 20) else { return };
    let location = disk.path().display().to_string();
    let objects = |log: u128| disk.path().join(format!("{log:032x}/o"));
    for log in [7, 8] {
        for folder in ["o", "begin"] {
            fs::create_dir_all(disk.path().join(format!("{log:032x}/{folder}"))).unwrap();
        }
        for name in ["root", "o/00000000000000000000", "o/00000000000000000001", "begin/00000000000000000001"]
        {
            fs::write(disk.path().join(format!("{log:032x}/{name}")), "x").unwrap();
        }
        let begin = disk.path().join(format!("{log:032x}/begin/{:020}", 1));
        let day_ago = SystemTime::now() - Duration::from_hours(24);
        fs::File::options().write(true).open(begin).unwrap().set_modified(day_ago).unwrap();
    }
    let mut ballast = fs::File::create(disk.path().join("ballast")).unwrap();
    while ballast.write(&[1; 4096]).is_ok() {}
    // The leader of a log says that it discards more, as far as there is room.
    let vault = ObjectVault::open(&location, VaultOptions::default()).unwrap();
    let begin = format!("{:032x}/begin/{:020}", 7, 2);
    assert_eq!(vault.create(&begin, "text".into()).unwrap_err().kind(), ErrorKind::Io);
    assert!(vault.create(&begin, "".into()).unwrap());
    vault.delete(&begin).unwrap();
    let told = run(&["tier", "gc", &location, "--delete", "--after", "1h", "--json"]).ok();
    assert!(told.lines().iter().all(|told| told["deleted"] == 1), "{}", told.text());
    for log in [7, 8] {
        assert_eq!(fs::read_dir(objects(log)).unwrap().count(), 1);
    }
}
