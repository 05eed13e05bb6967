//! Copies that feed copies.

use crate::served::{One, Server};
use crate::support::{LONG, append, event, follow, same, until};
use chiplog::{Index, Start};
use chiplog_net::follower::FollowerEvent;
use chiplog_net::service::log::NativeOptions;
use std::time::Duration;

/// A copy that feeds a copy: the second one learns of the first one's jumps and discards, but not of the failure of the
/// first one's server.
#[test]
fn copy_feeds_a_copy() {
    let mut one = One::new();
    let (near, far) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = follow(near.path(), &[one.address()], Start::First);
    let serving = Server::serve(first.host().clone(), 0, NativeOptions::default());
    let second = follow(far.path(), std::slice::from_ref(&serving.address), Start::First);
    let last = append(&one.log, 3_000, 500);
    same(second.log(), &one.log, last);
    until("both are kept up to date", || first.status().fed && second.status().fed);

    one.log.discard(Index(1_000)).unwrap();
    let discarded = |e: &FollowerEvent| match e {
        FollowerEvent::Discarded { first } => Some(*first),
        _ => None,
    };
    assert_eq!((event(&first, discarded), event(&second, discarded)), (Index(1_000), Index(1_000)));

    let (port, log) = (one.address().rsplit_once(':').unwrap().1.parse().unwrap(), one.log.clone());
    let other = Server::start_at(One::new().log.clone(), 0, NativeOptions::default());
    drop(std::mem::replace(&mut one.server, other));
    until("the first one's server is gone", || first.status().server.is_none());
    until("the second one learns that the first one is not up to date", || !second.status().fed);
    assert_eq!((second.status().connects, second.status().server.is_some()), (1, true));
    one.server = Server::start_at(log, port, NativeOptions::default());
    let last = append(&one.log, 10, 100);
    same(second.log(), &one.log, last);
    until("the second one learns that the first one is up to date again", || second.status().fed);
    assert_eq!((second.status().connects, second.status().received_records), (1, last.get()));

    // Clients read there; calls that a copy cannot serve are rejected.
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let servers = [serving.address.clone()];
        let client = chiplog_net::client::Client::connect(servers, Default::default()).await.unwrap();
        let mut reader = client.reader(Start::Index(last), chiplog_net::client::ReadFrom::Any);
        assert_eq!(reader.next_record().await.unwrap().unwrap().index, last);
    });
    first.close().unwrap();
    until("the second one's server is gone", || second.status().server.is_none());
    second.close().unwrap();
}

/// Clients read from copies if there is no other server. Records that a copy lacks were considered missing from the
/// log.
#[test]
fn client_does_not_mistake_a_copy_for_the_log() {
    let mut one = One::new();
    let dir = tempfile::tempdir().unwrap();
    append(&one.log, 100, 100);
    let copy = follow(dir.path(), &[one.address()], Start::Next);
    let last = append(&one.log, 1, 100);
    copy.wait_for(last, LONG).unwrap();
    let serving = Server::serve(copy.host().clone(), 0, NativeOptions::default());
    let (port, log) = (one.address().rsplit_once(':').unwrap().1.parse().unwrap(), one.log.clone());
    let seeds = [one.address(), serving.address.clone()];
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let client = chiplog_net::client::Client::connect(seeds, quick_client()).await.unwrap();
        let starts = [Start::First, Start::Index(Index(2))];
        let mut readers = starts.map(|start| client.reader(start, chiplog_net::client::ReadFrom::Any));
        // While the log's own server is away, no copy reports that its records are gone, or starts behind them.
        let other = Server::start_at(One::new().log.clone(), 0, NativeOptions::default());
        drop(std::mem::replace(&mut one.server, other));
        for reader in &mut readers {
            let nothing = tokio::time::timeout(Duration::from_secs(1), reader.next_record()).await;
            assert!(nothing.is_err(), "{nothing:?}");
        }
        // Records that the copy has are read there meanwhile.
        let mut newest = client.reader(Start::Index(last), chiplog_net::client::ReadFrom::Any);
        assert_eq!(newest.next_record().await.unwrap().unwrap().index, last);
        assert_eq!(newest.server(), Some(&*serving.address));
        one.server = Server::start_at(log, port, NativeOptions::default());
        for (reader, first) in readers.iter_mut().zip([1, 2]) {
            let record = tokio::time::timeout(LONG, reader.next_record()).await.unwrap();
            assert_eq!(record.unwrap().unwrap().index, Index(first));
        }
    });
}

fn quick_client() -> chiplog_net::client::ClientOptions {
    let mut options = chiplog_net::client::ClientOptions::default();
    options.probe_timeout = Duration::from_millis(500);
    options.attempt_timeout = Duration::from_secs(3);
    options
}

/// A copy whose own server is gone gets no new records and reports no error: its followers look for another one.
#[test]
fn stalled_copy_is_left_for_another_copy() {
    let one = One::new();
    let servers: Vec<_> =
        (0..2).map(|_| Server::start_at(one.log.clone(), 0, NativeOptions::default())).collect();
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let copies: Vec<_> = (0..2)
        .map(|n| follow(dirs[n].path(), std::slice::from_ref(&servers[n].address), Start::First))
        .collect();
    let serving: Vec<_> =
        copies.iter().map(|c| Server::serve(c.host().clone(), 0, NativeOptions::default())).collect();
    let all: Vec<_> = serving.iter().map(|s| s.address.clone()).collect();
    let copy = follow(dirs[2].path(), &all, Start::First);
    let source = copy.status().server.unwrap();
    let source = all.iter().position(|address| *address == source).unwrap();
    let mut servers: Vec<_> = servers.into_iter().map(Some).collect();
    servers[source] = None;
    until("the source has lost its server", || copies[source].status().server.is_none());
    let last = append(&one.log, 10, 100);
    copy.wait_for(last, LONG).unwrap();
    assert_eq!(copy.status().server.as_ref(), Some(&all[1 - source]));
    copy.close().unwrap();
}
