//! Tokens: who gets how far, over the wire; and what a client does with its token.

use crate::support::{PATIENCE, Served};
use chiplog::{ErrorKind, Index, Start};
use chiplog_net::access::{Role, digest_of};
use chiplog_net::client::{Client, ClientOptions, ProducerOptions, ReadFrom};
use chiplog_net::listener::Settings;
use chiplog_net::proto::logspec::InfoRequest;
use chiplog_net::proto::logspec::log_client::LogClient;
use chiplog_net::refusals::Refusal;
use chiplog_net::status::from_status;

async fn served() -> Served {
    let line = |role: Role| format!("{role}:{}\n", digest_of(role.name()));
    let tokens: String = Role::ALL.into_iter().map(line).collect();
    Served::with_tokens(Settings::default(), Some(tokens.parse().unwrap())).await
}

/// A client whose token is the name of its role.
async fn client(server: &Served, token: &str) -> chiplog::Result<Client> {
    let mut options = ClientOptions::default();
    options.timeout = PATIENCE;
    options.token = Some(token.into());
    tokio::time::timeout(PATIENCE / 2, Client::connect([&*server.address], options))
        .await
        .expect("it goes on asking")
}

#[tokio::test]
async fn each_role_gets_as_far_as_it_should() {
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
async fn without_a_token_that_is_known_nobody_gets_in() {
    let server = served().await;
    let refused = client(&server, "guess").await.map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unauthenticated);
    let mut bare = LogClient::new(server.plain().await);
    let status = bare.info(InfoRequest { allow_stale: true }).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unauthenticated);
    assert_eq!(from_status(&status).kind(), ErrorKind::Unauthenticated);
    // A stream of appends is refused before anything is taken from it.
    let requests = tokio_stream::iter([chiplog_net::logspec::AppendRequest::new(1, ["x"])]);
    assert_eq!(bare.append(requests).await.unwrap_err().code(), tonic::Code::Unauthenticated);
    assert_eq!(server.log.info().last, Index(0));
}

#[tokio::test]
async fn tokens_that_are_replaced_count_at_once() {
    let server = served().await;
    let reader = client(&server, "read").await.unwrap();
    reader.info().await.unwrap();
    server.access.replace(format!("read:{}", digest_of("new")).parse().unwrap());
    assert_eq!(reader.info().await.unwrap_err().kind(), ErrorKind::Unauthenticated);
    client(&server, "new").await.unwrap().info().await.unwrap();
}
