//! One client must not stop another: each attack, and what other clients get meanwhile. Judged by progress and by
//! counted bytes, never by time.

use crate::attacks::{self, Service, Target, append_all};
use crate::support::{PATIENCE, Served};
use chiplog::{BatchBuilder, Codec};
use chiplog_net::listener::Settings;
use chiplog_net::listener::auth::roles::digest_of;
use chiplog_net::listener::memory_budget::{Budget, BudgetLimits};
use chiplog_net::served::refusals::Refusal;
use chiplog_net::wire::proto::logspec::ReadRequest as LogspecRead;
use chiplog_net::wire::proto::logspec::log_client::LogClient;
use chiplog_net::wire::proto::v1::follow_client::FollowClient;
use chiplog_net::wire::proto::v1::log_client::LogClient as NativeClient;
use chiplog_net::wire::proto::v1::{FollowRequest, ReadRequest, follow_request, read_request};
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not yet");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("{what}: no progress"))
}

/// The resident memory of this process in bytes.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Streams that announced 30 MiB and sent 9 bytes held all the memory for requests: in a minute only 8 appends of other
/// clients succeeded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announced_messages_hold_only_received_bytes() {
    let limits = BudgetLimits::default().bytes(256 << 20).connection_bytes(64 << 20);
    let settings = Settings::default();
    let budget = Budget::new(limits, settings.refusals.clone());
    let server = Served::with_message_bytes(settings, budget.clone(), 31 << 20).await;
    let target = Target::new(&server.address);
    let attack = attacks::announce(&target, 8, 32, 30 << 20, Duration::from_millis(500));
    until("the attack runs", || *attack.begun.borrow() >= 8 * 32).await;
    let channel = target.endpoint().connect().await.unwrap();
    for _ in 0..4 {
        let others = append_all(&target, &channel, 25);
        assert_eq!(in_time("appends of others", others).await.unwrap(), 25);
        // Streams that their client has reset are held until the server has seen that.
        let (held, started) = (budget.used_bytes(), *attack.begun.borrow());
        assert!(
            held as u64 <= started * 4096,
            "{held} bytes are held for 9 bytes of each of {started} streams"
        );
    }
    println!("{} streams were started", *attack.begun.borrow());
    drop(attack);
    until("everything is returned", || budget.used_bytes() == 0 && budget.streams() == 0).await;
}

const UNPACKED: usize = 7 << 20;

/// Appends compressed batches that are small in the log and large in memory.
async fn packed(server: &Served, batches: usize) {
    let log = server.log.clone();
    tokio::task::spawn_blocking(move || {
        let zeros = vec![0; 64 << 10];
        for _ in 0..batches {
            let mut batch = BatchBuilder::new();
            batch.codec(Codec::Zstd);
            for _ in 0..UNPACKED / zeros.len() {
                batch.push(&zeros).unwrap();
            }
            let batch = batch.build().unwrap();
            assert!(batch.as_bytes().len() < 16 << 10, "{}", batch.as_bytes().len());
            log.append(&batch).unwrap();
        }
    })
    .await
    .unwrap();
}

/// Reads this number of records from the start.
async fn read(channel: &Channel, count: usize) {
    let mut client = LogClient::new(channel.clone()).max_decoding_message_size(64 << 20);
    let mut answers = client.read(LogspecRead { next_index: 1 }).await.unwrap().into_inner();
    let mut got = 0;
    while got < count {
        use chiplog_net::wire::proto::logspec::read_reply::Reply;
        match answers.message().await.unwrap().and_then(|answer| answer.reply) {
            Some(Reply::Ok(entries)) => got += entries.entries.len(),
            other => panic!("{other:?}"),
        }
    }
}

