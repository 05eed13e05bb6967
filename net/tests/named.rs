//! Named logs over the network: beside the default log of a server, each with its own indexes, sessions and discards.
#![allow(clippy::unwrap_used, reason = "a test")]

mod served;

use chiplog::{
    Batch, BatchBuilder, Codec, Durability, ErrorKind, Index, LogNumber, LogOption, Logs, LogsOptions,
    Options, Sequence, SessionId, Start,
};
use chiplog_net::client::{Client, ClientOptions, ProducerOptions};
use chiplog_net::follower::{Follower, FollowerOptions};
use chiplog_net::wire::proto::v1::admin_client::AdminClient;
use chiplog_net::wire::proto::v1::*;
use chiplog_net::wire::status::{NOT_APPENDED, from_status};
use served::client::{quick, read_to_end};
use served::{One, PATIENCE};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tonic::transport::Channel;

/// A server with a default log and named logs.
struct Named {
    one: One,
    logs: Logs,
    _dir: TempDir,
    admin: AdminClient<Channel>,
}

impl Named {
    async fn new() -> Self {
        let (one, dir) = (One::new(), tempfile::tempdir().unwrap());
        let options = LogsOptions::default().options(Options::with_segment_bytes(1 << 20).sessions_max(64));
        let logs = Logs::open(dir.path(), options).unwrap();
        one.server.host.open_named(logs.clone());
        let admin = AdminClient::connect(format!("http://{}", one.address())).await.unwrap();
        Self { one, logs, _dir: dir, admin }
    }

    async fn create(&mut self, name: &str) -> Result<LogInfo, ErrorKind> {
        let request = CreateLogRequest { name: name.to_owned(), beside: String::new() };
        match self.admin.create_log(request).await {
            Ok(created) => Ok(created.into_inner().log.unwrap()),
            Err(status) => Err(from_status(&status).kind()),
        }
    }

    async fn delete(&mut self, name: &str) {
        self.admin
            .delete_log(DeleteLogRequest { name: name.to_owned(), log_id: String::new() })
            .await
            .unwrap();
    }

    fn options(name: &str) -> ClientOptions {
        quick().log(name.to_owned())
    }

    async fn client(&self, name: &str) -> Client {
        Client::connect([self.one.address()], Self::options(name)).await.unwrap()
    }
}

async fn append(client: &Client, records: &[&str]) -> u64 {
    let producer = client.producer(ProducerOptions::default()).await.unwrap();
    let mut last = 0;
    for record in records {
        last = producer.append(record.as_bytes()).await.unwrap().await.unwrap().get();
    }
    assert!(producer.close(PATIENCE).await.all_acknowledged());
    last
}

/// The answer says when the quota allows the batch; a producer waits for that and sends it again.
#[tokio::test]
async fn refusal_by_a_quota_says_how_long_to_wait() {
    let mut named = Named::new().await;
    named.create("limited").await.unwrap();
    let log = named.logs.get("limited").unwrap();
    let rate = |rate| log.set_log_options(&[(LogOption::AppendBytesPerSecond, rate)], PATIENCE).unwrap();
    rate(Some(1));
    let batch = BatchBuilder::new().push(b"of any size, once").unwrap().build().unwrap();
    let request = || AppendRequest {
        log: "limited".into(),
        batch: batch.as_bytes().clone(),
        ..AppendRequest::default()
    };
    let mut client = log_client::LogClient::connect(format!("http://{}", named.one.address())).await.unwrap();
    let mut answers = client.append(tokio_stream::iter([request(), request()])).await.unwrap().into_inner();
    use append_response::Result::{Appended, Refused};
    assert!(matches!(answers.message().await.unwrap().unwrap().result, Some(Appended(_))));
    let Some(Refused(refused)) = answers.message().await.unwrap().unwrap().result else { panic!() };
    assert!(refused.retryable && refused.retry_after_millis > 5_000, "{refused:?}");
    assert_eq!(ErrorKind::from_code(refused.kind), Some(ErrorKind::Busy));

    let producer = named.client("limited").await.producer(ProducerOptions::default()).await.unwrap();
    let sent = producer.append(b"later").await.unwrap();
    rate(None);
    assert_eq!(sent.await.unwrap(), Index(2));
}

/// An append stream on which a test waits for each answer.
struct Appending {
    requests: tokio::sync::mpsc::Sender<AppendRequest>,
    answers: tonic::Streaming<AppendResponse>,
}

impl Appending {
    async fn open(address: &str) -> Self {
        Self::meaning(address, None).await
    }

    /// `meant`: the id of the first log, in the call's metadata.
    async fn meaning(address: &str, meant: Option<&str>) -> Self {
        let mut client = log_client::LogClient::connect(format!("http://{address}")).await.unwrap();
        let (requests, of_stream) = tokio::sync::mpsc::channel(16);
        let mut call = tonic::Request::new(tokio_stream::wrappers::ReceiverStream::new(of_stream));
        if let Some(meant) = meant {
            call.metadata_mut().insert("chiplog-log-id", meant.parse().unwrap());
        }
        let answers = client.append(call).await.unwrap().into_inner();
        Self { requests, answers }
    }

