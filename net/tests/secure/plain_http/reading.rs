//! Lists, objects and ranges of objects; what is no object.

use super::client::{Client, listed, over_http2};
use super::store::{SEGMENT, small, store_upto};
use super::{folder, wait_for};
use crate::support::Served;
use bytes::Bytes;
use chiplog::backup::{Branch, BranchOptions, RestoreTo};
use chiplog::vault::{ObjectInfo, Vault as _};
use chiplog::{Index, Log, LogId};
use chiplog_net::listener::Settings;
use chiplog_net::served::refusals::Refusal;
use futures_util::stream;
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use std::sync::atomic::Ordering;
use tokio::io::AsyncWriteExt as _;
use tonic::Status;
use tonic::body::Body;

#[tokio::test]
async fn objects_are_listed_and_read_in_ranges() {
    let (server, store) = small().await;
    let mut client = Client::of(&server).await;
    let list = client.get("/v1/objects", &[]).await.is(200, "\"log\":\"default\"");
    assert!(list.is_whole && list.header("content-type") == Some("application/json"));
    let text = list.text();
    assert!(
        text.starts_with("{\"logs\":[\n{\"log\":\"default\",\"log_id\":\"") && text.ends_with("}\n]}\n]}\n")
    );
    assert!(text.contains("\"number\":0,\"first\":1,\"last\":"), "{text}");
    let objects = listed(&text);
    let there = store.list(&format!("{}/o/", folder(&server))).unwrap();
    assert!(there.len() > 8, "{there:?}");
    let names: Vec<_> = objects.iter().map(|(name, bytes, _)| ObjectInfo::new(name, *bytes)).collect();
    assert_eq!(names, there);
    for path in ["/v1/objects/", "/v1/objects?log=default", &format!("/v1/objects/{}/o/", folder(&server))] {
        assert_eq!(client.get(path, &[]).await.is(200, "").text(), text, "{path}");
    }
    let head = client.ask("HEAD", "/v1/objects", &[]).await;
    assert!(head.code == 200 && head.body.is_empty());

    let mut sent = 0;
    for (name, bytes, crc) in &objects {
        let path = format!("/v1/objects/{name}");
        let all = store.objects.get(name, 0..*bytes).unwrap();
        let whole = client.get(&path, &[]).await;
        assert!(whole.code == 200 && whole.body == all && whole.is_whole, "{name}");
        let tag = format!("\"crc32c-{crc}\"");
        let sum = chiplog::internal::Crc::default().add(&all).sum();
        assert_eq!(format!("{sum:08x}"), *crc);
        let digest = format!("crc32c=:{}:", data_encoding_of(sum));
        let range = bytes / 3..bytes / 2;
        let asked = format!("Range: bytes={}-{}", range.start, range.end - 1);
        let part = client.get(&path, &[&asked, &format!("If-Range: {tag}")]).await;
        assert_eq!((part.code, part.body.as_slice()), (206, &all[range.start as usize..range.end as usize]));
        let shown = format!("bytes {}-{}/{bytes}", range.start, range.end - 1);
        assert_eq!(part.header("content-range"), Some(&*shown));
        let head = client.ask("HEAD", &path, &[&asked]).await;
        assert_eq!((head.code, head.header("content-length")), (200, Some(&*bytes.to_string())));
        for answer in [&whole, &part, &head] {
            assert_eq!(answer.header("etag"), Some(&*tag));
            assert_eq!(answer.header("repr-digest"), Some(&*digest));
            assert_eq!(answer.header("accept-ranges"), Some("bytes"));
        }
        sent += bytes + range.end - range.start;
    }
    assert_eq!(server.host.copies().objects_bytes, sent, "a HEAD reads nothing");

    let (name, bytes, crc) = &objects[0];
    let path = format!("/v1/objects/{name}");
    let all = store.objects.get(name, 0..*bytes).unwrap();
    for (header, code, length) in [
        ("Range: bytes=-10", 206, 10),
        ("Range: bytes=0-1,5-6", 200, *bytes), // several ranges: all of it
        ("Range: lines=0-1", 200, *bytes),
    ] {
        let answer = client.get(&path, &[header]).await;
        assert_eq!((answer.code, answer.body.len() as u64), (code, length), "{header}");
        assert!(all.ends_with(&answer.body));
    }
    let other = client.get(&path, &["Range: bytes=0-9", "If-Range: \"crc32c-00000000\""]).await;
    assert_eq!(
        (other.code, other.body.len() as u64),
        (200, *bytes),
        "what the client has is of another object"
    );
    let beyond = client.get(&path, &[&format!("Range: bytes={bytes}-")]).await;
    assert_eq!((beyond.code, beyond.header("content-range")), (416, Some(&*format!("bytes */{bytes}"))));
    assert_eq!(client.get(&path, &[&format!("If-None-Match: \"crc32c-{crc}\"")]).await.code, 304);
    assert_eq!(client.get(&path, &["If-Match: \"other\""]).await.code, 412);
    // All of it on one connection, and nothing is held afterwards.
    client.get("/v1/objects", &[]).await.is(200, "");
    wait_for(|| server.budget.answer_bytes() == 0 && server.budget.streams() == 0).await;
}

