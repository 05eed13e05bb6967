//! Replicas of shared groups in one process, over the in-memory network, and copies of a group that follow it.
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::follower::{FollowFrom, FollowMessage};
use chiplog::transport::{Envelope, Inbox, MemoryNetwork, Transport};
use chiplog::{
    ErrorKind, FollowerLog, Index, Log, LogId, LogInfo, LogNumber, Logs, LogsOptions, NodeId, Options, Start,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);

/// Small segments, with room for a table of logs.
fn small() -> Options {
    Options::with_segment_bytes(256 << 10).sessions_max(16)
}

/// Three servers with the catalogue and one group.
struct Trio {
    /// One for the catalogue's group, one for the other.
    networks: [MemoryNetwork; 2],
    dirs: Vec<TempDir>,
    logs: Vec<Option<Logs>>,
}

fn options(node: u64, networks: &[MemoryNetwork; 2], bootstrap: impl Fn(usize) -> Bootstrap) -> LogsOptions {
    options_over(node, networks, bootstrap, |transport| transport)
}

fn options_over(
    node: u64,
    networks: &[MemoryNetwork; 2],
    bootstrap: impl Fn(usize) -> Bootstrap,
    over: impl Fn(Arc<dyn Transport>) -> Arc<dyn Transport>,
) -> LogsOptions {
    let transports = [over(networks[0].transport()), over(networks[1].transport())];
    let bootstraps = [bootstrap(0), bootstrap(1)];
    LogsOptions::default().groups(1).options(small()).cluster(move |group| {
        let n = group as usize;
        let mut cluster = ClusterOptions::new(NodeId(node), bootstraps[n], transports[n].clone());
        cluster.heartbeat = Duration::from_millis(30);
        cluster.election_timeout = Duration::from_secs(1); // longer than a sync takes on a busy machine
        cluster.slow_disk_sync = None;
        cluster
    })
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// The two groups of a server.
fn both(logs: &Logs) -> [Log; 2] {
    [logs.system().clone(), logs.groups()[&1].clone()]
}

fn records(log: &Log) -> Vec<(u64, Vec<u8>)> {
    let mut reader = log.reader(Start::First).unwrap();
    let mut records = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        records.push((record.index.get(), record.data.to_vec()));
    }
    records
}

fn numbered(log: &str, n: u64) -> Vec<u8> {
    let mut record = format!("{log} {n} ").into_bytes();
    record.resize(60 + (n % 7 * 150) as usize, b'x');
    record
}

/// A log as it is listed, and its records with their indexes.
type Contents = (LogInfo, Vec<(u64, Vec<u8>)>);

/// All logs of a server, with their records.
fn contents(logs: &Logs) -> BTreeMap<String, Contents> {
    let infos = logs.list().unwrap().into_iter();
    infos
        .map(|info| {
            let log = logs.groups()[&1].named(info.number).unwrap();
            (info.name.clone(), (info, records(&log)))
        })
        .collect()
}

impl Trio {
    fn new() -> Self {
        let networks = [MemoryNetwork::new(), MemoryNetwork::new()];
        let dirs: Vec<TempDir> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let first = Logs::open(dirs[0].path(), options(1, &networks, |_| Bootstrap::Init)).unwrap();
        let ids: [LogId; 2] = both(&first).map(|log| log.log_id());
        let mut logs = vec![Some(first)];
        for node in 2..=3 {
            let joins = options(node, &networks, |n| Bootstrap::Join(ids[n]));
            let joined = Logs::open(dirs[node as usize - 1].path(), joins).unwrap();
            for (leader, group) in both(logs[0].as_ref().unwrap()).into_iter().zip(both(&joined)) {
                let (node, directory) = (NodeId(node), group.directory_id());
                let add = Change::AddLearner { node, directory, address: String::new() };
                leader.change_members(&[add], PATIENCE).unwrap();
                leader.change_members(&[Change::Promote(node)], PATIENCE).unwrap();
            }
            logs.push(Some(joined));
        }
        Self { networks, dirs, logs }
    }