    /// The index of the record, or why the batch was refused.
    async fn append(&mut self, log: &str, log_id: &str) -> Result<u64, Refused> {
        self.send(log, log_id).await;
        self.answer().await
    }

    async fn send(&self, log: &str, log_id: &str) {
        let batch = BatchBuilder::new().push(log.as_bytes()).unwrap().build().unwrap();
        let (log, log_id, batch) = (log.to_owned(), log_id.to_owned(), batch.as_bytes().clone());
        self.requests.send(AppendRequest { log, log_id, batch }).await.unwrap();
    }

    async fn answer(&mut self) -> Result<u64, Refused> {
        match self.answers.message().await.unwrap().unwrap().result.unwrap() {
            append_response::Result::Appended(appended) => Ok(appended.first),
            append_response::Result::Refused(refused) => Err(refused),
        }
    }
}

fn kind_of(refused: Result<u64, Refused>) -> Option<ErrorKind> {
    ErrorKind::from_code(refused.unwrap_err().kind)
}

/// A batch goes to the log that its request names, or to none.
#[tokio::test]
async fn one_stream_appends_to_many_logs() {
    let mut named = Named::new().await;
    let first = named.create("first").await.unwrap();
    let second = named.create("second").await.unwrap();
    let mut stream = Appending::open(&named.one.address()).await;
    let turns = [("first", 1), ("second", 1), ("", 2), ("second", 3), ("default", 1), ("", 2), ("first", 2)];
    for (log, index) in turns {
        stream.send(log, "").await;
        assert_eq!(stream.answer().await, Ok(index), "log {log:?}");
    }
    // All at once: answers are in the order of the requests, whichever group was faster.
    for n in 0..100 {
        stream.send(["first", "second", "default"][n % 3], "").await;
        if n % 10 == 9 {
            for at in n - 9..=n {
                assert_eq!(stream.answer().await, Ok((at / 3) as u64 + [3, 4, 3][at % 3]));
            }
        }
    }
    assert_eq!(kind_of(stream.append("third", "").await), Some(ErrorKind::NotFound));
    assert_eq!(kind_of(stream.append("", "").await), Some(ErrorKind::NotFound), "not to the log before");
    let lasts = ["first", "second"].map(|name| named.logs.get(name).unwrap().last_index());
    named.create("third").await.unwrap();
    assert_eq!(stream.append("", "").await, Ok(1));
    assert_eq!(kind_of(stream.append("second", &first.log_id).await), Some(ErrorKind::NotFound));
    assert_eq!(kind_of(stream.append("second", "no id").await), Some(ErrorKind::NotFound));
    assert_eq!(["first", "second"].map(|name| named.logs.get(name).unwrap().last_index()), lasts);
    assert_eq!(stream.append("first", &first.log_id).await, Ok(lasts[0].get() + 1));
    // A name that is given again: the stream finds the new log after one refusal, or at once by its id.
    named.delete("first").await;
    let again = named.create("first").await.unwrap();
    assert_eq!(kind_of(stream.append("first", "").await), Some(ErrorKind::NotFound));
    assert_eq!(stream.append("first", "").await, Ok(1));
    named.delete("first").await;
    assert_eq!(kind_of(stream.append("first", &again.log_id).await), Some(ErrorKind::NotFound));
    let again = named.create("first").await.unwrap();
    assert_eq!(stream.append("first", &again.log_id).await, Ok(1));
    assert_eq!(stream.append("second", "").await, Ok(lasts[1].get() + 1), "the stream goes on");
    assert_eq!(stream.append("second", &second.log_id.to_uppercase()).await, Ok(lasts[1].get() + 2));
    assert_eq!(kind_of(stream.append(&"x".repeat(301), "").await), Some(ErrorKind::InvalidArgument));
}

/// The id in the call's metadata is about the log of the first request, also when its name is looked up again.
#[tokio::test]
async fn stream_appends_to_no_other_log_than_its_call_means() {
    let mut named = Named::new().await;
    let first = named.create("first").await.unwrap();
    named.create("second").await.unwrap();
    let mut stream = Appending::meaning(&named.one.address(), Some(&first.log_id)).await;
    assert_eq!(stream.append("first", "").await, Ok(1));
    assert_eq!(stream.append("second", "").await, Ok(1));
    assert_eq!(stream.append("first", "").await, Ok(2));
    named.delete("first").await;
    let again = named.create("first").await.unwrap();
    for log in ["first", "", "first"] {
        assert_eq!(kind_of(stream.append(log, "").await), Some(ErrorKind::NotFound), "{log:?}");
    }
    assert_eq!(stream.append("second", "").await, Ok(2));
    assert_eq!(named.logs.get("first").unwrap().last_index(), Index(0));
    assert_eq!(stream.append("first", &again.log_id).await, Ok(1), "a request that means it");
}