/// A branch that reads objects of another log is in the list of all, with its own objects and the reason why they are not served, and
/// refused by itself. Once it needs none of that log's, it is served.
#[tokio::test]
async fn branch_is_listed_and_not_served() {
    let (parent, store) = small().await;
    let dir = tempfile::tempdir().unwrap();
    let (vault, at, id) = (store.clone(), dir.path().to_owned(), parent.log.log_id());
    let made = tokio::task::spawn_blocking(move || {
        Branch::make(&*vault, id, &at, &BranchOptions::default().to(RestoreTo::Index(Index(1500)))).unwrap()
    });
    let made = made.await.unwrap();
    let server = Served::with_objects_in(dir, store.clone(), SEGMENT).await;
    let append = |first: u64, then: fn(&Log, Index)| {
        let log = server.log.clone();
        tokio::task::spawn_blocking(move || {
            let last = (first..first + 50).map(|n| log.append(&[n as u8; 1000]).unwrap()).max().unwrap();
            store_upto(&log, last);
            then(&log, last);
        })
    };
    append(0, |_, _| ()).await.unwrap();
    let own = format!("{:032x}", made.log_id.get());
    let there = || store.list(&format!("{own}/o/")).unwrap();
    let mut client = Client::of(&server).await;
    let text = client.get("/v1/objects", &[]).await.is(200, "is a branch that reads objects").text();
    assert!(text.contains(&format!("\"log_id\":\"{own}\",\"not_served\":\"log ")), "{text}");
    let names: Vec<_> =
        listed(&text).into_iter().map(|(name, bytes, _)| ObjectInfo::new(name, bytes)).collect();
    assert!(!names.is_empty() && names == there(), "{text}");
    let object = format!("/v1/objects/{}", names[0].name);
    for path in ["/v1/objects?log=default", &format!("/v1/objects/{own}/"), &object] {
        client.get(path, &[]).await.is(501, "is a branch that reads objects");
    }
    append(50, |log, last| log.discard(last).unwrap()).await.unwrap();
    wait_for(|| !server.log.reads_other_logs()).await;
    let text = client.get("/v1/objects", &[]).await.is(200, &own).text();
    assert!(!text.contains("not_served"), "{text}");
    let (name, bytes, _) = listed(&text).pop().unwrap();
    let whole = client.get(&format!("/v1/objects/{name}"), &[]).await;
    assert_eq!((whole.code, whole.body.len() as u64), (200, bytes));
}

