//! The Rust client against three replicas that fail: nothing lost, nothing twice, no gap.
#![allow(clippy::unwrap_used, reason = "a test")]

mod served;

use chiplog::{Index, NodeId, Start};
use chiplog_net::client::{Client, Delivery, Producer, ProducerOptions, ReadFrom, ReaderOptions};
use served::client::{number, producing, quick, read_to_end};
use served::{PATIENCE, Trio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Sends numbered records until told to stop; returns them with their futures.
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

/// Leaders are lost in mid-append: cut off with batches that nobody else has, killed, and handed over. Every record
/// is in the log once, in order, at the index that was told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_there_once_whatever_becomes_of_leaders() {
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
    assert!(closed.all_acknowledged(), "{} records are left", closed.left.len());
    let all = read_to_end(&client, Start::First).await;
    assert_eq!(all.len(), deliveries.len());
    for (n, (delivery, (index, data))) in deliveries.into_iter().zip(all).enumerate() {
        assert_eq!((number(&data), index), (n as u64, n as u64 + 1));
        assert_eq!(delivery.await.unwrap(), Index(index), "of record {n}");
    }
    assert_eq!(trio.log(trio.leader(0)).info().sessions, 0);
}

/// The reader's server is killed under it again and again: no gap, no repeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_goes_on_at_another_replica() {
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

/// A replica that is cut off from the others answers as if nothing happened: its readers notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_leaves_a_replica_that_is_cut_off() {
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

/// One server is enough to find the others, also when it follows or is gone later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_learns_of_servers_that_it_was_not_told() {
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
