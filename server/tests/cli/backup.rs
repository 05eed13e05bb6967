//! `chiplog backup` and `chiplog restore` of a directory: output, exit codes, refusals.

use crate::harness::{Place, Ran, has_fields, is_error, numbered, run, run_with};
use std::fs;
use std::path::PathBuf;

impl Place {
    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_string()
    }

    fn back_up(&self) -> Ran {
        run(&["backup", &self.log(), &self.at("saved"), "--json"]).ok()
    }

    fn restore(&self, name: &str, more: &[&str]) -> Ran {
        run(&[&["restore", &self.at("saved"), &self.at(name), "--json"], more].concat())
    }
}

fn read(dir: &str) -> String {
    run(&["read", dir]).ok().text().to_owned()
}

#[test]
fn restored_log_continues_elsewhere() {
    let place = Place::with(3000);
    place.run("discard", &["1001"]).ok();
    let before = place.run("info", &["--json"]).ok().json();
    let told = place.back_up().json();
    let common = ["log_id", "first", "last", "records", "last_timestamp", "last_time", "seconds"];
    has_fields(&told, &[&common[..], &["files", "bytes", "unproven", "notes"]].concat());
    assert_eq!(
        (&told["log_id"], &told["first"], &told["last"]),
        (&before["log_id"], &1001.into(), &3000.into())
    );
    assert_eq!((&told["records"], &told["unproven"]), (&2000.into(), &0.into()));
    let files = fs::read_dir(place.at("saved")).unwrap().count() as u64;
    assert_eq!(told["files"], files - 1, "all except the manifest");
    let manifest = fs::read_to_string(place.dir.path().join("saved/chiplog.backup")).unwrap();
    assert!(manifest.starts_with("chiplog backup\nformat 1\nlog ") && manifest.contains("\nlast 3000\n"));

    let checked = run(&["restore", &place.at("saved"), "--check", "--json"]).ok().json();
    has_fields(&checked, &[&common[..], &["files", "bytes", "made", "ends_early", "notes"]].concat());
    let restored = place.restore("again", &[]).ok().json();
    has_fields(&restored, &[&common[..], &["ends_early", "notes"]].concat());
    assert_eq!(read(&place.at("again")), read(&place.log()));
    let after = run(&["info", &place.at("again"), "--json"]).ok().json();
    assert_ne!(after["log_id"], before["log_id"]);
    assert_eq!(after["log_id"], restored["log_id"]);
    assert_eq!(
        (&after["first"], &after["last"], &after["last_timestamp"]),
        (&before["first"], &before["last"], &before["last_timestamp"])
    );
    run(&["verify", &place.at("again")]).ok();
    let appended = run_with(&["append", &place.at("again"), "--json"], b"later\n").ok().json();
    assert_eq!(appended["first"], 3001);
    let kept = place.restore("kept", &["--keep-log-id"]).ok().json();
    assert_eq!(kept["log_id"], before["log_id"]);
}

#[test]
fn output_describes_what_was_done() {
    let place = Place::with(30);
    let backup = run(&["backup", &place.log(), &place.at("saved")]).ok();
    assert!(backup.text().contains("backed up log ") && backup.text().contains("30 records, index 1 to 30"));
    let check = run(&["restore", &place.at("saved"), "--check"]).ok();
    assert!(check.text().starts_with("sound: a backup of log "), "{}", check.text());
    let restored = run(&["restore", &place.at("saved"), &place.at("again"), "--to-index", "25"]).ok();
    assert!(restored.text().contains("20 records, index 1 to 20"), "{}", restored.text());
    assert!(restored.err.contains("records 21 to 30 are one append"), "{}", restored.err);
    let told =
        run(&["restore", &place.at("saved"), &place.at("json"), "--to-index", "25", "--json"]).ok().json();
    assert_eq!((&told["left_out"]["first"], &told["left_out"]["last"]), (&21.into(), &30.into()));
    let nothing = run(&["restore", &place.at("saved"), &place.at("none"), "--to-index", "5"]).fails(4);
    assert!(nothing.err.contains("an append of records 1 to "), "{}", nothing.err);
    assert!(!place.dir.path().join("none").exists());
    assert!(run(&["-q", "restore", &place.at("saved"), &place.at("quiet")]).ok().out.is_empty());
}

