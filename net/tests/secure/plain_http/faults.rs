//! A store that does not work, and damaged objects: an answer is right, or it is a status, or it breaks off.

use super::client::{Client, listed, over_http2};
use super::store::{FLIPS, IS_DOWN, REFUSES, WAITS, WORKS, served, small};
use super::{folder, wait_for};
use crate::support::PATIENCE;
use chiplog::vault::Vault as _;
use chiplog_net::listener::Settings;
use http_body_util::BodyExt as _;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tonic::body::Body;

#[tokio::test]
async fn store_that_does_not_work_is_a_status() {
    let (server, store) = small().await;
    let name = format!("{}/o/00000000000000000002", folder(&server));
    let path = format!("/v1/objects/{name}");
    let mut client = Client::of(&server).await;
    store.set(IS_DOWN);
    let down = client.get(&path, &[]).await.is(503, "the store is down");
    assert!(down.header("retry-after").is_some() && down.text().contains("\"error\":\"unavailable\""));
    assert_eq!(client.ask("HEAD", &path, &[]).await.code, 200, "the log itself knows the object");
    store.set(REFUSES);
    // Not 403: the client's token is right.
    client.get(&path, &[]).await.is(503, "the object store refuses this server: the store says no");
    store.set(FLIPS);
    client.get(&path, &[]).await.is(500, "is damaged in the object store");
    // A range that is all of it is the whole object.
    client.get(&path, &["Range: bytes=0-"]).await.is(500, "is damaged in the object store");
    // Another range is passed on; the checksum of the whole is in the headers.
    assert_eq!(client.get(&path, &["Range: bytes=-10"]).await.code, 206);
    store.set(WORKS);
    // Lost, or cut off: the log still has the object, so this is no 404.
    let bytes = store.objects.size(&name).unwrap().unwrap();
    let all = store.objects.get(&name, 0..bytes).unwrap();
    store.objects.put(&name, &[all.slice(..1000)]).unwrap();
    client
        .get(&path, &[])
        .await
        .is(500, "is lost or cut off in the object store")
        .is(500, "\"error\":\"corrupt\"");
    store.objects.delete(&name).unwrap();
    client.get(&path, &[]).await.is(500, "is lost or cut off in the object store");
    client.get(&path, &["Range: bytes=5-9"]).await.is(500, &name);
    // It is, once its records are discarded, also if that happens while it is read.
    store.set(WAITS);
    let before = store.gets.load(Ordering::SeqCst);
    client.send("GET", &path, &[]).await;
    wait_for(|| store.gets.load(Ordering::SeqCst) > before).await;
    let log = server.log.clone();
    let next = log.stored_objects(2, 1).unwrap()[0].next;
    tokio::task::spawn_blocking(move || log.discard(next).unwrap()).await.unwrap();
    wait_for(|| server.log.stored_objects(0, 1).unwrap()[0].number > 2).await;
    store.go_on();
    let answer = tokio::time::timeout(PATIENCE, client.answer(false)).await.expect("no answer");
    answer.is(404, "all its records are discarded");
    client.get(&path, &[]).await.is(404, "all its records are discarded");
    // While the server ends, it answers nothing.
    server.host.drain();
    client.get(&path, &[]).await.is(503, "shutting down");
}

/// A byte is wrong at the end of an object that takes several requests to the store. The answer has begun, and breaks off.
#[tokio::test]
async fn damaged_object_is_never_sent_whole() {
    let (server, store) = served(Settings::default(), None, (8 << 20, 6 << 20), 6000).await;
    let mut client = Client::of(&server).await;
    let objects = listed(&client.get("/v1/objects", &[]).await.text());
    let (name, bytes, _) = objects.iter().max_by_key(|(_, bytes, _)| *bytes).unwrap();
    assert!(*bytes > 5 << 20, "{objects:?}");
    let path = format!("/v1/objects/{name}");
    let all = store.objects.get(name, 0..*bytes).unwrap();
    let whole = client.get(&path, &[]).await;
    assert!(whole.body == all && whole.is_whole);
    let part = client.get(&path, &[&format!("Range: bytes=7-{}", bytes - 1)]).await;
    assert!(part.body == all[7..] && part.code == 206, "a range of several requests");
    store.set(FLIPS);
    let broken = client.get(&path, &[]).await;
    assert!(!broken.is_whole && broken.code == 200, "{} of {bytes} bytes", broken.body.len());
    assert!(broken.body.len() <= 4 << 20 && all.starts_with(&broken.body));
    assert!(client.ends().await);
    // The same over HTTP/2.
    let mut channel = server.plain().await;
    let request = http::Request::get(format!("http://localhost{path}")).body(Body::empty()).unwrap();
    let answer = over_http2(&mut channel, request).await.unwrap();
    assert_eq!(answer.status(), 200);
    let (begun, mut body) = (Instant::now(), answer.into_body());
    let broken = loop {
        assert!(begun.elapsed() < PATIENCE);
        match body.frame().await {
            Some(Ok(_)) => {}
            end => break end,
        }
    };
    assert!(matches!(broken, Some(Err(_))), "{broken:?}");
    store.set(WORKS);
    let request = http::Request::get(format!("http://localhost{path}")).body(Body::empty()).unwrap();
    let answer = over_http2(&mut channel, request).await.unwrap().into_body().collect().await.unwrap();
    assert!(answer.to_bytes() == all);
}
