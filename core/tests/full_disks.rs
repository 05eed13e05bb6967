//! Full disks: a leader without room transfers leadership to a voter with room, if that helps.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a test")]

use chiplog::cluster::{Bootstrap, Change, ClusterOptions, Role};
use chiplog::disk::sim::SimDisk;
use chiplog::transport::MemoryNetwork;
use chiplog::vault::{HookedVault, MemoryVault, Vault};
use chiplog::{ErrorKind, Index, Log, LogOption, NodeId, Options};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

struct Three {
    logs: Vec<Log>,
    disks: Vec<SimDisk>,
}

impl Three {
    /// Node 1 leads, and all have prepared files ahead.
    fn new(election_timeout: Duration) -> Self {
        let network = MemoryNetwork::new();
        let mut three = Self { logs: Vec::new(), disks: Vec::new() };
        for node in 1..=3 {
            let bootstrap = match three.logs.first() {
                None => Bootstrap::Init,
                Some(log) => Bootstrap::Join(log.log_id()),
            };
            let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, network.transport());
            cluster.slow_disk_sync = None;
            cluster.election_timeout = election_timeout;
            let options = Options::with_segment_bytes(256 << 10).cluster(cluster);
            let disk = SimDisk::default();
            let log = Log::open_on(Arc::new(disk.clone()), options).unwrap();
            if let Some(leader) = three.logs.first() {
                let directory = log.directory_id();
                let add = Change::AddLearner { node: NodeId(node), directory, address: String::new() };
                leader.change_members(&[add], PATIENCE).unwrap();
                leader.change_members(&[Change::Promote(NodeId(node))], PATIENCE).unwrap();
            }
            three.logs.push(log);
            three.disks.push(disk);
        }
        let last = (0..300).fold(Index(0), |_, _| three.logs[0].append(&[3; 1000]).unwrap());
        three.logs.iter().for_each(|log| assert!(log.wait_for(last, PATIENCE).is_ok()));
        three
    }

    /// Takes away the room for one more file.
    fn fill(&self, n: usize) {
        self.disks[n].limit_space(Some(self.disks[n].space_used()));
    }

    /// Appends until the leader returns `Full`.
    fn append_until_full(&self) {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.logs[0].append(&[4; 1000]) {
                Ok(_) => assert!(Instant::now() < end, "the leader is never full"),
                Err(error) => return assert_eq!(error.kind(), ErrorKind::Full, "{error}"),
            }
        }
    }
}

/// The number that a program had stored after a refused append was that of the append after the next one: what it repeated after a crash
/// was in the log twice.
#[test]
fn append_after_a_refused_one_is_repeated_once() {
    let disk = SimDisk::default();
    let log = Log::open_on(Arc::new(disk.clone()), Options::with_segment_bytes(256 << 10)).unwrap();
    let mut session = log.open_session().unwrap();
    disk.limit_space(Some(disk.space_used()));
    let end = Instant::now() + PATIENCE;
    let mut next = session.next_sequence();
    let full = loop {
        match session.append(&[1; 1000][..]) {
            Ok(_) => assert!(Instant::now() < end, "the log is never full"),
            Err(error) => break error,
        }
        next = chiplog::Sequence(next.get() + 1);
        assert_eq!(session.next_sequence(), next);
    };
    assert_eq!(full.kind(), ErrorKind::Full, "{full}");
    let (id, stored) = (session.id(), session.next_sequence());
    assert_eq!(stored, next, "its number is free");
    disk.limit_space(None);
    let appended = loop {
        match session.append(b"b") {
            Err(error) if error.kind() == ErrorKind::Full => assert!(Instant::now() < end, "{error}"),
            appended => break appended.unwrap(),
        }
    };
    // The program crashed before it learnt that.
    assert_eq!(log.resume_session(id, stored).append(b"b").unwrap(), appended);
    assert_eq!(log.last_index(), appended);
}