#[test]
fn log_is_restored_to_a_record_and_to_a_time() {
    let place = Place::with(20);
    let time = place.run("info", &["--json"]).ok().json()["last_timestamp"].as_u64().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(5));
    place.append(&numbered(21, 40)).ok();
    place.back_up();
    assert_eq!(place.restore("ten", &["--to-index", "10"]).ok().json()["last"], 10);
    assert_eq!(read(&place.at("ten")).lines().last(), Some("record 10"));
    assert_eq!(place.restore("then", &["--to-time", &time.to_string()]).ok().json()["last"], 20);
    assert_eq!(place.restore("now", &["--to-time", "0s"]).ok().json()["last"], 40);
    is_error(&place.restore("never", &["--to-index", "41"]).fails(4), "out_of_range", 8);
    let never = place.restore("never", &["--to-time", "1999-01-01"]).fails(4);
    is_error(&never, "out_of_range", 8);
    assert!(never.err.contains("no record of 1999-01-01T00:00:00.000Z or before"), "{}", never.err);
    assert!(!place.dir.path().join("never").exists());
    // `chiplog backup` has no --check; the error names the command that has it.
    let mistaken = run(&["backup", &place.at("saved"), "--check"]).fails(2);
    assert!(mistaken.err.contains("`chiplog restore BACKUP --check` checks a backup"), "{}", mistaken.err);
}

/// Damage is named, with status 3, and nothing is made.
#[test]
fn incomplete_backup_is_refused() {
    let place = Place::with(4000);
    place.back_up();
    let refused = |file: &str| {
        for ran in [place.restore("again", &[]), run(&["restore", &place.at("saved"), "--check", "--json"])] {
            let ran = ran.fails(3);
            is_error(&ran, "corrupt", 2);
            assert!(ran.err.contains(file), "{}", ran.err);
        }
        let left: Vec<_> = fs::read_dir(place.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    };
    let segment = format!("{:020}.seg", 1);
    let path = PathBuf::from(place.at("saved")).join(&segment);
    let whole = fs::read(&path).unwrap();
    let mut torn = whole.clone();
    torn[20_000] ^= 1;
    for bad in [&torn[..], &whole[..5000]] {
        fs::write(&path, bad).unwrap();
        refused(&segment);
    }
    fs::remove_file(&path).unwrap();
    refused(&segment);
    fs::write(&path, &whole).unwrap();
    let more = PathBuf::from(place.at("saved")).join("notes.txt");
    fs::write(&more, "mine").unwrap();
    refused("notes.txt");
    fs::remove_file(&more).unwrap();
    place.restore("again", &[]).ok();
}

#[test]
fn used_directories_and_unfinished_backups_are_refused() {
    let place = Place::with(10);
    place.back_up();
    let again = run(&["backup", &place.log(), &place.at("saved"), "--json"]).fails(2);
    is_error(&again, "invalid_argument", 9);
    assert!(again.err.contains("holds a backup already"), "{}", again.err);
    is_error(&run(&["backup", &place.at("none"), &place.at("other"), "--json"]).fails(4), "not_found", 14);
    assert!(!place.dir.path().join("other").exists());
    is_error(&run(&["restore", &place.log(), &place.at("other"), "--json"]).fails(4), "not_found", 14);
    fs::create_dir(place.at("unfinished")).unwrap();
    fs::write(PathBuf::from(place.at("unfinished")).join("chiplog.backup.tmp"), "").unwrap();
    let unfinished = run(&["restore", &place.at("unfinished"), "--check"]).fails(4);
    assert!(unfinished.err.contains("is not finished"), "{}", unfinished.err);
    run(&["restore", &place.at("saved"), &place.log()]).fails(2);
    run(&["restore", &place.at("saved")]).fails(2);
    run(&["restore", &place.at("saved"), &place.at("other"), "--check"]).fails(2);
    run(&["backup", &place.log(), "host:7411"]).fails(2);
    run(&["backup", &place.log(), &place.at("other"), "--stale"]).fails(2);
}
