//! The files of sealed segments, of logs without an object store.

use super::client::{Client, over_http2};
use super::store::small;
use super::{folder, wait_for};
use crate::support::{PATIENCE, Served};
use chiplog::Log;
use chiplog_net::listener::Settings;
use chiplog_net::listener::auth::roles::{Tokens, digest_of};
use http_body_util::BodyExt as _;
use std::os::unix::fs::FileExt as _;
use tonic::body::Body;

/// Appends until the log has this many sealed segments.
async fn seal(log: &Log, count: usize) {
    let log = log.clone();
    let sealing = tokio::task::spawn_blocking(move || {
        while log.sealed_segments(0, usize::MAX).unwrap().len() < count {
            let tickets: Vec<_> = (0..50).map(|n| log.submit(&[n; 1000]).unwrap()).collect();
            tickets.into_iter().for_each(|ticket| _ = ticket.wait().unwrap());
        }
    });
    sealing.await.unwrap();
}

async fn sealed() -> Served {
    let server = Served::start(Settings::default()).await;
    seal(&server.log, 3).await;
    server
}

/// The names in a list, and the sizes.
fn listed(text: &str) -> Vec<(String, u64)> {
    let field = |line: &str, name: &str| {
        let rest = line.split_once(&format!("\"{name}\":")).unwrap().1;
        rest.split([',', '}']).next().unwrap().trim_matches('"').to_owned()
    };
    let lines = text.lines().filter(|line| line.starts_with("{\"name\""));
    lines.map(|line| (field(line, "name"), field(line, "bytes").parse().unwrap())).collect()
}

#[tokio::test]
async fn segments_are_listed_and_read_in_ranges() {
    let server = sealed().await;
    let log = &server.log;
    let mut client = Client::of(&server).await;
    let text = client.get("/v1/segments", &[]).await.is(200, "\"log\":\"default\"").text();
    assert!(
        text.starts_with("{\"logs\":[\n{\"log\":\"default\",\"log_id\":\"") && text.ends_with("}\n]}\n]}\n"),
        "{text}"
    );
    let segments = log.sealed_segments(0, usize::MAX).unwrap();
    let names: Vec<_> =
        segments.iter().map(|s| (format!("{}/{:020}.seg", folder(&server), s.number), s.bytes)).collect();
    assert_eq!(listed(&text), names);
    for path in ["/v1/segments/", "/v1/segments?log=default", &format!("/v1/segments/{}/", folder(&server))] {
        assert_eq!(client.get(path, &[]).await.is(200, "").text(), text, "{path}");
    }
    let mut sent = 0;
    for ((name, bytes), segment) in names.iter().zip(&segments) {
        let file = log.sealed_segment(segment.number).unwrap().unwrap();
        let (all, tag) = (file.read(0..*bytes).unwrap(), format!("\"crc32c-{:08x}\"", file.sum().unwrap()));
        let path = format!("/v1/segments/{name}");
        let whole = client.get(&path, &[]).await;
        assert!(whole.code == 200 && whole.body == all && whole.is_whole, "{name}");
        let range = bytes / 3..bytes / 2;
        let asked = format!("Range: bytes={}-{}", range.start, range.end - 1);
        let part = client.get(&path, &[&asked, &format!("If-Range: {tag}")]).await;
        assert_eq!((part.code, part.body.as_slice()), (206, &all[range.start as usize..range.end as usize]));
        let head = client.ask("HEAD", &path, &[]).await;
        assert_eq!((head.code, head.header("content-length")), (200, Some(&*bytes.to_string())));
        for answer in [&whole, &part, &head] {
            assert_eq!(answer.header("etag"), Some(&*tag));
            assert_eq!(answer.header("accept-ranges"), Some("bytes"));
        }
        sent += bytes + range.end - range.start;
        assert_eq!(client.get(&path, &[&format!("If-None-Match: {tag}")]).await.code, 304);
        assert_eq!(client.get(&path, &["If-Match: \"other\""]).await.code, 412);
        assert_eq!(client.get(&path, &[&format!("Range: bytes={bytes}-")]).await.code, 416);
    }
    assert_eq!(server.host.copies().segments_bytes, sent, "a HEAD sends nothing");
    // The one that is written, and others that are none.
    let written = segments.last().unwrap().number + 1;
    for rest in [format!("{}/{written:020}.seg", folder(&server)), format!("{:032x}/{:020}.seg", 7, 1)] {
        client.get(&format!("/v1/segments/{rest}"), &[]).await.is(404, "\"error\":\"not_found\"");
    }
    client
        .get(&format!("/v1/segments/{}/chiplog.id", folder(&server)), &[])
        .await
        .is(404, "no path of a segment");
    let page = Client::of(&server).await.get("/v1/segments", &["Origin: http://127.0.0.1:7411"]).await;
    page.is(403, "web pages");
    // The same over HTTP/2.
    let (name, bytes) = &names[1];
    let all = log.sealed_segment(segments[1].number).unwrap().unwrap().read(0..*bytes).unwrap();
    let mut channel = server.plain().await;
    let request =
        http::Request::get(format!("http://localhost/v1/segments/{name}")).body(Body::empty()).unwrap();
    let answer = over_http2(&mut channel, request).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.into_body().collect().await.unwrap().to_bytes() == all);
    // Once its records are discarded it is gone.
    let (log, first) = (server.log.clone(), segments[1].first);
    tokio::task::spawn_blocking(move || log.discard(first).unwrap()).await.unwrap();
    wait_for(|| server.log.sealed_segments(0, 1).unwrap()[0].number > segments[0].number).await;
    client.get(&format!("/v1/segments/{}", names[0].0), &[]).await.is(404, "all its records are discarded");
    // While the server ends, it answers nothing.
    server.host.drain();
    client.get(&format!("/v1/segments/{name}"), &[]).await.is(503, "shutting down");
}