/// The command that an object is stored waits for room on a full disk. The object is put once, however long that takes.
#[test]
fn object_is_put_once_while_its_command_waits_for_room() {
    let (disk, vault) = (SimDisk::default(), Arc::new(HookedVault::new(Arc::new(MemoryVault::default()))));
    let [puts, is_held, lets_go] = [(); 3].map(|()| Arc::new(AtomicU64::new(0)));
    let (counted, held, let_go) = (puts.clone(), is_held.clone(), lets_go.clone());
    vault.set(move |call, name| {
        if matches!(call, "put" | "create") && name.contains("/o/") {
            counted.fetch_add(1, Ordering::SeqCst);
            held.store(1, Ordering::SeqCst);
            while let_go.load(Ordering::SeqCst) == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(())
    });
    let options =
        Options::with_segment_bytes(256 << 10).vault(vault as Arc<dyn Vault>).object_bytes(128 << 10);
    let log = Log::open_on(Arc::new(disk.clone()), options).unwrap();
    let end = Instant::now() + PATIENCE;
    while is_held.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < end, "no object is put");
        log.append(&[3; 1000]).unwrap();
    }
    disk.limit_space(Some(disk.space_used()));
    while log.append(&[4; 1000]).is_ok() {
        assert!(Instant::now() < end, "the log is never full");
    }
    // The room that is kept for commands is used up, too.
    let mut more = 1 << 40;
    let full = loop {
        more += 1;
        match log.set_log_options(&[(LogOption::RetentionBytes, Some(more))], PATIENCE) {
            Ok(_) => assert!(Instant::now() < end, "there is always room for a command"),
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::Full, "{full}");
    // It needs more room than a discard, which in turn needs less than the command that the object is stored.
    let mut first = 1;
    let full = loop {
        first += 1;
        match log.discard(Index(first)) {
            Ok(_) => assert!(first < 100, "there is always room for a discard"),
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::Full, "{full}");
    lets_go.store(1, Ordering::SeqCst);
    std::thread::sleep(Duration::from_secs(3)); // a command without room is tried again each second
    assert_eq!((puts.load(Ordering::SeqCst), log.metrics().stored_index), (1, 0));
    disk.limit_space(None);
    while log.metrics().stored_index == 0 {
        assert!(Instant::now() < end, "the object never counts as stored");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The leader kept leading and refused every append, although the others had room.
#[test]
fn leader_without_room_transfers_leadership() {
    let three = Three::new(Duration::from_secs(2));
    three.fill(0);
    three.append_until_full();
    let end = Instant::now() + PATIENCE;
    let leads = |log: &&Log| log.role() == Role::Leader;
    loop {
        let _ = three.logs[0].append(&[4; 1000]); // a refusal makes it look for another leader
        if three.logs[1..].iter().filter(leads).any(|log| log.append(&[5; 1000]).is_ok()) {
            break;
        }
        assert!(Instant::now() < end, "a leader without room keeps leading");
        std::thread::sleep(Duration::from_millis(10));
    }
    // With room again it catches up.
    three.disks[0].limit_space(None);
    let last = three.logs.iter().map(|log| log.last_index()).max().unwrap();
    three.logs[0].wait_for(last, PATIENCE).unwrap();
}

/// With room on one of three replicas nothing could be committed: an append that is refused now would wait for ever.
#[test]
fn leader_keeps_the_lead_unless_a_majority_has_room() {
    let three = Three::new(Duration::from_secs(30)); // no election meanwhile
    three.fill(1);
    (0..3000).for_each(|_| _ = three.logs[0].append(&[3; 1000]).unwrap()); // it uses up its files
    three.fill(0);
    three.append_until_full();
    let term = three.logs[0].status().replica.term;
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        match three.logs[0].append(&[4; 1000]) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::Full, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let status = three.logs[0].status();
    assert_eq!((status.replica.role, status.replica.term), (Role::Leader, term));
    three.logs[0].discard(Index(200)).unwrap();
}
