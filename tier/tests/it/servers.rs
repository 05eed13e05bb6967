//! Objects of a server's logs over HTTP, from a server that misbehaves.

use crate::environment::tls;
use crate::s3_server::S3Server;
use crate::scripted_server::{Answer, Request, ScriptedServer};
use chiplog::internal::Crc;
use chiplog::vault::Vault;
use chiplog::{ErrorKind, LogId, backup::Backup};
use chiplog_tier::{ServerVault, ServerVaultOptions};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

const ID: &str = "0000000000000000000000000000000a";
const NAME: &str = "0000000000000000000000000000000a/o/00000000000000000003";

fn bytes() -> Vec<u8> {
    (0..1000_u32).map(|n| (n % 251) as u8).collect()
}

/// Headers as static texts: the server of the tests wants them so.
fn leaked(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

fn tag() -> String {
    format!("ETag: \"crc32c-{:08x}\"\r\n", Crc::default().add(&bytes()).sum())
}

fn list() -> Answer {
    let object = format!("{{\"name\":\"{NAME}\",\"number\":3,\"bytes\":1000}}");
    let log = format!("{{\"log\":\"default\",\"log_id\":\"{ID}\",\"objects\":[{object}]}}");
    let none = "{\"log\":\"_system\",\"log_id\":\"0000000000000000000000000000000b\",\"objects\":[]}";
    Answer::Http(200, "", format!("{{\"logs\":[{log},{none}]}}").into())
}

/// The answer of a chiplog server.
fn right(request: &Request) -> Answer {
    match (&*request.method, &*request.target) {
        (_, "/v1/objects") => list(),
        (_, target) if target.trim_end_matches('/') == format!("/v1/objects/{ID}") => list(),
        ("HEAD", target) if target.ends_with(NAME) => {
            Answer::Http(200, leaked(tag() + "Content-Length: 1000\r\n"), Vec::new())
        }
        ("GET", target) if target.ends_with(NAME) => {
            let range = request.header("range").unwrap().strip_prefix("bytes=").unwrap();
            let (first, last) = range.split_once('-').unwrap();
            let (first, last) = (first.parse::<usize>().unwrap(), last.parse::<usize>().unwrap().min(999));
            if first > last {
                return Answer::Http(416, leaked(tag() + "Content-Range: bytes */1000\r\n"), Vec::new());
            }
            Answer::Http(
                206,
                leaked(format!("{}Content-Range: bytes {first}-{last}/1000\r\n", tag())),
                bytes()[first..=last].to_vec(),
            )
        }
        _ => Answer::Http(404, "", b"{\"error\":\"not_found\",\"message\":\"nothing there\"}".to_vec()),
    }
}

fn vault(server: &ScriptedServer, timeout: Duration) -> ServerVault {
    ServerVault::open(server.endpoint(), ServerVaultOptions::default().timeout(timeout)).unwrap()
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn server_is_a_store_that_can_be_read() {
    let server = ScriptedServer::start(|_, request| {
        assert_eq!(request.header("authorization"), Some("Bearer secret"));
        right(request)
    });
    let options = ServerVaultOptions::default().token(" secret\n".to_owned());
    let vault: Arc<dyn Vault> = Arc::new(ServerVault::open(server.endpoint(), options).unwrap());
    let names = |prefix: &str| -> Vec<String> {
        vault.list(prefix).unwrap().into_iter().map(|object| object.name).collect()
    };
    let (root, begin) = (format!("{ID}/root"), format!("{ID}/begin/00000000000000000003"));
    assert_eq!(names(""), [begin.as_str(), NAME, root.as_str()]);
    assert_eq!(names(&format!("{ID}/o/")), [NAME]);
    let before = server.lines().len();
    for none in ["s/", "pin/", "other/", "o/x/"] {
        assert_eq!(names(&format!("{ID}/{none}")), [""; 0]);
    }
    assert_eq!(server.lines().len(), before, "servers have neither slices nor pins");
    assert_eq!(names(&format!("{ID}/begin/")), [begin.as_str()]);
    assert_eq!(names("0000000000000000000000000000000c/"), [""; 0], "the server does not have it");
    assert_eq!(Backup::logs_in(&*vault).unwrap(), [LogId(10)], "logs without objects are left out");
    assert_eq!(vault.size(NAME).unwrap(), Some(1000));
    assert_eq!(vault.get(NAME, 0..1000).unwrap(), bytes());
    assert_eq!(vault.get(NAME, 10..20).unwrap(), bytes()[10..20]);
    assert!(vault.get(NAME, 7..7).unwrap().is_empty());
    let text = format!("chiplog objects\nformat 1\nlog {ID}\n");
    assert_eq!(vault.size(&root).unwrap(), Some(text.len() as u64));
    assert_eq!(vault.get(&root, 0..text.len() as u64).unwrap(), text);
    assert_eq!(vault.get(&begin, 0..7).unwrap(), "chiplog");
    let kind = |result: chiplog::Result<bytes::Bytes>| result.unwrap_err().kind();
    for range in [0..1001, 999..1001, 1000..1001, 2000..3000, 1001..1001] {
        assert_eq!(kind(vault.get(NAME, range)), ErrorKind::OutOfRange);
    }
    assert_eq!(kind(vault.get(&root, 0..1001)), ErrorKind::OutOfRange);
    let missing = format!("{ID}/o/00000000000000000004");
    assert_eq!(kind(vault.get(&missing, 0..1)), ErrorKind::NotFound);
    assert_eq!(vault.size(&missing).unwrap(), None);
    assert_eq!(vault.size(&format!("{ID}/begin/00000000000000000002")).unwrap(), None);
    assert_eq!(kind(vault.get("../x", 0..1)), ErrorKind::InvalidArgument);
    for error in [
        vault.put(NAME, &[]).unwrap_err(),
        vault.create(NAME, "x".into()).unwrap_err(),
        vault.delete(NAME).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }
}

/// Answers that break off, refusals and closed connections: the read goes on behind what came.
#[test]
fn broken_answers_are_continued() {
    let server = ScriptedServer::start(|n, request| {
        let right = right(request);
        match (n, right) {
            (0 | 3, _) => Answer::Close,
            (1, _) => Answer::Http(503, "", b"{\"error\":\"busy\",\"message\":\"later\"}".to_vec()),
            (2 | 4, Answer::Http(206, headers, body)) => {
                let length = format!("{headers}Connection: close\r\nContent-Length: {}\r\n", body.len());
                Answer::Http(206, leaked(length), body[..300].to_vec())
            }
            (_, right) => right,
        }
    });
    assert_eq!(vault(&server, LONG).get(NAME, 0..1000).unwrap(), bytes());
    let lines = server.lines();
    assert_eq!(lines.len(), 6, "{lines:?}");
    assert!(lines.iter().all(|line| line.starts_with("GET")), "{lines:?}");
}

/// Answers that end early without a fault of HTTP: with some bytes the read goes on, without any it ends in time.
#[test]
fn short_answers_are_continued_or_end() {
    let short = |most: usize| {
        ScriptedServer::start(move |_, request| match right(request) {
            Answer::Http(206, headers, mut body) => {
                body.truncate(most);
                Answer::Http(206, headers, body)
            }
            right => right,
        })
    };
    let some = short(300);
    assert_eq!(vault(&some, LONG).get(NAME, 0..1000).unwrap(), bytes());
    assert_eq!(some.lines().iter().filter(|line| line.starts_with("GET")).count(), 4);
    let none = short(0);
    let error = vault(&none, Duration::from_millis(1500)).get(NAME, 0..1000).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unavailable && error.to_string().contains("1000 bytes early"),
        "{error}"
    );
    assert!((2..=5).contains(&none.lines().len()), "{:?}", none.lines());
}

#[test]
fn wrong_answers_are_errors() {
    // A byte is another one.
    let flipped = ScriptedServer::start(|_, request| match right(request) {
        Answer::Http(206, headers, mut body) => {
            body[0] ^= 1;
            Answer::Http(206, headers, body)
        }
        right => right,
    });
    let read = vault(&flipped, LONG).get(NAME, 0..1000).unwrap_err();
    assert_eq!(read.kind(), ErrorKind::Corrupt, "{read}");
    assert!(read.to_string().contains(NAME), "{read}");
    // More bytes than were wanted, the whole object instead of a range, and answers of something else.
    let longer = |code| {
        ScriptedServer::start(move |_, request| match right(request) {
            Answer::Http(206, headers, body) => Answer::Http(code, headers, [body, vec![0]].concat()),
            right => right,
        })
    };
    let page = ScriptedServer::start(|_, _| Answer::Http(200, "", b"<html>".to_vec()));
    let none = ScriptedServer::start(|_, _| Answer::Http(404, "", b"<html>".to_vec()));
    for (server, what) in [(longer(206), "get"), (longer(200), "get"), (page, "list"), (none, "list")] {
        let vault = vault(&server, LONG);
        let error = match what {
            "get" => vault.get(NAME, 0..10).unwrap_err(),
            _ => vault.list("").unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(server.endpoint()), "{error}");
    }
    for (code, body, kind) in [
        (401, "{\"error\":\"unauthenticated\",\"message\":\"no token\"}", ErrorKind::Unauthenticated),
        (403, "", ErrorKind::PermissionDenied),
        (501, "{\"error\":\"unsupported\",\"message\":\"no store\"}", ErrorKind::Unsupported),
        (500, "{\"error\":\"corrupt\",\"message\":\"damaged\"}", ErrorKind::Corrupt),
        (301, "", ErrorKind::Io),
    ] {
        let server = ScriptedServer::start(move |_, _| Answer::Http(code, "", body.as_bytes().to_vec()));
        let error = vault(&server, LONG).list("").unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(server.lines().len(), 1, "{code}: another attempt cannot help");
    }
}

/// Answers of a cache or a proxy: with another range or object they are refused, and a weak tag is as good as the tag.
#[test]
fn answers_say_what_they_have() {
    let server = |method: &'static str, from: &'static str, to: String| {
        ScriptedServer::start(move |_, request| match right(request) {
            Answer::Http(code, headers, body) if request.method == method => {
                Answer::Http(code, leaked(headers.replace(from, &to)), body)
            }
            right => right,
        })
    };
    let (range, etag) = ("bytes 10-19/1000", tag());
    let etag: &'static str = Box::leak(etag.into_boxed_str());
    for (method, from, to) in [
        ("GET", range, "bytes 11-20/1000".to_owned()),
        ("GET", range, "bytes 10-29/1000".to_owned()),
        ("GET", range, "bytes 10-19/18".to_owned()),
        ("GET", range, "bytes 10-19/4611686018427387904".to_owned()),
        ("GET", range, "bytes 10-19/*".to_owned()),
        ("GET", "Content-Range: bytes 10-19/1000\r\n", String::new()),
        ("GET", etag, "ETag: \"other\"\r\n".to_owned()),
        ("GET", etag, "ETag: \"crc32c-1\"\r\n".to_owned()),
        ("GET", etag, String::new()),
        ("HEAD", etag, String::new()),
        ("HEAD", "Content-Length: 1000", "Content-Length: 4611686018427387904".to_owned()),
    ] {
        let server = server(method, from, to.clone());
        let vault = vault(&server, LONG);
        let error = match method {
            "GET" => vault.get(NAME, 10..20).unwrap_err(),
            _ => vault.size(NAME).unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{method} {to}: {error}");
    }
    // An answer that goes on with another object than the first.
    for (from, to) in [("/1000", "/1001"), (etag, "ETag: \"crc32c-00000001\"\r\n")] {
        let other = ScriptedServer::start(move |n, request| match right(request) {
            Answer::Http(206, headers, body) if n == 0 => Answer::Http(206, headers, body[..300].to_vec()),
            Answer::Http(206, headers, body) => {
                assert_eq!(request.header("if-match"), tag().strip_prefix("ETag: ").map(str::trim_end));
                Answer::Http(206, leaked(headers.replace(from, to)), body)
            }
            right => right,
        });
        let error = vault(&other, LONG).get(NAME, 0..900).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{to}: {error}");
    }
    for method in ["HEAD", "GET"] {
        let server = server(method, "ETag: ", "ETag: W/".to_owned());
        let weak = vault(&server, LONG);
        assert_eq!(weak.size(NAME).unwrap(), Some(1000));
        assert_eq!(weak.get(NAME, 0..1000).unwrap(), bytes());
    }
    // The checksum of a weak tag counts.
    let flipped = ScriptedServer::start(|_, request| match right(request) {
        Answer::Http(code, headers, mut body) => {
            if code == 206 {
                body[0] ^= 1;
            }
            Answer::Http(code, leaked(headers.replace("ETag: ", "ETag: W/")), body)
        }
        right => right,
    });
    assert_eq!(vault(&flipped, LONG).get(NAME, 0..1000).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn attempts_end_in_time() {
    let limit = Duration::from_millis(400);
    let down = ScriptedServer::start(|_, _| Answer::status(503));
    let error = vault(&down, limit).size(NAME).unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("try again"), "{error}");
    assert!((1..=4).contains(&down.lines().len()));
    // A list of which a byte arrives now and then, before the wait for each is over, also while other programs have the processors.
    let trickle = ScriptedServer::start(|_, _| Answer::Trickle(Duration::from_millis(5)));
    // A machine that stops for half a second looks like a server that does.
    let mut errors = (0..3).map(|_| vault(&trickle, Duration::from_secs(1)).list("").unwrap_err());
    let error = errors.find(|error| error.kind() != ErrorKind::Unavailable).unwrap();
    assert!(error.kind() == ErrorKind::Timeout && error.to_string().contains("within 20s"), "{error}");
    let silent = ScriptedServer::start(|_, _| Answer::Silence);
    let error = vault(&silent, limit).list("").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// Errors that no other attempt can cure are told at once, with the remedy.
#[test]
fn wrong_certificates_are_errors_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (config, ours) = tls(dir.path());
    let other = dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let (_, theirs) = tls(&other);
    let secret = S3Server::with_tls(Some(config));
    let secret = secret.options.endpoint.clone().unwrap();
    // To a server without TLS its first bytes are no request.
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let without = format!("https://{}", plain.local_addr().unwrap());
    std::thread::spawn(move || {
        for socket in plain.incoming() {
            let mut socket = socket.unwrap();
            socket.read_exact(&mut [0; 5]).unwrap();
            socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            drop(std::io::copy(&mut socket, &mut std::io::sink()));
        }
    });
    let by_address = secret.replace("localhost", "127.0.0.1");
    assert!(secret != by_address);
    for (server, authority, advice) in [
        (&secret, &theirs, "give the authority that has signed"),
        (&by_address, &ours, "use an address that the server's certificate names"),
        (&without, &ours, "does not use TLS"),
    ] {
        let options = ServerVaultOptions::default().timeout(LONG);
        let options = options.authority(std::fs::read(authority).unwrap());
        let vault = ServerVault::open(server, options).unwrap();
        for error in [vault.list("").unwrap_err(), vault.size(NAME).unwrap_err()] {
            assert!(
                error.kind() == ErrorKind::InvalidArgument
                    && error.to_string().contains(advice)
                    && !error.to_string().contains("try again"),
                "{server}: {error}"
            );
        }
    }
}