    fn at(&self, node: u64) -> &Logs {
        self.logs[node as usize - 1].as_ref().unwrap()
    }

    /// Makes a node lead both groups.
    fn lead(&self, node: u64) -> &Logs {
        for n in 0..2 {
            until("the node leads", || {
                let me = both(self.at(node))[n].clone();
                if me.role() == Role::Leader && me.barrier(Duration::from_secs(2)).is_ok() {
                    return true;
                }
                let running = self.logs.iter().flatten().map(|logs| both(logs)[n].clone());
                if let Some(leader) = running.into_iter().find(|log| log.role() == Role::Leader) {
                    let _ = leader.transfer_leader(NodeId(node), Duration::from_secs(2));
                }
                false
            });
        }
        self.at(node)
    }

    fn stop(&mut self, node: u64) {
        let _ = self.logs[node as usize - 1].take().unwrap().close();
    }

    fn start(&mut self, node: u64) {
        let dir = self.dirs[node as usize - 1].path();
        // Opening waits for the catalogue, which the leader has to tell about first: not for ever.
        until("the server opens", || {
            let options = options(node, &self.networks, |_| Bootstrap::Existing);
            match Logs::open(dir, options) {
                Ok(logs) => self.logs[node as usize - 1] = Some(logs),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
            self.logs[node as usize - 1].is_some()
        });
    }

    fn disconnect(&self, node: u64) {
        self.networks.iter().for_each(|network| network.disconnect(NodeId(node)));
    }

    fn connect(&self, node: u64) {
        self.networks.iter().for_each(|network| network.connect(NodeId(node)));
    }

    /// All running replicas have the same logs, once they have caught up.
    fn assert_same(&self) {
        for logs in self.logs.iter().flatten() {
            for group in both(logs) {
                until("a barrier passes", || group.barrier(Duration::from_secs(2)).is_ok());
            }
        }
        let mut all = self.logs.iter().flatten().map(contents);
        let first = all.next().unwrap();
        for other in all {
            for (name, (info, records)) in &first {
                let (info_there, records_there) = &other[name];
                assert_eq!(info, info_there);
                assert!(records == records_there, "log {name} differs");
            }
            assert_eq!(first.len(), other.len());
        }
    }
}

#[test]
fn replicas_have_the_same_logs_through_failures_and_restarts() {
    let mut trio = Trio::new();
    let mut next = BTreeMap::new();
    let mut round = |logs: &Logs, n: u64| {
        let name = format!("made-{n}");
        logs.create(&name).unwrap();
        next.insert(name, 1);
        let mut tickets = Vec::new();
        for i in 0..200 {
            for (name, next) in &mut next {
                if i % next_step(name) == 0 {
                    let log = logs.get(name).unwrap();
                    tickets.push((log.submit(&numbered(name, *next)[..]).unwrap(), *next));
                    *next += 1;
                }
            }
        }
        for (ticket, index) in tickets {
            assert_eq!(ticket.wait().unwrap().get(), index);
        }
        if n == 2 {
            logs.seal("made-1").unwrap();
            next.remove("made-1");
            logs.delete("made-0").unwrap();
            next.remove("made-0");
        }
        let name = format!("made-{n}");
        logs.get(&name).unwrap().discard(Index(5)).unwrap();
    };
    round(trio.lead(1), 0);
    trio.assert_same();
    round(trio.lead(1), 1);
    trio.stop(1);
    round(trio.lead(2), 2);
    trio.assert_same();
    trio.start(1);
    round(trio.lead(3), 3);
    trio.assert_same();
    for node in 1..=3 {
        trio.stop(node);
    }
    for node in 1..=3 {
        trio.start(node);
    }
    round(trio.lead(2), 4);
    trio.assert_same();
    let logs = contents(trio.at(1));
    assert_eq!(logs.keys().collect::<Vec<_>>(), ["made-1", "made-2", "made-3", "made-4"]);
    for (name, (info, records)) in &logs {
        assert_eq!(info.sealed, name == "made-1");
        for (index, data) in records {
            assert_eq!(*data, numbered(name, *index), "record {index} of {name}");
        }
        assert_eq!(records.len() as u64, info.last_index.get() + 1 - info.first_index.get());
    }
    assert_eq!(trio.at(1).get("made-1").unwrap().append(b"x").unwrap_err().kind(), {
        match trio.at(1).groups()[&1].role() {
            Role::Leader => ErrorKind::Sealed,
            _ => ErrorKind::NotLeader,
        }
    });
}

/// Some logs are appended to more often than others.
fn next_step(name: &str) -> u64 {
    1 + u64::from(name.as_bytes()[name.len() - 1] % 3)
}

#[test]
fn what_an_isolated_leader_did_to_its_logs_is_undone() {
    let trio = Trio::new();
    let first = trio.lead(1);
    for name in ["a", "b", "c"] {
        first.create(name).unwrap().append(&numbered(name, 1)[..]).unwrap();
    }
    trio.assert_same();
    trio.disconnect(1);
    let lost: Vec<_> = (0..50)
        .flat_map(|n| ["a", "b"].map(|name| first.get(name).unwrap().submit(&numbered("lost", n)[..])))
        .collect();
    let sealed = first.seal("c");
    assert!(sealed.is_err(), "an isolated leader commits nothing");
    until("another leads", || [2, 3].iter().any(|node| trio.at(*node).groups()[&1].role() == Role::Leader));
    let lead = if trio.at(2).groups()[&1].role() == Role::Leader { 2 } else { 3 };
    let second = trio.lead(lead);
    for name in ["a", "b", "c"] {
        let log = second.get(name).unwrap();
        for n in 2..=40 {
            assert_eq!(log.append(&numbered(name, n)[..]).unwrap().get(), n);
        }
    }
    second.create("d").unwrap().append(&numbered("d", 1)[..]).unwrap();
    second.delete("b").unwrap();
    for ticket in lost.into_iter().flatten() {
        assert!(ticket.wait().is_err());
    }
    trio.connect(1);
    trio.assert_same();
    let logs = contents(trio.at(1));
    assert_eq!(logs.keys().collect::<Vec<_>>(), ["a", "c", "d"]);
    assert!(!logs["c"].0.sealed);
    let a: Vec<_> = (1..=40).map(|n| (n, numbered("a", n))).collect();
    assert!(logs["a"].1 == a);
}

/// A log that was dropped while a replica was away stayed open there for ever.
#[test]
fn replica_that_was_away_jumps_over_what_all_logs_discarded() {
    let trio = Trio::new();
    let leader = trio.lead(1);
    for name in ["a", "b", "gone"] {
        leader.create(name).unwrap().append(&numbered(name, 1)[..]).unwrap();
    }
    trio.assert_same();
    let number = leader.list().unwrap().iter().find(|info| info.name == "gone").unwrap().number;
    let gone = trio.at(3).groups()[&1].named(number).unwrap();
    let waits = gone.reader(Start::Next).unwrap();
    trio.disconnect(3);
    let (a, b) = (leader.get("a").unwrap(), leader.get("b").unwrap());
    leader.delete("gone").unwrap();
    for n in 2..=1500 {
        drop(a.submit(&numbered("a", n)[..]).unwrap());
        drop(b.submit(&numbered("b", n)[..]).unwrap());
    }
    a.append(&numbered("a", 1501)[..]).unwrap();
    b.append(&numbered("b", 1501)[..]).unwrap();
    leader.create("late").unwrap().append(&numbered("late", 1)[..]).unwrap();
    a.discard(Index(1400)).unwrap();
    b.discard(Index(1450)).unwrap();
    until("segments are removed", || {
        a.append(&numbered("a", a.last_index().get() + 1)[..]).unwrap();
        leader.groups()[&1].status().segments <= 3
    });
    trio.connect(3);
    trio.assert_same();
    assert_eq!(waits.wait(Some(PATIENCE)).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(trio.at(3).groups()[&1].named(number).err().unwrap().kind(), ErrorKind::NotFound);
    let logs = contents(trio.at(3));
    assert_eq!(logs["b"].1.first().unwrap(), &(1450, numbered("b", 1450)));
    assert_eq!(logs["late"].1, [(1, numbered("late", 1))]);
    // It can lead with what it has.
    let third = trio.lead(3);
    assert_eq!(third.get("b").unwrap().append(b"x").unwrap(), Index(1502));
    trio.assert_same();
}

/// Offsets of the blocks of a kind in a segment file.
fn blocks_of(file: &[u8], kind: u8) -> Vec<usize> {
    let is_block = |at: &usize| &file[*at..at + 4] == b"CLB1" && file[at + 60] == kind;
    (4096..file.len() - 64).step_by(64).filter(is_block).collect()
}

#[test]
fn damaged_blocks_of_a_group_are_repaired_from_other_replicas() {
    let mut trio = Trio::new();
    let leader = trio.lead(1);
    for name in ["a", "b", "c"] {
        leader.create(name).unwrap();
    }
    for n in 1..=400 {
        let tickets = ["a", "b", "c"].map(|name| {
            let log = leader.get(name).unwrap();
            log.submit(&numbered(name, n)[..]).unwrap()
        });
        tickets.into_iter().for_each(|ticket| assert_eq!(ticket.wait().unwrap().get(), n));
    }
    trio.assert_same();
    let wanted = contents(trio.at(1));
    const MIXED: u8 = 8;
    const OPENING: u8 = 7;
    // In the header, the table, and the last batch of mixed blocks; in the log table of an opening.
    for (segment, kind, from_end) in
        [(1, MIXED, None), (1, MIXED, Some(0)), (1, MIXED, Some(30)), (2, OPENING, Some(5))]
    {
        trio.stop(3);
        let file = trio.dirs[2].path().join(format!("group-1/{segment:020}.seg"));
        let mut bytes = std::fs::read(&file).unwrap();
        let blocks = blocks_of(&bytes, kind);
        let at = blocks[blocks.len() / 2];
        let length = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap()) as usize;
        let damaged = match from_end {
            None => at + 21,
            Some(0) => at + 64 + 17,
            Some(before) => at + length - before,
        };
        bytes[damaged] ^= 0x10;
        std::fs::write(&file, &bytes).unwrap();
        trio.start(3);
        until("all records can be read", || {
            wanted.values().all(|(info, records)| {
                let Ok(log) = trio.at(3).groups()[&1].named(info.number) else { return false };
                records.iter().all(|(index, data)| match log.read(Index(*index)) {
                    Ok(record) => {
                        assert!(record.data == *data, "damaged bytes were returned");
                        true
                    }
                    Err(_) => false,
                })
            })
        });
        trio.assert_same();
        let repaired = std::fs::read(&file).unwrap();
        bytes[damaged] ^= 0x10;
        assert_eq!(blocks_of(&repaired, MIXED), blocks_of(&bytes, MIXED), "segment {segment}, kind {kind}");
    }
}

fn feed(source: &Log, copy: &FollowerLog) {
    let mut feed = source.follow(copy.resume_point().unwrap()).unwrap();
    while let Some(fed) = feed.next(5000).unwrap() {
        copy.apply(fed).unwrap();
    }
}

#[test]
fn copy_of_a_group_has_its_logs() {
    let (dir, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let logs = Logs::open(dir.path(), LogsOptions::default().groups(1).options(small())).unwrap();
    let group = &logs.groups()[&1];
    for name in ["a", "b", "c"] {
        logs.create(name).unwrap().append(&numbered(name, 1)[..]).unwrap();
    }
    let state = match group.follow(FollowFrom::First).unwrap().next(1).unwrap().unwrap() {
        FollowMessage::State(state) => state,
        other => panic!("the feed of a new copy begins with a state, not {other:?}"),
    };
    let copy = FollowerLog::create(at.path(), small(), &state).unwrap();
    let same = |copy: &FollowerLog| {
        feed(group, copy);
        for info in logs.list().unwrap() {
            let (here, there) = (copy.log().named(info.number).unwrap(), group.named(info.number).unwrap());
            assert_eq!(here.range(), there.range(), "{}", info.name);
            assert!(records(&here) == records(&there), "{}", info.name);
            assert!(here.append(b"x").is_err(), "a copy takes no appends");
        }
    };
    same(&copy);
    assert_eq!(copy.log().reader(Start::First).err().unwrap().kind(), ErrorKind::InvalidArgument);
    let (a, b) = (logs.get("a").unwrap(), logs.get("b").unwrap());
    for n in 2..1500 {
        drop(a.submit(&numbered("a", n)[..]).unwrap());
        drop(b.submit(&numbered("b", n)[..]).unwrap());
    }
    a.append(b"end").unwrap();
    a.discard(Index(100)).unwrap();
    logs.seal("c").unwrap();
    same(&copy);
    copy.close().unwrap();
    drop(copy);
    let copy = FollowerLog::open(at.path(), small()).unwrap();
    same(&copy);
    // It falls behind, and jumps.
    let gone = copy.log().named(LogNumber(3)).unwrap();
    logs.delete("c").unwrap();
    for n in 1500..3000 {
        drop(a.submit(&numbered("a", n)[..]).unwrap());
    }
    let end = a.append(b"end").unwrap();
    a.discard(end).unwrap();
    b.discard(b.last_index().next()).unwrap();
    until("segments are removed", || {
        a.append(b"more").unwrap();
        group.status().segments <= 2
    });
    same(&copy);
    assert_eq!(copy.log().named(LogNumber(3)).err().unwrap().kind(), ErrorKind::NotFound);
    assert_eq!(
        gone.reader(Start::Next).unwrap().wait(Some(PATIENCE)).unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

/// The leader of the system log and the leader of a group are different nodes: each does its half.
#[test]
fn logs_are_created_and_deleted_by_two_leaders_together() {
    let trio = Trio::new();
    trio.lead(1);
    let group = trio.at(1).groups()[&1].clone();
    until("node 2 leads the group", || {
        let _ = group.transfer_leader(NodeId(2), Duration::from_secs(2));
        trio.at(2).groups()[&1].role() == Role::Leader
    });
    let [first, second, third] = [1, 2, 3].map(|node| trio.at(node).clone());
    until("the system log is led by node 1", || first.system().role() == Role::Leader);
    assert_eq!(second.register("a").unwrap_err().kind(), ErrorKind::NotLeader);
    for name in ["a", "b", "c"] {
        first.register(name).unwrap();
    }
    assert_eq!(first.register("b").unwrap_err().kind(), ErrorKind::AlreadyExists);
    let waited = first.find("c", None, Duration::from_millis(50)).unwrap_err();
    assert_eq!(waited.kind(), ErrorKind::Timeout, "nobody has opened it in its group: {waited}");
    assert!(third.peek("c").is_none());
    second.find("b", None, PATIENCE).unwrap().append(b"x").unwrap();
    second.settle().unwrap();
    for logs in [&first, &second, &third] {
        for name in ["a", "b", "c"] {
            assert_eq!(logs.find(name, None, PATIENCE).unwrap().log_id(), first.info(name).unwrap().log_id);
            assert!(logs.peek(name).is_some(), "it is known once it was found");
        }
        assert_eq!(logs.find("d", None, PATIENCE).unwrap_err().kind(), ErrorKind::NotFound);
    }
    let other = first.unregister("b", Some(second.info("c").unwrap().log_id)).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::NotFound);
    let id = first.info("b").unwrap().log_id;
    first.unregister("b", None).unwrap();
    assert_eq!(first.find("b", None, PATIENCE).unwrap_err().kind(), ErrorKind::NotFound);
    let number = third.info("c").unwrap().number;
    until("the catalogue has arrived", || second.info("b").is_err());
    second.settle().unwrap();
    until("its records are gone everywhere", || {
        [&first, &second, &third].iter().all(|logs| logs.groups()[&1].named_logs() == 2)
    });
    assert!(third.groups()[&1].named(number).is_ok());
    first.await_dropped(id, PATIENCE).unwrap();
    assert!(first.being_dropped(id).unwrap().is_none());
    // One that was never opened is gone for good as well.
    first.register("never").unwrap();
    let id = first.info("never").unwrap().log_id;
    first.unregister("never", Some(id)).unwrap();
    assert_eq!(first.await_dropped(id, Duration::from_millis(50)).unwrap_err().kind(), ErrorKind::Timeout);
    // Its group can still open it, and then append to it: a client that found it would lose what it appends.
    assert_eq!(first.predecessor("never").unwrap(), Some(id));
    let early = first.register("never").unwrap_err();
    assert_eq!(early.kind(), ErrorKind::Busy, "{early}");
    until("the catalogue has arrived", || second.system().last_index() == first.system().last_index());
    second.settle().unwrap();
    first.await_dropped(id, PATIENCE).unwrap();
    assert_eq!(first.predecessor("never").unwrap(), None);
    assert_ne!(first.register("never").unwrap(), id);
    assert_eq!(first.register("_x").unwrap_err().kind(), ErrorKind::InvalidArgument);
}

/// A call that looked for a new log failed while leadership of its group was on the way to another server.
#[test]
fn each_log_is_found_although_leadership_moves() {
    let trio = Trio::new();
    trio.lead(1);
    let servers = [1, 2, 3].map(|node| trio.at(node).clone());
    let names: Vec<String> = (0..400).map(|n| format!("l-{n}")).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for logs in &servers {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    logs.settle().unwrap();
                    std::thread::sleep(Duration::from_millis(3));
                }
            });
        }
        scope.spawn(|| {
            for node in (1..=3).cycle() {
                for logs in servers.iter().filter(|logs| logs.groups()[&1].role() == Role::Leader) {
                    let _ = logs.groups()[&1].transfer_leader(NodeId(node), Duration::from_secs(2));
                }
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let registered = |name: &String| {
            let register = |logs: &Logs| logs.register(name).map_err(|error| error.kind());
            let mut answers = servers.iter().map(register);
            answers.any(|answer| matches!(answer, Ok(_) | Err(ErrorKind::AlreadyExists)))
        };
        let end = Instant::now() + PATIENCE;
        for name in &names {
            while !registered(name) && Instant::now() < end {}
        }
        // The assertion comes once the threads end.
        let found: Vec<_> = names.iter().map(|name| servers[1].find(name, None, PATIENCE / 10)).collect();
        is_over.store(true, Ordering::Relaxed);
        found.into_iter().for_each(|log| drop(log.unwrap()));
    });
}

/// Two groups of one number: the first in the catalogue counts, and the other one is refused.
#[test]
fn group_that_the_catalogue_does_not_know_is_refused() {
    let trio = Trio::new();
    let first = trio.lead(1);
    let known = first.groups()[&1].log_id();
    assert_eq!(first.group_id(1).unwrap(), Some(known));
    let dir = tempfile::tempdir().unwrap();
    let other = Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap();
    assert_eq!(first.register_group(1, &other).unwrap_err().kind(), ErrorKind::Diverged);
    assert_eq!(first.add_group(1, other.clone()).unwrap_err().kind(), ErrorKind::Diverged);
    first.register_group(2, &other).unwrap();
    first.add_group(2, other.clone()).unwrap();
    assert_eq!(first.add_group(2, other.clone()).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(first.add_group(0, other).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(first.groups().len(), 2);
}

/// A catalogue that was lost begins to count again: the logs of its groups must not get new names.
#[test]
fn group_with_logs_of_a_lost_catalogue_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let options =
        LogsOptions::default().groups(1).options(Options::with_segment_bytes(1 << 20).sessions_max(64));
    let logs = Logs::open(dir.path(), options.clone()).unwrap();
    logs.create("old").unwrap().append(b"of old").unwrap();
    logs.close().unwrap();
    drop(logs);
    std::fs::rename(dir.path().join("system"), dir.path().join("lost")).unwrap();
    let refused = Logs::open(dir.path(), options.clone()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Diverged, "{refused}");
    std::fs::remove_dir_all(dir.path().join("system")).unwrap();
    std::fs::rename(dir.path().join("lost"), dir.path().join("system")).unwrap();
    let logs = Logs::open(dir.path(), options).unwrap();
    assert_eq!(logs.get("old").unwrap().read(chiplog::Index(1)).unwrap().data, "of old");
}

/// Creates and deletes logs at a node that leads. Returns how many. None: it did not lead all the time, as on a machine that stood still,
/// and the outcome of some requests was unknown.
fn churn(trio: &Trio, node: u64, until: &dyn Fn(u64) -> bool) -> Option<u64> {
    let logs = trio.lead(node);
    let (mut pairs, mut is_certain) = (0, true);
    let mut ask = |request: &dyn Fn() -> chiplog::Result<()>, happened: ErrorKind| {
        let mut is_repeated = false;
        while let Err(error) = request() {
            match error.kind() {
                ErrorKind::NotLeader | ErrorKind::Unavailable => _ = trio.lead(node),
                kind => {
                    assert!(kind == happened && is_repeated, "{error}");
                    return;
                }
            }
            (is_repeated, is_certain) = (true, false);
        }
    };
    while !until(pairs) {
        ask(&|| logs.create("z").map(drop), ErrorKind::AlreadyExists);
        ask(&|| logs.delete("z"), ErrorKind::NotFound);
        pairs += 1;
    }
    is_certain.then_some(pairs)
}

/// The transport of a replica of an earlier version: it does not say which version of the format it reads.
#[derive(Debug)]
struct Earlier(Arc<dyn Transport>);

impl Transport for Earlier {
    fn attach(&self, node: NodeId, inbox: Inbox) {
        self.0.attach(node, inbox);
    }

    fn detach(&self, node: NodeId) {
        self.0.detach(node);
    }

    fn send(&self, envelope: Envelope) {
        const READS_VERSION: u8 = 13;
        if envelope.head[4] != READS_VERSION {
            self.0.send(envelope);
        }
    }
}

/// It would not open the catalogue any more: it does not know snapshots.
#[test]
fn member_of_an_earlier_version_gets_no_snapshot_of_the_catalogue() {
    let mut trio = Trio::new();
    trio.stop(3);
    let earlier =
        options_over(3, &trio.networks, |_| Bootstrap::Existing, |transport| Arc::new(Earlier(transport)));
    trio.logs[2] = Some(Logs::open(trio.dirs[2].path(), earlier).unwrap());
    churn(&trio, 1, &|pairs| pairs == 200);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(4) {
        trio.at(1).settle().unwrap(); // twice the time that silent members get
        std::thread::sleep(Duration::from_millis(20));
    }
    let system = trio.at(1).system();
    assert_eq!(system.first_index(), Index(1));
    assert!(records(system).iter().all(|(_, record)| record[0] < 5), "no record is of a later kind");
    // It is upgraded. Another leader asks again at once.
    trio.stop(3);
    trio.start(3);
    let leader = trio.lead(2);
    churn(&trio, 2, &|_| leader.system().first_index() > Index(1));
    until("server 3 knows the snapshot", || trio.at(3).system().first_index() > Index(1));
    assert!(trio.at(3).list().unwrap().is_empty());
}

/// The leaders write the catalogue as snapshots and discard what is before. A server that was away across a discard, one that is
/// started again, and a new one know the same catalogue.
#[test]
fn catalogue_is_the_same_on_servers_that_lack_discarded_records() {
    let mut trio = Trio::new();
    trio.lead(1).create("kept").unwrap();
    until("server 3 has it", || trio.at(3).list().unwrap().len() == 1);
    // The first snapshot needs all servers: they say that they can read it. The next one is far: few records have come since.
    let begun = churn(&trio, 1, &|_| {
        let system = trio.at(1).system();
        let (first, last) = (system.first_index().get(), system.last_index().get());
        first > 1 && last < first + 60
    });
    let last = trio.at(1).system().last_index();
    until("server 3 has the snapshot", || trio.at(3).system().last_index() >= last);
    trio.stop(3);
    // Requests that are repeated on a machine that stands still leave more records than others.
    let before = churn(&trio, 1, &|_| trio.at(1).system().last_index().get() >= last.get() + 100);
    assert!(trio.at(1).system().first_index() < last);
    // Another leader goes on, and writes the snapshot. Whole files go with a later one.
    let second = trio.lead(2);
    let files = || std::fs::read_dir(second.system().path()).unwrap().filter_map(Result::ok);
    let has_first = || files().any(|file| file.file_name() == "00000000000000000001.seg");
    let after = churn(&trio, 2, &|_| second.system().first_index() > last && !has_first());
    let new = trio.lead(2).create("new").unwrap();
    let number = second.info("new").unwrap().number;
    if let (Some(begun), Some(before), Some(after)) = (begun, before, after) {
        assert_eq!(number, LogNumber((begun + before + after + 2) as u32));
    }
    assert!(number > second.info("kept").unwrap().number);
    let _ = new.append(b"x").unwrap();
    let first = second.system().first_index();
    let names = |logs: &Logs| -> Vec<(String, LogNumber, LogId)> {
        let all = logs.list().unwrap_or_default().into_iter();
        all.map(|info| (info.name, info.number, info.log_id)).collect()
    };
    let wanted = names(second);
    assert_eq!(wanted.len(), 2);
    trio.start(3);
    until("server 3 knows it", || names(trio.at(3)) == wanted && trio.at(3).system().first_index() >= first);
    for node in [3, 1] {
        trio.stop(node);
        trio.start(node);
        until("a restarted server knows it", || names(trio.at(node)) == wanted);
    }
    // A new server, which never sees the discarded records.
    let leaders = both(trio.lead(2));
    let ids = leaders.each_ref().map(|log| log.log_id());
    let dir = tempfile::tempdir().unwrap();
    let joins = options(4, &trio.networks, |n| Bootstrap::Join(ids[n]));
    let joined = Logs::open(dir.path(), joins).unwrap();
    for (leader, group) in leaders.iter().zip(both(&joined)) {
        let add =
            Change::AddLearner { node: NodeId(4), directory: group.directory_id(), address: String::new() };
        leader.change_members(&[add], PATIENCE).unwrap();
    }
    until("the new server knows it", || names(&joined) == wanted);
    assert!(joined.system().first_index() >= first);
    // It is found there too, once a majority has confirmed that nothing is missing.
    let found = joined.find("new", None, PATIENCE).unwrap();
    until("its record is there", || found.last_index() == Index(1));
    joined.close().unwrap();
    let again = options(4, &trio.networks, |_| Bootstrap::Existing);
    let again = Logs::open(dir.path(), again).unwrap();
    until("it knows it after a restart", || names(&again) == wanted);
}
