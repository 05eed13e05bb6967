//! `chiplog tier`: the objects of logs in an object store: output, exit codes, what is found.

use crate::harness::{has_fields, is_error, run};
use chiplog::{Log, Options};
use chiplog_tier::{ObjectVault, VaultOptions};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
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
    has_fields(&listed, &["log_id", "objects", "first", "last", "bytes", "missing", "slices", "slice_bytes"]);
    assert_eq!(
        (&listed["log_id"], &listed["first"], &listed["missing"]),
        (&stored.id[..].into(), &0.into(), &0.into())
    );
    let objects = listed["objects"].as_u64().unwrap();
    assert!(objects >= 8 && listed["last"] == objects - 1, "{listed}");
    let text = run(&["tier", "list", &stored.location()]).ok();
    assert!(text.text().starts_with("LOG ") && text.text().contains(&stored.id), "{}", text.text());

    let told = stored.verify().ok().json();
    has_fields(&told, &["ok", "seconds", "logs"]);
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
            "corrupt",
            "harmless",
            "undecodable",
            "faults",
            "faults_left_out",
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
    let missing = dir.path().join("nowhere");
    let ran = run(&["tier", "list", missing.to_str().unwrap()]).fails(4);
    assert!(ran.err.contains("there is no directory"), "{}", ran.err);
    assert!(!missing.exists(), "a command that reads makes nothing");
    run(&["tier", "list", "relative"]).fails(2);
    run(&["tier", "verify", &empty, "--log-id", "7"]).fails(2);
    run(&["tier", "list", &empty, "--credentials", "/nowhere/keys"]).fails(4);
}

/// All replicas are lost, and the log comes back from its objects.
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
    const FIELDS: [&str; 9] = [
        "log_id",
        "name",
        "first_object",
        "last_object",
        "first",
        "last",
        "made_timestamp",
        "made_time",
        "missing",
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
            "root",
            "objects",
            "bytes",
            "first_object",
            "last_object",
            "first",
            "last",
            "missing",
            "begin",
            "pins",
            "pinned_objects",
            "pinned_bytes",
            "unneeded_objects",
            "unneeded_bytes",
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
    let told = gc(&["--delete"]);
    has_fields(
        &told,
        &[
            "log_id",
            "begin",
            "begin_age_seconds",
            "needed_objects",
            "needed_bytes",
            "pins",
            "pinned_objects",
            "pinned_bytes",
            "unneeded_objects",
            "unneeded_bytes",
            "old_begins",
            "half_written",
            "unknown",
            "due",
            "deleted",
        ],
    );
    assert!(told["begin_age_seconds"].as_u64().unwrap() < 3600, "{told}");
    assert_eq!(
        (&told["due"], &told["deleted"], &told["begin"]),
        (&false.into(), &0.into(), &5.into()),
        "{told}"
    );
    let told = gc(&["--after", "0"]);
    assert_eq!((&told["unneeded_objects"], &told["pinned_objects"]), (&4.into(), &1.into()), "{told}");
    assert_eq!((&told["half_written"], &told["old_begins"]), (&2.into(), &1.into()), "{told}");
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
    assert!(!folder.join("s/3#7").exists());
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
