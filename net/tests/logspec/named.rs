//! A named log at a port of its own. Tests of rules for every log have such a one, too: see [`both`](crate::support::both).

use crate::support::{PATIENCE, info, with_port_of};
use chiplog_net::wire::proto::logspec::{InfoRequest, ReadRequest};
use tonic::{Code, Status};

async fn end<T>(work: impl Future<Output = Result<T, Status>>) -> Status {
    tokio::time::timeout(PATIENCE, work).await.expect("the stream does not end").err().unwrap()
}

#[tokio::test]
async fn port_serves_the_log_that_has_its_name_now() {
    let (server, logs) = with_port_of("orders").await;
    let mut client = server.client().await;
    let status = client.info(InfoRequest { allow_stale: true }).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status}");
    let status = client.append(tokio_stream::iter([])).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status}");

    logs.create("users").unwrap().append(b"of another log").unwrap();
    let first = logs.create("orders").unwrap();
    let mut appender = server.appender().await;
    assert_eq!(appender.append(["a", "b"]).await, [1, 2]);
    assert_eq!(first.read(2.into()).unwrap().data, "b");
    assert_eq!(server.log.status().last_index.get(), 0, "the default log");
    let mut tail = client.read(ReadRequest { next_index: 3 }).await.unwrap().into_inner();

    logs.delete("orders").unwrap();
    let status = end(async { tail.message().await }).await;
    assert_eq!(status.code(), Code::NotFound, "{status}");
    let status = end(appender.reply()).await; // it sends nothing
    assert_eq!(status.code(), Code::NotFound, "{status}");
    logs.create("orders").unwrap();
    let state = info(&mut client, false).await;
    assert_eq!((state.first_index, state.last_index), (1, 0));
    let mut appender = server.appender().await;
    assert_eq!(appender.append(["c"]).await, [1]);

    logs.seal("orders").unwrap();
    let status = end(appender.reply()).await;
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    let mut appender = server.appender().await;
    appender.send([""; 0]).await; // a probe
    let status = end(appender.reply()).await;
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
}
