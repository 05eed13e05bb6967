//! Backups of real servers without an object store, made of their sealed segments over HTTP by `chiplog tier fetch` and `curl`.

use crate::harness::{Server, clients, fed, leader, one, run, three, wait};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

fn lines(first: u64, last: u64) -> String {
    (first..=last).map(|n| format!("record {n} {}\n", "x".repeat(900 + n as usize % 50))).collect()
}

/// A file of this name somewhere below a directory.
fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    let paths: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    let here = paths.iter().find(|path| path.file_name().is_some_and(|there| there == name)).cloned();
    here.or_else(|| paths.iter().filter(|path| path.is_dir()).find_map(|path| find(path, name)))
}

/// Fetches the sealed segments of a server. Returns the backup's first and last record.
fn fetch(server: &Server, dest: &str) -> (u64, u64) {
    let fetched = run(&["tier", "fetch", &format!("http://{}", server.client), dest, "--json"]).ok().json();
    assert_eq!(fetched["ends_early"], false, "{fetched}");
    assert!(fetched["notes"][0].as_str().unwrap().contains("sealed segments"), "{fetched}");
    (fetched["first"].as_u64().unwrap(), fetched["last"].as_u64().unwrap())
}

#[test]
fn backup_is_made_of_sealed_segments_while_appends_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let server = one(dir.path());
    let url = format!("http://{}", server.client);
    fed(&["append", &server.client], &lines(1, 10)).ok();
    let bare = run(&["tier", "fetch", &server.client, &place("none")]);
    assert!(bare.code == 2 && bare.err.contains(&format!("write {url}")), "{} {}", bare.code, bare.err);
    assert!(
        run(&["tier", "fetch", "localhost:7411", &place("none")]).err.contains("write http://localhost:7411")
    );
    let early = run(&["tier", "fetch", &url, &place("none")]);
    assert!(early.code == 4 && early.err.contains("no sealed segment"), "{} {}", early.code, early.err);
    assert!(early.err.contains("chiplog backup") && !Path::new(&place("none")).exists(), "{}", early.err);

    fed(&["append", &server.client], &lines(11, 4000)).ok();
    let ends = AtomicBool::new(false);
    let (first, last) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut next = 4001;
            while !ends.load(Ordering::SeqCst) {
                fed(&["append", &server.client], &lines(next, next + 99)).ok();
                next += 100;
            }
        });
        let fetched = fetch(&server, &place("backup"));
        ends.store(true, Ordering::SeqCst);
        fetched
    });
    assert!(first == 1 && last > 2000, "{last}");
    // It is a backup, and a directory that is read like a log.
    run(&["restore", &place("backup"), "--check"]).ok();
    run(&["verify", &place("backup")]).ok();
    let info = run(&["info", &place("backup"), "--json"]).ok().json();
    assert_eq!((&info["first"], &info["last"]), (&1.into(), &last.into()), "{info}");
    assert!(run(&["read", &place("backup")]).ok().out == lines(1, last));
    run(&["restore", &place("backup"), &place("again")]).ok();
    assert!(run(&["read", &place("again")]).ok().out == lines(1, last));
    let full = run(&["tier", "fetch", &url, &place("backup")]);
    assert!(full.code == 2 && full.err.contains("holds a backup already"), "{} {}", full.code, full.err);

    // The bytes are those of the server's file.
    let curl = |args: &[&str]| {
        let output = Command::new("curl").args(["--silent", "--show-error", "--fail"]).args(args).output();
        output.ok().map(|output| {
            assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
            output.stdout
        })
    };
    let all = format!("{url}/v1/segments");
    if let Some(list) = curl(&[&all]) {
        let list: Value = serde_json::from_slice(&list).unwrap();
        let name = list["logs"][0]["segments"][1]["name"].as_str().unwrap();
        let there = fs::read(find(&server.data, name.split_once('/').unwrap().1).unwrap()).unwrap();
        let path = format!("{all}/{name}");
        assert!(curl(&["--range", "3000-9999", &path]).unwrap() == there[3000..10_000]);
        let file = place("part");
        fs::write(&file, &there[..200_000]).unwrap();
        curl(&["--continue-at", "-", "--output", &file, &path]);
        let whole = fs::read(&file).unwrap();
        assert!(whole.len() == there.len() && whole[..900_000] == there[..900_000]);
    } else {
        eprintln!("SKIPPED: there is no curl here");
    }

    // A damaged byte is an error of the backup, and the file is told.
    let name = format!("{:020}.seg", 2);
    let file = fs::File::options().read(true).write(true).open(find(&server.data, &name).unwrap()).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 100_000).unwrap();
    file.write_all_at(&[byte[0] ^ 4], 100_000).unwrap();
    let bad = run(&["tier", "fetch", &url, &place("bad")]);
    assert!(bad.code == 3 && bad.err.contains(&name), "{} {}", bad.code, bad.err);
    assert!(!Path::new(&place("bad")).exists());
}

/// Each replica has segments of its own, with its own blocks between the entries, and each of them makes the same log.
#[test]
fn segments_of_every_replica_make_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path());
    let list = clients(&servers.iter().collect::<Vec<_>>());
    fed(&["append", &list], &lines(1, 3000)).ok();
    let node = leader(&servers.iter().collect::<Vec<_>>());
    let place = servers.iter().position(|server| server.node == node).unwrap();
    servers[place].kill();
    fed(&["append", &list], &lines(3001, 6000)).ok();
    servers[place].start(&[]);
    for server in &servers {
        wait("it has the records", || {
            let told = run(&["info", &server.client, "--stale", "--json"]).json();
            (told["last"].as_u64()? >= 6000).then_some(())
        });
        let backup = dir.path().join(format!("backup{}", server.node)).to_str().unwrap().to_owned();
        // It learns a moment later what is committed.
        let (first, last) = wait("it has most of them in sealed segments", || {
            if Path::new(&backup).exists() {
                fs::remove_dir_all(&backup).unwrap();
            }
            let (first, last) = fetch(server, &backup);
            (last >= 4500).then_some((first, last))
        });
        assert_eq!(first, 1);
        run(&["restore", &backup, "--check"]).ok();
        run(&["verify", &backup]).ok();
        assert!(run(&["read", &backup]).ok().out == lines(1, last), "node {}", server.node);
        let again = dir.path().join(format!("again{}", server.node)).to_str().unwrap().to_owned();
        run(&["restore", &backup, &again]).ok();
        assert!(run(&["read", &again]).ok().out == lines(1, last), "node {}", server.node);
    }
}
