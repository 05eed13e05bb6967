//! Three servers under load, each on a small disk of its own, which other data fills up.

use crate::harness::{
    Server, clients, fed, founded, founded_with, leader, leader_of, made, run, status, vote_in_groups, wait,
};
use crate::notary::{Load, Notary};
use crate::tmpfs::Tmpfs;
use chiplog::ErrorKind;
use std::fs::File;
use std::io::{ErrorKind as IoKind, Write};
use std::path::Path;
use std::time::Duration;

/// The size of each disk in bytes.
const DISK: u64 = 48 << 20;
/// Fast enough to need a new segment from time to time.
const LOAD: Load = Load { record_bytes_max: 6_000, pause: Duration::from_millis(3) };

/// Fills a disk to its last byte. The file is removed on drop.
struct Ballast(std::path::PathBuf);

impl Ballast {
    fn fill(disk: &Path) -> Self {
        let path = disk.join("ballast");
        let mut file = File::create(&path).unwrap();
        loop {
            match file.write(&[0xab; 1 << 16]) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), IoKind::StorageFull, "{error}");
                    break;
                }
            }
        }
        Self(path)
    }

    /// Makes the file shorter by this number of bytes.
    fn give_back(&self, bytes: u64) {
        let file = File::options().write(true).open(&self.0).unwrap();
        file.set_len(file.metadata().unwrap().len() - bytes).unwrap();
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

/// Disks for three servers. None if nothing can be mounted.
fn disks(dir: &Path) -> Option<Vec<Tmpfs>> {
    (1..=3).map(|n| Tmpfs::mount(&dir.join(format!("node{n}")), DISK)).collect()
}

/// Three servers on disks of their own, and the disks. None if nothing can be mounted.
fn three_disks(dir: &Path) -> Option<(Vec<Tmpfs>, Vec<Server>)> {
    let disks = disks(dir)?;
    Some((disks, founded((1..=3).map(|node| Server::new(node, dir)).collect())))
}

/// The last index of this server's log.
fn last(server: &Server) -> Option<u64> {
    status(&[server])["replicas"].as_array()?.iter().find(|r| r["node"] == server.node)?["last"].as_u64()
}

/// Waits until the server reports that its disk has no room.
fn says_so(server: &Server) {
    wait("the server says that its disk is full", || {
        server.said().contains("no space left for segment").then_some(())
    });
}

/// A full follower stores nothing more and reports why; the other two continue. With room again it catches up
/// by itself.
#[test]
fn follower_with_a_full_disk_delays_no_append() {
    let dir = tempfile::tempdir().unwrap();
    let Some((disks, servers)) = three_disks(dir.path()) else { return };
    let all: Vec<&Server> = servers.iter().collect();
    let notary = Notary::start(&all, LOAD);
    notary.goes_on("the start", 100);
    let leads = leader(&all);
    let full = servers.iter().find(|s| s.node != leads).unwrap();
    let ballast = Ballast::fill(&full.data);
    says_so(full);
    wait("it lags behind", || (last(full)? + 500 < notary.end()).then_some(()));
    let behind = last(full).unwrap();
    notary.goes_on("a follower's disk was full", 500);
    println!(
        "node {} stays at {behind} of {}; {:?} without an acknowledgement",
        full.node,
        notary.end(),
        notary.gap()
    );
    drop(ballast);
    wait("it catches up without a restart", || (last(full)? > notary.end().min(behind + 1000)).then_some(()));
    let refused = notary.refused();
    assert!(refused.is_empty() || leader(&all) != leads, "the leader had room: {refused:?}");
    notary.check(&all);
    drop(servers);
    drop(disks);
}

/// A full leader refuses with `Full`, stays intact, and transfers leadership to a server with room.
#[test]
fn leader_with_a_full_disk_refuses_and_steps_down() {
    let dir = tempfile::tempdir().unwrap();
    let Some((disks, servers)) = three_disks(dir.path()) else { return };
    let all: Vec<&Server> = servers.iter().collect();
    let notary = Notary::start(&all, LOAD);
    notary.goes_on("the start", 100);
    let full = servers.iter().find(|s| s.node == leader(&all)).unwrap();
    let ballast = Ballast::fill(&full.data);
    says_so(full);
    // A producer that gets `Full` retries at the next leader.
    wait("another server leads", || (leader(&all) != full.node).then_some(()));
    assert!(notary.refused().iter().all(|kind| *kind == ErrorKind::Full), "{:?}", notary.refused());
    let shown = status(&all);
    assert!(shown["replicas"].as_array().unwrap().iter().all(|r| r["poison"].is_null()), "{shown}");
    println!("{} records refused as full", notary.refused().len());
    notary.goes_on("another one led", 200);
    drop(ballast);
    notary.goes_on("the old leader had room again", 200);
    notary.check(&all);
    drop(servers);
    drop(disks);
}

/// Servers are killed while their disks are full, and restarted while they still are.
#[test]
fn server_opens_its_log_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let Some((disks, mut servers)) = three_disks(dir.path()) else { return };
    let notary = Notary::start(&servers.iter().collect::<Vec<_>>(), LOAD);
    for who in ["follower", "leader"] {
        notary.goes_on("all had room", 200);
        let leads = leader(&servers.iter().collect::<Vec<_>>());
        let at = servers.iter().position(|s| (s.node == leads) == (who == "leader")).unwrap();
        let ballast = Ballast::fill(&servers[at].data);
        servers[at].kill();
        notary.goes_on("a server with a full disk was killed", 200);
        servers[at].start(&[]);
        notary.goes_on("it was started with its disk full", 200);
        println!("{who}: {:?} without an acknowledgement", notary.gap());
        drop(ballast);
    }
    notary.check(&servers.iter().collect::<Vec<_>>());
    drop(servers);
    drop(disks);
}

