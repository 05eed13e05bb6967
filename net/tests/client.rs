//! The Rust client against servers of this process: one log, and three replicas that fail.
#![allow(clippy::unwrap_used, reason = "a test")]

mod served;

use chiplog::{Appended, Codec, Durability, ErrorKind, Index, Options, Start};
use chiplog_net::client::{Client, ClientOptions, ProducerOptions, ReadFrom, ReaderOptions, blocking};
use chiplog_net::follower::{Follower, FollowerOptions};
use chiplog_net::service::log::NativeOptions;
use served::client::{number, producing, quick, read_to_end};
use served::{One, PATIENCE, free_port};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use tracing::Level;
use tracing::field::{Field, Visit};

async fn one_client(one: &One) -> Client {
    Client::connect([one.address()], quick()).await.unwrap()
}

#[tokio::test]
async fn records_are_in_order_at_their_reported_index() {
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
        let one = One::with(Options::default(), NativeOptions::default());
        let client = one_client(&one).await;
        let producer = client.producer(producing(|o| o.codec = codec)).await.unwrap();
        let (sender, told) = mpsc::channel();
        let mut deliveries = Vec::new();
        for i in 0..100_000u64 {
            let record = i.to_le_bytes();
            match i % 100 {
                0 => deliveries.push((i, producer.append(&record).await.unwrap())),
                1 => {
                    let sender = sender.clone();
                    let tell = move |result: chiplog::Result<Appended>| sender.send((i, result)).unwrap();
                    producer.send_with(&record, tell).await.unwrap();
                }
                _ => producer.send(&record).await.unwrap(),
            }
        }
        producer.flush(PATIENCE).await.unwrap();
        assert_eq!(producer.buffered_bytes(), 0);
        for (i, delivery) in deliveries {
            assert_eq!(delivery.try_result().unwrap().unwrap(), Index(i + 1));
            assert_eq!(delivery.await.unwrap(), Index(i + 1));
        }
        for n in 0..1000 {
            let (i, result) = told.recv_timeout(PATIENCE).unwrap();
            let appended = result.unwrap();
            assert_eq!((i, appended.first, appended.count), (100 * n + 1, Index(i + 1), 1));
        }
        let all = read_to_end(&client, Start::First).await;
        assert_eq!(all.len(), 100_000);
        assert!(all.iter().enumerate().all(|(n, (i, data))| *i == n as u64 + 1 && number(data) == n as u64));
        assert_eq!(one.log.status().sessions, 1);
        assert!(producer.close(PATIENCE).await.all_acknowledged());
        assert_eq!(one.log.status().sessions, 0);
        assert_eq!(producer.send(b"late").await.unwrap_err().kind(), ErrorKind::Closed);
        assert!(producer.close(PATIENCE).await.all_acknowledged());
    }
}

