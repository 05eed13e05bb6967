//! The Rust client without a leader: reads continue, calls that need the leader fail in time. And: the servers that a
//! client accepts as servers of its log.
#![allow(clippy::unwrap_used, reason = "a test")]

mod served;

use chiplog::{ErrorKind, Index, Start};
use chiplog_net::client::{Client, ClientOptions, ProducerOptions, ReadFrom, ReaderOptions, RemoteReader};
use served::client::quick;
use served::{One, PATIENCE, Trio, ZONES, free_port};
use std::time::Duration;

/// Three replicas with this number of records, which all three know to be committed.
fn with_records(count: u64) -> Trio {
    let trio = Trio::new();
    for i in 0..count {
        trio.log(trio.leader(0)).append(&i.to_le_bytes()).unwrap();
    }
    for node in 1..=3 {
        trio.log(node).wait_for(Index(count), PATIENCE).unwrap();
    }
    trio
}

/// Kills the leader and another node; returns the remaining one.
fn lose_majority(trio: &mut Trio) -> u64 {
    let leader = trio.leader(0);
    let left = trio.follower();
    trio.kill(leader);
    trio.kill((1..=3).find(|n| *n != leader && *n != left).unwrap());
    left
}

fn impatient() -> ClientOptions {
    let mut options = quick();
    options.timeout = Duration::from_millis(1500);
    options
}

async fn count(mut reader: RemoteReader) -> u64 {
    let mut last = 0;
    while let Some(record) = tokio::time::timeout(PATIENCE, reader.next_record()).await.unwrap().unwrap() {
        last += 1;
        assert_eq!(record.index, Index(last));
    }
    last
}

fn to_the_end(from: ReadFrom) -> ReaderOptions {
    let mut options = ReaderOptions::default();
    (options.from, options.follow) = (from, false);
    options
}

/// A client had to find a leader before it could do anything. Nothing could be read from a cluster without a majority,
/// although every replica serves its records.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_read_and_watched_without_a_majority() {
    let mut trio = with_records(20);
    let left = lose_majority(&mut trio);
    for seeds in [trio.addresses(), vec![trio.address(left)]] {
        let client = Client::connect(seeds, impatient()).await.unwrap();
        let info = client.info_stale().await.unwrap();
        assert_eq!((info.last, info.node.get()), (Index(20), left));
        for from in [ReadFrom::Any, ReadFrom::Nearest(ZONES[left as usize - 1].into())] {
            assert_eq!(count(client.reader_with(Start::First, to_the_end(from))).await, 20);
        }
        assert_eq!(client.watch(Duration::from_millis(20)).next().await.unwrap().last, Index(20));

        // A call that needs the leader waits for one, up to its timeout.
        for error in [
            client.info().await.unwrap_err(),
            client.discard(Index(2)).await.unwrap_err(),
            client.producer(ProducerOptions::default()).await.unwrap_err(),
        ] {
            assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error}");
        }
        let mut reader = client.reader_with(Start::First, {
            let mut options = to_the_end(ReadFrom::Leader);
            options.timeout = Duration::from_millis(700);
            options
        });
        assert_eq!(reader.next_record().await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
}

/// The same client continues when the majority is back, and a watch at a follower returns new records.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_continues_when_the_majority_is_back() {
    let mut trio = with_records(3);
    let left = lose_majority(&mut trio);
    let client = Client::connect(trio.addresses(), quick()).await.unwrap();
    let mut watch = client.watch(Duration::from_millis(20));
    let mut reader = client.reader(Start::Index(Index(3)), ReadFrom::Any);
    assert_eq!(watch.next().await.unwrap().last, Index(3));
    assert_eq!(reader.next_record().await.unwrap().unwrap().index, Index(3));
    let back = (1..=3).find(|n| *n != left).unwrap();
    trio.bring_back(back);
    let producer = client.producer(ProducerOptions::default()).await.unwrap();
    assert_eq!(producer.append(b"news").await.unwrap().await.unwrap(), Index(4));
    let record = tokio::time::timeout(PATIENCE, reader.next_record()).await.unwrap();
    assert_eq!(record.unwrap().unwrap().index, Index(4));
    let leader = trio.leader(0);
    let news = async {
        loop {
            let info = watch.next().await.unwrap();
            // Until the leader is the one that reports.
            if info.last == Index(4) && info.node.get() == leader {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, news).await.unwrap();
}

/// A watch whose leader was away for a moment stayed at another replica for good: it looked for the leader, but
/// excluded the server that had failed before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_returns_to_a_leader_that_was_away() {
    let mut trio = with_records(1);
    let client = Client::connect(trio.addresses(), quick()).await.unwrap();
    let mut watch = client.watch(Duration::from_millis(20));
    let leader = trio.leader(0);
    until_told_by(&trio, &mut watch, |node| node == leader).await;
    let silent = trio.silence(leader);
    until_told_by(&trio, &mut watch, |node| node != leader).await;
    trio.answer(leader, silent);
    until_told_by(&trio, &mut watch, |node| node == leader).await;
}