/// A stream keeps what it has looked up, so it ends when that is much.
#[tokio::test]
async fn stream_looks_up_a_limited_number_of_names() {
    let mut named = Named::new().await;
    named.create("first").await.unwrap();
    let mut stream = Appending::open(&named.one.address()).await;
    assert_eq!(stream.append("first", "").await, Ok(1));
    for n in 1..4096 {
        assert_eq!(kind_of(stream.append("none", "").await), Some(ErrorKind::NotFound), "{n}");
    }
    assert_eq!(stream.append("first", "").await, Ok(2), "it was looked up before");
    stream.send("none", "").await;
    let ended = stream.answers.message().await.unwrap_err();
    assert_eq!(from_status(&ended).kind(), ErrorKind::Unavailable, "{ended}");
}

/// The status says of a replica whether it has room, and of no log that has reached its own capacity.
#[tokio::test]
async fn full_log_is_refused_by_name_and_its_server_is_not_full() {
    let mut named = Named::new().await;
    named.create("full").await.unwrap();
    named.create_beside("other", "full").await;
    let [full, other] = ["full", "other"].map(|name| named.logs.get(name).unwrap());
    full.set_log_options(&[(LogOption::CapacityBytes, Some(128 << 10))], PATIENCE).unwrap();
    let batch = BatchBuilder::new().push(&[7; 128 << 10]).unwrap().build().unwrap();
    full.append(&batch).unwrap();
    let request =
        AppendRequest { log: "full".into(), batch: batch.as_bytes().clone(), ..AppendRequest::default() };
    let mut client = log_client::LogClient::connect(format!("http://{}", named.one.address())).await.unwrap();
    let mut answers = client.append(tokio_stream::iter([request])).await.unwrap().into_inner();
    let Some(append_response::Result::Refused(refused)) = answers.message().await.unwrap().unwrap().result
    else {
        panic!("it was appended")
    };
    assert_eq!(ErrorKind::from_code(refused.kind), Some(ErrorKind::Full));
    assert!(refused.message.contains("capacity_bytes"), "{refused:?}");
    let clients = [named.client("other").await, named.client("full").await];
    let appends = clients.each_ref().map(|client| (client, &batch));
    let refused = Client::append_together(&appends).await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Full && refused.to_string().contains("log \"full\""), "{refused}");
    assert_eq!(other.last_index(), Index(0), "nothing of it was appended");
    let groups = named.admin.status(StatusRequest::default()).await.unwrap().into_inner().groups;
    assert!(groups.iter().all(|group| group.full.is_empty()), "{groups:?}");
    other.append(&batch).unwrap();

    let producer = clients[1].producer(ProducerOptions::default()).await.unwrap();
    let sent = producer.append(b"later").await.unwrap();
    full.discard(Index(2)).unwrap();
    assert_eq!(sent.await.unwrap(), Index(2), "a producer waits until there is room");
}

#[tokio::test]
async fn client_sets_options_of_a_log_and_of_its_group() {
    let mut named = Named::new().await;
    named.create("orders").await.unwrap();
    let orders = named.client("orders").await;
    assert!(orders.log_options().await.unwrap().is_empty());
    let (age, rate) = (LogOption::RetentionAge, LogOption::AppendBytesPerSecond);
    orders.set_log_options(&[(age, Some(60_000)), (rate, Some(u64::MAX))], PATIENCE).await.unwrap();
    let options = orders.log_options().await.unwrap();
    assert_eq!(options.iter().collect::<Vec<_>>(), [(age, 60_000), (rate, u64::MAX)]);
    assert_eq!(named.logs.get("orders").unwrap().log_options(), options);
    orders.set_log_options(&[(age, None)], PATIENCE).await.unwrap();
    assert_eq!(orders.log_options().await.unwrap().get(age), None);
    for wrong in [
        vec![],
        vec![(age, Some(0))],
        vec![(age, None), (age, Some(7))],
        vec![(LogOption::SessionWindow, Some(7))],
    ] {
        let refused = orders.set_log_options(&wrong, PATIENCE).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{wrong:?}: {refused}");
    }
    let group = named.client("_group-1").await;
    group.set_log_options(&[(LogOption::SessionsMax, Some(7))], Duration::ZERO).await.unwrap();
    assert_eq!(group.log_options().await.unwrap().get(LogOption::SessionsMax), Some(7));
    let default = named.client("").await;
    assert!(default.log_options().await.unwrap().is_empty());
    default.set_log_options(&[(LogOption::RetentionBytes, Some(1 << 30))], PATIENCE).await.unwrap();
    assert_eq!(named.one.log.log_options().get(LogOption::RetentionBytes), Some(1 << 30));
    named.delete("orders").await;
    let gone = orders.set_log_options(&[(age, Some(60_000))], PATIENCE).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
}

#[tokio::test]
async fn each_log_has_its_own_records_sessions_and_discards() {
    let mut named = Named::new().await;
    let (orders, users) = (named.create("orders").await.unwrap(), named.create("users/7").await.unwrap());
    assert_ne!(orders.log_id, users.log_id);
    let clients = [named.client("orders").await, named.client("users/7").await, named.client("").await];
    for (n, client) in clients.iter().enumerate() {
        let records: Vec<String> = (0..=n).map(|record| format!("{n} {record}")).collect();
        let records: Vec<&str> = records.iter().map(String::as_str).collect();
        assert_eq!(append(client, &records).await, n as u64 + 1);
    }
    assert_eq!(named.one.log.last_index(), Index(3));
    clients[1].discard(Index(2)).await.unwrap();
    for (n, client) in clients.iter().enumerate() {
        let first = if n == 1 { 2 } else { 1 };
        let want: Vec<_> =
            (first..=n as u64 + 1).map(|index| (index, format!("{n} {}", index - 1).into_bytes())).collect();
        assert_eq!(read_to_end(client, Start::First).await, want);
        let info = client.info().await.unwrap();
        assert_eq!((info.first.get(), info.last.get()), (first, n as u64 + 1));
        assert_eq!(client.info_stale().await.unwrap().last, info.last);
    }
}

