//! The Rust client against three replicas that fail: nothing is lost, nothing is appended twice, there is no gap.
#![allow(clippy::unwrap_used, reason = "a test")]

mod served;

use chiplog::{Index, NodeId, Start};
use chiplog_net::client::{
    Client, Delivery, Producer, ProducerOptions, ReadFrom, ReaderOptions, RemoteReader,
};
use served::client::{number, producing, quick, read_to_end};
use served::{PATIENCE, Trio, ZONES};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Sends numbered records until stopped; returns their deliveries.
async fn send_numbers(producer: Producer, stop: Arc<AtomicBool>, sent: Arc<AtomicU64>) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let i = sent.load(Ordering::Relaxed);
        let mut record = i.to_le_bytes().to_vec();
        record.resize(100, 7);
        deliveries.push(producer.append(&record).await.unwrap());
        sent.store(i + 1, Ordering::Relaxed);
        if i.is_multiple_of(50) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    deliveries
}

async fn more_than(sent: &AtomicU64, count: u64) {
    let target = sent.load(Ordering::Relaxed) + count;
    let end = Instant::now() + PATIENCE;
    while sent.load(Ordering::Relaxed) < target {
        assert!(Instant::now() < end, "{} of {target} sent", sent.load(Ordering::Relaxed));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Leaders are lost during appends: cut off with batches that no other replica has, killed, or replaced by a transfer.
/// Every record is in the log once, in order, at its reported index.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_in_the_log_once_when_leaders_fail() {
    let mut trio = Trio::new();
    let client = Client::connect(trio.addresses(), quick()).await.unwrap();
    let options = producing(|o| {
        (o.batch_bytes, o.buffer_bytes) = (2_000, 1 << 20);
        o.request_timeout = Duration::from_secs(3);
    });
    let producer = client.producer(options).await.unwrap();
    let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let sending = tokio::spawn(send_numbers(producer.clone(), stop.clone(), sent.clone()));
    more_than(&sent, 500).await;
    for round in 0..3 {
        let leader = trio.leader(0);
        match round {
            0 => {
                trio.network.disconnect(NodeId(leader));
                more_than(&sent, 300).await;
                trio.leader(leader);
                trio.kill(leader);
                more_than(&sent, 500).await;
                trio.bring_back(leader);
            }
            1 => {
                trio.kill(leader);
                more_than(&sent, 500).await;
                trio.bring_back(leader);
            }
            _ => {
                let to = (1..=3).find(|n| *n != leader).unwrap();
                trio.log(leader).transfer_leader(NodeId(to), PATIENCE).unwrap();
            }
        }
        more_than(&sent, 500).await;
    }
    stop.store(true, Ordering::Relaxed);
    let deliveries = sending.await.unwrap();
    let closed = producer.close(PATIENCE).await;
    assert!(closed.all_acknowledged(), "{} records are unacknowledged", closed.left.len());
    let all = read_to_end(&client, Start::First).await;
    assert_eq!(all.len(), deliveries.len());
    for (n, (delivery, (index, data))) in deliveries.into_iter().zip(all).enumerate() {
        assert_eq!((number(&data), index), (n as u64, n as u64 + 1));
        assert_eq!(delivery.await.unwrap(), Index(index), "record {n}");
    }
    assert_eq!(trio.log(trio.leader(0)).status().sessions, 0);
}

/// The reader's server is killed again and again: no gap, no repeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_continues_at_another_replica() {
    let mut trio = Trio::new();
    let client = Client::connect(trio.addresses(), quick()).await.unwrap();
    let producer = client.producer(producing(|o| o.batch_bytes = 2_000)).await.unwrap();
    let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let sending = tokio::spawn(send_numbers(producer.clone(), stop.clone(), sent.clone()));
    let mut readers =
        [client.reader(Start::First, ReadFrom::Any), client.reader(Start::First, ReadFrom::Leader)];
    let mut next = [1, 1];
    for _ in 0..4 {
        for (reader, next) in readers.iter_mut().zip(&mut next) {
            let target = *next + 300;
            while *next < target {
                let record = tokio::time::timeout(PATIENCE, reader.next_record()).await.unwrap();
                let record = record.unwrap().unwrap();
                assert_eq!((record.index.get(), number(&record.data)), (*next, *next - 1));
                *next += 1;
            }
        }
        let server = readers[0].server().unwrap().to_owned();
        let node = (1..=3).find(|n| trio.address(*n) == server).unwrap();
        trio.kill(node);
        trio.leader(node);
        trio.bring_back(node);
    }
    stop.store(true, Ordering::Relaxed);
    sending.await.unwrap();
    assert!(producer.close(PATIENCE).await.all_acknowledged());
}

/// A replica that is cut off from the others still answers: its readers notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_leaves_a_replica_that_is_cut_off() {
    let trio = Trio::new();
    let client = Client::connect(trio.addresses(), quick()).await.unwrap();
    let follower = trio.follower();
    let mut options = ReaderOptions::default();
    options.from = ReadFrom::Nearest(["east", "west", "north"][follower as usize - 1].into());
    options.keep_alive = Duration::from_millis(100);
    let mut reader = client.reader_with(Start::First, options);
    let producer = client.producer(ProducerOptions::default()).await.unwrap();
    producer.append(b"a").await.unwrap().await.unwrap();
    assert_eq!(reader.next_record().await.unwrap().unwrap().index, Index(1));
    assert_eq!(reader.server(), Some(&*trio.address(follower)));
    trio.network.disconnect(NodeId(follower));
    producer.append(b"b").await.unwrap().await.unwrap();
    let record = tokio::time::timeout(PATIENCE, reader.next_record()).await.unwrap().unwrap().unwrap();
    assert_eq!(record.index, Index(2));
    assert_ne!(reader.server(), Some(&*trio.address(follower)));
}