/// A byte of the file is damaged: before its checksum is known the answer is an error, and afterwards it breaks off before that block.
#[tokio::test]
async fn damaged_segment_is_never_sent_whole() {
    let server = sealed().await;
    let segments = server.log.sealed_segments(0, usize::MAX).unwrap();
    let paths: Vec<_> =
        segments.iter().map(|s| format!("/v1/segments/{}/{:020}.seg", folder(&server), s.number)).collect();
    let mut client = Client::of(&server).await;
    let whole = client.get(&paths[1], &[]).await;
    assert!(whole.is_whole && whole.code == 200);
    for segment in &segments[..2] {
        let path = server.log.path().join(format!("{:020}.seg", segment.number));
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        let at = segment.bytes * 3 / 4;
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    }
    client.get(&paths[0], &[]).await.is(500, "\"error\":\"corrupt\"");
    client.get(&paths[0], &["Range: bytes=0-9"]).await.is(500, &format!("{:020}.seg", segments[0].number));
    let sound = client.get(&paths[1], &["Range: bytes=4096-9999"]).await;
    assert!(sound.code == 206 && sound.body == whole.body[4096..10_000], "its other blocks are sound");
    let broken = client.get(&paths[1], &[]).await;
    assert!(
        broken.code == 500 || (!broken.is_whole && whole.body.starts_with(&broken.body)),
        "{}",
        broken.code
    );
    assert!(broken.body.len() < whole.body.len());
}

#[tokio::test]
async fn segments_need_a_token_without_a_scope() {
    let line = |role: &str, token: &str| format!("{role}:{}\n", digest_of(token));
    let tokens: Tokens = (line("read", "secret") + &line("append", "more")).parse().unwrap();
    let server = Served::with_tokens(Settings::default(), Some(tokens)).await;
    seal(&server.log, 1).await;
    let number = server.log.sealed_segments(0, 1).unwrap()[0].number;
    for path in ["/v1/segments".to_owned(), format!("/v1/segments/{}/{number:020}.seg", folder(&server))] {
        for (headers, code) in [
            (&[][..], 401),
            (&["Authorization: Bearer other"], 401),
            (&["Authorization: Bearer secret"], 200),
            (&["Authorization: Bearer more"], 200),
        ] {
            let mut client = Client::of(&server).await;
            let answer = tokio::time::timeout(PATIENCE, client.get(&path, headers)).await.expect("no answer");
            assert_eq!(answer.code, code, "{path} {headers:?}");
        }
    }
}

/// A log with an object store has records that are in no segment: its objects are served.
#[tokio::test]
async fn segments_of_a_log_with_objects_are_not_served() {
    let (server, _store) = small().await;
    let mut client = Client::of(&server).await;
    let text = client
        .get("/v1/segments", &[])
        .await
        .is(200, "\"not_served\":\"log \\\"default\\\" has an object store")
        .text();
    assert!(listed(&text).is_empty(), "{text}");
    let number = server.log.sealed_segments(0, 1).unwrap().first().map_or(1, |segment| segment.number);
    for rest in ["".to_owned(), format!("{number:020}.seg")] {
        let path = format!("/v1/segments/{}/{rest}", folder(&server));
        client.get(&path, &[]).await.is(501, "its objects are, at /v1/objects");
    }
    client.get("/v1/segments?log=default", &[]).await.is(501, "has an object store");
}