/// The disk of a group was full and its appends were refused, and `status` said ok. The command promised to wait for nearly a minute.
#[test]
fn group_with_a_full_disk_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    let Some(disk) = Tmpfs::mount(&dir.path().join("disk"), DISK / 3) else { return };
    let directories = format!("group_directories=[{:?}]", disk.path().display().to_string());
    server.start(&["--init", "--set", "groups=1", "--set", &directories]);
    run(&["logs", "create", &server.client, "orders"]).ok();
    let orders = format!("{}/orders", server.client);
    let ballast = Ballast::fill(disk.path());
    // The command asks whether the log is full; a busy server can answer one command too late.
    wait("the command says how long it waits", || {
        let ran = fed(&["append", &orders], &("x".repeat(1000) + "\n").repeat(20_000));
        assert_eq!(ran.code, 5, "{}", ran.err);
        assert!(ran.err.contains("records are durable"), "{}", ran.err);
        let says = ran.err.contains("the log is full; waiting 5 s in all") && !ran.err.contains("until 2");
        says.then_some(())
    });
    let shown = run(&["status", &server.client, "--json"]);
    let (code, shown) = (shown.code, shown.json());
    assert_eq!((code, &shown["replicas"][0]["state"]), (1, &"ok".into()), "{shown}");
    let states: Vec<_> = shown["groups"].as_array().unwrap().iter().map(|group| &group["state"]).collect();
    assert_eq!(states, ["ok", "full"], "{shown}");
    assert!(shown["groups"][1]["why"].as_str().unwrap().contains("no space left"), "{shown}");
    let shown = run(&["status", &orders, "--json"]);
    assert_eq!((shown.code, &shown.json()["replicas"][0]["state"]), (1, &"full".into()), "{}", shown.out);
    assert_eq!(server.page("/readyz").0, 200, "reads and discards go on");
    drop(ballast);
    wait("there is room again", || (run(&["status", &server.client]).code == 0).then_some(()));
    fed(&["append", &orders], "one more\n").ok();
    drop(server);
    drop(disk);
}