/// One server is enough to find the others, also if it is a follower or fails later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_learns_of_servers_that_were_not_given() {
    let mut trio = Trio::new();
    let follower = trio.follower();
    let client = Client::connect([trio.address(follower)], quick()).await.unwrap();
    let producer = client.producer(ProducerOptions::default()).await.unwrap();
    assert_eq!(producer.append(b"a").await.unwrap().await.unwrap(), Index(1));
    trio.kill(follower);
    assert_eq!(producer.append(b"b").await.unwrap().await.unwrap(), Index(2));
    trio.bring_back(follower);
    trio.log(follower).wait_for(Index(2), PATIENCE).unwrap();
    let leader = trio.leader(0);
    trio.kill(leader);
    assert_eq!(producer.append(b"c").await.unwrap().await.unwrap(), Index(3));
    assert_eq!(client.info().await.unwrap().last, Index(3));
}

/// Appends records one by one and reads each, until the reader uses this server.
async fn read_until_at(reader: &mut RemoteReader, producer: &Producer, server: &str) {
    let end = Instant::now() + PATIENCE;
    while reader.server() != Some(server) {
        let index = producer.append(b"news").await.unwrap().await.unwrap();
        let record = tokio::time::timeout(PATIENCE, reader.next_record()).await.unwrap();
        assert_eq!(record.unwrap().unwrap().index, index);
        assert!(Instant::now() < end, "at {:?} and not {server}", reader.server());
    }
}

fn reading(from: ReadFrom) -> ReaderOptions {
    let mut options = ReaderOptions::default();
    (options.from, options.keep_alive) = (from, Duration::from_millis(100));
    options
}

/// A reader that had waited at the end for longer than its timeout counted all that time as failing. The first failure
/// of its server was returned to the caller, and no other replica was tried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_that_waited_for_long_switches_servers() {
    let mut trio = Trio::new();
    let client = Client::connect(trio.addresses(), quick()).await.unwrap();
    let producer = client.producer(ProducerOptions::default()).await.unwrap();
    let mut options = reading(ReadFrom::Any);
    options.timeout = Duration::from_secs(3);
    let mut reader = client.reader_with(Start::Next, options);
    for n in 1..3 {
        let quiet = tokio::time::timeout(Duration::from_millis(3_500), reader.next_record()).await;
        assert!(quiet.is_err(), "nothing was appended");
        let server = reader.server().unwrap().to_owned();
        let node = (1..=3).find(|n| trio.address(*n) == server).unwrap();
        trio.kill(node);
        let index = producer.append(b"news").await.unwrap().await.unwrap();
        let record = tokio::time::timeout(PATIENCE, reader.next_record()).await.unwrap();
        assert_eq!((record.unwrap().unwrap().index, index), (Index(n), Index(n)));
        trio.bring_back(node);
    }
}

/// A reader of the leader switched to a follower when its leader was gone, also when that was known before its first
/// connection. It also stayed at a server that no longer led.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_of_the_leader_follows_the_lead() {
    let mut trio = Trio::new();
    let client = Client::connect(trio.addresses(), quick()).await.unwrap();
    let producer = client.producer(ProducerOptions::default()).await.unwrap();
    let gone = trio.leader(0);
    trio.kill(gone);
    producer.append(b"a").await.unwrap().await.unwrap();
    let mut reader = client.reader_with(Start::First, reading(ReadFrom::Leader));
    let record = tokio::time::timeout(PATIENCE, reader.next_record()).await.unwrap();
    assert_eq!(record.unwrap().unwrap().index, Index(1));
    let leader = trio.leader(gone);
    assert_eq!(reader.server(), Some(&*trio.address(leader)));
    trio.bring_back(gone);
    trio.log(gone).wait_for(Index(1), PATIENCE).unwrap();
    trio.log(leader).transfer_leader(NodeId(gone), PATIENCE).unwrap();
    read_until_at(&mut reader, &producer, &trio.address(gone)).await;
}

/// A reader that had left the near replica for a moment read from a distant one forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_returns_to_the_nearest_replica() {
    let mut trio = Trio::new();
    let client = Client::connect(trio.addresses(), quick()).await.unwrap();
    let producer = client.producer(ProducerOptions::default()).await.unwrap();
    let near = trio.follower();
    let zone = ZONES[near as usize - 1].to_owned();
    let mut reader = client.reader_with(Start::First, reading(ReadFrom::Nearest(zone)));
    read_until_at(&mut reader, &producer, &trio.address(near)).await;
    trio.kill(near);
    producer.append(b"news").await.unwrap().await.unwrap();
    tokio::time::timeout(PATIENCE, reader.next_record()).await.unwrap().unwrap().unwrap();
    assert_ne!(reader.server(), Some(&*trio.address(near)));
    trio.bring_back(near);
    read_until_at(&mut reader, &producer, &trio.address(near)).await;
}