/// Other servers can reach a leader that the client cannot, and name it. The watch left its working replica for that
/// leader, each second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_stays_at_its_replica_while_the_leader_is_silent() {
    let mut trio = with_records(1);
    let mut options = quick();
    // A call to the silent leader takes longer than the test.
    options.timeout = 10 * PATIENCE;
    options.attempt_timeout = 10 * PATIENCE;
    options.connect_timeout = 10 * PATIENCE;
    options.keep_alive = 10 * PATIENCE;
    let client = Client::connect(trio.addresses(), options).await.unwrap();
    let mut watch = client.watch(Duration::from_millis(20));
    let leader = trio.leader(0);
    until_told_by(&trio, &mut watch, |node| node == leader).await;
    let _silent = trio.silence(leader);
    let end = tokio::time::Instant::now() + Duration::from_secs(4); // it looks for the leader each second
    while tokio::time::Instant::now() < end {
        until_told_by(&trio, &mut watch, |node| node != leader).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Appends now and then, so that there are changes.
async fn until_told_by(trio: &Trio, watch: &mut chiplog_net::client::Watch, is: impl Fn(u64) -> bool) {
    let told = async {
        loop {
            trio.log(trio.leader(0)).append(b"news").unwrap();
            let info = watch.next().await.unwrap();
            if is(info.node.get()) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, told).await.unwrap();
}

/// Of two remaining replicas, the answer of the one with more records is returned.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_with_most_records_is_used() {
    let mut trio = with_records(1);
    let client = Client::connect(trio.addresses(), quick()).await.unwrap();
    let leader = trio.leader(0);
    let behind = trio.follower();
    trio.network.disconnect(chiplog::NodeId(behind));
    trio.log(leader).append(b"more").unwrap();
    let ahead = (1..=3).find(|n| *n != leader && *n != behind).unwrap();
    trio.log(ahead).wait_for(Index(2), PATIENCE).unwrap();
    trio.network.disconnect(chiplog::NodeId(ahead));
    trio.kill(leader);
    for _ in 0..5 {
        assert_eq!(client.info_stale().await.unwrap().last, Index(2));
    }
    // And a reader that needs all of it waits for that one.
    let mut options = to_the_end(ReadFrom::Any);
    options.min_index = client.info_stale().await.unwrap().last;
    options.keep_alive = Duration::from_millis(50);
    assert_eq!(count(client.reader_with(Start::First, options)).await, 2);
}

/// At a keep-alive a reader asked the leader for its position, and did nothing else until that answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_leader_does_not_delay_readers() {
    let mut trio = with_records(1);
    let mut options = quick();
    // Waiting for the leader's answer takes longer than the test.
    options.probe_timeout = 10 * PATIENCE;
    options.attempt_timeout = 10 * PATIENCE;
    options.connect_timeout = 10 * PATIENCE;
    options.keep_alive = 10 * PATIENCE;
    let client = Client::connect(trio.addresses(), options).await.unwrap();
    let (leader, follower) = (trio.leader(0), trio.follower());
    let mut options = ReaderOptions::default();
    options.from = ReadFrom::Nearest(ZONES[follower as usize - 1].into());
    // A reader that hears nothing for three times this long looks for another server, and then waits for the leader, too.
    options.keep_alive = Duration::from_millis(300);
    let mut reader = client.reader_with(Start::First, options);
    assert_eq!(reader.next_record().await.unwrap().unwrap().index, Index(1));
    assert_eq!(reader.server(), Some(&*trio.address(follower)));
    let _silent = trio.silence(leader);
    for index in 2..5 {
        // Some keep-alives arrive meanwhile.
        let nothing = tokio::time::timeout(Duration::from_millis(700), reader.next_record()).await;
        assert!(nothing.is_err());
        trio.log(trio.leader(0)).append(b"more").unwrap();
        let record = tokio::time::timeout(PATIENCE, reader.next_record()).await.unwrap();
        assert_eq!(record.unwrap().unwrap().index, Index(index));
    }
    assert_eq!(reader.server(), Some(&*trio.address(follower)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_prefers_its_own_zone() {
    let mut trio = with_records(5);
    let client = Client::connect(trio.addresses(), quick()).await.unwrap();
    for (n, zone) in ZONES.iter().enumerate() {
        let mut reader = client.reader(Start::First, ReadFrom::Nearest((*zone).into()));
        assert_eq!(reader.next_record().await.unwrap().unwrap().index, Index(1));
        assert_eq!(reader.server(), Some(&*trio.address(n as u64 + 1)), "{zone}");
    }
    let mut reader = client.reader(Start::First, ReadFrom::Nearest("nowhere".into()));
    assert_eq!(reader.next_record().await.unwrap().unwrap().index, Index(1));

    // The near one is lost: another one is used, at the next record.
    let near = trio.follower();
    let mut reader = client.reader(Start::First, ReadFrom::Nearest(ZONES[near as usize - 1].into()));
    assert_eq!(reader.next_record().await.unwrap().unwrap().index, Index(1));
    trio.kill(near);
    trio.log(trio.leader(near)).append(b"more").unwrap();
    for index in 2..=6 {
        let record = tokio::time::timeout(PATIENCE, reader.next_record()).await.unwrap();
        assert_eq!(record.unwrap().unwrap().index, Index(index));
    }
    assert_ne!(reader.server(), Some(&*trio.address(near)));
}

/// With a wrong address among the servers, chance must not decide which log gets the appends.
#[tokio::test]
async fn servers_of_different_logs_are_rejected() {
    let (one, other) = (One::new(), One::new());
    let error = Client::connect([one.address(), other.address()], quick()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    for log_id in [one.log.log_id(), other.log.log_id()] {
        assert!(error.to_string().contains(&chiplog_net::wire::ids::to_hex(log_id.get())), "{error}");
    }
    let mut options = quick();
    options.log = "other".into();
    let error = Client::connect([one.address()], options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let nobody = format!("127.0.0.1:{}", free_port());
    let client = Client::connect([nobody, one.address()], quick()).await.unwrap();
    assert_eq!(client.info().await.unwrap().log_id, one.log.log_id());
}