/// Batches of some hundred bytes decompress to megabytes. Streams that requested them and read nothing held 6.5 GB, and
/// no other client was served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decompressed_batches_stay_within_the_answer_budget() {
    const ANSWERS: usize = 256 << 20;
    let limits = BudgetLimits::default().answer_bytes(ANSWERS);
    let settings = Settings::default();
    let budget = Budget::new(limits, settings.refusals.clone());
    let server = Served::with_large_batches(settings, budget.clone()).await;
    packed(&server, 4).await;
    let before = resident_bytes();
    let attacker = Target::new(&server.address).from([127, 0, 0, 2]);
    let attack = attacks::read_nothing(&attacker, Service::Logspec, 4, 20, 64 << 10);
    until("the attack runs", || *attack.begun.borrow() >= 80).await;
    let other = Target::new(&server.address);
    let channel = other.endpoint().connect().await.unwrap();
    for _ in 0..4 {
        assert_eq!(in_time("appends of others", append_all(&other, &channel, 25)).await.unwrap(), 25);
        in_time("reads of others", read(&channel, 2 * UNPACKED / (64 << 10))).await;
        let (grown, held) = (resident_bytes().saturating_sub(before), budget.answer_bytes());
        println!(
            "{} MiB more, answers hold {} MiB, {} wait",
            grown >> 20,
            held >> 20,
            budget.answers_waiting()
        );
        // The share of one address, and of the other reader.
        assert!(held <= ANSWERS / 4 + 2 * UNPACKED + (2 << 20), "{held} bytes of answers");
        assert!(grown < ANSWERS as u64, "{grown} bytes more in memory");
    }
    assert!(budget.answers_waiting() > 0);
    drop(attack);
    until("everything is returned", || budget.answer_bytes() == 0 && budget.streams() == 0).await;
}

/// Without mappings a batch was read first, and waited in memory, uncounted, until there was room for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unmapped_batches_are_read_once_they_are_paid_for() {
    const STREAMS: usize = 60;
    for service in [Service::Log, Service::Logspec, Service::Follow] {
        let limits = BudgetLimits::default().answer_bytes(64 << 20).share_percent(50);
        let mut settings = Settings::default();
        settings.limits.slow_reader = None; // no reader is ended
        let budget = Budget::new(limits, settings.refusals.clone());
        let server = Served::without_mappings(settings, budget.clone()).await;
        let log = server.log.clone();
        let large = || vec![7; UNPACKED];
        tokio::task::spawn_blocking(move || (0..2).for_each(|_| _ = log.append(&large()).unwrap()))
            .await
            .unwrap();
        let before = resident_bytes();
        let attacker = Target::new(&server.address).from([127, 0, 0, 2]);
        let attack = attacks::read_nothing(&attacker, service, 3, STREAMS / 3, 64 << 10);
        until("they wait", || budget.answers_waiting() >= STREAMS / 2).await;
        let other = Target::new(&server.address);
        let channel = other.endpoint().connect().await.unwrap();
        for _ in 0..4 {
            assert_eq!(in_time("appends of others", append_all(&other, &channel, 25)).await.unwrap(), 25);
            if service == Service::Logspec {
                in_time("reads of others", read(&channel, 2)).await;
            }
            let (grown, held) = (resident_bytes().saturating_sub(before), budget.answer_bytes());
            println!("{service:?}: {} MiB more, answers hold {} MiB", grown >> 20, held >> 20);
            // The other tests of this process use memory too.
            assert!(grown < (STREAMS * UNPACKED / 2) as u64, "{service:?}: {grown} bytes more in memory");
        }
        drop(attack);
        until("everything is returned", || budget.answer_bytes() == 0 && budget.streams() == 0).await;
    }
}

/// The same from the address of the other clients, and without tokens: clients that read nothing are ended when others
/// wait for the memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_readers_give_way_to_readers_of_their_address() {
    let limits = BudgetLimits::default().answer_bytes(64 << 20).share_percent(100);
    let mut settings = Settings::default();
    settings.limits.slow_reader = Some(Duration::from_secs(6));
    let budget = Budget::new(limits, settings.refusals.clone());
    let server = Served::with_large_batches(settings, budget.clone()).await;
    packed(&server, 4).await;
    let target = Target::new(&server.address);
    let _attack = attacks::read_nothing(&target, Service::Logspec, 4, 10, 64 << 10);
    until("they hold it all", || budget.answers_waiting() > 20).await;
    let channel = target.endpoint().connect().await.unwrap();
    for _ in 0..2 {
        assert_eq!(in_time("appends of others", append_all(&target, &channel, 25)).await.unwrap(), 25);
        in_time("reads of others", read(&channel, 2 * UNPACKED / (64 << 10))).await;
    }
    assert!(server.refusals.read(Refusal::SlowReader) > 0);
}