/// The leadership of a group went back to the server whose turn it was every ten seconds or so, although its disk was full.
#[test]
fn group_is_not_led_by_a_server_with_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disks) = disks(dir.path()) else { return };
    let servers = (1..=3).map(|node| Server::new(node, dir.path())).collect();
    let servers = founded_with(servers, &["-v", "--set", "groups=1"]);
    vote_in_groups(&servers, 1);
    let all: Vec<&Server> = servers.iter().collect();
    made(&["logs", "create", &clients(&all), "orders"]);
    wait("it is node 2's turn", || (leader_of(&all, "orders") == 2).then_some(()));
    let ballast = Ballast::fill(&servers[1].data);
    let orders = format!("{}/orders", clients(&all));
    let records = ("x".repeat(1000) + "\n").repeat(3000);
    wait("another server leads", || {
        // Few batches: the old leader lacks little of what the next one accepts.
        let ran = fed(&["append", &orders, "--batch", "1000"], &records);
        assert!(matches!(ran.code, 0 | 5 | 6), "{}", ran.err);
        (leader_of(&all, "orders") != 2).then_some(())
    });
    wait("the leader passes over the server with the full disk", || {
        let passes = "a server with a slow or full disk does not lead a group";
        all.iter().any(|server| server.said().contains(passes)).then_some(())
    });
    fed(&["append", &orders], "goes on\n").ok();
    drop(ballast);
    drop(servers);
    drop(disks);
}

/// A learner whose disk was full got its vote in a group, as it lacked little: it stored nothing more.
#[test]
fn learner_with_a_full_disk_gets_no_vote_in_a_group() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers: Vec<Server> = (1..=3).map(|node| Server::new(node, dir.path())).collect();
    let groups = |node: u64| dir.path().join(format!("groups{node}"));
    let Some(disk) = Tmpfs::mount(&groups(3), DISK) else { return };
    for server in &mut servers {
        std::fs::create_dir_all(groups(server.node)).unwrap();
        let directories = format!("group_directories=[{:?}]", groups(server.node).display().to_string());
        server.start(&["--set", "groups=1", "--set", &directories]);
    }
    let client = servers[0].client.clone();
    run(&["member", "init", &client]).ok();
    made(&["member", "add", &servers[1].client, "--cluster", &client, "--promote"]);
    made(&["member", "add", &servers[2].client, "--cluster", &client]);
    made(&["logs", "create", &client, "orders"]);
    let all: Vec<&Server> = servers.iter().collect();
    let orders = format!("{}/orders", clients(&all));
    let lacks = || {
        let shown = run(&["status", &format!("{client}/_group-1"), "--json"]).json();
        let replicas = shown["replicas"].as_array()?;
        let last = |node: u64| replicas.iter().find(|r| r["node"] == node)?["last"].as_u64();
        last(1)?.max(last(2)?).checked_sub(last(3)?)
    };
    let records = ("x".repeat(10_000) + "\n").repeat(20); // one entry
    fed(&["append", &orders], &records).ok();
    wait("it has what the others have", || (lacks()? == 0).then_some(()));
    let ballast = Ballast::fill(disk.path());
    wait("it stores nothing more", || {
        fed(&["append", &orders], &records).ok();
        (servers[2].said().contains("no room for the leader's entries") && lacks()? > 0).then_some(())
    });

    made(&["member", "promote", "3", "--cluster", &client]);
    let voters = || run(&["status", &client, "--json"]).json()["groups"][1]["voters"].clone();
    wait("the group's leader says why it does not vote", || {
        let stuck = "node 3 answers, and has stored no more of the group for 30 s";
        let refused = "node 3 has no room for more of the group";
        let tells = |server: &&Server| server.said().contains(stuck) || server.said().contains(refused);
        all.iter().any(tells).then_some(())
    });
    assert_eq!(voters(), serde_json::json!([1, 2]));
    drop(ballast);
    wait("it votes", || (voters() == serde_json::json!([1, 2, 3])).then_some(()));
    drop(servers);
    drop(disk);
}

