//! New copies that begin with sealed segments over HTTP, or with a backup: servers feed them the rest alone.

use crate::follow::Copy;
use crate::harness::{Server, clients, fed, made, one, run, three, wait};
use crate::slices::value;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

fn lines(first: u64, last: u64) -> String {
    (first..=last).map(|n| format!("record {n} {}\n", "x".repeat(900 + n as usize % 50))).collect()
}

/// The bytes that servers fed to copies. 4,000 records are almost 4 MB, most of it in segments of 1 MiB that are sealed.
fn fed_to_copies(servers: &[Server]) -> u64 {
    let fed = |server: &Server| value(&server.page("/metrics").1, "chiplog_copies_bytes_total ").unwrap();
    servers.iter().map(fed).sum()
}

#[test]
fn new_copy_fetches_segments_and_is_fed_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path());
    let list = clients(&servers.iter().collect::<Vec<_>>());
    let path = dir.path().join("copy");
    let shown = path.to_str().unwrap();
    // Nothing is sealed yet: all of it is fed.
    fed(&["append", &list], &lines(1, 10)).ok();
    let mut young = Copy::start(&dir.path().join("young"), &[&list, "--segments"]);
    young.has(10);
    assert_eq!(young.events("fetched"), 0);
    young.kill();
    fed(&["append", &list], &lines(11, 4000)).ok();
    // One of its servers is away. The next one has all of it by then.
    let has_all = |server: &Server| value(&server.page("/metrics").1, "chiplog_last_index ").unwrap() >= 4000;
    let begun = Instant::now();
    while !servers[1..].iter().all(has_all) {
        assert!(begun.elapsed() < Duration::from_secs(60), "they do not get all records");
        thread::sleep(Duration::from_millis(20));
    }
    servers[0].kill();
    let before = fed_to_copies(&servers[1..]);
    let mut copy = Copy::start(&path, &[&list, "--segments"]);
    let fetched = copy.event("fetched");
    assert!(fetched["bytes"].as_u64().unwrap() >= 2 << 20, "{fetched}");
    assert_eq!(fetched["server"], servers[1].client.as_str());
    let opened = copy.event("opened");
    assert!(opened["first"] == 1 && opened["last"].as_u64().unwrap() > 1500, "{opened}");
    copy.has(4000);
    let sent = fed_to_copies(&servers[1..]) - before;
    assert!(sent < 2_000_000, "{sent} bytes were fed");
    assert!(run(&["read", shown]).ok().out == lines(1, 4000));
    run(&["verify", shown]).ok();
    // It goes on as any copy, and nothing is fetched again.
    copy.kill();
    let served = ["--segments", "--listen", "127.0.0.1:0"];
    let copy = Copy::start(&path, &[&[list.as_str()], &served[..]].concat());
    fed(&["append", &list], &lines(4001, 4010)).ok();
    copy.has(4010);
    assert_eq!(copy.events("fetched"), 0);
    // A copy serves its segments as well.
    let listen = copy.event("opened")["listen"].as_str().unwrap().to_owned();
    let second = Copy::start(&dir.path().join("second"), &[&listen, "--segments"]);
    assert_eq!(second.event("fetched")["server"], listen.as_str());
    second.has(4010);
    assert!(run(&["read", dir.path().join("second").to_str().unwrap()]).ok().out == lines(1, 4010));
}