/// Keep-alives waited for the memory that other readers held: a reader left its server for one that was no better.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn positions_are_sent_while_batches_wait_for_memory() {
    // Less than one decompressed batch: one of them uses all memory.
    let limits = BudgetLimits::default().answer_bytes(4 << 20).share_percent(100);
    let mut settings = Settings::default();
    settings.limits.slow_reader = None; // no reader is ended
    let budget = Budget::new(limits, settings.refusals.clone());
    let server = Served::with_large_batches(settings, budget.clone()).await;
    packed(&server, 4).await;
    let log = server.log.clone();
    // Small batches are copied into the reply: several of them are sent without memory.
    let small = move || (0..8).for_each(|_| _ = log.append(&[7; 4 << 10]).unwrap());
    tokio::task::spawn_blocking(small).await.unwrap();
    let target = Target::new(&server.address);
    let attack = attacks::read_nothing(&target, Service::Logspec, 1, 4, 64 << 10);
    until("they hold it all", || budget.answers_waiting() >= 2).await;
    let channel = target.endpoint().connect().await.unwrap();
    let keep_alive_millis = 10;
    let start = Some(read_request::Start::Last(8));
    let read = ReadRequest { start, follow: true, keep_alive_millis, ..Default::default() };
    let mut reads = NativeClient::new(channel.clone()).read(read).await.unwrap().into_inner();
    let start = Some(follow_request::Start::Oldest(true));
    let follow = FollowRequest { start, keep_alive_millis, ..Default::default() };
    let mut feeds = FollowClient::new(channel).follow(follow).await.unwrap().into_inner();
    for n in 0..5 {
        let reply = in_time("a reader's keep-alive", reads.message()).await.unwrap().unwrap();
        assert_eq!((reply.batches.len(), reply.next), (0, reply.last - 7), "{n}");
        let reply = in_time("a follower's keep-alive", feeds.message()).await.unwrap().unwrap();
        assert!(reply.bodies.is_empty() && reply.head.is_empty(), "{n}");
    }
    drop(attack);
    let records = async { while reads.message().await.unwrap().unwrap().batches.is_empty() {} };
    in_time("a reader's records", records).await;
    let blocks = async { while feeds.message().await.unwrap().unwrap().head.is_empty() {} };
    in_time("a follower's blocks", blocks).await;
}

