//! Tokens: what each one allows, over the network; and how a client uses its token.

use crate::attacks::Target;
use crate::support::{PATIENCE, Served};
use chiplog::{ErrorKind, Index, Start};
use chiplog_net::client::{Client, ClientOptions, ProducerOptions, ReadFrom};
use chiplog_net::listener::Settings;
use chiplog_net::listener::auth::roles::{Role, digest_of};
use chiplog_net::listener::memory_budget::{Budget, BudgetLimits};
use chiplog_net::served::refusals::Refusal;
use chiplog_net::service::logspec::AppendRequest;
use chiplog_net::wire::proto::logspec::log_client::LogClient;
use chiplog_net::wire::proto::logspec::{InfoRequest, ReadRequest as LogspecRead};
use chiplog_net::wire::proto::v1::follow_client::FollowClient;
use chiplog_net::wire::proto::v1::follow_request::Start as Copy;
use chiplog_net::wire::proto::v1::log_client::LogClient as NativeClient;
use chiplog_net::wire::proto::v1::read_request::Start as From;
use chiplog_net::wire::proto::v1::{
    AppendRequest as NativeAppend, FollowRequest, OpenSessionRequest, ReadRequest, WatchRequest,
};
use chiplog_net::wire::status::from_status;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

async fn served() -> Served {
    let line = |role: Role| format!("{role}:{}\n", digest_of(role.name()));
    let tokens: String = Role::ALL.into_iter().map(line).collect();
    Served::with_tokens(Settings::default(), Some(tokens.parse().unwrap())).await
}

/// A client whose token is the name of its role.
async fn client(server: &Served, token: &str) -> chiplog::Result<Client> {
    client_of(server, token, "").await
}

/// The same for a named log.
pub(crate) async fn client_of(server: &Served, token: &str, log: &str) -> chiplog::Result<Client> {
    let mut options = ClientOptions::default().log(log.to_owned());
    options.timeout = PATIENCE;
    options.token = Some(token.into());
    tokio::time::timeout(PATIENCE / 2, Client::connect([&*server.address], options))
        .await
        .expect("it keeps retrying")
}

#[tokio::test]
async fn each_role_is_allowed_its_calls() {
    let server = served().await;
    let appender = client(&server, "append").await.unwrap();
    let producer = appender.producer(ProducerOptions::default()).await.unwrap();
    producer.append(b"x").await.unwrap().await.unwrap();
    let closed = producer.close(PATIENCE).await;
    assert!(closed.left.is_empty() && closed.failed.is_none(), "{closed:?}");
    assert_eq!(appender.discard(Index(2)).await.unwrap_err().kind(), ErrorKind::PermissionDenied);

    let reader = client(&server, "read").await.unwrap();
    let mut records = reader.reader(Start::First, ReadFrom::Any);
    assert_eq!(&records.next_record().await.unwrap().unwrap().data[..], b"x");
    assert_eq!(reader.info().await.unwrap().last, Index(1));
    let refused = reader.producer(ProducerOptions::default()).await.map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);

    client(&server, "admin").await.unwrap().discard(Index(2)).await.unwrap();
    assert_eq!(server.refusals.read(Refusal::Unauthenticated), 0);
    assert!(server.refusals.read(Refusal::PermissionDenied) >= 2);
}

#[tokio::test]
async fn calls_without_a_known_token_are_rejected() {
    let server = served().await;
    let refused = client(&server, "guess").await.map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unauthenticated);
    let mut bare = LogClient::new(server.plain().await);
    let status = bare.info(InfoRequest { allow_stale: true }).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unauthenticated);
    assert_eq!(from_status(&status).kind(), ErrorKind::Unauthenticated);
    // A stream of appends is rejected before anything is read from it.
    let requests = tokio_stream::iter([chiplog_net::service::logspec::AppendRequest::new(1, ["x"])]);
    assert_eq!(bare.append(requests).await.unwrap_err().code(), tonic::Code::Unauthenticated);
    assert_eq!(server.log.last_index(), Index(0));
}