#[test]
fn copy_that_was_not_fetched_whole_needs_the_same_option() {
    let dir = tempfile::tempdir().unwrap();
    let server = one(dir.path());
    fed(&["append", &server.client], &lines(1, 4000)).ok();
    let path = dir.path().join("copy");
    let begun = || {
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("chiplog.copy.tmp"), "this copy is not finished\n").unwrap();
        fs::write(path.join(format!("{:020}.tmp", 1)), "half of a file").unwrap();
    };
    let shown = path.to_str().unwrap();
    begun();
    let refused = run(&["follow", shown, &server.client]);
    assert!(refused.code == 2 && refused.err.contains("--segments"), "{} {}", refused.code, refused.err);
    let mut copy = Copy::start(&path, &[&server.client, "--segments"]);
    copy.event("fetched");
    copy.has(4000);
    copy.kill();
    // Begun again, by the feed alone.
    for file in fs::read_dir(&path).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    begun();
    let mut copy = Copy::start(&path, &[&server.client, "--start-over"]);
    copy.has(4000);
    assert_eq!(copy.events("fetched"), 0);
    assert!(!path.join("chiplog.copy.tmp").exists());
    copy.kill();

    // A log that was made beside what an interrupted copy has left stays.
    let own = dir.path().join("own").to_str().unwrap().to_owned();
    fed(&["append", &own], "mine\n").ok();
    fs::write(dir.path().join("own").join("chiplog.copy.tmp"), "this copy is not finished\n").unwrap();
    for option in ["--segments", "--start-over"] {
        let refused = run(&["follow", &own, &server.client, option]);
        assert!(refused.code == 2 && refused.err.contains("a log of its own"), "{}", refused.err);
    }
    assert_eq!(run(&["read", &own]).ok().out, "mine\n");
    // A server without sealed segments feeds the copy, and nothing is left of the interrupted one.
    let elsewhere = tempfile::tempdir().unwrap();
    let young = one(elsewhere.path());
    fs::remove_dir_all(&path).unwrap();
    begun();
    let mut copy = Copy::start(&path, &[&young.client, "--segments"]);
    fed(&["append", &young.client], &lines(1, 3)).ok();
    copy.has(3);
    assert!(!path.join("chiplog.copy.tmp").exists());
    copy.kill();

    let named = format!("{}/orders", server.client);
    for args in [
        &[&*named, "--segments"][..],
        &[&server.client, "--segments", "--from", "newest"],
        &[&server.client, "--segments", "--object-store", "servers"],
    ] {
        let refused = run(&[&["follow", "other"], args].concat());
        assert_eq!(refused.code, 2, "{args:?}: {}", refused.err);
    }
    // Where there is a backup, no copy is made.
    let backup = dir.path().join("backup").to_str().unwrap().to_owned();
    run(&["backup", &server.client, &backup, "--segment-bytes", "1MiB"]).ok();
    let refused = run(&["restore", &backup, "--check", "--as-copy"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
}

/// A backup of sealed segments, and one of a named log, each become a copy that servers feed the rest.
#[test]
fn new_copy_begins_with_a_backup() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = [Server::new(1, dir.path())];
    server[0].start(&["--init", "--set", "groups=1"]);
    let client = &server[0].client;
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    run(&["logs", "create", client, "orders"]).ok();
    let orders = format!("{client}/orders");
    for log in [client, &orders] {
        fed(&["append", log], &lines(1, 4000)).ok();
    }
    let url = format!("http://{client}");
    let id = run(&["info", client, "--json"]).ok().json()["log_id"].as_str().unwrap().to_owned();
    run(&["tier", "fetch", &url, &place("segments"), "--log-id", &id, "--only-log"]).ok();
    run(&["backup", &orders, &place("named"), "--segment-bytes", "1MiB"]).ok();
    let before = fed_to_copies(&server);
    for (log, backup) in [(client, "segments"), (&orders, "named")] {
        let copied = place(&format!("{backup}-copy"));
        let restored = run(&["restore", &place(backup), &copied, "--as-copy", "--json"]).ok().json();
        assert!(restored["last"].as_u64().unwrap() > 1500, "{restored}");
        fed(&["append", log], &lines(4001, 4010)).ok();
        let mut copy = Copy::start(Path::new(&copied), &[log]);
        copy.has(4010);
        assert!(run(&["read", &copied]).ok().out == lines(1, 4010));
        copy.kill();
    }
    let sent = fed_to_copies(&server) - before;
    assert!(sent < 2_500_000, "{sent} bytes were fed");
    // A copy of a named log is a log on its own: others begin with its segments.
    let serving = Copy::start(Path::new(&place("named-copy")), &[&orders, "--listen", "127.0.0.1:0"]);
    let listen = serving.event("opened")["listen"].as_str().unwrap().to_owned();
    let second = Copy::start(Path::new(&place("second")), &[&listen, "--segments"]);
    second.event("fetched");
    second.has(4010);
    assert!(run(&["read", &place("second")]).ok().out == lines(1, 4010));
    // The servers of another log have nothing for it.
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    let other = one(&other);
    let wrong = run(&["follow", &place("segments-copy"), &other.client]);
    assert!(wrong.code == 2 && wrong.err.contains("--start-over"), "{} {}", wrong.code, wrong.err);
}

/// A new server's files are segments that were fetched from another one: the leader sends it the rest alone, and it votes.
#[test]
fn copy_becomes_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers = three(dir.path());
    let list = clients(&servers.iter().collect::<Vec<_>>());
    fed(&["append", &list], &lines(1, 4000)).ok();
    let mut new = Server::new(4, dir.path());
    let data = new.data.to_str().unwrap().to_owned();
    let mut copy = Copy::start(&new.data, &[&list, "--segments"]);
    copy.event("fetched");
    copy.has(4000);
    copy.kill();
    fed(&["append", &list], &lines(4001, 4100)).ok();
    // It waits, and is no server of a new cluster.
    new.start(&[]);
    let refused = run(&["member", "init", &new.client]);
    assert!(refused.code == 2 && refused.err.contains("follower's copy"), "{} {}", refused.code, refused.err);
    new.kill();
    // The same command that adds an empty one; also after the server has ended between the two steps.
    new.start(&[]);
    made(&["member", "add", &new.client, "--cluster", &servers[0].client]);
    let has = |new: &Server, last: u64| {
        wait("it has all", || {
            (value(&new.page("/metrics").1, "chiplog_last_index ").unwrap() >= last).then_some(())
        });
    };
    has(&new, 4100);
    let written = value(&new.page("/metrics").1, "chiplog_written_bytes_total ").unwrap();
    assert!((90_000..1_000_000).contains(&written), "{written} bytes were written");
    new.kill();
    new.start(&[]);
    made(&["member", "add", &new.client, "--cluster", &servers[0].client, "--promote"]);
    servers[1].kill();
    fed(&["append", &servers[0].client], &lines(4101, 4110)).ok();
    has(&new, 4110);
    new.stop();
    assert!(run(&["read", &data]).ok().out == lines(1, 4110));
    run(&["verify", &data]).ok();
    new.start(&[]);

    // A copy that begins later than the log, and one of another log.
    for (node, from) in [(5, Some("newest")), (6, None)] {
        let mut other = Server::new(node, dir.path());
        let elsewhere = tempfile::tempdir().unwrap();
        let mut source = Server::new(1, elsewhere.path());
        let whose = if from.is_none() {
            source.start(&["--init"]);
            fed(&["append", &source.client], &lines(1, 10)).ok();
            source.client.clone()
        } else {
            list.clone()
        };
        let from: Vec<&str> = from.map(|from| vec!["--from", from]).unwrap_or_default();
        let mut copy = Copy::start(&other.data, &[&[whose.as_str()], &from[..]].concat());
        copy.event("opened");
        copy.kill();
        other.start(&[]);
        let refused = run(&["member", "add", &other.client, "--cluster", &servers[0].client]);
        let why = if node == 5 { "begin with an empty directory" } else { "not of log" };
        assert!(refused.code == 2 && refused.err.contains(why), "{} {}", refused.code, refused.err);
    }
}