#[tokio::test]
async fn only_objects_of_the_log_can_be_read() {
    let (server, store) = small().await;
    let (own, other) = (folder(&server), format!("{:032x}", server.log.log_id().get() ^ 1));
    let put = |name: String| store.put(&name, &["secret".into()]).unwrap();
    put(format!("{other}/o/00000000000000000000"));
    put(format!("{own}/o/00000000000000009999"));
    put(format!("{own}/pin/a"));
    put("plain".to_owned());
    let mut client = Client::of(&server).await;
    let gets = store.gets.load(Ordering::SeqCst);
    for path in [
        format!("{other}/o/00000000000000000000"),
        format!("{other}/"),
        format!("{own}/o/00000000000000009999"),
        format!("{own}/pin/a"),
        format!("{own}/root"),
        format!("{own}/../plain"),
        format!("{own}/%2e%2e/plain"),
        "plain".to_owned(),
        "../../etc/passwd".to_owned(),
    ] {
        let answer = client.get(&format!("/v1/objects/{path}"), &[]).await.is(404, "\"error\":\"not_found\"");
        assert!(answer.text().contains("GET /v1/objects lists"), "{answer:?}");
    }
    client.get("/v1/objects?log=nowhere", &[]).await.is(404, "no log or group");
    client.get("/v1/objects?prefix=x", &[]).await.is(400, "log=NAME");
    assert_eq!(store.gets.load(Ordering::SeqCst), gets, "the store was asked");

    // A request that is no GET of an object ends the connection: the rest of it is no request.
    for (method, path, header, code) in [
        ("PUT", "/v1/objects/x", "Content-Length: 0", 405),
        ("DELETE", "/v1/objects", "X: y", 405),
        ("GET", "/v1/objects", "Content-Length: 5", 413),
        ("GET", "/v1/objects", "Transfer-Encoding: chunked", 413),
        ("GET", "/metrics", "X: y", 404),
        ("POST", "/chiplog.v1.Log/Info", "Content-Type: application/grpc", 404),
        ("GET", "/v1/other", "X: y", 404),
        ("GET", "/v1/objectsx", "X: y", 404),
    ] {
        let mut client = Client::of(&server).await;
        let answer = client.ask(method, path, &[header]).await;
        assert_eq!(answer.code, code, "{method} {path} {header}: {answer:?}");
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(client.ends().await, "{method} {path}");
    }

    // A log without a store, and headers without an end.
    let without = Served::start(Settings::default()).await;
    let mut client = Client::of(&without).await;
    let list = client.get("/v1/objects", &[]).await.is(200, "\"objects\":[");
    assert!(listed(&list.text()).is_empty());
    client
        .get(&format!("/v1/objects/{}/o/00000000000000000000", folder(&without)), &[])
        .await
        .is(404, "stored");
    client
        .io
        .write_all(format!("GET /v1/objects HTTP/1.1\r\nX: {}", "y".repeat(40 << 10)).as_bytes())
        .await
        .unwrap();
    assert!(client.ends().await);
    without.refused(Refusal::Handshake, 1).await;
    let many: Vec<String> = (0..300).map(|n| format!("X-{n}: y")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let mut client = Client::of(&without).await;
    assert_eq!(client.get("/v1/objects", &many).await.code, 431);
}

/// Some programs end a GET over HTTP/2 with an empty frame.
#[tokio::test]
async fn empty_frame_is_no_body() {
    let (server, _store) = small().await;
    let mut channel = server.plain().await;
    let without = || Body::new(StreamBody::new(stream::empty::<Result<Frame<Bytes>, Status>>()));
    let with = || Body::new(Full::new(Bytes::from("body")));
    for (body, code) in [(without(), 200), (with(), 413)] {
        let request = http::Request::get("http://localhost/v1/objects").body(body).unwrap();
        let answer = over_http2(&mut channel, request).await.unwrap();
        assert_eq!(answer.status(), code);
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(listed(std::str::from_utf8(&text).unwrap()).is_empty(), code == 413);
    }
}

/// A server that has no log yet, or another one, says so.
#[tokio::test]
async fn other_log_is_not_here() {
    let (server, _store) = small().await;
    let mut client = Client::of(&server).await;
    let id = LogId(server.log.log_id().get() ^ 1);
    client.get(&format!("/v1/objects/{:032x}", id.get()), &[]).await.is(404, "has no replica of log");
}

/// The Base64 of four bytes, most significant first.
fn data_encoding_of(sum: u32) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u64::from(sum) << 4;
    let digits = (0..6).rev().map(|n| DIGITS[(bits >> (6 * n)) as usize & 63] as char);
    digits.chain("==".chars()).collect()
}