/// Thousands of unread streams used the processors and a gigabyte: other clients appended nothing meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_an_address_and_of_a_token_are_bounded() {
    const STREAMS: usize = 80;
    let limits = BudgetLimits::default().streams(STREAMS).answer_bytes(64 << 20);
    let settings = Settings::default();
    let budget = Budget::new(limits, settings.refusals.clone());
    let tokens = format!(
        "read:{}
append:{}
",
        digest_of("attacker"),
        digest_of("other")
    );
    let server = Served::with(settings, Some(tokens.parse().unwrap()), budget.clone(), 1 << 20).await;
    let log = server.log.clone();
    tokio::task::spawn_blocking(move || (0..64).for_each(|_| _ = log.append(&[7; 64 << 10]).unwrap()))
        .await
        .unwrap();
    let other = Target::new(&server.address).token("other").from([127, 0, 0, 9]);
    let channel = other.endpoint().connect().await.unwrap();
    // From one address; then with one token from several.
    for froms in [[[127, 0, 0, 2]; 3], [[127, 0, 0, 2], [127, 0, 0, 3], [127, 0, 0, 4]]] {
        for service in [Service::Logspec, Service::Log] {
            let before = server.refusals.read(Refusal::Streams);
            let attacks: Vec<_> = froms
                .iter()
                .map(|from| Target::new(&server.address).token("attacker").from(*from))
                .map(|target| attacks::read_nothing(&target, service, 2, 20, 1 << 20))
                .collect();
            until("they are rejected", || server.refusals.read(Refusal::Streams) >= before + 50).await;
            for _ in 0..4 {
                let streams = budget.streams();
                assert!(streams <= STREAMS / 4 + 1, "{streams} streams are open");
                let others = append_all(&other, &channel, 25);
                assert_eq!(in_time("appends of others", others).await.unwrap(), 25);
            }
            drop(attacks);
            until("everything is returned", || budget.streams() == 0 && budget.answer_bytes() == 0).await;
        }
    }
    // A stream is open as long as any of its answer is unread, and one more is rejected with a specific error.
    let from = |n| Target::new(&server.address).token("attacker").from([127, 0, 0, n]);
    let _held = attacks::read_nothing(&from(5), Service::Log, 1, STREAMS / 4, 1 << 20);
    until("they are open", || budget.streams() == STREAMS / 4).await;
    let late = from(6);
    let mut client = LogClient::new(late.endpoint().connect().await.unwrap());
    let status = client.read(late.request(LogspecRead { next_index: 1 })).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status}");
    assert!(status.message().contains("of this token"), "{status}");
}

/// Silent connections took all places: no other client could connect until they timed out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unauthenticated_connections_are_closed_first() {
    let mut settings = Settings::default();
    (settings.limits.connections, settings.limits.connections_per_address) = (16, 8);
    let server = Served::start(settings).await;
    // A connection that was let in stays.
    let other = Target::new(&server.address).from([127, 0, 0, 9]);
    let early = other.endpoint().connect().await.unwrap();
    assert_eq!(append_all(&other, &early, 1).await.unwrap(), 1);
    let froms = [[127, 0, 0, 2], [127, 0, 0, 3], [127, 0, 0, 4], [127, 0, 0, 5]];
    let attack = attacks::connect(&server.address, &froms, 8, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    until("the attack runs", || *attack.begun.borrow() >= 16).await;
    for _ in 0..10 {
        let appended = async {
            loop {
                let Ok(channel) = other.endpoint().connect().await else { continue };
                if append_all(&other, &channel, 1).await.is_ok() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        in_time("another client is let in", appended).await;
    }
    assert_eq!(in_time("the early client continues", append_all(&other, &early, 10)).await.unwrap(), 10);
}

/// Health watches from one address took all places of calls that need no token: other probes could not check the
/// server's health.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_calls_of_an_address_leave_places_to_others() {
    const STREAMS: usize = 16 * 16;
    let limits = BudgetLimits::default().streams(STREAMS);
    let settings = Settings::default();
    let budget = Budget::new(limits, settings.refusals.clone());
    let tokens = format!("append:{}", digest_of("other"));
    let server = Served::with(settings, Some(tokens.parse().unwrap()), budget.clone(), 1 << 20).await;
    let attacker = Target::new(&server.address).from([127, 0, 0, 2]);
    let attack = attacks::watch_health(&attacker, 4, STREAMS / 16);
    until("the attack runs", || *attack.begun.borrow() >= 4 * STREAMS as u64 / 16).await;
    server.refused_at_least(Refusal::Streams, 1).await;
    // A quarter of the sixteenth.
    assert_eq!(budget.streams(), STREAMS / 16 / 4);
    for host in 3..6 {
        let other = Target::new(&server.address).from([127, 0, 0, host]);
        let channel = other.endpoint().connect().await.unwrap();
        let asked = HealthClient::new(channel).check(HealthCheckRequest::default()).await;
        assert_eq!(asked.unwrap().into_inner().status, i32::from(ServingStatus::Serving));
    }
    let channel = attacker.endpoint().connect().await.unwrap();
    let status = HealthClient::new(channel).check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status}");
    assert!(status.message().contains("without a token of this address"), "{status}");
    drop(attack);
    until("everything is returned", || budget.streams() == 0).await;
}