/// Every error spoke of "the log", also if its group had no room, and nothing said which group that was.
#[test]
fn group_without_room_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    server.start(&["--init", "--set", "groups=1"]);
    run(&["logs", "create", &server.client, "orders"]).ok();
    let orders = format!("{}/orders", server.client);
    run(&["options", &format!("{}/_group-1", server.client), "--set", "capacity_bytes=2MiB"]).ok();
    let ran = fed(&["append", &orders, "--batch", "10"], &("x".repeat(10_000) + "\n").repeat(300));
    assert!(ran.code == 5 && ran.err.contains("_group-1: the log is full"), "{} {}", ran.code, ran.err);
    let shown = run(&["status", &orders, "--json"]).json();
    let why = shown["replicas"][0]["why"].as_str().unwrap();
    assert!(why.contains("_group-1: the log is full"), "{shown}");
    let shown = run(&["status", &server.client, "--json"]).json();
    let why = shown["groups"][1]["why"].as_str().unwrap();
    for words in ["the log is full", "HOST:PORT/NAME", "GROUP 1", "HOST:PORT/_group-1"] {
        assert!(why.contains(words), "{words}: {shown}");
    }
}

/// No named log could be created any more, and `status` said ok.
#[test]
fn system_log_with_a_full_disk_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    let Some(disk) = Tmpfs::mount(&server.data, DISK) else { return };
    let groups = dir.path().join("groups");
    std::fs::create_dir(&groups).unwrap();
    let directories = format!("group_directories=[{:?}]", groups.display().to_string());
    let with = ["--set", "groups=1", "--set", &directories];
    server.start(&[&["--init"], &with[..]].concat());
    wait("the group is made", || {
        let shown = run(&["status", &server.client, "--json"]);
        (shown.code == 0 && shown.json()["groups"].as_array()?.len() == 2).then_some(())
    });
    assert_eq!(server.stop(), Some(0));
    // It has one file, and no room for another one.
    let system = server.data.join("named/system");
    for number in 2..=3 {
        std::fs::remove_file(system.join(format!("{number:020}.seg"))).unwrap();
    }
    let ballast = Ballast::fill(disk.path());
    server.start(&with);
    let names: Vec<String> = (0..60).map(|n| format!("{}-{n}", "x".repeat(180))).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let refused = (0..100).find_map(|_| {
        let created = run(&[&["logs", "create", &server.client], &names[..]].concat());
        if created.code != 0 {
            return Some(created);
        }
        let deleted = run(&[&["logs", "delete", &server.client], &names[..], &["--yes"]].concat());
        (deleted.code != 0).then_some(deleted)
    });
    let refused = refused.expect("the disk is full");
    assert_eq!(refused.code, 5, "{}", refused.err);
    assert!(refused.err.contains("the catalogue of the named logs has no room"), "{}", refused.err);
    let shown = run(&["status", &server.client, "--json"]);
    let (code, shown) = (shown.code, shown.json());
    assert_eq!((code, &shown["groups"][0]["state"]), (1, &"full".into()), "{shown}");
    assert_eq!(
        (&shown["groups"][0]["number"], &shown["groups"][1]["state"]),
        (&0.into(), &"ok".into()),
        "{shown}"
    );
    let why = shown["groups"][0]["why"].as_str().unwrap();
    assert!(why.contains("no space left") && why.ends_with("free space on its disk"), "{shown}");
    drop(ballast);
    wait("there is room again", || (run(&["status", &server.client]).code == 0).then_some(()));
    // The log finds out a moment later.
    wait("a log is created", || (run(&["logs", "create", &server.client, "orders"]).code == 0).then_some(()));
    drop(server);
    drop(disk);
}

