//! Names: logs are created, listed, sealed, deleted, watched and followed.

use crate::fixture::{Named, append};
use crate::served::client::{quick, read_to_end};
use crate::served::{One, PATIENCE};
use chiplog::{ErrorKind, Index, LogNumber, LogOption, Start};
use chiplog_net::client::{Client, ProducerOptions};
use chiplog_net::follower::{Follower, FollowerOptions};
use chiplog_net::wire::proto::v1::admin_client::AdminClient;
use chiplog_net::wire::proto::v1::*;
use chiplog_net::wire::status::from_status;
use std::time::{Duration, Instant};

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
    // A client of the deleted log neither changes nor shows the options of the one that has its name now.
    named.create("orders").await.unwrap();
    named.logs.get("orders").unwrap().set_log_options(&[(rate, Some(9))], PATIENCE).unwrap();
    let gone =
        orders.set_log_options(&[(LogOption::RetentionBytes, Some(1 << 20))], PATIENCE).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
    let gone = orders.log_options().await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
    let kept = named.logs.get("orders").unwrap().log_options();
    assert_eq!(kept.iter().collect::<Vec<_>>(), [(rate, 9)]);
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
