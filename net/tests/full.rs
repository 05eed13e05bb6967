//! The Rust client's reader at full servers: at the limit of calls, or without room for new records.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod served;

use chiplog::cluster::{Bootstrap, Change, ClusterOptions};
use chiplog::transport::MemoryNetwork;
use chiplog::{ErrorKind, Index, Log, NodeId, Options, Start};
use chiplog_net::client::{Client, ReadFrom, ReaderOptions, RemoteReader};
use chiplog_net::service::log::NativeOptions;
use served::client::quick;
use served::{PATIENCE, Server, Trio, free_port};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Longer than a test takes.
const FOREVER: Duration = Duration::from_secs(3600);

async fn next(reader: &mut RemoteReader) -> (Index, usize) {
    let record = tokio::time::timeout(PATIENCE, reader.next_record()).await.expect("it continues at once");
    let record = record.unwrap().unwrap();
    (record.index, record.data.len())
}

/// A replica with segments of this size, and its server.
fn replica(
    node: u64,
    (dir, network, port): (&Path, &MemoryNetwork, u16),
    bootstrap: Bootstrap,
    segment_bytes: u32,
) -> (Log, Server, String) {
    let mut cluster = ClusterOptions::new(NodeId(node), bootstrap, network.transport());
    cluster.heartbeat = Duration::from_millis(30);
    cluster.election_timeout = Duration::from_secs(1);
    let address = format!("127.0.0.1:{node} 127.0.0.1:{port} zone{node}");
    cluster.address = address.clone();
    let options = Options::with_segment_bytes(segment_bytes).cluster(cluster);
    let log = Log::open(dir.join(node.to_string()), options).unwrap();
    (log.clone(), Server::start_at(log, port, NativeOptions::default()), address)
}

/// It stayed there for several keep-alives: 15 to 20 s with the default interval, forever here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_leaves_a_replica_without_room_at_once() {
    let (dir, network) = (tempfile::tempdir().unwrap(), MemoryNetwork::new());
    let [first_port, second_port] = [free_port(), free_port()];
    let (first, _at_first, _) = replica(1, (dir.path(), &network, first_port), Bootstrap::Init, 4 << 20);
    let join = Bootstrap::Join(first.log_id());
    let (second, _at_second, address) = replica(2, (dir.path(), &network, second_port), join, 64 << 10);
    let directory = second.directory_id();
    first.change_members(&[Change::AddLearner { node: NodeId(2), directory, address }], PATIENCE).unwrap();
    first.append(b"small").unwrap();
    second.wait_for(Index(1), PATIENCE).unwrap();
    first.append(&[7; 200_000]).unwrap();
    let end = Instant::now() + PATIENCE;
    while second.shortage_cause().is_none() {
        assert!(Instant::now() < end, "it stores records without room");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(second.shortage_cause().unwrap().kind(), ErrorKind::TooLarge);
    let client = Client::connect([format!("127.0.0.1:{first_port}")], quick()).await.unwrap();
    let mut options = ReaderOptions::default();
    (options.from, options.keep_alive) = (ReadFrom::Nearest("zone2".into()), FOREVER);
    let mut reader = client.reader_with(Start::First, options);
    assert_eq!(next(&mut reader).await, (Index(1), 5));
    assert_eq!(reader.server(), Some(&*format!("127.0.0.1:{second_port}")));
    assert_eq!(next(&mut reader).await, (Index(2), 200_000));
    assert_eq!(reader.server(), Some(&*format!("127.0.0.1:{first_port}")));
}

/// The reader left the first full server at once, and then waited before it tried the third.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_tries_all_servers_before_it_waits() {
    let trio = Trio::new();
    let leader = trio.leader(0);
    for _ in 0..5 {
        trio.log(leader).append(b"x").unwrap();
    }
    for node in 1..=3 {
        trio.log(node).wait_for(Index(5), PATIENCE).unwrap();
    }
    let mut options = quick();
    (options.backoff_min, options.backoff_max) = (FOREVER, FOREVER);
    let client = Client::connect(trio.addresses(), options).await.unwrap();
    client.info().await.unwrap();
    let refuse = |node: u64, is| trio.server(node).refuses.store(is, Ordering::Relaxed);
    (1..=3).filter(|node| *node != leader).for_each(|node| refuse(node, true));
    for _ in 0..12 {
        let mut options = ReaderOptions::default();
        (options.follow, options.timeout) = (false, 10 * FOREVER);
        let mut reader = client.reader_with(Start::First, options);
        for index in 1..=5 {
            assert_eq!(next(&mut reader).await.0, Index(index));
        }
    }
    // Once all have rejected it, it waits: here for longer than its timeout.
    refuse(leader, true);
    let calls = || (1..=3).map(|node| trio.server(node).calls.load(Ordering::Relaxed)).sum::<u64>();
    let before = calls();
    let mut options = ReaderOptions::default();
    options.timeout = PATIENCE;
    let mut reader = client.reader_with(Start::First, options);
    let told = tokio::time::timeout(PATIENCE, reader.next_record()).await.unwrap();
    assert_eq!(told.unwrap_err().kind(), ErrorKind::Busy);
    assert!(calls() - before < 30, "{}", calls() - before);
}