/// The data disk of a group's leader was full, so its catalogue was behind: it led on, opened no new logs and replaced no member.
#[test]
fn group_is_not_led_by_a_server_whose_catalogue_is_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut servers: Vec<Server> = (1..=3).map(|node| Server::new(node, dir.path())).collect();
    let Some(disk) = Tmpfs::mount(&servers[1].data, DISK) else { return };
    let with = |node: u64| {
        let groups = dir.path().join(format!("groups{node}"));
        std::fs::create_dir_all(&groups).unwrap();
        format!("group_directories=[{:?}]", groups.display().to_string())
    };
    for server in &mut servers {
        server.start(&["--set", "groups=1", "--set", &with(server.node)]);
    }
    run(&["member", "init", &servers[0].client]).ok();
    for server in &servers[1..] {
        made(&["member", "add", &server.client, "--cluster", &servers[0].client, "--promote"]);
    }
    vote_in_groups(&servers, 1);
    assert_eq!(servers[1].stop(), Some(0));
    let system = servers[1].data.join("named/system");
    for number in 2..=3 {
        std::fs::remove_file(system.join(format!("{number:020}.seg"))).unwrap();
    }
    let ballast = Ballast::fill(disk.path());
    servers[1].start(&["--set", "groups=1", "--set", &with(2)]);
    let all: Vec<&Server> = servers.iter().collect();
    made(&["logs", "create", &clients(&all), "orders"]);
    wait("it is node 2's turn", || (leader_of(&all, "orders") == 2).then_some(()));
    let names: Vec<String> = (0..60).map(|n| format!("{}-{n}", "x".repeat(180))).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    wait("another server leads", || {
        run(&[&["logs", "create", &clients(&all)], &names[..]].concat());
        run(&[&["logs", "delete", &clients(&all)], &names[..], &["--yes"]].concat());
        (leader_of(&all, "orders") != 2).then_some(())
    });
    assert!(servers[1].said().contains("the replica of the system log here does not follow the others"));
    made(&["logs", "create", &clients(&all), "users"]);
    drop(ballast);
    drop(servers);
    drop(disk);
}

/// The server warned twice a second for ever, and `status` did not mention the group.
#[test]
fn group_without_room_is_missing_until_there_is_some() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::new(1, dir.path());
    let Some(disk) = Tmpfs::mount(&dir.path().join("disk"), DISK) else { return };
    let ballast = Ballast::fill(disk.path());
    ballast.give_back(256 << 10);
    let directories = format!("group_directories=[{:?}]", disk.path().display().to_string());
    server.start(&["--init", "--set", "groups=1", "--set", &directories]);
    let (code, shown) = wait("the group is missing", || {
        let ran = run(&["status", &server.client, "--json"]);
        let shown = ran.json();
        (shown["groups"][1]["state"] == "missing").then_some((ran.code, shown))
    });
    assert!(
        code == 5 && shown["groups"][1]["why"].as_str().unwrap().contains("configured with 1"),
        "{shown}"
    );
    says_so(&server);
    std::thread::sleep(Duration::from_secs(4));
    let said = server.said();
    let count = |what: &str| said.lines().filter(|line| line.contains(what)).count();
    assert_eq!(count("no segment could be prepared"), 1, "{said}");
    assert_eq!(count("do not follow the cluster yet"), 1, "{said}");
    drop(ballast);
    wait("the group is made", || (run(&["status", &server.client]).code == 0).then_some(()));
    run(&["logs", "create", &server.client, "orders"]).ok();
    drop(server);
    drop(disk);
}

/// A discard made files of 64 MiB, whatever the log's own size, and needed room for one.
#[test]
fn discard_needs_no_larger_file_than_the_log_has() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Tmpfs::mount(&dir.path().join("disk"), DISK / 3) else { return };
    let log = disk.path().join("log").display().to_string();
    let lines = ("x".repeat(1000) + "\n").repeat(4000);
    fed(&["append", &log, "--segment-bytes", "1MiB"], &lines).ok();
    let ran = run(&["discard", &log, "1001"]).ok();
    assert!(!ran.err.contains("no segment could be prepared"), "{}", ran.err);
    let ballast = Ballast::fill(disk.path());
    ballast.give_back(256 << 10);
    let ran = run(&["discard", &log, "2001", "--segment-bytes", "64KiB"]).ok();
    assert!(!ran.err.contains("no segment could be prepared"), "{}", ran.err);
    assert_eq!(run(&["discard", "127.0.0.1:1", "5", "--segment-bytes", "1MiB"]).code, 2);
    drop(ballast);
    drop(disk);
}

/// The first segment needs 64 MiB. The error did not say what to do.
#[test]
fn error_of_a_disk_without_room_for_a_segment_names_the_option() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::new(1, dir.path());
    let Some(disk) = Tmpfs::mount(&server.data, DISK) else { return };
    let output = server.command().args(["--init", "--set", "log.segment_bytes=64MiB"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("--set log.segment_bytes=") && !said.contains("chiplog discard"), "{said}");
    drop(disk);
}
