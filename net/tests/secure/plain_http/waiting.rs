//! Slow readers, and a store that does not answer: what waits is bounded, and gets its turn.

use super::client::{Client, few_bytes_at_a_time, listed};
use super::store::{Store, WAITS, served, small};
use super::{folder, wait_for};
use crate::support::{PATIENCE, Served};
use chiplog_net::listener::Settings;
use chiplog_net::served::refusals::Refusal;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;

/// A client that reads nothing of an answer is disconnected, and what was made for it is released.
#[tokio::test]
async fn client_that_reads_nothing_is_disconnected() {
    let mut settings = Settings::default();
    settings.limits.slow_reader = Some(Duration::from_secs(2));
    let (server, _store) = served(settings, None, (16 << 20, 15 << 20), 15_000).await;
    let mut client = Client::of(&server).await;
    let objects = listed(&client.get("/v1/objects", &[]).await.text());
    let (name, bytes, _) = objects.into_iter().max_by_key(|(_, bytes, _)| *bytes).unwrap();
    assert!(bytes > 12 << 20, "{bytes}");
    let path = format!("/v1/objects/{name}");
    let mut stalled = Client { io: few_bytes_at_a_time(&server).await };
    stalled.send("GET", &path, &[]).await;
    server.refused_at_least(Refusal::SlowReader, 1).await;
    wait_for(|| server.budget.answer_bytes() == 0 && server.budget.streams() == 0).await;
    let rest = tokio::time::timeout(PATIENCE, stalled.answer(false)).await.expect("no end");
    assert!(!rest.is_whole, "{} of {bytes}", rest.body.len());
    // Others are served.
    assert_eq!(client.get(&path, &[]).await.body.len() as u64, bytes);
}

/// Requests to a store that does not answer wait only for a while.
#[tokio::test]
async fn requests_at_a_time_are_limited() {
    let (server, store) = small().await;
    let path = format!("/v1/objects/{}/o/00000000000000000001", folder(&server));
    store.set(WAITS);
    let before = store.gets.load(Ordering::SeqCst);
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = Client::of(&server).await;
        client.send("GET", &path, &[]).await;
        clients.push(client);
    }
    wait_for(|| store.gets.load(Ordering::SeqCst) == before + 8).await;
    let mut ninth = Client::of(&server).await;
    let busy = ninth.get(&path, &[]).await.is(503, "too many requests to the object store");
    assert!(busy.header("retry-after").is_some() && busy.text().contains("\"error\":\"busy\""));
    assert_eq!(store.gets.load(Ordering::SeqCst), before + 8);
    // Requests that need no store are answered.
    ninth.get("/v1/objects", &[]).await.is(200, "");
    store.go_on();
    for client in &mut clients {
        let answer = tokio::time::timeout(PATIENCE, client.answer(false)).await.expect("no answer");
        assert!(answer.code == 200 && answer.is_whole);
    }
    assert_eq!(ninth.get(&path, &[]).await.code, 200);
}

/// There are more downloads than requests to the store at a time, and it becomes slow. All get their turn, also after longer than a request
/// waits that is not answered yet.
#[tokio::test]
async fn begun_downloads_wait_for_their_turn() {
    let (server, store) = served(Settings::default(), None, (16 << 20, 15 << 20), 15_000).await;
    let objects = listed(&Client::of(&server).await.get("/v1/objects", &[]).await.text());
    let (name, bytes, _) = objects.into_iter().max_by_key(|(_, bytes, _)| *bytes).unwrap();
    // More requests to the store than a connection holds of an answer that is not read.
    assert!(bytes > 12 << 20, "{bytes}");
    let path = format!("/v1/objects/{name}");
    let reading = begin_nine(&server, &store, &path, bytes as usize).await;
    wait_for(|| store.waiting.load(Ordering::SeqCst) == 8).await;
    // The ninth waits for a place. A request that comes now is not answered.
    Client::of(&server).await.get(&path, &[]).await.is(503, "too many requests to the object store");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(store.waiting.load(Ordering::SeqCst), 8);
    store.go_on();
    for client in reading {
        assert!(tokio::time::timeout(PATIENCE, client).await.expect("no end").unwrap(), "it broke off");
    }

    // The end of the server ends the wait of the ninth, and not its time.
    let reading = begin_nine(&server, &store, &path, bytes as usize).await;
    wait_for(|| store.waiting.load(Ordering::SeqCst) == 8).await;
    let begun = Instant::now();
    server.host.drain();
    wait_for(|| reading.iter().filter(|client| client.is_finished()).count() == 1).await;
    assert!(begun.elapsed() < PATIENCE / 2);
    store.go_on();
}

/// Begins nine downloads of an object, and then lets the store wait. Each returns whether all of it came.
async fn begin_nine(server: &Served, store: &Store, path: &str, bytes: usize) -> Vec<JoinHandle<bool>> {
    let mut clients = Vec::new();
    for _ in 0..9 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 << 10).unwrap();
        let mut client = Client { io: socket.connect(server.address.parse().unwrap()).await.unwrap() };
        client.send("GET", path, &[]).await;
        assert_eq!(client.line().await.as_deref(), Some("HTTP/1.1 200 OK"));
        clients.push(client);
    }
    store.set(WAITS);
    let read = |mut client: Client<TcpStream>| async move {
        while client.line().await.is_some_and(|line| !line.is_empty()) {}
        let mut body = Vec::new();
        client.exactly(bytes, &mut body).await && body.len() == bytes
    };
    clients.into_iter().map(|client| tokio::spawn(read(client))).collect()
}