#[tokio::test]
async fn batches_linger_for_at_most_the_option() {
    let one = One::new();
    let client = one_client(&one).await;
    let linger = Duration::from_secs(2);
    let producer = client.producer(producing(|o| o.linger = linger)).await.unwrap();
    let begun = Instant::now();
    let first = producer.append(b"a").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let second = producer.append(b"b").await.unwrap();
    assert_eq!((first.await.unwrap(), second.await.unwrap()), (Index(1), Index(2)));
    assert!((linger..PATIENCE).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    let batch = one.log.reader(Start::First).unwrap().next_batch().unwrap().unwrap();
    assert_eq!(batch.count(), 2);
    let linger = Duration::from_secs(60);
    let producer = client.producer(producing(|o| o.linger = linger)).await.unwrap();
    let begun = Instant::now();
    producer.send(b"c").await.unwrap();
    producer.flush(PATIENCE).await.unwrap();
    assert!(begun.elapsed() < linger, "a flush must not linger");
}

#[tokio::test]
async fn dropped_producer_still_sends_its_records() {
    let one = One::new();
    let client = one_client(&one).await;
    let producer = client.producer(producing(|o| o.linger = Duration::from_secs(60))).await.unwrap();
    let other = producer.clone();
    producer.send(b"a").await.unwrap();
    drop(producer);
    let delivery = other.append(b"b").await.unwrap();
    drop(other);
    assert_eq!(delivery.await.unwrap(), Index(2));
}

#[tokio::test]
async fn largest_record_is_accepted_and_one_byte_more_rejected() {
    let options = Options::with_segment_bytes(1 << 20).batch_bytes_max(10_000).record_bytes_max(9_956);
    let one = One::with(options, NativeOptions::default());
    let client = one_client(&one).await;
    let producer = client.producer(ProducerOptions::default()).await.unwrap();
    let most = 10_000 - 44;
    for bytes in [most - 1, most] {
        producer.append(&vec![1; bytes]).await.unwrap().await.unwrap();
    }
    let error = producer.append(&vec![1; most + 1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    // Batches of small records also stay within the limit.
    for _ in 0..1_000 {
        producer.send(&[2; 100]).await.unwrap();
    }
    producer.flush(PATIENCE).await.unwrap();
    assert_eq!(one.log.last_index(), Index(1_002));
}

#[tokio::test]
async fn many_producers_share_a_client() {
    let one = One::new();
    let client = one_client(&one).await;
    let mut tasks = tokio::task::JoinSet::new();
    for p in 0..10u64 {
        let client = client.clone();
        tasks.spawn(async move {
            let producer = client.producer(producing(|o| o.batch_bytes = 500)).await.unwrap();
            for i in 0..1_000 {
                producer.send(&(p << 32 | i).to_le_bytes()).await.unwrap();
            }
            assert!(producer.close(PATIENCE).await.all_acknowledged());
        });
    }
    tasks.join_all().await;
    let mut next = [0; 10];
    for (_, data) in read_to_end(&client, Start::First).await {
        let (p, i) = ((number(&data) >> 32) as usize, number(&data) & u64::from(u32::MAX));
        assert_eq!(i, next[p], "producer {p}");
        next[p] += 1;
    }
    assert_eq!(next, [1_000; 10]);
}

#[tokio::test]
async fn missing_server_is_an_error_in_time() {
    let mut options = quick();
    options.timeout = Duration::from_millis(300);
    let begun = Instant::now();
    let error = Client::connect([format!("127.0.0.1:{}", free_port())], options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(begun.elapsed() < Duration::from_secs(3));
    for wrong in [vec![], vec!["nonsense"], vec!["http://a:1"]] {
        let error = Client::connect(wrong, quick()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

/// A window above 1 GiB panicked in the task of the connection, and without a window all streams stood still.
#[tokio::test]
async fn windows_are_within_the_bounds_of_http2() {
    let one = One::new();
    for window_bytes in [0, (64 << 10) - 1, 1 << 31, u32::MAX] {
        let options = quick().window_bytes(window_bytes);
        let error = Client::connect([one.address()], options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("window_bytes"), "{error}");
    }
    for window_bytes in [64 << 10, (1 << 30) + 1, (1 << 31) - 1] {
        let client = Client::connect([one.address()], quick().window_bytes(window_bytes)).await.unwrap();
        client.info().await.unwrap();
    }
}

/// The server is gone for good: callers wait for their time limit, get specific errors, and a close returns the
/// unacknowledged records.
#[tokio::test]
async fn full_buffer_is_busy_and_close_returns_unacknowledged_records() {
    let one = One::new();
    let client = one_client(&one).await;
    let block_max = Duration::from_millis(200);
    let options = producing(|o| {
        (o.buffer_bytes, o.block_max, o.batch_bytes, o.inflight_max) = (1_000, block_max, 100, 2);
    });
    let producer = client.producer(options).await.unwrap();
    producer.append(b"in").await.unwrap().await.unwrap();
    drop(one);
    // 10 bytes and 4 of overhead each: 71 of them.
    let mut deliveries = Vec::new();
    for i in 0..71 {
        deliveries.push(producer.append(format!("record {i:03}").as_bytes()).await.unwrap());
    }
    assert_eq!(producer.try_send(b"one more..").unwrap_err().kind(), ErrorKind::Busy);
    let begun = Instant::now();
    assert_eq!(producer.send(b"one more..").await.unwrap_err().kind(), ErrorKind::Busy);
    assert!((block_max..block_max * 10).contains(&begun.elapsed()));
    assert_eq!(producer.flush(block_max).await.unwrap_err().kind(), ErrorKind::Timeout);
    let begun = Instant::now();
    let left = producer.close(block_max).await.left;
    assert!(begun.elapsed() < block_max * 10);
    assert_eq!(left.len(), 71);
    for (i, left) in left.iter().enumerate() {
        assert_eq!(left.record, format!("record {i:03}"));
    }
    assert!(left[0].in_doubt || !left[70].in_doubt);
    assert!(!left[70].in_doubt, "it did not fit the window");
    for delivery in deliveries {
        assert_eq!(delivery.await.unwrap_err().kind(), ErrorKind::Closed);
    }
}

/// Errors and warnings with a number of records, as they appear in the process's own log.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<(Level, u64)>>>);

impl Logged {
    fn take(&self) -> Vec<(Level, u64)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Waits for the next ones.
    async fn next(&self) -> Vec<(Level, u64)> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.take() {
                logged if !logged.is_empty() => return logged,
                _ => assert!(Instant::now() < end, "nothing was logged"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

struct Records(Option<u64>);

impl Visit for Records {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0 = (field.name() == "records").then_some(value).or(self.0);
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl tracing::Subscriber for Logged {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut records = Records(None);
        event.record(&mut records);
        let level = *event.metadata().level();
        self.0.lock().unwrap().extend(records.0.filter(|_| level <= Level::WARN).map(|n| (level, n)));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// A producer was dropped while its server was away: its records were lost without a report.
#[tokio::test]
async fn unreported_records_of_a_dropped_producer_are_logged() {
    let one = One::new();
    let client = one_client(&one).await;
    let brief = || producing(|o| o.delivery_timeout = Duration::from_secs(2));
    let mut producers = Vec::new();
    for options in [brief(), brief(), ProducerOptions::default()] {
        let producer = client.producer(options).await.unwrap();
        producer.append(b"in").await.unwrap().await.unwrap();
        producers.push(producer);
    }
    drop(one);
    let logged = Logged::default();
    // While there is only one dispatcher, tracing asks the thread that logs an event first, and that can be another
    // test's.
    let _another = tracing::Dispatch::new(logged.clone());
    let _here = tracing::subscriber::set_default(logged.clone());
    let [late, failed, closed] = <[_; 3]>::try_from(producers).unwrap();

    // Its records fail after it was dropped. One is reported by a delivery, one by a callback, five are not reported.
    let heard = late.append(b"heard").await.unwrap();
    drop(late.append(b"unheard").await.unwrap());
    let (sender, called) = mpsc::channel();
    late.send_with(b"called", move |result| sender.send(result).unwrap()).await.unwrap();
    late.send(b"silent").await.unwrap();
    late.send(b"silent").await.unwrap();
    drop(late.append_batch(&[b"1", b"2"]).await.unwrap());
    assert_eq!(late.unacknowledged(), 7);
    drop(late);
    assert_eq!(logged.take(), [(Level::WARN, 7)]);
    assert!(heard.await.is_err() && called.recv_timeout(PATIENCE).unwrap().is_err());
    assert_eq!(logged.next().await, [(Level::ERROR, 5)]);

    // Its records fail before it is dropped; a flush has reported the first.
    failed.send(b"a").await.unwrap();
    assert!(failed.flush(PATIENCE).await.is_err());
    let last = failed.append(b"b").await.unwrap();
    failed.send(b"c").await.unwrap();
    assert!(last.await.is_err());
    while failed.buffered_bytes() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(failed.unacknowledged(), 1);
    drop(failed);
    assert_eq!(logged.next().await, [(Level::ERROR, 1)]);

    // A close reports them.
    closed.send(b"d").await.unwrap();
    for _ in 0..2 {
        let how = closed.close(Duration::ZERO).await;
        assert_eq!((how.left.len(), how.untold), (1, 0));
    }
    drop(closed);
    assert_eq!(logged.take(), []);
}

/// A record whose delivery was kept and never read counted as reported: nothing was logged when both were dropped.
#[tokio::test]
async fn record_is_logged_when_its_unread_delivery_is_dropped() {
    let one = One::new();
    let client = one_client(&one).await;
    let producer = client.producer(producing(|o| o.delivery_timeout = Duration::from_secs(2))).await.unwrap();
    producer.append(b"in").await.unwrap().await.unwrap();
    drop(one);
    let logged = Logged::default();
    let _another = tracing::Dispatch::new(logged.clone());
    let _here = tracing::subscriber::set_default(logged.clone());
    let mut kept = Vec::new();
    for n in 0..3 {
        kept.push(producer.append(&[n]).await.unwrap());
    }
    kept.push(producer.append_batch(&[b"1", b"2"]).await.unwrap());
    for delivery in &kept {
        delivery.settled().await;
    }
    while producer.buffered_bytes() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(producer.unacknowledged(), 5);
    assert!(kept[0].try_result().unwrap().is_err());
    assert_eq!(producer.unacknowledged(), 4);
    let batch = kept.pop();
    drop(producer);
    drop(kept);
    assert_eq!(logged.next().await, [(Level::ERROR, 2)], "together");
    drop(batch);
    assert_eq!(logged.next().await, [(Level::ERROR, 2)]);
    assert_eq!(logged.take(), []);
}

#[tokio::test]
async fn undeliverable_record_times_out_and_the_producer_continues() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_port();
    let open = || chiplog::Log::open(dir.path(), Options::with_segment_bytes(1 << 20)).unwrap();
    let start = |log| served::Server::start_at(log, port, NativeOptions::default());
    let server = start(open());
    let client = Client::connect([server.address.clone()], quick()).await.unwrap();
    let options = producing(|o| o.delivery_timeout = Duration::from_secs(2));
    let producer = client.producer(options).await.unwrap();
    producer.append(b"a").await.unwrap().await.unwrap();
    drop(server);
    let lost = producer.append(b"lost").await.unwrap();
    let begun = Instant::now();
    assert_eq!(lost.await.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(producer.flush(PATIENCE).await.unwrap_err().kind(), ErrorKind::Timeout, "reported once");
    producer.flush(PATIENCE).await.unwrap();
    let end = Instant::now() + PATIENCE;
    let log = loop {
        match chiplog::Log::open(dir.path(), Options::with_segment_bytes(1 << 20)) {
            Ok(log) => break log,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let _server = start(log.clone());
    loop {
        match producer.append(b"b").await.unwrap().await {
            Ok(_) => break,
            Err(error) => assert!(error.kind() == ErrorKind::Timeout && Instant::now() < end, "{error}"),
        }
    }
    let last = log.last_index();
    assert_eq!(log.read(last).unwrap().data, "b");
}

/// A session expires when it is idle: no record is in doubt, so the next one is appended in a new session.
#[tokio::test]
async fn producer_outlives_its_session() {
    let options = Options::with_segment_bytes(1 << 20).session_idle_max(Duration::from_millis(50));
    let one = One::with(options, NativeOptions::default());
    let client = one_client(&one).await;
    let producer = client.producer(ProducerOptions::default()).await.unwrap();
    producer.append(b"a").await.unwrap().await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    one.log.append(b"time passes").unwrap();
    let deliveries = [producer.append(b"b").await.unwrap(), producer.append(b"c").await.unwrap()];
    let mut indexes = Vec::new();
    for delivery in deliveries {
        indexes.push(delivery.await.unwrap());
    }
    assert_eq!(indexes, [Index(3), Index(4)]);
    assert_eq!(one.log.last_index(), Index(4));
}

#[tokio::test]
async fn readers_start_anywhere_and_get_discarded_errors() {
    let one = One::with(Options::with_segment_bytes(64 << 10), NativeOptions::default());
    let client = one_client(&one).await;
    let producer = client.producer(producing(|o| o.batch_bytes = 200)).await.unwrap();
    for i in 0..1_000u64 {
        producer.send(&i.to_le_bytes()).await.unwrap();
    }
    producer.flush(PATIENCE).await.unwrap();
    for (start, first) in [
        (Start::Index(Index(555)), 555),
        (Start::Last(3), 998),
        (Start::First, 1),
        (Start::Index(Index(1000)), 1000),
    ] {
        let all = read_to_end(&client, start).await;
        assert!(all.iter().map(|(i, _)| *i).eq(first..=1_000), "{start:?}");
    }
    client.discard(Index(600)).await.unwrap();
    let info = client.info().await.unwrap();
    assert_eq!((info.first, info.last, info.log_id), (Index(600), Index(1_000), one.log.log_id()));
    for from in [ReadFrom::Leader, ReadFrom::Any, ReadFrom::Nearest("here".into())] {
        let mut reader = client.reader(Start::Index(Index(599)), from.clone());
        assert_eq!(reader.next_record().await.unwrap_err().kind(), ErrorKind::Discarded);
        assert_eq!(reader.next_batch().await.unwrap_err().kind(), ErrorKind::Discarded, "again");
        reader.seek(Start::First);
        assert_eq!(reader.next_record().await.unwrap().unwrap().index, Index(600));
        assert_eq!(reader.position(), Some(Index(601)));
        let mut reader = client.reader(Start::Index(Index(1_002)), from);
        assert_eq!(reader.next_record().await.unwrap_err().kind(), ErrorKind::OutOfRange);
    }
    let mut reader = client.reader(Start::Next, ReadFrom::Any);
    let end = Instant::now() + PATIENCE;
    while reader.position().is_none() {
        let nothing = tokio::time::timeout(Duration::from_millis(100), reader.next_record()).await;
        assert!(nothing.is_err() && Instant::now() < end, "{nothing:?}");
    }
    assert_eq!(reader.position(), Some(Index(1_001)));
    let index = producer.append(b"news").await.unwrap().await.unwrap();
    assert_eq!(reader.next_record().await.unwrap().unwrap().index, index);
}

#[tokio::test]
async fn reader_can_be_cancelled_anywhere() {
    let one = One::new();
    let client = one_client(&one).await;
    let producer = client.producer(ProducerOptions::default()).await.unwrap();
    let mut reader = client.reader(Start::First, ReadFrom::Any);
    let mut next = 0;
    for i in 0..200u64 {
        producer.send(&i.to_le_bytes()).await.unwrap();
        let wait = Duration::from_micros(i * 20);
        while let Ok(record) = tokio::time::timeout(wait, reader.next_record()).await {
            assert_eq!(number(&record.unwrap().unwrap().data), next);
            next += 1;
        }
    }
    while next < 200 {
        assert_eq!(number(&reader.next_record().await.unwrap().unwrap().data), next);
        next += 1;
    }
}

#[tokio::test]
async fn watch_returns_changes() {
    let one = One::new();
    let client = one_client(&one).await;
    let mut watch = client.watch(Duration::from_millis(10));
    assert_eq!(watch.next().await.unwrap().last, Index(0));
    one.log.append(b"x").unwrap();
    while watch.next().await.unwrap().last < Index(1) {} // other numbers change, too
}

#[test]
fn threads_use_the_blocking_client() {
    let one = One::new();
    let client = blocking::Client::connect([one.address()], quick()).unwrap();
    let producer = client.producer(ProducerOptions::default()).unwrap();
    let mut reader = client.reader(Start::First, ReadFrom::Any);
    let threads: Vec<_> = (0..4u64)
        .map(|t| {
            let producer = producer.clone();
            std::thread::spawn(move || {
                for i in 0..5_000u64 {
                    producer.send(&(t << 32 | i).to_le_bytes()).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    producer.flush(PATIENCE).unwrap();
    assert_eq!(producer.append(b"the last").unwrap(), Index(20_001));
    for i in 1..=20_001 {
        assert_eq!(reader.next_record().unwrap().unwrap().index, Index(i));
    }
    let nothing = reader.next_batch_within(Duration::from_millis(20)).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::Timeout);
    let (sender, told) = mpsc::channel();
    producer.send_with(b"x", move |result| sender.send(result).unwrap()).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap().first, Index(20_002));
    assert!(producer.close(PATIENCE).all_acknowledged());
    client.discard(Index(20_000)).unwrap();
    assert_eq!(client.info().unwrap().first, Index(20_000));
    // A failure of a client that was dropped without a close is reported.
    let lost = client.producer(producing(|o| o.linger = PATIENCE)).unwrap();
    drop((client, reader, producer));
    drop(lost);
}

#[test]
fn event_loop_waits_for_a_reader_without_a_thread() {
    let one = One::new();
    let client = blocking::Client::connect([one.address()], quick()).unwrap();
    let producer = client.producer(ProducerOptions::default()).unwrap();
    let mut reader = client.reader(Start::First, ReadFrom::Any);
    let (sender, told) = mpsc::channel();
    let hook = |n: u64| {
        let sender = sender.clone();
        move || sender.send(n).unwrap()
    };
    reader.on_more(hook(1)).unwrap();
    reader.on_more(hook(2)).unwrap(); // replaces it
    assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
    assert_eq!(producer.append(b"a").unwrap(), Index(1));
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), 2);
    // There is a record already, and it stays until it is read.
    reader.on_more(hook(3)).unwrap();
    assert_eq!(told.try_recv().unwrap(), 3);
    assert_eq!(reader.position(), Some(Index(1)));
    assert_eq!(reader.next_batch_within(Duration::ZERO).unwrap().unwrap().first(), Index(1));
    // A call that reads removes the hook; records that arrived meanwhile are not lost.
    reader.on_more(hook(4)).unwrap();
    let nothing = reader.next_batch_within(Duration::from_millis(20)).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::Timeout);
    for (n, word) in (2..).zip([b"b", b"c", b"d"]) {
        reader.on_more(hook(n)).unwrap();
        assert_eq!(producer.append(word).unwrap(), Index(n));
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), n);
        let record = reader.next_record().unwrap().unwrap();
        assert_eq!((record.index, &record.data[..]), (Index(n), &word[..]));
    }
    reader.on_more(hook(9)).unwrap();
    reader.seek(Start::Index(Index(3)));
    assert_eq!(reader.next_record().unwrap().unwrap().data, "c");
    // The end of a reader that does not follow, and an error, are also reported, once.
    let mut ends = ReaderOptions::default();
    ends.follow = false;
    let mut ends = client.reader_with(Start::Next, ends);
    ends.on_more(hook(10)).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), 10);
    ends.on_more(hook(11)).unwrap();
    assert_eq!(told.try_recv().unwrap(), 11);
    assert!(ends.next_batch().unwrap().is_none());
    client.discard(Index(3)).unwrap();
    ends.seek(Start::Index(Index(1)));
    ends.on_more(hook(12)).unwrap();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), 12);
    assert_eq!(ends.next_record().unwrap_err().kind(), ErrorKind::Discarded);
    // A reader that is dropped drops its hook, uncalled. All records were read before, so nothing calls the hook earlier.
    assert_eq!(reader.next_record().unwrap().unwrap().data, "d");
    reader.on_more(hook(13)).unwrap();
    drop((reader, ends));
    drop(sender);
    producer.append(b"e").unwrap();
    assert_eq!(told.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected));
}

#[test]
fn threads_wait_for_deliveries_and_callbacks_cannot() {
    let one = One::new();
    let client = blocking::Client::connect([one.address()], quick()).unwrap();
    let producer = client.producer(producing(|o| o.linger = Duration::from_secs(2))).unwrap();
    let first = producer.submit(b"a").unwrap();
    let second = producer.try_submit(b"b").unwrap();
    assert!(first.poll().is_none() && producer.buffered_bytes() > 0);
    assert_eq!(second.wait_timeout(Duration::from_millis(1)).unwrap_err().kind(), ErrorKind::Timeout);
    // Any number of threads can wait for one delivery, each with its own time limit.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let late = |r: chiplog::Result<Index>| r.is_err_and(|e| e.kind() == ErrorKind::Timeout);
            while late(second.wait_timeout(Duration::from_millis(2))) {}
            assert_eq!(second.poll().unwrap().unwrap(), Index(2));
        });
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(second.wait_timeout(PATIENCE).unwrap(), Index(2)));
        }
    });
    assert_eq!((first.wait().unwrap(), first.wait().unwrap()), (Index(1), Index(1)));
    let (sender, told) = mpsc::channel();
    let asked = (client.clone(), producer.clone());
    producer
        .send_batch(&["c", "d"], move |result| {
            let refused = asked.0.info().map(drop).and(asked.1.append(b"never").map(drop));
            sender.send((result, refused, asked.1.try_send(b"e"))).unwrap();
        })
        .unwrap();
    let (result, refused, taken) = told.recv_timeout(PATIENCE).unwrap();
    let told = Appended { durability: Some(Durability::Majority), ..Appended::new(Index(3), 2) };
    assert_eq!(result.unwrap(), told);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    taken.unwrap();
    producer.flush(PATIENCE).unwrap();
    let mut watch = client.watch(Duration::from_millis(10));
    while watch.next_within(PATIENCE).unwrap().last < Index(5) {}
    assert!(client.open_session().unwrap().get() > 0 && client.batch_bytes_max() > 0);
}

/// A callback of one client or of a follower that waited for another client panicked, and a reader that it waited for
/// was lost.
#[test]
fn callback_must_not_wait_for_another_client() {
    let one = One::new();
    let [a, b] = [(), ()].map(|()| blocking::Client::connect([one.address()], quick()).unwrap());
    let producer = a.producer(ProducerOptions::default()).unwrap();
    let mut reader = b.reader(Start::Next, ReadFrom::Any);
    reader.on_more(|| ()).unwrap(); // from here on a task has it: a recall waits
    let (sender, told) = mpsc::channel();
    let asked = b.clone();
    producer
        .send_with(b"x", move |_| {
            let refused = [asked.info().map(drop), reader.next_record().map(drop)];
            reader.seek(Start::Index(Index(1)));
            sender.send((refused, reader)).unwrap();
        })
        .unwrap();
    let (refused, mut reader) = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(refused.map(|r| r.unwrap_err().kind()), [ErrorKind::InvalidArgument; 2]);
    assert_eq!(reader.position(), Some(Index(1)));
    assert_eq!(reader.next_record().unwrap().unwrap().index, Index(1));

    let dir = tempfile::tempdir().unwrap();
    let copy = Follower::open(dir.path(), [one.address()], Start::First, FollowerOptions::default()).unwrap();
    copy.wait_for(Index(1), PATIENCE).unwrap();
    let tail = copy.reader(Start::Next).unwrap();
    let (sender, told) = mpsc::channel();
    let asked = b.clone();
    tail.on_more(move || sender.send(asked.info().map(drop)).unwrap());
    producer.append(b"y").unwrap();
    let refused = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(b.info().unwrap().last, Index(2));
}

/// A callback that panicked ended the producer's task. The other callbacks of that batch, which was acknowledged, were
/// never called, and everything else failed as `Closed`.
#[tokio::test]
async fn panicking_callback_does_not_affect_others() {
    let one = One::new();
    let client = one_client(&one).await;
    let producer = client.producer(producing(|o| o.linger = Duration::from_millis(50))).await.unwrap();
    let (sender, told) = mpsc::channel();
    producer.send_with(b"a", |_| panic!("for the test")).await.unwrap();
    producer.send_with(b"b", move |result| sender.send(result).unwrap()).await.unwrap();
    let delivery = producer.append(b"c").await.unwrap();
    producer.flush(PATIENCE).await.unwrap();
    assert_eq!(told.try_recv().unwrap().unwrap().first, Index(2), "before the flush returns");
    assert_eq!(delivery.await.unwrap(), Index(3));
    assert_eq!(producer.append(b"d").await.unwrap().await.unwrap(), Index(4));
    assert!(producer.close(PATIENCE).await.all_acknowledged());
}

/// Points in time were added without a check: the longest duration as a timeout ended the producer, or the process.
#[tokio::test]
async fn every_duration_may_be_the_longest() {
    const EVER: Duration = Duration::MAX;
    let one = One::new();
    let mut options = ClientOptions::default();
    (options.timeout, options.attempt_timeout, options.connect_timeout) = (EVER, EVER, EVER);
    (options.probe_timeout, options.backoff_min, options.backoff_max) = (EVER, EVER, EVER);
    options.keep_alive = EVER;
    let client = Client::connect([one.address()], options).await.unwrap();
    let producer = client.producer(producing(|o| {
        (o.request_timeout, o.delivery_timeout, o.block_max, o.full_max) = (EVER, EVER, EVER, EVER);
        o.linger = EVER - Duration::from_secs(1);
    }));
    let producer = producer.await.unwrap();
    producer.send(b"a").await.unwrap();
    producer.flush(EVER).await.unwrap();
    let mut options = ReaderOptions::default();
    (options.keep_alive, options.timeout) = (EVER, EVER);
    let mut reader = client.reader_with(Start::First, options);
    assert_eq!(reader.next_record().await.unwrap().unwrap().index, Index(1));
    assert_eq!(client.watch(EVER).next().await.unwrap().last, Index(1));
    producer.send(b"b").await.unwrap();
    assert!(producer.close(EVER).await.all_acknowledged());
    let error = client.producer(producing(|o| o.linger = o.delivery_timeout)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

/// A callback that holds the last handle drops it on the client's own thread, which then waited for itself to end.
#[test]
fn last_handle_may_be_dropped_in_a_callback() {
    let one = One::new();
    let client = blocking::Client::connect([one.address()], quick()).unwrap();
    let producer = client.producer(producing(|o| o.linger = Duration::from_millis(50))).unwrap();
    let (sender, told) = mpsc::channel();
    let last = producer.clone();
    let callback = move |result: chiplog::Result<Appended>| {
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(last)));
        sender.send((result, dropped.is_ok())).unwrap();
    };
    producer.send_with(b"x", callback).unwrap();
    drop((client, producer));
    let (result, dropped) = told.recv_timeout(PATIENCE).unwrap();
    assert!(dropped && result.unwrap().first == Index(1));
}

/// A record that `append` rejects as too large was accepted within a batch: `record_bytes_max` was checked for single
/// records only.
#[tokio::test]
async fn record_limit_applies_within_a_batch() {
    let options = Options::with_segment_bytes(1 << 20).batch_bytes_max(10_000).record_bytes_max(1_000);
    let one = One::with(options, NativeOptions::default());
    let client = one_client(&one).await;
    let producer = client.producer(ProducerOptions::default()).await.unwrap();
    producer.append(&[1; 1_000]).await.unwrap().await.unwrap();
    assert_eq!(producer.append(&[1; 1_001]).await.unwrap_err().kind(), ErrorKind::TooLarge);
    for codec in [Codec::None, Codec::Lz4] {
        let mut builder = chiplog::BatchBuilder::new();
        builder.codec(codec);
        for _ in 0..9 {
            builder.push(&[1; 1_000]).unwrap();
        }
        one.log.append(&builder.build().unwrap()).unwrap();
        builder.push(b"small").unwrap().push(&[1; 1_001]).unwrap();
        let error = one.log.append(&builder.build().unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    }
}
