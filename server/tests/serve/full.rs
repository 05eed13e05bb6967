//! Three servers, each on a small disk of its own that something else fills up, under load.

use crate::harness::{Server, founded, leader, status, wait};
use crate::notary::{Load, Notary};
use crate::tmpfs::Tmpfs;
use chiplog::ErrorKind;
use std::fs::File;
use std::io::{ErrorKind as IoKind, Write};
use std::path::Path;
use std::time::Duration;

/// Bytes of each disk.
const DISK: u64 = 48 << 20;
/// Fast enough to need a new segment now and then.
const LOAD: Load = Load { record_bytes_max: 6_000, pause: Duration::from_millis(3) };

/// Fills a disk to its last byte, with a file that goes away when this is dropped.
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
}

impl Drop for Ballast {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

/// Three servers on disks of their own, and the disks; None where nothing can be mounted.
fn three_disks(dir: &Path) -> Option<(Vec<Tmpfs>, Vec<Server>)> {
    let disks = (1..=3).map(|n| Tmpfs::mount(&dir.join(format!("node{n}")), DISK)).collect::<Option<_>>()?;
    Some((disks, founded((1..=3).map(|node| Server::new(node, dir)).collect())))
}

/// How far the log of this server goes.
fn last(server: &Server) -> Option<u64> {
    status(&[server])["replicas"].as_array()?.iter().find(|r| r["node"] == server.node)?["last"].as_u64()
}

/// Waits until the server says, by name, that its disk has no room.
fn says_so(server: &Server) {
    wait("the server says that its disk is full", || {
        server.said().contains("no space left for segment").then_some(())
    });
}

/// A full follower takes nothing more and says why; the other two go on. With room again it catches up by itself.
#[test]
fn a_follower_with_a_full_disk_holds_nobody_up() {
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

/// A full leader refuses by name, stays whole, and hands the lead to one with room.
#[test]
fn leader_with_a_full_disk_refuses_by_name_and_hands_over() {
    let dir = tempfile::tempdir().unwrap();
    let Some((disks, servers)) = three_disks(dir.path()) else { return };
    let all: Vec<&Server> = servers.iter().collect();
    let notary = Notary::start(&all, LOAD);
    notary.goes_on("the start", 100);
    let full = servers.iter().find(|s| s.node == leader(&all)).unwrap();
    let ballast = Ballast::fill(&full.data);
    says_so(full);
    // A producer that is told Full tries again: at the next leader.
    wait("another one leads", || (leader(&all) != full.node).then_some(()));
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

/// Servers that are killed while their disks are full, and started again while they still are.
#[test]
fn a_server_opens_its_log_on_a_full_disk() {
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

/// The first segment takes 64 MiB: what to do about it was left to guess.
#[test]
fn disk_without_room_for_the_first_segment_is_told_with_the_option() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::new(1, dir.path());
    let Some(disk) = Tmpfs::mount(&server.data, DISK) else { return };
    let output = server.command().args(["--init", "--set", "log.segment_bytes=64MiB"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("--set log.segment_bytes=") && !said.contains("chiplog discard"), "{said}");
    drop(disk);
}
