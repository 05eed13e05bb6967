//! Directories in which no log is made: backups, and those with other files.

use crate::harness::{Place, Ran, numbered, run, run_with};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The names in a directory.
fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The files in a directory, with their bytes.
fn bytes(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Tries to make a server's replica and a cluster in `dir`. Both end, and write nothing.
fn serve_and_dev(dir: &Path) -> [Ran; 3] {
    let (before, path) = (names(dir), dir.to_str().unwrap());
    let places = ["--listen-client", "127.0.0.1:0", "--listen-peer", "127.0.0.1:0", "--listen-http", ""];
    let serve = [&["serve", "--node", "1", "--data", path][..], &places].concat();
    let all = [
        run(&serve),
        run(&[&serve[..], &["--init"]].concat()),
        run(&["dev", "--data", path, "--port", "51000"]),
    ];
    assert_eq!(names(dir), before);
    all.map(|ran| ran.fails(2))
}

/// A server made a cluster in a backup, and wrote into it. `append` called it a follower's copy.
#[test]
fn backup_gets_no_log() {
    let place = Place::with(10);
    let saved = place.dir.path().join("saved");
    run(&["backup", &place.log(), saved.to_str().unwrap()]).ok();
    let cluster = place.dir.path().join("cluster");
    fs::create_dir(&cluster).unwrap();
    fs::write(cluster.join("chiplog.cluster"), "").unwrap();
    for (backup, what) in [(&saved, "a log"), (&cluster, "a cluster")] {
        let dir = backup.display();
        let told =
            format!("{dir} is a backup of {what}, in which nothing is written: `chiplog restore {dir} ");
        let path = backup.to_str().unwrap();
        let mut all = serve_and_dev(backup).to_vec();
        let before = bytes(backup);
        // It went on with the backup as its copy, and added to it.
        for more in [&[][..], &["--start-over"], &["--segments"]] {
            let ran = run(&[&["follow", path, "127.0.0.1:9"], more].concat()).fails(2);
            assert!(ran.err.contains("NEW-DIR --as-copy`"), "{}", ran.err);
            all.push(ran);
        }
        all.push(run_with(&["append", path], b"x\n").fails(2));
        all.push(run_with(&["append", path, "--create"], b"x\n").fails(2));
        all.push(run(&["discard", path, "5"]).fails(2));
        assert_eq!(bytes(backup), before);
        for ran in all {
            assert!(ran.err.contains(&told), "{}", ran.err);
        }
    }
    run(&["restore", saved.to_str().unwrap(), "--check"]).ok();
}

/// They made one, although `append` refused to.
#[test]
fn servers_make_no_replica_among_other_files() {
    let place = Place::empty();
    let used = place.dir.path().join("used");
    fs::create_dir(&used).unwrap();
    fs::write(used.join("cert.pem"), "mine").unwrap();
    fs::create_dir(used.join("lost+found")).unwrap();
    let [waiting, first, dev] = serve_and_dev(&used);
    for (ran, below) in [(waiting, "chiplog"), (first, "chiplog"), (dev, "cluster")] {
        let told = format!("the directory {} has other files, such as cert.pem, and no log", used.display());
        assert!(ran.err.contains(&told), "{}", ran.err);
        assert!(ran.err.contains(used.join(below).to_str().unwrap()), "{}", ran.err);
    }
    // `dev` keeps servers in directories of their own.
    run_with(&["append", &place.log()], &numbered(1, 3)).ok();
    let ran = run(&["dev", "--data", &place.log(), "--port", "51000"]).fails(2);
    assert!(ran.err.contains("holds a log"), "{}", ran.err);
}

/// It said that nothing is written into a backup, which did not help: the replica was there.
#[test]
fn replica_in_a_backup_of_a_cluster_is_told_apart() {
    let place = Place::with(3);
    let dir = Path::new(&place.log()).to_owned();
    fs::write(dir.join("chiplog.cluster"), "").unwrap();
    let mut all = serve_and_dev(&dir).to_vec();
    all.push(run_with(&["append", &place.log()], b"x\n").fails(2));
    for ran in all {
        assert!(ran.err.contains("an earlier version made a replica in it"), "{}", ran.err);
        assert!(ran.err.contains("move chiplog.cluster and default/ away"), "{}", ran.err);
    }
    fs::remove_file(dir.join("chiplog.cluster")).unwrap();
    run_with(&["append", &place.log()], b"x\n").ok();
}

/// The advice was to take another directory, and there another log would have begun.
#[test]
fn log_without_its_identity_is_no_directory_of_other_files() {
    let place = Place::with(10);
    let dir = Path::new(&place.log()).to_owned();
    fs::remove_file(dir.join("chiplog.id")).unwrap();
    fs::write(dir.join("cert.pem"), "mine").unwrap();
    let path = place.log();
    let told = "the log's identity is missing, but 00000000000000000001.seg holds data; restore chiplog.id";
    let places = ["--listen-client", "127.0.0.1:0", "--listen-peer", "127.0.0.1:0", "--listen-http", ""];
    let serve = [&["serve", "--node", "1", "--data", &path, "--init"][..], &places].concat();
    for ran in [run(&serve), run_with(&["append", &path], b"x\n")] {
        let ran = ran.fails(3);
        assert!(ran.err.contains(told), "{}", ran.err);
    }
    let dev = run(&["dev", "--data", &path, "--port", "51000"]).fails(2);
    assert!(dev.err.contains("holds a log"), "{}", dev.err);
}

/// The files that a log leaves which was killed before it was made. The next start refused it as files of something else.
#[test]
fn log_that_was_not_finished_is_made() {
    let place = Place::empty();
    let dir = place.dir.path().join("log");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("00000000000000000001.tmp"), [0; 8192]).unwrap();
    fs::write(dir.join("chiplog.id"), "").unwrap();
    run_with(&["append", &place.log(), "--segment-bytes", "64KiB"], b"x\n").ok();
    assert_eq!(place.run("read", &[]).ok().text(), "x\n");
}