#[tokio::test]
async fn unknown_name_is_not_found_and_a_server_without_named_logs_says_how_to_get_them() {
    let named = Named::new().await;
    let wrong = Client::connect([named.one.address()], Named::options("none")).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::NotFound, "{wrong}");
    let plain = One::new();
    let wrong = Client::connect([plain.address()], Named::options("none")).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::NotFound, "{wrong}");
    let mut admin = AdminClient::connect(format!("http://{}", plain.address())).await.unwrap();
    let refused = admin.list_logs(ListLogsRequest::default()).await.unwrap_err();
    assert_eq!(from_status(&refused).kind(), ErrorKind::Unsupported);
    assert!(refused.message().contains("`groups`"), "{refused}");
}

#[tokio::test]
async fn names_are_checked_and_exist_once() {
    let mut named = Named::new().await;
    assert_eq!(named.create("default").await.unwrap_err(), ErrorKind::AlreadyExists);
    for wrong in ["", "a b", "_system", "a/b", "a/01", ".", &"x".repeat(250)] {
        assert_eq!(named.create(wrong).await.unwrap_err(), ErrorKind::InvalidArgument, "{wrong:?}");
    }
    named.create("orders").await.unwrap();
    assert_eq!(named.create("orders").await.unwrap_err(), ErrorKind::AlreadyExists);
    let beside = CreateLogRequest { name: "lines".into(), beside: "orders".into() };
    let lines = named.admin.create_log(beside).await.unwrap().into_inner().log.unwrap();
    assert_eq!(lines.group, named.logs.info("orders").unwrap().group);
    let beside = CreateLogRequest { name: "more".into(), beside: "none".into() };
    assert_eq!(from_status(&named.admin.create_log(beside).await.unwrap_err()).kind(), ErrorKind::NotFound);
}

/// A client of a deleted log never gets records of the log that has its name now.
#[tokio::test]
async fn client_of_a_deleted_log_is_refused_by_the_next_log_of_that_name() {
    let mut named = Named::new().await;
    named.create("orders").await.unwrap();
    let old = named.client("orders").await;
    append(&old, &["first"]).await;
    named.delete("orders").await;
    assert_eq!(old.info().await.unwrap_err().kind(), ErrorKind::NotFound);
    named.create("orders").await.unwrap();
    assert_eq!(old.info().await.unwrap_err().kind(), ErrorKind::NotFound);
    let mut reader = old.reader(Start::First, chiplog_net::client::ReadFrom::Any);
    let refused = tokio::time::timeout(PATIENCE, reader.next_record()).await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound, "{refused}");
    assert_eq!(append(&named.client("orders").await, &["new"]).await, 1);
}

/// The watch of a deleted log waited for ever, and that of a quiet one reported the bytes of others of its group.
#[tokio::test]
async fn watch_ends_with_its_log_and_reports_no_other_log() {
    let mut named = Named::new().await;
    named.create("quiet").await.unwrap();
    named.create("busy").await.unwrap();
    let (quiet, busy) = (named.client("quiet").await, named.client("busy").await);
    append(&quiet, &["first"]).await;
    let mut watch = quiet.watch(Duration::from_millis(10));
    assert_eq!(watch.next().await.unwrap().last, Index(1));
    for n in 1..20 {
        assert_eq!(append(&busy, &["other"]).await, n);
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    append(&quiet, &["second"]).await;
    assert_eq!(watch.next().await.unwrap().last, Index(2), "nothing else was news");
    named.delete("quiet").await;
    for again in [false, true] {
        if again {
            named.create("quiet").await.unwrap();
        }
        let ended = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap();
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::NotFound, "{again}");
    }
}

