//! The vault over a server that misbehaves.

use crate::scripted_server::{Answer, Request, ScriptedServer};
use bytes::Bytes;
use chiplog::vault::Vault;
use chiplog::{Error, ErrorKind};
use std::error::Error as _;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

fn is_unavailable(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let text = error.to_string();
    assert!(text.contains("o/7") && text.contains("s3://bucket/p"), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

/// The answers of a store that has the object `0123456789`.
fn ten_bytes(request: &Request) -> Answer {
    match &*request.method {
        "HEAD" => Answer::Http(200, HEAD_OF_TEN, Vec::new()),
        _ => Answer::Http(
            206,
            "ETag: \"1\"\r\nLast-Modified: Thu, 26 Nov 2026 10:00:00 GMT\r\nContent-Range: bytes 0-9/10\r\n",
            b"0123456789".to_vec(),
        ),
    }
}

const HEAD_OF_TEN: &str =
    "ETag: \"1\"\r\nLast-Modified: Thu, 26 Nov 2026 10:00:00 GMT\r\nContent-Length: 10\r\n";

#[test]
fn overloaded_store_is_asked_again() {
    for status in [500, 503, 429] {
        let server = ScriptedServer::start(move |n, request| match (n, &*request.method) {
            (0 | 1 | 4, _) => Answer::code(status, "SlowDown"),
            (_, "PUT") => Answer::put(),
            _ => ten_bytes(request),
        });
        let vault = server.vault(LONG, 8);
        vault.put("o/7", &["0123456789".into()]).unwrap();
        assert_eq!(server.lines().len(), 3);
        assert_eq!(vault.get("o/7", 0..10).unwrap(), &b"0123456789"[..]);
        assert_eq!(vault.size("o/7").unwrap(), Some(10));
        assert_eq!(server.lines().len(), 6);
    }
}

/// A request with a large body was given up after the time that one of 8 MiB has, so objects on a slow link were never stored.
#[test]
fn large_body_has_more_time() {
    let server = ScriptedServer::start(|_, _| {
        thread::sleep(Duration::from_secs(2));
        Answer::put()
    });
    let vault = server.vault(Duration::from_secs(3), 0);
    let mebibyte = Bytes::from(vec![7; 1 << 20]);
    assert!(vault.create_of("o/7", &vec![mebibyte; 64]).unwrap());
    assert_eq!(server.lines(), ["PUT /bucket/p/o/7"]);
    is_unavailable(&vault.create("o/7", "x".into()).unwrap_err()); // of a small one it is silence
}

/// The last answer was lost, and the store does not know the completed upload any more. That was taken for a missing bucket.
#[test]
fn lost_answer_to_the_end_of_an_upload_is_no_missing_bucket() {
    const UPLOAD: &[u8] =
        b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
    let server = ScriptedServer::start(|_, request| match &*request.method {
        "POST" if request.target.contains("uploads") => {
            Answer::Http(200, "Content-Type: application/xml\r\n", UPLOAD.to_vec())
        }
        "PUT" => Answer::put(),
        _ => Answer::code(404, "NoSuchUpload"),
    });
    let vault = server.vault(LONG, 2);
    let error = vault.put("o/7", &vec![Bytes::from(vec![7; 1 << 20]); 9]).unwrap_err();
    is_unavailable(&error);
    assert!(!error.to_string().contains("make the bucket"), "{error}");
}

#[test]
fn attempts_are_bounded() {
    let server = ScriptedServer::start(|_, _| Answer::code(503, "SlowDown"));
    let vault = server.vault(LONG, 2);
    is_unavailable(&vault.put("o/7", &["x".into()]).unwrap_err());
    assert_eq!(server.lines(), ["PUT /bucket/p/o/7"; 3]);
    is_unavailable(&vault.create("o/7", "x".into()).unwrap_err());
    is_unavailable(&vault.get("o/7", 0..1).unwrap_err());
    is_unavailable(&vault.size("o/7").unwrap_err());
    is_unavailable(&vault.list("o/7/").unwrap_err());
    let error = vault.delete("o/7").unwrap_err();
    is_unavailable(&error);
    let source = error.source().unwrap();
    assert!(source.downcast_ref::<object_store::Error>().is_some(), "{source}");
}

#[test]
fn silent_store_is_left_at_the_deadline() {
    let server = ScriptedServer::start(|_, _| Answer::Silence);
    let vault = server.vault(Duration::from_millis(400), 8);
    let calls: [&dyn Fn() -> Error; 7] = [
        &|| vault.put("o/7", &["x".into()]).unwrap_err(),
        &|| vault.put("o/7", &[vec![0; 9 << 20].into()]).unwrap_err(),
        &|| vault.create("o/7", "x".into()).unwrap_err(),
        &|| vault.get("o/7", 0..1).unwrap_err(),
        &|| vault.size("o/7").unwrap_err(),
        &|| vault.list("o/7/").unwrap_err(),
        &|| vault.delete("o/7").unwrap_err(),
    ];
    for call in calls {
        let start = Instant::now();
        is_unavailable(&call());
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
}

/// A connection that a firewall has forgotten is silent for ever. The next attempt must come within the time limit.
#[test]
fn silent_connection_is_replaced_within_the_deadline() {
    let server = ScriptedServer::start(|n, request| match (n, &*request.method) {
        (0 | 2, _) => Answer::Silence,
        (_, "PUT") => Answer::put(),
        _ => ten_bytes(request),
    });
    let vault = server.vault(Duration::from_secs(3), 8);
    vault.put("o/7", &["x".into()]).unwrap();
    assert_eq!(vault.get("o/7", 0..10).unwrap(), &b"0123456789"[..]);
    assert_eq!(server.lines().len(), 4);
}

#[test]
fn closed_connections_are_replaced() {
    let server = ScriptedServer::start(|n, request| match (n, &*request.method) {
        (0 | 2, _) => Answer::Close,
        (_, "PUT") => Answer::put(),
        _ => ten_bytes(request),
    });
    let vault = server.vault(LONG, 8);
    vault.put("o/7", &["x".into()]).unwrap();
    assert_eq!(vault.get("o/7", 0..10).unwrap(), &b"0123456789"[..]);
}

#[test]
fn unreachable_store_is_unavailable() {
    let options = chiplog_tier::VaultOptions::default()
        .endpoint("http://127.0.0.1:1".to_owned())
        .allow_http(true)
        .access_key("key".to_owned())
        .secret_key("secret".to_owned())
        .retries(1);
    let vault = chiplog_tier::ObjectVault::open("s3://bucket/p", options).unwrap();
    let error = vault.put("o/7", &["x".into()]).unwrap_err();
    is_unavailable(&error);
    assert!(error.to_string().contains("refused"), "{error}");
    assert_eq!(error.os_error(), Some(111), "{error}");
}

/// `object_store` calls every 409 `AlreadyExists`, also that of a store that refuses one of two requests at a time and does
/// neither (its issue 852). A log whose `root` counted as taken would never start.
#[test]
fn conflict_without_an_object_is_no_object() {
    let server = ScriptedServer::start(|n, request| match (n, &*request.method) {
        (0 | 2, "PUT") => Answer::code(409, "ConditionalRequestConflict"),
        (_, "PUT") => Answer::put(),
        _ => Answer::status(404),
    });
    let vault = server.vault(LONG, 8);
    assert!(vault.create("o/7", "x".into()).unwrap());
    let lines = ["PUT", "HEAD", "PUT", "HEAD", "PUT"].map(|method| format!("{method} /bucket/p/o/7"));
    assert_eq!(server.lines(), lines);
}

#[test]
fn endless_conflict_is_unavailable() {
    for status in [409, 412] {
        let server = ScriptedServer::start(move |_, request| match &*request.method {
            "PUT" => Answer::code(status, "ConditionalRequestConflict"),
            _ => Answer::status(404),
        });
        is_unavailable(&server.vault(Duration::from_secs(1), 8).create("o/7", "x".into()).unwrap_err());
    }
}

#[test]
fn conflict_with_an_object_is_decided_by_its_bytes() {
    let server = ScriptedServer::start(|_, request| match &*request.method {
        "PUT" => Answer::code(412, "PreconditionFailed"),
        _ => ten_bytes(request),
    });
    let vault = server.vault(LONG, 8);
    assert!(vault.create("o/7", "0123456789".into()).unwrap());
    assert!(!vault.create("o/7", "0123456780".into()).unwrap());
    assert!(!vault.create("o/7", "012345678".into()).unwrap());
    let gets = server.lines().iter().filter(|line| line.starts_with("GET")).count();
    assert_eq!(gets, 2); // another size needs no comparison
}

/// The object lands, and the answer is lost: the client's own second attempt is refused because of the first one.
#[test]
fn created_object_whose_answer_was_lost_counts_as_made() {
    let server = ScriptedServer::start(|n, request| match (n, &*request.method) {
        (0, "PUT") => Answer::Close,
        (_, "PUT") => Answer::code(412, "PreconditionFailed"),
        _ => ten_bytes(request),
    });
    assert!(server.vault(LONG, 8).create("o/7", "0123456789".into()).unwrap());
}

#[test]
fn conflict_of_a_put_is_worth_another_attempt() {
    let server = ScriptedServer::start(|_, _| Answer::code(409, "OperationAborted"));
    is_unavailable(&server.vault(LONG, 1).put("o/7", &["x".into()]).unwrap_err());
}

#[test]
fn answer_that_ends_early_is_read_on() {
    const HALF: &str = "ETag: \"1\"\r\nLast-Modified: Thu, 26 Nov 2026 10:00:00 GMT\r\nContent-Range: bytes 0-9/10\r\nContent-Length: 10\r\nConnection: close\r\n";
    const REST: &str =
        "ETag: \"1\"\r\nLast-Modified: Thu, 26 Nov 2026 10:00:00 GMT\r\nContent-Range: bytes 5-9/10\r\n";
    let server = ScriptedServer::start(|n, _| match n {
        0 => Answer::Http(206, HALF, b"01234".to_vec()),
        _ => Answer::Http(206, REST, b"56789".to_vec()),
    });
    assert_eq!(server.vault(LONG, 8).get("o/7", 0..10).unwrap(), &b"0123456789"[..]);
    let server = ScriptedServer::start(|_, _| Answer::Http(206, HALF, b"01234".to_vec()));
    is_unavailable(&server.vault(Duration::from_secs(2), 0).get("o/7", 0..10).unwrap_err());
}

#[test]
fn answer_with_another_range_is_refused() {
    const OTHER: &str =
        "ETag: \"1\"\r\nLast-Modified: Thu, 26 Nov 2026 10:00:00 GMT\r\nContent-Range: bytes 1-8/10\r\n";
    let server = ScriptedServer::start(|_, request| match &*request.method {
        "HEAD" => Answer::Http(200, HEAD_OF_TEN, Vec::new()),
        _ => Answer::Http(206, OTHER, b"12345678".to_vec()),
    });
    assert_eq!(server.vault(LONG, 8).get("o/7", 0..8).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn refusals_have_their_kinds() {
    let cases = [
        (401, "InvalidAccessKeyId", ErrorKind::PermissionDenied),
        (403, "AccessDenied", ErrorKind::PermissionDenied),
        (400, "ExpiredToken", ErrorKind::PermissionDenied),
        (400, "InvalidRequest", ErrorKind::Io),
        (404, "NoSuchBucket", ErrorKind::InvalidArgument),
        (301, "PermanentRedirect", ErrorKind::Io),
    ];
    for (status, code, kind) in cases {
        let server = ScriptedServer::start(move |_, _| Answer::code(status, code));
        let vault = server.vault(LONG, 8);
        let errors = [
            vault.put("o/7", &["x".into()]).unwrap_err(),
            vault.create("o/7", "x".into()).unwrap_err(),
            vault.list("").unwrap_err(),
            vault.delete("o/7").unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), kind, "{status} {code}: {error}");
        }
    }
    let server = ScriptedServer::start(|_, _| Answer::code(404, "NoSuchKey"));
    let vault = server.vault(LONG, 8);
    assert_eq!(vault.get("o/7", 0..1).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(vault.size("o/7").unwrap(), None);
    vault.delete("o/7").unwrap();
}

/// A server for uploads in parts, of which some go wrong.
fn uploads(wrong: impl Fn(usize, &Request) -> Option<Answer> + Send + Sync + 'static) -> ScriptedServer {
    ScriptedServer::start(move |n, request| {
        if let Some(answer) = wrong(n, request) {
            return answer;
        }
        let target = &request.target;
        let xml =
            |text: &str| Answer::Http(200, "Content-Type: application/xml\r\n", text.as_bytes().to_vec());
        match &*request.method {
            "POST" if target.contains("uploads") => {
                xml("<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>")
            }
            "POST" => {
                xml("<CompleteMultipartUploadResult><ETag>\"1\"</ETag></CompleteMultipartUploadResult>")
            }
            "DELETE" => Answer::status(204),
            _ => Answer::put(),
        }
    })
}

fn is_abort(line: &str) -> bool {
    line.starts_with("DELETE /bucket/p/o/7?uploadId=u1")
}

#[test]
fn failed_part_aborts_the_upload() {
    let server = uploads(|_, request| {
        request.target.contains("partNumber=2").then(|| Answer::code(500, "InternalError"))
    });
    let large = [Bytes::from(vec![0; 20 << 20])];
    is_unavailable(&server.vault(LONG, 1).put("o/7", &large).unwrap_err());
    let lines = server.lines();
    assert!(is_abort(lines.last().unwrap()), "{lines:?}");
}

#[test]
fn failed_completion_aborts_the_upload() {
    let server = uploads(|_, request| {
        (request.method == "POST" && request.target.contains("uploadId"))
            .then(|| Answer::code(503, "SlowDown"))
    });
    let large = [Bytes::from(vec![0; 20 << 20])];
    is_unavailable(&server.vault(LONG, 1).put("o/7", &large).unwrap_err());
    assert!(is_abort(server.lines().last().unwrap()));
}

#[test]
fn failed_parts_are_sent_again() {
    let failed = Mutex::new(false);
    let server = uploads(move |_, request| {
        assert!(request.body.len() <= 8 << 20);
        let is_first =
            request.target.contains("partNumber=3") && !std::mem::replace(&mut failed.lock().unwrap(), true);
        is_first.then_some(Answer::Close)
    });
    let large = [Bytes::from(vec![0; 20 << 20])];
    server.vault(LONG, 4).put("o/7", &large).unwrap();
    let lines = server.lines();
    assert_eq!(lines.iter().filter(|line| line.contains("partNumber=")).count(), 4, "{lines:?}");
    assert!(!lines.iter().any(|line| is_abort(line)));
}