#[tokio::test]
async fn replaced_tokens_apply_at_once() {
    let server = served().await;
    let reader = client(&server, "read").await.unwrap();
    reader.info().await.unwrap();
    server.access.replace(format!("read:{}", digest_of("new")).parse().unwrap());
    assert_eq!(reader.info().await.unwrap_err().kind(), ErrorKind::Unauthenticated);
    client(&server, "new").await.unwrap().info().await.unwrap();
}

pub(crate) fn shown<T>(token: &str, request: T) -> Request<T> {
    let mut request = Request::new(request);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

pub(crate) async fn message<T>(stream: &mut Streaming<T>) -> Result<Option<T>, Status> {
    tokio::time::timeout(PATIENCE, stream.message()).await.expect("neither an answer nor the end")
}

/// The status with which a stream ends.
pub(crate) async fn end<T>(mut stream: Streaming<T>) -> Code {
    loop {
        match message(&mut stream).await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended without an error"),
            Err(status) => return status.code(),
        }
    }
}

/// A stream that was let in continued as long as its client liked, even if its token was revoked.
#[tokio::test]
async fn revoked_tokens_and_roles_end_their_streams() {
    let server = served().await;
    let channel = server.plain().await;
    let (mut logspec, mut native) = (LogClient::new(channel.clone()), NativeClient::new(channel.clone()));
    let mut copies = FollowClient::new(channel);
    let batch = || chiplog::BatchBuilder::new().push(b"x").unwrap().build().unwrap().as_bytes().clone();

    // Appends, over both services; calls with an administrator's token continue.
    let (first, requests) = mpsc::channel(4);
    let requests = ReceiverStream::new(requests);
    let mut of_logspec = logspec.append(shown("append", requests)).await.unwrap().into_inner();
    first.send(AppendRequest::new(1, ["x"])).await.unwrap();
    assert!(message(&mut of_logspec).await.unwrap().is_some());
    let natively = |token: &'static str| {
        let (sender, requests) = mpsc::channel(4);
        let mut native = native.clone();
        async move {
            let requests = ReceiverStream::new(requests);
            (sender, native.append(shown(token, requests)).await.unwrap().into_inner())
        }
    };
    let (second, mut of_native) = natively("append").await;
    let (third, mut of_admin) = natively("admin").await;
    for (sender, answers) in [(&second, &mut of_native), (&third, &mut of_admin)] {
        sender.send(NativeAppend { batch: batch(), ..NativeAppend::default() }).await.unwrap();
        assert!(message(answers).await.unwrap().is_some());
    }
    // Streams of readers, at the end of the log.
    let mut read = logspec.read(shown("read", LogspecRead { next_index: 1 })).await.unwrap().into_inner();
    assert!(message(&mut read).await.unwrap().is_some());
    let info = InfoRequest { allow_stale: true };
    let infos = logspec.info_stream(shown("read", info)).await.unwrap().into_inner();
    let request = ReadRequest { start: Some(From::Oldest(true)), follow: true, ..ReadRequest::default() };
    let mut natively_read = native.read(shown("read", request)).await.unwrap().into_inner();
    assert!(message(&mut natively_read).await.unwrap().is_some());
    let watched = native.watch(shown("read", WatchRequest::default())).await.unwrap().into_inner();
    let request = FollowRequest { start: Some(Copy::Oldest(true)), ..FollowRequest::default() };
    let mut followed = copies.follow(shown("read", request)).await.unwrap().into_inner();
    assert!(message(&mut followed).await.unwrap().is_some());
    let last = server.log.last_index();

    // One token is revoked, one may now only read.
    let left = format!("read:{}\nadmin:{}\n", digest_of("append"), digest_of("admin"));
    server.access.replace(left.parse().unwrap());
    // Messages that were sent before the client got the end are not accepted either.
    let _ = first.send(AppendRequest::new(2, ["late"])).await;
    let _ = second.send(NativeAppend { batch: batch(), ..NativeAppend::default() }).await;
    assert_eq!(end(of_logspec).await, Code::PermissionDenied);
    assert_eq!(end(of_native).await, Code::PermissionDenied);
    assert_eq!(end(read).await, Code::Unauthenticated);
    assert_eq!(end(infos).await, Code::Unauthenticated);
    assert_eq!(end(natively_read).await, Code::Unauthenticated);
    assert_eq!(end(watched).await, Code::Unauthenticated);
    assert_eq!(end(followed).await, Code::Unauthenticated);
    assert_eq!(server.refusals.read(Refusal::PermissionDenied), 2);
    assert_eq!(server.refusals.read(Refusal::Unauthenticated), 5);
    assert_eq!(server.log.last_index(), last);
    third.send(NativeAppend { batch: batch(), ..NativeAppend::default() }).await.unwrap();
    assert!(message(&mut of_admin).await.unwrap().is_some());
    assert_eq!(server.log.last_index(), Index(last.get() + 1));
}