/// An error advised to append to `./1/orders` for the named log `orders`, and that made a log in the server's directory.
#[test]
fn no_log_is_made_within_the_directory_of_another_one() {
    let place = Place::with(3);
    let inside = format!("{}/orders", place.log());
    let below = format!("{inside}/deep");
    let saved = place.dir.path().join("saved").display().to_string();
    run(&["backup", &place.log(), &saved]).ok();
    let before = names(Path::new(&place.log()));
    let commands: [&[&str]; 5] = [
        &["append", &inside],
        &["append", &inside, "--create"],
        &["append", &below],
        &["restore", &saved, &inside],
        &["follow", &inside, "127.0.0.1:9"],
    ];
    for command in commands {
        let ran = run_with(command, b"x\n").fails(2);
        let name = if command.contains(&below.as_str()) { "deep" } else { "orders" };
        for words in ["another log's directory", "HOST:PORT/NAME", &format!("127.0.0.1:7411/{name}")] {
            assert!(ran.err.contains(words), "{command:?}: {words}: {}", ran.err);
        }
    }
    for command in ["info", "read", "verify"] {
        let ran = run(&[command, &inside]).fails(4);
        assert!(ran.err.contains("127.0.0.1:7411/orders"), "{}", ran.err);
        assert!(!ran.err.contains("chiplog append"), "{}", ran.err);
    }
    assert_eq!(names(Path::new(&place.log())), before);
    // The logs of a program's named logs are restored one by one.
    let many = place.dir.path().join("many").display().to_string();
    for name in ["system", "group-1", "group-2"] {
        run(&["restore", &saved, &format!("{many}/{name}")]).ok();
    }
    let ran = run(&["restore", &saved, &format!("{many}/other")]).fails(2);
    assert!(ran.err.contains("another log's directory"), "{}", ran.err);
    // Beside it, a path through it is none within it.
    run_with(&["append", &format!("{}/../other", place.log())], b"x\n").ok();
}
