//! Single calls, and what servers of other versions answer.

use crate::served::client::quick;
use crate::server::{Rogue, about, of_two};
use chiplog::{BatchBuilder, Durability, Error, ErrorKind, Index};
use chiplog_net::client::{Client, ProducerOptions};
use chiplog_net::wire::proto::v1::append_response::Result as Outcome;
use chiplog_net::wire::proto::v1::*;
use chiplog_net::wire::status::{NOT_APPENDED, to_status};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tonic::Status;

/// A server of an earlier version does not tell how durable a record is, and one of a later version may tell what this client
/// does not know.
#[tokio::test]
async fn durability_that_is_not_told_is_absent() {
    for (told, durability) in [(0, None), (4, None), (2, Some(Durability::MajoritySlices))] {
        let mut rogue = Rogue::new();
        rogue.on_append = Box::new(move |_, n, batch| {
            let (first, count) = (1 + n as u64, batch.count());
            Some(Outcome::Appended(Appended { first, count, durability: told }))
        });
        let client = Client::connect(rogue.serve().await, quick()).await.unwrap();
        let producer = client.producer(ProducerOptions::default()).await.unwrap();
        let mut delivery = producer.append(b"x").await.unwrap();
        assert_eq!((&mut delivery).await.unwrap(), Index(1));
        assert_eq!(delivery.durability(), durability, "{told}");
    }
}

#[tokio::test]
async fn another_revision_of_the_service_is_rejected() {
    let mut rogue = Rogue::new();
    rogue.on_server_info = Box::new(|_| about(2));
    let error = Client::connect(rogue.serve().await, quick()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// Batches of several logs have no session: a repeated call would append them twice.
#[tokio::test]
async fn batches_of_several_logs_are_sent_again_only_if_that_is_safe() {
    let certain = |kind: ErrorKind| to_status(&Error::new(kind, "not now"), None);
    let marked = |kind: ErrorKind| {
        let mut status = certain(kind);
        status.metadata_mut().insert(NOT_APPENDED, "1".parse().unwrap());
        status
    };
    let right = || AppendTogetherResponse { appended: vec![Appended { first: 5, count: 1, durability: 1 }] };
    let short = || AppendTogetherResponse { appended: Vec::new() };
    let none = || AppendTogetherResponse { appended: vec![Appended { first: 5, count: 2, durability: 1 }] };
    type Way = (Option<Result<AppendTogetherResponse, Status>>, Result<Index, ErrorKind>, usize);
    let ways: Vec<Way> = vec![
        (Some(Err(certain(ErrorKind::NotLeader))), Ok(Index(5)), 2),
        (Some(Err(certain(ErrorKind::Busy))), Ok(Index(5)), 2),
        (Some(Err(marked(ErrorKind::Unavailable))), Ok(Index(5)), 2),
        (Some(Err(certain(ErrorKind::Sealed))), Err(ErrorKind::Sealed), 1),
        (Some(Err(certain(ErrorKind::Unavailable))), Err(ErrorKind::Unavailable), 1),
        (Some(Err(certain(ErrorKind::Timeout))), Err(ErrorKind::Timeout), 1),
        (Some(Err(certain(ErrorKind::Poisoned))), Err(ErrorKind::Unavailable), 1),
        (Some(Err(Status::resource_exhausted("a proxy"))), Err(ErrorKind::Unavailable), 1),
        (Some(Ok(short())), Err(ErrorKind::Unavailable), 1),
        (Some(Ok(none())), Err(ErrorKind::Unavailable), 1),
        (None, Err(ErrorKind::Unavailable), 1),
    ];
    let batch = BatchBuilder::new().push(b"x").unwrap().build().unwrap();
    for (n, (first, expected, calls)) in ways.into_iter().enumerate() {
        let mut rogue = Rogue::new();
        let is_silent = first.is_none();
        let first = Mutex::new(Some(first));
        rogue.on_together =
            Box::new(move |_| first.lock().unwrap().take().unwrap_or_else(|| Some(Ok(right()))));
        let counted = rogue.togethers.clone();
        let mut options = quick();
        if is_silent {
            options.attempt_timeout = Duration::from_millis(300);
        }
        let client = Client::connect(rogue.serve().await, options).await.unwrap();
        let appended = Client::append_together(&[(&client, &batch)]).await;
        let got = appended.as_ref().map(|appended| appended[0].first).map_err(|error| error.kind());
        assert_eq!((got, counted.load(Ordering::Relaxed)), (expected, calls), "{n}: {appended:?}");
        if let Err(error) = appended
            && error.kind() != ErrorKind::Sealed
        {
            assert!(error.to_string().contains("it is unknown whether"), "{n}: {error}");
        }
    }
}

/// Whether a leader is missing or does not listen: nothing was sent, and the error says so.
#[tokio::test]
async fn batches_of_several_logs_that_no_leader_gets_are_certainly_not_appended() {
    let follower = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // It refuses connections. Bound, it is nobody else's, and no connection to it gets its own port.
    let leader = TcpSocket::new_v4().unwrap();
    leader.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addresses = [follower.local_addr(), leader.local_addr()].map(|place| place.unwrap().to_string());
    let mut rogue = Rogue::new();
    let named = addresses.clone();
    rogue.on_server_info = Box::new(move |_| of_two(1, &named, 2, 1));
    rogue.serve_at(follower);
    let mut options = quick();
    options.timeout = Duration::from_secs(1);
    let client = Client::connect([addresses[0].clone()], options).await.unwrap();
    let batch = BatchBuilder::new().push(b"x").unwrap().build().unwrap();
    let error = Client::append_together(&[(&client, &batch)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotLeader, "{error}");
    assert!(error.to_string().contains("nothing was appended"), "{error}");
}