/// A token was used on all connections: clients of other tokens found no place.
#[tokio::test]
async fn connections_of_a_token_are_bounded() {
    let limits = BudgetLimits::default().connections_per_token(2);
    let settings = Settings::default();
    let budget = Budget::new(limits, settings.refusals.clone());
    let tokens: String = ["a", "b"].map(|token| format!("read:{}\n", digest_of(token))).concat();
    let server = Served::with(settings, Some(tokens.parse().unwrap()), budget, 1 << 20).await;
    let ask = async |channel: &Channel, token: &str| {
        let target = Target::new(&server.address).token(token);
        let info = target.request(InfoRequest { allow_stale: true });
        LogClient::new(channel.clone()).info(info).await.map(drop)
    };
    let mut channels = Vec::new();
    for _ in 0..3 {
        channels.push(server.plain().await);
    }
    for n in [0, 1, 0, 1] {
        ask(&channels[n], "a").await.unwrap();
    }
    let status = ask(&channels[2], "a").await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.message().contains("use this call's token"), "{status}");
    server.refused(Refusal::ConnectionsOfToken, 1).await;
    ask(&channels[2], "b").await.unwrap();
    // A closed connection makes room.
    drop(channels.remove(0));
    let begun = Instant::now();
    while ask(&channels[1], "a").await.is_err() {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Keeps the log from answering anything, until the returned sender is used or dropped.
fn stalled(log: &chiplog::Log) -> std::sync::mpsc::Sender<()> {
    loop {
        let (release, gate) = std::sync::mpsc::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let here = std::thread::current().id();
        // On the log's own thread, unless the answer existed before the callback.
        log.submit(b"x").unwrap().on_complete(move |_| {
            let elsewhere = std::thread::current().id() != here;
            tell.send(elsewhere).unwrap();
            if elsewhere {
                let _ = gate.recv();
            }
        });
        if told.recv().unwrap() {
            return release;
        }
    }
}

/// Calls with one token used up all places of calls that wait for the log, and nobody else could open a session.
#[tokio::test]
async fn calls_of_one_token_that_wait_leave_places_for_others() {
    let server = served().await;
    let release = stalled(&server.log);
    let channel = server.plain().await;
    let open = |token: &'static str| {
        let mut client = NativeClient::new(channel.clone());
        async move { client.open_session(shown(token, OpenSessionRequest::default())).await }
    };
    // Of 256 places a token has a quarter.
    let mut calls = tokio::task::JoinSet::new();
    (0..65).for_each(|_| _ = calls.spawn(open("append")));
    let refused = tokio::time::timeout(PATIENCE, calls.join_next()).await.expect("one is refused");
    let refused = refused.unwrap().unwrap().unwrap_err();
    let error = from_status(&refused);
    assert_eq!((error.kind(), error.retry_after()), (ErrorKind::Busy, Some(Duration::from_millis(100))));
    assert!(refused.message().contains("64 calls with this token already wait for the log"), "{refused}");
    server.refused(Refusal::CallsOfToken, 1).await;
    let other = tokio::spawn(open("admin"));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!other.is_finished(), "it waits for the log, too");
    release.send(()).unwrap();
    other.await.unwrap().unwrap();
    while let Some(answered) = calls.join_next().await {
        answered.unwrap().unwrap();
    }
    assert_eq!(server.refusals.read(Refusal::CallsOfToken), 1);
}