#[tokio::test]
async fn sealed_log_refuses_appends_and_keeps_its_records() {
    let mut named = Named::new().await;
    named.create("orders").await.unwrap();
    let client = named.client("orders").await;
    let producer = client.producer(ProducerOptions::default()).await.unwrap();
    producer.append(b"x").await.unwrap().await.unwrap();
    named.admin.seal_log(SealLogRequest { name: "orders".into(), log_id: String::new() }).await.unwrap();
    let refused = producer.append(b"y").await.unwrap().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Sealed, "{refused}");
    assert_eq!(read_to_end(&client, Start::First).await, [(1, b"x".to_vec())]);
    let missing = named
        .admin
        .seal_log(SealLogRequest { name: "none".into(), log_id: String::new() })
        .await
        .unwrap_err();
    assert_eq!(from_status(&missing).kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn list_comes_in_pages() {
    let mut named = Named::new().await;
    for n in 0..7 {
        named.create(&format!("a-{n}")).await.unwrap();
    }
    named.create("b").await.unwrap();
    let mut request = ListLogsRequest { prefix: "a-".into(), after: String::new(), limit: 3 };
    let mut pages = Vec::new();
    loop {
        let page = named.admin.list_logs(request.clone()).await.unwrap().into_inner();
        request.after = page.logs.last().unwrap().name.clone();
        pages.push(page.logs.iter().map(|log| log.name.clone()).collect::<Vec<_>>());
        if !page.more {
            break;
        }
    }
    assert_eq!(pages, [vec!["a-0", "a-1", "a-2"], vec!["a-3", "a-4", "a-5"], vec!["a-6"]]);
    let all = named.admin.list_logs(ListLogsRequest::default()).await.unwrap().into_inner();
    assert_eq!((all.logs.len(), all.more), (8, false));
}

/// The groups of named logs are part of a server's status, and calls about replicas can name them.
#[tokio::test]
async fn status_shows_the_groups() {
    let mut named = Named::new().await;
    named.create("orders").await.unwrap();
    let status = |log: &str| StatusRequest { log: log.to_owned() };
    let all = named.admin.status(status("")).await.unwrap().into_inner();
    assert_eq!(
        all.groups.iter().map(|group| (group.number, group.logs)).collect::<Vec<_>>(),
        [(0, 0), (1, 1), (2, 0)]
    );
    assert!(all.groups.iter().all(|group| group.leader_node == 1 && group.voters == [1]));
    let group = named.admin.status(status("_group-1")).await.unwrap().into_inner();
    assert_ne!(group.log_id, all.log_id);
    assert!(group.groups.is_empty());
    assert!(named.admin.status(status("_system")).await.is_ok());
    let wrong = named.admin.status(status("_group-9")).await.unwrap_err();
    assert_eq!(from_status(&wrong).kind(), ErrorKind::NotFound);
}

/// A program creates its logs through the client that it has.
#[tokio::test]
async fn client_creates_lists_seals_and_deletes_logs() {
    let named = Named::new().await;
    let client = named.client("").await;
    let created = client.create_log("orders").await.unwrap();
    assert_eq!(
        (created.name.as_str(), created.first_index, created.last_index),
        ("orders", Index(1), Index(0))
    );
    assert_eq!(client.create_log("orders").await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    let lines = client.create_log_beside("lines", "orders").await.unwrap();
    assert_eq!(lines.group, created.group);
    let orders = client.of_log("orders").await.unwrap();
    append(&orders, &["a", "b"]).await;
    assert_eq!(client.of_log("none").await.unwrap_err().kind(), ErrorKind::NotFound);
    client.seal_log("lines").await.unwrap();
    client.seal_log("lines").await.unwrap();
    let all = client.list_logs("").await.unwrap();
    let seen: Vec<_> = all.iter().map(|log| (log.name.as_str(), log.last_index.get(), log.sealed)).collect();
    assert_eq!(seen, [("lines", 0, true), ("orders", 2, false)]);
    assert_eq!(all[1].log_id, created.log_id);
    assert_eq!(orders.list_logs("o").await.unwrap().len(), 1, "any client of the servers will do");
    client.delete_log("orders").await.unwrap();
    assert_eq!(client.delete_log("orders").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(client.list_logs("o").await.unwrap(), []);
    let plain = One::new();
    let client = Client::connect([plain.address()], quick()).await.unwrap();
    assert_eq!(client.create_log("x").await.unwrap_err().kind(), ErrorKind::Unsupported);
}

/// Each log had connections of its own, one for calls and one for each producer: thousands of logs used up what a server allows one
/// address.
#[tokio::test]
async fn many_logs_share_few_connections() {
    const LOGS: u64 = 40;
    let mut named = Named::new().await;
    for n in 0..LOGS {
        named.create(&n.to_string()).await.unwrap();
    }
    let server = &named.one.server;
    let before = server.connections.load(Ordering::Relaxed);
    let client = Client::connect([named.one.address()], Named::options("")).await.unwrap();
    let mut open = Vec::new();
    for n in 0..LOGS {
        let log = client.of_log(n.to_string()).await.unwrap();
        let producer = log.producer(ProducerOptions::default()).await.unwrap();
        assert_eq!(producer.append(b"a").await.unwrap().await.unwrap(), Index(1));
        assert_eq!(log.info().await.unwrap().last, Index(1));
        open.push(producer);
    }
    let made = server.connections.load(Ordering::Relaxed) - before;
    assert!(
        (5..=8).contains(&made),
        "four for appends, and one for calls, unless the machine was slow for long: {made}"
    );
    // An append stream that shares its connection ends when it is idle: the next record needs a call. The last one on each connection stays.
    let begun = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        let calls = server.calls.load(Ordering::Relaxed);
        for producer in &open {
            producer.append(b"b").await.unwrap().await.unwrap();
        }
        if server.calls.load(Ordering::Relaxed) - calls >= LOGS - 4 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "the streams of idle producers stay open");
    }
    let again = server.connections.load(Ordering::Relaxed) - before;
    assert!(again <= made + 3, "{made}, then {again}: connections follow the streams, not the logs");
    assert!(open.pop().unwrap().close(PATIENCE).await.all_acknowledged());
}

/// A program with one log keeps its stream: its next record takes one round trip.
#[tokio::test]
async fn stream_that_shares_no_connection_stays_open() {
    let one = One::new();
    let client = Client::connect([one.address()], quick()).await.unwrap();
    let producer = client.producer(ProducerOptions::default()).await.unwrap();
    producer.append(b"a").await.unwrap().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let calls = one.server.calls.load(Ordering::Relaxed);
    producer.append(b"b").await.unwrap().await.unwrap();
    assert_eq!(one.server.calls.load(Ordering::Relaxed), calls);
}

/// A copy in the program's process has the records of all logs of a group, or of a single one.
#[tokio::test]
async fn a_group_can_be_followed_and_one_log_of_it() {
    let mut named = Named::new().await;
    let number = named.create("orders").await.unwrap().number;
    let group = format!("_group-{}", named.logs.info("orders").unwrap().group);
    append(&named.client("orders").await, &["a", "b"]).await;
    let address = named.one.address();
    let follow = move |log: &str| {
        let (dir, log, address) = (tempfile::tempdir().unwrap(), log.to_owned(), address.clone());
        let options = FollowerOptions::default().log(log);
        let opened = tokio::task::spawn_blocking(move || {
            (Follower::open(dir.path(), [address], Start::First, options), dir)
        });
        async { tokio::time::timeout(PATIENCE, opened).await.unwrap().unwrap() }
    };
    let (one, _dir) = follow("orders").await;
    let one = one.unwrap();
    let read = move || {
        one.wait_for(Index(2), PATIENCE).unwrap();
        assert_eq!(one.log().read(Index(2)).unwrap().data, "b");
        assert_eq!(one.log().named_logs(), 0);
        one.close().unwrap();
    };
    tokio::task::spawn_blocking(read).await.unwrap();
    let (copy, _dir) = follow(&group).await;
    let copy = copy.unwrap();
    let read = move || {
        let begun = Instant::now();
        let log = loop {
            match copy.log().named(LogNumber(number)) {
                Ok(log) if log.last_index() == Index(2) => break log,
                other => assert!(begun.elapsed() < PATIENCE, "the records do not arrive: {other:?}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(log.read(Index(2)).unwrap().data, "b");
        copy.close().unwrap();
    };
    tokio::task::spawn_blocking(read).await.unwrap();
}

/// The catalogue needs all its records: once the options of its log discarded some, no server started again.
#[tokio::test]
async fn catalogue_cannot_lose_records() {
    let mut named = Named::new().await;
    named.create("orders").await.unwrap();
    let set = |log: &str, name: &str| SetLogOptionsRequest {
        log: log.to_owned(),
        changes: vec![chiplog_net::wire::proto::v1::LogOption {
            name: name.to_owned(),
            value: Some(1 << 40),
        }],
        timeout_millis: 1000,
    };
    for option in ["retention_bytes", "retention_age", "capacity_bytes"] {
        let refused = named.admin.set_log_options(set("_system", option)).await.unwrap_err();
        assert_eq!(from_status(&refused).kind(), ErrorKind::InvalidArgument, "{option}: {refused}");
    }
    assert_eq!(named.logs.system().discard(Index(2)).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let discard = chiplog_net::wire::proto::v1::log_client::LogClient::connect(format!(
        "http://{}",
        named.one.address()
    ))
    .await
    .unwrap()
    .discard(DiscardRequest { log: "_system".into(), first: 2 })
    .await
    .unwrap_err();
    assert_eq!(from_status(&discard).kind(), ErrorKind::NotFound);
}

/// A repeated call whose first answer was lost must not delete the next log of that name.
#[tokio::test]
async fn deletion_and_seal_mean_one_log_of_a_name() {
    let mut named = Named::new().await;
    let old = named.create("orders").await.unwrap().log_id;
    named.delete("orders").await;
    let new = named.create("orders").await.unwrap().log_id;
    append(&named.client("orders").await, &["x"]).await;
    let again = DeleteLogRequest { name: "orders".into(), log_id: old.clone() };
    let refused = named.admin.delete_log(again).await.unwrap_err();
    assert_eq!(from_status(&refused).kind(), ErrorKind::NotFound);
    let again = SealLogRequest { name: "orders".into(), log_id: old };
    assert_eq!(from_status(&named.admin.seal_log(again).await.unwrap_err()).kind(), ErrorKind::NotFound);
    let info = &named.client("").await.list_logs("orders").await.unwrap()[0];
    assert_eq!((info.last_index, info.sealed), (Index(1), false));
    named.admin.seal_log(SealLogRequest { name: "orders".into(), log_id: new.clone() }).await.unwrap();
    named.admin.delete_log(DeleteLogRequest { name: "orders".into(), log_id: new }).await.unwrap();
}

fn batch_of(records: &[&str]) -> Batch {
    let mut builder = BatchBuilder::new();
    records.iter().for_each(|record| _ = builder.push(record.as_bytes()).unwrap());
    builder.build().unwrap()
}

impl Named {
    async fn create_beside(&mut self, name: &str, beside: &str) {
        let request = CreateLogRequest { name: name.to_owned(), beside: beside.to_owned() };
        self.admin.create_log(request).await.unwrap();
    }

    /// The native service, without a client.
    async fn native(&self) -> log_client::LogClient<Channel> {
        log_client::LogClient::connect(format!("http://{}", self.one.address())).await.unwrap()
    }

    /// The last index of each of these logs.
    fn ends<const N: usize>(&self, names: [&str; N]) -> [u64; N] {
        names.map(|name| self.logs.info(name).unwrap().last_index.get())
    }
}

fn together(appends: &[(&str, &Batch)]) -> AppendTogetherRequest {
    let append = |(log, batch): &(&str, &Batch)| LogBatch {
        log: (*log).to_owned(),
        log_id: String::new(),
        batch: batch.as_bytes().clone(),
    };
    AppendTogetherRequest { appends: appends.iter().map(append).collect() }
}

#[tokio::test]
async fn batches_of_several_logs_are_appended_in_one_call() {
    let mut named = Named::new().await;
    named.create("from").await.unwrap();
    named.create_beside("to", "from").await;
    let (from, to) = (named.client("from").await, named.client("to").await);
    append(&to, &["before"]).await;
    let (withdraw, deposit) = (batch_of(&["-5"]), batch_of(&["+3", "+2"]));
    let pair = [(&from, &withdraw), (&to, &deposit), (&from, &deposit)];
    let appended = Client::append_together(&pair).await.unwrap();
    let placed: Vec<_> = appended.iter().map(|at| (at.first.get(), at.count, at.durability)).collect();
    let majority = Some(Durability::Majority);
    assert_eq!(placed, [(1, 1, majority), (2, 2, majority), (2, 2, majority)]);
    let read = |all: Vec<(u64, Vec<u8>)>| all.into_iter().map(|(_, data)| data).collect::<Vec<_>>();
    assert_eq!(read(read_to_end(&from, Start::First).await), [b"-5", b"+3", b"+2"]);
    assert_eq!(read(read_to_end(&to, Start::Index(Index(2))).await), [b"+3", b"+2"]);
    assert!(Client::append_together(&[]).await.unwrap().is_empty());
    // Requests other than appends have 64 KiB at most. A batch that unpacks to more is unpacked on another thread.
    let large = batch_of(&[&"x".repeat(200_000)]);
    let mut packed = BatchBuilder::new();
    let packed = packed.codec(Codec::Lz4).push(&[7; 300_000]).unwrap().build().unwrap();
    for batch in [&large, &packed] {
        let appended = Client::append_together(&[(&from, batch), (&to, batch)]).await.unwrap();
        assert_eq!(appended[0].first, appended[1].first);
    }
    assert_eq!(named.ends(["from", "to"]), [5, 5]);
}

/// If one of the batches or logs is refused, none of the others gets its batch, and the answer says that.
#[tokio::test]
async fn batches_of_several_logs_are_refused_as_a_whole() {
    let mut named = Named::new().await;
    let id_of_a = named.create("a").await.unwrap().log_id;
    named.create_beside("b", "a").await;
    named.create_beside("sealed", "a").await;
    named.create("other").await.unwrap();
    named.admin.seal_log(SealLogRequest { name: "sealed".into(), log_id: String::new() }).await.unwrap();
    assert_ne!(named.logs.info("a").unwrap().group, named.logs.info("other").unwrap().group);
    let fine = batch_of(&["x"]);
    let of_session =
        BatchBuilder::new().session(SessionId(1), Sequence(1), 0).push(b"x").unwrap().build().unwrap();
    let half = batch_of(&[&"x".repeat(300_000)]);
    let too_large = batch_of(&[&"x".repeat(1_000_000)]);
    let mut torn = together(&[("a", &fine), ("b", &fine)]);
    torn.appends[1].batch = torn.appends[1].batch.slice(..10);
    let mut mistaken = together(&[("a", &fine), ("b", &fine)]);
    mistaken.appends[1].log_id = id_of_a;
    let many: Vec<_> = (0..257).map(|_| ("a", &fine)).collect();
    let mut native = named.native().await;
    use ErrorKind::{Corrupt, InvalidArgument, NotFound, Sealed, TooLarge};
    let ways = [
        (together(&[("a", &fine), ("sealed", &fine), ("b", &fine)]), Sealed, "log \"sealed\""),
        (together(&[("a", &fine), ("none", &fine)]), NotFound, "\"none\""),
        (together(&[("a", &fine), ("other", &fine)]), InvalidArgument, "--beside a"),
        (together(&[("a", &fine), ("default", &fine)]), InvalidArgument, "\"default\" is no named log"),
        (together(&[("", &fine)]), InvalidArgument, "no named log"),
        (together(&[("a", &fine), ("_group-1", &fine)]), NotFound, "_group-1"),
        (together(&[("a", &fine), ("b", &of_session)]), InvalidArgument, "sessions"),
        (together(&[("a", &fine), ("b", &too_large)]), TooLarge, "batch_bytes_max"),
        (together(&[("a", &half), ("b", &half), ("a", &half), ("b", &half)]), TooLarge, "block_bytes_max"),
        (together(&many), TooLarge, "more than 256 batches"),
        (together(&[("a", &fine), (&"n".repeat(20_000), &fine)]), InvalidArgument, "has 20000 bytes"),
        (together(&[]), InvalidArgument, "no batches"),
        (torn, Corrupt, "log \"b\""),
        (mistaken, NotFound, "\"b\""),
    ];
    for (request, kind, words) in ways {
        let refused = native.append_together(request).await.unwrap_err();
        assert_eq!(from_status(&refused).kind(), kind, "{words}: {refused}");
        assert!(refused.message().contains(words), "{words}: {refused}");
        assert_eq!(refused.metadata().get(NOT_APPENDED).unwrap(), "1", "{words}");
    }
    assert_eq!(named.ends(["a", "b", "sealed", "other"]), [0; 4]);
    assert_eq!(named.one.log.last_index(), Index(0));
    let most: Vec<_> = many[1..].to_vec();
    assert_eq!(native.append_together(together(&most)).await.unwrap().into_inner().appended.len(), 256);

    let plain = One::new();
    let mut native = log_client::LogClient::connect(format!("http://{}", plain.address())).await.unwrap();
    let refused = native.append_together(together(&[("a", &fine)])).await.unwrap_err();
    assert_eq!(from_status(&refused).kind(), NotFound, "{refused}");
}

/// The client means the logs that it has found, and not others that got their names.
#[tokio::test]
async fn batches_of_several_logs_are_not_for_the_next_log_of_a_name() {
    let mut named = Named::new().await;
    named.create("a").await.unwrap();
    named.create_beside("b", "a").await;
    let (a, b) = (named.client("a").await, named.client("b").await);
    named.delete("b").await;
    let batch = batch_of(&["x"]);
    let gone = Client::append_together(&[(&a, &batch), (&b, &batch)]).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
    named.create_beside("b", "a").await;
    let gone = Client::append_together(&[(&a, &batch), (&b, &batch)]).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
    assert_eq!(named.ends(["a", "b"]), [0, 0]);
}

/// The quota of each log holds: the client waits for it within its time limit.
#[tokio::test]
async fn quota_of_one_of_several_logs_holds_all_batches_back() {
    let mut named = Named::new().await;
    named.create("free").await.unwrap();
    named.create_beside("limited", "free").await;
    let log = named.logs.get("limited").unwrap();
    let rate = |rate| log.set_log_options(&[(LogOption::AppendBytesPerSecond, rate)], PATIENCE).unwrap();
    rate(Some(1));
    let batch = batch_of(&["of any size, once"]);
    let (free, limited) = (named.client("free").await, named.client("limited").await);
    let pair = [(&free, &batch), (&limited, &batch)];
    Client::append_together(&pair).await.unwrap();
    let request = together(&[("free", &batch), ("limited", &batch)]);
    let refused = from_status(&named.native().await.append_together(request).await.unwrap_err());
    assert!(
        refused.kind() == ErrorKind::Busy && refused.retry_after() > Some(Duration::from_secs(5)),
        "{refused}"
    );
    let refused = Client::append_together(&pair).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy, "it would have to wait too long: {refused}");
    assert_eq!(named.ends(["free", "limited"]), [1, 1]);
    rate(None);
    Client::append_together(&pair).await.unwrap();
    assert_eq!(named.ends(["free", "limited"]), [2, 2]);
}

/// Batches that a quota holds back for a while are appended after it.
#[tokio::test]
async fn quota_that_allows_batches_soon_delays_them() {
    let mut named = Named::new().await;
    named.create("free").await.unwrap();
    named.create_beside("limited", "free").await;
    let (log, batch) = (named.logs.get("limited").unwrap(), batch_of(&["of any size, once"]));
    let request = move || together(&[("free", &batch), ("limited", &batch)]);
    log.set_log_options(&[(LogOption::AppendBytesPerSecond, Some(20))], PATIENCE).unwrap();
    let mut native = named.native().await;
    for end in [1, 2] {
        native.append_together(request()).await.unwrap();
        assert_eq!(named.ends(["free", "limited"]), [end, end]);
    }
    // While they wait, the server ends: they are in no log.
    let mut other = native.clone();
    let waiting = tokio::spawn(async move { other.append_together(request()).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    named.one.server.host.drain();
    let refused = waiting.await.unwrap().unwrap_err();
    assert_eq!(from_status(&refused).kind(), ErrorKind::Unavailable, "{refused}");
    assert_eq!(refused.metadata().get(NOT_APPENDED).unwrap(), "1");
    assert_eq!(named.ends(["free", "limited"]), [2, 2]);
}

/// A server that ends takes no more batches, and says that it has not taken them.
#[tokio::test]
async fn server_that_ends_takes_no_batches_of_several_logs() {
    let mut named = Named::new().await;
    named.create("a").await.unwrap();
    let mut native = named.native().await;
    named.one.server.host.drain();
    let refused = native.append_together(together(&[("a", &batch_of(&["x"]))])).await.unwrap_err();
    assert_eq!(from_status(&refused).kind(), ErrorKind::Unavailable, "{refused}");
    assert_eq!(refused.metadata().get(NOT_APPENDED).unwrap(), "1");
}
