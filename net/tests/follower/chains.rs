//! Copies that feed copies.

use crate::served::{One, Server};
use crate::support::{LONG, append, event, follow, same, until};
use chiplog::{Index, Start};
use chiplog_net::follower::FollowerEvent;
use chiplog_net::native::NativeOptions;

/// A copy that feeds a copy: what the first one misses or discards, the second one hears of; that the first one's server
/// dies, it does not.
#[test]
fn a_copy_feeds_a_copy() {
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
    until("the second one hears that the first one is not kept up to date", || !second.status().fed);
    assert_eq!((second.status().connects, second.status().server.is_some()), (1, true));
    one.server = Server::start_at(log, port, NativeOptions::default());
    let last = append(&one.log, 10, 100);
    same(second.log(), &one.log, last);
    until("and that it is again", || second.status().fed);
    assert_eq!((second.status().connects, second.status().received_records), (1, last.get()));

    // Clients read there; what is not for a copy is refused.
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

/// A copy whose own server is gone stands still, and says nothing of it: who hangs on it looks around.
#[test]
fn a_copy_that_stands_still_is_left_for_another_copy() {
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
