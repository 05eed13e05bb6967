//! Bad lines between replicas: cut, silent, slow.

use crate::support::{ELECTION, Replica, add, append, bind, records, three, wait};
use bytes::Bytes;
use chiplog::cluster::{Bootstrap, Role};
use chiplog::transport::{Envelope, Transport as _};
use chiplog::{DirectoryId, Index};
use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A proxy between replicas: it forwards, drops bytes silently, closes connections, or is slow.
struct Proxy {
    address: SocketAddr,
    line: Arc<Line>,
}

/// The state that all connections through a proxy share.
#[derive(Default)]
struct Line {
    mode: AtomicU8,
    /// When the line is free again, if it is slow.
    free_at: Mutex<Option<Instant>>,
}

const FORWARD: u8 = 0;
const SWALLOW: u8 = 1;
const CUT: u8 = 2;
const SLOW: u8 = 3;

/// The bytes per second of a slow line, for all connections together, sent in pieces.
const SLOW_BYTES: usize = 2 << 20;
const PIECE_BYTES: usize = 16 << 10;

impl Line {
    /// Waits for this piece's turn, and until the line has sent it.
    fn carry(&self, bytes: usize) {
        let until = {
            let mut free_at = self.free_at.lock().unwrap();
            let begin = free_at.unwrap_or_else(Instant::now).max(Instant::now());
            let until = begin + Duration::from_secs(1) * bytes as u32 / SLOW_BYTES as u32;
            *free_at = Some(until);
            until
        };
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

impl Proxy {
    fn start(to: SocketAddr) -> Self {
        let listener = bind(0);
        let address = listener.local_addr().unwrap();
        let line = Arc::new(Line::default());
        let shared = line.clone();
        // The threads end with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if shared.mode.load(Ordering::Relaxed) == CUT {
                    continue;
                }
                let Ok(server) = TcpStream::connect(to) else { continue };
                let (client2, server2) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (line, line2) = (shared.clone(), shared.clone());
                std::thread::spawn(move || pump(client, server, &line));
                std::thread::spawn(move || pump(server2, client2, &line2));
            }
        });
        Self { address, line }
    }

    fn set(&self, mode: u8) {
        self.line.mode.store(mode, Ordering::Relaxed);
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, line: &Line) {
    from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut buffer = vec![0; PIECE_BYTES];
    // The dropped bytes are missing: the connection cannot be used again.
    let mut dead = false;
    loop {
        let read = from.read(&mut buffer);
        match line.mode.load(Ordering::Relaxed) {
            CUT => break,
            SWALLOW => dead = true,
            _ => {}
        }
        match read {
            Ok(0) => break,
            Ok(_) if dead => {}
            Ok(n) if line.mode.load(Ordering::Relaxed) == SLOW => {
                line.carry(n);
                if to.write_all(&buffer[..n]).is_err() {
                    break;
                }
            }
            Ok(n) if to.write_all(&buffer[..n]).is_ok() => {}
            Err(e) if matches!(e.kind(), IoErrorKind::WouldBlock | IoErrorKind::TimedOut) => {}
            _ => break,
        }
    }
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Three replicas that reach each other through a proxy each. The first one leads.
fn three_behind_proxies(dir: &Path, segment_bytes: u32, election: Duration) -> ([Replica; 3], [Proxy; 3]) {
    let proxied = |node: u64, bootstrap| {
        let listener = bind(0);
        let proxy = Proxy::start(listener.local_addr().unwrap());
        let (at, path) = (proxy.address, dir.join(node.to_string()));
        (Replica::start_at(node, &path, bootstrap, segment_bytes, listener, at, election), proxy)
    };
    let (first, first_proxy) = proxied(1, Bootstrap::Init);
    wait("it leads", || first.log.role() == Role::Leader);
    let log = first.log.log_id();
    let (second, second_proxy) = proxied(2, Bootstrap::Join(log));
    add(&first.log, &second);
    let (third, third_proxy) = proxied(3, Bootstrap::Join(log));
    add(&first.log, &third);
    ([first, second, third], [first_proxy, second_proxy, third_proxy])
}

#[test]
fn cut_or_silent_link_is_reopened() {
    let dir = tempfile::tempdir().unwrap();
    let (replicas, proxies) = three_behind_proxies(dir.path(), 1 << 20, ELECTION);
    let replicas = replicas.each_ref();

    append(&replicas, b"a");
    let mut last = Index(0);
    for mode in [CUT, SWALLOW] {
        proxies.iter().for_each(|p| p.set(mode));
        wait("there is no leader", || replicas.iter().all(|r| r.log.role() != Role::Leader));
        wait("all streams are closed", || {
            replicas.iter().all(|r| r.transport.traffic().iter().all(|t| !t.connected))
        });
        proxies.iter().for_each(|p| p.set(FORWARD));
        last = append(&replicas, b"b");
    }
    let expected = records(&replicas[0].log, last);
    assert!(expected.len() >= 3);
    assert!(replicas.iter().all(|r| records(&r.log, last) == expected));
    assert!(replicas.iter().any(|r| r.transport.traffic().iter().any(|t| t.reconnects > 0)));
}

/// A poisoned leader asks another replica to start an election at once, and then ends. Its last message was dropped
/// with all other waiting ones: a failed disk cost an election timeout.
#[test]
fn last_message_of_a_closing_replica_arrives() {
    let dir = tempfile::tempdir().unwrap();
    let mut replicas = three(dir.path(), 1 << 20);
    append(&replicas.iter().collect::<Vec<_>>(), b"before");
    let at = replicas.iter().position(|r| r.log.role() == Role::Leader).unwrap();
    let leader = replicas.remove(at);
    let received = |replicas: &[Replica]| -> u64 {
        let traffic = replicas.iter().flat_map(|r| r.transport.traffic());
        traffic.filter(|t| t.node == leader.node).map(|t| t.received).sum()
    };
    let count = 20;
    for _ in 0..count {
        let before = received(&replicas);
        let status = leader.log.status();
        for to in &replicas {
            leader.transport.send(Envelope {
                log: status.log_id,
                from: leader.node,
                from_directory: status.directory_id,
                to: to.node,
                to_directory: DirectoryId(0),
                head: Bytes::from_static(b"a message"),
                bodies: Vec::new(),
                urgent: false,
            });
        }
        leader.transport.detach(leader.node);
        wait("the messages arrive", || received(&replicas) >= before + 2);
        leader.transport.members(&status.replica.members);
        wait("messages from it arrive again", || {
            let traffic = leader.transport.traffic();
            traffic.iter().filter(|t| t.connected).count() == 2
        });
    }
}

/// A large record occupied the one stream to each follower for longer than an election timeout, and heartbeats waited
/// behind it. Both followers started elections, the leader was deposed, and the next leader sent the record again.
#[test]
fn large_record_on_a_slow_line_deposes_no_leader() {
    let dir = tempfile::tempdir().unwrap();
    let ([first, second, third], proxies) =
        three_behind_proxies(dir.path(), 64 << 20, Duration::from_millis(1500));
    let small = first.log.append(b"small").unwrap();
    for replica in [&second, &third] {
        assert_eq!(records(&replica.log, small).len(), 1);
    }
    let status = first.log.status();
    assert_eq!(status.replica.role, Role::Leader);
    let sent = || first.transport.traffic().iter().map(|t| t.sent_bytes).max().unwrap_or_default();
    let before = sent();

    proxies.iter().for_each(|proxy| proxy.set(SLOW));
    let large: Vec<u8> = (0..12_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let last = first.log.append(&large).unwrap();
    let after = first.log.status();
    assert_eq!((after.replica.role, after.replica.term), (Role::Leader, status.replica.term));
    for replica in [&second, &third] {
        assert!(records(&replica.log, last).last().is_some_and(|record| *record == large));
        assert_eq!(replica.log.status().replica.term, status.replica.term);
    }
    assert!(sent() - before < 2 * large.len() as u64, "it was sent once");
}
